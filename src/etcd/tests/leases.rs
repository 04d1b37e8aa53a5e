//! Leases.

use std::time::Duration;

use futures::StreamExt as _;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::key;
use crate::proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest,
};

const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_lease_is_granted_shown_listed_and_revoked() {
    let api = Api::new();
    let mut lease = api.lease();
    let granted = lease.lease_grant(LeaseGrantRequest { ttl: 60, id: 0 }).await.unwrap().into_inner();
    assert!(granted.id > 0 && granted.ttl == 60 && granted.header.is_some());
    let chosen = lease.lease_grant(LeaseGrantRequest { ttl: 0, id: 77 }).await.unwrap().into_inner();
    assert_eq!((chosen.id, chosen.ttl), (77, 1), "the shortest TTL");
    let listed = lease.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
    let mut ids: Vec<i64> = listed.leases.iter().map(|lease| lease.id).collect();
    ids.sort_unstable();
    let mut expected = [granted.id, 77];
    expected.sort_unstable();
    assert_eq!(ids, expected);
    api.store.pass(500);
    let shown =
        lease.lease_time_to_live(LeaseTimeToLiveRequest { id: granted.id, keys: true }).await.unwrap().into_inner();
    assert_eq!((shown.ttl, shown.granted_ttl), (59, 60));
    lease.lease_revoke(LeaseRevokeRequest { id: granted.id }).await.unwrap();
    let shown =
        lease.lease_time_to_live(LeaseTimeToLiveRequest { id: granted.id, keys: true }).await.unwrap().into_inner();
    assert_eq!((shown.ttl, shown.granted_ttl), (-1, 0));
}

/// The node that answers may apply it later: a client goes on from the revision of the answer.
#[tokio::test]
async fn the_answer_to_a_revocation_has_a_revision_without_the_keys() {
    let api = Api::new();
    let mut lease = api.lease();
    lease.lease_grant(LeaseGrantRequest { ttl: 60, id: 5 }).await.unwrap();
    api.kv().put(PutRequest { lease: 5, ..put("a", "") }).await.unwrap();
    api.store.lag(true);

    let header = lease.lease_revoke(LeaseRevokeRequest { id: 5 }).await.unwrap().into_inner().header.unwrap();
    let at = RangeRequest { revision: header.revision, ..prefix("a") };
    assert_eq!(api.kv().range(at).await.unwrap().into_inner().count, 0);

    // A watch from the next revision on sees nothing of it.
    assert_eq!(u64::try_from(header.revision).unwrap(), api.store.machine().revision().0);
}

/// Whatever their ids are. Those of one millisecond, too, if the ids are left to the node.
#[tokio::test]
async fn leases_are_listed_in_the_order_in_which_they_were_granted() {
    let api = Api::new();
    let mut lease = api.lease();
    let mut granted = Vec::new();
    for id in [900, 5, 77, 0, 0, 0] {
        let one = lease.lease_grant(LeaseGrantRequest { ttl: 60, id }).await.unwrap().into_inner();
        granted.push(one.id);
        if id != 0 {
            api.store.pass(1);
        }
    }
    let listed = lease.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
    assert_eq!(listed.leases.iter().map(|lease| lease.id).collect::<Vec<_>>(), granted);
}

#[tokio::test]
async fn errors_are_etcds() {
    let mut lease = Api::new().lease();
    lease.lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap();
    let exists = lease.lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap_err();
    assert_eq!(shown(&exists), "9 etcdserver: lease already exists");
    for ttl in [86_401, i64::MAX] {
        let large = lease.lease_grant(LeaseGrantRequest { ttl, id: 0 }).await.unwrap_err();
        assert_eq!(shown(&large), "11 etcdserver: too large lease TTL");
    }
    let unknown = lease.lease_revoke(LeaseRevokeRequest { id: 5 }).await.unwrap_err();
    assert_eq!(shown(&unknown), "5 etcdserver: requested lease not found");
}

#[tokio::test]
async fn renewals_are_answered_and_the_end_of_a_lease_is_told_unasked() {
    let api = Api::new();
    let mut lease = api.lease();
    lease.lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap();
    let (renew, renewals) = mpsc::channel(8);
    let mut kept = lease.lease_keep_alive(ReceiverStream::new(renewals)).await.unwrap().into_inner();
    let mut next = async || {
        let answer = timeout(PATIENCE, kept.next()).await.expect("in time").expect("an answer").expect("no error");
        (answer.id, answer.ttl)
    };
    renew.send(LeaseKeepAliveRequest { id: 77 }).await.unwrap();
    assert_eq!(next().await, (77, 60));
    renew.send(LeaseKeepAliveRequest { id: 5 }).await.unwrap();
    assert_eq!(next().await, (5, 0), "there is no such lease");
    api.store.pass(61_000);
    assert_eq!(next().await, (77, 0), "it is over");
    drop(renew);
    assert!(timeout(PATIENCE, kept.next()).await.expect("in time").is_none());
}

