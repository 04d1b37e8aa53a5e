//! What commands that are under way take: those in the queue, in a batch, and those that are applied and not answered yet.
//!
//! The queue counts commands, since nearly all of them are small. A transaction may delete a thousand entries, visit thousands, or have
//! more than a megabyte. A renewal behind a queue of those would come too late for its session. So there is a limit for the work of large
//! commands that are under way, and one for their bytes ([`CommandTurns`]). Beyond it they wait for their turn outside of the queue, the
//! first one first, and small commands pass them. Those that wait have limits, too, since each of them takes memory.
//!
//! Separate from that is what commands under way may add to ranges ([`UnderWay`]). It counts for a batch and not here: it is an upper
//! bound for each range, and far too high for a sum.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use lockkeeper_planted::{NodeLimit, Planted};

/// Units of work of the large commands under way, at the most: two batches in flight, and two that wait for them. A command that is more
/// work has its turn alone.
pub(super) const UNITS_UNDER_WAY_MAX: usize = 128 * 1024;
/// Bytes of the large commands under way, at the most: enough to keep two batches in flight, and little enough for a slow disk.
pub(super) const BYTES_UNDER_WAY_MAX: usize = 4 << 20;
/// A command that is more work than this needs a turn.
const SMALL_UNITS: usize = 64;
/// A command that has more bytes than this needs a turn.
const SMALL_BYTES: usize = 64 * 1024;
/// Places for commands that wait for their turn.
const PLACES: usize = 4096;
/// A command that waits takes a place, and one more for so many bytes of its own: 64 MiB in all.
const BYTES_PER_PLACE: usize = 16 * 1024;

/// The limits for large commands. Only a simulation has other ones than [`Self::REAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LargeCommandLimits {
    /// A command that is more units of work than this is large.
    pub small_units: usize,
    /// A command that has more bytes than this is large.
    pub small_bytes: usize,
    /// Units of work of the large commands under way.
    pub units_under_way: usize,
    /// Bytes of the large commands under way.
    pub bytes_under_way: usize,
    /// Places for commands that wait for their turn.
    pub places: usize,
}

impl LargeCommandLimits {
    /// The limits of every real node.
    pub const REAL: Self = Self {
        small_units: SMALL_UNITS,
        small_bytes: SMALL_BYTES,
        units_under_way: UNITS_UNDER_WAY_MAX,
        bytes_under_way: BYTES_UNDER_WAY_MAX,
        places: PLACES,
    };
}

impl Default for LargeCommandLimits {
    fn default() -> Self {
        Self::REAL
    }
}

/// The number of units of work by which commands that are under way may make ranges longer.
///
/// The table does not have their entries yet when the cost of a later command is computed, and has them when that command is applied: a
/// batch of commands on ranges that were empty would visit them all.
#[derive(Clone, Default)]
pub(super) struct UnderWay(Arc<AtomicUsize>);

/// The share of one command, until it is answered or given up.
pub(super) struct Growth {
    all: UnderWay,
    units: usize,
}

impl UnderWay {
    pub(super) fn units(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, units: usize) -> Growth {
        self.0.fetch_add(units, Ordering::Relaxed);
        Growth { all: self.clone(), units }
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.units, Ordering::Relaxed);
    }
}

/// What one command takes of the limits for large ones. A small one takes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CommandLoad {
    units: u32,
    bytes: u32,
    /// Places while it waits.
    places: u32,
}

impl CommandLoad {
    fn is_small(self) -> bool {
        (self.units == 0 && self.bytes == 0) || Planted::LargeNeedsNoTurn.is_on()
    }
}

fn permits(amount: usize) -> u32 {
    u32::try_from(amount).unwrap_or(u32::MAX)
}

/// The turns of commands that are much work, or have many bytes. Clones share them.
#[derive(Clone)]
pub(super) struct CommandTurns {
    limits: LargeCommandLimits,
    units: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

/// The turn of one command, until it is answered or given up. That of a small one is empty.
#[derive(Default)]
pub(super) struct CommandTurn {
    _units: Option<OwnedSemaphorePermit>,
    _bytes: Option<OwnedSemaphorePermit>,
}

impl CommandTurns {
    pub(super) fn new(limits: LargeCommandLimits) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        let LargeCommandLimits { units_under_way, bytes_under_way, places, .. } = limits;
        Self { limits, units: semaphore(units_under_way), bytes: semaphore(bytes_under_way), places: semaphore(places) }
    }

