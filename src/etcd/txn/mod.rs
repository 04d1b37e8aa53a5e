//! A transaction of etcd's, as one of the store's.
//!
//! **Directly**, where the store can do everything that the transaction asks: compares, reads, puts, deletes. Both branches go into one
//! transaction of the store.
//!
//! **Decided here**, where it cannot: transactions in transactions, puts that keep a value or a lease, and reads of the past, which may be
//! forgotten by the time of the commit. The keys that decide are read. They say which branches run, since etcd makes all compares before
//! the first operation. What these branches do is committed on the condition that nothing that was read has changed; otherwise all of it
//! happens again. Branches that write nothing are not committed: the answer shows the revision that was read.
//!
//! **What the answer shows is at hand, and has room in it, before the commit or by it.** A transaction that was committed is not answered
//! by an error. So former entries that the store's transaction has no room for are read before it, and decide it like the others.
//!
//! | file | what it has |
//! |---|---|
//! | `analyze` | what a transaction needs: a decision, keys and ranges that decide it |
//! | `compare` | a compare of etcd's, as one of the store's |
//! | `decide` | what was read, and which operations run then |
//! | `compile` | these operations, as operations of the store; which locks its puts claim |
//! | `answer` | the answers to the operations that ran |

mod analyze;
mod answer;
mod compare;
mod compile;
mod decide;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lockkeeper_machine::{Committed, InvalidTxn, Key, Revision, Select, Stamp, Txn, TxnOperation, TxnResult};
use tokio::time::{sleep, timeout};

use self::{
    analyze::{Deciding, needs_decision},
    answer::BranchOutcome,
    compare::CompareCondition,
    compile::{Branch, Claims},
    decide::{Snapshot, decide, undecided},
};
use crate::{
    Etcd, EtcdStore, EtcdStoreError,
    error::Error,
    large::LargeAnswer,
    proto::etcdserverpb::{RangeRequest, RangeResponse, TxnRequest, TxnResponse},
    range::AnswerRoom,
};

/// Maximum number of attempts to commit a transaction that was decided from keys which other clients change.
const ATTEMPTS_MAX: u32 = 32;
/// Attempts that follow each other at once: one that loses by chance wins the next time.
const ATTEMPTS_AT_ONCE: u32 = 2;
/// The pause before the next attempt, at the most. It doubles with each one, up to [`PAUSE_DOUBLINGS`] times: all of them take half of
/// [`TIME_MAX`].
const PAUSE_US: u64 = 4_000;
const PAUSE_DOUBLINGS: u32 = 5;
/// Keys that are read in one call, since their values may be large.
const KEYS_AT_A_TIME: usize = 32;
/// Time limit of a transaction, with all its reads and attempts. etcd's own.
const TIME_MAX: Duration = Duration::from_secs(7);

impl<S: EtcdStore> Etcd<S> {
    /// Runs a transaction that was checked. Returns its revision, and the answer without its header.
    pub(crate) async fn transact(
        &self,
        caller: &S::Caller,
        request: &TxnRequest,
    ) -> Result<(Revision, TxnResponse), Error> {
        if !needs_decision(request) {
            return self.run_directly(caller, request).await;
        }

        // Each of its calls has a time limit, but there may be thousands of them.
        let decided = async {
            for losses in 0..ATTEMPTS_MAX {
                if let Some(pause) = self.pause_after(losses) {
                    sleep(pause).await;
                }
                if let Some(answer) = self.run_decided(caller, request).await? {
                    return Ok(answer);
                }
            }
            Err(EtcdStoreError::Overloaded.into())
        };
        timeout(TIME_MAX, decided).await.unwrap_or(Err(Error::TimedOut))
    }

