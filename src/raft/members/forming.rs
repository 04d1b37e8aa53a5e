//! Founding a cluster, once.
//!
//! A cluster that is founded twice is two clusters with one name, and each hands out the same locks. So a node founds one only when its
//! configuration says `bootstrap`, and only when *all* configured members have answered a Hello, each with the same cluster id and the
//! same list of members, and none of them belongs to a cluster already. It then records the incarnations of all members durably, and only
//! after that writes the log's first entry, a membership that names every founder by its incarnation. All founders do the same
//! independently: the first entry is equal on all of them, and Raft elects one leader. After a crash, a founder resumes from the stage in
//! its identity file.
//!
//! A node that finds an existing cluster compares the incarnation that the cluster has for it:
//! * its present incarnation: the others founded the cluster with it, or added it. It joins, and the leader brings it up to date;
//! * another incarnation: its data is gone, and it must not return under this id ([`FormingError::DataGone`]);
//! * none: it waits to be added.
//!
//! The same holds if a member of the cluster calls the node while it waits: a call that names its incarnation makes it join, any other is
//! refused ([`crate::network`]).
//!
//! Deliberately absent: founding by a majority. Two overlapping halves of a misconfigured list could each have one; and all members are
//! available, or can be, on the day a cluster is founded.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use openraft::{
    Raft,
    errors::{InitializeError, RaftError},
    storage::RaftStateMachine,
};
use tokio::time::sleep;

use crate::messages as pb;
use crate::{
    identity::{FirstEntry, Founder, FounderAddresses, IdentityError, Incarnation, NodeIdentity, Stage},
    network::hello,
    types::TypeConfig,
};
use lockkeeper_planted::Planted;
use lockkeeper_table::MemberNode;
use lockkeeper_transport::Connector;

/// Time between two rounds of questions, plus a jitter of up to as much again.
const PAUSE_MS: u64 = 250;
/// While nothing changes, the reason for waiting is logged again after this many rounds.
const ROUNDS_PER_REMINDER: u64 = 40;

/// The cluster as configured.
#[derive(Clone, Debug)]
pub struct FormingConfig {
    /// Whether this node founds the cluster if there is none.
    pub bootstrap: bool,
    /// The members, including this node. Equal on all that found a cluster together.
    pub members: BTreeMap<u64, MemberNode>,
}

/// Why a node cannot take part in its cluster. The program should end with this message.
#[derive(Debug, thiserror::Error)]
pub enum FormingError {
    /// The cluster knows this node's id with another incarnation.
    #[error(
        "node {asked} knows node {node_id} as incarnation {known}, but this data directory is {own}: this node's data is gone; \
         put its own data directory back, or replace this node with `lockkeeper member replace`"
    )]
    DataGone {
        /// The member that answered.
        asked: u64,
        /// This node.
        node_id: u64,
        /// The incarnation that the member knows.
        known: Incarnation,
        /// This node's incarnation.
        own: Incarnation,
    },
    /// The cluster has had this node's id, and has removed it.
    #[error(
        "node {asked} says that node {node_id} was removed from the cluster; an id is never used again: give this node an id \
         that no member has ever had, and an empty data directory"
    )]
    Removed {
        /// The member that answered.
        asked: u64,
        /// This node.
        node_id: u64,
    },
    /// The configuration founds a cluster without this node.
    #[error(
        "node {node_id} has bootstrap on, but is not among the configured members: add it to them, or turn bootstrap off"
    )]
    NotAMember {
        /// This node.
        node_id: u64,
    },
    /// The founders could not be recorded. Nothing was promised; a later attempt may succeed.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The log's first entry could not be written. It is written at the next start.
    #[error("cannot write the first entry of the log: {0}")]
    Log(Box<RaftError<TypeConfig, InitializeError<TypeConfig>>>),
}

/// Returns once this node belongs to a cluster: as a founder, or because it was added. Has no deadline: it waits for operators.
///
/// Hello must be answered during this call. [`initialize`] must follow.
pub async fn form<C: Connector>(
    identity: &NodeIdentity,
    plan: &FormingConfig,
    connector: &C,
) -> Result<(), FormingError> {
    if identity.stage() != Stage::New {
        return Ok(());
    }

    let own_id = identity.node_id();
    if plan.bootstrap && !plan.members.contains_key(&own_id) {
        return Err(FormingError::NotAMember { node_id: own_id });
    }

    tokio::select! {
        // A member of the cluster called this node by its incarnation.
        () = identity.no_longer_new() => Ok(()),
        agreed = agree(identity, plan, connector) => agreed,
    }
}

