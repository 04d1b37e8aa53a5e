//! The exit codes of the program, and all its failures.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | success: the token of `check` holds the lock, `status` found a leader that serves, all properties of `chaos run` and `chaos check` hold |
//! | 1 | an error without a code of its own |
//! | 1 | `status` found a leader that cannot commit, `doctor` a problem, `snapshot` a damaged file, or `audit` a broken rule |
//! | 2 | wrong usage or an invalid argument, such as a directory that cannot be written |
//! | 10 | not acquired: busy, or not in time; or the token of `check` does not hold the lock |
//! | 11 | the lock or the session is lost, or is no longer held |
//! | 12 | no node was reachable, or none knew a leader; nothing happened; or the cluster of `dev` did not start |
//! | 13 | the cluster refused the request |
//! | 14 | no answer in time; the request may have taken effect |
//! | 20 | `serve`: the node cannot start or cannot continue now; another start may succeed |
//! | 21 | `serve`: one of its addresses is in use by another program |
//! | 22 | `serve`: the shutdown did not complete in time |
//! | 23 | `serve`, `recover`: an entry of the log cannot be applied; it stopped before that entry |
//! | 24 | `serve`: the cluster has removed this node, or does not admit it |
//! | 25 | `serve`: the node's data are lost, damaged, older than they were, another node's, or of another version |
//! | 30 | `chaos run`, `chaos check`: a property is violated |
//! | 31 | `chaos run`, `chaos check`: a property is undecided, or there was no evidence for it |
//! | 126 | `lock`, `elect`, `dev`: the command could not be run; 127: it was not found |
//! | 128 + n | terminated by signal n, or the command was |
//!
//! `lock`, `elect` and `dev` return any other exit code of their command. The command may use the codes above as well:
//! to tell them apart, use other codes in the command, or read the message on stderr.
//!
//! A supervisor starts a node again after 20, 21, 22 and a signal. After 2, 23, 24 and 25 each further start ends in the same way, until
//! somebody has changed something: for systemd, `RestartPreventExitStatus=2 23 24 25`.

use std::{fmt, io, path::Path, process::ExitCode};

use crate::{
    client,
    local::{EXIT_ADDRESS_IN_USE, EXIT_REMOVED},
    raft::log::EXIT_FAILED,
};

/// The exit codes, at the end of `--help`.
pub(crate) const HELP: &str = "\
Exit codes:
    0  success; check: held; status: a leader serves; chaos: all properties hold
    1  an error without a code of its own; status: the leader cannot commit;
       doctor: there is a problem; snapshot: the file is damaged;
       audit: a line breaks a rule
    2  wrong usage or an invalid argument
   10  not acquired: busy, or not in time; check: not held
   11  the lock or the session is lost, or is no longer held
   12  no node was reachable, or none knew a leader; nothing happened;
       dev: the cluster did not start
   13  the cluster refused the request
   14  no answer in time; the request may have taken effect
   20  serve: the node cannot start or cannot continue now
   21  serve: one of its addresses is in use by another program
   22  serve: the shutdown did not complete in time
   23  serve, recover: an entry of the log cannot be applied
   24  serve: the cluster has removed this node, or does not admit it
   25  serve: the node's data are lost, damaged or another node's
       After 2, 23, 24 and 25 another start of the node ends the same way.
   30  chaos: a property is violated
   31  chaos: a property is undecided, or there was no evidence for it
  126  lock, elect, dev: the command could not be run; 127: it was not found
128+n  terminated by signal n, or the command was
lock, elect and dev return any other exit code of their command.";

/// The outcome of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    Success,
    Error,
    Usage,
    NotAcquired,
    Lost,
    NoCluster,
    Refused,
    Unknown,
    CannotServe,
    AddressInUse,
    NotDrained,
    Unapplied,
    /// The cluster has removed this node, or does not admit it.
    Removed,
    /// The data of the node cannot be used by this node, or by this program.
    DataUnusable,
    Violated,
    Undecided,
    CannotRun,
    NotFound,
    /// The command's own code.
    Code(u8),
    /// Terminated by this signal.
    Signal(i32),
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Error => 1,
            Self::Usage => 2,
            Self::NotAcquired => 10,
            Self::Lost => 11,
            Self::NoCluster => 12,
            Self::Refused => 13,
            Self::Unknown => 14,
            Self::CannotServe => EXIT_FAILED,
            Self::AddressInUse => EXIT_ADDRESS_IN_USE,
            Self::NotDrained => 22,
            Self::Unapplied => 23,
            Self::Removed => EXIT_REMOVED,
            Self::DataUnusable => 25,
            Self::Violated => 30,
            Self::Undecided => 31,
            Self::CannotRun => 126,
            Self::NotFound => 127,
            Self::Code(code) => code,
            Self::Signal(signal) => u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128)),
        }
    }
}

