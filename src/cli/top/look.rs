//! One look at the cluster.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::super::nodes::{self, AskedNode};
use crate::client::{AskBusiest, Busiest, Client, Error};

/// How long a node may take to answer. A node that takes longer is shown as down, and holds up the picture no longer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Locks and waits that are asked for.
const ROWS: u32 = 50;

/// What the nodes said.
#[derive(Clone, Debug)]
pub(super) struct TopLook {
    pub(super) at: Instant,
    /// The wall clock of this machine, milliseconds since 1970: for the times since which locks are held.
    pub(super) unix_ms: u64,
    /// The nodes, sorted by id.
    pub(super) nodes: Vec<AskedNode>,
    /// What one node says is busy, if a node answered.
    pub(super) busiest: Option<Result<Busiest, Error>>,
    /// The prefix that was asked for.
    pub(super) prefix: String,
}

/// What to ask for.
#[derive(Clone, Debug, Default)]
pub(super) struct TopRequest {
    pub(super) prefix: String,
    /// Grants are counted from there on, if the same start of the same node answers.
    pub(super) since: Option<Since>,
}

/// A place in the log, as a start of a node counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Since {
    pub(super) origin: TotalsOrigin,
    pub(super) index: u64,
}

/// Totals count from the start of a node: others have another origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TotalsOrigin {
    pub(super) node_id: u64,
    pub(super) start: Option<String>,
}

impl TopLook {
    /// Asks all nodes. Takes about [`ANSWER_MAX`] if some do not answer.
    #[expect(clippy::disallowed_methods, reason = "shown to people; nothing is decided by it")]
    pub(super) async fn take(client: &Client, asked: TopRequest) -> Self {
        let nodes = nodes::ask_all(client, false, ANSWER_MAX).await;
        let mut look = Self { at: Instant::now(), unix_ms: 0, nodes, busiest: None, prefix: asked.prefix };
        if let Some(node) = look.best() {
            let since = asked.since.filter(|since| Some(&since.origin) == origin(node).as_ref());
            let after_index = since.map_or(0, |since| since.index);
            let asked = AskBusiest { prefix: look.prefix.clone(), size: ROWS, after_index };
            look.busiest = Some(client.busiest(&node.address, asked, ANSWER_MAX).await);
        }
        look.at = Instant::now();
        look.unix_ms = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
        look
    }

    /// The node that knows most: the leader, or the one that has applied most.
    fn best(&self) -> Option<&AskedNode> {
        let leader = nodes::leader(&self.nodes).map(|leader| leader.node_id);
        let known = |node: &&AskedNode| {
            node.answer.as_ref().ok().map(|status| (Some(status.node_id) == leader, status.applied_index))
        };
        self.nodes.iter().filter(|node| node.answer.is_ok()).max_by_key(known)
    }

    /// The origin of the totals.
    pub(super) fn origin(&self) -> Option<TotalsOrigin> {
        let busiest = self.busiest.as_ref()?.as_ref().ok()?;
        self.nodes.iter().filter_map(origin).find(|origin| origin.node_id == busiest.node_id)
    }

    /// Whether any node answered.
    pub(super) fn is_answered(&self) -> bool {
        self.nodes.iter().any(|node| node.answer.is_ok())
    }
}

fn origin(node: &AskedNode) -> Option<TotalsOrigin> {
    let status = node.answer.as_ref().ok()?;
    Some(TotalsOrigin { node_id: status.node_id, start: status.start.clone() })
}
