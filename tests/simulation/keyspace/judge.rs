//! What clients saw of the keyspace, and whether it can have been so.
//!
//! * **Serializable, in real time**: a transaction answers as if it ran alone at its revision, which is above that of whatever was
//!   acknowledged before it was sent; its writes are in the history, and nothing else is at its revision. A read shows what was there.
//! * **Watches**: every event once, in order, without a gap.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
};

use lockkeeper::machine::{Committed, Entry, Key, KeyRange, Revision, Select, Selected, SessionId, Txn};
use tokio_util::sync::CancellationToken;

use super::{
    model::{self, without_claim, without_claims},
    truth::Truth,
    watches::Watch,
    words::Words,
};

/// Complaints that are shown of each kind.
const SHOWN_MAX: usize = 3;

/// A read, and what it showed.
#[derive(Clone, Debug)]
pub(crate) enum Read {
    Keys {
        keys: Vec<Key>,
        found: Vec<Option<std::sync::Arc<Entry>>>,
    },
    Page {
        range: KeyRange,
        backwards: bool,
        leased_by: Option<SessionId>,
        entries: Vec<(Key, std::sync::Arc<Entry>)>,
        more: bool,
    },
    Selected {
        select: Select,
        selected: Selected,
    },
}

/// Collects what clients saw.
#[derive(Default, Debug)]
pub(crate) struct Judge {
    seen: Mutex<Seen>,
    /// The clients have ended, and watch nothing any more.
    concluded: CancellationToken,
}

#[derive(Default, Debug)]
struct Seen {
    /// The highest revision that was acknowledged to anybody.
    acknowledged: Revision,
    txns: Vec<(Revision, Txn, Committed)>,
    /// What was acknowledged before, the revision that was asked for, the one of the answer, and the read.
    reads: Vec<(Revision, Option<Revision>, Revision, Read)>,
    watches: Vec<Watch>,
    words: Words,
    counts: BTreeMap<String, u64>,
    complaints: Vec<String>,
}

impl Judge {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("nothing panics while it has them")
    }

    /// Says that the clients have ended.
    pub(crate) fn conclude(&self) {
        self.concluded.cancel();
    }

    /// Returns after the clients have ended.
    pub(crate) async fn concluded(&self) {
        self.concluded.cancelled().await;
    }

    /// The highest revision that was acknowledged so far: what is sent now must see it.
    pub(crate) fn acknowledged(&self) -> Revision {
        self.seen().acknowledged
    }

    pub(crate) fn say(&self, note: impl FnOnce(&mut Words)) {
        note(&mut self.seen().words);
    }

    pub(crate) fn count(&self, what: &str) {
        *self.seen().counts.entry(what.to_owned()).or_default() += 1;
    }

    pub(crate) fn complain(&self, what: String) {
        self.seen().complaints.push(what);
    }

    pub(crate) fn committed(&self, before: Revision, txn: Txn, committed: Committed) {
        let mut seen = self.seen();
        seen.acknowledged = seen.acknowledged.max(committed.revision);
        seen.txns.push((before, txn, committed));
    }

    pub(crate) fn read(&self, before: Revision, at: Option<Revision>, revision: Revision, read: Read) {
        let mut seen = self.seen();
        seen.acknowledged = seen.acknowledged.max(revision);
        seen.reads.push((before, at, revision, read));
    }

    pub(crate) fn watched(&self, watch: Watch) {
        self.seen().watches.push(watch);
    }

    /// What was said, by words.
    pub(crate) fn words(&self) -> Words {
        self.seen().words.clone()
    }

    /// How much was seen.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        let seen = self.seen();
        let events = seen.watches.iter().map(|watch| watch.len() as u64).sum();
        let sums = [
            ("transactions", seen.txns.len() as u64),
            ("reads", seen.reads.len() as u64),
            ("watches", seen.watches.len() as u64),
            ("events watched", events),
        ];
        let sums = sums.into_iter().map(|(what, count)| (what.to_owned(), count));
        sums.chain(seen.counts.clone()).collect()
    }

    /// What cannot have been.
    pub(crate) fn complaints(&self, truth: &Truth) -> Vec<String> {
        let seen = self.seen();
        let txns = seen.txns.iter().filter_map(|(before, txn, committed)| {
            let why = judge_txn(truth, *before, txn, committed)?;
            Some(format!("a transaction of the keyspace at {:?}: {why}: {txn:?}", committed.revision))
        });
        let reads = seen.reads.iter().filter_map(|(before, at, revision, read)| {
            let why = judge_read(truth, *before, *at, *revision, read)?;
            Some(format!("a read of the keyspace at {revision:?}: {why}: {read:?}"))
        });
        let watches = seen.watches.iter().filter_map(|watch| watch.judge(truth));
        let kinds: [Vec<String>; 4] = [seen.complaints.clone(), txns.collect(), reads.collect(), watches.collect()];
        kinds.into_iter().flat_map(|kind| kind.into_iter().take(SHOWN_MAX)).collect()
    }
}

fn judge_txn(truth: &Truth, before: Revision, txn: &Txn, committed: &Committed) -> Option<String> {
    if committed.revision < before {
        return Some(format!("{before:?} was acknowledged before it was sent"));
    }
    model::judge_txn(truth, txn, committed)
}

fn judge_read(
    truth: &Truth,
    before: Revision,
    at: Option<Revision>,
    revision: Revision,
    read: &Read,
) -> Option<String> {
    if revision < before {
        return Some(format!("{before:?} was acknowledged before it was sent"));
    }
    let shown_at = at.unwrap_or(revision);
    // What is asked for by its revision is shown as it was, unless that is the present one.
    let is_present = shown_at == revision;
    let is_right = model::is_shown(truth, shown_at, is_present, |state| match read {
        Read::Keys { keys, found } => {
            let right =
                keys.iter().zip(found).all(|(key, found)| state.entry(key) == found.as_ref().map(without_claim));
            right && (found.len() == keys.len() || !found.is_empty())
        }
        Read::Page { range, backwards, leased_by, entries, more } => {
            let right = state.entries(range).into_iter();
            let right = right.filter(|(_, entry)| {
                leased_by.is_none_or(|session| entry.lease.is_some_and(|lease| lease.session == session))
            });
            let mut right: Vec<_> = right.collect();
            if *backwards {
                right.reverse();
            }
            let is_more = right.len() > entries.len();
            right.truncate(entries.len());
            let shown: Vec<_> = entries.iter().map(|(key, entry)| (key.clone(), without_claim(entry))).collect();
            right == shown && is_more == *more
        }
        Read::Selected { select, selected } => state.select(select) == without_claims(selected),
    });
    (!is_right).then(|| "it does not show what was there".to_owned())
}
