//! The changes of each register, by revision, as far as the history shows them.
//!
//! Changes come from four sources: answered transactions, registers that a read or a watch showed, and transactions of unknown outcome. The
//! last are found by their values: if a register has a value at a revision, and one transaction alone can have put it there, then that
//! transaction took effect at this revision, with all its writes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::anomaly::{AnomalyKind, TxnAnomaly};
use crate::{
    history::{
        Answer, Call, Ended, Fact, Operation, SeenRegister, StepResult, Transaction, TxnAnswer, TxnPut, TxnRange,
        TxnStep,
    },
    run::Run,
    verdict::Investigation,
};

/// An answered transaction with a revision.
#[derive(Clone, Copy)]
pub(super) struct CommittedTxn<'r> {
    pub(super) operation: &'r Operation<'r>,
    pub(super) transaction: &'r Transaction,
    pub(super) answer: &'r TxnAnswer,
    pub(super) revision: u64,
    pub(super) effect: TxnEffect,
}

/// Whether a transaction changed a register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TxnEffect {
    /// It changed none.
    Reads,
    /// It changed at least one.
    Writes,
    /// It deleted, and the store does not say whether there was anything.
    Unsure,
}

/// A change of a register.
#[derive(Clone, Copy)]
pub(super) struct RegisterChange<'r> {
    pub(super) revision: u64,
    /// The new value, unless the register was deleted or has ended.
    pub(super) now: Option<RegisterValue<'r>>,
    /// The transaction, if it is known.
    pub(super) by: Option<&'r Operation<'r>>,
    /// The line that shows the change.
    pub(super) line: usize,
    /// Whether the register certainly changed. A delete may have found nothing.
    pub(super) is_certain: bool,
    /// Numbers of earlier changes of the register by puts and by certain deletes.
    pub(super) before: [usize; 2],
}

/// A value of a register, as far as it is known.
#[derive(Clone, Copy)]
pub(super) struct RegisterValue<'r> {
    pub(super) value: Option<&'r str>,
    pub(super) put: Option<&'r TxnPut>,
}

impl RegisterChange<'_> {
    /// The moment at which its client knew of it.
    pub(super) fn acked_ns(&self) -> u64 {
        self.by.map_or(u64::MAX, |operation| operation.ended_ns)
    }
}

/// A register that a read or a watch showed, with the revision of its last change.
#[derive(Clone, Copy)]
struct Sight<'r> {
    key: &'r str,
    revision: u64,
    seen: &'r SeenRegister,
    /// The moment at which the change had certainly taken effect.
    by_ns: u64,
    line: usize,
}

/// The known changes of all registers.
pub(super) struct Timelines<'r> {
    /// The changes of each register, in the order of their revisions.
    pub(super) registers: BTreeMap<&'r str, Vec<RegisterChange<'r>>>,
    pub(super) commits: Vec<CommittedTxn<'r>>,
    /// The registers that the history names.
    pub(super) keys: BTreeSet<&'r str>,
    pub(super) floors: RevisionFloors,
    pub(super) unplaced: UnplacedWrites<'r>,
}

/// When the first transaction was sent that may change a register, and whose revision is not known. The first one allows all that later
/// ones do.
#[derive(Default)]
pub(super) struct UnplacedWrites<'r> {
    writes: HashMap<&'r str, u64>,
    deletes: HashMap<&'r str, u64>,
    ranges: Vec<(u64, &'r TxnRange)>,
}

impl<'r> UnplacedWrites<'r> {
    fn add(&mut self, operation: &Operation<'_>, step: &'r TxnStep) {
        let sent_ns = operation.invoked_ns;
        let note = |first: &mut u64| *first = sent_ns.min(*first);
        match step {
            TxnStep::Put(put) => note(self.writes.entry(&put.key).or_insert(sent_ns)),
            TxnStep::Delete { key } => note(self.deletes.entry(key).or_insert(sent_ns)),
            TxnStep::DeleteRange(range) => self.ranges.push((sent_ns, range)),
            TxnStep::Get { .. } | TxnStep::Range(_) => {}
        }
    }

    fn first_delete(&self, key: &str) -> Option<u64> {
        let of_ranges = self.ranges.iter().filter(|(_, range)| range.contains(key)).map(|(sent_ns, _)| *sent_ns);
        of_ranges.chain(self.deletes.get(key).copied()).min()
    }
}

