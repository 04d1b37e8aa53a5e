//! Watches: many on a stream.
//!
//! * **Order**: all events of a watch, in the order of their revisions; those of one revision in one message, in the order of their keys,
//!   unless the client takes fragments. A client goes on after the last revision that it has seen, at any node.
//! * **Nothing is queued for a client that reads slowly**: the next events are taken from the store when the last ones are sent. One that
//!   falls behind the history is told from which revision on it can go on. Of its messages one is in memory at a time (`fragments`).
//! * **A change of leader interrupts nothing.** A stream that asked for a leader ends when none has been known for [`LEADERLESS_MAX`].
//! * **Requests are answered one by one**: a watch is created, and said to be, before the next request is looked at.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{AbortHandle, BoxFuture},
    stream::{BoxStream, SelectAll, abortable, unfold},
};
use lockkeeper_machine::{EntryEvent, KeyRange, Revision};
use lockkeeper_planted::Planted;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    Etcd, EtcdStore, EtcdStoreError, WatchedEvents,
    call::requires_leader,
    error::Error,
    follow::Followed,
    fragments::UntoldEvents,
    header::number,
    key,
    proto::etcdserverpb::{
        WatchCreateRequest, WatchRequest, WatchResponse, watch_create_request::FilterType, watch_request::RequestUnion,
        watch_server::Watch,
    },
};

/// Watches of one stream.
const WATCHES_MAX: usize = 4096;
/// Time without an event after which a client that asked for it is told how far its watch is. etcd's.
const PROGRESS: Duration = Duration::from_secs(600);
/// Time without a leader after which a stream ends that asked for one.
pub(crate) const LEADERLESS_MAX: Duration = Duration::from_secs(3);
/// Between two checks of both.
const CHECK: Duration = Duration::from_secs(1);
/// The id in answers that are about all watches of a stream, or about none.
const NO_WATCH: i64 = -1;

/// The items of a stream of watches.
pub(crate) type WatchAnswers = BoxStream<'static, Result<WatchResponse, Status>>;
/// The requests of a stream of watches.
pub(crate) type WatchRequests = BoxStream<'static, Result<WatchRequest, Status>>;

#[tonic::async_trait]
impl<S: EtcdStore> Watch for Etcd<S> {
    type WatchStream = WatchAnswers;

    async fn watch(&self, request: Request<Streaming<WatchRequest>>) -> Result<Response<WatchAnswers>, Status> {
        let caller = self.caller(&request)?;
        let requires_leader = requires_leader(request.metadata().as_ref());
        Ok(Response::new(self.watches(caller, request.into_inner().boxed(), requires_leader)))
    }
}