    /// What a command takes that is these units of work, and has these bytes in the log.
    pub(super) fn load(&self, units: usize, bytes: usize) -> CommandLoad {
        let LargeCommandLimits { small_units, small_bytes, units_under_way, bytes_under_way, places } = self.limits;
        let above =
            |small: usize, amount: usize, limit: usize| if amount > small { permits(amount.min(limit)) } else { 0 };
        CommandLoad {
            units: above(small_units, units, units_under_way),
            bytes: above(small_bytes, bytes, bytes_under_way),
            places: permits((1 + bytes / BYTES_PER_PLACE).min(places)),
        }
    }

    /// The turn of a command, if it is small or its turn is now. Large commands that wait already come first.
    pub(super) fn take(&self, load: CommandLoad) -> Option<CommandTurn> {
        if load.is_small() {
            return Some(CommandTurn::default());
        }
        let take = |of: &Arc<Semaphore>, permits, limit: NodeLimit| {
            let taken = Arc::clone(of).try_acquire_many_owned(permits);
            taken.inspect_err(|_| limit.note()).ok()
        };
        let units = take(&self.units, load.units, NodeLimit::LargeUnits)?;
        let bytes = take(&self.bytes, load.bytes, NodeLimit::LargeBytes)?;
        Some(CommandTurn { _units: Some(units), _bytes: Some(bytes) })
    }

    /// Waits for the turn of a command. There is none if too many wait already. Cancel safe: a command that is given up leaves its place.
    pub(super) async fn wait(&self, load: CommandLoad) -> Option<CommandTurn> {
        let place = Arc::clone(&self.places).try_acquire_many_owned(load.places);
        let _place = place.inspect_err(|_| NodeLimit::LargePlaces.note()).ok()?;
        // Always in this order, so that two commands never wait for each other.
        let units = Arc::clone(&self.units).acquire_many_owned(load.units).await.ok()?;
        let bytes = Arc::clone(&self.bytes).acquire_many_owned(load.bytes).await.ok()?;
        Some(CommandTurn { _units: Some(units), _bytes: Some(bytes) })
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, poll};

    use super::*;

    #[tokio::test]
    async fn small_commands_pass_those_that_wait() {
        let turns = CommandTurns::new(LargeCommandLimits::REAL);
        let alone = turns.take(turns.load(usize::MAX, 1)).expect("the first one");
        assert!(turns.take(turns.load(SMALL_UNITS + 1, 1)).is_none());
        assert!(turns.take(turns.load(SMALL_UNITS, SMALL_BYTES)).is_some());
        assert!(turns.take(turns.load(1, usize::MAX)).is_some(), "work and bytes are apart");

        drop(alone);
        assert!(turns.take(turns.load(SMALL_UNITS + 1, 1)).is_some());
    }

    #[tokio::test]
    async fn turns_come_in_order_and_those_that_are_given_up_are_passed_on() {
        let turns = CommandTurns::new(LargeCommandLimits::REAL);
        let half = turns.load(1, BYTES_UNDER_WAY_MAX / 2);
        let first = turns.take(half).expect("there is room");
        let _second = turns.take(half).expect("there is room");

        let mut large = Box::pin(turns.wait(turns.load(1, BYTES_UNDER_WAY_MAX)));
        let mut next = Box::pin(turns.wait(half));
        assert!(poll!(&mut large).is_pending() && poll!(&mut next).is_pending());
        drop(first);
        assert!(poll!(&mut large).is_pending() && poll!(&mut next).is_pending(), "the large one comes first");
        assert!(turns.take(half).is_none(), "and others do not pass it");

        drop(large);
        assert!(next.now_or_never().flatten().is_some());
    }

    #[tokio::test]
    async fn a_limited_number_and_a_limited_number_of_bytes_wait() {
        for (bytes, places) in [(1, PLACES), (BYTES_PER_PLACE * 64 - 1, PLACES / 64)] {
            let turns = CommandTurns::new(LargeCommandLimits::REAL);
            let load = turns.load(UNITS_UNDER_WAY_MAX, bytes);
            let _alone = turns.take(load).expect("the first one");
            let mut waiting: Vec<_> = (0..places).map(|_| Box::pin(turns.wait(load))).collect();
            for wait in &mut waiting {
                assert!(poll!(wait).is_pending());
            }
            assert!(turns.wait(load).now_or_never().expect("it is told at once").is_none());

            drop(waiting.pop());
            assert!(turns.wait(load).now_or_never().is_none(), "a place is free");
        }
    }
}