impl Exit {
    /// The exit code for a path argument that failed: a usage error if the path itself is wrong.
    pub(crate) fn for_path(error: &io::Error) -> Self {
        use io::ErrorKind;
        let wrong = [
            ErrorKind::NotFound,
            ErrorKind::AlreadyExists,
            ErrorKind::PermissionDenied,
            ErrorKind::NotADirectory,
            ErrorKind::IsADirectory,
            ErrorKind::ReadOnlyFilesystem,
            ErrorKind::InvalidFilename,
        ];
        if wrong.contains(&error.kind()) { Self::Usage } else { Self::Error }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// Why a command failed. An empty message is not printed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    /// If no node answered: the message without the error of the last node. The errors of all nodes are added to it.
    pub(crate) without_last: Option<String>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, message: message.to_string(), without_last: None }
    }

    /// No node could answer. The message is completed by what each node says.
    pub(crate) fn unanswered(exit: Exit, message: impl fmt::Display, without_last: impl fmt::Display) -> Self {
        Self { without_last: Some(without_last.to_string()), ..Self::new(exit, message) }
    }

    /// The failure for a path argument that cannot be written.
    pub(crate) fn for_path(path: &Path, error: &io::Error) -> Self {
        Self::new(Exit::for_path(error), format_args!("cannot write {}: {error}: choose another path", path.display()))
    }

    /// For a stream of output, such as a list in pages or a watch, which cannot be written. If its reader has closed it, as in
    /// `lockkeeper list | head -1`, the command has done what was wanted.
    ///
    /// Only a stream may end so: the exit code of another command tells what it found or did, whether that is read or not.
    pub(crate) fn for_stream(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::new(Exit::Success, "") } else { error.into() }
    }

    /// For a command that uses a grant: a grant that is not held was lost.
    pub(crate) fn for_holder(error: client::Error) -> Self {
        let not_held = matches!(&error, client::Error::Refused(refused) if refused.reason == client::Refusal::NotHeld);
        if not_held { Self::new(Exit::Lost, error) } else { error.into() }
    }
}

impl From<client::Error> for Failure {
    fn from(error: client::Error) -> Self {
        let exit = match &error {
            client::Error::Invalid(_)
            | client::Error::Endpoint(_)
            | client::Error::NoAuthorities(_)
            | client::Error::BearerToken
            | client::Error::TokenFile { .. } => Exit::Usage,
            // The cluster knows limits that this program does not.
            client::Error::Refused(refused) if refused.reason == client::Refusal::InvalidArgument => Exit::Usage,
            client::Error::Refused(_) => Exit::Refused,
            client::Error::NotAcquired(_) => Exit::NotAcquired,
            client::Error::Lost(_) | client::Error::NotEnsured { .. } => Exit::Lost,
            client::Error::NoCluster { .. } => Exit::NoCluster,
            client::Error::Unknown { .. } => Exit::Unknown,
            client::Error::Malformed { .. } => Exit::Error,
        };

        match &error {
            client::Error::NoCluster { .. } => {
                let without_last =
                    "no node of the cluster could answer before the deadline of the call; nothing was changed";
                Self::unanswered(exit, &error, without_last)
            }
            client::Error::Unknown { .. } => {
                let without_last = "no answer in time; the request may still take effect: look before trying again";
                Self::unanswered(exit, &error, without_last)
            }
            client::Error::Invalid(_)
            | client::Error::Endpoint(_)
            | client::Error::NoAuthorities(_)
            | client::Error::BearerToken
            | client::Error::TokenFile { .. }
            | client::Error::Refused(_)
            | client::Error::NotAcquired(_)
            | client::Error::Lost(_)
            | client::Error::NotEnsured { .. }
            | client::Error::Malformed { .. } => Self::new(exit, error),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(Exit::Error, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_told_as_shells_tell_it() {
        assert_eq!(Exit::Signal(15).code(), 143);
        assert_eq!(Exit::Signal(1_000).code(), 255);
        assert_eq!(Exit::Code(3).code(), 3);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_a_wrong_argument_and_a_full_disk_is_not() {
        let exit = |kind: io::ErrorKind| Exit::for_path(&kind.into());
        assert_eq!(exit(io::ErrorKind::NotADirectory), Exit::Usage);
        assert_eq!(exit(io::ErrorKind::StorageFull), Exit::Error);
    }

    #[test]
    fn a_closed_pipe_is_no_error_of_a_stream_and_no_success_of_anything_else() {
        let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
        let failure = Failure::for_stream(closed());
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Success, ""));
        assert_eq!(Failure::from(closed()).exit, Exit::Error);
        assert_eq!(Failure::for_stream(io::ErrorKind::StorageFull.into()).exit, Exit::Error);
    }
}
