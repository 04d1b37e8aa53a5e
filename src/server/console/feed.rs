//! The feed: changes as they happen.
//!
//! It is a watch ([`WatchLocks`]) that begins now, without the state before. A busy cluster changes more than anybody can read, so changes
//! are gathered for [`GATHERING`], at most [`SHOWN_MAX`] of them are shown, and all are counted. A page that does not read loses its feed.

use std::time::Duration;

use axum::{
    body::Body,
    extract::{Extension, Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::StreamExt as _;
use serde::Deserialize;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    Console, RequestOrigin, calls, failed, json_with,
    places::FeedPlace,
    received,
    shown::{ChangeCounts, ChangeShown, FeedLine, ShownFailure},
};
use crate::{
    api::{
        Caller, Deadline, Error,
        requests::{WatchEvent, WatchLocks},
    },
    service::ReplyStream,
    wire::{Form, status::outcome},
};
use lockkeeper_accept::origin;
use lockkeeper_machine::{Change, LockName};

/// How long changes are gathered into one line.
const GATHERING: Duration = Duration::from_millis(250);
/// Maximum number of changes in one line.
const SHOWN_MAX: usize = 50;
/// A line without changes is sent after this time, so that the page knows that its feed is alive.
const QUIET: Duration = Duration::from_secs(2);
/// A page that takes no line for this time is gone.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// A feed ends after this time, and the page opens another one.
const LIFE: Duration = Duration::from_secs(15 * 60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FeedQuery {
    /// Shows only locks whose names begin with this.
    #[serde(default)]
    prefix: String,
    /// Shows only this lock.
    #[serde(default)]
    lock: Option<String>,
    /// Begins after this log index, where the former feed ended. Without it, the feed begins now.
    #[serde(default)]
    after: Option<u64>,
}

/// Opens a feed.
pub(super) async fn open(
    State(console): State<Console>,
    Extension(remote): Extension<RequestOrigin>,
    request: Request,
) -> Response {
    let begun = async {
        let (caller, body) = received(&console, &remote, request).await?;
        let caller = Caller { deadline: Some(Deadline::at(Instant::now() + LIFE)), ..caller };
        let FeedQuery { prefix, lock, after } = calls::read(&body)?;
        let only = lock.map(|lock| calls::name("lock", &lock)).transpose()?;
        let prefix = only.as_ref().map_or(prefix, ToString::to_string);

        let feed = Feed { console: console.clone(), caller, prefix, only };
        let events = feed.begin(after.unwrap_or_default()).await?;
        Ok((feed, events))
    };

    // Take a place only for a reader that has sent its whole request and may see the answer: otherwise anybody could take all places.
    let (feed, events) = match timeout(super::CALL_TIMEOUT, begun).await {
        Ok(Ok(begun)) => begun,
        Ok(Err(error)) => return failed(&error),
        Err(_) => return failed(&Error::deadline_passed(false)),
    };

    let Some(place) = console.feeds.take(feed.owner(&remote)) else {
        let message = "this node serves as many feeds as it can: close a page that shows it, or open another node's";
        return json_with(StatusCode::TOO_MANY_REQUESTS, &ShownFailure { reason: "LIMIT_REACHED", message });
    };

    let (sender, lines) = mpsc::channel(1);

    // The feed is a task of its own: hyper does not poll the body of a client that does not read, so nothing here would end then.
    tokio::spawn(async move {
        feed.run(events, sender, &place).await;
        drop(place);
    });

    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, Body::from_stream(ReceiverStream::new(lines).map(Ok::<_, std::convert::Infallible>))).into_response()
}

struct Feed {
    console: Console,
    caller: Caller,
    prefix: String,
    only: Option<LockName>,
}

/// The page is gone, or it does not read.
struct Gone;

impl Feed {
    /// Watches after this entry, or after the present one if it is 0.
    async fn begin(&self, after: u64) -> Result<ReplyStream<WatchEvent>, Error> {
        let after_index = if after == 0 {
            // An empty table has an entry too: the one that founded the cluster.
            self.console.cluster.replica.table().notified().max(1)
        } else {
            after
        };
        let request = WatchLocks { prefix: self.prefix.clone(), after_index };
        self.console.service.watch(&self.caller, Form::Typed(request)).await
    }

    /// The client for which this node counts the feed: its identity or, without one, its host.
    fn owner(&self, RequestOrigin(remote): &RequestOrigin) -> String {
        let host = || origin(remote.ip()).to_string();
        self.caller.identity.as_ref().map_or_else(host, |identity| format!("identity {identity}"))
    }

    async fn run(self, mut events: ReplyStream<WatchEvent>, sender: mpsc::Sender<Bytes>, place: &FeedPlace) {
        let ended = async {
            // Send the first line at once, so that the page knows that it is served.
            self.send(&sender, &mut Gathered::default()).await?;
            loop {
                match self.pass_on(&mut events, &sender).await? {
                    Ok(()) => {}
                    Err(error) => return Ok(Some(error)),
                }

                // The feed lags, and the state of all locks would follow. Skip it: the page asks for what it shows.
                self.line(&sender, &FeedLine::Gap { now: self.now() }).await?;
                match self.begin(0).await {
                    Ok(begun) => events = begun,
                    Err(error) => return Ok(Some(error)),
                }
            }
        };

        let stopping = self.console.service.stopping().clone();
        let ended: Result<Option<Error>, Gone> = tokio::select! {
            ended = ended => ended,
            () = sender.closed() => Err(Gone),
            () = stopping.cancelled() => Ok(Some(Error::shutting_down())),
            () = place.taken_away() => Ok(Some(Error::feed_gave_way())),
        };

        if let Ok(Some(error)) = ended {
            let line = FeedLine::End { reason: outcome(&error.reason), message: &error.message };
            // If the page does not read it, nothing is left to do.
            let _ = self.line(&sender, &line).await;
        }
    }

    /// Passes on changes until the feed lags. An error of the watch ends the feed.
    async fn pass_on(
        &self,
        events: &mut ReplyStream<WatchEvent>,
        sender: &mpsc::Sender<Bytes>,
    ) -> Result<Result<(), Error>, Gone> {
        let mut gathered = Gathered::default();
        let mut due = Instant::now() + QUIET;

        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = sleep_until(due) => {
                    self.send(sender, &mut gathered).await?;
                    due = Instant::now() + QUIET;
                    continue;
                }
            };
            let event = match event {
                Some(event) => event.and_then(Form::typed),
                None => Err(Error::no_leader()),
            };

            match event {
                Ok(WatchEvent::Changes { changes, index, more }) => {
                    let is_first = gathered.is_empty();
                    // The rest of this entry follows: a page that resumes a broken feed must get the whole entry again.
                    gathered.index = Some(if more { index - 1 } else { index });
                    let is_wanted = |change: &Change| self.only.as_ref().is_none_or(|only| *only == change.name);
                    changes.into_iter().filter(is_wanted).for_each(|change| gathered.add(change));
                    if is_first && !gathered.is_empty() {
                        due = due.min(Instant::now() + GATHERING);
                    }
                }
                Ok(WatchEvent::Progress { index }) => gathered.index = Some(index),
                Ok(WatchEvent::State { .. } | WatchEvent::TooOld { .. }) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    async fn send(&self, sender: &mpsc::Sender<Bytes>, gathered: &mut Gathered) -> Result<(), Gone> {
        let Gathered { index, changes, counts } = std::mem::take(gathered);
        self.line(sender, &FeedLine::Changes { now: self.now(), index, changes: &changes, counts: &counts }).await
    }

    async fn line(&self, sender: &mpsc::Sender<Bytes>, line: &FeedLine<'_>) -> Result<(), Gone> {
        let mut text = serde_json::to_vec(line).map_err(|_| Gone)?;
        text.push(b'\n');
        timeout(READ_TIMEOUT, sender.send(text.into())).await.map_err(|_| Gone)?.map_err(|_| Gone)
    }

    fn now(&self) -> u64 {
        self.console.clock.wall_ms()
    }
}

/// The changes for the next line.
#[derive(Default)]
struct Gathered {
    /// The entry up to which all changes were sent or are here.
    index: Option<u64>,
    changes: Vec<ChangeShown>,
    counts: ChangeCounts,
}

impl Gathered {
    fn add(&mut self, change: Change) {
        self.counts.add(&change.kind);
        if self.changes.len() < SHOWN_MAX {
            self.changes.push(change.into());
        } else {
            self.counts.left_out = self.counts.left_out.saturating_add(1);
        }
    }

    fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}
