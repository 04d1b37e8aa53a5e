//! Watches.

use std::time::Duration;

use futures::StreamExt as _;
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::*;
use crate::{
    proto::{
        etcdserverpb::{
            CompactionRequest, LeaseGrantRequest, LeaseRevokeRequest, WatchCancelRequest, WatchCreateRequest,
            WatchProgressRequest, WatchRequest, WatchResponse, watch_create_request::FilterType,
            watch_request::RequestUnion,
        },
        mvccpb::event::EventType,
    },
    watch::HiddenEvents,
};

const PATIENCE: Duration = Duration::from_secs(20);

/// A stream of watches.
struct Watches {
    requests: mpsc::Sender<WatchRequest>,
    answers: Streaming<WatchResponse>,
}

impl Watches {
    async fn open(api: &Api) -> Self {
        Self::with(api, false).await
    }

    async fn with(api: &Api, requires_leader: bool) -> Self {
        let (requests, asked) = mpsc::channel(8192);
        let mut request = tonic::Request::new(ReceiverStream::new(asked));
        if requires_leader {
            request.metadata_mut().insert("hasleader", "true".parse().unwrap());
        }
        let answers = api.watch().watch(request).await.unwrap().into_inner();
        Self { requests, answers }
    }

    async fn ask(&self, request: RequestUnion) {
        self.requests.send(WatchRequest { request_union: Some(request) }).await.unwrap();
    }

    /// Creates a watch, and sees that it is created. Returns the answer.
    async fn create(&mut self, request: WatchCreateRequest) -> WatchResponse {
        self.ask(RequestUnion::CreateRequest(request)).await;
        let answer = self.next().await;
        assert!(answer.created && answer.events.is_empty(), "{answer:?}");
        answer
    }

    async fn next(&mut self) -> WatchResponse {
        timeout(PATIENCE, self.answers.next()).await.expect("in time").expect("an answer").expect("no error")
    }

    /// The events of the next answer: their keys, values or "-", and revisions.
    async fn events(&mut self) -> Vec<String> {
        events(&self.next().await)
    }
}

fn events(answer: &WatchResponse) -> Vec<String> {
    let shown = answer.events.iter().map(|event| {
        let kv = event.kv.as_ref().unwrap();
        let key = String::from_utf8_lossy(&kv.key);
        match event.r#type() {
            EventType::Put => format!("{key}={}@{}", String::from_utf8_lossy(&kv.value), kv.mod_revision),
            EventType::Delete => format!("{key}-@{}", kv.mod_revision),
        }
    });
    shown.collect()
}

fn watch(key: &str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.into(), ..Default::default() }
}

fn all(prefix: &str) -> WatchCreateRequest {
    WatchCreateRequest { range_end: after(prefix), ..watch(prefix) }
}

fn cancel(watch_id: i64) -> RequestUnion {
    RequestUnion::CancelRequest(WatchCancelRequest { watch_id })
}

/// The revision of a put.
async fn write(api: &Api, key: &str, value: &str) -> i64 {
    api.kv().put(put(key, value)).await.unwrap().into_inner().header.unwrap().revision
}

#[tokio::test]
async fn a_watch_shows_what_comes_after_it_was_created() {
    let api = Api::new();
    let past = write(&api, "a1", "old").await;
    let mut watches = Watches::open(&api).await;
    let created = watches.create(all("a")).await;
    assert_eq!((created.watch_id, created.header.unwrap().revision), (0, past));
    let put = write(&api, "a1", "new").await;
    write(&api, "b", "elsewhere").await;
    let answer = watches.next().await;
    assert_eq!((events(&answer), answer.header.unwrap().revision), (vec![format!("a1=new@{put}")], put));
    assert!(answer.events[0].prev_kv.is_none());
    api.kv().delete_range(delete("a")).await.unwrap();
    let answer = watches.next().await;
    assert_eq!(events(&answer), [format!("a1-@{}", put + 2)]);
    let kv = answer.events[0].kv.clone().unwrap();
    assert_eq!((kv.create_revision, kv.version, kv.value.len()), (0, 0, 0), "key and revision alone");
}

