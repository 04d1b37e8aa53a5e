//! Random histories of a tiny store with revisions, leases and watches: right ones are acquitted, and each wrong done to them is convicted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use crate::{
    Finding, Property, Verdict, check,
    history::{
        Answer, Call, CompareRelation, CompareTarget, Event, Fact, Function, History, Lease, Meta, SeenRange,
        SeenRegister, StepResult, Transaction, TxnAnswer, TxnCompare, TxnPut, TxnRange, TxnStep, WatchedChange, What,
    },
};

/// A linear congruential generator: the same history for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

#[derive(Clone)]
struct Stored {
    register: SeenRegister,
    ends_ns: u64,
}

/// What goes wrong in a store, from some transaction on.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Wrong {
    Nothing,
    /// A put is acknowledged, and is not there.
    LosesPut,
    /// A read shows the state before the last change of its register.
    ReadsOld,
    /// A read that was sent later has an earlier revision and state.
    ReadsPast,
    /// A range leaves out a register.
    LeavesOut,
    /// Conditions are not looked at.
    IgnoresCompares,
    /// A watch leaves out a change.
    WatchSkips,
    /// A watch reports a change twice.
    WatchRepeats,
    /// A lease ends before its time.
    EndsEarly,
}

struct TinyStore {
    registers: BTreeMap<String, Stored>,
    /// The states of each register before its last change.
    before: BTreeMap<String, Option<Stored>>,
    revision: u64,
    changes: Vec<(u64, u64, WatchedChange)>,
    wrong: Wrong,
    done: bool,
    has_revisions: bool,
}

const KEYS: u64 = 12;
const TTL_NS: u64 = 5_000_000;

impl TinyStore {
    fn new(wrong: Wrong, has_revisions: bool) -> Self {
        Self {
            registers: BTreeMap::new(),
            before: BTreeMap::new(),
            revision: 0,
            changes: Vec::new(),
            wrong,
            done: false,
            has_revisions,
        }
    }

    /// Whether the wrong is done now: once, after the store has seen some transactions.
    fn does(&mut self, wrong: Wrong) -> bool {
        let now = self.wrong == wrong && !self.done && self.revision > 40;
        self.done |= now;
        now
    }

    fn set(&mut self, at_ns: u64, key: &str, stored: Option<Stored>) {
        let now = stored.as_ref().map(|stored| stored.register.clone());
        self.changes.push((at_ns, self.revision, WatchedChange { key: key.to_owned(), now }));
        let before = match stored {
            Some(stored) => self.registers.insert(key.to_owned(), stored),
            None => self.registers.remove(key),
        };
        self.before.insert(key.to_owned(), before);
    }

    fn end_leases(&mut self, at_ns: u64) {
        let over = |(key, stored): (&String, &Stored)| (stored.ends_ns <= at_ns).then(|| key.clone());
        let mut over: Vec<_> = self.registers.iter().filter_map(over).collect();
        if over.is_empty() && self.wrong == Wrong::EndsEarly && !self.done {
            let leased = |(key, stored): (&String, &Stored)| {
                (stored.ends_ns < u64::MAX && stored.ends_ns > at_ns + TTL_NS / 2).then(|| key.clone())
            };
            over = self.registers.iter().filter_map(leased).take(1).collect();
            self.done = !over.is_empty();
        }
        for key in over {
            self.revision += 1;
            self.set(at_ns, &key, None);
        }
    }

