//! The events of the keyspace, its past, and compaction.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn compact(machine: &mut Machine, revision: u64) -> Reply {
    run(machine, Command::Compact { revision: Revision(revision) })
}

#[test]
fn each_change_of_an_entry_is_an_event_at_the_revision_of_its_transaction() {
    let mut machine = Machine::default();
    open(&mut machine);
    run(&mut machine, txn(vec![put("b", 1, None), put("a", 1, leased(AtLeaseEnd::Delete))]));
    run(&mut machine, txn(vec![put("a", 2, leased(AtLeaseEnd::Keep)), delete("b"), delete("no such key")]));
    run(&mut machine, txn(vec![delete("no such key"), TxnOperation::Get(key("a"))]));
    run(&mut machine, txn(vec![put("passes", 1, None), delete("passes")]));
    run(&mut machine, txn(vec![put("c", 1, leased(AtLeaseEnd::Delete))]));
    run(&mut machine, Command::Close { session: ANN, by: None, reason: None });

    let first = [event(1, "a", 0, 1), event(1, "b", 0, 1)];
    let then = [
        event(2, "a", 1, 2),
        event(2, "b", 1, 0),
        // The entry that came and went at revision 3 was never there.
        event(4, "c", 0, 1),
        event(5, "a", 2, 2),
        event(6, "c", 1, 0),
    ];

    assert_eq!(events(&machine, 1), then);
    assert_eq!(events(&machine, 0), [first.as_slice(), then.as_slice()].concat());
    assert_eq!(events(&machine, 6), []);

    let history = machine.history();
    let after_a: Vec<_> =
        history.after(Revision(1), Some(&key("a"))).expect("known").map(|it| it.key.clone()).collect();
    assert_eq!(after_a[..2], [key("b"), key("a")], "within a revision it goes on behind the key");
    let marked = history.after(Revision(4), None).expect("known").next().expect("the mark").after.clone();
    assert!(marked.is_some_and(|entry| entry.is_expired && entry.lease.is_none() && entry.modified == Revision(5)));
}

/// A read of the past visits keys, not events: a thousand writes of one key cost a read of another nothing.
#[test]
fn a_read_of_the_past_visits_the_keys_of_its_range() {
    let mut machine = Machine::default();
    for name in ["a", "b", "c"] {
        run(&mut machine, txn(vec![put(name, 1, None)]));
    }
    let then = machine.revision();
    for bytes in 0..1000 {
        run(&mut machine, txn(vec![put("b", bytes, None)]));
    }
    run(&mut machine, txn(vec![delete("c"), put("d", 1, None)]));
    for backwards in [false, true] {
        let past = machine.entries_at(&KeyRange::default(), then).expect("not compacted");
        let visits: Vec<_> = past.visits(backwards).collect();
        assert_eq!(visits.len(), 4);
        let mut found: Vec<_> = visits.into_iter().flatten().map(|(key, _)| key.clone()).collect();
        found.sort();
        assert_eq!(found, [key("a"), key("b"), key("c")]);
    }
}

