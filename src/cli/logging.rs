//! What a node says of itself, and how it ends when it is broken. To stderr: who runs it decides where that goes.

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

/// Starts the log of a node. `filter` has been checked with the rest of the configuration.
pub(super) fn start(node_id: u64, filter: &str) {
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(|| Stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_timer(Prefix { node_id })
        .init();
}

/// Where the log goes. Its partition may be full, or its reader gone: a node serves on without a log, rather than end for it, which it
/// would, since who formats the log reports an error of it to stderr and panics when that fails too.
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

/// Makes a panic, in whatever thread, the end of the process.
///
/// A panic is our own mistake: what it left behind may be broken, and a node that goes on would serve that. The others have
/// the log; this one starts again from what is on its disk. A panic of sled is about its files: it ends the process like any damage.
pub(super) fn abort_on_panic() {
    panic::set_hook(Box::new(|panic| {
        if let Some(explained) = log::explain_panic(panic) {
            let _ = writeln!(io::stderr(), "lockkeeper: {explained}");
            process::exit(Exit::CannotServe.code().into());
        }
        // Not by `tracing`: the panic may come from within it. That stderr is gone is no reason to go on.
        let trace = Backtrace::force_capture();
        let _ = writeln!(io::stderr(), "lockkeeper: broken, and ends at once: {panic}\n{trace}");
        process::abort();
    }));
}

/// Each line begins with the time and the node, so that the logs of several nodes can be read as one.
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

    /// Runs itself once more, as the process that panics: in a thread whose panic nobody would notice.
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
