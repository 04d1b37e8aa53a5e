//! The busiest locks and the longest waits, for people who watch a cluster.
//!
//! Any node answers from its own table, as often as once a second. So the work is bounded, whatever the size of the table: a look visits at
//! most [`WAITS_MAX`] places in queues, the oldest first, and the changes of the latest entries, which every node keeps for watchers. It
//! does not visit locks that nobody waits for and that nobody was granted lately. Those that visit much take turns
//! ([`super::long_reads`]).

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    hash::Hash,
};

use super::local::{Local, Serve};
use crate::{
    api::{Caller, Error, requests::*},
    wire::Form,
};
use lockkeeper_machine::{ChangeKind, LockName, LockView, Machine, Page, Ticket, Token};
use lockkeeper_metrics::{Did, Metrics};
use lockkeeper_table::change_history::EntryChanges;

/// Maximum number of places in queues that a look visits, and of claims of entries. Both take some milliseconds.
const WAITS_MAX: usize = 20_000;
/// Rows of a list, if the caller asks for no other number.
const ROWS: usize = 20;
/// Maximum number of rows of a list.
const ROWS_MAX: usize = 100;

impl Serve for ShowBusiest {
    async fn serve(self, node: &Local, caller: &Caller) -> Result<Form<BusiestLocks>, Error> {
        let table = node.replica.table();
        // The next answer counts from here on: all changes up to this entry are in memory by now.
        let index = table.notified();
        let (counted_after, changes) = table.latest_changes(self.after_index);
        let changes = changes.iter().map(AsRef::as_ref).take_while(|entry: &&EntryChanges| entry.index <= index);

        let changed: usize = changes.clone().map(|entry| entry.changes.len()).sum();
        let waiting = table.read(|applied| applied.machine.counts().waiters);
        let _turn = node.long_reads.turn_for(caller, changed + waiting.min(WAITS_MAX)).await?;

        // Look at a clone, so that no apply waits for it.
        let machine = table.read(|applied| applied.machine.clone());
        let rows = if self.size == 0 { ROWS } else { self.size.min(ROWS_MAX) };
        let seen = look(&machine, &self.prefix, rows, WAITS_MAX, changes);

        let node_id = *node.replica.raft().node_id();
        let totals = totals(&node.metrics);
        let BusyView { locks, waits, more_waits } = seen;
        Ok(Form::Typed(BusiestLocks { locks, waits, more_waits, counted_after, index, node_id, totals }))
    }
}

fn totals(metrics: &Metrics) -> TableTotals {
    TableTotals {
        granted: metrics.times(Did::Granted),
        released: metrics.times(Did::Released),
        expired: metrics.times(Did::Expired),
        forced: metrics.times(Did::Forced),
        queued: metrics.times(Did::Queued),
        waits_ended: metrics.times(Did::WaitEnded),
        sessions_closed: metrics.times(Did::SessionClosed),
        sessions_expired: metrics.times(Did::SessionExpired),
    }
}

/// What a look at the table found.
struct BusyView {
    locks: Vec<BusyLockView>,
    waits: Vec<LongWaitView>,
    more_waits: bool,
}

fn look<'a>(
    table: &'a Machine,
    prefix: &str,
    rows: usize,
    waits_max: usize,
    changes: impl IntoIterator<Item = &'a EntryChanges>,
) -> BusyView {
    let mut queues = Queues::default();
    queues.visit(table, prefix, rows, waits_max);

    let mut grants: HashMap<&LockName, u64> = HashMap::new();
    for change in changes.into_iter().flat_map(|entry| &entry.changes) {
        if matches!(change.kind, ChangeKind::Granted { .. }) && change.name.as_str().starts_with(prefix) {
            *grants.entry(&change.name).or_default() += 1;
        }
    }

    let mut named = HashSet::new();
    let names = most(queues.lengths, rows).into_iter().chain(most(grants.clone(), rows));
    let locks = names.filter(|name| named.insert(*name)).map(|name| BusyLockView {
        lock: LockView { data: None, ..table.lock(name, after(Ticket(0))) },
        grants: grants.get(name).copied().unwrap_or_default(),
    });

    let mut waits: Vec<LongWaitView> =
        queues.oldest.into_iter().filter_map(|(ticket, name)| long_wait(table, name, ticket)).collect();
    // Tickets of acquires and those of claims are numbers of two kinds: here only the time compares them.
    waits.sort_by_key(|wait| wait.waiter.since.0);
    waits.truncate(rows);
    BusyView { locks: locks.collect(), waits, more_waits: queues.more }
}