#[test]
fn the_past_is_readable_at_each_revision_that_is_not_compacted() {
    let mut machine = Machine::default();
    open(&mut machine);
    let everything = KeyRange::default();
    let middle = KeyRange { from: Some(key("b")), to: Some(key("d")) };
    let state = |machine: &Machine| -> BTreeMap<Key, Arc<Entry>> {
        machine.entries(&KeyRange::default()).map(|(key, entry)| (key.clone(), entry)).collect()
    };
    let mut states = BTreeMap::from([(0, state(&machine))]);
    let steps = [
        vec![put("b", 1, None), put("d", 1, None)],
        vec![put("a", 2, leased(AtLeaseEnd::Keep)), put("b", 2, None)],
        vec![delete("b"), put("c", 3, leased(AtLeaseEnd::Delete))],
        vec![put("b", 4, None), delete("d"), put("e", 1, None)],
        vec![TxnOperation::DeleteRange(KeyRange { from: Some(key("c")), to: None })],
    ];
    for step in steps {
        run(&mut machine, txn(step));
        states.insert(machine.revision().0, state(&machine));
    }
    run(&mut machine, Command::Close { session: ANN, by: None, reason: None });
    states.insert(machine.revision().0, state(&machine));
    assert!(states.len() >= 7, "{} states", states.len());

    let check = |machine: &Machine, compacted: u64| {
        for (revision, expected) in &states {
            let revision = Revision(*revision);
            let found = machine.entries_at(&everything, revision);
            if revision.0 < compacted {
                let compacted = RevisionError::Compacted { compacted: Revision(compacted) };
                assert_eq!(found.err(), Some(compacted));
                assert_eq!(machine.entry_at(&key("a"), revision), Err(compacted));
                continue;
            }
            let found = found.expect("not compacted");
            let list = |past: &PastEntries<'_>, backwards| -> Vec<(Key, Arc<Entry>)> {
                past.iter(backwards).map(|(key, entry)| (key.clone(), entry)).collect()
            };
            let expected: Vec<_> = expected.clone().into_iter().collect();
            assert_eq!(list(&found, false), expected, "at {revision:?}");
            assert_eq!(list(&found, true), expected.iter().cloned().rev().collect::<Vec<_>>(), "at {revision:?}");
            let part = machine.entries_at(&middle, revision).expect("not compacted");
            let of_middle: Vec<_> = expected.iter().filter(|(key, _)| middle.contains(key)).cloned().collect();
            assert_eq!(list(&part, false), of_middle, "at {revision:?}");
            for name in ["a", "b", "c", "d", "e", "f"] {
                let there = expected.iter().find(|(known, _)| *known == key(name)).map(|(_, entry)| entry.clone());
                assert_eq!(machine.entry_at(&key(name), revision), Ok(there), "{name} at {revision:?}");
            }
        }
    };
    check(&machine, 0);
    let present = machine.revision();
    let ahead = RevisionError::Future { present };
    assert_eq!(machine.entries_at(&everything, Revision(present.0 + 1)).err(), Some(ahead));
    assert_eq!(machine.entry_at(&key("a"), Revision(present.0 + 1)), Err(ahead));
    compact(&mut machine, 3);
    check(&machine, 3);
    let restored = Machine::from_records(machine.records()).expect("sound");
    check(&restored, 3);
    assert_eq!(restored.hash(), machine.hash());
    compact(&mut machine, present.0);
    check(&machine, present.0);
    assert_eq!((machine.history().len(), machine.history().bytes()), (0, 0));
}

/// The version that a key had at a revision, from its changes and the versions since; 0: no entry.
fn version_at(changes: Option<&Vec<(u64, u64)>>, revision: u64) -> u64 {
    let last = changes.and_then(|changes| changes.iter().rev().find(|(changed, _)| *changed <= revision));
    last.map_or(0, |(_, version)| *version)
}

/// Long enough for large runs of the index by key, and for many that are dropped. The table is held against all states that it had.
#[test]
fn the_past_is_readable_over_thousands_of_events() {
    const WRITES: u64 = 20_000;
    const EVENTS: usize = 6_000;
    const KEYS: u64 = 300;
    let capacity = TableCapacity { events: EVENTS, ..TableCapacity::default() };
    let mut machine = Machine { capacity, ..Machine::default() };
    let mut random = 1_u64;
    let mut draw = |below: u64| {
        // Knuth's multiplier and increment (The Art of Computer Programming, volume 2, 3.3.4).
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };

    // For each key: when it changed, and the version since.
    let mut changes: BTreeMap<Key, Vec<(u64, u64)>> = BTreeMap::new();
    for write in 0..WRITES {
        let names: BTreeSet<_> = (0..=draw(3)).map(|_| format!("{:03}", draw(KEYS))).collect();
        let change = |name: String| if draw(3) == 0 { delete(&name) } else { put(&name, 1, None) };
        let operations = names.into_iter().map(change).collect();
        let before = machine.revision();
        run(&mut machine, txn(operations));
        for event in machine.history().after(before, None).expect("the latest") {
            let version = event.after.as_ref().map_or(0, |entry| entry.version);
            changes.entry(event.key.clone()).or_default().push((event.revision.0, version));
        }

        // A part of the index that went too early is missed first where the oldest event is looked for.
        let compacted = machine.history().compacted().0;
        if let Some(oldest) = machine.history().stored().find(|event| event.revision.0 > compacted) {
            let before = machine.entry_at(&oldest.key, Revision(compacted)).expect("not compacted");
            let expected = version_at(changes.get(&oldest.key), compacted);
            assert_eq!(before.map_or(0, |entry| entry.version), expected, "{:?} at {compacted}", oldest.key);
        }

        if write % 1_000 != 999 {
            continue;
        }

        let restored = Machine::from_records(machine.records()).expect("sound");
        let present = machine.revision().0;
        assert!(machine.history().len() <= EVENTS);

        for _ in 0..20 {
            let revision = compacted + draw(present - compacted + 1);
            let one = draw(KEYS);
            let other = draw(KEYS);
            let name = |number: u64| key(&format!("{number:03}"));
            let range = KeyRange { from: Some(name(one.min(other))), to: Some(name(one.max(other))) };

            let expected: Vec<_> = changes
                .range::<Key, _>(range.bounds())
                .map(|(key, changes)| (key.clone(), version_at(Some(changes), revision)))
                .filter(|(_, version)| *version > 0)
                .collect();

            for machine in [&machine, &restored] {
                let past = machine.entries_at(&range, Revision(revision)).expect("not compacted");
                let shown = |backwards| -> Vec<_> {
                    past.iter(backwards).map(|(key, entry)| (key.clone(), entry.version)).collect()
                };
                assert_eq!(shown(false), expected, "at {revision}");
                assert!(shown(true).into_iter().rev().eq(expected.iter().cloned()), "backwards at {revision}");

                let alone = machine.entry_at(&name(one), Revision(revision)).expect("not compacted");
                let version = version_at(changes.get(&name(one)), revision);
                assert_eq!(alone.map_or(0, |entry| entry.version), version, "{one} at {revision}");
            }
        }
    }
    assert!(machine.history().compacted() > Revision(0));
}

