//! Waits until the leader has completed a change of the members, and says what it waits for.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Waits, view};
use crate::{
    cli::{Exit, Failure, complain, output::print},
    client::{Client, Member, NodeStatus},
};

/// Between two looks at the members.
const PAUSE: Duration = Duration::from_millis(200);

/// What the members show.
enum ChangeProgress {
    /// Complete, with this message.
    Done(String),
    /// The change is under way. The text says what it waits for.
    Waits(String),
}

/// Waits until a node is a voter.
pub(super) async fn until_voter(client: &Client, node_id: u64, waits: &Waits) -> Result<Exit, Failure> {
    until(client, waits, |leader| match find(leader, node_id) {
        Some(member) if member.voter => ChangeProgress::Done(format!("node {node_id} is a voter")),
        Some(member) => ChangeProgress::Waits(format!("node {node_id} to catch up: {}", lag(leader, member))),
        None => ChangeProgress::Waits(format!("node {node_id} to be added")),
    })
    .await
}

/// Waits until a node is not a member.
pub(super) async fn until_replaced(client: &Client, old: u64, waits: &Waits) -> Result<Exit, Failure> {
    until(client, waits, |leader| {
        if find(leader, old).is_none() {
            return ChangeProgress::Done(format!("node {old} is no longer a member; delete its data directory"));
        }

        let joins = leader.members.iter().find(|member| !member.voter && !member.stays_learner);
        ChangeProgress::Waits(match joins {
            Some(new) => format!("node {} to catch up: {}", new.node_id, lag(leader, new)),
            None => {
                let endpoint = client.endpoints().join(",");
                format!("a new node: start it with `lockkeeper serve --config FILE --join {endpoint}`, under an id that no node ever had")
            }
        })
    })
    .await
}

fn find(leader: &NodeStatus, node_id: u64) -> Option<&Member> {
    leader.members.iter().find(|member| member.node_id == node_id)
}

fn lag(leader: &NodeStatus, member: &Member) -> String {
    format!("it is at entry {} of {}", member.matched_index, leader.last_log_index)
}

async fn until(client: &Client, waits: &Waits, look: impl Fn(&NodeStatus) -> ChangeProgress) -> Result<Exit, Failure> {
    let deadline = Instant::now() + waits.wait_for;
    let mut said = String::new();
    loop {
        // While no leader serves, the last one may have failed: the next goes on with the change.
        let waiting = match view::leader(client).await.map(|leader| look(&leader)) {
            Ok(ChangeProgress::Done(message)) => {
                print(&format!("{message}\n"))?;
                return Ok(Exit::Success);
            }
            Ok(ChangeProgress::Waits(_)) if waits.no_wait => return Ok(Exit::Success),
            Ok(ChangeProgress::Waits(waiting)) => waiting,
            Err(_) => "a leader".to_owned(),
        };

        if Instant::now() >= deadline {
            let message =
                format!("still waiting for {waiting}; the cluster goes on with it: `lockkeeper member list` shows it");
            return Err(Failure::new(Exit::Unknown, message));
        }

        // The entry numbers rise all the time: one line for each kind of wait.
        let kind = waiting.split(':').next().unwrap_or_default().to_owned();
        if kind != said {
            complain(&format!("waiting for {waiting}"));
            said = kind;
        }

        sleep(PAUSE).await;
    }
}