/// The queues, as far as the look visited them.
#[derive(Default)]
struct Queues<'a> {
    lengths: HashMap<&'a LockName, u64>,
    /// The first of the waiting acquires, and of the claims.
    oldest: Vec<(Ticket, &'a LockName)>,
    more: bool,
}

impl<'a> Queues<'a> {
    fn visit(&mut self, table: &'a Machine, prefix: &str, rows: usize, most: usize) {
        let is_asked_for = |name: &LockName| name.as_str().starts_with(prefix);

        let mut left = most;

        for (ticket, wants) in table.queued() {
            if left == 0 {
                self.more = true;
                break;
            }
            left = left.saturating_sub(wants.len());

            let mut wanted = wants.iter().map(|want| &want.name).filter(|name| is_asked_for(name)).peekable();
            if let Some(first) = wanted.peek()
                && self.oldest.len() < rows
            {
                self.oldest.push((ticket, *first));
            }
            wanted.for_each(|name| *self.lengths.entry(name).or_default() += 1);
        }

        let mut claims = table.claims(prefix);
        let mut waiting = Vec::new();
        for (name, ticket) in claims.by_ref().take(most) {
            if let Some(ticket) = ticket {
                *self.lengths.entry(name).or_default() += 1;
                waiting.push((ticket, name));
            }
        }

        self.more |= claims.next().is_some();
        waiting.sort_unstable_by_key(|(ticket, _)| *ticket);
        self.oldest.extend(waiting.into_iter().take(rows));
    }
}

/// The names with the highest counts, highest first. Names with equal counts are in their own order.
fn most<K: Copy + Ord + Hash>(counts: HashMap<K, u64>, rows: usize) -> Vec<K> {
    let mut counts: Vec<(Reverse<u64>, K)> = counts.into_iter().map(|(name, count)| (Reverse(count), name)).collect();
    if counts.len() > rows {
        counts.select_nth_unstable(rows);
        counts.truncate(rows);
    }
    counts.sort_unstable();
    counts.into_iter().map(|(_, name)| name).collect()
}

/// A page with the first holder, and the first waiter after a ticket.
fn after(waiters_after: Ticket) -> Page {
    Page { size: 1, holders_after: Token(0), waiters_after }
}

