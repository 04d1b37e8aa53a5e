//! What a unit publishes: the first message in the unit's own transaction, the others after it.

use crate::{EntryTxn, RedisStore, Requester, StoreFailure, TxnOutcome, signals};

/// What a unit publishes, each message with its channel.
pub(super) struct UnitMessages {
    /// The first one is part of the unit's transaction. An entry can be written once in a transaction, so that the others follow it.
    first: Option<(Vec<u8>, Vec<u8>)>,
    rest: Vec<(Vec<u8>, Vec<u8>)>,
}

impl UnitMessages {
    pub(super) fn new(published: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        let mut rest = published.into_iter();
        Self { first: rest.next(), rest: rest.collect() }
    }

    pub(super) fn are_none(&self) -> bool {
        self.first.is_none()
    }

    /// Commits what a unit writes, together with its first message. In a store that is full there may be room for the writes alone: a lock
    /// is released there, too.
    pub(super) async fn commit_with_first<S: RedisStore>(
        &mut self,
        store: &S,
        requester: &Requester,
        mut txn: EntryTxn,
    ) -> Result<TxnOutcome, StoreFailure> {
        let has_writes = !txn.writes.is_empty();
        let Some((channel, message)) = &self.first else {
            return store.commit(requester, txn).await;
        };
        let alone = has_writes.then(|| txn.clone());
        txn.writes.push(signals::message_write(channel, message));

        match (store.commit(requester, txn).await, alone) {
            // A node of an earlier version, which leads, wants a right to channels.
            (Err(StoreFailure::Full(_) | StoreFailure::Denied(_)), Some(alone)) => store.commit(requester, alone).await,
            (Ok(committed), _) => {
                self.first = None;
                Ok(committed)
            }
            (Err(failure), _) => Err(failure),
        }
    }

    /// Sends the messages of a unit whose writes are committed. One that cannot be sent is lost, as those of a Redis that fails over.
    pub(super) async fn publish_rest<S: RedisStore>(self, store: &S) {
        for (channel, message) in self.first.into_iter().chain(self.rest) {
            if let Err(failure) = signals::publish(store, &channel, &message).await {
                tracing::warn!(%failure, "a message of a transaction is lost");
            }
        }
    }
}