#[test]
fn a_compaction_refuses_the_future_and_does_not_go_back() {
    let mut machine = with_entries(1, None);
    run(&mut machine, txn(vec![put("a", 1, None)]));
    assert_eq!(compact(&mut machine, 3), Reply::Refused(Refusal::RevisionFuture { present: Revision(2) }));
    assert_eq!(machine.history().compacted(), Revision(0));
    assert_eq!(compact(&mut machine, 1), Reply::Compacted(Revision(1)));
    assert_eq!(events(&machine, 1), [event(2, "a", 0, 1)]);
    for revision in [0, 1] {
        assert_eq!(compact(&mut machine, revision), Reply::Compacted(Revision(1)));
    }
    let compacted = RevisionError::Compacted { compacted: Revision(1) };
    assert_eq!(machine.history().after(Revision(0), None).err(), Some(compacted));
    assert_eq!(machine.history().after(Revision(1), Some(&key("0"))).err(), Some(compacted), "it is not known whole");
    let hash = machine.hash();
    compact(&mut machine, 2);
    assert_ne!(machine.hash(), hash);
}

#[test]
fn the_history_drops_whole_revisions_and_keeps_the_last_one() {
    const EVENTS: usize = 10;
    let capacity = TableCapacity { events: EVENTS, event_bytes: 4000, ..TableCapacity::default() };
    let mut machine = Machine { capacity, ..Machine::default() };
    let keys = ["a", "b", "c"];
    for round in 1..=20 {
        run(&mut machine, txn(keys.map(|name| put(name, round, None)).into()));
        let known = machine.history().len();
        assert!(known <= EVENTS && known.is_multiple_of(keys.len()), "{known} events");
        assert_eq!(machine.history().compacted().0 as usize, round.saturating_sub(EVENTS / keys.len()));
    }

    // By bytes, before the number: the entries before are kept by the history alone.
    run(&mut machine, txn(vec![put("a", 1000, None)]));
    run(&mut machine, txn(vec![put("a", 1500, None)]));
    let before = machine.history().len();
    run(&mut machine, txn(vec![put("a", 1, None)]));
    assert!(machine.history().len() < before && machine.history().bytes() <= 4000, "{:?}", machine.history());
    let bytes = machine.history().count_bytes();
    assert_eq!(machine.history().bytes(), bytes);

    // A revision that exceeds the limit alone.
    let many: Vec<_> = (0..3 * EVENTS).map(|number| put(&format!("many/{number}"), 1, None)).collect();
    run(&mut machine, txn(many));
    assert_eq!(machine.history().len(), 3 * EVENTS);
    assert!(!machine.has_work());
    run(&mut machine, txn(vec![put("a", 1, None)]));
    assert_eq!(machine.history().len(), 1);
}

