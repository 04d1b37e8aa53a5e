//! Locks that the server takes for its clients, beside those that clients take themselves.

use std::time::Duration;

use lockkeeper_machine::{LockName, Page as LockPage, Ticket, Token};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::*;
use crate::proto::{
    etcdserverpb::{LeaseGrantRequest, LeaseLeasesRequest, LeaseRevokeRequest, LeaseStatus, LeaseTimeToLiveRequest},
    v3lockpb::{LockRequest, LockResponse, UnlockRequest},
};

const PATIENCE: Duration = Duration::from_secs(20);
const PAGE: LockPage = LockPage { size: 10, holders_after: Token(0), waiters_after: Ticket(0) };

type Answer = Result<LockResponse, Status>;

async fn with_leases(leases: &[i64]) -> Api {
    let api = Api::new();
    for id in leases {
        api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: *id }).await.unwrap();
    }
    api
}

async fn lock(api: &Api, name: &str, lease: i64) -> Answer {
    let request = LockRequest { name: name.into(), lease };
    timeout(PATIENCE, api.lock().lock(request)).await.expect("in time").map(tonic::Response::into_inner)
}

/// Asks for a lock, and waits until the key is in the queue.
async fn queue(api: &Api, name: &str, lease: i64) -> JoinHandle<Answer> {
    let (mut client, request) = (api.lock(), LockRequest { name: name.into(), lease });
    let waiting = tokio::spawn(async move { Ok(client.lock(request).await?.into_inner()) });
    until(api, |keys| keys.contains(&format!("{name}/{lease:x}"))).await;
    waiting
}

async fn ended(waiting: JoinHandle<Answer>) -> Answer {
    timeout(PATIENCE, waiting).await.expect("in time").expect("no panic")
}

