//! Fault injection.
//!
//! A run alternates between calm, a fault and its end, with a check that the cluster serves again. [`Fault`] lists the faults, `schedule`
//! orders them, `aim` selects their targets, `inject` executes them with `clock` and `disk`, `operations` and `restore` execute those that
//! an operator causes, and `tools` finds the programs that some need. In a run with two versions of the program, `turns` says which one a
//! node runs from its next start on, and `upgrade` ends the turns.
//!
//! Deliberately absent: faults that need root. Without namespaces and mounts, a run works on any machine.

mod aim;
mod clock;
mod disk;
pub(super) mod inject;
mod operations;
mod restore;
pub(super) mod roster;
mod schedule;
pub(super) mod tools;
pub(super) mod turns;
mod upgrade;

use std::{fmt, str::FromStr};

pub use self::{schedule::Schedule, turns::ProgramStarts};

/// The faults.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fault {
    /// A majority and a minority cannot communicate. The leader may be in either.
    PartitionHalves,
    /// Data from one node (the leader or a follower) to its peers are lost; it still receives theirs.
    PartitionOneWay,
    /// One node communicates with all, the others are split in two groups.
    PartitionBridge,
    /// The leader and its peers cannot communicate; clients reach all nodes.
    PartitionLeader,
    /// No node can communicate with another.
    PartitionAll,
    /// Clients cannot reach the leader; its peers can.
    PartitionClients,
    /// All traffic is delayed by varying times.
    Delay,
    /// Connections between nodes are reset repeatedly.
    Resets,
    /// Requests reach the leader, its answers are lost, then the connection breaks.
    ReplyLost,
    /// Requests of clients reach the nodes, all answers are lost for longer than a lease, then the connections break. A request that a
    /// client repeats is then older than its lease.
    AnswersLost,
    /// The leader's process is stopped for longer than its lease, then continued.
    PauseLeader,
    /// A follower's process is stopped, then continued.
    PauseFollower,
    /// A client's process that holds locks is stopped until other sessions hold them, then continued.
    PauseClient,
    /// The leader is killed, and restarted later.
    KillLeader,
    /// A follower is killed, and restarted later.
    KillFollower,
    /// All nodes are killed at once.
    KillAll,
    /// The nodes are killed and restarted one after another.
    KillStaggered,
    /// Some nodes are stopped for a while; then all are, and one that continued without them loses its data. It is
    /// started together with the nodes that lack its latest entries: they must not accept it under its old identity.
    DataGone,
    /// A node's wall clock jumps by hours, forwards and back.
    ClockJump,
    /// Syncs on a node's disk take long.
    SlowSync,
    /// Syncs on a node's disk fail. The node exits and is restarted.
    FailedSync,
    /// A node's disk is full. The node exits and is restarted.
    DiskFull,
    /// Writes and syncs of a node's audit files take long. The node goes on.
    SlowAudit,
    /// The disk of a node's audit files hangs. The node exits after 10 s, the others go on, and it is restarted.
    HungAudit,
    /// The leadership is handed to random voters, several times.
    Transfer,
    /// A node is stopped gracefully, and started again.
    Restart,
    /// All nodes are stopped gracefully and started again, one after another. The cluster serves in between.
    RollingRestart,
    /// A backup is saved under load. A while later all nodes are lost with their data, and a new cluster is made from the backup.
    Restore,
    /// A backup is restored as in `Restore`. Once the new cluster grants locks, it is lost too, and a third one is made from the same
    /// backup.
    RestoreAgain,
    /// A new node joins and becomes a voter.
    Add,
    /// A voter, perhaps the leader, is removed. Its process must end by itself.
    Remove,
    /// A node's machine dies with its data, and a new node takes its place under a new id.
    Replace,
}

/// Groups of faults, with names for the command line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Group {
    Partition,
    Network,
    Pause,
    Kill,
    Clock,
    Disk,
    Operation,
    Membership,
}

const FAULTS: [(Fault, Group, &str); 32] = [
    (Fault::PartitionHalves, Group::Partition, "partition-halves"),
    (Fault::PartitionOneWay, Group::Partition, "partition-one-way"),
    (Fault::PartitionBridge, Group::Partition, "partition-bridge"),
    (Fault::PartitionLeader, Group::Partition, "partition-leader"),
    (Fault::PartitionAll, Group::Partition, "partition-all"),
    (Fault::PartitionClients, Group::Partition, "partition-clients"),
    (Fault::Delay, Group::Network, "delay"),
    (Fault::Resets, Group::Network, "resets"),
    (Fault::ReplyLost, Group::Network, "reply-lost"),
    (Fault::AnswersLost, Group::Network, "answers-lost"),
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
    (Fault::SlowAudit, Group::Disk, "slow-audit"),
    (Fault::HungAudit, Group::Disk, "hung-audit"),
    (Fault::Transfer, Group::Operation, "transfer"),
    (Fault::Restart, Group::Operation, "restart"),
    (Fault::RollingRestart, Group::Operation, "rolling-restart"),
    (Fault::Restore, Group::Operation, "restore"),
    (Fault::RestoreAgain, Group::Operation, "restore-again"),
    (Fault::Add, Group::Membership, "add"),
    (Fault::Remove, Group::Membership, "remove"),
    (Fault::Replace, Group::Membership, "replace"),
];

