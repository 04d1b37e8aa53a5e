//! What the machine takes for a command, by how many locks are held: `cargo bench --bench machine`.
//!
//! The machine is one thread's work on every replica: its inverse is the most that a cluster could ever do. All it costs should grow
//! with the logarithm of the table, and a snapshot's clone with nothing.

use std::{hint::black_box, time::Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lockkeeper::{
    machine::*,
    raft::commands::{decode, encode},
};

/// How many locks are held by others.
const HELD: [u64; 2] = [1, 1_000_000];
/// Who hold them: as many sessions as a load of workers would have.
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
    /// In a table in which so many locks are held.
    fn beside(held: u64) -> Self {
        let mut client = Self { machine: Machine::default(), session: ME, last: 0, events: Vec::new() };
        for holder in 0..=HOLDERS {
            let session = if holder == HOLDERS { ME } else { SessionId(holder.into()) };
            let ttl = Ttl::from_millis(TTL_MS_MAX).expect("the longest there is");
            let label = Label::new("host 1234 program").expect("it is short");
            client.apply(Command::Open { session, ttl, label });
        }
        for number in 0..held {
            client.session = SessionId((number % HOLDERS).into());
            client.acquire(&name(number));
        }
        client.session = ME;
        client
    }

    fn apply(&mut self, command: Command) -> Reply {
        let time = Time { stamp: Stamp(self.last / 100), wall: WallTime(1_700_000_000_000) };
        self.events.clear();
        self.machine.apply(time, command, &mut self.events)
    }

    /// As a client does that has nothing else under way.
    fn ask(&mut self, operation: Operation) -> Reply {
        self.last += 1;
        let open = OpenIds::new(self.last, Vec::new()).expect("none is kept");
        let request = Some(Request { id: self.last, open });
        self.apply(Command::Session { session: self.session, request, operation })
    }

    fn acquire(&mut self, name: &str) -> Token {
        let reply = self.ask(acquire(name));
        let Reply::Acquired(WaitEnd::Granted(grant)) = reply else { panic!("nobody else wants it: {reply:?}") };
        grant.token
    }
}

fn name(number: u64) -> String {
    // Not in the order in which they come.
    format!("bench/{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
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
        // While a snapshot is written, what is changed is copied first, once each.
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

/// What a batch costs beside: to become bytes for the log, and commands again.
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

criterion_group!(machine, apply, code);
criterion_main!(machine);
