//! Accepting connections, and handling errors of `accept`.

use std::{io, net::SocketAddr, time::Duration};

use rustix::io::Errno;
use tokio::time::sleep;

use super::{Listen, complaints::Complaints, places::Places};

/// Pause before the next attempt when the operating system lacks resources for a connection.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);

/// The next connection, and the address that opened it. Never fails: an error of one connection does not affect others, and when file
/// descriptors are short, another connection is closed.
pub(super) async fn next<L: Listen>(
    listener: &mut L,
    places: &Places,
    complaints: &Complaints,
) -> (L::Stream, SocketAddr) {
    loop {
        let error = match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => error,
        };
        if let Some(count) = complaints.count() {
            tracing::warn!(count, %error, "cannot accept a connection");
        }
        if is_shortage(&error) {
            places.make_room();
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
    use crate::connection::Watched;

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
    async fn a_shortage_is_waited_out_and_somebody_goes() {
        let places = Places::new(16);
        let idle = places.admit([127, 0, 0, 1].into(), Watched::new(1));
        let began = Instant::now();
        let mut listener = Failing([Errno::MFILE, Errno::CONNABORTED, Errno::NFILE].into());
        next(&mut listener, &places, &Complaints::default()).await;
        assert_eq!(began.elapsed(), 2 * SHORTAGE_PAUSE);
        assert_eq!(idle.0.ordered().await, crate::places::Order::GiveWay);
    }
}