/// Waits until this holds of all keys.
async fn until(api: &Api, holds: impl Fn(&[String]) -> bool) {
    let everything = RangeRequest { key: vec![0], range_end: vec![0], ..Default::default() };
    let wait = async {
        while !holds(&keys(&api.kv().range(everything.clone()).await.unwrap().into_inner())) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("in time");
}

/// Waits until a key was written so often.
async fn until_version(api: &Api, key: &str, version: i64) {
    let wait = async {
        loop {
            let found = api.kv().range(prefix(key)).await.unwrap().into_inner();
            if found.kvs.first().is_some_and(|kv| kv.version == version) {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("in time");
}

async fn unlock(api: &Api, key: &str) -> Result<(), Status> {
    api.lock().unlock(UnlockRequest { key: key.into() }).await.map(drop)
}

#[tokio::test]
async fn a_lock_goes_from_one_to_the_next_in_the_order_of_their_coming() {
    let api = with_leases(&[0x77, 0x11, 0x55]).await;
    let first = lock(&api, "jobs", 0x77).await.unwrap();
    assert_eq!(first.key, b"jobs/77");
    let entry = api.kv().range(prefix("jobs/77")).await.unwrap().into_inner().kvs.remove(0);
    assert_eq!((entry.create_revision, entry.lease), (first.header.unwrap().revision, 0x77));
    let (second, third) = (queue(&api, "jobs", 0x11).await, queue(&api, "jobs", 0x55).await);
    let shown = api.store.machine().lock(&LockName::new("etcd/jobs").unwrap(), PAGE);
    assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 2), "operators see the queue");
    assert!(!second.is_finished() && !third.is_finished());
    unlock(&api, "jobs/77").await.unwrap();
    let second = ended(second).await.unwrap();
    assert_eq!(second.key, b"jobs/11");
    assert!(!third.is_finished());
    // Another name is another lock.
    assert_eq!(lock(&api, "job", 0x77).await.unwrap().key, b"job/77");
    unlock(&api, "jobs/11").await.unwrap();
    assert_eq!(ended(third).await.unwrap().key, b"jobs/55");
}

#[tokio::test]
async fn locks_of_the_server_and_of_clients_exclude_each_other() {
    let api = with_leases(&[0x77, 0x11, 0x55]).await;
    api.kv().put(PutRequest { lease: 0x77, ..put("jobs/77", "") }).await.unwrap();
    let waiting = queue(&api, "jobs", 0x11).await;
    api.kv().put(PutRequest { lease: 0x55, ..put("jobs/55", "") }).await.unwrap();
    assert!(!waiting.is_finished());
    api.kv().delete_range(DeleteRangeRequest { key: "jobs/77".into(), ..Default::default() }).await.unwrap();
    ended(waiting).await.unwrap();
    let mut queue = api.kv().range(prefix("jobs/")).await.unwrap().into_inner().kvs;
    queue.sort_by_key(|kv| kv.create_revision);
    assert_eq!(queue[0].key, b"jobs/11", "the client that came later sees who holds it");
}

#[tokio::test]
async fn a_holder_whose_lease_ends_has_a_successor() {
    let api = with_leases(&[0x77, 0x11, 0x55]).await;
    lock(&api, "jobs", 0x77).await.unwrap();
    let (second, third) = (queue(&api, "jobs", 0x11).await, queue(&api, "jobs", 0x55).await);
    api.lease().lease_revoke(LeaseRevokeRequest { id: 0x77 }).await.unwrap();
    ended(second).await.unwrap();
    api.store.pass(30_000);
    let (mut lease, renewal) = (api.lease(), crate::proto::etcdserverpb::LeaseKeepAliveRequest { id: 0x55 });
    let mut kept = lease.lease_keep_alive(futures::stream::iter([renewal])).await.unwrap().into_inner();
    assert_eq!(kept.message().await.unwrap().unwrap().ttl, 60);
    api.store.pass(31_000);
    assert_eq!(ended(third).await.unwrap().key, b"jobs/55");
}

#[tokio::test]
async fn a_waiter_whose_lease_ends_fails_at_once() {
    let api = with_leases(&[0x77, 0x11]).await;
    lock(&api, "jobs", 0x77).await.unwrap();
    let waiting = queue(&api, "jobs", 0x11).await;
    api.lease().lease_revoke(LeaseRevokeRequest { id: 0x11 }).await.unwrap();
    let error = ended(waiting).await.unwrap_err();
    assert_eq!(shown(&error), "5 etcdserver: requested lease not found");
    api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: 0x12 }).await.unwrap();
    let waiting = queue(&api, "jobs", 0x12).await;
    unlock(&api, "jobs/12").await.unwrap();
    assert_eq!(ended(waiting).await.unwrap_err().code(), tonic::Code::Aborted, "its own key was given up");
}

#[tokio::test]
async fn a_waiter_that_is_gone_leaves_the_queue() {
    let api = with_leases(&[0x77, 0x11, 0x55]).await;
    lock(&api, "jobs", 0x77).await.unwrap();
    let (second, third) = (queue(&api, "jobs", 0x11).await, queue(&api, "jobs", 0x55).await);
    second.abort();
    until(&api, |keys| keys == ["jobs/55", "jobs/77"]).await;
    unlock(&api, "jobs/77").await.unwrap();
    ended(third).await.unwrap();
    // One that is gone before its key is there leaves none either.
    for _ in 0..20 {
        let (mut client, request) = (api.lock(), LockRequest { name: "jobs".into(), lease: 0x11 });
        assert!(futures::poll!(Box::pin(client.lock(request))).is_pending());
        tokio::task::yield_now().await;
    }
    sleep(Duration::from_millis(20)).await;
    until(&api, |keys| keys == ["jobs/55"]).await;
}

/// It believes then that it holds nothing, and unlocks nothing.
#[tokio::test]
async fn a_waiter_that_is_refused_has_left_the_queue_before() {
    let withdrawals: [(fn(&Memory), _); 2] = [
        (Memory::deny, "7 etcdserver: permission denied"),
        (Memory::withdraw_token, "3 etcdserver: user name is empty"),
    ];
    for (withdraw, says) in withdrawals {
        let api = with_leases(&[0x77, 0x11, 0x55]).await;
        lock(&api, "jobs", 0x77).await.unwrap();
        let second = queue(&api, "jobs", 0x11).await;
        let third = queue(&api, "jobs", 0x55).await;

        withdraw(&api.store);
        for waiting in [second, third] {
            assert_eq!(shown(&ended(waiting).await.unwrap_err()), says);
        }
        let machine = api.store.machine();
        let view = machine.lock(&LockName::new("etcd/jobs").unwrap(), PAGE);
        assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{says}");
    }
}

