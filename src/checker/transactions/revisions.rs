//! Transactions of a store with revisions: one pass in the order of revisions.
//!
//! What a transaction read, absences included, must be the state at its revision, or for one that writes the state before it. The order of
//! revisions must agree with real time. Doubts count for the store: a lease may be over, and a transaction of unknown outcome may have
//! deleted.
//!
//! Transactions whose deletes do not say how many registers they found, and that put nothing, may or may not have a revision of their own.
//! What they read is not checked.

use std::collections::{HashMap, HashSet};

use super::{
    anomaly::{AnomalyKind, TxnAnomaly},
    ends::RegisterEnds,
    timeline::{CommittedTxn, RegisterChange, Timelines, TxnEffect},
};
use crate::{
    history::{
        Call, CompareRelation, CompareTarget, Fact, SeenRange, SeenRegister, StepResult, TxnCompare, TxnPut, TxnRange,
        TxnStep,
    },
    run::{Acknowledged, Run},
    verdict::Investigation,
};

/// A register that was absent before the lease of its session was over.
#[derive(Clone, Debug)]
pub(crate) struct EndedEarly {
    pub(crate) key: String,
    pub(crate) session: String,
    pub(crate) lease: Acknowledged,
    /// The moment and the line of the answer that showed its absence.
    pub(crate) told: (u64, usize),
    pub(crate) put_line: usize,
}

impl EndedEarly {
    /// The register that a change left with a lease whose session lives. None if there is no such session.
    pub(super) fn from_change(
        run: &Run<'_>,
        key: &str,
        change: &RegisterChange<'_>,
        told: (u64, usize),
    ) -> Option<Self> {
        let put = change.now?.put.filter(|put| !put.outlives_lease)?;
        let session = put.lease.clone()?;
        let lease = run.session(&session)?.trusted?;
        Some(Self { key: key.to_owned(), session, lease, told, put_line: change.line })
    }
}

/// What a transaction saw of one register.
#[derive(Clone, Copy)]
enum ObservedRegister<'r> {
    Absent,
    Present { modified: Option<u64>, seen: Option<&'r SeenRegister> },
}

/// The first evidence that a value of a register was gone.
#[derive(Clone, Copy)]
struct GoneValue {
    bound: u64,
    ended_ns: u64,
    line: usize,
}

pub(super) struct RevisionCheck<'t, 'r> {
    run: &'t Run<'r>,
    timelines: &'t Timelines<'t>,
    investigation: &'t mut Investigation,
    /// The values that had ended, by register and revision.
    gone: HashMap<(&'t str, u64), GoneValue>,
    ends: &'t RegisterEnds<'t>,
    ended_early: Vec<EndedEarly>,
    is_restored: bool,
}

/// Checks all transactions with revisions. Returns the registers whose leases ended too early, which are another property's violations.
pub(super) fn check<'t>(
    run: &'t Run<'_>,
    timelines: &'t Timelines<'t>,
    ends: &'t RegisterEnds<'t>,
    investigation: &'t mut Investigation,
) -> Vec<EndedEarly> {
    let is_restored = run.facts.iter().any(|told| matches!(told.fact, Fact::Restored));
    let mut check = RevisionCheck {
        run,
        timelines,
        investigation,
        gone: HashMap::new(),
        ends,
        ended_early: Vec::new(),
        is_restored,
    };

    // Absences first: a value that was gone must not be read later.
    for commit in &timelines.commits {
        check.absences(commit);
    }
    for commit in &timelines.commits {
        check.presences(commit);
        check.compares(commit);
        check.real_time(commit);
    }
    check.ended_early
}

/// The last revision whose changes a transaction sees.
fn bound(commit: &CommittedTxn<'_>) -> u64 {
    let writes = commit.effect == TxnEffect::Writes;
    commit.transaction.at.unwrap_or(commit.revision.saturating_sub(u64::from(writes)))
}

