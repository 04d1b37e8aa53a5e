//! The signals that ask a program to end.

use std::{fs, io};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for them. While it lives they no longer end the process by themselves.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None`: whoever started the program wants it to outlive its terminal, as `nohup` does.
    hangup: Option<Signal>,
}

/// One that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// SIGINT, as by Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal is gone, or somebody takes it for a request to reload something.
    Hangup,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let hangup = SignalKind::hangup();
        let is_ignored = ignored() & 1 << (hangup.as_raw_value() - 1) != 0;
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: if is_ignored { None } else { Some(signal(hangup)?) },
        })
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Ending {
        // A stream of signals has no end, so `None` does not occur.
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Ending::Interrupt,
            _ = self.terminate.recv() => Ending::Terminate,
            () = hangup => Ending::Hangup,
        }
    }
}

/// The signals that this process ignores, signal n as bit n - 1. None, where that cannot be found out.
pub(super) fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

impl Ending {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        }
    }

    /// That of a process that the signal ended, as shells give it.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 128 + 2,
            Self::Terminate => 128 + 15,
            Self::Hangup => 128 + 1,
        }
    }
}