impl Fault {
    /// All faults.
    pub fn all() -> impl Iterator<Item = Self> {
        FAULTS.iter().map(|(fault, ..)| *fault)
    }

    /// The name on the command line and in a history.
    pub fn name(self) -> &'static str {
        FAULTS.iter().find(|(fault, ..)| *fault == self).map_or("", |(.., name)| name)
    }

    /// Whether the fault ends by itself. The other faults last for a random time.
    fn has_its_own_time(self) -> bool {
        let kills = matches!(self, Self::KillAll | Self::KillStaggered | Self::DataGone) || self.makes_anew();
        let restarts = matches!(self, Self::Restart | Self::RollingRestart | Self::HungAudit);
        kills || restarts || matches!(self, Self::PauseClient | Self::AnswersLost)
    }

    /// Whether the fault makes a new cluster from a backup. No session survives it.
    pub(crate) fn makes_anew(self) -> bool {
        matches!(self, Self::Restore | Self::RestoreAgain)
    }

    /// Whether the fault strikes the disk of the audit files.
    pub(super) fn is_of_audit(self) -> bool {
        matches!(self, Self::SlowAudit | Self::HungAudit)
    }

    /// Whether the fault is a request to the cluster that takes effect after a while. Other faults may strike meanwhile.
    pub(super) fn is_request(self) -> bool {
        self == Self::Transfer || self.group() == Group::Membership
    }

    /// Whether the fault may strike while a request is in flight. The others end nodes by themselves, move their data, or take long.
    fn is_companion(self) -> bool {
        let kills = matches!(self, Self::KillLeader | Self::KillFollower | Self::KillAll | Self::Restart);
        let pauses = matches!(self, Self::PauseLeader | Self::PauseFollower);
        let slows = matches!(self, Self::SlowSync | Self::SlowAudit);
        kills || pauses || slows || matches!(self.group(), Group::Partition | Group::Network)
    }

    /// The group of the fault.
    pub fn group(self) -> Group {
        FAULTS.iter().find(|(fault, ..)| *fault == self).map_or(Group::Network, |(_, group, _)| *group)
    }
}

impl Group {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Partition => "partition",
            Self::Network => "network",
            Self::Pause => "pause",
            Self::Kill => "kill",
            Self::Clock => "clock",
            Self::Disk => "disk",
            Self::Operation => "operation",
            Self::Membership => "membership",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Faults that were chosen by names, groups, or `all`, separated by commas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Faults {
    /// The faults, without duplicates.
    pub chosen: Vec<Fault>,
    /// The text of the choice.
    pub text: String,
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut chosen = Vec::new();
        for word in text.split(',').map(str::trim) {
            let known = chosen.len();
            let named = FAULTS.iter().filter(|(_, group, name)| word == "all" || word == group.name() || word == *name);
            chosen.extend(named.map(|(fault, ..)| *fault));

            if chosen.len() == known {
                let names: Vec<_> = FAULTS.iter().map(|(.., name)| *name).collect();
                let names = names.join(", ");
                return Err(format!(
                    "{word:?} is not a fault: choose all, a group (partition, network, pause, kill, clock, disk, operation, membership) or one of {names}"
                ));
            }
        }

        chosen.sort_unstable();
        chosen.dedup();
        Ok(Self { chosen, text: text.to_owned() })
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
        assert_eq!(chosen("membership,transfer"), [Fault::Transfer, Fault::Add, Fault::Remove, Fault::Replace]);
        let disks = [Fault::SlowSync, Fault::FailedSync, Fault::DiskFull, Fault::SlowAudit, Fault::HungAudit];
        assert_eq!(chosen("disk"), disks);
        let operations = [Fault::Transfer, Fault::Restart, Fault::RollingRestart, Fault::Restore, Fault::RestoreAgain];
        assert_eq!(chosen("operation"), operations);
        assert!("pause,earthquake".parse::<Faults>().unwrap_err().contains("\"earthquake\" is not a fault"));
        assert!("".parse::<Faults>().is_err());
    }
}