/// For each moment, the greatest revision that an answer had told by then.
pub(super) struct RevisionFloors(Vec<(u64, u64, usize)>);

impl RevisionFloors {
    fn from_commits(commits: &[CommittedTxn<'_>]) -> Self {
        let is_present = |commit: &&CommittedTxn<'_>| !commit.is_of_the_past();
        // A read of the past tells an old revision, however late it is answered.
        let ends = commits.iter().filter(is_present);
        let mut ends: Vec<_> = ends.map(|commit| (commit.operation.ended_ns, commit.revision, commit.line())).collect();
        ends.sort_unstable();

        for place in 1..ends.len() {
            let (_, revision, line) = ends[place - 1];
            // Answers may overtake each other: what was told once stays told.
            if ends[place].1 < revision {
                ends[place].1 = revision;
                ends[place].2 = line;
            }
        }
        Self(ends)
    }

    /// The greatest revision that was told before a moment, and its line.
    pub(super) fn before(&self, at_ns: u64) -> Option<(u64, usize)> {
        let known = self.0.partition_point(|(ended_ns, ..)| *ended_ns < at_ns);
        self.0[..known].last().map(|(_, revision, line)| (*revision, *line))
    }

    /// Whether a transaction that was sent at this moment can have taken effect at this revision.
    fn allows(&self, sent_ns: u64, revision: u64) -> bool {
        self.before(sent_ns).is_none_or(|(floor, _)| floor < revision)
    }
}

impl CommittedTxn<'_> {
    /// The line of its answer.
    pub(super) fn line(&self) -> usize {
        self.operation.ended_line
    }

    /// Whether it may show the state of an earlier moment.
    pub(super) fn is_of_the_past(&self) -> bool {
        self.transaction.at.is_some() || self.transaction.stale
    }
}

/// The transactions of a run, by what is known of them.
struct TxnsByOutcome<'r> {
    commits: Vec<CommittedTxn<'r>>,
    unplaced: Vec<(&'r Operation<'r>, &'r Transaction)>,
    /// The puts of transactions that had no effect, and of branches that did not run, by register and value.
    aborted: HashMap<(&'r str, &'r str), &'r Operation<'r>>,
    /// The puts that a later step of the same transaction replaced.
    intermediate: HashMap<(&'r str, &'r str), &'r Operation<'r>>,
    keys: BTreeSet<&'r str>,
}

impl<'r> TxnsByOutcome<'r> {
    fn from_run(run: &'r Run<'_>) -> Self {
        let mut txns = Self {
            commits: Vec::new(),
            unplaced: Vec::new(),
            aborted: HashMap::new(),
            intermediate: HashMap::new(),
            keys: BTreeSet::new(),
        };

        for operation in &run.operations {
            if let Call::Txn(transaction) = operation.call {
                txns.add(operation, transaction);
            }
        }
        txns
    }

    fn add(&mut self, operation: &'r Operation<'_>, transaction: &'r Transaction) {
        for step in transaction.then.iter().chain(&transaction.otherwise) {
            if let TxnStep::Put(put) = step {
                self.keys.insert(&put.key);
            }
        }

        match operation.ended {
            Ended::Ok(Answer::Txn(answer)) => {
                // The branch that did not run: a value of it that somebody reads was never there.
                self.note_aborted(operation, transaction.branch(!answer.succeeded));
                self.note_intermediate(operation, transaction.branch(answer.succeeded));
                match answer.revision {
                    Some(revision) => {
                        let effect = effect(transaction, answer);
                        self.commits.push(CommittedTxn { operation, transaction, answer, revision, effect });
                    }
                    None => self.unplaced.push((operation, transaction)),
                }
            }
            Ended::Ok(_) | Ended::Info | Ended::Open => self.unplaced.push((operation, transaction)),
            Ended::Fail(_) => {
                self.note_aborted(operation, &transaction.then);
                self.note_aborted(operation, &transaction.otherwise);
            }
        }
    }

    fn note_aborted(&mut self, operation: &'r Operation<'_>, steps: &'r [TxnStep]) {
        for step in steps {
            if let TxnStep::Put(put) = step {
                self.aborted.insert((&put.key, &put.value), operation);
            }
        }
    }

