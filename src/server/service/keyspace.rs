//! How a node executes requests of the keyspace.
//!
//! Reads are linearizable, but for one that asks for a stale copy. Those of more than a few keys read a clone of the table, so that pages
//! of hundreds of entries do not delay applying. A page ends with the entry that reaches [`PAGE_BYTES`], so it fits into a message between
//! nodes. The next page may show a later revision.
//!
//! A read of a range may visit many keys that it does not show, because they had no entry at an earlier revision or their lease is over. It
//! yields after each thousand, and only one read at a time goes on beyond that ([`LongReads`]).

use std::{future::ready, iter::from_fn, sync::Arc, task::Poll};

use futures::{StreamExt as _, future::Either, stream::FuturesOrdered};
use tokio::task::yield_now;

use super::{
    local::{Local, Serve, page_size},
    long_reads::{LongReads, ReadTurn},
};
use crate::{
    api::{Caller, Error, FailureReason, Retry, requests::*},
    wire::{Form, MESSAGE_BYTES_MAX},
};
use lockkeeper_machine::{
    Command, Committed, Entry, KEY_BYTES_MAX, Key, Limit, Machine, PutLease, Refusal, Reply, Select, Selected, Shows,
    SortBy, Stamp, TXN_BYTES_MAX, TXN_READS_MAX, Txn, TxnOperation, TxnResult, VALUE_BYTES_MAX, Version,
};
use lockkeeper_planted::Planted;

/// Maximum number of entries in one page.
const PAGE_MAX: usize = 1000;
/// Keys that are looked at in the table itself, while nothing is applied.
const KEYS_IN_PLACE: usize = 16;
/// Bytes after which a page is closed.
const PAGE_BYTES: usize = 1024 * 1024;
/// Maximum number of bytes that an entry takes in a message beside its key and value.
const FIXED_BYTES: usize = 128;
/// Maximum number of bytes of the values that a read sorts.
const SORTED_BYTES_MAX: usize = 16 << 20;
// A page is closed after the entry that fills it, which may be one of the largest.
const _: () = assert!(PAGE_BYTES + KEY_BYTES_MAX + VALUE_BYTES_MAX + FIXED_BYTES < MESSAGE_BYTES_MAX);
const _: () = assert!(TXN_BYTES_MAX + 3 * lockkeeper_machine::TXN_OPERATIONS_MAX * FIXED_BYTES < MESSAGE_BYTES_MAX);

impl Serve for Txn {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<Committed>, Error> {
        let owner = caller.identity.as_ref().filter(|_| !Planted::OwnerNotNoted.is_on());
        let txn = self.opened_by(caller.remote, owner);
        let txn = txn.map_err(|too_large| Error::invalid("txn", too_large))?;
        node.refuse_while_closed(&txn)?;
        let reply = node.propose_in(caller.term, Command::Txn(txn)).await?.reply;
        let Reply::Committed(committed) = reply else { return Err(Error::unexpected(reply)) };
        Ok(Form::Typed(committed))
    }
}

impl Serve for CommitEach {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<EachCommitted>, Error> {
        let term = node.replica.led().borrow().as_ref().map(|leadership| leadership.term);
        let caller = Caller { term: Some(term.ok_or_else(Error::no_leader)?), ..caller.clone() };

        let mut txns = self.txns;
        if Planted::SentTogetherSwapped.is_on() {
            txns.reverse();
        }

        let mut calls = FuturesOrdered::new();
        for txn in txns {
            let mut call = Box::pin(node.call(&caller, Form::Typed(txn)));
            // The call waits for nothing before its command is in the queue.
            match futures::poll!(call.as_mut()) {
                // The caller sends those that were not begun again. After the others it can wait for its turn, and none passes it.
                Poll::Ready(Err(error)) if is_without_effect(&error) => {
                    if calls.is_empty() {
                        return Err(error);
                    }
                    break;
                }
                Poll::Ready(refused) => {
                    calls.push_back(Either::Left(ready(refused)));
                    break;
                }
                Poll::Pending => calls.push_back(Either::Right(call)),
            }
        }

