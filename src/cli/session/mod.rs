//! `lockkeeper session` has the commands for sessions that outlive the command that opens them.
//!
//! For work that consists of many commands, as in a shell script: `session open` prints an id, `session keep` renews it
//! in the background while the script runs, `acquire` and `release` use it. For one command under one lock, `lock` is
//! safer: it stops the command before the lock can be granted to another session. Here the script has to do that, and
//! tokens protect the resource.

pub(super) mod addresses;
mod close;
mod keep;
mod open;
mod process;
mod renew;

use clap::{Args, Subcommand};

use super::{Exit, Failure, sessions::Sessions};
use crate::machine::SessionId;

/// Opens, renews and closes sessions, for scripts whose commands share one.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLE)]
pub(super) struct SessionTool {
    #[command(subcommand)]
    command: SessionCommand,
}

const EXAMPLE: &str = "\
Example, for bash:
    export LOCKKEEPER_SESSION=$(lockkeeper session open --ttl 30s)
    lockkeeper session keep --while $$ & keeper=$!
    trap 'kill $keeper; lockkeeper session close' EXIT
    token=$(lockkeeper acquire reports/nightly) || exit
    make_report --fence \"$token\" & report=$!
    wait -n $keeper $report    # returns at the first end; the keeper ends when the session is lost
    lockkeeper release \"$token\"";

#[derive(Subcommand, Debug)]
enum SessionCommand {
    Open(open::SessionOpen),
    Renew(renew::Renew),
    Keep(keep::SessionKeep),
    Close(close::Close),
    List(Sessions),
}

impl SessionTool {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        match self.command {
            SessionCommand::Open(open) => open.run().await,
            SessionCommand::Renew(renew) => renew.run().await,
            SessionCommand::Keep(keep) => keep.run().await,
            SessionCommand::Close(close) => close.run().await,
            SessionCommand::List(list) => list.run().await,
        }
    }
}

/// The session that a command manages.
#[derive(Args, Debug)]
struct Which {
    /// The session
    #[arg(env = "LOCKKEEPER_SESSION", value_name = "ID")]
    session: SessionId,
}

/// The session that a command uses.
#[derive(Args, Debug)]
pub(super) struct In {
    /// The session, as `session open` printed it
    #[arg(long, env = "LOCKKEEPER_SESSION", value_name = "ID")]
    pub(super) session: SessionId,
}