/// A leader that cannot be reached may grant the lock to the key that stays.
#[tokio::test(start_paused = true)]
async fn a_waiter_whose_key_may_stay_is_not_told_that_it_is_refused() {
    let api = with_leases(&[0x77, 0x11]).await;
    lock(&api, "jobs", 0x77).await.unwrap();
    let waiting = queue(&api, "jobs", 0x11).await;
    api.store.be_leaderless(true);
    api.store.deny();
    let error = timeout(3 * PATIENCE, waiting).await.expect("in time").expect("no panic").unwrap_err();
    assert_eq!(shown(&error), "14 etcdserver: no leader");
}

#[tokio::test]
async fn a_repeated_request_takes_its_place_again() {
    let api = with_leases(&[0x77, 0x11, 0x55]).await;
    let first = lock(&api, "jobs", 0x77).await.unwrap();
    assert_eq!(lock(&api, "jobs", 0x77).await.unwrap().key, first.key, "it holds the lock");
    let (second, third) = (queue(&api, "jobs", 0x11).await, queue(&api, "jobs", 0x55).await);
    let (mut client, request) = (api.lock(), LockRequest { name: "jobs".into(), lease: 0x11 });
    let again = tokio::spawn(async move { Ok(client.lock(request).await?.into_inner()) });
    until_version(&api, "jobs/11", 2).await;
    // The end of the earlier request is noticed when the later one may hold the lock.
    second.abort();
    unlock(&api, "jobs/77").await.unwrap();
    assert_eq!(ended(again).await.unwrap().key, b"jobs/11");
    sleep(Duration::from_millis(20)).await;
    assert!(!third.is_finished());
    until(&api, |keys| keys == ["jobs/11", "jobs/55"]).await;
    unlock(&api, "jobs/11").await.unwrap();
    ended(third).await.unwrap();
}

#[tokio::test]
async fn a_repeated_request_whose_key_is_deleted_queues_again() {
    let api = with_leases(&[0x77, 0x11, 0x55]).await;
    lock(&api, "jobs", 0x77).await.unwrap();
    api.kv().put(PutRequest { lease: 0x11, ..put("jobs/11", "") }).await.unwrap();
    let (mut client, request) = (api.lock(), LockRequest { name: "jobs".into(), lease: 0x11 });
    let again = tokio::spawn(async move { Ok(client.lock(request).await?.into_inner()) });
    until_version(&api, "jobs/11", 2).await;
    let third = queue(&api, "jobs", 0x55).await;
    api.kv().delete_range(DeleteRangeRequest { key: "jobs/11".into(), ..Default::default() }).await.unwrap();
    until_version(&api, "jobs/11", 1).await;
    unlock(&api, "jobs/77").await.unwrap();
    ended(third).await.unwrap();
    assert!(!again.is_finished());
    unlock(&api, "jobs/55").await.unwrap();
    ended(again).await.unwrap();
}

#[tokio::test]
async fn a_waiter_outlives_a_change_of_leader() {
    let api = with_leases(&[0x77, 0x11]).await;
    lock(&api, "jobs", 0x77).await.unwrap();
    let waiting = queue(&api, "jobs", 0x11).await;
    for _ in 0..3 {
        api.store.be_leaderless(true);
        sleep(Duration::from_millis(20)).await;
        api.store.be_leaderless(false);
    }
    assert!(!waiting.is_finished());
    // Nor does a call end that finds no leader.
    api.store.be_leaderless(true);
    let (mut client, request) = (api.lock(), UnlockRequest { key: b"jobs/77".into() });
    let unlocking = tokio::spawn(async move { client.unlock(request).await.map(drop) });
    sleep(Duration::from_millis(20)).await;
    api.store.be_leaderless(false);
    timeout(PATIENCE, unlocking).await.expect("in time").expect("no panic").unwrap();
    ended(waiting).await.unwrap();
}

