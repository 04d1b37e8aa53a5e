//! What a command costs to apply, in units of work: see `backlog`.
//!
//! Most commands cost what they are long. A transaction that compares, shows or deletes ranges costs what these ranges have: 20 bytes may
//! visit thousands of entries. So the leader's batches, and the choice of a thread to apply on, go by units as well as by bytes.
//!
//! The leader computes the cost of a command when it proposes it. Commands under way at that time may put more entries into its ranges, so
//! the leader adds their [`Command::growth`] for each of [`Command::ranges`].
//!
//! A transaction is not divided: it has a bound ([`TXN_READS_MAX`], [`TXN_WRITES_MAX`]) and charges the budget of its batch. What values a
//! compare or a sort looks at counts by their bytes, [`BYTES_PER_UNIT`] a unit, and has the bound of [`TXN_READS_MAX`] units as well.
//!
//! Left out: the work that a command leaves to the backlog, which has its own budgets.

use crate::*;

/// A range costs this much at the least: to find its first entry, and for entries that come into it between the judgement and the log.
const RANGE_UNITS_MIN: usize = 128;
/// Bytes of values that are compared for one unit.
const BYTES_PER_UNIT: usize = 1024;

/// What the ranges of a transaction cost.
#[derive(Default)]
struct RangeCost {
    /// Its ranges.
    ranges: usize,
    /// Their entries, visited.
    visits: usize,
    /// Units for the values that are compared.
    values: usize,
}

impl RangeCost {
    fn units(&self) -> usize {
        (self.ranges * RANGE_UNITS_MIN).max(self.visits + self.values)
    }
}

/// The work that a command is, in units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandWork {
    /// What it costs to apply: see [`Machine::cost`].
    pub cost: usize,
    /// The same as the table is now, without the least that a range costs: what a queue of such commands would really do.
    pub present: usize,
}

impl Machine {
    /// Units of work that a command costs to apply, as the table is now, counted up to `limit`. A command that costs more costs `limit` or
    /// a little more, so that the caller does not visit all entries that the command would visit.
    pub fn cost(&self, command: &Command, limit: usize) -> usize {
        self.work_for(command, limit).cost
    }

    /// The work that a command is, as the table is now, counted up to `limit` as by [`Self::cost`].
    pub fn work_for(&self, command: &Command, limit: usize) -> CommandWork {
        let own = command.units();
        let ranges = if let Command::Txn(txn) = command
            && txn.reads_ranges()
        {
            self.cost_of_ranges(txn, limit)
        } else {
            RangeCost::default()
        };
        CommandWork { cost: own + ranges.units(), present: own + ranges.visits + ranges.values }
    }

    /// Charges what the ranges of a transaction cost. Refuses one that would look at too many bytes of values.
    pub(super) fn charge_ranges(&mut self, txn: &Txn) -> Result<(), Refusal> {
        if !txn.reads_ranges() {
            return Ok(());
        }
        // Visits beyond the rest of the budget change nothing, except visits that look for values.
        let all = 2 * TXN_READS_MAX;
        let limit = if txn.compares_values() { all } else { all.min(self.batch.left()) };
        let RangeCost { visits, values, .. } = self.cost_of_ranges(txn, limit);
        self.batch.spend(visits + values);
        if values > TXN_READS_MAX { Err(Refusal::Limit(Limit::TxnReads)) } else { Ok(()) }
    }

    /// The ranges of all compares, and those of the more expensive branch.
    fn cost_of_ranges(&self, txn: &Txn, limit: usize) -> RangeCost {
        let mut cost = RangeCost::default();
        if Planted::RangesCostNothing.is_on() {
            return cost;
        }
        for compare in txn.compares() {
            let Some(up_to) = &compare.up_to else { continue };
            let range = KeyRange { from: Some(compare.key.clone()), to: Some(up_to.clone()) };
            self.count_range(&range, matches!(compare.operand, Operand::Value(_)), limit, &mut cost);
        }

        let cost_of_branch = |branch: &[TxnOperation]| {
            let mut cost = RangeCost::default();
            for operation in branch {
                match operation {
                    TxnOperation::Select(select) => {
                        self.count_range(&select.range, select.by == SortBy::Value, limit, &mut cost);
                    }
                    TxnOperation::DeleteRange(range) => self.count_range(range, false, limit, &mut cost),
                    TxnOperation::Get(_) | TxnOperation::Put(_) | TxnOperation::Expire(_) => {}
                    TxnOperation::PutChild(_) | TxnOperation::Delete(_) | TxnOperation::Open(_) => {}
                }
            }
            cost
        };

        let then = cost_of_branch(txn.then());
        let otherwise = cost_of_branch(txn.otherwise());
        // A transaction that falls back may look at what both branches look at.
        let of_both = |then: usize, otherwise: usize| {
            if txn.falls_back() { then + otherwise } else { then.max(otherwise) }
        };
        // The cheaper branch was visited, too.
        self.batch.note_work(then.visits.min(otherwise.visits));
        RangeCost {
            ranges: cost.ranges + of_both(then.ranges, otherwise.ranges),
            visits: cost.visits + of_both(then.visits, otherwise.visits),
            values: cost.values + of_both(then.values, otherwise.values),
        }
    }

