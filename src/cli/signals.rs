//! The signals that end the program.

use std::{fs, io};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives the signals. While it exists they do not end the process by themselves.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if SIGHUP was ignored at the start, as by `nohup`: the program must then outlive its terminal.
    hangup: Option<Signal>,
}

/// A received signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReceivedSignal {
    /// SIGINT, as by Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGHUP: the terminal is gone, or a reload is requested.
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

    /// The next signal.
    pub(super) async fn next(&mut self) -> ReceivedSignal {
        // A stream of signals has no end, so `None` does not occur.
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => {
                    hangup.recv().await;
                }
                None => std::future::pending().await,
            }
        };

        tokio::select! {
            _ = self.interrupt.recv() => ReceivedSignal::Interrupt,
            _ = self.terminate.recv() => ReceivedSignal::Terminate,
            () = hangup => ReceivedSignal::Hangup,
        }
    }
}

/// From now on a write beyond the limit of the size of files (`ulimit -f`) fails with an error that says so. Otherwise the kernel ends the
/// process with SIGXFSZ, without a word.
///
/// Needs a runtime. The handler stays for as long as the process lives; a command that it starts has the kernel's default again.
pub(super) fn fail_beyond_file_limit() -> io::Result<()> {
    drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
    Ok(())
}

/// The signals that this process ignores, signal n as bit n - 1. 0 if that cannot be determined.
pub(super) fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

impl ReceivedSignal {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
            Self::Hangup => "SIGHUP",
        }
    }

    /// The exit code of a process that the signal ended, by the convention of shells.
    pub(super) fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 128 + 2,
            Self::Terminate => 128 + 15,
            Self::Hangup => 128 + 1,
        }
    }
}