        let mut left = PAGE_BYTES;
        let mut outcomes = Vec::with_capacity(calls.len());
        while let Some(answer) = calls.next().await {
            let outcome = answer.and_then(Form::typed).map(|mut committed| {
                if !committed.succeeded {
                    let shown = committed.results.iter().map(bytes_shown).sum::<usize>();
                    match left.checked_sub(shown) {
                        Some(rest) => left = rest,
                        None => committed.results = Vec::new(),
                    }
                }
                committed
            });
            outcomes.push(outcome);
        }
        if Planted::SentTogetherSwapped.is_on() {
            outcomes.reverse();
        }
        Ok(Form::Typed(EachCommitted { outcomes }))
    }
}

/// Whether a transaction of several was refused since too much is under way.
fn is_without_effect(error: &Error) -> bool {
    error.reason == FailureReason::Overloaded && error.retry == Retry::Safe
}

/// Number of bytes of the entries that a result shows.
fn bytes_shown(result: &TxnResult) -> usize {
    let bytes = |entry: &Entry| entry.value.as_bytes().len() + FIXED_BYTES;
    match result {
        TxnResult::Got(entry) => entry.as_deref().map_or(0, bytes),
        TxnResult::Selected(selected) => {
            selected.entries.iter().map(|(key, entry)| key.as_bytes().len() + bytes(entry)).sum()
        }
        TxnResult::Put
        | TxnResult::PutChild(_)
        | TxnResult::Expires(_)
        | TxnResult::Deleted(_)
        | TxnResult::Opened(_) => 0,
    }
}

impl Local {
    /// Refuses what may take or renew a lock, and claims none, while a restored cluster is closed.
    ///
    /// The table itself refuses claims. Redis' clients also lock with hashes, sorted sets and strings without a deadline, which claim
    /// nothing; a semaphore that was taken after the copy was made must not be given to others at once.
    ///
    /// Nor may a lock be renewed that the copy has. Its holder may have been late: then another client took the lock after the copy was
    /// made, and trusts it until this cluster opens. Most clients renew by their session, which has a new id here; those of DynamoDB and
    /// Redis by a value of their own.
    ///
    /// Deletes are served.
    fn refuse_while_closed(&self, txn: &Txn) -> Result<(), Error> {
        let is_of_redis = |key: &Key| lockkeeper_redis::is_key_of_client(key.as_bytes());
        let is_renewal_refused = !Planted::RestoredRenews.is_on();
        let may_lock = |operation: &TxnOperation| match operation {
            TxnOperation::Put(put) => is_of_redis(&put.key) || is_renewal_refused && put.lease == PutLease::Renewed,
            TxnOperation::PutChild(child) => is_of_redis(&child.put.key),
            TxnOperation::Expire(expire) => is_renewal_refused && is_of_redis(&expire.key),
            TxnOperation::Get(_)
            | TxnOperation::Select(_)
            | TxnOperation::Delete(_)
            | TxnOperation::DeleteRange(_)
            | TxnOperation::Open(_) => false,
        };
        if !txn.operations().any(may_lock) {
            return Ok(());
        }

        // This node leads, so its table has the moment at which the cluster opens.
        let closed = self.replica.table().read(|applied| applied.machine.closed_for_ms());
        closed.map_or(Ok(()), |remaining_ms| Err(Error::refused(Refusal::Closed { remaining_ms })))
    }
}

impl Serve for GetEntries {
    async fn serve(self, node: &Local, _caller: &Caller) -> Result<Form<EntriesFound>, Error> {
        // A clone of the table costs more than to look at a few keys does.
        let found = if self.at.is_none() && self.keys.len() <= KEYS_IN_PLACE {
            node.read_at(self.on_time, |applied, now| self.find(&applied.machine, now)).await?
        } else {
            let (machine, now) = node.read_at(self.on_time, |applied, now| (applied.machine.clone(), now)).await?;
            self.find(&machine, now)
        };
        Ok(Form::Typed(found?))
    }
}

impl GetEntries {
    fn find(self, machine: &Machine, now: Stamp) -> Result<EntriesFound, Error> {
        let revision = machine.revision();
        let at = self.at.unwrap_or(revision);
        machine.ensure_known(at).map_err(Error::revision)?;

        let mut page = PageRoom::with_room_for(PAGE_MAX);
        let mut entries = Vec::new();
        for key in self.keys {
            let entry = machine.entry_at(&key, at).map_err(Error::revision)?;
            page.add(&key, entry.as_deref());
            entries.push(entry);
            if page.is_full() {
                break;
            }
        }

        Ok(EntriesFound { entries, revision, now })
    }
}

