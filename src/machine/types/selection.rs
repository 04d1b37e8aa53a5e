//! Entries of a range: which are shown, in which order, and what of them.

use std::{cmp::Ordering, sync::Arc};

use super::*;

/// Which entries of a range are shown, and how: those within the bounds are sorted, and then the first of them shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Select {
    /// The range.
    pub range: KeyRange,
    /// Bounds of [`Entry::created`].
    pub created: Bounds,
    /// Bounds of [`Entry::modified`].
    pub modified: Bounds,
    /// The sort order of the entries. Equal ones are in the order of their keys.
    pub by: SortBy,
    /// The greatest first. Those that are equal remain in the order of their keys.
    pub is_descending: bool,
    /// Entries that are shown, at the most; 0: all.
    pub limit: u32,
    /// The parts of the entries that are shown.
    pub shows: Shows,
}

/// Bounds of a revision, both included, where there are any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bounds {
    /// The least.
    pub min: Option<Revision>,
    /// The greatest.
    pub max: Option<Revision>,
}

/// A property of entries to sort by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SortBy {
    /// Their keys.
    #[default]
    Key,
    /// [`Entry::created`].
    Created,
    /// [`Entry::modified`].
    Modified,
    /// [`Entry::version`].
    Version,
    /// [`Entry::value`], byte by byte.
    Value,
}

/// The parts of entries that are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shows {
    /// All of them.
    #[default]
    Entries,
    /// All but their values: these are shown empty.
    Keys,
    /// Only their number.
    Count,
}

/// What a [`Select`] shows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selected {
    /// The entries, sorted.
    pub entries: Vec<(Key, Arc<Entry>)>,
    /// Number of entries in the range, whatever the bounds and the limit.
    pub count: u64,
    /// The limit left some out.
    pub more: bool,
}

impl Bounds {
    fn contain(self, revision: Revision) -> bool {
        self.min.is_none_or(|min| revision >= min) && self.max.is_none_or(|max| revision <= max)
    }
}

impl Select {
    /// Selects from the entries of its range, which are in the order of their keys.
    pub fn from<'a>(&self, entries: impl Iterator<Item = (&'a Key, Arc<Entry>)>) -> Selected {
        let mut count = 0;
        let entries = entries.inspect(|_| count += 1);
        let is_within = |entry: &Entry| self.created.contain(entry.created) && self.modified.contain(entry.modified);
        let mut within: Vec<_> = entries.filter(|(_, entry)| is_within(entry)).collect();

        let limit = match self.limit {
            0 => within.len(),
            limit => within.len().min(limit as usize),
        };
        let more = within.len() > limit;
        if self.shows == Shows::Count {
            return Selected { entries: Vec::new(), count, more };
        }

        let order = |one: &(&Key, Arc<Entry>), other: &(&Key, Arc<Entry>)| {
            let order = self.by.order(one, other);
            if self.is_descending { order.reverse() } else { order }.then_with(|| one.0.cmp(other.0))
        };
        // Sorting costs more than finding the first ones, and the rest is not shown.
        if 0 < limit && more {
            within.select_nth_unstable_by(limit - 1, order);
            within.truncate(limit);
        }
        within.sort_unstable_by(order);

        let shown = |(key, entry): (&Key, Arc<Entry>)| match self.shows {
            Shows::Entries | Shows::Count => (key.clone(), entry),
            Shows::Keys => (key.clone(), Arc::new(Entry { value: Value::default(), ..Entry::clone(&entry) })),
        };
        Selected { entries: within.into_iter().map(shown).collect(), count, more }
    }
}

impl SortBy {
    fn order(self, (key, entry): &(&Key, Arc<Entry>), (other_key, other): &(&Key, Arc<Entry>)) -> Ordering {
        match self {
            Self::Key => key.cmp(other_key),
            Self::Created => entry.created.cmp(&other.created),
            Self::Modified => entry.modified.cmp(&other.modified),
            Self::Version => entry.version.cmp(&other.version),
            Self::Value => entry.value.cmp(&other.value),
        }
    }
}

impl Selected {
    /// Bytes of the keys and values that it shows.
    pub fn bytes(&self) -> usize {
        self.entries.iter().map(|(key, entry)| key.as_bytes().len() + entry.value.as_bytes().len()).sum()
    }
}
