//! `lockkeeper member remove` removes a node for good, after a question.

use std::io::{self, IsTerminal as _, Write as _};

use clap::Args;

use super::view;
use crate::{
    cli::{ClusterArguments, Exit, Failure, output::print, show},
    client::NodeStatus,
};

/// Removes a node for good. Its process ends, and its id is never used again.
///
/// Says how many nodes the cluster can lose after that, and asks. Refused if the voters that remain and answer are no majority of those
/// that remain. A leader that is to be removed hands its leadership over first.
#[derive(Args, Debug)]
pub(super) struct Remove {
    /// The node
    #[arg(value_name = "NODE_ID")]
    node_id: u64,
    /// Do not ask. Needed where nobody can answer: without a terminal
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    cluster: ClusterArguments,
}

impl Remove {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let client = self.cluster.client()?;
        let leader = view::leader(&client).await?;
        let consequence = consequence(&leader, self.node_id)
            .ok_or_else(|| Failure::new(Exit::Refused, not_a_member(&leader, self.node_id)))?;

        if self.yes {
            // Print it for the log of a script.
            print(&format!("{consequence}\n"))?;
        } else if io::stdin().is_terminal() {
            if !is_confirmed(&consequence).await? {
                return Err(Failure::new(Exit::Error, "nothing was changed"));
            }
        } else {
            let message = format!("{consequence}; nothing was changed: without a terminal to ask at, give --yes");
            return Err(Failure::new(Exit::Usage, message));
        }

        client.remove_member(self.node_id).await?;
        print(&format!("node {} is no longer a member; delete its data directory\n", self.node_id))?;
        Ok(Exit::Success)
    }
}

fn not_a_member(leader: &NodeStatus, node_id: u64) -> String {
    let ids: Vec<String> = leader.members.iter().map(|member| member.node_id.to_string()).collect();
    format!("node {node_id} is not a member; the members are {}", ids.join(", "))
}

/// What the removal means for the cluster. Returns `None` if the node is not a member.
fn consequence(leader: &NodeStatus, node_id: u64) -> Option<String> {
    let member = leader.members.iter().find(|member| member.node_id == node_id)?;
    let whose = format!("node {node_id} ({})", show::text(&member.client_address));
    if !member.voter {
        return Some(format!("{whose} is a learner: without it the cluster can lose as many nodes as before"));
    }

    let voters = leader.members.iter().filter(|member| member.voter).count();
    let left = voters.saturating_sub(1);
    let losses = |voters: usize| voters.saturating_sub(1) / 2;
    let before = losses(voters);
    let after = losses(left);
    let tolerance = if after == before {
        format!("it can still lose {}", show::count(after, "node", "nodes"))
    } else {
        format!("it can lose {} instead of {before}", show::count(after, "node", "nodes"))
    };
    Some(format!(
        "without {whose} the cluster has {} instead of {voters}: {tolerance}",
        show::count(left, "voter", "voters")
    ))
}

/// Asks at the terminal. Only `y` and `yes` are a yes.
async fn is_confirmed(consequence: &str) -> io::Result<bool> {
    write!(io::stderr(), "{consequence}\nRemove it for good? [y/N] ")?;
    let mut answer = String::new();
    // Read on another thread, so that signals still end the program while it waits for an answer.
    let read = tokio::task::spawn_blocking(move || io::stdin().read_line(&mut answer).map(|_| answer)).await;
    let answer = read.map_err(io::Error::other)??;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Member;

    fn cluster_of(voters: u64) -> NodeStatus {
        let member = |node_id| {
            let mut member = Member::default();
            member.node_id = node_id;
            member.voter = node_id <= voters;
            member.client_address = format!("h{node_id}:1");
            member
        };
        let mut leader = NodeStatus::default();
        // The last one is a learner.
        leader.members = (1..=voters + 1).map(member).collect();
        leader
    }

    #[test]
    fn the_tolerance_that_is_left_is_told() {
        let said = |voters, node_id| consequence(&cluster_of(voters), node_id);
        let from_three =
            "without node 3 (h3:1) the cluster has 2 voters instead of 3: it can lose 0 nodes instead of 1";
        assert_eq!(said(3, 3).unwrap(), from_three);
        let from_four = "without node 3 (h3:1) the cluster has 3 voters instead of 4: it can still lose 1 node";
        assert_eq!(said(4, 3).unwrap(), from_four);
        let from_two = "without node 1 (h1:1) the cluster has 1 voter instead of 2: it can still lose 0 nodes";
        assert_eq!(said(2, 1).unwrap(), from_two);
        assert!(said(3, 4).unwrap().starts_with("node 4 (h4:1) is a learner"));
        assert_eq!(said(3, 9), None);
        assert_eq!(not_a_member(&cluster_of(1), 9), "node 9 is not a member; the members are 1, 2");
    }
}
