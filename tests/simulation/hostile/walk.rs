//! The order in which edges are tried.

use rand::{SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

use super::fields::{FieldLimit, sendable_edges};

/// Senders hurry until this number of answers has decided each edge.
pub(super) const DECISIONS: u32 = 2;
/// This number of tries without a decision counts like one with it, so that an edge which cannot be decided for now does not keep the
/// senders from the others.
const TRIES_PER_TURN: u32 = 4;

/// An edge, and what became of the tries so far.
#[derive(Debug)]
pub(super) struct WalkedEdge {
    pub(super) limit: &'static FieldLimit,
    pub(super) size: u64,
    decided: u32,
    undecided: u32,
    is_under_way: bool,
}

impl WalkedEdge {
    /// How many rounds it has been through.
    fn turns(&self) -> u32 {
        self.decided + self.undecided / TRIES_PER_TURN
    }
}

/// The order of the edges: in each round every edge has its turn, in an order that is drawn anew.
#[derive(Debug)]
pub(super) struct EdgeWalk {
    random: StdRng,
    edges: Vec<WalkedEdge>,
}

impl EdgeWalk {
    pub(super) fn new(seed: u64) -> Self {
        let edge = |(limit, size)| WalkedEdge { limit, size, decided: 0, undecided: 0, is_under_way: false };
        Self { random: StdRng::seed_from_u64(seed), edges: sendable_edges().map(edge).collect() }
    }

    /// Whether some edge needs a further decision.
    pub(super) fn is_hurried(&self) -> bool {
        self.edges.iter().any(|edge| edge.decided < DECISIONS)
    }

    /// The place of an edge that has its turn, among those which nobody tries now.
    pub(super) fn take(&mut self) -> usize {
        let is_free = |place: &usize| !self.edges[*place].is_under_way;
        let free: Vec<_> = (0..self.edges.len()).filter(is_free).collect();
        let fewest = free.iter().map(|place| self.edges[*place].turns()).min();
        let has_turn = |place: &usize| Some(self.edges[*place].turns()) == fewest;
        let next: Vec<_> = free.into_iter().filter(has_turn).collect();

        let place = *next.choose(&mut self.random).expect("there are more edges than senders");
        self.edges[place].is_under_way = true;
        place
    }

    /// The edge at this place.
    pub(super) fn edge(&self, place: usize) -> &WalkedEdge {
        &self.edges[place]
    }

    /// Notes how a try ended. Returns the number of decisions so far.
    pub(super) fn settle(&mut self, place: usize, is_decided: bool) -> u32 {
        let edge = &mut self.edges[place];
        edge.is_under_way = false;
        if is_decided {
            edge.decided += 1;
        } else {
            edge.undecided += 1;
        }
        edge.decided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_each_round_every_edge_has_its_turn() {
        let mut walk = EdgeWalk::new(1);
        let edges = sendable_edges().count();
        for try_number in 0..2 * edges {
            assert!(walk.is_hurried(), "after {try_number} of 2 times {edges}");
            let place = walk.take();
            walk.settle(place, true);
        }
        assert!(!walk.is_hurried());
    }

    #[test]
    fn an_edge_that_is_not_decided_is_repeated_and_does_not_hinder_the_others() {
        let mut walk = EdgeWalk::new(2);
        let edges = sendable_edges().count();
        let tries = 2 * (edges - 1) + 2 * TRIES_PER_TURN as usize;
        for _ in 0..tries {
            let place = walk.take();
            walk.settle(place, place != 7);
        }

        for (place, edge) in walk.edges.iter().enumerate() {
            let expected = if place == 7 { (0, 2 * TRIES_PER_TURN) } else { (2, 0) };
            assert_eq!((edge.decided, edge.undecided), expected, "{} of {}", edge.limit.name, edge.size);
        }
        assert!(walk.is_hurried());
    }
}
