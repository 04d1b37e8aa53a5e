//! Cases that the golden scripts cannot reach: the limits of the table, damaged records, the hash as a constant.

use crate::{table::ActiveLock, *};

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
    let label = Label::new("ann").unwrap();
    run(machine, Command::Open { session: session(number), ttl, label, address: None, owner: None })
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
    let mut machine =
        Machine { capacity: TableCapacity { sessions: 2, ..TableCapacity::default() }, ..Machine::default() };
    open(&mut machine, 1);
    open(&mut machine, 2);
    assert_eq!(open(&mut machine, 3), limit(Limit::Sessions));
    assert_eq!(open(&mut machine, 2), Reply::Opened(Ttl::from_millis(1000).unwrap()), "a renewal needs no room");
    run(&mut machine, Command::Close { session: session(1), by: None, reason: None });
    assert_ne!(open(&mut machine, 3), limit(Limit::Sessions));
}

#[test]
fn sessions_are_listed_up_to_the_last_one_that_is_asked_for() {
    let mut machine = Machine::default();
    for number in 1..=5 {
        open(&mut machine, number);
    }
    let listed = |after: Option<u128>, last: Option<u128>| {
        let sessions = machine.sessions_up_to(after.map(session), last.map(session));
        sessions.map(|view| view.session.0).collect::<Vec<_>>()
    };
    assert_eq!(listed(Some(1), Some(3)), [2, 3]);
    assert_eq!(listed(Some(3), None), [4, 5]);
    assert_eq!(listed(None, Some(0)), [0; 0]);
    assert_eq!(listed(Some(5), Some(1)), [0; 0]);
}

#[test]
fn locks_are_limited_by_the_number_that_an_acquire_adds() {
    let mut machine =
        Machine { capacity: TableCapacity { locks: 2, ..TableCapacity::default() }, ..Machine::default() };
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
    let mut machine =
        Machine { capacity: TableCapacity { waiters: 1, ..TableCapacity::default() }, ..Machine::default() };
    open(&mut machine, 1);
    ask(&mut machine, 1, None, acquire(&["a"], Wait::Never));
    assert_eq!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Forever)), Reply::Queued(Ticket(1)));
    assert_eq!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Forever)), limit(Limit::Waiters));
    run(&mut machine, Command::CancelWait { ticket: Ticket(1), repeats: None });
    assert_eq!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Forever)), Reply::Queued(Ticket(2)));
}

/// A session with [`REPLIES_PER_SESSION_MAX`] remembered replies.
fn full_of_replies() -> Machine {
    let mut machine = Machine::default();
    open(&mut machine, 1);
    ask(&mut machine, 1, None, acquire(&["a"], Wait::Never));
    for id in 1..=REPLIES_PER_SESSION_MAX as u64 {
        assert!(matches!(ask(&mut machine, 1, Some(id), acquire(&["a"], Wait::Never)), Reply::Busy(_)));
    }
    machine
}

fn release(token: u64) -> Operation {
    Operation::Release(Target::Grant(Token(token)))
}

#[test]
fn acquires_are_limited_until_the_client_lets_go_of_some_replies() {
    let mut machine = full_of_replies();
    let next = REPLIES_PER_SESSION_MAX as u64 + 1;
    assert_eq!(ask(&mut machine, 1, Some(next), acquire(&["b"], Wait::Never)), limit(Limit::RepliesPerSession));
    assert!(is_granted(&ask(&mut machine, 1, None, acquire(&["b"], Wait::Never))), "without an id nothing is kept");
    let operation = acquire(&["c"], Wait::Never);
    let request = Some(Request { id: next, open: from(2) });
    assert!(is_granted(&run(&mut machine, Command::Session { session: session(1), request, operation })));
}