#[tokio::test]
async fn a_watch_from_the_past_goes_on_with_what_comes_and_shows_what_was_before() {
    let api = Api::new();
    let first = write(&api, "a", "1").await;
    write(&api, "a", "2").await;
    let mut watches = Watches::open(&api).await;
    watches.create(WatchCreateRequest { start_revision: first, prev_kv: true, ..watch("a") }).await;
    write(&api, "a", "3").await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        for event in watches.next().await.events {
            let text = |kv: &Option<_>| kv.as_ref().map(|kv: &crate::proto::mvccpb::KeyValue| kv.value.clone());
            seen.push((text(&event.prev_kv), text(&event.kv).unwrap()));
        }
    }
    let one = |text: &str| text.as_bytes().to_vec();
    assert_eq!(seen, [(None, one("1")), (Some(one("1")), one("2")), (Some(one("2")), one("3"))]);
    let later = WatchCreateRequest { start_revision: first + 4, ..watch("a") };
    assert_eq!(watches.create(later).await.watch_id, 1);
    write(&api, "a", "4").await;
    assert_eq!(watches.events().await, [format!("a=4@{}", first + 3)], "the first watch alone");
    write(&api, "a", "5").await;
    let mut ids = [watches.next().await.watch_id, watches.next().await.watch_id];
    ids.sort_unstable();
    assert_eq!(ids, [0, 1], "the one that waited has begun");
}

#[tokio::test]
async fn the_events_of_a_revision_come_together() {
    let api = Api::new();
    let mut watches = Watches::open(&api).await;
    watches.create(all("k")).await;
    let success = (0..5).map(|n| operation(put(&format!("k{n}"), "v"))).collect();
    let committed = api.kv().txn(TxnRequest { success, ..Default::default() }).await.unwrap().into_inner();
    let revision = committed.header.unwrap().revision;
    let expected: Vec<_> = (0..5).map(|n| format!("k{n}=v@{revision}")).collect();
    assert_eq!(watches.events().await, expected);
    api.kv().delete_range(delete("k")).await.unwrap();
    let expected: Vec<_> = (0..5).map(|n| format!("k{n}-@{}", revision + 1)).collect();
    assert_eq!(watches.events().await, expected);
}

#[tokio::test]
async fn the_end_of_a_lease_is_seen_as_deletes() {
    let api = Api::new();
    let mut watches = Watches::open(&api).await;
    watches.create(WatchCreateRequest { filters: vec![FilterType::Noput.into()], ..all("k") }).await;
    for id in [77, 78] {
        api.lease().lease_grant(LeaseGrantRequest { ttl: 60, id }).await.unwrap();
        let success = (0..3).map(|n| operation(PutRequest { lease: id, ..put(&format!("k{n}"), "v") })).collect();
        let committed = api.kv().txn(TxnRequest { success, ..Default::default() }).await.unwrap().into_inner();
        let revision = committed.header.unwrap().revision;
        match id {
            77 => drop(api.lease().lease_revoke(LeaseRevokeRequest { id }).await.unwrap()),
            _ => api.store.pass(61_000),
        }
        let mut seen = Vec::new();
        while seen.len() < 3 {
            seen.extend(watches.events().await);
        }
        let expected: Vec<_> = (0..3).map(|n| format!("k{n}-@{}", revision + 1 + n)).collect();
        assert_eq!(seen, expected);
    }
}

#[test]
fn a_watch_keeps_no_filter_of_its_request() {
    for (filters, puts, deletions) in [
        (vec![], false, false),
        (vec![FilterType::Noput.into(); 1_000], true, false),
        (vec![FilterType::Nodelete.into()], false, true),
        (vec![FilterType::Nodelete.into(), 7, FilterType::Noput.into()], true, true),
    ] {
        let mut request = WatchCreateRequest { filters, ..WatchCreateRequest::default() };
        assert_eq!(HiddenEvents::take_from(&mut request), HiddenEvents { puts, deletions });
        assert_eq!(request.filters.capacity(), 0);
    }
}

#[tokio::test]
async fn filters_hide_what_they_name() {
    let api = Api::new();
    let mut watches = Watches::open(&api).await;
    for (id, filter) in [(1, FilterType::Noput), (2, FilterType::Nodelete)] {
        let request = WatchCreateRequest { watch_id: id, filters: vec![filter.into()], ..watch("a") };
        assert_eq!(watches.create(request).await.watch_id, id);
    }
    let put = write(&api, "a", "v").await;
    let answer = watches.next().await;
    assert_eq!((answer.watch_id, events(&answer)), (2, vec![format!("a=v@{put}")]));
    api.kv().delete_range(delete("a")).await.unwrap();
    let answer = watches.next().await;
    assert_eq!((answer.watch_id, events(&answer)), (1, vec![format!("a-@{}", put + 1)]));
}