/// Writes the first entry of a founder's log, if it is not there yet. Does nothing on a node that was added.
///
/// Safe on all founders, at any time and repeatedly: the entry is the same everywhere, and openraft writes it only into an empty log.
pub async fn initialize<M>(identity: &NodeIdentity, raft: &Raft<TypeConfig, M>) -> Result<(), FormingError>
where
    M: RaftStateMachine<TypeConfig>,
{
    let Some(founders) = identity.founders() else { return Ok(()) };

    let first_entry = match raft.initialize(founders).await {
        Ok(()) => FirstEntry::Written,
        // Another founder was faster, or an earlier start of this node crashed here.
        Err(RaftError::APIError(InitializeError::NotAllowed(state))) => match state.last_log_id {
            Some(_) => FirstEntry::Written,
            None => FirstEntry::Awaited,
        },
        Err(error) => return Err(FormingError::Log(Box::new(error))),
    };

    Ok(identity.founded(first_entry).await?)
}

/// Asks each configured member once whether it knows this node with another incarnation. For a node that belongs to a cluster, in the
/// background of its start; a member that does not answer now refuses its calls later.
pub async fn check<C: Connector>(
    identity: &NodeIdentity,
    plan: &FormingConfig,
    connector: &C,
) -> Result<(), FormingError> {
    match judge(identity, plan, ask_all(identity, plan, connector).await)? {
        Conclusion::Found(_) | Conclusion::Join | Conclusion::Wait(_) => Ok(()),
    }
}

/// Asks until the members agree, or a cluster knows this node.
async fn agree<C: Connector>(identity: &NodeIdentity, plan: &FormingConfig, connector: &C) -> Result<(), FormingError> {
    let mut waited_for = String::new();
    for round in 0_u64.. {
        match judge(identity, plan, ask_all(identity, plan, connector).await)? {
            Conclusion::Found(founders) if plan.bootstrap => {
                tracing::info!(
                    members = founders.len(),
                    "all members agree; founding cluster {}",
                    identity.cluster_id()
                );
                return Ok(identity.found(founders).await?);
            }
            Conclusion::Join => {
                tracing::info!("cluster {} has this node as a member; joining it", identity.cluster_id());
                // The log will name the other members. Their answers now are no proof: one of them may have lost its data.
                return Ok(identity.join().await?);
            }
            Conclusion::Found(_) => {
                remind(round, &mut waited_for, "bootstrap is off, and no cluster has this node as a member".into())
            }
            Conclusion::Wait(reasons) => remind(round, &mut waited_for, reasons.join("; ")),
        }
        pause(identity, round).await;
    }
    unreachable!("the rounds do not end")
}

/// Logs what the node waits for, when that has changed and from time to time.
fn remind(round: u64, before: &mut String, now: String) {
    if *before != now || round.is_multiple_of(ROUNDS_PER_REMINDER) {
        tracing::info!("waiting: {now}");
        *before = now;
    }
}

/// Waits between two rounds. The jitter keeps the nodes from asking in step; the incarnation is random, so it needs no other source.
async fn pause(identity: &NodeIdentity, round: u64) {
    let jitter = u64::from(identity.incarnation().as_bytes()[(round % 16) as usize]);
    sleep(Duration::from_millis(PAUSE_MS + PAUSE_MS * jitter / 255)).await;
}

/// A member's answer, or why there was none.
struct HelloAnswer {
    node_id: u64,
    said: Result<pb::HelloResponse, String>,
}

/// Asks all members but this one concurrently.
async fn ask_all<C: Connector>(identity: &NodeIdentity, plan: &FormingConfig, connector: &C) -> Vec<HelloAnswer> {
    let members: Vec<_> = plan.members.iter().map(|(id, node)| pb::Node::new(*id, node)).collect();
    let others = plan.members.iter().filter(|(id, _)| **id != identity.node_id());
    let ask = async |(&node_id, node): (&u64, &MemberNode)| {
        let said = hello(&connector.to_node(node_id), &node.peer_address, identity, members.clone()).await;
        HelloAnswer { node_id, said: said.map_err(|status| status.message().to_owned()) }
    };
    join_all(others.map(ask)).await
}