#[test]
fn releases_and_updates_have_places_of_their_own() {
    let mut machine = full_of_replies();
    let mut ids = REPLIES_PER_SESSION_MAX as u64 + 1..;
    let mut next = || ids.next();
    let data = Update { token: Token(1), name: name("a"), data: None, keep_data: false };
    assert_eq!(ask(&mut machine, 1, next(), Operation::Update(data.clone())), Reply::Updated);
    assert_eq!(
        ask(&mut machine, 1, next(), Operation::Release(Target::Acquire(9_999))),
        Reply::Released(Released::Nothing)
    );
    let id = next();
    assert_eq!(ask(&mut machine, 1, id, release(1)), Reply::Released(Released::Grant));
    assert_eq!(ask(&mut machine, 1, id, release(1)), Reply::Released(Released::Grant), "it is remembered");
    // The mark of the abandoned acquire has a place too.
    for _ in 4..RELEASE_REPLIES_PER_SESSION_MAX {
        assert_eq!(ask(&mut machine, 1, next(), release(1)), Reply::Refused(Refusal::NotHeld));
    }
    // One place is left: too few for a release and the mark that it leaves.
    let unseen = Operation::Release(Target::Acquire(8_888));
    assert_eq!(ask(&mut machine, 1, next(), unseen.clone()), limit(Limit::RepliesPerSession));
    // No place is left now, and a release runs all the same.
    assert!(is_granted(&ask(&mut machine, 1, None, acquire(&["a"], Wait::Never))));
    assert_eq!(ask(&mut machine, 1, next(), Operation::Update(data)), limit(Limit::RepliesPerSession));
    let before = machine.replies().count();
    let id = next();
    assert_eq!(ask(&mut machine, 1, id, release(2)), Reply::Released(Released::Grant));
    assert_eq!(ask(&mut machine, 1, id, release(2)), Reply::Refused(Refusal::NotHeld));
    assert_eq!(ask(&mut machine, 1, next(), unseen.clone()), limit(Limit::RepliesPerSession));
    assert_eq!(ask(&mut machine, 1, None, unseen), limit(Limit::RepliesPerSession));
    assert_eq!(machine.replies().count(), before);
    assert_eq!(before, REPLIES_PER_SESSION_MAX + RELEASE_REPLIES_PER_SESSION_MAX);
}

/// A session whose acquires all wait releases what it holds, and cancels its waits.
#[test]
fn a_session_at_its_limit_of_waits_can_still_release() {
    let mut machine = Machine::default();
    open(&mut machine, 1);
    let ids = 2..=REPLIES_PER_SESSION_MAX as u64 + 1;
    ask(&mut machine, 1, None, acquire(&["a"], Wait::Never));
    for id in ids.clone() {
        assert!(matches!(ask(&mut machine, 1, Some(id), acquire(&["a"], Wait::Forever)), Reply::Queued(_)));
    }
    let next = *ids.end() + 1;
    assert_eq!(ask(&mut machine, 1, Some(next), release(1)), Reply::Released(Released::Grant));
    // Each release granted the next of them.
    for (id, own) in ids.zip(next + 1..) {
        let taken_back = ask(&mut machine, 1, Some(own), Operation::Release(Target::Acquire(id)));
        assert_eq!(taken_back, Reply::Released(Released::Grant));
    }
    assert_eq!(machine.counts(), Counts { sessions: 1, ..Counts::default() });
}

#[test]
fn waits_of_a_session_are_limited_also_without_request_ids() {
    let capacity = TableCapacity { waits_per_session: 2, ..TableCapacity::default() };
    let mut machine = Machine { capacity, ..Machine::default() };
    open(&mut machine, 1);
    open(&mut machine, 2);
    ask(&mut machine, 1, None, acquire(&["a"], Wait::Never));
    assert!(matches!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Forever)), Reply::Queued(_)));
    assert!(matches!(ask(&mut machine, 1, Some(1), acquire(&["a"], Wait::Forever)), Reply::Queued(_)));
    assert_eq!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Forever)), limit(Limit::WaitsPerSession));
    assert_eq!(ask(&mut machine, 1, Some(2), acquire(&["a"], Wait::Forever)), limit(Limit::WaitsPerSession));
    assert!(matches!(ask(&mut machine, 2, None, acquire(&["a"], Wait::Forever)), Reply::Queued(_)), "of each");
    assert!(is_granted(&ask(&mut machine, 1, None, acquire(&["b"], Wait::Forever))), "it does not wait");
    run(&mut machine, Command::CancelWait { ticket: Ticket(1), repeats: None });
    assert!(matches!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Forever)), Reply::Queued(_)));
}

/// The budget of one part of a batch in these tests.
const WORK: usize = 20;
/// Twenty times the budget.
const MANY: usize = 20 * WORK;

/// Runs one command within [`WORK`], at this time.
fn run_little(machine: &mut Machine, stamp: Stamp, command: Command, events: &mut Vec<Event>) -> Reply {
    let limits = Limits { work: WORK, ..Limits::default() };
    machine.apply_batch(Time { stamp, wall: WallTime(0) }, limits, [command], events).remove(0)
}