    fn count_range(&self, range: &KeyRange, compares_values: bool, limit: usize, cost: &mut RangeCost) {
        cost.ranges += 1;
        let mut entries = self.entries.range(range);
        while cost.visits + cost.values < limit
            && let Some((_, entry)) = entries.next()
        {
            cost.visits += 1;
            if compares_values {
                cost.values += entry.value.as_bytes().len() / BYTES_PER_UNIT;
            }
        }
    }
}

impl Txn {
    /// Whether it looks at the values of ranges.
    fn compares_values(&self) -> bool {
        let compares = |compare: &Compare| compare.up_to.is_some() && matches!(compare.operand, Operand::Value(_));
        let sorts =
            |operation: &TxnOperation| matches!(operation, TxnOperation::Select(Select { by: SortBy::Value, .. }));
        self.compares().iter().any(compares) || self.operations().any(sorts)
    }
}

impl Command {
    /// The ranges that it visits, those of both branches of a transaction.
    pub fn ranges(&self) -> usize {
        let Self::Txn(txn) = self else { return 0 };
        let is_range = |it: &&TxnOperation| matches!(it, TxnOperation::Select(_) | TxnOperation::DeleteRange(_));
        let compared = txn.compares().iter().filter(|compare| compare.up_to.is_some());
        compared.count() + txn.operations().filter(is_range).count()
    }

    /// The number of units by which a range may cost more once this command is applied: for the entries that it puts, and for their values.
    pub fn growth(&self) -> usize {
        let Self::Txn(txn) = self else { return 0 };
        let growth_of = |branch: &[TxnOperation]| -> usize {
            let put = |operation: &TxnOperation| match operation {
                TxnOperation::Put(put) => 1 + put.value.as_bytes().len() / BYTES_PER_UNIT,
                TxnOperation::PutChild(child) => 1 + child.put.value.as_bytes().len() / BYTES_PER_UNIT,
                TxnOperation::Get(_) | TxnOperation::Select(_) | TxnOperation::Open(_) => 0,
                TxnOperation::Expire(_) | TxnOperation::Delete(_) | TxnOperation::DeleteRange(_) => 0,
            };
            branch.iter().map(put).sum()
        };
        growth_of(txn.then()).max(growth_of(txn.otherwise()))
    }