    fn run(&mut self, at_ns: u64, transaction: &Transaction, leases: &BTreeMap<String, u64>) -> TxnAnswer {
        self.end_leases(at_ns);
        let holds = |compare: &TxnCompare| {
            let found = self.registers.get(&compare.key);
            // Clients compare revisions alone.
            found.and_then(|found| found.register.modified).unwrap_or_default() == compare.number.unwrap_or_default()
        };
        let all_hold = transaction.compares.iter().all(holds);
        let succeeded = all_hold || self.does(Wrong::IgnoresCompares);

        let steps = transaction.branch(succeeded);
        let is_write = |step: &TxnStep| match step {
            TxnStep::Put(_) => true,
            TxnStep::Delete { key } => self.registers.contains_key(key),
            TxnStep::Get { .. } | TxnStep::Range(_) | TxnStep::DeleteRange(_) => false,
        };
        if steps.iter().any(is_write) {
            self.revision += 1;
        }

        let is_read = !steps.is_empty() && !steps.iter().any(TxnStep::is_write);
        let is_past = is_read && self.revision > 45 && self.does(Wrong::ReadsPast);
        let mut results = Vec::new();
        for step in steps {
            results.push(self.step(at_ns, step, leases));
        }

        let told = if is_past { self.revision - 3 } else { self.revision };
        TxnAnswer { revision: self.has_revisions.then_some(told), succeeded, results }
    }

    fn step(&mut self, at_ns: u64, step: &TxnStep, leases: &BTreeMap<String, u64>) -> StepResult {
        match step {
            TxnStep::Get { key } => {
                let differs = self.before.get(key).is_some_and(Option::is_some) && self.registers.contains_key(key);
                if differs && self.does(Wrong::ReadsOld) {
                    return StepResult::Got(self.before[key].as_ref().map(|stored| self.shown(&stored.register)));
                }
                StepResult::Got(self.registers.get(key).map(|stored| self.shown(&stored.register)))
            }
            TxnStep::Range(range) => {
                let of_range = self.registers.iter().filter(|(key, _)| range.contains(key));
                let mut registers: Vec<_> =
                    of_range.map(|(key, stored)| (key.clone(), self.shown(&stored.register))).collect();
                let lasting = registers.iter().position(|(key, _)| self.registers[key].ends_ns == u64::MAX);
                if let Some(lasting) = lasting
                    && self.does(Wrong::LeavesOut)
                {
                    registers.remove(lasting);
                }
                StepResult::Ranged(SeenRange { registers, ..SeenRange::default() })
            }
            TxnStep::Put(put) => {
                if put.lease.is_none() && self.does(Wrong::LosesPut) {
                    return StepResult::Put {};
                }
                let known = self.registers.get(&put.key);
                let created = known.and_then(|known| known.register.created).or(Some(self.revision));
                let version = Some(known.and_then(|known| known.register.version).unwrap_or_default() + 1);
                let register = SeenRegister {
                    value: Some(put.value.clone()),
                    created,
                    modified: Some(self.revision),
                    version,
                    lease: put.lease.clone(),
                };
                let ends_ns = put.lease.as_ref().map_or(u64::MAX, |lease| leases[lease]);
                self.set(at_ns, &put.key, Some(Stored { register, ends_ns }));
                StepResult::Put {}
            }
            TxnStep::Delete { key } => {
                let is_there = self.registers.contains_key(key);
                if is_there {
                    self.set(at_ns, key, None);
                }
                StepResult::Deleted { count: Some(is_there.into()) }
            }
            TxnStep::DeleteRange(_) => unreachable!("no client sends it"),
        }
    }

    fn shown(&self, register: &SeenRegister) -> SeenRegister {
        if self.has_revisions {
            register.clone()
        } else {
            SeenRegister { value: register.value.clone(), ..SeenRegister::default() }
        }
    }
}

fn key(dice: &mut Dice) -> String {
    format!("k{:02}", dice.roll(KEYS))
}

fn transaction(dice: &mut Dice, number: u64, lease: Option<String>, deletes: bool) -> Transaction {
    let mut then = Vec::new();
    let mut keys = BTreeSet::new();
    for place in 0..=dice.roll(3) {
        let key = key(dice);
        let step = match dice.roll(if deletes { 6 } else { 5 }) {
            0 | 1 if keys.insert(key.clone()) => {
                let lease = lease.clone().filter(|_| place == 0);
                TxnStep::Put(TxnPut { key, value: format!("v{number}.{place}"), lease, ..TxnPut::default() })
            }
            2 => TxnStep::Range(TxnRange { from: Some(key), to: None }),
            5 if keys.insert(key.clone()) => TxnStep::Delete { key },
            _ => TxnStep::Get { key },
        };
        then.push(step);
    }

    let mut compares = Vec::new();
    if dice.roll(4) == 0 {
        let number = Some(dice.roll(30)).filter(|number| *number > 20).map_or(0, |number| number);
        let target = CompareTarget::Modified;
        compares.push(TxnCompare {
            key: key(dice),
            up_to: None,
            target,
            is: CompareRelation::Equal,
            number: Some(number),
            text: None,
        });
    }
    if !deletes {
        compares.clear();
    }
    Transaction { compares, then, otherwise: vec![TxnStep::Get { key: key(dice) }], ..Transaction::default() }
}