/// The conclusion from a round of answers.
#[derive(Debug)]
enum Conclusion {
    /// All members agree, and there is no cluster yet: found it.
    Found(Vec<Founder>),
    /// A cluster has this node as a member.
    Join,
    /// The node neither founds nor joins, for these reasons.
    Wait(Vec<String>),
}

fn judge(identity: &NodeIdentity, plan: &FormingConfig, answers: Vec<HelloAnswer>) -> Result<Conclusion, FormingError> {
    let mut known = BTreeMap::from([(identity.node_id(), identity.incarnation())]);
    let mut knows_this_node = false;
    let mut reasons = Vec::new();
    for HelloAnswer { node_id, said } in answers {
        let heard = match said {
            Ok(said) => hear(identity, plan, node_id, &said)?,
            Err(silence) => Heard::Reason(format!("for node {node_id}: {silence}")),
        };
        match heard {
            Heard::Ready(incarnation) => {
                known.insert(node_id, incarnation);
            }
            Heard::KnowsThisNode => knows_this_node = true,
            Heard::Reason(reason) => reasons.push(reason),
        }
    }

    if knows_this_node {
        return Ok(Conclusion::Join);
    }
    if !reasons.is_empty() {
        return Ok(Conclusion::Wait(reasons));
    }

    let founder = |(node_id, incarnation)| {
        let MemberNode { peer_address, client_address, .. } = plan.members[&node_id].clone();
        Founder { node_id, incarnation, addresses: Some(FounderAddresses { peer_address, client_address }) }
    };
    let founders = known.into_iter().filter(|(node_id, _)| plan.members.contains_key(node_id));
    Ok(Conclusion::Found(founders.map(founder).collect()))
}

/// The conclusion from one answer.
enum Heard {
    /// It would found the same cluster.
    Ready(Incarnation),
    /// It belongs to the cluster, and knows this node as a member.
    KnowsThisNode,
    /// The node neither founds nor joins, for this reason.
    Reason(String),
}

fn hear(
    identity: &NodeIdentity,
    plan: &FormingConfig,
    asked: u64,
    said: &pb::HelloResponse,
) -> Result<Heard, FormingError> {
    let reason = |reason: String| Ok(Heard::Reason(format!("for node {asked}: {reason}")));
    let own_id = identity.node_id();
    let own = identity.incarnation();
    let asker_start = Some(said.asker_start.as_str()).filter(|start| !start.is_empty());

    if said.cluster_id != identity.cluster_id().as_str() {
        return reason(format!("it belongs to cluster {}, not {}", said.cluster_id, identity.cluster_id()));
    }
    if said.node_id != asked {
        return reason(format!("node {} answers at its address", said.node_id));
    }
    let Ok(incarnation) = Incarnation::try_from(said.incarnation.as_ref()) else {
        return reason("it has no incarnation".into());
    };

    // A cluster that knows this node decides: whether it was removed, and whether this is still its data directory.
    if said.formed && said.asker_removed {
        identity.mark_removed(asked);
        return Err(FormingError::Removed { asked, node_id: own_id });
    }
    if said.formed {
        return match Incarnation::try_from(said.asker_incarnation.as_ref()) {
            Ok(known) if known == own => {
                if let Some(start) = asker_start.and_then(|start| start.parse().ok())
                    && !Planted::OlderCopyTakenIn.is_on()
                {
                    identity.check_start(asked, start)?;
                }
                Ok(Heard::KnowsThisNode)
            }
            Ok(_) if Planted::LostDataTakenIn.is_on() => Ok(Heard::KnowsThisNode),
            Ok(known) => Err(FormingError::DataGone { asked, node_id: own_id, known, own }),
            Err(_) => reason(format!("it belongs to a cluster that does not have node {own_id} as a member")),
        };
    }

    let members = said.members.iter().cloned().map(pb::Node::into_member).collect::<Result<BTreeMap<_, _>, _>>();
    if members.is_ok_and(|members| members == plan.members) {
        Ok(Heard::Ready(incarnation))
    } else {
        reason("its configuration names other members, or other addresses".into())
    }
}

#[cfg(test)]
mod tests;