#[tokio::test]
async fn ids_are_chosen_once_and_free_after_a_cancel() {
    let api = Api::new();
    let mut watches = Watches::open(&api).await;
    assert_eq!(watches.create(WatchCreateRequest { watch_id: 1, ..watch("a") }).await.watch_id, 1);
    assert_eq!(watches.create(watch("a")).await.watch_id, 0);
    assert_eq!(watches.create(watch("a")).await.watch_id, 2, "1 is taken");
    let twice = watches.create(WatchCreateRequest { watch_id: 2, ..watch("a") }).await;
    assert_eq!((twice.watch_id, twice.canceled), (-1, true));
    assert_eq!(twice.cancel_reason, "mvcc: duplicate watch ID provided on the WatchStream");
    let empty = watches.create(WatchCreateRequest { range_end: b"a".into(), ..watch("b") }).await;
    assert_eq!((empty.canceled, &empty.cancel_reason[..]), (true, "mvcc: watcher range is empty"));
    watches.ask(cancel(9)).await;
    watches.ask(cancel(0)).await;
    let canceled = watches.next().await;
    assert_eq!((canceled.watch_id, canceled.canceled, canceled.compact_revision), (0, true, 0));
    watches.ask(cancel(1)).await;
    assert_eq!(watches.next().await.watch_id, 1);
    let put = write(&api, "a", "v").await;
    let answer = watches.next().await;
    assert_eq!((answer.watch_id, events(&answer)), (2, vec![format!("a=v@{put}")]));
    assert_eq!(watches.create(WatchCreateRequest { watch_id: 1, ..watch("a") }).await.watch_id, 1);
}

#[tokio::test]
async fn a_stream_has_so_many_watches_at_the_most() {
    let api = Api::new();
    let mut watches = Watches::open(&api).await;
    for id in 0..4096 {
        assert_eq!(watches.create(watch("a")).await.watch_id, id);
    }
    let surplus = watches.create(watch("a")).await;
    assert!(surplus.canceled && surplus.cancel_reason.contains("4096"), "{surplus:?}");
    watches.ask(cancel(7)).await;
    assert!(watches.next().await.canceled);
    assert!(!watches.create(watch("a")).await.canceled);
}

/// A client whose stream breaks before the first events goes on after the revision of the answer that it has.
#[tokio::test]
async fn a_watch_from_the_past_is_created_at_the_revision_before_it() {
    let api = Api::new();
    let (first, last) = (write(&api, "a", "1").await, write(&api, "a", "2").await);
    let mut watches = Watches::open(&api).await;
    let past = [format!("a=1@{first}"), format!("a=2@{last}")];
    for (start, created_at, past) in
        [(first, first - 1, &past[..]), (last, last - 1, &past[1..]), (last + 9, last, &[])]
    {
        let created = watches.create(WatchCreateRequest { start_revision: start, ..watch("a") }).await;
        assert_eq!(created.header.unwrap().revision, created_at, "from {start}");
        for event in past {
            assert_eq!(watches.events().await, std::slice::from_ref(event));
        }
    }
}

#[tokio::test]
async fn a_watch_of_what_is_forgotten_is_created_and_canceled() {
    let api = Api::new();
    let mut revisions = Vec::new();
    for value in ["1", "2", "3"] {
        revisions.push(write(&api, "a", value).await);
    }
    api.kv().compact(CompactionRequest { revision: revisions[1], physical: false }).await.unwrap();
    let mut watches = Watches::open(&api).await;
    let created = watches.create(WatchCreateRequest { start_revision: revisions[0], ..watch("a") }).await;
    assert!(!created.canceled);
    let canceled = watches.next().await;
    assert_eq!((canceled.watch_id, canceled.canceled, &canceled.cancel_reason[..]), (0, true, ""));
    assert_eq!((canceled.compact_revision, canceled.header.unwrap().revision), (revisions[2], 0));
    let from = WatchCreateRequest { start_revision: canceled.compact_revision, ..watch("a") };
    watches.create(from).await;
    assert_eq!(watches.events().await, [format!("a=3@{}", revisions[2])]);
}

