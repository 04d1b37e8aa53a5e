//! The lines of the audit trail that the nodes' tables made, as they said while they applied: what the files must have.
//!
//! A node makes a line when it applies an entry, again after each start that applies the entry again. It does not make the lines of entries
//! that it got in a snapshot of another node: these it may lack.

use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

use lockkeeper::table::{Applied, EntryId};
use lockkeeper_audit::{Hash, Head};

/// For so long an answer may be under way after its entry was applied.
const UNDER_WAY: Duration = Duration::from_secs(5);

/// A node in a cluster that was made anew so often.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TrailPlace {
    pub(crate) generation: usize,
    pub(crate) node: u64,
}

/// What the nodes of a run said of their trails.
#[derive(Default, Debug)]
pub(crate) struct MadeLines {
    /// By generation and index: the terms of entries that nodes have applied, and the head of the chain after them.
    entries: BTreeMap<(usize, u64), (u64, Head)>,
    /// By generation and number of lines: the hash of the last line, and when a node had it first.
    heads: BTreeMap<(usize, u64), (Hash, Duration)>,
    nodes: BTreeMap<TrailPlace, NodeLines>,
    copies: BTreeMap<usize, CopiedTrail>,
    /// Bytes that files lost in crashes.
    lost_bytes: u64,
}

/// The lines of a node.
#[derive(Default, Debug)]
struct NodeLines {
    /// How many lines the chain has in the table of its process.
    lines: u64,
    /// The lines of the last change of the table. They are its own only if it was an entry that brought them.
    last: Option<RangeInclusive<u64>>,
    /// The lines that snapshots of other nodes stood for.
    skipped: Vec<RangeInclusive<u64>>,
    /// Its files must have the lines up to this one.
    due: u64,
}

/// The trail of the copy that a cluster was made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopiedTrail {
    /// The generation of the cluster of the copy.
    pub(super) from: usize,
    /// The last entry of the copy.
    entry: EntryId,
    /// The head of the chain there.
    head: Head,
    /// What the new cluster's first line must cite, if the copy has a trail.
    pub(super) cited: Option<Head>,
}

impl MadeLines {
    /// A process starts on a snapshot with so many lines, or on none.
    pub(crate) fn started(&mut self, place: TrailPlace, lines: u64) {
        let node = self.nodes.entry(place).or_default();
        node.skipped.extend(node.last.take());
        node.lines = lines;
    }

    /// The table of a node has changed: it has applied an entry, or has taken over a snapshot.
    pub(crate) fn changed(&mut self, place: TrailPlace, applied: &Applied, at: Duration) {
        let head = applied.trail.head();
        let node = self.nodes.entry(place).or_default();
        node.skipped.extend(node.last.take());
        node.last = (head.lines > node.lines).then_some(node.lines + 1..=head.lines);
        node.lines = head.lines;

        if head.lines == 0 {
            return;
        }
        self.heads.entry((place.generation, head.lines)).or_insert((head.hash, at));
        if let Some(EntryId { term, index }) = applied.last_entry {
            self.entries.entry((place.generation, index)).or_insert((term, head));
        }
    }

    /// The last change of a node's table was an entry, and its lines were handed over.
    pub(crate) fn handed_over(&mut self, place: TrailPlace) {
        self.nodes.entry(place).or_default().last = None;
    }

    /// A cluster is made of this copy of another one.
    pub(crate) fn copied(&mut self, generation: usize, from: usize, copy: &Applied) {
        let entry = copy.last_entry.unwrap_or_default();
        let head = copy.trail.head();
        let cited = copy.trail.to_stored().map(|(head, _)| head);
        self.copies.insert(generation, CopiedTrail { from, entry, head, cited });
    }

    /// The files of a node must soon have all lines that it has made by now.
    pub(crate) fn expect_written(&mut self, place: TrailPlace) {
        let node = self.nodes.entry(place).or_default();
        node.due = node.lines;
    }

    /// Files have lost so many bytes in a crash.
    pub(crate) fn lost(&mut self, bytes: u64) {
        self.lost_bytes += bytes;
    }

    pub(super) fn lost_bytes(&self) -> u64 {
        self.lost_bytes
    }

    /// All nodes that ran.
    pub(super) fn places(&self) -> impl Iterator<Item = TrailPlace> {
        self.nodes.keys().copied()
    }

    /// The number of the last line that the files of a node must have.
    pub(super) fn due(&self, place: TrailPlace) -> u64 {
        self.nodes.get(&place).map_or(0, |node| node.due)
    }