impl<S: EtcdStore> Etcd<S> {
    /// The answers to a stream of requests. They go on after the last request while there are watches.
    pub(crate) fn watches(&self, caller: S::Caller, requests: WatchRequests, requires_leader: bool) -> WatchAnswers {
        let mut ticks = interval_at(Instant::now() + CHECK, CHECK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);

        let watcher = StreamWatcher {
            etcd: self.clone(),
            caller,
            requests: Some(requests),
            opening: None,
            watches: BTreeMap::new(),
            events: SelectAll::new(),
            next_id: 0,
            ready: VecDeque::new(),
            progress: None,
            leaderless_since: None,
            requires_leader,
            ticks,
        };

        unfold(Some(watcher), |watcher| async {
            let mut watcher = watcher?;
            match watcher.next().await {
                Ok(None) => None,
                Ok(Some(answer)) => Some((Ok(answer), Some(watcher))),
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }
}

/// A stream.
struct StreamWatcher<S: EtcdStore> {
    etcd: Etcd<S>,
    caller: S::Caller,
    /// The client's requests, until it sends no more.
    requests: Option<WatchRequests>,
    /// A watch that is not created yet. Later requests wait.
    opening: Option<BoxFuture<'static, OpenedWatch>>,
    watches: BTreeMap<i64, OpenWatch>,
    events: SelectAll<BoxStream<'static, (i64, Result<WatchedEvents, EtcdStoreError>)>>,
    /// The id of the next watch whose id the server chooses.
    next_id: i64,
    /// Answers of one event of the store, or of one request.
    ready: VecDeque<ReadyAnswer>,
    /// The client waits until all events up to this revision are sent.
    progress: Option<Revision>,
    leaderless_since: Option<Instant>,
    requires_leader: bool,
    ticks: Interval,
}

/// What is ready to be told.
enum ReadyAnswer {
    Message(WatchResponse),
    /// Several messages, perhaps. Each is made when it is sent.
    Events(UntoldEvents),
}

/// A watch, and the first thing that the store says of it.
struct OpenedWatch {
    id: i64,
    watching: OpenWatch,
    first: Result<WatchedEvents, EtcdStoreError>,
    events: Followed,
}

/// A watch.
struct OpenWatch {
    /// Without its filters.
    request: WatchCreateRequest,
    hides: HiddenEvents,
    /// All events up to this revision were sent.
    complete: Revision,
    /// The time of the last message to the client about it.
    told_at: Instant,
    /// Ends the flow of its events, once they flow.
    stop: Option<AbortHandle>,
}

/// What the filters of a watch hide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HiddenEvents {
    pub(crate) puts: bool,
    pub(crate) deletions: bool,
}

impl HiddenEvents {
    /// Takes the filters out of a request. A message has room for any number of them, and a watch lives for long: it keeps none.
    pub(crate) fn take_from(request: &mut WatchCreateRequest) -> Self {
        let puts = request.filters().any(|filter| filter == FilterType::Noput);
        let deletions = request.filters().any(|filter| filter == FilterType::Nodelete);
        request.filters = Vec::new();
        Self { puts, deletions }
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        if let Some(stop) = &self.stop {
            stop.abort();
        }
    }
}

impl<S: EtcdStore> StreamWatcher<S> {
    /// The next answer, if there are more.
    async fn next(&mut self) -> Result<Option<WatchResponse>, Status> {
        loop {
            if self.ready.is_empty() {
                self.answer_progress();
            }
            if let Some(answer) = self.take_ready() {
                return Ok(Some(answer));
            }

            if self.requests.is_none() && self.opening.is_none() && self.watches.is_empty() {
                return Ok(None);
            }

            tokio::select! {
                request = next_of(&mut self.requests), if self.opening.is_none() => match request {
                    Some(request) => self.take(request?),
                    None => self.requests = None,
                },
                opened = end_of(&mut self.opening) => {
                    self.opening = None;
                    self.created(opened)?;
                }
                Some((id, told)) = self.events.next() => self.told(id, told)?,
                _ = self.ticks.tick() => self.check()?,
            }
        }
    }

    fn take_ready(&mut self) -> Option<WatchResponse> {
        loop {
            match self.ready.pop_front()? {
                ReadyAnswer::Message(message) => return Some(message),
                ReadyAnswer::Events(mut untold) => {
                    if let Some(message) = untold.next_message(&self.etcd) {
                        self.ready.push_front(ReadyAnswer::Events(untold));
                        return Some(message);
                    }
                }
            }
        }
    }

    fn tell(&mut self, message: WatchResponse) {
        self.ready.push_back(ReadyAnswer::Message(message));
    }

    fn take(&mut self, request: WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => self.create(request),
            Some(RequestUnion::CancelRequest(request)) => {
                let id = request.watch_id;
                if self.watches.remove(&id).is_some() {
                    let header = self.etcd.header_now();
                    self.tell(WatchResponse { header, watch_id: id, canceled: true, ..Default::default() });
                }
            }
            Some(RequestUnion::ProgressRequest(_)) => self.progress = Some(self.etcd.store.facts().revision),
            None => {}
        }
    }

    fn create(&mut self, mut request: WatchCreateRequest) {
        if request.key.is_empty() {
            // The first one of all.
            request.key = vec![0];
        }

        let (id, range) = match self.admit(&request) {
            Ok(admitted) => admitted,
            Err(reason) => return self.refuse(NO_WATCH, reason),
        };

        let hides = HiddenEvents::take_from(&mut request);
        let from = u64::try_from(request.start_revision).ok().filter(|from| *from > 0).map(Revision);
        let mut events = self.etcd.follow(&self.caller, range, from, request.prev_kv);
        let watching = OpenWatch { request, hides, complete: Revision(0), told_at: Instant::now(), stop: None };

        let opening = async move {
            let first = events.next().await.unwrap_or(Err(EtcdStoreError::Stopping));
            OpenedWatch { id, watching, first, events }
        };
        self.opening = Some(opening.boxed());
    }

    /// The id of a new watch, and its range; or why there cannot be one.
    fn admit(&mut self, request: &WatchCreateRequest) -> Result<(i64, KeyRange), String> {
        let WatchCreateRequest { key, range_end, watch_id, .. } = request;
        let range = key::range(key, range_end).map_err(|error| error.to_string())?;
        if range.is_empty() {
            return Err("mvcc: watcher range is empty".to_owned());
        }

        if self.watches.len() >= WATCHES_MAX {
            return Err(format!(
                "etcdserver: a stream has {WATCHES_MAX} watches at the most: cancel some, or open another stream"
            ));
        }

        if *watch_id != 0 {
            if self.watches.contains_key(watch_id) {
                return Err("mvcc: duplicate watch ID provided on the WatchStream".to_owned());
            }
            return Ok((*watch_id, range));
        }

        // Ids that the client chose are skipped.
        while self.watches.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        Ok((self.next_id - 1, range))
    }

    /// Answers a request for a watch that there will not be.
    fn refuse(&mut self, watch_id: i64, cancel_reason: String) {
        let header = self.etcd.header_now();
        let answer =
            WatchResponse { header, watch_id, created: true, canceled: true, cancel_reason, ..Default::default() };
        self.tell(answer);
    }

    fn created(&mut self, opened: OpenedWatch) -> Result<(), Status> {
        let OpenedWatch { id, mut watching, first, events } = opened;
        let present = self.etcd.store.facts().revision;
        let before = u64::try_from(watching.request.start_revision.saturating_sub(1)).unwrap_or_default();

        let revision = match &first {
            // The watch begins now. A client that gets no events continues from this revision.
            Ok(first) if watching.request.start_revision <= 0 => first.complete,
            // Clients take it for the last revision that they have seen: npm's `etcd3`, whose stream breaks before the first events, goes
            // on after it, and would miss them.
            Ok(_) if Planted::WatchCreatedAtPresent.is_on() => present,
            Ok(_) => present.min(Revision(before)),
            Err(EtcdStoreError::Compacted { .. }) => present,
            Err(EtcdStoreError::Denied(_)) => {
                self.refuse(id, denied());
                return Ok(());
            }
            Err(EtcdStoreError::Full(reason)) => {
                self.refuse(id, reason.clone());
                return Ok(());
            }
            Err(error) => return Err(error.clone().into()),
        };

        let header = self.etcd.header(revision);
        self.tell(WatchResponse { header, watch_id: id, created: true, ..Default::default() });
        if first.is_ok() {
            let (events, stop) = abortable(events.map(move |told| (id, told)));
            watching.stop = Some(stop);
            self.events.push(events.boxed());
        }

        self.watches.insert(id, watching);
        // The first thing that the store says of a watch may have events.
        self.told(id, first)
    }

    /// Hands on what the store says of a watch.
    fn told(&mut self, id: i64, told: Result<WatchedEvents, EtcdStoreError>) -> Result<(), Status> {
        // The client has canceled it, and this was under way.
        let Some(watching) = self.watches.get_mut(&id) else { return Ok(()) };
        let error = match told {
            Ok(told) => {
                let WatchedEvents { mut events, complete } = told;
                watching.complete = complete;
                events.retain(|event| watching.shows(event));
                if !events.is_empty() {
                    watching.told_at = Instant::now();
                    let untold = UntoldEvents::new(id, &watching.request, events, complete);
                    self.ready.push_back(ReadyAnswer::Events(untold));
                }
                return Ok(());
            }
            Err(error) => error,
        };

        self.watches.remove(&id);
        if Planted::WatchEndsSilently.is_on() {
            return Ok(());
        }

        let canceled = WatchResponse { watch_id: id, canceled: true, ..Default::default() };
        let canceled = if let EtcdStoreError::Compacted { compacted } = error {
            // The first revision at which a watch is possible.
            let compact_revision = number(Revision(compacted.0 + 1));
            WatchResponse { header: self.etcd.header_without_revision(), compact_revision, ..canceled }
        } else if let EtcdStoreError::Denied(_) = error {
            WatchResponse { header: self.etcd.header_now(), cancel_reason: denied(), ..canceled }
        } else {
            return Err(error.into());
        };

        self.tell(canceled);
        Ok(())
    }

    /// Tells how far all watches are, once they are as far as was asked.
    fn answer_progress(&mut self) {
        let Some(asked) = self.progress else { return };
        if self.opening.is_none() && self.watches.values().all(|watching| watching.complete >= asked) {
            self.progress = None;
            let header = self.etcd.header(asked);
            self.tell(WatchResponse { header, watch_id: NO_WATCH, ..Default::default() });
        }
    }

    fn check(&mut self) -> Result<(), Status> {
        match self.etcd.store.leader() {
            Some(_) => self.leaderless_since = None,
            None => {
                let since = self.leaderless_since.get_or_insert_with(Instant::now);
                if self.requires_leader && since.elapsed() >= LEADERLESS_MAX {
                    return Err(Error::NoLeader.into());
                }
            }
        }

        let present = self.etcd.store.facts().revision;
        for (id, watching) in &mut self.watches {
            // The watch of a revision to come has nothing to tell.
            let is_due = watching.request.progress_notify && watching.told_at.elapsed() >= PROGRESS;
            if is_due && watching.complete <= present {
                watching.told_at = Instant::now();
                let header = self.etcd.header(watching.complete);
                let told = WatchResponse { header, watch_id: *id, ..Default::default() };
                self.ready.push_back(ReadyAnswer::Message(told));
            }
        }
        Ok(())
    }
}

impl OpenWatch {
    fn shows(&self, event: &EntryEvent) -> bool {
        let is_put = event.after.is_some() || Planted::DeletionsUnfiltered.is_on();
        if is_put { !self.hides.puts } else { !self.hides.deletions }
    }
}

/// The error as etcd's clients expect it here: its whole text.
fn denied() -> String {
    format!("rpc error: code = PermissionDenied desc = {}", Error::Denied)
}

/// The next item; never, if there is no stream.
async fn next_of<T>(stream: &mut Option<BoxStream<'static, T>>) -> Option<T> {
    match stream {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// The result of a future; never, if there is none.
async fn end_of<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