#[tokio::test]
async fn a_slow_reader_misses_nothing_and_a_change_of_leader_repeats_nothing() {
    let api = Api::new();
    let mut watches = Watches::open(&api).await;
    let start = watches.create(all("k")).await.header.unwrap().revision;
    let mut seen = Vec::new();
    for round in 0..4 {
        for n in 0..50 {
            let success = vec![operation(put("k1", "v")), operation(put(&format!("k{round}{n}"), "v"))];
            api.kv().txn(TxnRequest { success, ..Default::default() }).await.unwrap();
        }
        while seen.len() < 100 * round + 30 {
            seen.extend(watches.events().await);
        }
        api.store.be_leaderless(true);
        let some = timeout(Duration::from_millis(20), watches.answers.next()).await;
        seen.extend(some.iter().flatten().flat_map(|answer| events(answer.as_ref().unwrap())));
        api.store.be_leaderless(false);
    }
    while seen.len() < 400 {
        seen.extend(watches.events().await);
    }
    let revision = |event: &String| event.rsplit_once('@').unwrap().1.parse::<i64>().unwrap();
    let expected: Vec<i64> = (0..400).map(|n| start + 1 + n / 2).collect();
    assert_eq!(seen.iter().map(revision).collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_asks_for_a_leader_ends_without_one() {
    let api = Api::new();
    let (mut patient, mut strict) = (Watches::open(&api).await, Watches::with(&api, true).await);
    patient.create(watch("a")).await;
    strict.create(watch("a")).await;
    api.store.be_leaderless(true);
    let ended = timeout(PATIENCE, strict.answers.next()).await.expect("in time").expect("an error").unwrap_err();
    assert_eq!(shown(&ended), "14 etcdserver: no leader");
    let mut request = tonic::Request::new(futures::stream::pending());
    request.metadata_mut().insert("hasleader", "true".parse().unwrap());
    assert_eq!(shown(&api.watch().watch(request).await.unwrap_err()), "14 etcdserver: no leader");
    api.store.be_leaderless(false);
    let put = write(&api, "a", "v").await;
    assert_eq!(patient.events().await, [format!("a=v@{put}")]);
}

#[tokio::test(start_paused = true)]
async fn progress_is_told_when_asked_for() {
    let api = Api::new();
    let mut watches = Watches::open(&api).await;
    watches.create(watch("a")).await;
    watches.create(WatchCreateRequest { progress_notify: true, ..watch("b") }).await;
    let mut revision = 0;
    for _ in 0..10 {
        revision = write(&api, "a", "v").await;
    }
    watches.ask(RequestUnion::ProgressRequest(WatchProgressRequest {})).await;
    let mut seen = 0;
    let told = loop {
        let answer = watches.next().await;
        if answer.events.is_empty() {
            break answer;
        }
        seen += answer.events.len();
    };
    assert_eq!((seen, told.watch_id, told.header.unwrap().revision), (10, -1, revision), "after all events");
    // Time passes by itself while nothing else happens.
    let told = timeout(Duration::from_secs(1200), watches.answers.next()).await.expect("in time").unwrap().unwrap();
    assert_eq!((told.watch_id, told.events.len(), told.header.unwrap().revision), (1, 0, revision));
}

#[tokio::test]
async fn large_revisions_come_whole_or_in_fragments() {
    let api = Api::new();
    let mut watches = Watches::open(&api).await;
    watches.create(WatchCreateRequest { prev_kv: true, ..all("k") }).await;
    watches.create(WatchCreateRequest { prev_kv: true, fragment: true, ..all("k") }).await;
    let large = "x".repeat(150 << 10);
    let (mut revisions, count) = (Vec::new(), 5);
    for _ in 0..2 {
        let success = (0..count).map(|n| operation(put(&format!("k{n}"), &large))).collect();
        let committed = api.kv().txn(TxnRequest { success, ..Default::default() }).await.unwrap().into_inner();
        revisions.push(committed.header.unwrap().revision);
    }
    let (mut whole, mut parts) = (Vec::new(), Vec::new());
    while whole.len() < 2 || parts.iter().map(|(count, _)| count).sum::<usize>() < 2 * count {
        let answer = watches.next().await;
        match answer.watch_id {
            0 => whole.push((answer.events.len(), answer.fragment)),
            _ => parts.push((answer.events.len(), answer.fragment)),
        }
    }
    assert_eq!(whole, [(count, false), (count, false)]);
    // The second revision shows what was before as well.
    assert_eq!(parts, [(count, false), (count - 1, true), (1, false)]);
}

#[tokio::test]
async fn a_stream_goes_on_after_its_last_request() {
    let api = Api::new();
    let Watches { requests, answers } = Watches::open(&api).await;
    let mut watches = Watches { requests, answers };
    watches.create(watch("a")).await;
    watches.requests = mpsc::channel(1).0;
    let put = write(&api, "a", "v").await;
    assert_eq!(watches.events().await, [format!("a=v@{put}")]);
}