/// Meanwhile nobody sees the events, and a table that is restored from a snapshot goes on where the other was.
#[test]
fn a_compaction_is_spread_over_batches() {
    const ROUNDS: usize = 1000;
    const LIMITS: Limits = Limits { work: 20, ..Limits::NONE };
    let mut machine = Machine::default();
    for _ in 0..ROUNDS {
        run(&mut machine, txn(vec![put("a", 1, None)]));
    }

    let last = ROUNDS as u64;
    apply(&mut machine, LIMITS, 0, Command::Compact { revision: Revision(last - 1) });
    let mut batches = 0;
    while machine.has_work() {
        let before = machine.history().len();
        assert_eq!(events(&machine, last - 1).len(), 1);
        assert!(machine.entry_at(&key("a"), Revision(last - 2)).is_err());
        let mut restored = Machine::from_records(machine.records()).expect("sound");
        for machine in [&mut machine, &mut restored] {
            apply(machine, LIMITS, 0, Command::Tick);
        }
        assert_eq!(restored.hash(), machine.hash());
        assert!(before - machine.history().len() <= 16 * LIMITS.work, "{before} events before");
        batches += 1;
        assert!(batches < ROUNDS, "it does not end");
    }

    assert!(batches >= ROUNDS / LIMITS.work / 16, "{batches} batches");
    assert_eq!(machine.history().len(), 1);
}

#[test]
fn a_restored_history_shares_its_entries_with_the_table() {
    let mut machine = Machine::default();
    for round in 1..=3 {
        run(&mut machine, txn(vec![put("a", round, None), put("b", 1, None)]));
    }
    let restored = Machine::from_records(machine.records()).expect("sound");
    let known: Vec<_> = restored.history().after(Revision(0), None).expect("known").cloned().collect();
    assert_eq!(known, machine.history().after(Revision(0), None).expect("known").cloned().collect::<Vec<_>>());
    let of_a: Vec<_> = known.iter().filter(|event| event.key == key("a")).collect();
    let same = |one: &Option<Arc<Entry>>, other: &Option<Arc<Entry>>| {
        one.as_ref().zip(other.as_ref()).is_some_and(|(one, other)| Arc::ptr_eq(one, other))
    };
    assert!(same(&of_a[0].after, &of_a[1].before) && same(&of_a[1].after, &of_a[2].before));
    assert!(same(&of_a[2].after, &restored.entry(&key("a"))));
}

#[test]
fn a_cluster_that_is_restored_from_a_copy_has_no_history() {
    let machine = with_entries(1, None);
    let restore = Restore { at: WallTime(0), draw: 7, first_token: Some(Token(50)), closed_ms: None };
    let mut restored = machine.restored(&restore).expect("above the last one");
    assert_eq!(restored.history().compacted(), Revision(49));
    run(&mut restored, txn(vec![put("a", 1, None)]));
    assert_eq!(events(&restored, 49), [event(50, "a", 0, 1)]);
    assert!(
        restored.entry_at(&key("000000"), Revision(1)).is_err(),
        "the old cluster may have changed it after the copy"
    );
}

#[test]
fn a_damaged_history_is_refused() {
    let mut machine = Machine::default();
    for name in ["a", "b", "a"] {
        run(&mut machine, txn(vec![put(name, 1, None), put("c", 1, None)]));
    }
    run(&mut machine, txn(vec![delete("b")]));
    compact(&mut machine, 1);

    let records: Vec<_> = machine.records().collect();
    let places: Vec<_> = (0..records.len()).filter(|at| matches!(records[*at], Record::EntryEvent { .. })).collect();
    assert_eq!(places.len(), 5);
    let restored = |records: Vec<Record>| Machine::from_records(records).map(|restored| restored.hash());
    assert_eq!(restored(records.clone()), Ok(machine.hash()));
    let refused = |what: &str, spoil: &dyn Fn(&mut Vec<Record>)| {
        let mut spoilt = records.clone();
        spoil(&mut spoilt);
        assert!(restored(spoilt).is_err(), "{what} was taken");
    };

    for at in &places {
        refused("an event twice", &|records| records.insert(*at, records[*at].clone()));
        refused("an event with another entry", &|records| {
            let Record::EntryEvent { before, .. } = &mut records[*at] else { panic!("an event") };
            match before {
                Some(entry) => Arc::make_mut(entry).version += 1,
                None => *before = machine.entry(&key("c")),
            }
        });
    }

    refused("events in another order", &|records| records.swap(places[0], places[1]));
    refused("no event of a deletion", &|records| _ = records.remove(places[4]));
    refused("a later compaction than revisions", &|records| {
        let at = records.iter().position(|record| matches!(record, Record::Compacted { .. })).expect("there is one");
        records[at] = Record::Compacted { revision: Revision(9) };
    });
    refused("no event of an entry", &|records| records.retain(|record| !matches!(record, Record::EntryEvent { .. })));
}