    /// Whether a node has made none of these lines, since it got snapshots that stood for them.
    pub(super) fn were_skipped(&self, place: TrailPlace, lines: &RangeInclusive<u64>) -> bool {
        let Some(node) = self.nodes.get(&place) else { return false };
        let mut skipped: Vec<_> = node.skipped.iter().chain(&node.last).collect();
        skipped.sort_by_key(|skipped| *skipped.start());

        let mut next = *lines.start();
        for skipped in skipped {
            if skipped.contains(&next) {
                next = skipped.end() + 1;
            }
        }
        next > *lines.end()
    }

    /// The hash of this line, if a table had it as its last one.
    pub(super) fn hash(&self, generation: usize, line: u64) -> Option<Hash> {
        self.heads.get(&(generation, line)).map(|(hash, _)| *hash)
    }

    /// The copy that the cluster of a generation was made of.
    pub(super) fn copy(&self, generation: usize) -> Option<CopiedTrail> {
        self.copies.get(&generation).copied()
    }

    /// The head of the chain that nodes had where this copy ends, if a node has applied its last entry, and the one that the copy has.
    pub(super) fn heads_at_end(&self, copy: &CopiedTrail) -> Option<(Head, Head)> {
        let (term, head) = self.entries.get(&(copy.from, copy.entry.index))?;
        (*term == copy.entry.term).then_some((*head, copy.head))
    }

    /// When clients may have been told of lines of a cluster that come after this one.
    pub(super) fn told_after(&self, generation: usize, line: u64) -> Option<RangeInclusive<Duration>> {
        let mut later = self.heads.range((generation, line + 1)..=(generation, u64::MAX));
        let (_, (_, first)) = later.next()?;
        let last = later.next_back().map_or(*first, |(_, (_, last))| *last);
        Some(*first..=last + UNDER_WAY)
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::table::Trail;

    use super::*;

    const PLACE: TrailPlace = TrailPlace { generation: 0, node: 1 };

    fn applied(index: u64, lines: u64) -> Applied {
        let trail = Trail::from_stored(Head { lines, hash: Hash([index as u8; 32]) }, false);
        Applied { last_entry: Some(EntryId { term: 1, index }), trail, ..Applied::default() }
    }

    /// Applies entries with so many lines each.
    fn apply(made: &mut MadeLines, entries: &[(u64, u64)]) {
        for (index, lines) in entries {
            made.changed(PLACE, &applied(*index, *lines), Duration::from_secs(*index));
            made.handed_over(PLACE);
        }
    }

    #[test]
    fn only_lines_that_a_snapshot_stood_for_may_be_missing() {
        let mut made = MadeLines::default();
        made.started(PLACE, 0);
        apply(&mut made, &[(1, 2), (2, 5)]);
        made.changed(PLACE, &applied(7, 20), Duration::from_secs(7));
        apply(&mut made, &[(8, 22)]);
        assert!(made.were_skipped(PLACE, &(6..=20)) && made.were_skipped(PLACE, &(8..=9)));
        assert!(!made.were_skipped(PLACE, &(5..=20)) && !made.were_skipped(PLACE, &(6..=21)));

        // Its own snapshot after a restart stands for what it has made. One that is the last change counts, too.
        made.started(PLACE, 22);
        made.changed(PLACE, &applied(8, 22), Duration::from_secs(9));
        made.changed(PLACE, &applied(9, 23), Duration::from_secs(9));
        assert!(made.were_skipped(PLACE, &(23..=23)) && !made.were_skipped(PLACE, &(22..=23)));

        made.handed_over(PLACE);
        assert!(!made.were_skipped(PLACE, &(23..=23)));
        assert_eq!(made.due(PLACE), 0);
        made.expect_written(PLACE);
        assert_eq!(made.due(PLACE), 23);
    }

    #[test]
    fn what_clients_may_have_been_told_of_lost_lines_has_a_beginning_and_an_end() {
        let mut made = MadeLines::default();
        apply(&mut made, &[(1, 2), (2, 5), (3, 9)]);
        let told = made.told_after(0, 3).expect("there are later lines");
        assert_eq!((*told.start(), *told.end()), (Duration::from_secs(2), Duration::from_secs(3) + UNDER_WAY));
        assert_eq!(made.told_after(0, 9), None);
        assert_eq!(made.told_after(1, 0), None);
    }

    #[test]
    fn a_copy_is_compared_only_with_the_same_entry() {
        let mut made = MadeLines::default();
        apply(&mut made, &[(1, 2), (2, 5)]);
        made.copied(1, 0, &applied(2, 4));
        let copy = made.copy(1).expect("it is known");
        let heads = made.heads_at_end(&copy).expect("it was applied");
        assert_eq!((heads.0.lines, heads.1.lines, copy.cited.map(|head| head.lines)), (5, 4, Some(4)));
        let other = CopiedTrail { entry: EntryId { term: 2, index: 2 }, ..copy };
        assert_eq!(made.heads_at_end(&other), None);
    }
}
