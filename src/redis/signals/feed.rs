//! The writes of the keyspace, as this node applies them.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use lockkeeper_planted::Planted;

use super::{
    SharedSignals,
    names::{self, FeedSubject},
    port,
    steps::WorkSteps,
};
use crate::{RedisChange, RedisStore, RedisStoreError, data::DatumKind, reserved};

/// Pause before the feed is asked for again.
const PAUSE: Duration = Duration::from_millis(100);
/// Steps that it takes to look for those whom a write concerns.
const CHANGE_STEPS: usize = 256;

/// The feed that a node has at present, if it has one.
pub(super) struct WriteFeed(watch::Sender<Option<FeedNumber>>);

/// Tells one feed from the next. What was written between the two is not known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FeedNumber(u64);

impl Default for WriteFeed {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl WriteFeed {
    /// Waits until there is a feed.
    pub(super) async fn live(&self, deadline: Instant) -> Result<FeedNumber, RedisStoreError> {
        let mut present = self.0.subscribe();
        match timeout_at(deadline, present.wait_for(Option::is_some)).await {
            Ok(Ok(feed)) => feed.ok_or_else(no_feed),
            Ok(Err(_)) | Err(_) => Err(no_feed()),
        }
    }

    /// Fails if this feed has ended.
    pub(super) fn ensure_present(&self, feed: FeedNumber) -> Result<(), RedisStoreError> {
        if *self.0.borrow() == Some(feed) { Ok(()) } else { Err(no_feed()) }
    }
}

fn no_feed() -> RedisStoreError {
    RedisStoreError::Unavailable("this node hears of no writes at present".to_owned())
}

/// Passes on what waiting clients must hear of. Never returns.
pub(super) async fn follow<S: RedisStore>(store: S, shared: Arc<SharedSignals>) {
    let mut number = 0;
    let mut steps = WorkSteps::default();
    loop {
        let (from, to) = names::all();
        match store.watch(&port(), from, to).await {
            Ok(mut changes) => {
                number += 1;
                shared.feed.0.send_replace(Some(FeedNumber(number)));

                // What happened while there was no feed is found by another look.
                shared.places.wake_all();
                while let Some(changes) = changes.recv().await {
                    for change in &changes {
                        pass_on(&shared, change, &mut steps).await;
                    }
                }
                shared.feed.0.send_replace(None);
                if !Planted::RedisFeedGapUntold.is_on() {
                    shared.topics.disconnect_all("messages may be lost, since this node's feed of writes has ended");
                }
            }
            Err(failure) => tracing::debug!(%failure, "cannot follow the writes of this node"),
        }
        sleep(PAUSE).await;
    }
}

async fn pass_on(shared: &SharedSignals, change: &RedisChange, steps: &mut WorkSteps) {
    steps.count(CHANGE_STEPS).await;
    match (names::subject(&change.key), &change.value) {
        // A node of an earlier version lets its clients speak as Sentinel does.
        (FeedSubject::Message(channel), Some(_)) if reserved::is_reserved(channel) => {}
        (FeedSubject::Message(channel), Some(message)) => shared.topics.deliver(channel, message, steps).await,
        (FeedSubject::Key, Some(value)) => shared.places.wake(&change.key, DatumKind::from_entry(value)),
        (FeedSubject::Waiter(key), None) => shared.places.wake(key, None),
        (FeedSubject::Message(_) | FeedSubject::Key, None)
        | (FeedSubject::Waiter(_), Some(_))
        | (FeedSubject::Other, _) => {}
    }
}
