//! etcd's clients in a simulated run: contenders for locks by etcd's lock service and by transactions, at the nodes' real port for it.
//!
//! A contender is granted a lease, asks for a lock with it, keeps the lease alive while it holds the lock, and unlocks or falls silent.

use std::time::Duration;

use lockkeeper_etcd::proto::{
    etcdserverpb::{
        Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, RangeRequest, RequestOp,
        TxnRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        kv_client::KvClient,
        lease_client::LeaseClient,
        request_op::Request,
    },
    v3lockpb::{LockRequest, UnlockRequest, lock_client::LockClient},
};
use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use crate::{
    clients,
    contenders::{Contender, LIMIT, TTL},
    protocols::{ContendedProtocol, ContenderParts, contended_key},
    system,
};

const LOCKS: u32 = 2;
/// The time of a call that waits for a lock.
const LOCK_LIMIT: Duration = Duration::from_millis(1_500);

/// Contends until the run is over.
pub(crate) async fn contend(parts: ContenderParts) {
    let ContenderParts { seats, mut contender, mut random, finish } = parts;
    let seats = 1..=seats;
    let channels: Vec<_> = seats.map(|seat| clients::channel(&ContendedProtocol::Etcd.seat_address(seat))).collect();
    while !finish.is_cancelled() {
        let channel = channels.choose(&mut random).expect("there is a node").clone();
        // Without an answer, the lease ends by itself.
        let _ = hold(&channel, &mut contender, &mut random).await;
        sleep(Duration::from_millis(random.random_range(10..250))).await;
    }
}

/// Holds a lock once, by etcd's lock service or by a key of its own. `None`: it did not get it, or lost it.
async fn hold(channel: &Channel, contender: &mut Contender, random: &mut StdRng) -> Option<()> {
    let mut leases = LeaseClient::new(channel.clone());
    let number = random.random_range(0..LOCKS);
    let ttl = i64::try_from(TTL.as_secs()).expect("a few seconds");
    let lease = LeaseGrantRequest { ttl, id: 0 };

    let (mut held, lease, key) = if random.random() {
        let attempt = contender.ask(&format!("etcd/contended/{number}"));
        let lease = answered(LIMIT, leases.lease_grant(lease)).await?.id;
        let request = LockRequest { name: format!("contended/{}", contended_key(number)).into_bytes(), lease };
        let granted = answered(LOCK_LIMIT, LockClient::new(channel.clone()).lock(request)).await?;
        // Its place in the queue has a revision, and its grant has none: the history cannot tell of it.
        (attempt.granted(None), lease, Owned::ByService(granted.key))
    } else {
        let key = format!("key/{}", contended_key(number));
        let attempt = contender.ask(&format!("etcd/key/{number}")).recorded();
        let lease = answered(LIMIT, leases.lease_grant(lease)).await?.id;
        let put = PutRequest { key: key.clone().into_bytes(), lease, ..PutRequest::default() };
        let txn = only_if(&key, 0, Request::RequestPut(put));
        let created = answered(LIMIT, KvClient::new(channel.clone()).txn(txn)).await?;
        if !created.succeeded {
            // Another client has it. Its own lease is new, and made nothing else.
            if has_lease(channel, &key, lease).await {
                let what = format!("{} has a key whose client was told that it has no such", attempt.who());
                contender.contention().complain(what);
            }
            attempt.busy();
            return Some(());
        }
        let revision = created.header?.revision;
        (attempt.granted(u64::try_from(revision).ok()), lease, Owned::ByKey(key, revision))
    };

    for _ in 0..random.random_range(0..5) {
        sleep(contender.pause(random)).await;
        let sent = system::elapsed();
        let request = LeaseKeepAliveRequest { id: lease };
        let alive = leases.lease_keep_alive(tokio_stream::iter([request]));
        let mut answers = answered(LIMIT, alive).await?;
        let answer = timeout(LIMIT, answers.message()).await.ok()?.ok()??;
        if answer.ttl == 0 {
            held.lost();
            return None;
        }
        held.renewed(sent);
    }

    // Some holders fall silent: their locks pass on when their leases end.
    if random.random_range(0..100) < 70 {
        let releasing = held.release();
        let is_released = match key {
            Owned::ByService(key) => {
                let unlock = UnlockRequest { key };
                answered(LIMIT, LockClient::new(channel.clone()).unlock(unlock)).await?;
                true
            }
            Owned::ByKey(key, revision) => {
                let delete = DeleteRangeRequest { key: key.clone().into_bytes(), ..DeleteRangeRequest::default() };
                let txn = only_if(&key, revision, Request::RequestDeleteRange(delete));
                answered(LIMIT, KvClient::new(channel.clone()).txn(txn)).await?.succeeded
            }
        };
        if is_released {
            releasing.done();
        } else {
            releasing.was_lost();
        }
    }
    Some(())
}

/// Whether a key belongs to this lease, as far as the cluster says.
async fn has_lease(channel: &Channel, key: &str, lease: i64) -> bool {
    let range = RangeRequest { key: key.as_bytes().to_vec(), ..RangeRequest::default() };
    let found = answered(LIMIT, KvClient::new(channel.clone()).range(range)).await;
    found.is_some_and(|found| found.kvs.first().is_some_and(|found| found.lease == lease))
}

/// What a holder deletes to release its lock.
enum Owned {
    /// The key that the lock service made.
    ByService(Vec<u8>),
    /// The key that it created, and at which revision.
    ByKey(String, i64),
}

/// A request that runs if the key was created at this revision; 0: if there is none.
fn only_if(key: &str, created: i64, request: Request) -> TxnRequest {
    let compare = Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.as_bytes().to_vec(),
        range_end: Vec::new(),
        target_union: Some(TargetUnion::CreateRevision(created)),
    };
    let success = vec![RequestOp { request: Some(request) }];
    TxnRequest { compare: vec![compare], success, failure: Vec::new() }
}

async fn answered<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Option<T> {
    Some(timeout(limit, call).await.ok()?.ok()?.into_inner())
}