impl<'t> RevisionCheck<'t, '_> {
    fn absences(&mut self, commit: &CommittedTxn<'t>) {
        self.investigation.count("transactions", 1);
        for (key, observed) in self.observations(commit).others {
            if let ObservedRegister::Absent = observed {
                self.absent(commit, key);
            }
        }
    }

    fn absent(&mut self, commit: &CommittedTxn<'t>, key: &'t str) {
        self.investigation.count("absences", 1);
        let bound = bound(commit);
        let Some(change) = self.timelines.last_change(key, bound).copied() else { return };
        let Some(now) = change.now else { return };

        let ended_ns = commit.operation.ended_ns;
        let line = commit.line();
        let has_ended = self.ends.may_have_ended(now.put, ended_ns);
        if !has_ended && !self.timelines.may_have_deleted(key, bound, ended_ns) {
            match EndedEarly::from_change(self.run, key, &change, (ended_ns, line)) {
                Some(early) => self.ended_early.push(early),
                None => return self.misses(commit, key, &change, "is read as absent"),
            }
        }

        if !commit.is_of_the_past() {
            let gone = GoneValue { bound, ended_ns, line };
            let first = self.gone.entry((key, change.revision)).or_insert(gone);
            if (gone.bound, gone.ended_ns) < (first.bound, first.ended_ns) {
                *first = gone;
            }
        }
    }

    fn outlives(&self, put: Option<&TxnPut>) -> bool {
        put.is_some_and(|put| put.outlives_lease)
    }

    fn presences(&mut self, commit: &CommittedTxn<'t>) {
        let seen = self.observations(commit);
        for key in seen.missed {
            let says = format!("register {key:?} is read by a transaction otherwise than it wrote it itself");
            self.report(AnomalyKind::Internal, says, [commit.operation.invoked_line, commit.line()]);
        }

        for (key, observed) in seen.others {
            if let ObservedRegister::Present { modified, seen } = observed {
                self.investigation.count("registers read", 1);
                match modified {
                    Some(modified) => self.present(commit, key, modified, seen),
                    None => self.present_by_value(commit, key, seen),
                }
            }
        }
    }

    fn present(&mut self, commit: &CommittedTxn<'t>, key: &'t str, modified: u64, seen: Option<&SeenRegister>) {
        let bound = bound(commit);
        if modified > bound {
            let revision = commit.revision;
            let says = format!("the transaction of revision {revision} read register {key:?} of revision {modified}");
            let line = self.timelines.last_change(key, modified).map(|change| change.line);
            self.report(AnomalyKind::G1c, says, line.into_iter().chain([commit.line()]));
            return;
        }

        if let Some(change) =
            self.timelines.last_change(key, bound).copied().filter(|change| change.revision > modified)
        {
            return self.misses(commit, key, &change, &format!("is read of revision {modified}"));
        }

        // The end of a lease that was over has a later revision: reads of the past show the register until then.
        let gone = self.gone.get(&(key, modified)).copied().filter(|_| !commit.is_of_the_past());
        if let Some(gone) = gone {
            let is_later = gone.bound < bound || gone.bound == bound && gone.ended_ns < commit.operation.invoked_ns;
            if is_later {
                let says = format!("register {key:?} had ended, and is read again as revision {modified} wrote it");
                self.report(AnomalyKind::StaleRead, says, [gone.line, commit.line()]);
            }
        }

        if let Some(seen) = seen {
            self.version(commit, key, modified, seen);
        }
    }

    /// A store that shows no revisions of its registers is judged by the values.
    fn present_by_value(&mut self, commit: &CommittedTxn<'t>, key: &'t str, seen: Option<&SeenRegister>) {
        let bound = bound(commit);
        let ended_ns = commit.operation.ended_ns;
        if self.timelines.may_have_changed(key, bound, ended_ns) || self.is_restored {
            return;
        }

        let change = self.timelines.last_change(key, bound).copied();
        let value = seen.and_then(|seen| seen.value.as_deref());
        match change {
            Some(change) if change.now.is_some_and(|now| value.is_none() || now.value == value) => {}
            Some(change) if change.now.is_none() && !change.is_certain => {}
            Some(change) => self.misses(commit, key, &change, "is read as present, or with another value,"),
            None => {
                let says = format!("register {key:?} is present at revision {bound}, and nobody wrote it");
                self.report(AnomalyKind::GarbageRead, says, [commit.line()]);
            }
        }
    }

    /// The number of its writes since it came into being must fit what is known of these writes.
    fn version(&mut self, commit: &CommittedTxn<'t>, key: &str, modified: u64, seen: &SeenRegister) {
        let Some(created) = seen.created else { return };
        let Some(version) = seen.version else { return };
        if created > modified || version == 0 || version - 1 > modified - created {
            let says = format!("register {key:?} has version {version}, created at {created}, modified at {modified}");
            return self.report(AnomalyKind::DirtyUpdate, says, [commit.line()]);
        }

        let Some(first) = self.timelines.last_change(key, created).filter(|change| change.revision == created) else {
            return;
        };
        let Some(last) = self.timelines.last_change(key, modified) else { return };
        let is_put = usize::from(last.now.is_some() && last.by.is_some());
        let puts = (last.before[0] + is_put).saturating_sub(first.before[0]) as u64;
        let deletes = last.before[1].saturating_sub(first.before[1]);
        let lines = [first.line, last.line, commit.line()];

        if puts > version {
            let says = format!("register {key:?} has version {version} at revision {modified}, after {puts} writes");
            self.report(AnomalyKind::LostUpdate, says, lines);
        } else if deletes > 0 {
            let says = format!("register {key:?} has existed since revision {created}, though it was deleted later");
            self.report(AnomalyKind::LostUpdate, says, lines);
        }
    }

    /// A transaction missed a change that its revision has.
    fn misses(&mut self, commit: &CommittedTxn<'t>, key: &str, change: &RegisterChange<'_>, how: &str) {
        let writes = commit.effect == TxnEffect::Writes;
        let branch = commit.transaction.branch(commit.answer.succeeded);
        let written: HashSet<&str> = branch
            .iter()
            .filter_map(|step| match step {
                TxnStep::Put(TxnPut { key, .. }) | TxnStep::Delete { key } => Some(&**key),
                TxnStep::Get { .. } | TxnStep::Range(_) | TxnStep::DeleteRange(_) => None,
            })
            .collect();

        let kind = if !writes && change.acked_ns() < commit.operation.invoked_ns {
            AnomalyKind::StaleRead
        } else if written.contains(key) {
            AnomalyKind::LostUpdate
        } else if writes && reads_any(change, &written) {
            AnomalyKind::G2
        } else {
            AnomalyKind::GSingle
        };

        let revision = commit.revision;
        let says = format!(
            "register {key:?} changed at revision {}, and {how} by the transaction of revision {revision}",
            change.revision
        );
        self.report(kind, says, [change.line, commit.operation.invoked_line, commit.line()]);
    }

    fn compares(&mut self, commit: &CommittedTxn<'t>) {
        if commit.effect == TxnEffect::Unsure {
            return;
        }

        let succeeded = commit.answer.succeeded;
        // What a condition says of its register by itself is judged as if it had been read.
        let is_judged = |compare: &TxnCompare| succeeded && seen_by_compare(compare).is_some();
        let held = |compare: &TxnCompare| if is_judged(compare) { None } else { self.holds(commit, compare) };
        let held: Vec<_> = commit.transaction.compares.iter().map(held).collect();
        let is_wrong =
            if succeeded { held.contains(&Some(false)) } else { held.iter().all(|held| *held == Some(true)) };

        if is_wrong {
            let revision = commit.revision;
            let compares = &commit.transaction.compares;
            let wrong =
                compares.iter().zip(&held).find(|(_, held)| **held == Some(!succeeded)).map(|(compare, _)| compare);
            let change = wrong.and_then(|wrong| self.timelines.last_change(&wrong.key, bound(commit)));
            let line = change.map(|change| change.line);
            let says = match wrong {
                Some(wrong) if succeeded => {
                    format!(
                        "revision {revision} succeeded, though its condition on register {:?} did not hold",
                        wrong.key
                    )
                }
                _ => format!("revision {revision} did not succeed, though all its conditions held"),
            };
            self.report(
                AnomalyKind::WrongBranch,
                says,
                line.into_iter().chain([commit.operation.invoked_line, commit.line()]),
            );
        }
    }

    /// Whether a condition certainly held, or certainly did not.
    fn holds(&self, commit: &CommittedTxn<'t>, compare: &TxnCompare) -> Option<bool> {
        let Some(up_to) = &compare.up_to else { return self.register_holds(commit, &compare.key, compare) };

        let range = TxnRange { from: Some(compare.key.clone()), to: Some(up_to.clone()) };
        let from: &str = &compare.key;
        let keys = self.timelines.keys.range(from..).take_while(|key| range.contains(key));
        let mut present = Vec::new();
        for key in keys {
            if self.known(commit, key)?.is_some() {
                present.push(self.register_holds(commit, key, compare)?);
            }
        }

        if present.is_empty() {
            self.register_holds(commit, &compare.key, compare)
        } else {
            Some(present.iter().all(|holds| *holds))
        }
    }

    /// The register before the transaction, if that is certain: none if it was absent.
    fn known(&self, commit: &CommittedTxn<'t>, key: &str) -> Option<Option<&'t RegisterChange<'t>>> {
        let bound = bound(commit);
        let ended_ns = commit.operation.ended_ns;
        if self.is_restored || self.timelines.may_have_changed(key, bound, ended_ns) {
            return None;
        }

        let Some(change) = self.timelines.last_change(key, bound) else { return Some(None) };
        match change.now {
            None => Some(None),
            Some(now)
                if self.ends.may_have_ended(now.put, ended_ns) || self.gone.contains_key(&(key, change.revision)) =>
            {
                None
            }
            // Its revision changes when its lease ends.
            Some(now) if self.outlives(now.put) || now.put.is_some_and(|put| put.keeps_lease) => None,
            Some(_) => Some(Some(change)),
        }
    }

    fn register_holds(&self, commit: &CommittedTxn<'t>, key: &str, compare: &TxnCompare) -> Option<bool> {
        let change = self.known(commit, key)?;
        let number = compare.number.unwrap_or_default();
        let ordering = match compare.target {
            CompareTarget::Modified => change.map_or(0, |change| change.revision).cmp(&number),
            // The creation revision and the version of a register that is present are at least 1, and are not known.
            CompareTarget::Created | CompareTarget::Version if change.is_none() || number == 0 => {
                u64::from(change.is_some()).cmp(&number)
            }
            CompareTarget::Created | CompareTarget::Version => return None,
            CompareTarget::Value => match change {
                Some(change) => change.now?.value?.cmp(compare.text.as_deref()?),
                None => return Some(false),
            },
            CompareTarget::Lease => match change {
                Some(change) => change.now?.put?.lease.cmp(&compare.text),
                None => None.cmp(&compare.text),
            },
        };

        Some(match compare.is {
            CompareRelation::Equal => ordering.is_eq(),
            CompareRelation::NotEqual => ordering.is_ne(),
            CompareRelation::Less => ordering.is_lt(),
            CompareRelation::Greater => ordering.is_gt(),
        })
    }

    fn real_time(&mut self, commit: &CommittedTxn<'t>) {
        let Some((floor, line)) = self.timelines.floors.before(commit.operation.invoked_ns) else { return };
        if commit.is_of_the_past() {
            return;
        }

        let writes = commit.effect == TxnEffect::Writes;
        let revision = commit.revision;
        let is_wrong = if writes { revision <= floor } else { revision < floor };
        if is_wrong {
            let kind = if writes { AnomalyKind::Realtime } else { AnomalyKind::StaleRead };
            let says = format!("a transaction has revision {revision}, and began after revision {floor} was answered");
            self.report(kind, says, [line, commit.operation.invoked_line, commit.line()]);
        }
    }

    fn report(&mut self, kind: AnomalyKind, says: String, lines: impl IntoIterator<Item = usize>) {
        self.investigation.report(&TxnAnomaly::new(kind, says, lines));
    }

    /// What a transaction saw of registers that it had not written itself, and where it missed its own writes.
    fn observations(&self, commit: &CommittedTxn<'t>) -> SeenByTxn<'t> {
        let mut seen = SeenByTxn::default();
        if commit.effect == TxnEffect::Unsure {
            return seen;
        }

        let CommittedTxn { transaction, answer, .. } = *commit;
        if answer.succeeded {
            seen.others.extend(transaction.compares.iter().filter_map(seen_by_compare));
        }

        for (step, result) in transaction.branch(answer.succeeded).iter().zip(&answer.results) {
            match (step, result) {
                (TxnStep::Get { key }, StepResult::Got(register)) => seen.add(key, register.as_ref()),
                (TxnStep::Range(range), StepResult::Ranged(registers)) => self.see_range(range, registers, &mut seen),
                (TxnStep::Delete { key }, StepResult::Deleted { count }) => seen.add_delete(key, *count),
                (TxnStep::DeleteRange(range), _) => {
                    seen.own.extend(self.keys_in(range).map(|key| (key, None)));
                }
                (TxnStep::Put(put), _) => {
                    seen.own.insert(&put.key, Some(put));
                }
                // The reader of histories refuses results of another kind.
                _ => {}
            }
        }
        seen
    }

    fn keys_in(&self, range: &'t TxnRange) -> impl Iterator<Item = &'t str> {
        let from = range.from.as_deref().unwrap_or_default();
        self.timelines.keys.range(from..).copied().take_while(|key| range.contains(key))
    }

    fn see_range(&self, range: &'t TxnRange, shown: &'t SeenRange, seen: &mut SeenByTxn<'t>) {
        let mut keys = HashSet::with_capacity(shown.registers.len());
        for (key, register) in &shown.registers {
            seen.add(key, Some(register));
            keys.insert(&**key);
        }

        // A limit leaves out the greatest keys: nothing is known of those above the last one.
        let last = if shown.more { shown.registers.iter().map(|(key, _)| &**key).max() } else { None };
        if shown.partial || shown.more && last.is_none() {
            return;
        }

        let up_to_last = self.keys_in(range).take_while(|key| last.is_none_or(|last| *key <= last));
        for key in up_to_last.filter(|key| !keys.contains(key)) {
            seen.add(key, None);
        }
    }
}

/// What a transaction saw.
#[derive(Default)]
struct SeenByTxn<'r> {
    /// What it wrote so far: none where it deleted.
    own: HashMap<&'r str, Option<&'r TxnPut>>,
    /// What it saw of registers that it had not written.
    others: Vec<(&'r str, ObservedRegister<'r>)>,
    /// The registers that it saw otherwise than it had written them.
    missed: Vec<&'r str>,
}

