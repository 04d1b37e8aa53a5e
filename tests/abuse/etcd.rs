//! etcd's port: watches by the ten thousand, contenders that come and go at once, events that nobody reads, bodies that do not end.

use std::net::SocketAddr;

use futures::{StreamExt as _, future::join_all, stream};
use lockkeeper_etcd::proto::{
    etcdserverpb::{
        DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, WatchCreateRequest, WatchRequest,
        WatchResponse, kv_client::KvClient, lease_client::LeaseClient, watch_client::WatchClient,
        watch_request::RequestUnion,
    },
    v3lockpb::{LockRequest, lock_client::LockClient},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Channel};

use super::{
    arrivals::say,
    sized,
    stage::{Descriptors, Stage, address},
};
use crate::support::{LONG, leader};

/// Watches that one stream may have.
const OF_A_STREAM: usize = 4_096;
/// Watches that a node may have.
const OF_A_NODE: usize = 131_072;
/// Watches that are asked for before the first of them is answered.
const ASKED_TOGETHER: usize = 64;

async fn stage() -> Stage {
    Stage::open_with(Descriptors::AsTheyAre, |options| options.etcd = true).await
}

/// etcd's port of the leader.
async fn port(stage: &Stage) -> SocketAddr {
    let leader = usize::try_from(leader(&stage.cluster).await).expect("few nodes");
    address(&stage.cluster.etcd_endpoints()[leader - 1])
}

pub(super) async fn connect(stage: &Stage) -> Channel {
    let endpoint = Channel::from_shared(format!("http://{}", port(stage).await)).expect("a URL");
    endpoint.connect().await.expect("it listens")
}

/// A stream of watches.
struct Watches {
    requests: mpsc::Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
}

impl Watches {
    async fn open(channel: &Channel) -> Self {
        let (requests, receiver) = mpsc::channel(16);
        let answers = WatchClient::new(channel.clone()).watch(ReceiverStream::new(receiver)).await;
        Self { requests, answers: answers.expect("a stream").into_inner() }
    }

    async fn create(&self, key: String) {
        let create = WatchCreateRequest { key: key.into_bytes(), ..WatchCreateRequest::default() };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        self.requests.send(request).await.expect("it is open");
    }

    async fn next(&mut self) -> WatchResponse {
        timeout(LONG, self.answers.message()).await.expect("in time").expect("it goes on").expect("it goes on")
    }

