//! What the scripts cannot reach: the limits of the table, damaged records, the hash as a constant.

use super::*;

fn session(number: u128) -> SessionId {
    SessionId(number)
}

fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

/// All request ids from this one on.
fn from(lowest: u64) -> OpenIds {
    OpenIds::new(lowest, vec![]).unwrap()
}

fn open(machine: &mut Machine, number: u128) -> Reply {
    let ttl = Ttl::from_millis(1000).unwrap();
    run(machine, Command::Open { session: session(number), ttl, label: Label::new("ann").unwrap() })
}

fn run(machine: &mut Machine, command: Command) -> Reply {
    machine.apply(Time { stamp: machine.now(), wall: WallTime(77) }, command, &mut Vec::new())
}

fn ask(machine: &mut Machine, number: u128, request: Option<u64>, operation: Operation) -> Reply {
    let request = request.map(|id| Request { id, open: from(1) });
    run(machine, Command::Session { session: session(number), request, operation })
}

fn acquire(names: &[&str], wait: Wait) -> Operation {
    let mode = Mode::Exclusive;
    let want = |text: &&str| Want { name: name(text), mode, data: None, keep_data: false, must_exist: false };
    Operation::Acquire(Acquire::new(names.iter().map(want).collect(), wait, 0).unwrap())
}

fn limit(limit: Limit) -> Reply {
    Reply::Refused(Refusal::Limit(limit))
}

fn is_granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Acquired(WaitEnd::Granted(_)))
}

#[test]
fn sessions_are_limited_until_one_ends() {
    let mut machine = Machine { capacity: Capacity { sessions: 2, ..Capacity::default() }, ..Machine::default() };
    open(&mut machine, 1);
    open(&mut machine, 2);
    assert_eq!(open(&mut machine, 3), limit(Limit::Sessions));
    assert_eq!(open(&mut machine, 2), Reply::Opened(Ttl::from_millis(1000).unwrap()), "a renewal needs no room");
    run(&mut machine, Command::Close { session: session(1) });
    assert_ne!(open(&mut machine, 3), limit(Limit::Sessions));
}

#[test]
fn locks_are_limited_by_those_that_an_acquire_would_add() {
    let mut machine = Machine { capacity: Capacity { locks: 2, ..Capacity::default() }, ..Machine::default() };
    open(&mut machine, 1);
    assert!(is_granted(&ask(&mut machine, 1, None, acquire(&["a"], Wait::Never))));
    assert_eq!(ask(&mut machine, 1, None, acquire(&["b", "c"], Wait::Never)), limit(Limit::Locks));
    assert_eq!(ask(&mut machine, 1, None, acquire(&["a", "b", "c"], Wait::Forever)), limit(Limit::Locks));
    assert!(is_granted(&ask(&mut machine, 1, None, acquire(&["b"], Wait::Never))));
    assert!(matches!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Forever)), Reply::Queued(_)));
    assert!(matches!(ask(&mut machine, 1, None, acquire(&["a", "c"], Wait::Never)), Reply::Busy(_)), "adds nothing");
}

#[test]
fn waiters_are_limited_until_one_leaves() {
    let mut machine = Machine { capacity: Capacity { waiters: 1, ..Capacity::default() }, ..Machine::default() };
    open(&mut machine, 1);
    ask(&mut machine, 1, None, acquire(&["a"], Wait::Never));
    assert_eq!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Forever)), Reply::Queued(Ticket(1)));
    assert_eq!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Forever)), limit(Limit::Waiters));
    run(&mut machine, Command::CancelWait { ticket: Ticket(1) });
    assert_eq!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Forever)), Reply::Queued(Ticket(2)));
}

#[test]
fn replies_are_limited_until_the_client_lets_go_of_some() {
    let mut machine = Machine::default();
    open(&mut machine, 1);
    let most = REPLIES_PER_SESSION_MAX as u64;
    for id in 1..most {
        ask(&mut machine, 1, Some(id), Operation::Release(Target::Grant(Token(9))));
    }
    // Room for one: not for the release and the mark it leaves, which it needs no room for without an id.
    let release = Operation::Release(Target::Acquire(most + 5));
    assert_eq!(ask(&mut machine, 1, Some(most), release.clone()), limit(Limit::RepliesPerSession));
    assert_eq!(ask(&mut machine, 1, None, release), limit(Limit::RepliesPerSession));
    assert_eq!(ask(&mut machine, 1, Some(most + 1), acquire(&["a"], Wait::Never)), limit(Limit::RepliesPerSession));
    assert!(is_granted(&ask(&mut machine, 1, None, acquire(&["a"], Wait::Never))), "without an id nothing is kept");

    let operation = acquire(&["b"], Wait::Never);
    let request = Some(Request { id: most + 1, open: from(2) });
    assert!(is_granted(&run(&mut machine, Command::Session { session: session(1), request, operation })));
}

