//! The machine's time for a command, by the number of held locks: `cargo bench --bench machine`.
//!
//! The machine runs on one thread of every replica: the inverse of its time is the upper bound of a cluster's throughput. Costs should
//! grow with the logarithm of the table, and a snapshot's clone should take constant time. The work that one command causes is unbounded,
//! but one batch does a bounded part of it: the last figures are the longest batch, with and without that limit. The first figures are the
//! memory of keys with a time to live.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark measures real time, and prints figures"
)]

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lockkeeper::{
    machine::*,
    table::codec::commands::{decode, encode},
};

/// Numbers of locks that other sessions hold.
const HELD: [u64; 2] = [1, 1_000_000];
/// Number of these sessions, as under a load of many workers.
const HOLDERS: u64 = 256;
const ME: SessionId = SessionId(u128::MAX);

/// A client of the machine.
struct Client {
    machine: Machine,
    session: SessionId,
    /// The last request id.
    last: u64,
    events: Vec<Event>,
}

impl Client {
    /// A client in a table with this number of held locks.
    fn beside(held: u64) -> Self {
        let mut client = Self { machine: Machine::default(), session: ME, last: 0, events: Vec::new() };
        for holder in 0..=HOLDERS {
            client.open(if holder == HOLDERS { ME } else { SessionId(holder.into()) });
        }
        for number in 0..held {
            client.session = SessionId((number % HOLDERS).into());
            client.acquire(&name(number));
        }
        client.session = ME;
        client
    }

    /// Opens a session and uses it for later commands.
    fn open(&mut self, session: SessionId) {
        let ttl = Ttl::from_millis(TTL_MS_MAX).expect("the longest there is");
        let label = Label::new("host 1234 program").expect("it is short");
        let address = Some("10.0.0.7:40000".parse().expect("an address"));
        self.apply(Command::Open { session, ttl, label, address, owner: None });
        self.session = session;
    }

    /// Sends an operation without a request id, at time 0 and without limits.
    fn ask_unlimited(&mut self, operation: Operation) {
        let command = Command::Session { session: self.session, request: None, operation };
        let reply = self.machine.apply_batch(Time::default(), Limits::NONE, [command], &mut Vec::new());
        assert!(matches!(reply[..], [Reply::Acquired(_) | Reply::Queued(_)]), "{reply:?}");
    }

    fn apply(&mut self, command: Command) -> Reply {
        let time = Time { stamp: Stamp(self.last / 100), wall: WallTime(1_700_000_000_000) };
        self.events.clear();
        self.machine.apply(time, command, &mut self.events)
    }

    /// Sends an operation with the next request id and no other open request.
    fn ask(&mut self, operation: Operation) -> Reply {
        self.last += 1;
        let open = OpenIds::new(self.last, Vec::new()).expect("none is kept");
        let request = Some(Request { id: self.last, open });
        self.apply(Command::Session { session: self.session, request, operation })
    }

    /// Commits operations, each in a transaction of its own, all in one batch.
    fn commit(&mut self, operations: impl Iterator<Item = TxnOperation>) {
        let txn = |operation| Command::Txn(Txn::new(vec![], vec![operation], vec![]).expect("one operation"));
        let commands: Vec<_> = operations.map(txn).collect();
        self.events.clear();
        let replies = self.machine.apply_batch(Time::default(), Limits::NONE, commands, &mut self.events);
        assert!(replies.iter().all(|reply| matches!(reply, Reply::Committed(_))), "{replies:?}");
    }

    fn acquire(&mut self, name: &str) -> Token {
        let reply = self.ask(acquire(name));
        let Reply::Acquired(WaitEnd::Granted(grant)) = reply else { panic!("no other session wants it: {reply:?}") };
        grant.token
    }
}

fn name(number: u64) -> String {
    // A hash, so that names are not in the order of their numbers.
    format!("bench/{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn key(number: u64) -> Key {
    Key::new(name(number).as_bytes()).expect("a fine key")
}

fn acquire(name: &str) -> Operation {
    let name = LockName::new(name).expect("a fine name");
    let want = Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false };
    Operation::Acquire(Acquire::new(vec![want], Wait::Forever, 0).expect("one lock"))
}

