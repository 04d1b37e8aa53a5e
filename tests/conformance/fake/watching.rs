//! A stream of changes: the state in parts, and then the changes of each entry.

use std::{sync::atomic::Ordering, time::Duration};

use lockkeeper_machine::{LockName, Page, Ticket, Token};
use lockkeeper_proto::v1::{
    WatchRequest, WatchResponse,
    watch_response::{Changes, Progress, State, TooOld, What},
};
use tokio::time::sleep;
use tonic::{Code, Status};

use super::{
    node::Node,
    outbox::{Delivery, Outbox},
    wire,
};

/// How often the stream tells its progress while there are no changes.
const PROGRESS: Duration = Duration::from_secs(1);

/// Locks in one part of the state: few, so that a state has several parts.
const PART: usize = 2;

/// Time between two parts of an entry: a client that does not wait for the next one tells the first.
const BETWEEN_PARTS: Duration = Duration::from_millis(300);

/// One stream.
pub(crate) struct WatchStream {
    node: Node,
    request: WatchRequest,
    outbox: Outbox<WatchResponse>,
    /// The last entry that the client knows.
    shown: u64,
}

impl WatchStream {
    pub(crate) fn new(node: Node, request: WatchRequest, outbox: Outbox<WatchResponse>) -> Self {
        let shown = request.after_index;
        Self { node, request, outbox, shown }
    }

    /// Tells the state, and each change, until the client or the scenario ends the stream.
    pub(crate) async fn serve(mut self) {
        let mut applied = self.node.cluster.applied();
        let mut breaks = self.node.cluster.watches.subscribe();
        let mut term = self.node.cluster.term.subscribe();
        let mut is_open = self.begin().await;
        while is_open {
            applied.mark_unchanged();
            is_open = self.tell_changes().await;
            if !is_open {
                return;
            }

            let progress = sleep(PROGRESS);
            tokio::pin!(progress);
            let has_news = loop {
                tokio::select! {
                    _ = applied.changed() => {
                        if self.has_changes() {
                            break true;
                        }
                    }
                    () = &mut progress => break false,
                    _ = breaks.changed() => return self.outbox.fail(Status::unavailable("the stream broke off")).await,
                    _ = term.changed() => {
                        return self.outbox.fail(wire::refusal(Code::Unavailable, "NO_LEADER", "safe")).await;
                    }
                    () = self.outbox.closed() => return,
                }
            };
            if !has_news {
                self.shown = self.node.cluster.table().index();
                is_open = self.send(What::Progress(Progress { index: self.shown })).await;
            }
        }
    }

    /// The state, unless the client knows it.
    async fn begin(&mut self) -> bool {
        let after_index = self.request.after_index;
        let is_kept = self.node.cluster.table().keeps_changes_after(after_index);
        if after_index > 0 && is_kept {
            return true;
        }
        if after_index > 0 && !self.send(What::TooOld(TooOld { after_index })).await {
            return false;
        }

        let (index, locks) = {
            let table = self.node.cluster.table();
            let page = Page { size: 1_000, holders_after: Token(0), waiters_after: Ticket(0) };
            let names: Vec<LockName> = table.machine().locks(&self.request.prefix, None).cloned().collect();
            let locks: Vec<_> = names.iter().map(|name| wire::show_lock(table.machine().lock(name, page))).collect();
            (table.index(), locks)
        };
        self.shown = index;
        let parts: Vec<_> = if locks.is_empty() { vec![&[][..]] } else { locks.chunks(PART).collect() };
        for (place, part) in (1..).zip(&parts) {
            let (first, last) = (place == 1, place == parts.len());
            if !self.send(What::State(State { locks: part.to_vec(), index, first, last })).await {
                return false;
            }
        }
        true
    }

    fn has_changes(&self) -> bool {
        let table = self.node.cluster.table();
        let prefix = &self.request.prefix;
        let is_watched = |change: &lockkeeper_machine::Change| change.name.as_str().starts_with(prefix);
        table.changes_after(self.shown).any(|(_, changes)| changes.iter().any(is_watched))
    }

    async fn tell_changes(&mut self) -> bool {
        let entries: Vec<_> = self.node.cluster.table().changes_after(self.shown).cloned().collect();
        for (index, changes) in entries {
            let prefix = &self.request.prefix;
            let watched = changes.iter().filter(|change| change.name.as_str().starts_with(prefix));
            let changes: Vec<_> = watched.map(wire::show_change).collect();
            self.shown = index;
            let is_split = self.node.cluster.splits_watches.load(Ordering::Relaxed);
            let part = if is_split { 1 } else { changes.len().max(1) };
            let last = changes.chunks(part).count();
            for (place, part) in (1..).zip(changes.chunks(part)) {
                let message = Changes { index, changes: part.to_vec(), more: place < last };
                if !self.send(What::Changes(message)).await {
                    return false;
                }
                if place < last {
                    sleep(BETWEEN_PARTS).await;
                }
            }
        }
        true
    }

    async fn send(&mut self, what: What) -> bool {
        self.outbox.send(WatchResponse { what: Some(what) }, Delivery::Once).await.is_ok()
    }
}