fn long_wait(table: &Machine, name: &LockName, ticket: Ticket) -> Option<LongWaitView> {
    let view = table.lock(name, after(Ticket(ticket.0.saturating_sub(1))));
    let waiter = view.waiters.into_iter().find(|waiter| waiter.ticket == ticket)?;
    Some(LongWaitView {
        name: view.name,
        waiter,
        holder: view.holders.into_iter().next(),
        queue_length: view.queue_length,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_machine::{
        Acquire, Change, Command, Event, Label, LockKind, Mode, Operation, SessionId, Stamp, Time, Ttl, Wait, WallTime,
        Want,
    };

    /// A table in which locks were acquired in this order, a second after one another.
    fn table(acquires: &[(u128, &str)]) -> (Machine, Vec<EntryChanges>) {
        let mut machine = Machine::default();
        let mut changes = Vec::new();
        let ttl = Ttl::from_millis(3_600_000).expect("valid");
        for session in acquires.iter().map(|(session, _)| SessionId(*session)) {
            let open = Command::Open { session, ttl, label: Label::default(), address: None, owner: None };
            machine.apply(Time::default(), open, &mut Vec::new());
        }
        for (at, (session, names)) in (1..).zip(acquires) {
            let want = |name| Want {
                name: LockName::new(name).expect("a name"),
                mode: Mode::Exclusive,
                data: None,
                keep_data: false,
                must_exist: false,
            };
            let acquire = Acquire::new(names.split(' ').map(want).collect(), Wait::Forever, 0).expect("valid");
            let operation = Operation::Acquire(acquire);
            let command = Command::Session { session: SessionId(*session), request: None, operation };
            let mut events = Vec::new();
            let time = Time { stamp: Stamp(at * 1_000), wall: WallTime(at * 1_000) };
            machine.apply(time, command, &mut events);
            let changed = events.into_iter().filter_map(|event| match event {
                Event::Changed(change) => Some(change),
                Event::WaitEnded { .. } | Event::SessionEnded { .. } | Event::Revoked { .. } => None,
            });
            changes.push(EntryChanges { index: at, changes: changed.collect() });
        }
        (machine, changes)
    }

    fn shown(seen: &BusyView) -> String {
        let locks = seen.locks.iter().map(|busy| {
            format!("{} {}+{}w {}g", busy.lock.name, busy.lock.holder_count, busy.lock.queue_length, busy.grants)
        });
        let waits = seen.waits.iter().map(|wait| format!("{}@{}", wait.name, wait.waiter.since.0));
        format!("{} | {}", locks.collect::<Vec<_>>().join(", "), waits.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_longest_queues_come_first_then_the_most_grants_and_the_oldest_waits() {
        let acquires =
            [(1, "a"), (1, "b"), (1, "c/1"), (2, "b"), (3, "a"), (4, "b"), (5, "c/1 b"), (6, "c/2"), (7, "d")];
        let (machine, changes) = table(&acquires);
        let look = |prefix: &str, rows: usize| shown(&look(&machine, prefix, rows, WAITS_MAX, &changes));
        assert_eq!(
            look("", 9),
            "b 1+3w 1g, a 1+1w 1g, c/1 1+1w 1g, c/2 1+0w 1g, d 1+0w 1g | b@4000 a@5000 b@6000 b@7000"
        );
        assert_eq!(look("c/", 9), "c/1 1+1w 1g, c/2 1+0w 1g | c/1@7000");
        assert_eq!(look("", 1), "b 1+3w 1g, a 1+1w 1g | b@4000", "one of either kind");
        assert_eq!(look("e", 9), " | ");
    }

    #[test]
    fn grants_are_counted_by_name_and_no_other_change_is() {
        let (machine, _) = table(&[(1, "a")]);
        let name = |name: &str| LockName::new(name).expect("a name");
        let granted = |of: &str| Change {
            name: name(of),
            of: LockKind::Lock,
            kind: ChangeKind::Granted {
                token: Token(1),
                session: SessionId(1),
                label: Label::default(),
                mode: Mode::Exclusive,
                ticket: None,
            },
        };
        let opened = Change { kind: ChangeKind::Opened, ..granted("a") };
        let changes = [
            EntryChanges { index: 1, changes: vec![granted("a"), granted("b"), opened] },
            EntryChanges { index: 2, changes: vec![granted("b")] },
        ];
        assert_eq!(shown(&look(&machine, "", 9, WAITS_MAX, &changes)), "b 0+0w 2g, a 1+0w 1g | ");
    }

    #[test]
    fn what_is_not_visited_is_told() {
        let (machine, _) = table(&[(1, "a"), (2, "a"), (3, "a b"), (4, "a")]);
        let look = |waits_max| look(&machine, "", 9, waits_max, []);
        assert_eq!(
            (shown(&look(4)), look(4).more_waits),
            ("a 1+3w 0g, b 0+1w 0g | a@2000 a@3000 a@4000".into(), false)
        );
        assert_eq!((shown(&look(2)), look(2).more_waits), ("a 1+3w 0g, b 0+1w 0g | a@2000 a@3000".into(), true));
        assert_eq!((shown(&look(1)), look(1).more_waits), ("a 1+3w 0g | a@2000".into(), true));
    }
}