fn apply(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("machine");
    for held in HELD {
        let mut client = Client::beside(held);
        let mut number = held;
        group.throughput(Throughput::Elements(2));
        group.bench_function(BenchmarkId::new("acquire and release", held), |bencher| {
            bencher.iter(|| {
                number += 1;
                let token = client.acquire(&name(number));
                client.ask(Operation::Release(Target::Grant(token)))
            });
        });
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("renew", held), |bencher| {
            bencher.iter(|| {
                client.last += 1;
                client.apply(Command::Renew { sessions: vec![SessionId((client.last % HOLDERS).into())] })
            });
        });
        group.bench_function(BenchmarkId::new("clone for a snapshot", held), |bencher| {
            bencher.iter(|| black_box(client.machine.clone()));
        });
        // While a snapshot is written, a changed entry is copied first, once (copy on write).
        group.throughput(Throughput::Elements(2));
        group.bench_function(BenchmarkId::new("acquire and release, just cloned", held), |bencher| {
            bencher.iter_custom(|times| {
                let once = |_| {
                    let snapshot = client.machine.clone();
                    number += 1;
                    let name = name(number);
                    let began = Instant::now();
                    let token = client.acquire(&name);
                    client.ask(Operation::Release(Target::Grant(token)));
                    let took = began.elapsed();
                    drop(black_box(snapshot));
                    took
                };
                (0..times).map(once).sum()
            });
        });
    }
    group.finish();
}

/// Writes of the keyspace once its history is full: keys that are new are put and deleted, and a view of the table is kept after each
/// batch, as a node publishes it. Then the same of keys that are locks of operators with a deadline, as those of Redis' clients are.
fn keyspace(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("keyspace");
    for together in [4, 64] {
        group.throughput(Throughput::Elements(together));
        for (what, is_lock) in [("put and delete", false), ("put and delete as locks", true)] {
            let mut client = Client::beside(1);
            let mut number = 0;
            let mut view = client.machine.clone();
            let mut pairs = |client: &mut Client| {
                let numbers = number..number + together;
                client.commit(numbers.clone().map(|number| TxnOperation::Put(put(number, is_lock))));
                view = client.machine.clone();
                client.commit(numbers.map(|number| TxnOperation::Delete(key(number))));
                view = client.machine.clone();
                number += together;
            };

            while client.machine.history().compacted() == Revision(0) {
                pairs(&mut client);
            }
            group.bench_function(BenchmarkId::new(what, together), |bencher| {
                bencher.iter(|| pairs(&mut client));
            });
            drop(view);
        }
    }
    group.finish();
}

/// A put of the key with a number: with nothing else, or with a deadline and a lock.
fn put(number: u64, is_lock: bool) -> Put {
    let value = Value::new(b"host 1234").expect("it is short");
    let lifetime = Lifetime::from_millis(30_000).expect("in bounds");
    let lease = if is_lock { PutLease::Until(EntryDeadline::After(lifetime)) } else { PutLease::default() };
    let claims = is_lock.then(|| LockName::new(&name(number)).expect("a fine name").into());
    Put { key: key(number), value, lease, claims }
}

/// The cost of encoding a batch for the log and of decoding it.
fn code(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("batch");
    let time = Time { stamp: Stamp(1), wall: WallTime(1_700_000_000_000) };
    for count in [1, 64] {
        let command = |id: u64| Command::Session {
            session: ME,
            request: Some(Request { id, open: OpenIds::new(id, Vec::new()).expect("none is kept") }),
            operation: acquire(&name(id)),
        };
        let commands: Vec<Command> = (1..=count).map(command).collect();
        let bytes = encode(time, Limits::default(), &commands);
        group.throughput(Throughput::Elements(count));
        group.bench_function(BenchmarkId::new("encode", count), |bencher| {
            bencher.iter(|| encode(time, Limits::default(), black_box(&commands)));
        });
        group.bench_function(BenchmarkId::new("decode", count), |bencher| {
            bencher.iter(|| decode(black_box(&bytes)).expect("it is one"));
        });
    }
    group.finish();
}

/// How a key gets its time to live, and the operations that give it to the key with a number.
type Way<'a> = (&'a str, &'a dyn Fn(u64) -> Vec<TxnOperation>);

