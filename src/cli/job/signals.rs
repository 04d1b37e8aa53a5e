//! The signals that are forwarded to the command.

use std::{future::poll_fn, io, task::Poll};

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

use crate::cli::signals::ignored;

/// Signals that request an action of the program. Not those of job control, which the kernel sends to all processes
/// concerned.
const PASSED_ON: [(Signal, SignalKind); 6] = [
    (Signal::INT, SignalKind::interrupt()),
    (Signal::TERM, SignalKind::terminate()),
    (Signal::HUP, SignalKind::hangup()),
    (Signal::QUIT, SignalKind::quit()),
    (Signal::USR1, SignalKind::user_defined1()),
    (Signal::USR2, SignalKind::user_defined2()),
];

/// Receives the signals.
#[derive(Debug)]
pub(in crate::cli) struct JobSignals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl JobSignals {
    /// From now on the signals no longer end this process. A signal that was ignored at start (`nohup`) stays ignored,
    /// for the command too.
    pub(in crate::cli) fn new() -> io::Result<Self> {
        let ignored = ignored();
        let mut streams = Vec::new();
        for (signal, kind) in PASSED_ON {
            if ignored & 1 << (signal.as_raw() - 1) == 0 {
                streams.push((signal, unix::signal(kind)?));
            }
        }
        Ok(Self { streams })
    }

    /// The next signal. Cancel safe.
    pub(in crate::cli) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            let mut arrived = self
                .streams
                .iter_mut()
                .filter_map(|(signal, stream)| stream.poll_recv(context).is_ready().then_some(*signal));
            arrived.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
