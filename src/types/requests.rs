//! Request ids, and which of them are still open.
//!
//! A client needs an id from the moment it chooses it until it has the reply or gives up on it, and never again; an id that it has not
//! chosen yet may still be needed. So the set of *open* ids only ever shrinks: it is all ids from some lowest on, and a few older ones,
//! such as that of an acquire which waits for hours while others come and go.

use std::sync::Arc;

use super::{values::number, *};
use crate::limits::*;

/// The identity of a request, so that it takes effect once, however often it is sent (RIFL: Lee et al., SOSP'15).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The id, chosen by the client. Ids ascend from 1.
    pub id: u64,
    /// The ids that were open for the client when it sent this.
    pub open: OpenIds,
}

/// A set of request ids: all from `lowest` on, and those that are kept below it. Initially all ids.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenIds {
    lowest: u64,
    /// Ascending, all below `lowest`, at most [`REPLIES_PER_SESSION_MAX`]. Mostly none are kept, which is `None`. (An
    /// empty `Arc` would share a counter with all others, which all threads would write.)
    kept: Option<Arc<[u64]>>,
}

fn ensure_bounded(kept: &[u64]) -> Result<(), Invalid> {
    number("the number of request ids kept", kept.len(), 0, REPLIES_PER_SESSION_MAX).map(|_| ())
}

impl OpenIds {
    /// Fails on kept ids that do not ascend from 1 to below `lowest`, and on more than [`REPLIES_PER_SESSION_MAX`] of them.
    pub fn new(lowest: u64, kept: Vec<u64>) -> Result<Self, Invalid> {
        ensure_bounded(&kept)?;
        Self::from_log(lowest, kept)
    }

    /// Like `new`, but of any number: see the [crate](crate). Fails on kept ids that do not ascend from 1 to below `lowest`.
    pub fn from_log(lowest: u64, kept: Vec<u64>) -> Result<Self, Invalid> {
        let mut after = 0;
        for id in &kept {
            if *id <= after {
                return Err(Invalid(format!(
                    "the kept request id {id} comes after {after}: list the kept ids in ascending order from 1, each once"
                )));
            }
            if *id >= lowest {
                return Err(Invalid(format!("the request id {id} is kept, but not below {lowest}: leave it out")));
            }
            after = *id;
        }

        Ok(Self::from_kept(lowest, kept))
    }

    fn from_kept(lowest: u64, kept: Vec<u64>) -> Self {
        Self { lowest, kept: (!kept.is_empty()).then(|| kept.into()) }
    }

    /// Fails on more than [`REPLIES_PER_SESSION_MAX`] kept ids.
    pub fn check_limits(&self) -> Result<(), Invalid> {
        ensure_bounded(self.kept())
    }

    /// All ids from this one on are in the set.
    pub fn lowest(&self) -> u64 {
        self.lowest
    }

    /// The ids below [`OpenIds::lowest`] that are in the set, ascending.
    pub fn kept(&self) -> &[u64] {
        self.kept.as_deref().unwrap_or_default()
    }

    /// Whether an id is in the set.
    pub fn contains(&self, id: u64) -> bool {
        id >= self.lowest || self.kept().binary_search(&id).is_ok()
    }

    /// The ids that are in both sets.
    ///
    /// From the higher `lowest` on, all ids are in both. Below it, the set with that lowest has only its kept ids, so the result keeps
    /// those of them that the other set contains: never more than one of the two did.
    pub fn intersection(&self, other: &Self) -> Self {
        let (higher, other) = if self.lowest >= other.lowest { (self, other) } else { (other, self) };
        if higher.kept().iter().all(|id| other.contains(*id)) {
            return higher.clone();
        }
        Self::from_kept(higher.lowest, higher.kept().iter().copied().filter(|id| other.contains(*id)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn open(lowest: u64, kept: &[u64]) -> OpenIds {
        OpenIds::new(lowest, kept.to_vec()).unwrap()
    }

    #[test]
    fn kept_ids_rise_from_1_to_below_the_lowest() {
        let message =
            |lowest, kept: &[u64]| OpenIds::new(lowest, kept.to_vec()).err().map(|invalid| invalid.to_string());
        assert_eq!(message(0, &[]), None);
        assert_eq!(message(9, &[1, 2, 8]), None);
        let rise = "the kept request id 2 comes after 3: list the kept ids in ascending order from 1, each once";
        assert_eq!(message(9, &[3, 2]).as_deref(), Some(rise));
        assert!(message(9, &[2, 2]).is_some() && message(9, &[0, 2]).is_some());
        let below = "the request id 9 is kept, but not below 9: leave it out";
        assert_eq!(message(9, &[1, 9]).as_deref(), Some(below));
        let most = REPLIES_PER_SESSION_MAX as u64;
        assert_eq!(message(u64::MAX, &(1..=most).collect::<Vec<_>>()), None);
        assert!(message(u64::MAX, &(1..=most + 1).collect::<Vec<_>>()).is_some());
    }

    #[test]
    fn an_intersection_keeps_what_both_have() {
        assert_eq!(open(5, &[1, 3]).intersection(&open(3, &[2])), open(5, &[3]));
        assert_eq!(open(5, &[1, 3]).intersection(&open(9, &[3, 6, 7])), open(9, &[3, 6, 7]));
        assert_eq!(OpenIds::default().intersection(&open(9, &[4])), open(9, &[4]));
        assert_eq!(open(9, &[4]).intersection(&open(9, &[5])), open(9, &[]));
    }

    fn any_open() -> impl Strategy<Value = OpenIds> {
        (0..20u64).prop_flat_map(|lowest| {
            let below: Vec<u64> = (1..lowest).collect();
            let most = below.len();
            proptest::sample::subsequence(below, 0..=most).prop_map(move |kept| OpenIds::new(lowest, kept).unwrap())
        })
    }

    fn as_set(open: &OpenIds) -> BTreeSet<u64> {
        (0..25).filter(|id| open.contains(*id)).collect()
    }

    proptest! {
        /// It equals the intersection of sets; so neither order nor repetition matters.
        #[test]
        fn an_intersection_is_that_of_sets(one in any_open(), other in any_open()) {
            let both = one.intersection(&other);
            prop_assert_eq!(as_set(&both), as_set(&one).intersection(&as_set(&other)).copied().collect());
            prop_assert_eq!(OpenIds::new(both.lowest(), both.kept().to_vec()), Ok(both.clone()));
            prop_assert_eq!(&both, &other.intersection(&one));
            prop_assert!(both.kept().len() <= one.kept().len().max(other.kept().len()));
        }
    }
}
