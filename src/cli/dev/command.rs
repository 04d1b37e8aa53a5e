//! The command that `lockkeeper dev` runs beside its cluster.

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
    cli::{
        complain,
        signals::{ReceivedSignal, Signals},
    },
    local::LocalCluster,
};

/// As shells end for a command that they do not find, and for one that they cannot run.
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_NOT_RUN: u8 = 126;

/// How long a command may take to end after SIGTERM before it is killed.
const END_GRACE: Duration = Duration::from_secs(10);

/// Runs the command to its end and returns its exit code.
pub(super) async fn run(command_line: &[String], cluster: &mut LocalCluster, signals: Signals, program: &Path) -> u8 {
    let [name, arguments @ ..] = command_line else { return 0 };
    let mut command = Command::new(name);
    command.args(arguments).envs(report::variables(cluster)).kill_on_drop(true);
    command.env("PATH", with_program_first(program, env::var_os("PATH").unwrap_or_default()));

    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            complain(&format!("cannot run {name:?}: {error}"));
            return if error.kind() == io::ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_RUN };
        }
    };

    tokio::select! {
        ended = until_ended(child, signals) => match ended {
            Ok(status) => exit_code(status),
            Err(error) => {
                complain(&format!("cannot wait for {name:?}: {error}"));
                EXIT_NOT_RUN
            }
        },
        never = report::deaths(cluster) => match never {},
    }
}

/// The search path of the command, with the directory of this program first.
fn with_program_first(program: &Path, path: OsString) -> OsString {
    let folder = program.parent().map(PathBuf::from);
    // Fails if the directory's name contains a colon, which a search path cannot express.
    env::join_paths(folder.into_iter().chain(env::split_paths(&path))).unwrap_or(path)
}

/// Forwards signals, and kills the command if it does not end within [`END_GRACE`] after SIGTERM or SIGHUP.
async fn until_ended(mut child: Child, mut signals: Signals) -> io::Result<ExitStatus> {
    let mut kill_at = None;

    loop {
        tokio::select! {
            status = child.wait() => return status,
            ending = signals.next() => {
                hand_on(ending, &child);
                // Many programs ask again at an interrupt, or go on after it: only these two signals start the time.
                if ending != ReceivedSignal::Interrupt {
                    kill_at.get_or_insert(Instant::now() + END_GRACE);
                }
            }
            () = time::sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                say(format_args!("the command has not ended within {} s of the signal: killing it", END_GRACE.as_secs()));
                child.start_kill()?;
                return child.wait().await;
            }
        }
    }
}

fn hand_on(ending: ReceivedSignal, child: &Child) {
    let signal = match ending {
        // A terminal sends SIGINT to the command as well, which decides for itself: a shell, for example, goes on.
        ReceivedSignal::Interrupt if io::stdin().is_terminal() => return,
        ReceivedSignal::Interrupt => Signal::INT,
        ReceivedSignal::Terminate => Signal::TERM,
        ReceivedSignal::Hangup => Signal::HUP,
    };
    if let Some(pid) = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // The process may have ended just now: no error.
        let _ = kill_process(pid, signal);
    }
}

/// The exit code by the convention of shells: 128 and the signal's number after a signal.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(EXIT_NOT_RUN)
}