impl<'r> SeenByTxn<'r> {
    fn add(&mut self, key: &'r str, seen: Option<&'r SeenRegister>) {
        let Some(written) = self.own.get(key) else {
            let present =
                |seen: &'r SeenRegister| ObservedRegister::Present { modified: seen.modified, seen: Some(seen) };
            self.others.push((key, seen.map_or(ObservedRegister::Absent, present)));
            return;
        };

        let is_equal = match (written, seen) {
            (None, None) => true,
            (Some(put), Some(seen)) => seen.value.as_ref().is_none_or(|value| *value == put.value),
            (Some(_), None) | (None, Some(_)) => false,
        };
        if !is_equal {
            self.missed.push(key);
        }
    }

    fn add_delete(&mut self, key: &'r str, count: Option<u64>) {
        let is_own = self.own.insert(key, None).is_some();
        let found = match count {
            Some(0) => ObservedRegister::Absent,
            Some(_) => ObservedRegister::Present { modified: None, seen: None },
            None => return,
        };
        if !is_own {
            self.others.push((key, found));
        }
    }
}

/// What a condition that held says of its register by itself.
fn seen_by_compare(compare: &TxnCompare) -> Option<(&str, ObservedRegister<'_>)> {
    let TxnCompare { key, up_to: None, target, is: CompareRelation::Equal, number: Some(number), .. } = compare else {
        return None;
    };
    match (target, number) {
        (CompareTarget::Created | CompareTarget::Version | CompareTarget::Modified, 0) => {
            Some((key, ObservedRegister::Absent))
        }
        (CompareTarget::Modified, modified) => {
            Some((key, ObservedRegister::Present { modified: Some(*modified), seen: None }))
        }
        _ => None,
    }
}

/// Whether the transaction of a change read one of these registers.
fn reads_any(change: &RegisterChange<'_>, keys: &HashSet<&str>) -> bool {
    let Some(Call::Txn(transaction)) = change.by.map(|operation| operation.call) else { return false };
    let is_read = |step: &TxnStep| match step {
        TxnStep::Get { key } => keys.contains(&**key),
        TxnStep::Range(range) => keys.iter().any(|key| range.contains(key)),
        TxnStep::Put(_) | TxnStep::Delete { .. } | TxnStep::DeleteRange(_) => false,
    };
    transaction.compares.iter().any(|compare| keys.contains(&*compare.key))
        || transaction.then.iter().chain(&transaction.otherwise).any(is_read)
}
