//! Who breaks things.
//!
//! A run goes from calm to a fault, from there to its end, and to the question whether the cluster serves again. [`Fault`] lists what can
//! be done to it, `plan` says in which order, `aim` whom it hits, `inject` does it, and `tools` finds the programs that some of it needs.
//!
//! What is deliberately absent: faults that need root. No namespaces, no mounts: all of this runs on anybody's machine.

mod aim;
pub(super) mod inject;
mod plan;
pub(super) mod tools;

use std::{fmt, str::FromStr};

pub use self::plan::Plan;

/// What can be done to a cluster and its clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fault {
    /// A majority and a minority do not hear each other. The leader may be in either.
    PartitionHalves,
    /// What the leader, or a follower, sends to its peers is lost; it hears them still.
    PartitionOneWay,
    /// One node hears all, the others are split in two.
    PartitionBridge,
    /// The leader and its peers do not hear each other; clients reach all.
    PartitionLeader,
    /// No node hears another.
    PartitionAll,
    /// Clients do not reach the leader; its peers do.
    PartitionClients,
    /// All is slow, now more and now less.
    Delay,
    /// Connections between nodes are reset again and again.
    Resets,
    /// Requests reach the leader, its answers are lost, then the connection breaks.
    ReplyLost,
    /// The leader's process is stopped for longer than its lease, and goes on.
    PauseLeader,
    /// The same, for a follower.
    PauseFollower,
    /// A client's process is stopped with locks in its hands until they are somebody else's, and goes on.
    PauseClient,
    /// The leader is killed, and started again later.
    KillLeader,
    /// The same, for a follower.
    KillFollower,
    /// All nodes are killed at once.
    KillAll,
    /// One node after the other is killed and started again.
    KillStaggered,
    /// Some nodes are down for a while; then all are, and one of those that went on without them loses its data. It is started without
    /// them, beside those who do not know what it did: it must not be taken for who it was.
    DataGone,
    /// A node's wall clock jumps by hours, forward and back.
    ClockJump,
    /// A node's disk takes a long time to make anything durable.
    SlowSync,
    /// A node's disk fails to make anything durable. The node ends, and is started again.
    FailedSync,
    /// A node's disk is full. As above.
    DiskFull,
}

/// Faults of a kind, with a name of their own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Group {
    Partition,
    Network,
    Pause,
    Kill,
    Clock,
    Disk,
}

const FAULTS: [(Fault, Group, &str); 21] = [
    (Fault::PartitionHalves, Group::Partition, "partition-halves"),
    (Fault::PartitionOneWay, Group::Partition, "partition-one-way"),
    (Fault::PartitionBridge, Group::Partition, "partition-bridge"),
    (Fault::PartitionLeader, Group::Partition, "partition-leader"),
    (Fault::PartitionAll, Group::Partition, "partition-all"),
    (Fault::PartitionClients, Group::Partition, "partition-clients"),
    (Fault::Delay, Group::Network, "delay"),
    (Fault::Resets, Group::Network, "resets"),
    (Fault::ReplyLost, Group::Network, "reply-lost"),
    (Fault::PauseLeader, Group::Pause, "pause-leader"),
    (Fault::PauseFollower, Group::Pause, "pause-follower"),
    (Fault::PauseClient, Group::Pause, "pause-client"),
    (Fault::KillLeader, Group::Kill, "kill-leader"),
    (Fault::KillFollower, Group::Kill, "kill-follower"),
    (Fault::KillAll, Group::Kill, "kill-all"),
    (Fault::KillStaggered, Group::Kill, "kill-staggered"),
    (Fault::DataGone, Group::Kill, "data-gone"),
    (Fault::ClockJump, Group::Clock, "clock-jump"),
    (Fault::SlowSync, Group::Disk, "slow-sync"),
    (Fault::FailedSync, Group::Disk, "failed-sync"),
    (Fault::DiskFull, Group::Disk, "disk-full"),
];

impl Fault {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        FAULTS.iter().map(|(fault, ..)| *fault)
    }

    /// As on the command line and in a history.
    pub fn name(self) -> &'static str {
        FAULTS.iter().find(|(fault, ..)| *fault == self).map_or("", |(.., name)| name)
    }

    /// Whether it is over when it is done. The others are kept up for a while.
    fn has_its_own_time(self) -> bool {
        matches!(self, Self::PauseClient | Self::KillAll | Self::KillStaggered | Self::DataGone)
    }

    /// With which others it belongs.
    pub fn group(self) -> Group {
        FAULTS.iter().find(|(fault, ..)| *fault == self).map_or(Group::Network, |(_, group, _)| *group)
    }
}

impl Group {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Partition => "partition",
            Self::Network => "network",
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::Clock => "clock",
            Self::Disk => "disk",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Faults that were chosen: names, groups, or `all`, with commas between.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    /// Each once.
    pub chosen: Vec<Fault>,
    /// As they were asked for.
    pub words: String,
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(words: &str) -> Result<Self, String> {
        let mut chosen = Vec::new();
        for word in words.split(',').map(str::trim) {
            let known = chosen.len();
            let named = FAULTS.iter().filter(|(_, group, name)| word == "all" || word == group.name() || word == *name);
            chosen.extend(named.map(|(fault, ..)| *fault));
            if chosen.len() == known {
                let names: Vec<_> = FAULTS.iter().map(|(.., name)| *name).collect();
                let names = names.join(", ");
                return Err(format!(
                    "{word:?} is no fault: choose all, partition, network, pause, kill, clock, disk, or of {names}"
                ));
            }
        }
        chosen.sort_unstable();
        chosen.dedup();
        Ok(Self { chosen, words: words.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_chosen_by_name_by_group_and_all_at_once() {
        let chosen = |words: &str| words.parse::<Faults>().unwrap().chosen;
        assert_eq!(chosen("all").len(), FAULTS.len());
        assert_eq!(chosen("kill-all, delay,delay"), [Fault::Delay, Fault::KillAll]);
        assert_eq!(chosen("pause"), [Fault::PauseLeader, Fault::PauseFollower, Fault::PauseClient]);
        assert!("pause,earthquake".parse::<Faults>().unwrap_err().contains("\"earthquake\" is no fault"));
        assert!("".parse::<Faults>().is_err());
    }
}
