//! `lockkeeper lock` runs a command while a lock is held.
//!
//! The command and all its descendants are stopped *before* the lock can be granted to another session. Without contact
//! to the cluster, they get SIGTERM while a fifth of the TTL is left, and are killed just before the deadline. If an
//! operator revokes the grant, they get SIGTERM at once, and have until the deadline. `job` implements this.

use std::{ffi::OsString, future::IntoFuture as _, time::Duration};

use clap::Args;
use tokio::time::timeout;

use super::{
    ClusterArguments, Exit, Failure, complain,
    job::{self, EndedCommand, JobSignals},
    show, traces, waiting,
    wanted::WantedLocks,
};
use crate::{
    client::{Error, Guard, Refusal, Session, SessionOptions},
    machine::{self, LockName, Wait},
};

/// How long the release may delay the end of the program. After that, the session expires.
const GIVE_BACK_MAX: Duration = Duration::from_secs(5);

/// Runs a command while holding one lock, or several at once, all or nothing.
///
/// The command finds the fencing token in LOCKKEEPER_TOKEN, and the names, sorted and separated by blanks, in
/// LOCKKEEPER_LOCK; a blank, a backslash or a control character in a name is escaped as in "\u{20}". The exit code is
/// that of the command; 11: the lock was lost and the command was stopped; 10: the lock was not acquired in time.
///
/// The command and all its descendants are dead before the lock can be granted to another session. Background processes
/// that it leaves behind are stopped before the lock is released.
#[derive(Args, Debug)]
pub(super) struct RunLocked {
    #[command(flatten)]
    wanted: WantedLocks,
    /// Session TTL: how long the locks stay held when this process dies, and how long an outage of the cluster the
    /// command survives
    #[arg(long, value_parser = super::arguments::duration, default_value = "10s", value_name = "TIME")]
    ttl: Duration,
    /// Label of the session, for people [default: host, process id, command]
    #[arg(long)]
    label: Option<String>,
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunLocked {
    /// Makes the command for `elect`.
    pub(super) fn new(
        wanted: WantedLocks,
        ttl: Duration,
        label: Option<String>,
        cluster: ClusterArguments,
        command: Vec<OsString>,
    ) -> Self {
        Self { wanted, ttl, label, cluster, command }
    }

    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut signals = JobSignals::new()?;
        let wanted = self.wanted.acquire().map_err(Error::from)?;

        let client = self.cluster.client()?;
        let session = tokio::select! {
            session = client.open(self.session_options()) => session?,
            signal = signals.next() => return Ok(Exit::Signal(signal.as_raw())),
        };

        let held = tokio::select! {
            held = waiting::shown(&client, &session, &self.wanted.names, acquire(&session, wanted)) => held.map_err(Failure::from),
            // The wait ends with its session.
            signal = signals.next() => Err(Failure::new(Exit::Signal(signal.as_raw()), "")),
        };

        let held = match held {
            Ok(held) => held,
            Err(failure) => {
                close(session).await;
                return Err(failure);
            }
        };
        // The trace is about the lock, not about the command.
        traces::end();

        match self.run_command(&held, &mut signals).await {
            Ok(EndedCommand { exit, is_over: false }) => {
                leave_to_expire(held, session);
                Ok(exit)
            }
            Ok(EndedCommand { exit, is_over: true }) => give_back(held, session, Ok(exit)).await,
            Err(failure) => give_back(held, session, Err(failure)).await,
        }
    }

    fn session_options(&self) -> SessionOptions {
        let label = || SessionOptions::label_of(self.command.first().unwrap_or(&OsString::new()));
        SessionOptions { ttl: self.ttl, label: self.label.clone().unwrap_or_else(label) }
    }

    async fn run_command(&self, held: &Guard, signals: &mut JobSignals) -> Result<EndedCommand, Failure> {
        let token = held.token().0.to_string();
        let environment = [("LOCKKEEPER_TOKEN", token), ("LOCKKEEPER_LOCK", names(held.names()))];
        job::run_while_held(held, signals, &self.command, &environment).await
    }
}

fn acquire(session: &Session, wanted: machine::Acquire) -> impl Future<Output = Result<Guard, Error>> + use<> {
    let acquire = session.acquire_wants(wanted.wants().to_vec());
    let acquire = acquire.lock_delay(Duration::from_millis(wanted.lock_delay_ms.into()));
    let acquire = match wanted.wait {
        Wait::Never => acquire.no_wait(),
        Wait::Millis(ms) => acquire.wait_at_most(Duration::from_millis(ms)),
        Wait::Forever => acquire.wait_forever(),
    };
    acquire.into_future()
}

/// Leaves the lock held until the session expires, after the end of this process: what still runs might use what the lock protects.
fn leave_to_expire(held: Guard, session: Session) {
    if held.loss().is_none() {
        let left = show::duration(held.remaining());
        complain(&format!("the lock is not released for their sake; it opens when the session expires, in {left}"));
    }
    // A drop would release the lock and close the session.
    std::mem::forget((held, session));
}

/// Releases the lock and closes the session, also if the command could not be started.
async fn give_back(held: Guard, session: Session, outcome: Result<Exit, Failure>) -> Result<Exit, Failure> {
    let released = timeout(GIVE_BACK_MAX, held.release()).await;

    let outcome = match released {
        Ok(Ok(())) => outcome,
        // The command ended by itself, but the lock was lost before.
        Ok(Err(error)) if was_lost(&error) && !matches!(outcome, Ok(Exit::Lost) | Err(_)) => {
            complain(&format!("the lock was lost while the command ran: {error}"));
            Ok(Exit::Lost)
        }
        Ok(Err(error)) if was_lost(&error) => outcome,
        Ok(Err(error)) => {
            complain(&format!("the lock was not released; it opens when the session expires: {error}"));
            return outcome;
        }
        Err(_) => {
            complain("the lock was not released in time; it opens when the session expires");
            return outcome;
        }
    };

    close(session).await;
    outcome
}

fn was_lost(error: &Error) -> bool {
    match error {
        Error::Lost(_) => true,
        Error::Refused(refused) => refused.reason == Refusal::NotHeld,
        Error::Invalid(_)
        | Error::Endpoint(_)
        | Error::NoAuthorities(_)
        | Error::BearerToken
        | Error::TokenFile { .. }
        | Error::NotAcquired(_)
        | Error::NotEnsured { .. }
        | Error::NoCluster { .. }
        | Error::Unknown { .. }
        | Error::Malformed { .. } => false,
    }
}

/// Best effort: otherwise the session expires.
async fn close(session: Session) {
    let _ = timeout(GIVE_BACK_MAX, session.close()).await;
}

/// The value of LOCKKEEPER_LOCK.
fn names(names: &[LockName]) -> String {
    let names: Vec<String> = names.iter().map(|name| escape(name.as_str())).collect();
    names.join(" ")
}

fn escape(name: &str) -> String {
    let escape = |c: char| {
        let is_special = c.is_whitespace() || c.is_control() || c == '\\';
        if is_special { c.escape_unicode().to_string() } else { c.to_string() }
    };
    name.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_can_be_told_apart() {
        let name = |name| LockName::new(name).unwrap();
        assert_eq!(names(&[name("a/b"), name("c d\n"), name("\\ö")]), "a/b c\\u{20}d\\u{a} \\u{5c}ö");
    }
}