/// Keys with a time to live, each in a transaction of its own, and what they take of this process: with a deadline of their own, with such
/// a deadline as locks of operators, and with a session for each. The history of the keyspace is measured apart: it has a limit of its own.
fn memory(_: &mut Criterion) {
    let label = || Label::new("worker-17 redis-py/8.1.0 10.0.0.7:40000").expect("short");
    let put = |number: u64, lease, claims| {
        let key = Key::new(format!("redis/0/{}", name(number)).as_bytes()).expect("short");
        let value = Value::new(&[7; 37]).expect("short");
        TxnOperation::Put(Put { key, value, lease, claims })
    };
    let until = || PutLease::Until(EntryDeadline::After(Lifetime::from_millis(600_000).expect("in bounds")));
    let claims = |number: u64| {
        let lock = LockName::new(&format!("redis/0/{}", name(number))).expect("a fine name");
        Some(PutClaim { lock, label: label() })
    };

    let deadline = |number| vec![put(number, until(), None)];
    let lock = |number| vec![put(number, until(), claims(number))];
    let leased = |number: u64| {
        let session = SessionId(u128::from(number) + 1);
        let ttl = Ttl::from_millis(600_000).expect("in bounds");
        let new = NewSession { session, ttl, label: label(), address: None, owner: None };
        let lease = PutLease::Given(Lease { session, at_end: AtLeaseEnd::Delete });
        vec![TxnOperation::Open(new), put(number, lease, None)]
    };

    // All stay until the end, so that none reuses the memory of another.
    let mut machines = Vec::new();
    let ways: [Way<'_>; 3] =
        [("a deadline", &deadline), ("a deadline, and claimed as a lock", &lock), ("a session", &leased)];
    for (what, operations) in ways {
        let before = resident_bytes();
        let mut machine = Machine::default();

        for number in 0..CROWD {
            let txn = Txn::new(vec![], operations(number), vec![]).expect("in bounds");
            let reply = machine.apply_batch(Time::default(), Limits::NONE, [Command::Txn(txn)], &mut Vec::new());
            assert!(matches!(reply[..], [Reply::Committed(_)]), "{reply:?}");
            // Without its history.
            let revision = machine.revision();
            machine.apply(Time::default(), Command::Compact { revision }, &mut Vec::new());
        }
        let each = (resident_bytes() - before) / CROWD;
        let counted = machine.bytes() / CROWD;
        println!("{CROWD} keys with {what}: {each} bytes each of memory, {counted} as the limits count them");
        machines.push(machine);
    }
}

/// The memory of this process in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages = statm.split(' ').nth(1).expect("it has several numbers");
    pages.parse::<u64>().expect("a number") * 4096
}

/// Number of sessions that expire at once, and of sharers that wait for one lock.
const CROWD: u64 = 100_000;
/// Locks of one session, from before there was a limit.
const LOCKS_OF_ONE: u64 = 1_000_000;

/// The longest of the batches that one command, or one tick, causes.
fn worst(_: &mut Criterion) {
    let usual = Limits { grants_per_session: usize::MAX, ..Limits::default() };
    for (limits, how) in [(Limits::NONE, "without limits"), (usual, "within the usual limits")] {
        let crowds: [(&str, Machine, u64, Command); 3] = [
            (
                "one session with 1,000,000 locks closes",
                one_with_all(),
                0,
                Command::Close { session: ME, by: None, reason: None },
            ),
            (
                "100,000 sessions with a lock each expire at once",
                many_with_one(),
                2 * u64::from(TTL_MS_MAX),
                Command::Tick,
            ),
            (
                "100,000 sharers wait for a lock that is released",
                many_who_wait(),
                0,
                Command::Close { session: ME, by: None, reason: None },
            ),
        ];
        for (what, mut machine, stamp, command) in crowds {
            let time = Time { stamp: Stamp(stamp), wall: WallTime(0) };
            let mut longest = Duration::ZERO;
            let mut all = Duration::ZERO;
            let mut batches = 0;
            let mut next = Some(command);
            while let Some(command) = next {
                let mut events = Vec::new();
                let began = Instant::now();
                machine.apply_batch(time, limits, [command], &mut events);
                let took = began.elapsed();
                (longest, all, batches) = (longest.max(took), all + took, batches + 1);
                next = machine.has_work().then_some(Command::Tick);
            }
            println!("{what}, {how}: longest batch {longest:?}, {batches} batches in {all:?}");
        }
    }
}

fn one_with_all() -> Machine {
    let mut client = Client::beside(0);
    for number in 0..LOCKS_OF_ONE {
        client.ask_unlimited(acquire(&name(number)));
    }
    client.machine
}

fn many_with_one() -> Machine {
    let mut client = Client::beside(0);
    for number in 0..CROWD {
        client.open(SessionId((1 << 64) + u128::from(number)));
        client.acquire(&name(number));
    }
    client.machine
}

fn many_who_wait() -> Machine {
    let mut client = Client::beside(0);
    client.acquire("one");
    for number in 0..CROWD {
        if number % 1000 == 0 {
            client.open(SessionId((1 << 64) + u128::from(number)));
        }
        let name = LockName::new("one").expect("a fine name");
        let want = Want { name, mode: Mode::Shared, data: None, keep_data: false, must_exist: false };
        client.ask_unlimited(Operation::Acquire(Acquire::new(vec![want], Wait::Forever, 0).expect("one lock")));
    }
    client.machine
}

criterion_group!(machine, memory, apply, keyspace, code, worst);
criterion_main!(machine);