    fn note_intermediate(&mut self, operation: &'r Operation<'_>, steps: &'r [TxnStep]) {
        let mut puts: HashMap<&str, &str> = HashMap::new();
        for step in steps {
            if let TxnStep::Put(put) = step
                && let Some(replaced) = puts.insert(&put.key, &put.value)
                // The same value again: a reader cannot tell which of the two it saw.
                && replaced != put.value
            {
                self.intermediate.insert((&put.key, replaced), operation);
            }
        }
    }
}

fn effect(transaction: &Transaction, answer: &TxnAnswer) -> TxnEffect {
    let mut effect = TxnEffect::Reads;
    for (step, result) in transaction.branch(answer.succeeded).iter().zip(&answer.results) {
        match (step, result) {
            (TxnStep::Put(_), _) | (_, StepResult::Deleted { count: Some(1..) }) => return TxnEffect::Writes,
            (_, StepResult::Deleted { count: None }) => effect = TxnEffect::Unsure,
            (_, StepResult::Got(_) | StepResult::Ranged(_) | StepResult::Put {} | StepResult::Deleted { .. }) => {}
        }
    }
    effect
}

/// The final write of each register that steps change: a put, or a delete. Each with whether it certainly was a change.
pub(super) fn final_writes<'r>(
    steps: &'r [TxnStep],
    results: Option<&[StepResult]>,
    keys: &BTreeSet<&'r str>,
) -> BTreeMap<&'r str, (Option<&'r TxnPut>, bool)> {
    let mut writes = BTreeMap::new();
    for (place, step) in steps.iter().enumerate() {
        let result = results.and_then(|results| results.get(place));
        let was_there = matches!(result, Some(StepResult::Deleted { count: Some(1..) }));
        let was_absent = matches!(result, Some(StepResult::Deleted { count: Some(0) }));

        match step {
            TxnStep::Put(put) => {
                writes.insert(&*put.key, (Some(put), true));
            }
            TxnStep::Delete { key } if !was_absent => {
                // A put of the same transaction may be all that there was.
                let is_certain = was_there && !writes.contains_key(&**key);
                writes.insert(&**key, (None, is_certain));
            }
            TxnStep::DeleteRange(range) if !was_absent => {
                let from = range.from.as_deref().unwrap_or_default();
                let of_range = keys.range(from..).take_while(|key| range.contains(key));
                writes.extend(of_range.map(|key| (*key, (None, false))));
            }
            TxnStep::Delete { .. } | TxnStep::DeleteRange(_) | TxnStep::Get { .. } | TxnStep::Range(_) => {}
        }
    }
    writes
}

impl<'r> Timelines<'r> {
    /// Collects the changes of all registers. Reports what contradicts itself.
    pub(super) fn from_run(run: &'r Run<'_>, investigation: &mut Investigation) -> Self {
        let mut txns = TxnsByOutcome::from_run(run);
        // By revision, the store's own claim, and not by time: whether the two agree is what is checked.
        txns.commits.sort_by_key(|commit| (commit.revision, commit.operation.ended_ns));

        let sights = sights(run, &txns.commits);
        txns.keys.extend(sights.iter().map(|sight| sight.key));
        txns.keys.extend(watched_keys(run));
        let floors = RevisionFloors::from_commits(&txns.commits);

        let is_restored = run.facts.iter().any(|told| matches!(told.fact, Fact::Restored));
        let first_revision = txns.commits.first().map_or(0, |commit| commit.revision);
        let mut builder = TimelineBuilder {
            changes: HashMap::new(),
            placed: HashSet::new(),
            outliving: HashMap::new(),
            puts: unplaced_puts(&txns.unplaced),
            // After a restore there are registers that an earlier part of the history wrote.
            known_from: if is_restored { first_revision } else { 0 },
            is_restored,
            floors: &floors,
            txns: &txns,
        };
        // In this order: what answers say is certain, so a sight only fills in what they left open, and the ends of leases what neither
        // shows.
        builder.add_commits(investigation);
        builder.add_sights(&sights, investigation);
        builder.add_ends(run);

        let mut registers: BTreeMap<&str, Vec<RegisterChange<'_>>> = BTreeMap::new();
        for ((key, _), change) in builder.changes {
            registers.entry(key).or_default().push(change);
        }

        let placed = builder.placed;
        investigation.count("transactions placed by their values", placed.len() as u64);
        registers.values_mut().for_each(|changes| sort(changes));

        let mut unplaced = UnplacedWrites::default();
        for (operation, transaction) in &txns.unplaced {
            if !placed.contains(&operation.invoked_line) {
                let steps = transaction.then.iter().chain(&transaction.otherwise);
                steps.for_each(|step| unplaced.add(operation, step));
            }
        }
        Self { registers, commits: txns.commits, keys: txns.keys, floors, unplaced }
    }

