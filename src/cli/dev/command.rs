//! The command that has a cluster to itself.

use std::{
    env,
    ffi::OsString,
    io::{self, IsTerminal as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    time::{self, Instant},
};

use super::{report, say};
use crate::{
    cli::signals::{Ending, Signals},
    local::LocalCluster,
};

const EXIT_NOT_FOUND: u8 = 127;
const EXIT_NOT_RUN: u8 = 126;

/// How long a command that was told to end may take before it is killed.
const END_GRACE: Duration = Duration::from_secs(10);

/// Runs it to its end; its exit code.
pub(super) async fn run(words: &[String], cluster: &mut LocalCluster, signals: Signals, program: &Path) -> u8 {
    let [name, arguments @ ..] = words else { return 0 };
    let mut command = Command::new(name);
    command.args(arguments).env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(",")).kill_on_drop(true);
    command.env("PATH", with_program_first(program, env::var_os("PATH").unwrap_or_default()));
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            say(format_args!("error: cannot run {name:?}: {error}"));
            return if error.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_RUN };
        }
    };
    tokio::select! {
        ended = until_ended(child, signals) => match ended {
            Ok(status) => exit_code(status),
            Err(error) => {
                say(format_args!("error: cannot wait for {name:?}: {error}"));
                EXIT_NOT_RUN
            }
        },
        never = report::deaths(cluster) => match never {},
    }
}

/// The search path of the command: with this very program before any other of its name.
fn with_program_first(program: &Path, path: OsString) -> OsString {
    let folder = program.parent().map(PathBuf::from);
    // It fails on a colon in the folder's name, which no search path can express.
    env::join_paths(folder.into_iter().chain(env::split_paths(&path))).unwrap_or(path)
}

/// Hands signals on, and kills the command if it does not end [`END_GRACE`] after a SIGTERM or a SIGHUP.
async fn until_ended(mut child: Child, mut signals: Signals) -> io::Result<ExitStatus> {
    let mut kill_at = None;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            ending = signals.next() => {
                hand_on(ending, &child);
                if ending != Ending::Interrupt {
                    kill_at.get_or_insert(Instant::now() + END_GRACE);
                }
            }
            () = time::sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                say("the command does not end: killing it");
                child.start_kill()?;
                return child.wait().await;
            }
        }
    }
}

fn hand_on(ending: Ending, child: &Child) {
    let signal = match ending {
        // A terminal has sent it to the command too. What it does then is its own affair: a shell, say, goes on.
        Ending::Interrupt if io::stdin().is_terminal() => return,
        Ending::Interrupt => Signal::INT,
        Ending::Terminate => Signal::TERM,
        Ending::Hangup => Signal::HUP,
    };
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // That it has just ended is no error.
        let _ = kill_process(pid, signal);
    }
}

/// As a shell gives it.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(EXIT_NOT_RUN)
}
