//! The applied state: what a snapshot holds, and what readers see.

use std::{collections::BTreeSet, fmt::Debug, time::Duration};

use crate::{AppliedMembership, EntryId, Trail};
use lockkeeper_audit::Head;
use lockkeeper_machine::{Counts, Limits, Machine, Token};

/// Inspects the table after each applied entry and each restored snapshot. For simulations, which check it there.
pub trait Inspect: Debug + Send + Sync + 'static {
    /// The next entry is not applied before it returns. `units` is the work of the entry, 0 if it has no commands.
    fn look(&self, applied: &Applied, units: usize);

    /// Asked after each entry that was applied without a thread for it. In place, the runtime is as busy as the entry was work; otherwise a
    /// thread would have been, for as long as this returns: then the next entry waits, and other tasks do not.
    fn lasted(&self, in_place: bool) -> Duration {
        let _ = in_place;
        Duration::ZERO
    }
}

/// The applied state.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    /// The table.
    pub machine: Machine,
    /// The last applied entry.
    pub last_entry: Option<EntryId>,
    /// The last membership in the log up to there.
    pub membership: AppliedMembership,
    /// The ids of all members in all memberships up to there. An id is never used again.
    pub ids_used: BTreeSet<u64>,
    /// How far the audit trail goes.
    pub trail: Trail,
}

impl Applied {
    /// The ids of former members.
    pub(crate) fn ids_removed(&self) -> BTreeSet<u64> {
        self.ids_used.iter().filter(|id| !self.membership.nodes.contains_key(id)).copied().collect()
    }

    /// The index of the last applied entry; 0: none.
    pub fn index(&self) -> u64 {
        self.last_entry.map_or(0, |entry| entry.index)
    }
}

/// The sizes of the table as of an applied entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct TableSummary {
    /// The index of that entry; 0 if there is none.
    pub index: u64,
    /// Sessions, locks and others.
    pub counts: Counts,
    /// The highest token that was issued.
    pub last_token: Token,
    /// The estimated size of the table, in bytes.
    pub bytes: u64,
    /// The limits of the last batch.
    pub limits: Limits,
    /// How far the audit trail goes.
    pub trail: Head,
}

impl TableSummary {
    pub(crate) fn new(applied: &Applied) -> Self {
        let Applied { machine, trail, .. } = applied;
        Self {
            index: applied.index(),
            counts: machine.counts(),
            last_token: machine.last_token(),
            bytes: machine.bytes(),
            limits: machine.limits(),
            trail: trail.head(),
        }
    }
}
