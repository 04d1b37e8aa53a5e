//! Conflicting tenures that overlap.
//!
//! This sweeps once over each lock's tenures, sorted by start. Of exclusive and shared tenures, only the longest is kept; of permits, those
//! that are held at the moment.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::grants::{Grant, Grants};
use crate::history::Mode;

/// Conflicting grants that certainly hold a lock at the same time.
#[derive(Clone, Debug)]
pub(super) struct Overlap<'g> {
    pub(super) lock: &'g str,
    /// The earlier holders. Together they leave no room for another.
    pub(super) held: Vec<&'g Grant<'g>>,
    /// The grant that conflicts with them. It has the highest token.
    pub(super) next: &'g Grant<'g>,
}

impl Overlap<'_> {
    /// The moment from which all of them certainly held the lock.
    pub(super) fn begin_ns(&self) -> u64 {
        self.held.iter().map(|grant| grant.from_ns).fold(self.next.from_ns, u64::max)
    }

    /// An earlier holder without evidence after the next grant: its session was probably ended too early. An overlap without that holder
    /// is two grants of one lock.
    pub(super) fn silent(&self) -> Option<&Grant<'_>> {
        self.held.iter().copied().find(|grant| grant.alive_ns < self.next.answered_ns)
    }
}

/// All overlaps, and of each lock and grant the first.
pub(super) fn overlaps<'g>(grants: &'g Grants<'g>) -> Vec<Overlap<'g>> {
    let mut overlaps = Vec::new();

    for (lock, mut of_lock) in grants.by_lock() {
        of_lock.retain(|grant| grant.is_certain());
        of_lock.sort_by_key(|grant| (grant.from_ns, grant.token));

        let mut holders = Holders::default();
        for next in of_lock {
            let mode = next.mode(lock);
            let against = holders.against(mode, next.from_ns);

            holders.add(mode, next);
            if !against.is_empty() {
                overlaps.push(in_order(lock, against, next));
            }
        }
    }

    overlaps.sort_by_key(|overlap| overlap.next.answered_line);
    overlaps
}

fn in_order<'g>(lock: &'g str, mut grants: Vec<&'g Grant<'g>>, next: &'g Grant<'g>) -> Overlap<'g> {
    grants.push(next);
    grants.sort_by_key(|grant| grant.token);
    let next = grants.pop().unwrap_or(next);
    Overlap { lock, held: grants, next }
}

#[derive(Default)]
struct Holders<'g> {
    exclusive: Option<&'g Grant<'g>>,
    shared: Option<&'g Grant<'g>>,
    permits: Vec<(u32, &'g Grant<'g>)>,
    /// The ends and tokens of the permits, earliest first.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
}

impl<'g> Holders<'g> {
    /// The holders that conflict with another grant in this mode.
    fn against(&mut self, mode: Mode, now_ns: u64) -> Vec<&'g Grant<'g>> {
        while let Some(Reverse((until_ns, token))) = self.ends.peek().copied()
            && until_ns <= now_ns
        {
            self.ends.pop();
            self.permits.retain(|(_, grant)| grant.token != token);
        }

        let lasts = |grant: &&Grant<'_>| grant.until_ns > now_ns;
        let exclusive = self.exclusive.filter(lasts);
        let shared = self.shared.filter(lasts);
        let permit = self.permits.first().map(|(_, grant)| *grant);

        match mode {
            Mode::Exclusive => exclusive.or(shared).or(permit).into_iter().collect(),
            Mode::Shared => exclusive.or(permit).into_iter().collect(),
            Mode::Permits(size) => {
                let other = self.permits.iter().find(|(other, _)| *other != size).map(|(_, grant)| *grant);
                match exclusive.or(shared).or(other) {
                    Some(grant) => vec![grant],
                    None if self.permits.len() >= size as usize => {
                        self.permits.iter().map(|(_, grant)| *grant).collect()
                    }
                    None => Vec::new(),
                }
            }
        }
    }

    fn add(&mut self, mode: Mode, grant: &'g Grant<'g>) {
        let longest =
            |known: Option<&'g Grant<'g>>| known.filter(|known| known.until_ns >= grant.until_ns).or(Some(grant));
        match mode {
            Mode::Exclusive => self.exclusive = longest(self.exclusive),
            Mode::Shared => self.shared = longest(self.shared),
            Mode::Permits(size) => {
                self.permits.push((size, grant));
                self.ends.push(Reverse((grant.until_ns, grant.token)));
            }
        }
    }
}