#[tokio::test]
async fn a_stream_of_renewals_outlives_a_change_of_leader() {
    let api = Api::new();
    let mut lease = api.lease();
    lease.lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap();
    let (renew, renewals) = mpsc::channel(8);
    let mut kept = lease.lease_keep_alive(ReceiverStream::new(renewals)).await.unwrap().into_inner();
    api.store.be_leaderless(true);
    renew.send(LeaseKeepAliveRequest { id: 77 }).await.unwrap();
    assert!(timeout(Duration::from_millis(200), kept.next()).await.is_err(), "it waits for a leader");
    api.store.be_leaderless(false);
    let answer = timeout(PATIENCE, kept.next()).await.expect("in time").expect("an answer").expect("no error");
    assert_eq!((answer.id, answer.ttl), (77, 60));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_the_leader_does_not_answer_is_sent_again() {
    let api = Api::new();
    let mut lease = api.lease();
    for id in [77, 78] {
        lease.lease_grant(LeaseGrantRequest { ttl: 60, id }).await.unwrap();
    }
    api.store.lose_renewals(3);
    let (renew, renewals) = mpsc::channel(8);
    let mut kept = lease.lease_keep_alive(ReceiverStream::new(renewals)).await.unwrap().into_inner();
    // The first three have no answer, and the fourth one has.
    for id in [77, 77, 78, 78] {
        renew.send(LeaseKeepAliveRequest { id }).await.unwrap();
    }
    drop(renew);
    let mut answers = Vec::new();
    while let Some(answer) = timeout(PATIENCE, kept.next()).await.expect("in time") {
        answers.push(answer.expect("no error").id);
    }
    answers.sort_unstable();
    assert_eq!(answers, [77, 77, 78, 78], "each has one, and the stream ends");
}

#[tokio::test(start_paused = true)]
async fn an_idle_stream_outlives_one_change_of_leader_after_the_other() {
    let api = Api::new();
    let mut lease = api.lease();
    lease.lease_grant(LeaseGrantRequest { ttl: 60, id: 77 }).await.unwrap();
    let (renew, renewals) = mpsc::channel(8);
    let mut kept = lease.lease_keep_alive(ReceiverStream::new(renewals)).await.unwrap().into_inner();
    let mut pass =
        async |ms| assert!(timeout(Duration::from_millis(ms), kept.next()).await.is_err(), "nothing is asked");

    // Each of them has a new leader within a second.
    for _ in 0..3 {
        pass(6000).await;
        api.store.be_leaderless(true);
        pass(1000).await;
        api.store.be_leaderless(false);
    }
    renew.send(LeaseKeepAliveRequest { id: 77 }).await.unwrap();
    let answer = timeout(PATIENCE, kept.next()).await.expect("in time").expect("an answer").expect("no error");
    assert_eq!((answer.id, answer.ttl), (77, 60));

    // Nobody waits for a leader that does not come.
    api.store.be_leaderless(true);
    let error = timeout(PATIENCE, kept.next()).await.expect("in time").expect("an answer").unwrap_err();
    assert_eq!(shown(&error), "14 etcdserver: no leader");
}

#[tokio::test]
async fn a_lease_of_another_caller_does_not_end_the_stream_of_others() {
    let api = Api::new();
    let mut lease = api.lease();
    for id in [77, 78] {
        lease.lease_grant(LeaseGrantRequest { ttl: 60, id }).await.unwrap();
    }
    api.store.give_away(key::session(78));
    let (renew, renewals) = mpsc::channel(8);
    let mut kept = lease.lease_keep_alive(ReceiverStream::new(renewals)).await.unwrap().into_inner();
    for (id, ttl) in [(77, 60), (78, 0), (78, 0), (77, 60)] {
        renew.send(LeaseKeepAliveRequest { id }).await.unwrap();
        let answer = timeout(PATIENCE, kept.next()).await.expect("in time").expect("an answer").expect("no error");
        assert_eq!((answer.id, answer.ttl), (id, ttl));
    }
}