/// The number of events in each batch until no work is left: this command, then ticks at its stamp.
fn events_of_batches(machine: &mut Machine, stamp: Stamp, command: Command) -> Vec<usize> {
    let mut counts = Vec::new();
    let mut next = Some(command);
    while let Some(command) = next {
        let mut events = Vec::new();
        run_little(machine, stamp, command, &mut events);
        counts.push(events.len());
        next = machine.has_work().then_some(Command::Tick);
    }
    counts
}

/// A table in which the session 1 holds [`MANY`] locks.
fn holder_of_many() -> Machine {
    let mut machine = Machine::default();
    open(&mut machine, 1);
    for number in 0..MANY {
        assert!(is_granted(&ask(&mut machine, 1, None, acquire(&[&format!("{number:04}")], Wait::Never))));
    }
    machine
}

#[test]
fn the_end_of_a_session_is_spread_over_batches() {
    let ends =
        [(Stamp(0), Command::Close { session: session(1), by: None, reason: None }), (Stamp(1000), Command::Tick)];
    for (stamp, command) in ends {
        let mut machine = holder_of_many();
        let counts = events_of_batches(&mut machine, stamp, command);
        assert!(counts.iter().all(|count| *count <= WORK), "{counts:?}: an event for each lock, and the session's end");
        assert_eq!(counts.len(), MANY / WORK + 1, "{counts:?}");
        assert_eq!(machine.counts(), Counts::default());
    }
}

#[test]
fn sessions_that_expire_at_once_end_in_many_batches_and_others_are_served_in_each() {
    let mut machine = Machine::default();
    for number in 1..=MANY as u128 {
        open(&mut machine, number);
        ask(&mut machine, number, None, acquire(&[&format!("{number:04}")], Wait::Never));
    }
    let mut batches = 0;
    while machine.has_work() || batches == 0 {
        batches += 1;
        let number = u128::MAX - batches;
        let mut events = Vec::new();
        let ttl = Ttl::from_millis(1000).unwrap();
        let label = Label::default();
        let open = Command::Open { session: session(number), ttl, label, address: None, owner: None };
        assert_eq!(run_little(&mut machine, Stamp(1000), open, &mut events), Reply::Opened(ttl));
        let operation = acquire(&[&format!("own {batches}")], Wait::Never);
        let acquire = Command::Session { session: session(number), request: None, operation };
        assert!(is_granted(&run_little(&mut machine, Stamp(1000), acquire, &mut events)));
        // Two batches, each with the backlog, the deadlines and the command.
        assert!(events.len() <= 2 * (2 * WORK + 1), "{} events", events.len());
    }
    // Each session costs a unit for its end and one for its grant.
    assert_eq!(batches as usize, 2 * MANY / WORK / 2);
    assert_eq!(machine.counts().sessions, batches as usize, "all of them are new");
}

/// The session 1 has the lock, and [`MANY`] sharers of other sessions wait for it.
fn many_sharers(machine: &mut Machine) {
    ask(machine, 1, None, acquire(&["shared"], Wait::Never));
    for number in 0..MANY {
        let holder = 2 + number as u128 / 1000;
        open(machine, holder);
        let name = name("shared");
        let want = Want { name, mode: Mode::Shared, data: None, keep_data: false, must_exist: false };
        let operation = Operation::Acquire(Acquire::new(vec![want], Wait::Forever, 0).unwrap());
        assert!(matches!(ask(machine, holder, None, operation), Reply::Queued(_)));
    }
}

#[test]
fn sharers_that_wait_come_in_a_batch_at_a_time() {
    let mut machine = Machine::default();
    open(&mut machine, 1);
    many_sharers(&mut machine);
    let release = Command::Session { session: session(1), request: None, operation: release(1) };
    let counts = events_of_batches(&mut machine, Stamp(0), release);
    // Each takes three units, and two events: it leaves the queue, and is granted the lock.
    assert!(counts.iter().all(|count| *count <= WORK), "{counts:?}");
    assert!(counts.len() >= 2 * MANY / WORK, "{counts:?}");
    let view = machine.lock(&name("shared"), Page { size: 0, holders_after: Token(0), waiters_after: Ticket(0) });
    assert_eq!((view.holder_count, view.queue_length), (MANY as u64, 0));
}