/// The leader has answered the commits: nothing else is asked of it, however many wait.
#[tokio::test]
async fn a_hand_over_reads_nothing_at_the_leader() {
    let leases: Vec<i64> = (1..=6).collect();
    let api = with_leases(&leases).await;
    let held = lock(&api, "jobs", 1).await.unwrap();
    let mut waiting = Vec::new();
    for lease in &leases[1..] {
        waiting.push(queue(&api, "jobs", *lease).await);
    }
    let mut key = String::from_utf8(held.key).unwrap();
    for next in waiting {
        let commits = api.store.commits();
        let reads = api.store.led_reads();
        unlock(&api, &key).await.unwrap();
        key = String::from_utf8(ended(next).await.unwrap().key).unwrap();
        assert_eq!(api.store.commits() - commits, 1, "an entry for each hand-over");
        assert_eq!(api.store.led_reads(), reads, "and no read");
    }
}

/// A node that lags knows neither the key of a request nor those ahead of it.
#[tokio::test]
async fn a_node_that_lags_grants_nothing_by_its_copy() {
    let api = with_leases(&[0x77, 0x11, 0x55]).await;
    lock(&api, "jobs", 0x77).await.unwrap();
    api.store.lag(true);
    let waiting = queue(&api, "jobs", 0x11).await;
    sleep(Duration::from_millis(20)).await;
    assert!(!waiting.is_finished(), "the copy shows no key of this request");
    api.store.lag(false);
    unlock(&api, "jobs/77").await.unwrap();
    assert_eq!(ended(waiting).await.unwrap().key, b"jobs/11");
    // Nor by one that has the key, and none of what came later.
    let waiting = queue(&api, "jobs", 0x55).await;
    api.store.lag(true);
    unlock(&api, "jobs/11").await.unwrap();
    sleep(Duration::from_millis(20)).await;
    api.store.lag(false);
    assert_eq!(ended(waiting).await.unwrap().key, b"jobs/55");
}

/// The key is gone when the call is repeated: who asked is not told that it was none of a lock.
#[tokio::test]
async fn an_unlock_whose_first_answer_was_lost_succeeds() {
    let api = with_leases(&[0x77, 0x11]).await;
    lock(&api, "jobs", 0x77).await.unwrap();
    let waiting = queue(&api, "jobs", 0x11).await;
    api.store.lose_answer();
    unlock(&api, "jobs/77").await.unwrap();
    assert_eq!(ended(waiting).await.unwrap().key, b"jobs/11");
    assert_eq!(unlock(&api, "jobs/77").await.unwrap_err().code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn a_key_is_unlocked_however_it_writes_its_lease() {
    let api = with_leases(&[0x77, 0x11]).await;
    for name in ["jobs/77", "jobs/0000000000000077", "jobs/119"] {
        api.kv().put(PutRequest { lease: 0x77, ..put(name, "") }).await.unwrap();
        unlock(&api, name).await.unwrap();
    }
    until(&api, <[String]>::is_empty).await;
    // The name of one lease, and held by another: it is no lock's.
    api.kv().put(PutRequest { lease: 0x11, ..put("jobs/77", "") }).await.unwrap();
    assert_eq!(unlock(&api, "jobs/77").await.unwrap_err().code(), tonic::Code::NotFound);
    until(&api, |keys| keys == ["jobs/77"]).await;
}

#[tokio::test]
async fn only_keys_of_locks_are_unlocked() {
    let api = with_leases(&[0x77]).await;
    api.kv().put(put("plain", "")).await.unwrap();
    api.kv().put(PutRequest { lease: 0x77, ..put("jobs/78", "") }).await.unwrap();
    for key in ["plain", "jobs/78", "none/77"] {
        let error = unlock(&api, key).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::NotFound);
        assert!(error.message().contains(key), "{error:?}");
    }
    assert_eq!(shown(&unlock(&api, "").await.unwrap_err()), "3 etcdserver: key is not provided");
    until(&api, |keys| keys == ["jobs/78", "plain"]).await;
}

/// Of a minute, and nobody keeps it alive; it ends with a request that is given up.
#[tokio::test]
async fn a_lock_without_a_lease_gets_one() {
    let api = with_leases(&[]).await;
    let held = lock(&api, "jobs", 0).await.unwrap();
    let entry = api.kv().range(prefix("jobs/")).await.unwrap().into_inner().kvs.remove(0);
    assert_eq!(held.key, format!("jobs/{:x}", entry.lease).into_bytes());
    let leases = async || api.lease().lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner().leases;
    assert_eq!(leases().await, [LeaseStatus { id: entry.lease }]);
    let request = LeaseTimeToLiveRequest { id: entry.lease, keys: false };
    let lent = api.lease().lease_time_to_live(request).await.unwrap().into_inner();
    assert_eq!(lent.granted_ttl, 60);

    let (mut client, request) = (api.lock(), LockRequest { name: "jobs".into(), lease: 0 });
    let given_up = tokio::spawn(async move { client.lock(request).await });
    until(&api, |keys| keys.len() == 2).await;
    given_up.abort();
    until(&api, |keys| keys.len() == 1).await;
    let revoked = async {
        while leases().await.len() > 1 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, revoked).await.expect("in time");

    api.store.pass(30_000);
    api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id: 0x77 }).await.unwrap();
    let next = queue(&api, "jobs", 0x77).await;
    api.store.pass(30_001);
    assert_eq!(ended(next).await.unwrap().key, b"jobs/77");
}