    /// The last change of a register at or below a revision.
    pub(super) fn last_change(&self, key: &str, revision: u64) -> Option<&RegisterChange<'r>> {
        let changes = self.registers.get(key)?;
        let known = changes.partition_point(|change| change.revision <= revision);
        changes[..known].last()
    }

    /// Whether a transaction without a known revision may have changed a register at or below a revision, by a moment.
    pub(super) fn may_have_changed(&self, key: &str, revision: u64, by_ns: u64) -> bool {
        let first_put = self.unplaced.writes.get(key).copied();
        let is_possible = |sent_ns: u64| sent_ns <= by_ns && self.floors.allows(sent_ns, revision);
        first_put.is_some_and(is_possible) || self.may_have_deleted(key, revision, by_ns)
    }

    /// The same, for a delete.
    pub(super) fn may_have_deleted(&self, key: &str, revision: u64, by_ns: u64) -> bool {
        let is_possible = |sent_ns: u64| sent_ns <= by_ns && self.floors.allows(sent_ns, revision);
        self.unplaced.first_delete(key).is_some_and(is_possible)
    }
}

fn sort(changes: &mut [RegisterChange<'_>]) {
    changes.sort_unstable_by_key(|change| change.revision);
    let mut before = [0, 0];
    for change in changes {
        change.before = before;
        // The end of a lease does not count as a write.
        before[0] += usize::from(change.now.is_some() && change.by.is_some());
        before[1] += usize::from(change.now.is_none() && change.is_certain);
    }
}

type Puts<'r> = HashMap<(&'r str, &'r str), Vec<(&'r Operation<'r>, &'r Transaction, bool)>>;

/// The puts of transactions whose revision is not known, with the branch of each.
fn unplaced_puts<'r>(unplaced: &[(&'r Operation<'r>, &'r Transaction)]) -> Puts<'r> {
    let mut puts: Puts<'_> = HashMap::new();
    for (operation, transaction) in unplaced {
        for succeeded in [true, false] {
            for step in transaction.branch(succeeded) {
                if let TxnStep::Put(put) = step {
                    puts.entry((&put.key, &put.value)).or_default().push((operation, transaction, succeeded));
                }
            }
        }
    }
    puts
}

fn sights<'r>(run: &'r Run<'_>, commits: &[CommittedTxn<'r>]) -> Vec<Sight<'r>> {
    let mut sights = Vec::new();
    for commit in commits {
        let by_ns = commit.operation.ended_ns;
        let line = commit.operation.ended_line;
        let mut add = |key: &'r str, seen: &'r SeenRegister| {
            sights.extend(seen.modified.map(|revision| Sight { key, revision, seen, by_ns, line }));
        };
        let branch = commit.transaction.branch(commit.answer.succeeded);
        for (step, result) in branch.iter().zip(&commit.answer.results) {
            match (step, result) {
                (TxnStep::Get { key }, StepResult::Got(Some(seen))) => add(key, seen),
                (_, StepResult::Ranged(range)) => range.registers.iter().for_each(|(key, seen)| add(key, seen)),
                _ => {}
            }
        }
    }

    for told in &run.facts {
        let Fact::Watched { revision, changes, .. } = told.fact else { continue };
        for change in changes {
            if let Some(seen) = &change.now {
                let sight = Sight { key: &change.key, revision: *revision, seen, by_ns: told.time_ns, line: told.line };
                sights.push(sight);
            }
        }
    }

    // The order of revisions: what a lease's end left is known after what was written before.
    sights.sort_by_key(|sight| (sight.revision, sight.by_ns, sight.line));
    sights
}

