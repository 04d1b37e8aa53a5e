//! Tenures that overlap and must not.
//!
//! One sweep over each lock's tenures, by their begins. Of exclusive and shared ones it is enough to remember the one that lasts
//! longest; of permits, those that are held now.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::grants::{Grant, Grants};
use crate::chaos::history::Mode;

/// Grants that certainly hold a lock at the same time, and must not.
#[derive(Clone, Debug)]
pub(super) struct Overlap<'g> {
    pub(super) lock: &'g str,
    /// Those that held it, and as many as fill it up.
    pub(super) held: Vec<&'g Grant<'g>>,
    /// The one that was granted nevertheless. Its token is the highest.
    pub(super) next: &'g Grant<'g>,
}

impl Overlap<'_> {
    /// When the last of them was certainly there.
    pub(super) fn begin_ns(&self) -> u64 {
        self.held.iter().map(|grant| grant.from_ns).fold(self.next.from_ns, u64::max)
    }

    /// Of those that held it, one that was heard of no more once the next was granted: its session, it seems, was ended too early. An
    /// overlap without such a one is two grants of one lock.
    pub(super) fn silent(&self) -> Option<&Grant<'_>> {
        self.held.iter().copied().find(|grant| grant.alive_ns < self.next.answered_ns)
    }
}

/// All of them; of each lock and each grant the first.
pub(super) fn overlaps<'g>(grants: &'g Grants<'g>) -> Vec<Overlap<'g>> {
    let mut overlaps = Vec::new();
    for (lock, mut of_lock) in grants.of_lock() {
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
    /// Places among the permits, by their ends.
    ends: BinaryHeap<Reverse<(u64, u64)>>,
}

impl<'g> Holders<'g> {
    /// Those that stand against one more in this mode.
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