impl Serve for ListEntries {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<EntryPage>, Error> {
        let (machine, now) = node.read_at(self.on_time, |applied, now| (applied.machine.clone(), now)).await?;
        let mut page = PageRoom::with_room_for(page_size(self.page_size, PAGE_MAX));
        let revision = machine.revision();

        let (entries, more) = match (self.leased_by, self.at) {
            (None, at) => {
                let range = machine.entries_at(&self.range, at.unwrap_or(revision)).map_err(Error::revision)?;
                let mut turns = Turns::new(&node.long_reads, caller);
                page.fill_in_turns(range.visits(self.backwards), &mut turns).await?
            }
            (Some(session), None) => {
                let mut leased = machine.entries_leased_by(session, &self.range);
                page.fill(from_fn(|| if self.backwards { leased.next_back() } else { leased.next() }))
            }
            (Some(_), Some(_)) => {
                return Err(Error::invalid(
                    "at_revision",
                    "entries of a lease are shown as they are now; leave it out",
                ));
            }
        };

        Ok(Form::Typed(EntryPage { entries, more, revision, now }))
    }
}

impl Serve for SelectEntries {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<EntriesSelected>, Error> {
        let Self { select, at, stale, on_time } = self;
        let machine = if stale {
            node.frozen(true).await?.0
        } else {
            node.read_at(on_time, |applied, _| applied.machine.clone()).await?
        };
        let at = at.unwrap_or_else(|| machine.revision());
        let range = machine.entries_at(&select.range, at).map_err(Error::revision)?;

        let mut turns = Turns::new(&node.long_reads, caller);
        if is_count_of_all(&select) {
            let mut count = 0;
            for visit in range.visits(false) {
                turns.visit().await?;
                count += u64::from(visit.is_some());
            }
            let selected = Selected { count, ..Selected::default() };
            return Ok(Form::Typed(EntriesSelected { selected, revision: machine.revision() }));
        }

        let mut entries = Vec::new();
        let mut sorted_bytes = 0;
        for visit in range.visits(false) {
            turns.visit().await?;
            let Some((key, entry)) = visit else { continue };

            if select.by == SortBy::Value {
                sorted_bytes += entry.value.as_bytes().len();
            }
            entries.push((key, entry));

            if entries.len() > TXN_READS_MAX || sorted_bytes > SORTED_BYTES_MAX {
                return Err(Error::refused(Refusal::Limit(Limit::TxnReads)));
            }
        }

        let selected = select.from(entries.into_iter());
        if selected.bytes() + selected.entries.len() * FIXED_BYTES > PAGE_BYTES {
            return Err(Error::refused(Refusal::Limit(Limit::TxnBytes)));
        }

        Ok(Form::Typed(EntriesSelected { selected, revision: machine.revision() }))
    }
}

/// Whether only the number of a range's entries is asked for: that has no limit, since none of them is kept meanwhile.
fn is_count_of_all(select: &Select) -> bool {
    let count = Select { shows: Shows::Count, range: select.range.clone(), ..Select::default() };
    *select == count
}

impl Serve for CompactEntries {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<EntriesCompacted>, Error> {
        let Self { revision } = self;
        tracing::info!(revision = revision.0, from = %caller.shown(), "asked to compact the history of the keyspace");
        let reply = node.apply(Command::Compact { revision }).await?;
        let Reply::Compacted(revision) = reply else { return Err(Error::unexpected(reply)) };
        Ok(Form::Typed(EntriesCompacted { revision }))
    }
}

impl Serve for RunUnit {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<UnitDone>, Error> {
        let Some(runner) = node.units.get() else { return Err(Error::leader_lacks(Version::LIFETIMES)) };
        let answer = runner.run(caller.clone(), self.unit.to_vec()).await;
        Ok(Form::Typed(UnitDone { answer: answer.into() }))
    }
}

/// The visits of one read.
struct Turns<'a> {
    visited: usize,
    long_reads: &'a Arc<LongReads>,
    caller: &'a Caller,
    /// The turn of a long read, once this read is one.
    turn: Option<ReadTurn>,
}

impl<'a> Turns<'a> {
    fn new(long_reads: &'a Arc<LongReads>, caller: &'a Caller) -> Self {
        Self { visited: 0, long_reads, caller, turn: None }
    }

    /// Counts a visit. Fails if too many long reads are under way.
    async fn visit(&mut self) -> Result<(), Error> {
        self.visited += 1;
        if self.visited.is_multiple_of(self.long_reads.visits_per_turn()) {
            if self.turn.is_none() {
                self.turn = Some(self.long_reads.turn(self.caller).await?);
            }
            yield_now().await;
        }
        Ok(())
    }
}