fn watched_keys<'r>(run: &'r Run<'_>) -> impl Iterator<Item = &'r str> {
    let changes = run.facts.iter().filter_map(|told| {
        let Fact::Watched { changes, .. } = told.fact else { return None };
        Some(changes)
    });
    changes.flatten().map(|change| &*change.key)
}

struct TimelineBuilder<'r, 'b> {
    changes: HashMap<(&'r str, u64), RegisterChange<'r>>,
    /// The transactions of unknown revision that were placed, by the lines of their starts.
    placed: HashSet<usize>,
    /// The puts of registers that may outlive their leases, by register and value, with the first revision of each.
    outliving: HashMap<(&'r str, &'r str), u64>,
    puts: Puts<'r>,
    known_from: u64,
    is_restored: bool,
    floors: &'b RevisionFloors,
    txns: &'b TxnsByOutcome<'r>,
}

impl<'r> TimelineBuilder<'r, '_> {
    fn add_commits(&mut self, investigation: &mut Investigation) {
        let mut last: Option<CommittedTxn<'_>> = None;
        for commit in &self.txns.commits {
            if commit.effect == TxnEffect::Reads {
                continue;
            }

            if let Some(before) = last.filter(|last| last.revision == commit.revision)
                && [before.effect, commit.effect] == [TxnEffect::Writes, TxnEffect::Writes]
            {
                let says = format!("two transactions wrote at revision {}", commit.revision);
                investigation.report(&TxnAnomaly::new(AnomalyKind::G0, says, [before.line(), commit.line()]));
            }
            last = Some(*commit);

            let steps = commit.transaction.branch(commit.answer.succeeded);
            let writes = final_writes(steps, Some(&commit.answer.results), &self.txns.keys);
            for (key, (put, is_certain)) in writes {
                self.insert(key, commit.revision, put, commit.operation, is_certain);
            }
        }
    }

    fn insert(
        &mut self,
        key: &'r str,
        revision: u64,
        put: Option<&'r TxnPut>,
        by: &'r Operation<'r>,
        is_certain: bool,
    ) {
        let now = put.map(|put| RegisterValue { value: Some(&*put.value), put: Some(put) });
        let change = RegisterChange { revision, now, by: Some(by), line: by.ended_line, is_certain, before: [0; 2] };
        // The first source counts; a second one that says something else is reported where it is compared.
        self.changes.entry((key, revision)).or_insert(change);

        if let Some(put) = put.filter(|put| put.outlives_lease || put.keeps_lease) {
            let first = self.outliving.entry((key, &put.value)).or_insert(revision);
            *first = revision.min(*first);
        }
    }