/// The end of a session with many locks does not hold up the rest of the backlog.
#[test]
fn a_small_piece_of_work_does_not_wait_for_the_end_of_a_large_one() {
    let mut machine = holder_of_many();
    open(&mut machine, 2);
    let small = WORK + 5;
    for number in 0..small {
        assert!(is_granted(&ask(&mut machine, 2, None, acquire(&[&format!("small {number}")], Wait::Never))));
    }
    for number in [1, 2] {
        run_little(
            &mut machine,
            Stamp(0),
            Command::Close { session: session(number), by: None, reason: None },
            &mut Vec::new(),
        );
    }
    let left = |machine: &Machine| machine.locks("small", None).count();
    let mut batches = 0;
    while left(&machine) > 0 {
        run_little(&mut machine, Stamp(0), Command::Tick, &mut Vec::new());
        batches += 1;
    }
    assert!(batches <= 3, "{batches} batches");
    assert!(machine.counts().locks > MANY / 2);
}

fn force(machine: &mut Machine, text: &str) -> Reply {
    let name = name(text);
    let reason = Reason::new("dead").unwrap();
    run(
        machine,
        Command::ForceRelease(ForceRelease {
            name,
            token: None,
            after: Token(0),
            up_to: None,
            reason,
            now: true,
            by: None,
        }),
    )
}

#[test]
fn a_session_with_too_many_unreleased_taken_grants_is_granted_nothing_more() {
    let capacity = TableCapacity { taken_per_session: 2, ..TableCapacity::default() };
    let mut machine = Machine { capacity, ..Machine::default() };
    open(&mut machine, 1);
    for name in ["a", "b", "c"] {
        assert!(is_granted(&ask(&mut machine, 1, None, acquire(&[name], Wait::Never))));
    }
    for name in ["a", "b", "c"] {
        force(&mut machine, name);
    }
    assert_eq!(machine.revocations(session(1), Token(0)).count(), 3, "all that it held");
    assert_eq!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Never)), limit(Limit::TakenPerSession));
    assert!(matches!(ask(&mut machine, 1, None, release(1)), Reply::Refused(Refusal::Revoked { .. })));
    assert_eq!(ask(&mut machine, 1, None, acquire(&["a"], Wait::Never)), limit(Limit::TakenPerSession));
    assert!(matches!(ask(&mut machine, 1, None, release(3)), Reply::Refused(Refusal::Revoked { .. })));
    assert!(is_granted(&ask(&mut machine, 1, None, acquire(&["a"], Wait::Never))));
}

#[test]
fn a_renewal_names_the_first_taken_grants_and_says_whether_there_are_more() {
    let capacity = TableCapacity { taken_per_session: usize::MAX, ..TableCapacity::default() };
    let mut machine = Machine { capacity, ..Machine::default() };
    open(&mut machine, 1);
    let renewal = |machine: &mut Machine, taken: usize| {
        while machine.revocations(session(1), Token(0)).count() < taken {
            assert!(is_granted(&ask(machine, 1, None, acquire(&["a"], Wait::Never))));
            force(machine, "a");
        }
        let Renewal::Renewed { revoked, more, .. } = machine.renew(session(1)) else { panic!("it is alive") };
        (revoked.iter().map(|revocation| revocation.token.0).collect::<Vec<_>>(), more)
    };
    let most = REVOCATIONS_PER_REPLY_MAX as u64;
    assert_eq!(renewal(&mut machine, REVOCATIONS_PER_REPLY_MAX), ((1..=most).collect(), false));
    assert_eq!(renewal(&mut machine, REVOCATIONS_PER_REPLY_MAX + 2), ((1..=most).collect(), true));
    let rest = machine.revocations(session(1), Token(most)).map(|revocation| revocation.token.0);
    assert_eq!(rest.collect::<Vec<_>>(), [most + 1, most + 2]);
}

#[test]
fn only_the_last_ended_sessions_are_remembered() {
    let mut machine = Machine::default();
    let last = ENDED_SESSIONS_MAX as u128 + 1;
    for number in 1..=last {
        open(&mut machine, number);
        run(&mut machine, Command::Close { session: session(number), by: None, reason: None });
    }
    assert_eq!(machine.session_end(session(1)), Some(SessionEnd::Unknown));
    assert_eq!(machine.session_end(session(2)), Some(SessionEnd::Closed));
    assert_eq!(machine.session_end(session(last)), Some(SessionEnd::Closed));
    assert_eq!(Machine::from_records(machine.records()).unwrap().hash(), machine.hash());
}

