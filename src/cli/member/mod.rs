//! `member`: the nodes of the cluster, and how they change.

mod add;
mod list;
mod replace;
pub(in crate::cli) mod view;
mod wait;

use std::time::Duration;

use clap::{Args, Subcommand};

use super::{Cluster, Exit, Failure, output::print};

/// Lists, adds and removes the nodes of the cluster. The cluster serves meanwhile.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLE)]
pub(super) struct Member {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "\
To replace the dead machine of node 2 by a new one, with an id that no node ever had:
    on the new machine:  lockkeeper serve --config node4.toml --join HOST1:7101,HOST3:7101
    anywhere:            lockkeeper member replace 2";

#[derive(Subcommand, Debug)]
enum Command {
    List(list::List),
    Add(add::Add),
    Promote(Promote),
    Remove(Remove),
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
    cluster: Cluster,
}

/// Removes a node for good. Its process ends, and its id is never used again.
///
/// Refused if the voters that remain and answer are no majority of those that remain. A leader that is to be removed
/// hands its leadership over first.
#[derive(Args, Debug)]
struct Remove {
    /// The node
    #[arg(value_name = "NODE_ID")]
    node_id: u64,
    #[command(flatten)]
    cluster: Cluster,
}

impl Member {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        match self.command {
            Command::List(list) => list.run().await,
            Command::Add(add) => add.run().await,
            Command::Promote(promote) => promote.run().await,
            Command::Remove(remove) => remove.run().await,
            Command::Replace(replace) => replace.run().await,
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

impl Remove {
    async fn run(self) -> Result<Exit, Failure> {
        self.cluster.client()?.remove_member(self.node_id).await?;
        print(&format!("node {} is no longer a member; delete its data directory\n", self.node_id))?;
        Ok(Exit::Success)
    }
}
