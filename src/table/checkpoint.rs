//! A copy of the table right after one entry, for a caller that waits for that entry.
//!
//! Copies of different nodes can be compared only at one entry, and each node applies it at a time of its own. The copy shares its maps
//! with the table, so it costs as little as the one for a snapshot; an entry for which nobody waits costs one look at a number.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::oneshot;

use lockkeeper_machine::Machine;

/// No caller waits.
const NONE: u64 = u64::MAX;

/// The entry for which a caller waits, and where its copy goes.
#[derive(Debug)]
pub(super) struct Checkpoint {
    index: AtomicU64,
    caller: Mutex<Option<oneshot::Sender<Machine>>>,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self { index: AtomicU64::new(NONE), caller: Mutex::default() }
    }
}

impl Checkpoint {
    /// Waits for this entry; a caller that waits already gets nothing. Call it while no entry can be applied.
    pub(super) fn wait_for(&self, index: u64) -> oneshot::Receiver<Machine> {
        let (caller, copy) = oneshot::channel();
        *self.caller() = Some(caller);
        self.index.store(index, Ordering::Release);
        copy
    }

    /// The table is now as it is after this entry.
    pub(super) fn applied(&self, index: u64, machine: &Machine) {
        let awaited = self.index.load(Ordering::Acquire);
        if index < awaited {
            return;
        }

        self.index.store(NONE, Ordering::Release);
        let caller = self.caller().take();
        // A snapshot may have led past the entry: then the caller is dropped, and learns it so.
        if let Some(caller) = caller
            && index == awaited
        {
            // An error means that the caller has gone.
            let _ = caller.send(machine.clone());
        }
    }

    /// No code panics while it holds this lock.
    fn caller(&self) -> MutexGuard<'_, Option<oneshot::Sender<Machine>>> {
        self.caller.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_of_the_entry_that_was_asked_for_or_there_is_none() {
        let checkpoint = Checkpoint::default();
        let machine = Machine::default();
        checkpoint.applied(1, &machine);

        let mut exact = checkpoint.wait_for(5);
        checkpoint.applied(4, &machine);
        assert_eq!(exact.try_recv().err(), Some(oneshot::error::TryRecvError::Empty));
        checkpoint.applied(5, &machine);
        assert!(exact.try_recv().is_ok());

        let mut passed = checkpoint.wait_for(7);
        checkpoint.applied(8, &machine);
        assert_eq!(passed.try_recv().err(), Some(oneshot::error::TryRecvError::Closed));
        checkpoint.applied(9, &machine);
    }
}
