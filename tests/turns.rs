//! Tests that each need the whole machine take turns. Others, which wait most of the time, run beside them.

use tokio::sync::{Mutex, MutexGuard};

static WHOLE_MACHINE: Mutex<()> = Mutex::const_new(());

/// Waits for the turn of a test that keeps all processors busy, or whose leases are short. It lasts until the guard is dropped.
pub(crate) async fn whole_machine() -> MutexGuard<'static, ()> {
    WHOLE_MACHINE.lock().await
}