    fn add_sights(&mut self, sights: &[Sight<'r>], investigation: &mut Investigation) {
        let mut shown: HashMap<&str, (u64, &SeenRegister, usize)> = HashMap::new();
        for sight in sights {
            if let Some((revision, first, line)) = shown.get(sight.key)
                && *revision == sight.revision
                && differs(first, sight.seen)
            {
                let says = format!("register {:?} was read in two states of revision {revision}", sight.key);
                investigation.report(&TxnAnomaly::new(AnomalyKind::DirtyUpdate, says, [*line, sight.line]));
            }

            if let Some(change) = self.changes.get(&(sight.key, sight.revision)).copied() {
                self.compare(sight, &change, investigation);
            } else {
                self.explain(sight, investigation);
            }
            shown.insert(sight.key, (sight.revision, sight.seen, sight.line));
        }
    }

    /// Adds what watches showed of registers that ended, by a lease or by a transaction of unknown outcome.
    fn add_ends(&mut self, run: &'r Run<'_>) {
        for told in &run.facts {
            let Fact::Watched { revision, changes, .. } = told.fact else { continue };
            let line = told.line;
            for change in changes.iter().filter(|change| change.now.is_none()) {
                let ended =
                    RegisterChange { revision: *revision, now: None, by: None, line, is_certain: true, before: [0; 2] };
                self.changes.entry((&change.key, *revision)).or_insert(ended);
            }
        }
    }

    /// Compares what a read showed with what was written at its revision.
    fn compare(&self, sight: &Sight<'_>, change: &RegisterChange<'_>, investigation: &mut Investigation) {
        let Sight { key, revision, seen, .. } = sight;
        let value = seen.value.as_deref();
        let lines = [change.line, sight.line];
        let Some(now) = change.now else {
            if change.is_certain {
                let says = format!("register {key:?} was deleted at revision {revision}, and was read as written then");
                investigation.report(&TxnAnomaly::new(AnomalyKind::DirtyUpdate, says, lines));
            }
            return;
        };

        if let (Some(value), Some(written)) = (value, now.value)
            && value != written
        {
            let is_intermediate = self.txns.intermediate.contains_key(&(key, value));
            let kind = if is_intermediate { AnomalyKind::G1b } else { AnomalyKind::DirtyUpdate };
            let says = format!("register {key:?} was written {written:?} at revision {revision}, and read {value:?}");
            investigation.report(&TxnAnomaly::new(kind, says, lines));
        }

        if let (Some(lease), Some(put)) = (&seen.lease, now.put)
            && !put.keeps_lease
            && put.lease.as_ref() != Some(lease)
        {
            let says =
                format!("register {key:?} has at revision {revision} the lease of session {lease:?}, not its put's");
            investigation.report(&TxnAnomaly::new(AnomalyKind::DirtyUpdate, says, lines));
        }
    }

    /// Finds the transaction of a change that no answered transaction made.
    fn explain(&mut self, sight: &Sight<'r>, investigation: &mut Investigation) {
        let Sight { key, revision, seen, by_ns, line } = *sight;
        let value = seen.value.as_deref();
        let found = RegisterChange {
            revision,
            now: Some(RegisterValue { value, put: None }),
            by: None,
            line,
            is_certain: true,
            before: [0; 2],
        };

        let Some(value) = value.filter(|_| revision >= self.known_from) else {
            self.changes.insert((key, revision), found);
            return;
        };

        let candidates = self.puts.get(&(key, value)).into_iter().flatten();
        let is_possible = |(operation, ..): &&(&Operation<'_>, &Transaction, bool)| {
            operation.invoked_ns <= by_ns && self.floors.allows(operation.invoked_ns, revision)
        };
        let candidates: Vec<_> = candidates.filter(is_possible).copied().collect();

        match *candidates {
            [(operation, transaction, succeeded)] => {
                self.placed.insert(operation.invoked_line);
                let writes = final_writes(transaction.branch(succeeded), None, &self.txns.keys);
                for (key, (put, is_certain)) in writes {
                    self.insert(key, revision, put, operation, is_certain && put.is_some());
                }
            }
            [] if !self.is_end_of_lease(sight, value) => self.report_unexplained(sight, value, investigation),
            _ => {}
        }
        self.changes.entry((key, revision)).or_insert(found);
    }

    /// Whether a register that outlives its lease can have changed so when that ended.
    fn is_end_of_lease(&self, sight: &Sight<'_>, value: &str) -> bool {
        self.outliving.get(&(sight.key, value)).is_some_and(|first| *first < sight.revision)
    }

    fn report_unexplained(&self, sight: &Sight<'_>, value: &str, investigation: &mut Investigation) {
        let Sight { key, revision, line, .. } = sight;
        let (kind, writer, says) = if let Some(writer) = self.txns.intermediate.get(&(key, value)) {
            (AnomalyKind::G1b, Some(writer), "which its transaction replaced itself")
        } else if let Some(writer) = self.txns.aborted.get(&(key, value)) {
            (AnomalyKind::G1a, Some(writer), "which was put by steps that had no effect")
        } else {
            // A client may repeat a transaction of before a loss at the restored cluster.
            if self.is_restored {
                return;
            }
            (AnomalyKind::GarbageRead, None, "which no transaction can have put there")
        };

        let says = format!("register {key:?} was read {value:?} at revision {revision}, {says}");
        let writer = writer.map(|writer| writer.ended_line);
        investigation.report(&TxnAnomaly::new(kind, says, writer.into_iter().chain([*line])));
    }
}

/// Whether two reads of a register at one revision showed different things.
fn differs(one: &SeenRegister, other: &SeenRegister) -> bool {
    fn both<T: PartialEq>(one: Option<&T>, other: Option<&T>) -> bool {
        one.zip(other).is_some_and(|(one, other)| one != other)
    }
    both(one.value.as_ref(), other.value.as_ref())
        || both(one.created.as_ref(), other.created.as_ref())
        || both(one.version.as_ref(), other.version.as_ref())
        || both(one.lease.as_ref(), other.lease.as_ref())
}
