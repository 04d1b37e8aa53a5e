//! What a unit publishes: the first message in the unit's own transaction, the others after it.
//!
//! Receivers are counted before the unit runs, and a subscription is acknowledged at once. So a count of zero says nothing of the moment at
//! which the unit is committed: the message of a unit that writes goes with its writes whatever was counted, which costs nothing, and for
//! the others receivers are counted again.

use std::collections::BTreeSet;

use crate::{RedisCaller, RedisCommitted, RedisStore, RedisStoreError, RedisTxn, signals, view::PublishedMessage};

/// What a unit publishes.
pub(super) struct UnitMessages {
    /// Part of the unit's transaction. An entry can be written once in a transaction, so that the others follow it.
    first: Option<PublishedMessage>,
    rest: Vec<PublishedMessage>,
}

impl UnitMessages {
    /// Without writes, messages without receivers need no commit: only from the first message with receivers on is there something to
    /// commit.
    pub(super) fn new(mut published: Vec<PublishedMessage>, has_writes: bool) -> Self {
        let place = published.iter().position(|message| has_writes || message.has_receivers);
        let first = place.map(|place| published.remove(place));
        Self { first, rest: published }
    }

    /// Whether there is no message to commit.
    pub(super) fn are_unheard(&self) -> bool {
        self.first.is_none()
    }

    /// Whether messages which had no receivers have some now.
    pub(super) async fn are_heard_now<S: RedisStore>(&self, store: &S) -> Result<bool, RedisStoreError> {
        signals::channels_with_receivers(store, self.unheard()).await.map(|channels| !channels.is_empty())
    }

    /// Commits what a unit writes, together with its first message. In a store that is full there may be room for the writes alone: a lock
    /// is released there, too.
    pub(super) async fn commit_with_first<S: RedisStore>(
        &mut self,
        store: &S,
        caller: &RedisCaller,
        mut txn: RedisTxn,
    ) -> Result<RedisCommitted, RedisStoreError> {
        let has_writes = !txn.writes.is_empty();
        let Some(PublishedMessage { channel, text, has_receivers }) = &self.first else {
            return store.commit(caller, txn).await;
        };
        let alone = has_writes.then(|| txn.clone());
        txn.writes.push(signals::message_write(channel, text));

        let goes_alone = |failure: &RedisStoreError| match failure {
            // A node of an earlier version, which leads, wants a right to channels.
            RedisStoreError::Full(_) | RedisStoreError::Denied(_) => true,
            // With a message that had no receivers, writes must not be too many, nor must a release be refused where disks are short of
            // space: there, deletions alone are served.
            RedisStoreError::TooLarge(_) | RedisStoreError::Overloaded(_) => !has_receivers,
            RedisStoreError::Unavailable(_) | RedisStoreError::Unknown(_) => false,
        };
        match (store.commit(caller, txn).await, alone) {
            (Err(failure), Some(alone)) if goes_alone(&failure) => store.commit(caller, alone).await,
            (Ok(committed), _) => {
                self.first = None;
                Ok(committed)
            }
            (Err(failure), _) => Err(failure),
        }
    }

    /// Sends the messages of a unit whose writes are committed. One that cannot be sent is lost, as those of a Redis that fails over.
    pub(super) async fn publish_rest<S: RedisStore>(self, store: &S) {
        let unheard = self.unheard();
        let heard_now = signals::channels_with_receivers(store, unheard.clone()).await.unwrap_or(unheard);
        for message in self.first.into_iter().chain(self.rest) {
            if !message.has_receivers && !heard_now.contains(&message.channel) {
                continue;
            }
            if let Err(failure) = signals::publish(store, &message.channel, &message.text).await {
                tracing::warn!(%failure, "a message of a transaction is lost");
            }
        }
    }

    /// The channels that had no receivers.
    fn unheard(&self) -> BTreeSet<Vec<u8>> {
        let unheard = self.first.iter().chain(&self.rest).filter(|message| !message.has_receivers);
        unheard.map(|message| message.channel.clone()).collect()
    }
}
