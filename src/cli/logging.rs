//! The log of a node, and its abort on a panic. Both write to stderr, which the operator can redirect.

use std::{
    backtrace::Backtrace,
    fmt,
    io::{self, IsTerminal as _, Write as _},
    panic, process,
};

use tracing_subscriber::{
    EnvFilter,
    fmt::{
        format::Writer,
        time::{FormatTime, SystemTime},
    },
};

use super::exit::Exit;
use crate::raft::log;

/// Starts the log of a node. `filter` was checked with the rest of the configuration.
pub(super) fn start(node_id: u64, filter: &str) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(|| Stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_timer(Prefix { node_id })
        .init();
}

/// Writes the log and ignores errors. If the disk of the log is full or its reader is gone, the node must go on without
/// a log; the formatter would report an error to stderr and panic if that fails too.
struct Stderr;

impl io::Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a panic in any thread abort the process.
///
/// A panic is a bug in this program: the state that it leaves may be corrupt, and a node that goes on would serve it.
/// The other nodes have the log; this one restarts from its disk. A panic of sled is about its files: it ends the
/// process like any other damage.
pub(super) fn abort_on_panic() {
    panic::set_hook(Box::new(|panic| {
        if let Some(explained) = log::explain_panic(panic) {
            let _ = writeln!(io::stderr(), "lockkeeper: {explained}");
            process::exit(Exit::CannotServe.code().into());
        }
        // Not with `tracing`, which may be the origin of the panic. A closed stderr is no reason to go on.
        let trace = Backtrace::force_capture();
        let _ = writeln!(io::stderr(), "lockkeeper: internal error, aborting: {panic}\n{trace}");
        process::abort();
    }));
}

/// Each line begins with the time and the node id, so that the logs of several nodes can be merged.
struct Prefix {
    node_id: u64,
}

impl FormatTime for Prefix {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        SystemTime.format_time(writer)?;
        write!(writer, " node={}", self.node_id)
    }
}

#[cfg(test)]
mod tests {
    use std::{env, os::unix::process::ExitStatusExt as _, process::Command};

    use super::*;

    const CHILD: &str = "LOCKKEEPER_TEST_PANICS";

    /// Runs itself as a child process that panics, in a thread that nobody joins in time.
    #[test]
    fn a_panic_in_any_thread_ends_the_process() {
        if env::var_os(CHILD).is_some() {
            abort_on_panic();
            let _ = std::thread::spawn(|| panic!("this is not as it should be")).join();
            return;
        }
        let name = "cli::logging::tests::a_panic_in_any_thread_ends_the_process";
        let test = Command::new(env::current_exe().unwrap()).args(["--exact", name]).env(CHILD, "1").output().unwrap();
        assert_eq!(test.status.signal(), Some(6), "{test:?}");
        let stderr = String::from_utf8_lossy(&test.stderr);
        assert!(stderr.contains("this is not as it should be"), "{stderr}");
    }
}
