//! Which program each node runs: one for all, or two of different versions by turns.
//!
//! The earlier program founds the cluster. From then on each start of a node is its turn to run the other one, so that the cluster is
//! upgraded and taken back under faults, node by node. One node always keeps the earlier program: as soon as all members run the newest,
//! the cluster version rises, and then there is no way back. When the turns are over, every start is one of the newest program.

use std::collections::BTreeSet;

use lockkeeper_local::NodeProgram;

/// A program of an earlier version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EarlierProgram {
    pub(crate) program: NodeProgram,
    /// The highest cluster version that it supports.
    pub(crate) version_max: u32,
}

/// How often nodes were started, in a run with two versions of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProgramStarts {
    /// Number of starts of the earlier program.
    pub earlier: u32,
    /// Number of starts of the newest program.
    pub newest: u32,
}

/// The programs of the nodes.
#[derive(Debug)]
pub(crate) struct NodePrograms {
    newest: NodeProgram,
    earlier: Option<EarlierProgram>,
    /// The nodes that run the earlier program, or did when they ended.
    on_earlier: BTreeSet<u64>,
    starts: ProgramStarts,
    are_turns_over: bool,
}

impl NodePrograms {
    /// The programs of a cluster that is founded now, with these nodes.
    pub(crate) fn new(newest: NodeProgram, earlier: Option<EarlierProgram>, nodes: impl Iterator<Item = u64>) -> Self {
        let on_earlier = if earlier.is_some() { nodes.collect() } else { BTreeSet::new() };
        Self { newest, earlier, on_earlier, starts: ProgramStarts::default(), are_turns_over: false }
    }

    /// The newest program, which clients run and operators use.
    pub(crate) fn newest(&self) -> &NodeProgram {
        &self.newest
    }

    /// The program that founds the cluster.
    pub(crate) fn founder(&self) -> &NodeProgram {
        self.earlier.as_ref().map_or(&self.newest, |earlier| &earlier.program)
    }

    /// The highest cluster version while a member runs the earlier program. Without that program, or when the turns are over, there is no
    /// such limit.
    pub(crate) fn version_max(&self) -> Option<u32> {
        self.earlier.as_ref().filter(|_| !self.are_turns_over).map(|earlier| earlier.version_max)
    }

    /// How often each program was started, if there are two.
    pub(crate) fn starts(&self) -> Option<ProgramStarts> {
        self.earlier.as_ref().map(|_| self.starts)
    }

    /// The program with which a node is started now.
    pub(super) fn take_turn(&mut self, id: u64) -> &NodeProgram {
        let Some(earlier) = &self.earlier else { return &self.newest };
        let was_earlier = self.on_earlier.remove(&id);
        let is_last = self.on_earlier.is_empty();

        if self.are_turns_over || was_earlier && !is_last {
            self.starts.newest += 1;
            return &self.newest;
        }
        self.on_earlier.insert(id);
        self.starts.earlier += 1;
        &earlier.program
    }

    /// Ends the turns. Returns the nodes that run the earlier program, which have to be started again.
    pub(super) fn end_turns(&mut self) -> Vec<u64> {
        self.are_turns_over = true;
        self.on_earlier.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str) -> NodeProgram {
        NodeProgram { path: name.into(), environment: Vec::new() }
    }

    fn two_programs() -> NodePrograms {
        let earlier = EarlierProgram { program: program("earlier"), version_max: 5 };
        NodePrograms::new(program("newest"), Some(earlier), 1..=3)
    }

    #[test]
    fn nodes_take_turns_and_the_last_one_keeps_the_earlier_program() {
        let mut programs = two_programs();
        let mut take_turns = |ids: &[u64]| -> Vec<bool> {
            ids.iter().map(|id| *programs.take_turn(*id) == program("earlier")).collect()
        };
        assert_eq!(take_turns(&[1, 2, 3]), [false, false, true]);
        assert_eq!(take_turns(&[3, 3]), [true, true], "without it, the cluster version would rise");
        assert_eq!(take_turns(&[1, 3, 1, 2]), [true, false, true, true]);
        assert_eq!(programs.starts(), Some(ProgramStarts { earlier: 6, newest: 3 }));
    }

    #[test]
    fn the_end_of_the_turns_is_an_upgrade() {
        let mut programs = two_programs();
        programs.take_turn(2);
        assert_eq!(programs.version_max(), Some(5));
        let left = programs.end_turns();
        assert_eq!((&left[..], programs.version_max()), (&[1, 3][..], None));
        assert!(left.into_iter().chain([2]).all(|id| *programs.take_turn(id) == program("newest")));
    }

    #[test]
    fn one_program_has_no_turns() {
        let mut programs = NodePrograms::new(program("newest"), None, 1..=3);
        assert!((1..=3).all(|id| *programs.take_turn(id) == program("newest")));
        assert_eq!((programs.starts(), programs.version_max()), (None, None));
        assert_eq!(programs.end_turns(), [0_u64; 0]);
    }
}
