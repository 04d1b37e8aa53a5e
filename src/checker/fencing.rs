//! Fencing: a fenced resource accepts no write of an older grant after one of a newer grant.
//!
//! The resource refuses an exclusive token lower than any that it has seen, and a shared token lower than the highest exclusive one.
//! Permits are not ordered. Writes are ordered by the resource's own count (`seq`) if it has one, otherwise by real time where that is
//! certain.
//!
//! Writes to unfenced resources (`fenced` is false) are only counted: with paused clients some of them *should* be out
//! of order, otherwise the run is too weak.

use std::{collections::BTreeMap, fmt};

use super::{
    run::Run,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::{Answer, Call, Ended, Mode, Operation};

#[derive(Clone, Copy)]
struct Write {
    token: u64,
    mode: Mode,
    seq: Option<u64>,
    invoked_ns: u64,
    ended_ns: u64,
    line: usize,
}

struct OlderAfterNewer<'r> {
    lock: &'r str,
    newer: Write,
    older: Write,
}

impl fmt::Display for OlderAfterNewer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lock, newer, older } = self;
        let old = older.token;
        let new = newer.token;
        write!(f, "the resource of lock {lock:?} accepted a write with token {old} after one with token {new}")
    }
}

impl Evidence for OlderAfterNewer<'_> {
    fn lines(&self) -> Vec<usize> {
        vec![self.newer.line, self.older.line]
    }
}

pub(super) fn check(run: &Run<'_>) -> Finding {
    let mut investigation = Investigation::new(Property::Fencing);
    investigation.count("writes accepted", 0);

    let mut resources: BTreeMap<(&str, bool), Vec<Write>> = BTreeMap::new();
    for operation in &run.operations {
        let Call::Write { fenced, .. } = operation.call else { continue };
        match (accepted(operation), operation.ended) {
            (Some(write), _) => resources.entry((&operation.locks[0], *fenced)).or_default().push(write),
            (None, Ended::Fail("refused_token")) if *fenced => investigation.count("writes refused", 1),
            (None, _) => {}
        }
    }

    for ((lock, fenced), writes) in resources {
        let count = writes.len() as u64;
        let disordered = disordered(writes);

        if fenced {
            investigation.count("writes accepted", count);
            disordered.iter().for_each(|(newer, older)| {
                investigation.report(&OlderAfterNewer { lock, newer: *newer, older: *older });
            });
        } else {
            investigation.count("unfenced writes", count);
            investigation.count("unfenced writes out of order", disordered.len() as u64);
        }
    }

    investigation.close()
}

fn accepted(operation: &Operation<'_>) -> Option<Write> {
    let Call::Write { token, mode, .. } = operation.call else { return None };
    let Ended::Ok(Answer::Write { seq }) = operation.ended else { return None };
    let Operation { invoked_ns, ended_ns, ended_line, .. } = *operation;
    Some(Write { token: *token, mode: *mode, seq: *seq, invoked_ns, ended_ns, line: ended_line })
}

/// Pairs of a write and a later write by an older grant that certainly came after it.
fn disordered(mut writes: Vec<Write>) -> Vec<(Write, Write)> {
    let counted = writes.iter().all(|write| write.seq.is_some());
    let begins = |write: &Write| write.seq.filter(|_| counted).unwrap_or(write.invoked_ns);
    let ends = |write: &Write| write.seq.filter(|_| counted).unwrap_or(write.ended_ns);
    let mut by_end = writes.clone();
    by_end.sort_unstable_by_key(ends);
    writes.sort_unstable_by_key(begins);

    let mut earlier = by_end.into_iter().peekable();
    let mut highest = None::<Write>;
    let mut highest_exclusive = None::<Write>;
    let mut disordered = Vec::new();
    for write in writes {
        while let Some(before) = earlier.next_if(|before| ends(before) < begins(&write)) {
            let raises = |known: Option<Write>| known.is_none_or(|known| known.token < before.token);
            match before.mode {
                Mode::Exclusive if raises(highest_exclusive) => highest_exclusive = Some(before),
                Mode::Exclusive | Mode::Shared | Mode::Permits(_) => {}
            }
            if !matches!(before.mode, Mode::Permits(_)) && raises(highest) {
                highest = Some(before);
            }
        }
        let floor = match write.mode {
            Mode::Exclusive => highest,
            Mode::Shared => highest_exclusive,
            Mode::Permits(_) => None,
        };
        disordered.extend(floor.filter(|floor| floor.token > write.token).map(|floor| (floor, write)));
    }
    disordered
}
