//! The entries that were loaded for a unit, and the ones that it still needs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{RedisEntry, data::DatumKind};

/// Entries of the store, all of the same moment.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// Each key that was asked for, by its name in the store.
    pub(crate) entries: BTreeMap<Vec<u8>, Option<Arc<RedisEntry>>>,
    /// Each part of a range that was asked for.
    pub(crate) ranges: BTreeMap<RangeNeed, LoadedRange>,
    /// Number of keys of databases.
    pub(crate) counts: BTreeMap<u8, u64>,
    /// Whether keys are counted by reading each of them ([`UnitNeeds::compares_counts`]).
    pub(crate) compares_counts: bool,
    /// Number of subscribers that a message of a channel reaches.
    pub(crate) receivers: BTreeMap<Vec<u8>, u64>,
    /// The cluster time.
    pub(crate) now_ms: u64,
    /// The revision of the first range that was read.
    pub(crate) range_revision: u64,
}

/// A key of a range, as the store has it.
#[derive(Clone, Debug)]
pub(crate) struct LoadedKey {
    /// Its name in the store.
    pub(crate) key: Vec<u8>,
    /// The revision of its last change.
    pub(crate) modified: u64,
    /// The type of its value. Without one, this version cannot read it.
    pub(crate) kind: Option<DatumKind>,
}

/// A part of a range that was read.
#[derive(Debug, Default)]
pub(crate) struct LoadedRange {
    /// The keys in their order.
    pub(crate) keys: Vec<LoadedKey>,
    /// Whether the range goes on after the last one.
    pub(crate) more: bool,
}

/// A part of a range to be read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RangeNeed {
    /// The first key.
    pub(crate) from: Vec<u8>,
    /// The end, which is not part of it.
    pub(crate) to: Vec<u8>,
    /// The approximate number of keys that are of use. At least this number is read if the range has as many.
    pub(crate) limit: usize,
}

/// What a unit needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnitNeeds {
    /// Keys, by their names in the store.
    pub(crate) keys: BTreeSet<Vec<u8>>,
    /// Parts of ranges.
    pub(crate) ranges: BTreeSet<RangeNeed>,
    /// Databases whose keys are counted.
    pub(crate) counts: BTreeSet<u8>,
    /// Whether keys are counted by reading each of them, so that the transaction can compare their number.
    pub(crate) compares_counts: bool,
    /// Channels whose subscribers are counted.
    pub(crate) receivers: BTreeSet<Vec<u8>>,
    /// Whether the time is asked for.
    pub(crate) time: bool,
}

impl UnitNeeds {
    /// Whether something is read before the unit runs.
    pub(crate) fn has_read(&self) -> bool {
        self.time || !self.keys.is_empty() || !self.ranges.is_empty() || !self.counts.is_empty()
    }

    /// Adds what another run needs.
    pub(crate) fn add(&mut self, other: &Self) {
        self.keys.extend(other.keys.iter().cloned());
        self.ranges.extend(other.ranges.iter().cloned());
        self.counts.extend(other.counts.iter().copied());
        self.compares_counts |= other.compares_counts;
        self.receivers.extend(other.receivers.iter().cloned());
        self.time |= other.time;
    }
}