struct Planned {
    process: String,
    begin_ns: u64,
    effect_ns: Option<u64>,
    end_ns: u64,
    is_known: bool,
    transaction: Transaction,
    answer: Option<TxnAnswer>,
}

/// A history of this number of transactions, of a store that is wrong in this way or in none.
fn history(seed: u64, count: u64, wrong: Wrong, has_revisions: bool) -> History {
    let mut store = TinyStore::new(wrong, has_revisions);
    let mut dice = Dice(seed);
    let mut free_ns = [1_000_u64; 5];
    let mut planned = Vec::new();
    let mut moments = Vec::new();
    let mut leases = BTreeMap::new();
    let mut events = Vec::new();
    let tell = |time_ns: u64, process: &str, what: What| Event {
        time_ns,
        process: process.to_owned(),
        op: None,
        locks: vec![],
        what,
    };
    let mut meta = Meta::new();
    meta.watch_bound_ms = Some(1);
    events.push(tell(0, "nemesis", What::Fact(Fact::Meta(meta))));
    let watching =
        |watch: &str, range: TxnRange| What::Fact(Fact::Watching { watch: watch.to_owned(), range, after: 0 });
    events.push(tell(1, "eve", watching("w0", TxnRange::default())));
    events.push(tell(1, "fay", watching("w1", TxnRange { from: Some("k05".to_owned()), to: None })));

    for number in 0..count {
        let client = dice.roll(5) as usize;
        let begin_ns = free_ns[client] + 10 + dice.roll(20_000);
        let wait_ns = 1 + dice.roll(30_000);
        let end_ns = begin_ns + wait_ns + 1 + dice.roll(30_000);
        let is_known = dice.roll(15) != 0;
        let late_ns = if is_known { 0 } else { dice.roll(200_000) };
        let effect_ns = Some(begin_ns + wait_ns + late_ns).filter(|_| is_known || dice.roll(2) == 0);
        free_ns[client] = end_ns;

        // Without revisions, absences tell something only if registers last.
        let lease = (has_revisions && dice.roll(3) == 0).then(|| format!("s{number}"));
        let transaction = transaction(&mut dice, number, lease.clone(), has_revisions);
        if let Some(lease) = lease {
            leases.insert(lease.clone(), begin_ns + TTL_NS);
            let opener = format!("opener{number}");
            let open = Call::Open { session: lease, ttl_ms: TTL_NS / 1_000_000 };
            events.push(tell(begin_ns - 2, &opener, What::Invoke(open)));
            events.push(tell(begin_ns - 1, &opener, What::Ok(Answer::Open(Lease::default()))));
        }
        moments.extend(effect_ns.map(|effect_ns| (effect_ns, planned.len())));
        // A client without an answer goes on under another name.
        let process = if is_known { format!("c{client}") } else { format!("c{client}/{number}") };
        planned.push(Planned { process, begin_ns, effect_ns, end_ns, is_known, transaction, answer: None });
    }

    moments.sort_by_key(|(at_ns, _)| *at_ns);
    for (at_ns, place) in moments {
        planned[place].answer = Some(store.run(at_ns, &planned[place].transaction, &leases));
    }

    let last_ns = planned.iter().map(|one| one.end_ns.max(one.effect_ns.unwrap_or_default())).max().unwrap_or_default();
    for one in planned {
        events.push(tell(one.begin_ns, &one.process, What::Invoke(Call::Txn(one.transaction))));
        let ended = match one.answer {
            Some(answer) if one.is_known => What::Ok(Answer::Txn(answer)),
            _ => What::Info { f: Function::Txn, why: "no answer".to_owned() },
        };
        events.push(tell(one.end_ns, &one.process, ended));
    }
    events.extend(reports(&mut store));
    events.push(tell(last_ns + 3_000_000, "nemesis", What::Fact(Fact::End)));
    events.sort_by_key(|event| event.time_ns);
    History::from_events(events).unwrap()
}