/// The room that is left in a page.
struct PageRoom {
    entries_left: usize,
    bytes_left: usize,
}

impl PageRoom {
    fn with_room_for(entries: usize) -> Self {
        Self { entries_left: entries, bytes_left: PAGE_BYTES }
    }

    fn add(&mut self, key: &Key, entry: Option<&Entry>) {
        let parent = |entry: &Entry| entry.parent().map_or(0, |parent| parent.as_bytes().len());
        let value = entry.map_or(0, |entry| entry.value.as_bytes().len() + parent(entry));
        self.entries_left = self.entries_left.saturating_sub(1);
        self.bytes_left = self.bytes_left.saturating_sub(FIXED_BYTES + key.as_bytes().len() + value);
    }

    /// Takes the first entries, and says whether there are more.
    fn fill<'a>(&mut self, mut all: impl Iterator<Item = (&'a Key, Arc<Entry>)>) -> (Vec<(Key, Arc<Entry>)>, bool) {
        let mut entries = Vec::new();
        while !self.is_full()
            && let Some((key, entry)) = all.next()
        {
            self.add(key, Some(&entry));
            entries.push((key.clone(), entry));
        }
        (entries, self.is_full() && all.next().is_some())
    }

    /// Takes the first entries of a range, and says whether there are more. A visit of `None` is a key that has no entry.
    async fn fill_in_turns<'a>(
        &mut self,
        all: impl Iterator<Item = Option<(&'a Key, Arc<Entry>)>>,
        turns: &mut Turns<'_>,
    ) -> Result<(Vec<(Key, Arc<Entry>)>, bool), Error> {
        let mut entries = Vec::new();
        for visit in all {
            turns.visit().await?;

            let Some((key, entry)) = visit else { continue };

            if self.is_full() {
                return Ok((entries, true));
            }
            self.add(key, Some(&entry));
            entries.push((key.clone(), entry));
        }
        Ok((entries, false))
    }

    fn is_full(&self) -> bool {
        self.entries_left == 0 || self.bytes_left == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{super::long_reads::VISITS_PER_TURN, *};

    /// Visits of keys that have no entry.
    fn nothing(visits: usize) -> impl Iterator<Item = Option<(&'static Key, Arc<Entry>)>> {
        (0..visits).map(|_| None)
    }

    async fn read(long_reads: &Arc<LongReads>, visits: usize) -> Result<(Vec<(Key, Arc<Entry>)>, bool), Error> {
        PageRoom::with_room_for(1).fill_in_turns(nothing(visits), &mut Turns::new(long_reads, &Caller::default())).await
    }

    #[tokio::test]
    async fn a_read_that_visits_much_lets_others_have_their_turn() {
        let long_reads = Arc::default();
        let had_turn = AtomicBool::new(false);
        let other = async { had_turn.store(true, Ordering::Relaxed) };
        let visits = (0..=VISITS_PER_TURN).map(|visit| {
            assert!(visit < VISITS_PER_TURN || had_turn.load(Ordering::Relaxed), "nobody else had a turn");
            None
        });
        let caller = Caller::default();
        let mut turns = Turns::new(&long_reads, &caller);
        let mut page = PageRoom::with_room_for(1);
        let (found, ()) = tokio::join!(page.fill_in_turns(visits, &mut turns), other);
        assert_eq!(found.expect("one read"), (Vec::new(), false));
    }

    #[tokio::test]
    async fn one_read_that_visits_much_goes_on_and_too_many_are_refused() {
        let long_reads = Arc::<LongReads>::default();
        let first = long_reads.turn(&Caller::default()).await.expect("the first");
        read(&long_reads, VISITS_PER_TURN - 1).await.expect("a short read does not wait");
        let waiting: Vec<_> = (1..super::super::long_reads::LONG_READS_MAX)
            .map(|_| Box::pin(read(&long_reads, VISITS_PER_TURN)))
            .collect();
        let mut all = futures::future::join_all(waiting);
        assert!(futures::poll!(&mut all).is_pending());
        let refused = read(&long_reads, VISITS_PER_TURN).await.expect_err("too many");
        assert_eq!(refused.reason, crate::api::FailureReason::Overloaded);
        drop(first);
        assert!(all.await.iter().all(Result::is_ok));
    }
}