    /// Units of work that it costs to apply, whatever the table has: without the entries of ranges, and what it leaves to the backlog.
    pub fn units(&self) -> usize {
        match self {
            Self::Renew { sessions } => sessions.len(),
            Self::Session { operation: Operation::Acquire(acquire), .. } => acquire.wants().len(),
            Self::Txn(txn) => {
                let then = txn.then().len();
                let otherwise = txn.otherwise().len();
                let operations = if txn.falls_back() { then + otherwise } else { then.max(otherwise) };
                (txn.compares().len() + operations).max(1)
            }
            Self::Open { .. }
            | Self::Attach { .. }
            | Self::SetOwner { .. }
            | Self::Close { .. }
            | Self::Session { operation: Operation::Release(_) | Operation::Update(_), .. }
            | Self::CancelWait { .. }
            | Self::ForceRelease(_)
            | Self::RemoveWaiter { .. }
            | Self::LiftDelay { .. }
            | Self::DropData { .. }
            | Self::Resize { .. }
            | Self::Compact { .. }
            | Self::RaiseVersion { .. }
            | Self::Note(_)
            | Self::BeginAudit
            | Self::Probe
            | Self::Tick => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: SessionId = SessionId(1);

    fn key(key: &str) -> Key {
        Key::new(key.as_bytes()).unwrap()
    }

    fn range(from: &str, to: &str) -> KeyRange {
        KeyRange { from: Some(key(from)), to: Some(key(to)) }
    }

    fn apply(machine: &mut Machine, limits: Limits, command: Command) -> Reply {
        let time = Time { stamp: Stamp(0), wall: WallTime(0) };
        machine.apply_batch(time, limits, [command], &mut Vec::new()).remove(0)
    }

    /// Entries with values of this many bytes, each of which says its number.
    fn table(count: usize, bytes: usize) -> Machine {
        let mut machine = Machine::default();
        for number in 0..count {
            let key = key(&format!("e{number:05}"));
            let put = Put { key, value: Value::new(&vec![7; bytes]).unwrap(), lease: PutLease::None, claims: None };
            let txn = Txn::new(vec![], vec![TxnOperation::Put(put)], vec![]).unwrap();
            assert!(matches!(apply(&mut machine, Limits::NONE, Command::Txn(txn)), Reply::Committed(_)));
        }
        machine
    }

    fn compare(operand: Operand) -> Compare {
        Compare { key: key("e"), up_to: Some(key("f")), relation: Relation::NotEqual, operand }
    }

    fn select(by: SortBy) -> TxnOperation {
        TxnOperation::Select(Select { range: range("e", "f"), by, limit: 1, ..Select::default() })
    }

    fn txn(compares: Vec<Compare>, then: Vec<TxnOperation>, otherwise: Vec<TxnOperation>) -> Command {
        Command::Txn(Txn::new(compares, then, otherwise).unwrap())
    }

    #[test]
    fn ranges_cost_their_entries() {
        let machine = table(1000, 1);
        let cost = |command: &Command| machine.cost(command, usize::MAX);
        let delete = TxnOperation::DeleteRange(range("e", "f"));
        assert_eq!(cost(&txn(vec![compare(Operand::Version(0))], vec![], vec![])), 1 + 1000);
        assert_eq!(cost(&txn(vec![], vec![select(SortBy::Key); 2], vec![delete])), 2 + 2000);
        assert_eq!(cost(&txn(vec![], vec![TxnOperation::Get(key("e00001"))], vec![])), 1);
        let empty = TxnOperation::DeleteRange(range("x", "y"));
        assert_eq!(cost(&txn(vec![], vec![empty], vec![])), 1 + RANGE_UNITS_MIN);
        assert_eq!(machine.cost(&txn(vec![], vec![select(SortBy::Key); 9], vec![]), 300), 9 + 9 * RANGE_UNITS_MIN);
        assert_eq!(cost(&Command::Renew { sessions: vec![LEASE; 7] }), 7);
    }

    /// The least that a range costs is for entries that may come: a queue of reads of nothing is little work.
    #[test]
    fn present_work_is_what_a_command_would_do_now() {
        let machine = table(1000, 1);
        let present = |command: &Command| machine.work_for(command, usize::MAX).present;
        let empty = TxnOperation::DeleteRange(range("x", "y"));
        assert_eq!(present(&txn(vec![], vec![empty], vec![])), 1);
        let delete = TxnOperation::DeleteRange(range("e", "f"));
        assert_eq!(present(&txn(vec![compare(Operand::Version(0))], vec![delete], vec![])), 2 + 2000);
        assert_eq!(present(&txn(vec![], vec![TxnOperation::Get(key("e00001")); 9], vec![])), 9);
    }

    #[test]
    fn values_that_are_compared_cost_their_bytes() {
        let machine = table(10, 100 * BYTES_PER_UNIT);
        let cost = |command: &Command| machine.cost(command, usize::MAX);
        let value = Operand::Value(Value::new(b"x").unwrap());
        assert_eq!(cost(&txn(vec![compare(value)], vec![], vec![])), 1 + 10 + 1000);
        assert_eq!(cost(&txn(vec![], vec![select(SortBy::Value)], vec![])), 1 + 10 + 1000);
        assert_eq!(cost(&txn(vec![], vec![select(SortBy::Version)], vec![])), 1 + RANGE_UNITS_MIN);
    }

    #[test]
    fn a_transaction_that_would_compare_too_many_bytes_is_refused() {
        let mut machine = table(42, VALUE_BYTES_MAX);
        let refused = Reply::Refused(Refusal::Limit(Limit::TxnReads));
        let sorted = |by| {
            txn(
                vec![],
                vec![TxnOperation::Select(Select {
                    shows: Shows::Keys,
                    range: range("e", "f"),
                    by,
                    limit: 1,
                    ..Select::default()
                })],
                vec![],
            )
        };
        assert_eq!(apply(&mut machine, Limits::NONE, sorted(SortBy::Value)), refused);
        assert!(matches!(apply(&mut machine, Limits::NONE, sorted(SortBy::Key)), Reply::Committed(_)));
    }

    /// A transaction that visits uses up the budget of its batch: what the next command causes goes on later.
    #[test]
    fn visits_charge_the_budget_of_the_batch() {
        let mut machine = table(1000, 1);
        let limits = Limits { work: 1000, ..Limits::NONE };
        machine.begin_batch(Time { stamp: Stamp(0), wall: WallTime(0) }, limits, &mut Vec::new());
        machine.step(txn(vec![compare(Operand::Version(0))], vec![], vec![]), &mut Vec::new());
        assert!(machine.batch.is_spent());
    }
    /// What it reads has a bound, whether it is refused for it or not, and so has what is done to find that out.
    #[test]
    fn one_transaction_does_no_more_work_than_it_may() {
        let at_limit = TXN_READS_MAX / TXN_OPERATIONS_MAX;
        let limits = Limits::default();
        // All compares and all reads, each visited once to be counted; the budget, for each part of the transaction; the operations.
        let bound = 2 * TXN_READS_MAX + 3 * limits.work + 4 * TXN_OPERATIONS_MAX;
        for (entries, is_committed) in [(at_limit, true), (at_limit + 1, false), (TXN_READS_MAX, false)] {
            let mut machine = table(entries, 1);
            let compares = vec![compare(Operand::Version(0)); TXN_OPERATIONS_MAX];
            let reads = || vec![select(SortBy::Key); TXN_OPERATIONS_MAX];
            let reply = apply(&mut machine, limits, txn(compares, reads(), reads()));
            assert_eq!(matches!(reply, Reply::Committed(_)), is_committed, "{entries} entries");
            let done = machine.work_done();
            assert!(
                done >= TXN_READS_MAX && done <= bound + TXN_READS_MAX / 64,
                "{entries} entries: {done} units, not {bound}"
            );
        }
    }
}
