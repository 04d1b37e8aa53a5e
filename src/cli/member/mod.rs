//! `lockkeeper member` shows and changes the nodes of the cluster.

mod add;
mod list;
mod remove;
mod replace;
pub(in crate::cli) mod view;
mod wait;

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{ClusterArguments, Exit, Failure};

/// Lists, adds and removes the nodes of the cluster. The cluster keeps serving.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLE)]
pub(super) struct MemberTool {
    #[command(subcommand)]
    command: MemberCommand,
}

const EXAMPLE: &str = "\
To replace the dead machine of node 2 by a new one, with an id that no node ever had:
    on the new machine:  lockkeeper serve --config node4.toml --join HOST1:7101,HOST3:7101
    anywhere:            lockkeeper member replace 2";

#[derive(Subcommand, Debug)]
enum MemberCommand {
    List(list::MemberList),
    Add(add::Add),
    Promote(Promote),
    Remove(remove::Remove),
    Replace(replace::Replace),
}

/// How long a command waits for what follows from it.
#[derive(Args, Debug)]
struct Waits {
    /// Do not wait until the change is complete; `lockkeeper member list` shows it
    #[arg(long)]
    no_wait: bool,
    /// How long to wait. The change goes on after that
    #[arg(long, value_parser = super::arguments::duration, default_value = "10m", value_name = "TIME")]
    wait_for: Duration,
}

/// Makes a learner that was added with --learner a voter, once it has caught up.
#[derive(Args, Debug)]
struct Promote {
    /// The learner
    #[arg(value_name = "NODE_ID")]
    node_id: u64,
    #[command(flatten)]
    waits: Waits,
    #[command(flatten)]
    cluster: ClusterArguments,
}

impl MemberTool {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        match self.command {
            MemberCommand::List(list) => list.run().await,
            MemberCommand::Add(add) => add.run().await,
            MemberCommand::Promote(promote) => promote.run().await,
            MemberCommand::Remove(remove) => remove.run().await,
            MemberCommand::Replace(replace) => replace.run().await,
        }
    }
}

impl Promote {
    async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        client.promote_member(self.node_id).await?;
        wait::until_voter(&client, self.node_id, &self.waits).await
    }
}
