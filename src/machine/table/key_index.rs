//! The index of the history by key: which revisions changed a key.
//!
//! Each write of the keyspace adds to it and soon takes from it again, and only a read of the past looks into it. So it is made for the
//! writes. It is a sequence of *runs*: each covers successive events, is sorted by key, and never changes. A few events become a small run,
//! and a few runs of one level become one of the next, as in a log-structured merge tree (O'Neil et al., 1996). A lookup goes through the
//! runs that reach beyond its revision: one for recent revisions, some dozens for the oldest.
//!
//! A run goes as a whole, with its last event. Until then it names events that the history has dropped; a lookup is never about those,
//! since their revisions are compacted.

use std::{
    cmp::Ordering,
    iter::{from_fn, once},
    mem,
    sync::Arc,
};

use imbl::Vector;
use lockkeeper_planted::Planted;

use crate::types::*;

/// Events that become a run. A sort that meets shorter runs does not take advantage of them.
const RUN_EVENTS: usize = 64;
/// Runs of one level that are merged into one of the next.
const MERGED_RUNS: usize = 8;
/// Runs of this level are merged no further: a large run is sorted in one go, while a batch is applied, and keeps the keys of dropped
/// events.
const LEVEL_MAX: u8 = 2;

/// Successive events by key. A clone is cheap.
#[derive(Clone, Default)]
pub(super) struct KeyIndex {
    /// In the order of their events. Levels fall from the first run to the last.
    runs: Vector<SortedRun>,
    /// The latest events, sorted as in a run; fewer than [`RUN_EVENTS`].
    latest: Arc<Vec<Place>>,
}

/// A key, and a revision at which it changed.
type Place = (Key, Revision);

/// A part of the index that never changes.
#[derive(Clone)]
struct SortedRun {
    /// Sorted.
    places: Arc<[Place]>,
    /// The highest of their revisions.
    last: Revision,
    /// How often its places were merged.
    level: u8,
}

impl KeyIndex {
    /// Adds an event, which came after all others.
    pub(super) fn push(&mut self, key: Key, revision: Revision) {
        let latest = Arc::make_mut(&mut self.latest);
        let place = (key, revision);
        latest.insert(latest.partition_point(|known| *known < place), place);

        if latest.len() == RUN_EVENTS {
            self.runs.push_back(SortedRun { places: mem::take(latest).into(), last: revision, level: 0 });
            self.merge();
        }
    }

    /// Merges the last runs, as long as there are enough of one level.
    fn merge(&mut self) {
        while let Some(SortedRun { last, level, .. }) = self.runs.last().cloned().filter(|run| run.level < LEVEL_MAX) {
            let alike = self.runs.iter().rev().take_while(|run| run.level == level).count();
            if alike < MERGED_RUNS {
                return;
            }

            let merged = self.runs.split_off(self.runs.len() - alike);
            let mut places: Vec<_> = merged.iter().flat_map(|run| run.places.iter().cloned()).collect();
            // It takes advantage of the runs that are there.
            places.sort();
            self.runs.push_back(SortedRun { places: places.into(), last, level: level + 1 });
        }
    }

    /// Forgets the events up to a revision, as far as whole runs have no others.
    pub(super) fn forget(&mut self, revision: Revision) {
        while self.runs.front().is_some_and(|run| run.last <= revision) {
            self.runs.pop_front();
        }
    }

    /// The first revision after this one at which a key changed.
    pub(super) fn first_change(&self, key: &Key, after: Revision) -> Option<Revision> {
        self.later_runs(after).find_map(|places| {
            let first = places.partition_point(|(known, revision)| (known, *revision) <= (key, after));
            let (known, revision) = places.get(first)?;
            (known == key).then_some(*revision)
        })
    }

    /// The keys of a range that changed after a revision, in order or backwards, and when each did first.
    pub(super) fn changes<'a>(
        &'a self,
        range: &KeyRange,
        after: Revision,
        is_backwards: bool,
    ) -> impl Iterator<Item = (&'a Key, Revision)> + use<'a> {
        let walk = |places: &'a [Place]| {
            let from = places.partition_point(|(key, _)| range.from.as_ref().is_some_and(|from| key < from));
            let to = places.partition_point(|(key, _)| range.to.as_ref().is_none_or(|to| key < to));
            KeyWalk::begin(places.get(from..to)?, after, is_backwards)
        };
        let mut walks: Vec<_> = self.later_runs(after).filter_map(walk).collect();

        from_fn(move || {
            let keys = walks.iter().map(|walk| walk.key);
            let key = if is_backwards { keys.max() } else { keys.min() }?;

            let mut first = Revision(u64::MAX);
            walks.retain_mut(|walk| {
                if walk.key != key {
                    return true;
                }
                first = first.min(walk.revision);
                walk.go_on(after, is_backwards)
            });
            Some((key, first))
        })
    }

    /// The places of the runs that have events after a revision, and those of the latest events.
    fn later_runs(&self, after: Revision) -> impl Iterator<Item = &[Place]> {
        let place = |run: &SortedRun| if run.last > after { Ordering::Greater } else { Ordering::Less };
        let first = self.runs.binary_search_by(place).unwrap_or_else(|first| first);
        let first = if Planted::OldestRunUnread.is_on() { self.runs.len().min(first + 1) } else { first };
        let runs = self.runs.focus().narrow(first..).into_iter();
        runs.map(|run| &*run.places).chain(once(self.latest.as_slice()))
    }
}

/// A walk through the keys of a run that changed after a revision.
struct KeyWalk<'a> {
    /// Where it is.
    key: &'a Key,
    /// When this key first changed after the revision.
    revision: Revision,
    /// What lies before it.
    rest: &'a [Place],
}

impl<'a> KeyWalk<'a> {
    /// Begins at the first key of these places that changed after the revision, if one did.
    fn begin(places: &'a [Place], after: Revision, is_backwards: bool) -> Option<Self> {
        let mut rest = places;
        while let Some((key, _)) = if is_backwards { rest.last() } else { rest.first() } {
            let changes;
            if is_backwards {
                (rest, changes) = rest.split_at(rest.partition_point(|(known, _)| known < key));
            } else {
                (changes, rest) = rest.split_at(rest.partition_point(|(known, _)| known == key));
            }

            let first = changes.partition_point(|(_, revision)| *revision <= after);
            if let Some((key, revision)) = changes.get(first) {
                return Some(Self { key, revision: *revision, rest });
            }
        }
        None
    }

    /// Goes to the next key. Returns whether there is one.
    fn go_on(&mut self, after: Revision, is_backwards: bool) -> bool {
        let next = Self::begin(self.rest, after, is_backwards);
        let is_there = next.is_some();
        if let Some(next) = next {
            *self = next;
        }
        is_there
    }
}