    /// The pause after so many attempts that another client's write has beaten. Half of it is drawn at random: clients that lose to each
    /// other at the same time must not meet again, and each attempt of all of them costs the log an entry.
    fn pause_after(&self, losses: u32) -> Option<Duration> {
        let doublings = losses.checked_sub(ATTEMPTS_AT_ONCE)?.min(PAUSE_DOUBLINGS);
        let half_us = (PAUSE_US << doublings) / 2;
        Some(Duration::from_micros(half_us + self.store.random() % half_us))
    }

    /// Runs both branches as one transaction of the store.
    async fn run_directly(&self, caller: &S::Caller, request: &TxnRequest) -> Result<(Revision, TxnResponse), Error> {
        let mut compares = Vec::new();
        for compare in &request.compare {
            compares.extend(CompareCondition::try_from(compare)?.into_store(compare)?);
        }

        let claims = Claims::collect(request);
        let then = Branch::compile(&claims, &undecided(&request.success))?;
        let otherwise = Branch::compile(&claims, &undecided(&request.failure))?;

        let txn = Txn::new(compares, then.operations.clone(), otherwise.operations.clone()).map_err(invalid)?;
        let committed = self.store.commit(caller, txn).await?;
        let branch = if committed.succeeded { &then } else { &otherwise };
        // Only transactions in transactions have more operations than the store's transaction has room for, and these are decided.
        let read_before = &BTreeMap::new();
        Ok(BranchOutcome { branch, committed: &committed, past: Vec::new(), read_before }.answer())
    }

    /// Reads, decides and commits. Returns `None` if one of the entries that were read has changed before the commit.
    async fn run_decided(
        &self,
        caller: &S::Caller,
        request: &TxnRequest,
    ) -> Result<Option<(Revision, TxnResponse)>, Error> {
        let mut answered = LargeAnswer::new(self, caller);
        let mut snapshot = self.read_deciding(&mut answered, request).await?;
        let (succeeded, operations) = decide(request, &snapshot)?;

        // The past is read before the commit: if it cannot be shown, the transaction fails and has written nothing.
        let branch = Branch::compile(&Claims::collect(request), &operations)?;
        let mut room = AnswerRoom::for_shown();
        let past = self.read_past(&mut answered, &branch.past, &mut room).await?;
        if !branch.writes() {
            let results = self.read_all(&mut answered, &branch.operations, snapshot.revision, &mut room).await?;
            // The time is not needed: no answer of etcd contains it.
            let now = Stamp::default();
            let failed = None;
            let committed = &Committed { succeeded, failed, revision: snapshot.revision, now, results };
            let outcome = BranchOutcome { branch: &branch, committed, past, read_before: &snapshot.entries };
            return Ok(Some(outcome.answer()));
        }

        match self.read_former(&mut answered, &branch, &mut snapshot, &mut room).await {
            // Others write so much that this revision is forgotten already. The next attempt reads a later one.
            Err(Error::Compacted) => return Ok(None),
            read => read?,
        }

        let txn = Txn::new(snapshot.guards()?, branch.operations.clone(), Vec::new()).map_err(invalid)?;
        let committed = self.store.commit(caller, txn).await?;
        if !committed.succeeded {
            return Ok(None);
        }

        // The store says that the guards held; the client asks whether its own compares did.
        let committed = &Committed { succeeded, ..committed };
        let outcome = BranchOutcome { branch: &branch, committed, past, read_before: &snapshot.entries };
        Ok(Some(outcome.answer()))
    }

    /// Adds the former entries that the transaction itself does not show to what was read. They must fit into the room.
    async fn read_former(
        &self,
        answered: &mut LargeAnswer<'_, S>,
        branch: &Branch<'_>,
        snapshot: &mut Snapshot,
        room: &mut AnswerRoom,
    ) -> Result<(), Error> {
        let keys: Vec<&Key> = branch.former.iter().collect();
        for (chunk, keys) in keys.chunks(KEYS_AT_A_TIME).enumerate() {
            if chunk > 0 {
                answered.take_turn().await?;
            }
            let keys: Vec<Key> = keys.iter().copied().cloned().collect();
            let found = self.store.get(answered.caller, keys.clone(), Some(snapshot.revision)).await?;

            for (key, entry) in keys.into_iter().zip(found.entries) {
                let bytes = entry.as_ref().map_or(0, |entry| key.as_bytes().len() + entry.value.as_bytes().len());
                room.take(1, bytes)?;
                snapshot.entries.insert(key, entry);
            }
        }
        Ok(())
    }