/// Go writes a negative number with a sign, in hexadecimal too.
#[tokio::test]
async fn a_negative_lease_has_the_key_that_etcd_gives_it() {
    let api = with_leases(&[-0x7b, i64::MIN]).await;
    let first = lock(&api, "jobs", -0x7b).await.unwrap();
    assert_eq!(first.key, b"jobs/-7b");
    let (mut client, request) = (api.lock(), LockRequest { name: "jobs".into(), lease: i64::MIN });
    let waiting = tokio::spawn(async move { Ok(client.lock(request).await?.into_inner()) });
    until(&api, |keys| keys.len() == 2).await;
    let shown = api.store.machine().lock(&LockName::new("etcd/jobs").unwrap(), PAGE);
    assert_eq!((shown.holders.len(), shown.waiters.len()), (1, 1), "operators see the queue");
    unlock(&api, "jobs/-7b").await.unwrap();
    assert_eq!(ended(waiting).await.unwrap().key, b"jobs/-8000000000000000");
}

#[tokio::test]
async fn a_lock_needs_a_lease_that_lives() {
    let api = with_leases(&[]).await;
    let error = lock(&api, "jobs", 5).await.unwrap_err();
    assert_eq!(shown(&error), "5 etcdserver: requested lease not found");
    until(&api, <[String]>::is_empty).await;
}

/// Keys that one transaction created are of one age: none is ahead of another.
#[tokio::test]
async fn a_key_of_the_same_revision_is_not_ahead() {
    for other in ["jobs/#", "jobs/zz"] {
        let api = with_leases(&[1, 2]).await;
        let held = lock(&api, "jobs", 1).await.expect("it is free");
        let own = PutRequest { lease: 2, ..put("jobs/2", "") };
        let both = vec![operation(own), operation(put(other, ""))];
        api.kv().txn(TxnRequest { success: both, ..Default::default() }).await.unwrap();
        // It takes the key for its own, as that of a request whose answer was lost.
        let (mut client, request) = (api.lock(), LockRequest { name: "jobs".into(), lease: 2 });
        let waiting = tokio::spawn(async move { Ok(client.lock(request).await?.into_inner()) });
        until_version(&api, "jobs/2", 2).await;
        unlock(&api, &String::from_utf8(held.key).unwrap()).await.expect("it is held");
        assert_eq!(ended(waiting).await.expect("its turn").key, b"jobs/2", "{other}");
    }
}