/// What the watches report: each revision some time after it.
fn reports(store: &mut TinyStore) -> Vec<Event> {
    let mut events = Vec::new();
    if !store.has_revisions {
        return events;
    }
    let mut by_revision: BTreeMap<u64, (u64, Vec<WatchedChange>)> = BTreeMap::new();
    for (at_ns, revision, change) in std::mem::take(&mut store.changes) {
        let entry = by_revision.entry(revision).or_default();
        entry.0 = at_ns;
        entry.1.push(change);
    }
    for (watch, from, delay_ns) in [("w0", "", 500), ("w1", "k05", 900_000)] {
        for (revision, (at_ns, changes)) in &by_revision {
            let changes: Vec<_> = changes.iter().filter(|change| *change.key >= *from).cloned().collect();
            if changes.is_empty()
                || *revision > 50 && watch == "w1" && changes[0].now.is_some() && store.does(Wrong::WatchSkips)
            {
                continue;
            }
            let watched = What::Fact(Fact::Watched { watch: watch.to_owned(), revision: *revision, changes });
            let event =
                Event { time_ns: at_ns + delay_ns, process: watch.to_owned(), op: None, locks: vec![], what: watched };
            if *revision > 50 && store.does(Wrong::WatchRepeats) {
                events.push(event.clone());
            }
            events.push(event);
        }
    }
    events
}

fn verdict(findings: &[Finding], property: Property) -> &Verdict {
    &findings.iter().find(|finding| finding.property == property).expect("it was checked").verdict
}

#[test]
fn right_histories_are_acquitted() {
    for seed in 1..=60 {
        let findings = check(&history(seed, 400, Wrong::Nothing, true)).unwrap();
        for property in [Property::Serializability, Property::Watches, Property::NoEarlyExpiry] {
            assert_eq!(*verdict(&findings, property), Verdict::Holds, "seed {seed}");
        }
        let findings = check(&history(seed, 400, Wrong::Nothing, false)).unwrap();
        assert_eq!(*verdict(&findings, Property::Serializability), Verdict::Holds, "seed {seed}");
    }
}

#[test]
fn each_wrong_is_convicted() {
    let cases = [
        (Wrong::LosesPut, Property::Serializability),
        (Wrong::ReadsOld, Property::Serializability),
        (Wrong::ReadsPast, Property::Serializability),
        (Wrong::LeavesOut, Property::Serializability),
        (Wrong::IgnoresCompares, Property::Serializability),
        (Wrong::WatchSkips, Property::Watches),
        (Wrong::WatchRepeats, Property::Watches),
        (Wrong::EndsEarly, Property::NoEarlyExpiry),
    ];
    for (wrong, property) in cases {
        let is_convicted = |seed: &u64| {
            let findings = check(&history(*seed, 400, wrong, true)).unwrap();
            matches!(verdict(&findings, property), Verdict::Violated(_))
        };
        let convicted = (1..=20).filter(is_convicted).count();
        println!("{wrong:?}: {convicted} of 20 histories convicted of {property}");
        assert!(convicted >= 10, "{wrong:?}: {convicted} of 20 histories");
    }
}

/// Prints its time: `cargo test --release -p lockkeeper-checker --lib hundred_thousand -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "it measures the machine, not a simulation")]
fn hundred_thousand_transactions() {
    for has_revisions in [true, false] {
        let history = history(1, 100_000, Wrong::Nothing, has_revisions);
        let begun = Instant::now();
        let findings = check(&history).unwrap();
        let kind = if has_revisions { "with" } else { "without" };
        println!("{} events, {kind} revisions: {:?}", history.events.len(), begun.elapsed());
        assert_eq!(*verdict(&findings, Property::Serializability), Verdict::Holds);
    }
}
