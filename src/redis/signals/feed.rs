//! The writes of the keyspace, as this node applies them.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use super::{
    SharedSignals,
    names::{self, FeedSubject},
    port,
};
use crate::{EntryChange, RedisStore, StoreFailure};

/// Pause before the feed is asked for again.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether the feed of a node runs.
pub(super) struct WriteFeed(watch::Sender<bool>);

impl Default for WriteFeed {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl WriteFeed {
    /// Waits until the feed runs.
    pub(super) async fn live(&self, deadline: Instant) -> Result<(), StoreFailure> {
        let mut live = self.0.subscribe();
        match timeout_at(deadline, live.wait_for(|is_live| *is_live)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(StoreFailure::Unavailable("this node hears of no writes at present".to_owned())),
        }
    }
}

/// Passes on what waiting clients must hear of. Never returns.
pub(super) async fn follow<S: RedisStore>(store: S, shared: Arc<SharedSignals>) {
    loop {
        let (from, to) = names::all();
        match store.watch(&port(), from, to).await {
            Ok(mut changes) => {
                shared.feed.0.send_replace(true);

                // What happened while there was no feed is found by another look.
                shared.places.wake_all();
                while let Some(changes) = changes.recv().await {
                    changes.iter().for_each(|change| pass_on(&shared, change));
                }
                shared.feed.0.send_replace(false);
                tracing::debug!("the feed of writes has ended, and messages may be lost");
            }
            Err(failure) => tracing::debug!(%failure, "there is no feed of writes"),
        }
        sleep(PAUSE).await;
    }
}

fn pass_on(shared: &SharedSignals, change: &EntryChange) {
    match (names::subject(&change.key), &change.value) {
        (FeedSubject::Message(channel), Some(message)) => shared.topics.deliver(channel, message),
        (FeedSubject::Key, Some(_)) => shared.places.wake(&change.key),
        (FeedSubject::Waiter(key), None) => shared.places.wake(key),
        (FeedSubject::Message(_) | FeedSubject::Key, None)
        | (FeedSubject::Waiter(_), Some(_))
        | (FeedSubject::Other, _) => {}
    }
}
