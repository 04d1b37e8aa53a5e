//! Selects the targets of a fault before it begins, so that the history can record them.

use rand::{
    rngs::StdRng,
    seq::{IndexedRandom as _, SliceRandom as _},
};

use super::Fault;

/// The targets of a fault.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Aim {
    /// The nodes in the order of the injection. Without any, the fault strikes all nodes alike, or clients.
    pub(super) nodes: Vec<u64>,
    /// Pairs of nodes between which nothing passes in this direction.
    pub(super) silent: Vec<(u64, u64)>,
}

impl Aim {
    /// Draws the targets. `ids` are all nodes, at least two, including the leader.
    pub(super) fn take(fault: Fault, leader: u64, ids: &[u64], random: &mut StdRng) -> Self {
        let mut shuffled = ids.to_vec();
        shuffled.shuffle(random);
        let follower = shuffled.iter().copied().find(|id| *id != leader).unwrap_or(leader);
        let any = *[leader, follower].choose(random).expect("it has two");
        let others = |node: u64| ids.iter().copied().filter(move |id| *id != node);
        let nodes = |nodes: &[u64]| Self { nodes: nodes.to_vec(), silent: Vec::new() };

        match fault {
            Fault::PartitionHalves => {
                let (majority, minority) = shuffled.split_at(ids.len() / 2 + 1);
                Self { nodes: Vec::new(), silent: apart(ids, &[majority, minority]) }
            }
            Fault::PartitionOneWay => {
                Self { nodes: vec![any], silent: others(any).map(|other| (any, other)).collect() }
            }
            Fault::PartitionBridge => {
                shuffled.retain(|id| *id != follower);
                let (one, two) = shuffled.split_at(shuffled.len() / 2);
                let groups = [[one, &[follower]].concat(), [two, &[follower]].concat()];
                Self { nodes: vec![follower], silent: apart(ids, &[&groups[0], &groups[1]]) }
            }
            Fault::PartitionLeader => {
                let peers: Vec<u64> = others(leader).collect();
                Self { nodes: vec![leader], silent: apart(ids, &[&peers]) }
            }
            Fault::PartitionAll => Self { nodes: Vec::new(), silent: apart(ids, &[]) },
            Fault::Delay | Fault::Resets | Fault::AnswersLost | Fault::PauseClient => Self::default(),
            Fault::PartitionClients | Fault::ReplyLost | Fault::PauseLeader | Fault::KillLeader => nodes(&[leader]),
            Fault::PauseFollower | Fault::KillFollower => nodes(&[follower]),
            Fault::KillAll | Fault::KillStaggered | Fault::DataGone => nodes(&shuffled),
            Fault::Restore | Fault::RestoreAgain => nodes(&shuffled),
            Fault::Transfer | Fault::Add => Self::default(),
            Fault::RollingRestart => nodes(&shuffled),
            Fault::Restart | Fault::Remove | Fault::Replace => nodes(&[any]),
            Fault::ClockJump | Fault::SlowSync | Fault::FailedSync | Fault::DiskFull => nodes(&[any]),
            Fault::SlowAudit | Fault::HungAudit => nodes(&[any]),
        }
    }
}

/// All ordered pairs without a common group. A node in several groups is a bridge; a node in none is isolated.
fn apart(ids: &[u64], groups: &[&[u64]]) -> Vec<(u64, u64)> {
    let together = |one, other| groups.iter().any(|group| group.contains(&one) && group.contains(&other));
    let pairs = ids.iter().flat_map(|one| ids.iter().map(move |other| (*one, *other)));
    pairs.filter(|(one, other)| one != other && !together(*one, *other)).collect()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    fn aim(fault: Fault, seed: u64) -> Aim {
        Aim::take(fault, 2, &[1, 2, 3, 4, 5], &mut StdRng::seed_from_u64(seed))
    }

    #[test]
    fn a_bridge_hears_all_and_the_others_are_split() {
        for seed in 0..20 {
            let Aim { nodes, silent } = aim(Fault::PartitionBridge, seed);
            assert!(nodes.len() == 1 && nodes[0] != 2);
            assert_eq!(silent.len(), 8);
            assert!(
                silent.iter().all(|(from, to)| *from != nodes[0] && *to != nodes[0] && silent.contains(&(*to, *from)))
            );
        }
    }

    #[test]
    fn halves_are_a_majority_and_the_rest() {
        assert!((0..20).all(|seed| aim(Fault::PartitionHalves, seed).silent.len() == 2 * 3 * 2));
        assert_eq!(aim(Fault::PartitionAll, 1).silent.len(), 5 * 4);
    }

    #[test]
    fn the_leader_is_alone_or_only_mute() {
        let leader = aim(Fault::PartitionLeader, 3);
        assert_eq!((leader.nodes, leader.silent.len()), (vec![2], 8));
        let mute = aim(Fault::PartitionOneWay, 3);
        assert!(mute.silent.len() == 4 && mute.silent.iter().all(|(from, _)| *from == mute.nodes[0]));
    }

    #[test]
    fn a_seed_gives_one_aim_and_followers_do_not_lead() {
        for fault in Fault::all() {
            assert_eq!(aim(fault, 9), aim(fault, 9));
        }
        assert!((0..20).all(|seed| aim(Fault::KillFollower, seed).nodes != [2]));
        for fault in [Fault::ClockJump, Fault::HungAudit, Fault::Restart, Fault::Remove, Fault::Replace] {
            assert!((0..20).any(|seed| aim(fault, seed).nodes == [2]), "{fault}");
            assert!((0..20).any(|seed| aim(fault, seed).nodes != [2]), "{fault}");
        }
    }
}
