//! Accepting connections, and handling errors of `accept`.

use std::{io, net::SocketAddr, time::Duration};

use rustix::io::Errno;
use tokio::time::sleep;

use super::{Listen, log_throttle::LogThrottle, slots::Slots};

/// Pause before the next attempt when the operating system lacks resources for a connection.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);

/// The next connection, and the address that opened it. Never fails: an error of one connection does not affect others, and when file
/// descriptors are short, another connection is closed.
pub(super) async fn next<L: Listen>(
    listener: &mut L,
    slots: &Slots,
    throttle: &LogThrottle,
) -> (L::Stream, SocketAddr) {
    loop {
        let error = match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => error,
        };
        if let Some(count) = throttle.count() {
            tracing::warn!(count, %error, "cannot accept a connection");
        }
        if is_shortage(&error) {
            slots.make_room();
            sleep(SHORTAGE_PAUSE).await;
        }
    }
}

/// Whether the error would occur again at once. Otherwise the other side broke off the connection, and the next one may succeed.
fn is_shortage(error: &io::Error) -> bool {
    const SHORTAGES: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    const BROKEN_OFF: [Errno; 3] = [Errno::CONNABORTED, Errno::CONNRESET, Errno::PERM];
    match Errno::from_io_error(error) {
        Some(errno) => SHORTAGES.contains(&errno) || !BROKEN_OFF.contains(&errno),
        // Not an error of the operating system: for example, a simulated network that is down.
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::{
        io::{DuplexStream, duplex},
        time::Instant,
    };

    use super::*;
    use crate::{Refusals, connection::ReadState};

    struct Failing(VecDeque<Errno>);

    impl Listen for Failing {
        type Stream = DuplexStream;

        async fn accept(&mut self) -> io::Result<(DuplexStream, SocketAddr)> {
            match self.0.pop_front() {
                Some(errno) => Err(errno.into()),
                None => Ok((duplex(1).0, ([127, 0, 0, 1], 1).into())),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_shortage_closes_a_connection_and_is_retried() {
        let slots = Slots::new(16, Refusals::default());
        let idle = slots.admit([127, 0, 0, 1].into(), ReadState::new(1));
        let began = Instant::now();
        let mut listener = Failing([Errno::MFILE, Errno::CONNABORTED, Errno::NFILE].into());
        next(&mut listener, &slots, &LogThrottle::default()).await;
        assert_eq!(began.elapsed(), 2 * SHORTAGE_PAUSE);
        assert_eq!(idle.0.ordered().await, crate::slots::Order::GiveWay);
    }
}
