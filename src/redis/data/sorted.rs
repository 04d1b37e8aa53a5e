//! Members with scores, in the order of their scores; those of one score in the order of their bytes.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

/// A score: a number that can be ordered, so it is not not-a-number. The zeros are equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score(f64);

impl Score {
    /// `None` for not-a-number. A zero below zero becomes zero, as in the small sets of Redis.
    pub(crate) fn new(score: f64) -> Option<Self> {
        (!score.is_nan()).then_some(Self(score + 0.0))
    }

    /// The score as a number.
    pub(crate) fn number(self) -> f64 {
        self.0
    }

    /// The eight bytes of the number.
    pub(crate) fn to_be_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.partial_cmp(&other.0).expect("a score is a number")
    }
}

/// The members of a sorted set.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SortedMembers {
    /// The score of each member.
    scores: BTreeMap<Vec<u8>, Score>,
    /// The members in their order.
    order: BTreeSet<(Score, Vec<u8>)>,
}

impl SortedMembers {
    /// Number of members.
    pub(crate) fn len(&self) -> usize {
        self.scores.len()
    }

    /// The score of a member, if it is there.
    pub(crate) fn score(&self, member: &[u8]) -> Option<Score> {
        self.scores.get(member).copied()
    }

    /// Sets the score of a member, and returns whether it is a new one.
    pub(crate) fn set(&mut self, member: &[u8], score: Score) -> bool {
        let before = self.scores.insert(member.to_vec(), score);
        if let Some(before) = before {
            self.order.remove(&(before, member.to_vec()));
        }
        self.order.insert((score, member.to_vec()));
        before.is_none()
    }

    /// Removes a member, and returns whether it was there.
    pub(crate) fn remove(&mut self, member: &[u8]) -> bool {
        let removed = self.scores.remove(member);
        if let Some(score) = removed {
            self.order.remove(&(score, member.to_vec()));
        }
        removed.is_some()
    }

    /// All members, in their order. The iterator can be read from both ends.
    pub(crate) fn in_order(&self) -> impl DoubleEndedIterator<Item = (&Vec<u8>, Score)> {
        self.order.iter().map(|(score, member)| (member, *score))
    }

    /// Number of members before this one.
    pub(crate) fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        Some(self.order.range(..(score, member.to_vec())).count())
    }
}
