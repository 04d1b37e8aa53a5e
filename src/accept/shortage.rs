//! Errors of accept(2), and what to do when file descriptors are short.

use std::{io, time::Duration};

use rustix::io::Errno;
use tokio::time::sleep;

use super::Slots;

/// The pause before the next attempt when the operating system lacks resources for a connection.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);

impl Slots {
    /// Logs that a connection could not be accepted. When file descriptors are short, also closes another connection and
    /// waits shortly, because the next attempt would fail at once.
    pub async fn note_failed_accept(&self, error: &io::Error) {
        if let Some(count) = self.failed_accepts().count() {
            tracing::warn!(count, %error, "cannot accept a connection");
        }
        if is_shortage(error) {
            self.make_room();
            sleep(SHORTAGE_PAUSE).await;
        }
    }
}

/// Whether the error would occur again at once. If not, the other side broke off the connection, and the next one may
/// succeed.
fn is_shortage(error: &io::Error) -> bool {
    const SHORTAGES: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    const BROKEN_OFF: [Errno; 3] = [Errno::CONNABORTED, Errno::CONNRESET, Errno::PERM];
    match Errno::from_io_error(error) {
        Some(errno) => SHORTAGES.contains(&errno) || !BROKEN_OFF.contains(&errno),
        // The error does not come from the operating system. For example, a simulated network is down.
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::{ReadState, Refusals, TaskOrder};

    #[tokio::test(start_paused = true)]
    async fn a_shortage_closes_a_connection_and_is_retried() {
        let slots = Slots::new(16, Refusals::default());
        let idle = slots.admit([127, 0, 0, 1].into(), ReadState::new(1));
        let began = Instant::now();
        for errno in [Errno::MFILE, Errno::CONNABORTED, Errno::NFILE] {
            slots.note_failed_accept(&errno.into()).await;
        }
        assert_eq!(began.elapsed(), 2 * SHORTAGE_PAUSE);
        assert_eq!(idle.0.ordered().await, TaskOrder::GiveWay);
    }
}