#[test]
fn only_the_last_ended_sessions_are_remembered() {
    let mut machine = Machine::default();
    let last = ENDED_SESSIONS_MAX as u128 + 1;
    for number in 1..=last {
        open(&mut machine, number);
        run(&mut machine, Command::Close { session: session(number) });
    }
    assert_eq!(machine.session_end(session(1)), Some(SessionEnd::Unknown));
    assert_eq!(machine.session_end(session(2)), Some(SessionEnd::Closed));
    assert_eq!(machine.session_end(session(last)), Some(SessionEnd::Closed));
    assert_eq!(Machine::from_records(machine.records()).unwrap().hash(), machine.hash());
}

/// One of each kind of record.
fn full_table() -> Machine {
    let mut machine = Machine::default();
    open(&mut machine, 1);
    open(&mut machine, 2);
    open(&mut machine, 3);
    run(&mut machine, Command::Close { session: session(3) });
    ask(&mut machine, 1, Some(1), acquire(&["a", "b"], Wait::Never));
    ask(&mut machine, 2, Some(1), acquire(&["a"], Wait::Millis(10)));
    let data = Some(Data::new(b"x").unwrap());
    let update = Update { token: Token(1), name: name("b"), data, keep_data: true };
    ask(&mut machine, 1, Some(2), Operation::Update(update));
    machine
}

/// Two versions that disagree on it would each take the other's table for damaged.
#[test]
fn the_hash_is_the_same_in_every_build() {
    // FNV-1a of the 25 zero bytes of an empty table's clock.
    assert_eq!(Machine::default().hash(), 0xd465_7f55_662f_817f);
    assert_eq!(full_table().hash(), 0x4122_1faf_6816_7494);
}

#[test]
fn tables_that_differ_in_open_ids_alone_have_different_hashes() {
    let table = |lowest, kept: &[u64]| {
        let mut machine = full_table();
        let request = Some(Request { id: 5, open: OpenIds::new(lowest, kept.to_vec()).unwrap() });
        run(&mut machine, Command::Session { session: session(1), request, operation: acquire(&["c"], Wait::Never) });
        machine.hash()
    };
    let hashes = [table(3, &[1, 2]), table(4, &[1, 2]), table(4, &[1, 2, 3])];
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2], "{hashes:x?}");
}

#[test]
fn a_record_that_is_missing_or_twice_is_noticed() {
    let machine = full_table();
    let records: Vec<_> = machine.records().collect();
    for (at, record) in records.iter().enumerate() {
        let mut twice = records.clone();
        twice.insert(at, record.clone());
        assert!(Machine::from_records(twice).is_err(), "{record:?} was taken twice");

        let mut without = records.clone();
        without.remove(at);
        // What nothing else refers to can be missing: the snapshot's checksum guards it.
        let alone = match record {
            Record::Ended { .. } | Record::Lock { .. } | Record::Reply { .. } => true,
            Record::Clock { .. } | Record::Session { .. } | Record::Grant { .. } | Record::Wait { .. } => false,
        };
        assert_eq!(Machine::from_records(without).is_ok(), alone, "without {record:?}");
    }
}

#[test]
fn records_that_contradict_each_other_are_refused() {
    let machine = full_table();
    let spoilt = |spoil: &dyn Fn(&mut Record)| {
        let records = machine.records().map(|mut record| {
            spoil(&mut record);
            record
        });
        Machine::from_records(records).err().map(|broken| broken.to_string()).unwrap_or_default()
    };
    assert_eq!(spoilt(&|_| {}), "");
    type Spoil<'a> = &'a dyn Fn(&mut Record);
    let cases: [(&str, Spoil<'_>); 6] = [
        ("was never given out (M2)", &|record| {
            if let Record::Clock { last_token, .. } = record {
                *last_token = Token(0);
            }
        }),
        ("a deadline has passed (M7)", &|record| {
            if let Record::Session { deadline, .. } = record {
                *deadline = Stamp(0);
            }
        }),
        ("waits for nothing (M4)", &|record| {
            if let Record::Grant { locks, .. } = record {
                locks.remove(0);
            }
        }),
        ("disagree on its mode (M5)", &|record| {
            if let Record::Grant { locks, .. } = record {
                locks[0].1 = Mode::Permit(Permits::new(3).unwrap());
            }
        }),
        ("cannot be (M8)", &|record| {
            if let Record::Wait { request, .. } = record {
                *request = None;
            }
        }),
        ("should be forgotten (M8)", &|record| {
            if let Record::Session { open, .. } = record {
                *open = from(2);
            }
        }),
    ];
    for (message, spoil) in cases {
        assert!(spoilt(spoil).contains(message), "{:?} where {message:?} was expected", spoilt(spoil));
    }
}

/// A snapshot is written from a clone while commands go on.
#[test]
fn a_clone_stays_as_it_was() {
    let mut machine = full_table();
    let (clone, hash) = (machine.clone(), machine.hash());
    ask(&mut machine, 1, Some(3), Operation::Release(Target::Grant(Token(1))));
    assert_ne!(machine.hash(), hash);
    assert_eq!(clone.hash(), hash);
    clone.check().unwrap();
}