    /// Runs the reads of the past. What they show must fit into the room.
    async fn read_past(
        &self,
        answered: &mut LargeAnswer<'_, S>,
        requests: &[&RangeRequest],
        room: &mut AnswerRoom,
    ) -> Result<Vec<RangeResponse>, Error> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            if !answers.is_empty() {
                answered.take_turn().await?;
            }

            let at = u64::try_from(request.revision).ok().filter(|revision| *revision > 0).map(Revision);
            let (answer, _) = self.read_at(answered, request, at).await?;
            room.take_answer(&answer)?;
            answers.push(answer);
        }
        Ok(answers)
    }

    /// Runs the operations of a branch that writes nothing, on the state at a revision. What they show must fit into the room.
    async fn read_all(
        &self,
        answered: &mut LargeAnswer<'_, S>,
        operations: &[TxnOperation],
        at: Revision,
        room: &mut AnswerRoom,
    ) -> Result<Vec<TxnResult>, Error> {
        let mut results = Vec::with_capacity(operations.len());
        for operation in operations {
            if !results.is_empty() {
                answered.take_turn().await?;
            }
            let select = if let TxnOperation::Select(select) = operation { select.clone() } else { Select::default() };
            let mut visited = AnswerRoom::for_visited();
            let entries = self.entries(answered, select.range.clone(), at, &mut visited).await?;

            let entries = entries.iter().map(|(key, entry)| (key, Arc::clone(entry)));
            let selected = select.from(entries);
            room.take(selected.entries.len(), selected.bytes())?;
            results.push(TxnResult::Selected(selected));
        }
        Ok(results)
    }

    /// Reads what decides a transaction, all of it as of one revision.
    async fn read_deciding(&self, answered: &mut LargeAnswer<'_, S>, request: &TxnRequest) -> Result<Snapshot, Error> {
        let caller = answered.caller;
        let Deciding { keys, ranges, .. } = Deciding::collect(request)?;
        let keys: Vec<Key> = keys.into_iter().collect();
        let mut room = AnswerRoom::for_compared();

        // The present revision, also if no key decides.
        let (first, others) = keys.split_at(keys.len().min(KEYS_AT_A_TIME));
        let mut found = self.store.get(caller, first.to_vec(), None).await?;
        room.take_found(&found.entries)?;
        for keys in others.chunks(KEYS_AT_A_TIME) {
            answered.take_turn().await?;
            let more = self.store.get(caller, keys.to_vec(), Some(found.revision)).await?;
            room.take_found(&more.entries)?;
            found.entries.extend(more.entries);
        }

        let mut snapshot = Snapshot {
            revision: found.revision,
            entries: keys.into_iter().zip(found.entries).collect(),
            ranges: BTreeMap::new(),
        };
        for (name, range) in ranges {
            let entries = self.entries(answered, range, snapshot.revision, &mut room).await?;
            snapshot.ranges.insert(name, entries);
        }
        Ok(snapshot)
    }
}

fn invalid(invalid: InvalidTxn) -> Error {
    match invalid {
        InvalidTxn::TooManyOperations { .. } => Error::TooManyOperations,
        InvalidTxn::TooLarge { .. } => Error::TooLarge,
        InvalidTxn::PutTwice { .. } => Error::DuplicateKey,
        InvalidTxn::ClaimWithoutLease { .. }
        | InvalidTxn::ClaimedTwice { .. }
        | InvalidTxn::OpenedTwice { .. }
        | InvalidTxn::NothingLeased { .. }
        | InvalidTxn::Value(_) => Error::Other(invalid.to_string()),
    }
}