    /// As many as a stream takes, of keys of their own. Returns those that there are.
    async fn fill(&mut self, of: usize) -> usize {
        let mut open = 0;
        for first in (0..OF_A_STREAM).step_by(ASKED_TOGETHER) {
            for number in first..first + ASKED_TOGETHER {
                self.create(format!("watched/{of}/{number}")).await;
            }
            for _ in 0..ASKED_TOGETHER {
                let answer = self.next().await;
                assert!(answer.created);
                assert_eq!(answer.canceled, answer.cancel_reason.contains("131072 watches"), "{answer:?}");
                open += usize::from(!answer.canceled);
            }
        }
        open
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_that_nothing_concerns_harm_no_other_client() {
    let mut stage = stage().await;
    let streams = sized(1, OF_A_NODE / OF_A_STREAM + 1);
    let abuse = async |stage: &Stage| {
        let channel = connect(stage).await;
        let mut all = stream::iter(0..streams)
            .map(async |of| {
                let mut watches = Watches::open(&channel).await;
                let open = watches.fill(of).await;
                (watches, open)
            })
            .buffer_unordered(8)
            .collect::<Vec<_>>()
            .await;
        let open: usize = all.iter().map(|(_, open)| open).sum();
        assert_eq!(open, (streams * OF_A_STREAM).min(OF_A_NODE));
        // One more on a stream that is full.
        let (full, _) = &mut all[0];
        full.create("one more".to_owned()).await;
        let refused = full.next().await;
        assert!(refused.canceled && refused.cancel_reason.contains("4096 watches at the most"), "{refused:?}");
        // Those that are there are told what concerns them, while others write.
        let mut kv = KvClient::new(channel.clone());
        let writes = async {
            for number in 0..sized(200, 20_000) {
                let key = format!("others/{number}").into_bytes();
                kv.put(PutRequest { key, ..PutRequest::default() }).await.expect("it is answered");
            }
            let key = b"watched/0/0".to_vec();
            kv.put(PutRequest { key, ..PutRequest::default() }).await.expect("it is answered");
        };
        let told = async {
            let concerned = all.iter_mut().map(|(watches, _)| async {
                loop {
                    let answer = watches.answers.message().await.expect("it goes on").expect("it goes on");
                    if let Some(event) = answer.events.first() {
                        return event.kv.clone().expect("a key").key;
                    }
                }
            });
            futures::future::select_all(concerned.map(Box::pin)).await.0
        };
        let (told, ()) = timeout(4 * LONG, futures::future::join(told, writes)).await.expect("in time");
        assert_eq!(told, b"watched/0/0");
    };
    stage.survives("watches of other keys", abuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn contenders_that_all_give_up_leave_nothing_behind() {
    let mut stage = stage().await;
    let abuse = async |stage: &Stage| {
        let channel = connect(stage).await;
        let grant = LeaseGrantRequest { ttl: 600, id: 0 };
        let lease = async || {
            let granted = LeaseClient::new(channel.clone()).lease_grant(grant).await;
            granted.expect("a lease").into_inner().id
        };
        let lock = async |lease: i64| {
            let request = LockRequest { name: b"crowded".to_vec(), lease };
            LockClient::new(channel.clone()).lock(request).await.map(|locked| locked.into_inner().key)
        };
        let held = lock(lease().await).await.expect("it is free");
        let contenders = sized(100, 5_000);
        let leases = stream::iter(0..contenders).map(async |_| lease().await).buffer_unordered(64);
        let leases: Vec<_> = leases.collect().await;
        let waits = join_all(leases.into_iter().map(lock));
        let mut kv = KvClient::new(channel.clone());
        let range = RangeRequest {
            key: b"crowded/".to_vec(),
            range_end: b"crowded0".to_vec(),
            count_only: true,
            ..RangeRequest::default()
        };
        let mut reaches = async |wanted: i64| {
            loop {
                let found = kv.range(range.clone()).await.expect("it is answered").into_inner().count;
                if found == wanted {
                    return;
                }
            }
        };
        let all = i64::try_from(contenders).expect("few") + 1;
        tokio::select! {
            _ = waits => panic!("nobody gives it up"),
            () = async { timeout(4 * LONG, reaches(all)).await.expect("all contend in time") } => {}
        }
        // All calls have ended here, and none was answered.
        timeout(4 * LONG, reaches(1)).await.expect("none is left but the holder");
        let key = DeleteRangeRequest { key: held, ..DeleteRangeRequest::default() };
        let deleted = KvClient::new(channel.clone()).delete_range(key).await.expect("it is answered");
        assert_eq!(deleted.into_inner().deleted, 1);
    };
    stage.survives("contenders that give up", abuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_nobody_reads_and_bodies_that_do_not_end_harm_no_other_client() {
    let mut stage = stage().await;
    let abuse = async |stage: &Stage| {
        let channel = connect(stage).await;
        let mut unread = Vec::new();
        for _ in 0..sized(20, 500) {
            let mut watches = Watches::open(&channel).await;
            watches.create("large".to_owned()).await;
            assert!(watches.next().await.created);
            unread.push(watches);
        }
        let body = b"POST /v3/kv/put HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000000\r\n\r\n{\"key\":\"";
        let bodies = say(port(stage).await, sized(200, 2_000), body).await;
        let mut kv = KvClient::new(connect(stage).await);
        for _ in 0..sized(20, 400) {
            let put = PutRequest { key: b"large".to_vec(), value: vec![7; 256 * 1024], ..PutRequest::default() };
            kv.put(put).await.expect("it is answered");
        }
        drop(bodies);
        let ends = unread.into_iter().map(async |mut watches| {
            loop {
                match timeout(LONG, watches.answers.message()).await.expect("in time") {
                    // It was not read for long enough to have more than its window, and was sent on.
                    Ok(Some(answer)) if !answer.events.is_empty() => return None,
                    Ok(Some(_)) => {}
                    Ok(None) => panic!("no reason"),
                    Err(status) => return Some(status.message().to_owned()),
                }
            }
        });
        for reason in join_all(ends).await.into_iter().flatten() {
            assert!(reason.contains("read answers") || reason.contains("unread"), "{reason}");
        }
    };
    stage.survives("unread events and endless bodies", abuse).await;
}