/// A table with most kinds of record.
fn full_table() -> Machine {
    let mut machine = Machine::default();
    open(&mut machine, 1);
    open(&mut machine, 2);
    open(&mut machine, 3);
    run(&mut machine, Command::Close { session: session(3), by: None, reason: None });
    ask(&mut machine, 1, Some(1), acquire(&["a", "b"], Wait::Never));
    ask(&mut machine, 2, Some(1), acquire(&["a"], Wait::Millis(10)));
    let data = Some(Data::new(b"x").unwrap());
    let update = Update { token: Token(1), name: name("b"), data, keep_data: true };
    ask(&mut machine, 1, Some(2), Operation::Update(update));
    machine
}

/// Two versions with different hashes would each take the other's table for damaged.
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
        // A record that no other refers to can be missing: the snapshot's checksum guards it.
        let alone = match record {
            Record::Ended { .. }
            | Record::Entry { .. }
            | Record::Lock { .. }
            | Record::Reply { .. }
            | Record::Taken { .. }
            | Record::Resized { .. }
            | Record::Version { .. }
            | Record::Closed { .. }
            | Record::Compacted { .. }
            | Record::Work(_) => true,
            // `keyspace/tests.rs` spoils them.
            Record::EntryEvent { .. } => false,
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
        ("was never issued (M2)", &|record| {
            if let Record::Clock { last_token, .. } = record {
                *last_token = Token(0);
            }
        }),
        ("a deadline has passed (M7)", &|record| {
            if let Record::Session { deadline, .. } = record {
                *deadline = Stamp(0);
            }
        }),
        ("waits for locks that it could have (M4)", &|record| {
            if let Record::Grant { locks, .. } = record {
                locks.remove(0);
            }
        }),
        ("disagree on its mode (M5)", &|record| {
            if let Record::Grant { locks, .. } = record {
                locks[0].1 = Mode::Permit(Permits::new(3).unwrap());
            }
        }),
        ("contradicts the tables (M8)", &|record| {
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

#[test]
fn taken_grants_are_in_the_records_once_and_not_held() {
    let mut machine = full_table();
    let before = machine.hash();
    force(&mut machine, "a");
    let (records, reason): (Vec<_>, _) = (machine.records().collect(), Reason::new("dead").unwrap());
    let restored = Machine::from_records(records.clone()).unwrap();
    assert!(restored.hash() == machine.hash() && machine.hash() != before);
    let taken = |number, token| Record::Taken { token: Token(token), session: session(number), reason: reason.clone() };
    assert!(records.contains(&taken(1, 1)));
    let with = |record| {
        let at = records.iter().rposition(|record| matches!(record, Record::Taken { .. })).unwrap() + 1;
        let mut records = records.clone();
        records.insert(at, record);
        Machine::from_records(records).err().map(|broken| broken.to_string()).unwrap_or_default()
    };
    assert!(with(taken(1, 1)).contains("twice"));
    assert!(with(taken(1, 2)).contains("was taken, and is held (M9)"), "{}", with(taken(1, 2)));
    assert!(with(taken(1, 9)).contains("never issued (M2)"));
    assert!(with(taken(9, 1)).contains("not alive"));
    let grant = Grant { token: Token(1), session: session(1), names: Arc::new([name("a"), name("b")]) };
    let asked = RememberedRequest::Acquire(grant.names.clone());
    let granted =
        Record::Reply { session: session(1), request: 9, asked, reply: Reply::Acquired(WaitEnd::Granted(grant)) };
    assert!(with(granted.clone()).contains("still grants it (M9)"), "{}", with(granted));
}

#[test]
fn an_operators_size_is_in_the_records_once_and_in_use() {
    let permits = |permits| Permits::new(permits).unwrap();
    let mut machine = full_table();
    let want =
        Want { name: name("s"), mode: Mode::Permit(permits(2)), data: None, keep_data: false, must_exist: false };
    let acquire = Operation::Acquire(Acquire::new(vec![want], Wait::Never, 0).unwrap());
    for number in 1..=2 {
        assert!(is_granted(&ask(&mut machine, number, None, acquire.clone())));
    }
    let before = machine.hash();
    let resize = |permits, name: &str| Command::Resize { name: self::name(name), permits, by: None };
    let reply = run(&mut machine, resize(permits(1), "s"));
    assert_eq!(reply, Reply::Resized { before: permits(2), holders: 2, waiters: 0 });
    let records: Vec<_> = machine.records().collect();
    let restored = Machine::from_records(records.clone()).unwrap();
    assert!(restored.hash() == machine.hash() && machine.hash() != before);
    let resized = |name: &str| Record::Resized { name: self::name(name), permits: permits(1) };
    assert!(records.contains(&resized("s")));
    let with = |record| {
        let records = records.iter().cloned().chain([record]);
        Machine::from_records(records).err().map(|broken| broken.to_string()).unwrap_or_default()
    };
    assert!(with(resized("s")).contains("twice"));
    assert!(with(resized("a")).contains("(M5)"), "{}", with(resized("a")));
    assert!(with(resized("nothing")).contains("nobody uses it"));
    let others = run(&mut machine, resize(permits(1), "a"));
    assert_eq!(others, Reply::Refused(Refusal::NotSemaphore { name: name("a") }));
}

/// A snapshot is written from a clone while commands go on.
#[test]
fn a_clone_stays_as_it_was() {
    let mut machine = full_table();
    let clone = machine.clone();
    let hash = machine.hash();
    ask(&mut machine, 1, Some(3), Operation::Release(Target::Grant(Token(1))));
    assert_ne!(machine.hash(), hash);
    assert_eq!(clone.hash(), hash);
    clone.check().unwrap();
}

#[test]
#[should_panic(expected = "an exclusive lock has one holder (M1)")]
fn a_second_holder_of_an_exclusive_lock_stops_the_node() {
    let mut lock = ActiveLock::default();
    lock.add_holder(Token(1), Mode::Exclusive);
    lock.add_holder(Token(2), Mode::Shared);
}

#[test]
#[should_panic(expected = "tokens rise")]
fn a_token_that_is_issued_again_stops_the_node() {
    let mut machine = Machine::default();
    open(&mut machine, 1);
    ask(&mut machine, 1, None, acquire(&["a"], Wait::Never));
    machine.issued = IssuedNumbers::default();
    ask(&mut machine, 1, None, acquire(&["b"], Wait::Never));
}

/// A client trusts its lease until the deadline that it was given, whoever made it longer than the TTL.
#[test]
fn a_renewal_never_shortens_a_lease() {
    let mut before = Machine::default();
    open(&mut before, 1);
    let longer = Stamp(5000);
    assert!(before.sessions.existing(session(1)).deadline < longer);
    let records = before.records().map(|mut record| {
        if let Record::Session { deadline, .. } = &mut record {
            *deadline = longer;
        }
        record
    });
    let mut machine = Machine::from_records(records).unwrap();
    run(&mut machine, Command::Renew { sessions: vec![session(1)] });
    assert_eq!(machine.sessions.existing(session(1)).deadline, longer);
    machine.check().unwrap();
}

#[test]
fn a_command_with_an_identity_waits_for_the_version_that_knows_identities() {
    let ops = || Identity::new("ops").ok();
    let name = name("a");
    let permits = Permits::new(1).unwrap();
    let ttl = Ttl::from_millis(1000).unwrap();
    let commands = |by: fn() -> Option<Identity>| {
        let name = || name.clone();
        let reason = Reason::new("dead").unwrap();
        let ticket = Ticket(1);
        let token = None;
        let up_to = None;
        let after = Token(0);
        [
            Command::Open { session: session(1), ttl, label: Label::default(), address: None, owner: by() },
            Command::Close { session: session(1), by: by(), reason: None },
            Command::ForceRelease(ForceRelease { name: name(), token, after, up_to, reason, now: true, by: by() }),
            Command::RemoveWaiter { name: name(), ticket, by: by() },
            Command::LiftDelay { name: name(), by: by() },
            Command::DropData { prefix: String::new(), after: None, by: by() },
            Command::Resize { name: name(), permits, by: by() },
        ]
    };
    assert!(commands(|| None).iter().all(|command| command.since() == Version(1)));
    assert!(commands(|| Identity::new("ops").ok()).iter().all(|command| command.since() == Version(2)));
    let set_owner = Command::SetOwner { session: session(1), owner: ops().unwrap() };
    assert_eq!(set_owner.since(), Version(6));
    let mut machine = Machine::default();
    run(&mut machine, Command::Open { session: session(1), ttl, label: Label::default(), address: None, owner: ops() });
    let since: Vec<_> = machine.records().map(|record| record.since()).collect();
    assert_eq!(since, [Version(1), Version(2)], "a member that does not know owners refuses the snapshot");
}
