//! Clients with a random workload, over a network that delays messages and loses answers.

use std::collections::BTreeMap;

use lockkeeper::chaos::history::{
    Acquire, Answer, Call, CancelFound, Event, Fact, Function, Lease, Meta, Mode, Modes, Wait, What,
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::table::{Reply, Table, Want, Who};

const MS: u64 = 1_000_000;
const LOCKS: [&str; 4] = ["a", "b", "shared", "pool"];
const BUSY_UNTIL: u64 = 1_500 * MS;

/// A correct history of some hundred events.
pub(crate) fn history(seed: u64) -> Vec<Event> {
    let mut world = World::new(seed);
    world.run();
    world.events
}

/// A scheduled event.
enum Next {
    /// An idle client chooses its next operation.
    Think(Who),
    /// A request arrives.
    Arrive(Who, Request),
    /// An answer arrives, or is known to be lost.
    Answer(Who, Option<u64>, What),
    /// A wait reaches its limit.
    TimeOut(Who, u64),
    /// A renewal is sent; then it arrives; then it is acknowledged.
    Renew(Who),
    Renewed(Who, u64),
    Acknowledge(Who, u64),
    /// A client cancels its waiting acquire.
    GiveUp(Who, u64),
    /// A session ends, if it was not renewed.
    Expire(Who),
    /// The client is killed.
    Die(Who),
    /// The nemesis records a fact.
    Tell(Fact),
}

struct Request {
    op: Option<u64>,
    call: Call,
    locks: Vec<String>,
}

struct Client {
    name: String,
    ttl_ns: u64,
    /// The deadline of its session at the service. `None`: the session has ended.
    deadline_ns: Option<u64>,
    dead: bool,
    closing: bool,
    last_request: u64,
    held: Vec<(u64, Vec<String>)>,
    /// The acquire in flight.
    pending: Option<(u64, Vec<String>)>,
    /// Answers to requests, by id.
    replies: BTreeMap<u64, u64>,
}

struct World {
    random: StdRng,
    now_ns: u64,
    next: BTreeMap<(u64, u64), Next>,
    sequence: u64,
    table: Table,
    clients: Vec<Client>,
    register: BTreeMap<String, u64>,
    events: Vec<Event>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let count = random.random_range(2..6);
        let client = |at: usize, ttl_ms: u64| Client {
            name: format!("c{at}"),
            ttl_ns: ttl_ms * MS,
            deadline_ns: None,
            dead: false,
            closing: false,
            last_request: 0,
            held: Vec::new(),
            pending: None,
            replies: BTreeMap::new(),
        };
        let clients = (0..count).map(|at| client(at, random.random_range(60..300))).collect();
        Self {
            random,
            now_ns: 0,
            next: BTreeMap::new(),
            sequence: 0,
            table: Table::default(),
            clients,
            register: BTreeMap::new(),
            events: Vec::new(),
        }
    }

    fn run(&mut self) {
        let meta = Meta {
            expiry_bound_ms: Some(20),
            handover_bound_ms: Some(20),
            liveness_bound_ms: Some(100),
            renewal_bound_ms: Some(100),
            ..Meta::new()
        };
        self.tell("nemesis", Fact::Meta(meta));
        for who in 0..self.clients.len() {
            let ttl_ms = self.clients[who].ttl_ns / MS;
            let session = self.clients[who].name.clone();
            self.send(who, None, Call::Open { session, ttl_ms }, vec![]);
            if self.random.random_bool(0.3) {
                let at = self.random.random_range(100 * MS..BUSY_UNTIL);
                self.at(at, Next::Die(who));
            }
        }
        for heal in [400 * MS, 800 * MS] {
            self.tell_later(
                heal - 50 * MS,
                Fact::Fault { name: "storm".into(), nodes: Vec::new(), silent: Vec::new() },
            );
            self.tell_later(heal, Fact::Heal { name: None });
        }
        while let Some(((now_ns, _), next)) = self.next.pop_first() {
            self.now_ns = now_ns;
            self.step(next);
            for (want, token) in self.table.serve() {
                self.granted(&want, token);
            }
        }
        self.finish();
    }

    /// An operator forces the release of another client's grant, and the answer to its next renewal reports it.
    fn force(&mut self) {
        let session = "dan".to_owned();
        let lock = ["forced".to_owned()];
        let acquire = Acquire { session: session.clone(), ..Acquire::default() };
        self.table.last_token += 1;
        let token = self.table.last_token;
        let lost = Fact::Lost { session: session.clone(), why: "revoked".to_owned(), token: Some(token) };
        let events = [
            ("dan", What::Invoke(Call::Open { session: session.clone(), ttl_ms: 1_000 })),
            ("dan", What::Ok(Answer::Open(Lease::default()))),
            ("dan", What::Invoke(Call::Acquire(acquire))),
            ("dan", What::Ok(Answer::Acquire { token, place_lost: false })),
            ("op", What::Invoke(Call::ForceRelease { token: Some(token), now: true })),
            ("op", What::Ok(Answer::ForceRelease { revoked: vec![token] })),
            ("dan", What::Invoke(Call::Renew { session: session.clone() })),
            ("dan", What::Fact(lost)),
            ("dan", What::Ok(Answer::Renew(Lease::default()))),
            ("dan", What::Invoke(Call::Close { session })),
            ("dan", What::Ok(Answer::Close {})),
        ];
        for (who, what) in events {
            self.now_ns += MS;
            let concerns_lock = matches!(&what, What::Invoke(Call::Acquire(_) | Call::ForceRelease { .. }));
            self.write(who, None, if concerns_lock { &lock } else { &[] }, what);
        }
    }

    /// A client that does nothing but renew its session, and keeps its lock.
    fn stand_by(&mut self) {
        let session = "ida".to_owned();
        let lock = ["own".to_owned()];
        self.table.last_token += 1;
        let token = self.table.last_token;
        let acquire = Acquire { session: session.clone(), ..Acquire::default() };
        let events = [
            What::Invoke(Call::Open { session: session.clone(), ttl_ms: 1_000 }),
            What::Ok(Answer::Open(Lease::default())),
            What::Invoke(Call::Acquire(acquire)),
            What::Ok(Answer::Acquire { token, place_lost: false }),
            What::Fact(Fact::Bystander { session: session.clone() }),
            What::Fact(Fact::Renewed { session: session.clone(), sent_ns: self.now_ns + 5 * MS, ttl_ms: None }),
            What::Invoke(Call::Release { session: session.clone(), token }),
            What::Ok(Answer::Release {}),
            What::Invoke(Call::Close { session }),
            What::Ok(Answer::Close {}),
        ];
        for what in events {
            self.now_ns += MS;
            let concerns_lock = matches!(&what, What::Invoke(Call::Acquire(_)));
            self.write("ida", None, if concerns_lock { &lock } else { &[] }, what);
        }
    }

    /// After all operations: reads the final state of each lock.
    fn finish(&mut self) {
        self.force();
        self.stand_by();
        for lock in LOCKS {
            self.now_ns += MS;
            self.write("eve", None, &[lock.into()], What::Invoke(Call::Get {}));
            self.now_ns += MS;
            let view = self.view(lock);
            self.write("eve", None, &[], What::Ok(Answer::Get(view)));
        }
        for node in 1..=3 {
            self.tell(&format!("node{node}"), Fact::Table { node, index: self.sequence, hash: self.table.last_token });
        }
        self.now_ns += MS;
        self.tell("nemesis", Fact::End);
    }

    fn step(&mut self, next: Next) {
        match next {
            Next::Think(who) => self.think(who),
            Next::Arrive(who, request) => self.arrive(who, request),
            Next::Answer(who, op, what) => self.answered(who, op, what),
            Next::TimeOut(who, request) => {
                if self.table.leave_queue(who, request) {
                    self.refuse(who, Some(request), Function::Acquire, "timed_out");
                }
            }
            Next::Renew(who) => {
                let client = &self.clients[who];
                if !client.dead && !client.closing && client.deadline_ns.is_some() {
                    let sent_ns = self.now_ns;
                    let later = self.delay();
                    self.at(later, Next::Renewed(who, sent_ns));
                    self.at(self.now_ns + self.clients[who].ttl_ns / 3, Next::Renew(who));
                }
            }
            Next::Renewed(who, sent_ns) => {
                if self.renew(who) {
                    let later = self.delay();
                    self.at(later, Next::Acknowledge(who, sent_ns));
                }
            }
            Next::Acknowledge(who, sent_ns) => {
                let Client { name, dead, .. } = &self.clients[who];
                if let (name, false) = (name.clone(), *dead) {
                    self.tell(&name.clone(), Fact::Renewed { session: name, sent_ns, ttl_ms: None });
                }
            }
            Next::Expire(who) => {
                if self.clients[who].deadline_ns.is_some_and(|deadline| deadline <= self.now_ns) {
                    self.clients[who].deadline_ns = None;
                    self.table.end(who);
                }
            }
            Next::GiveUp(who, request) => {
                let Client { name, dead, pending, .. } = &self.clients[who];
                if !dead && pending.as_ref().is_some_and(|(pending, _)| *pending == request) {
                    let cancel = Call::Cancel { session: name.clone(), request: Some(request), op: None };
                    self.send(who, Some(1_000_000 + request), cancel, vec![]);
                }
            }
            Next::Tell(fact) => self.tell("nemesis", fact),
            Next::Die(who) => {
                self.clients[who].dead = true;
                let process = self.clients[who].name.clone();
                self.tell("nemesis", Fact::Died { process });
            }
        }
    }

    /// Renews the session. Returns whether it existed.
    fn renew(&mut self, who: Who) -> bool {
        let client = &mut self.clients[who];
        let Some(deadline) = &mut client.deadline_ns else { return false };
        *deadline = self.now_ns + client.ttl_ns;
        let at = *deadline;
        self.at(at, Next::Expire(who));
        true
    }

    fn think(&mut self, who: Who) {
        if self.clients[who].dead || self.clients[who].closing {
            return;
        }
        let session = self.clients[who].name.clone();
        let chance = self.random.random_range(0..100);
        if let Some((token, locks)) = self.clients[who].held.first().cloned() {
            let one = vec![locks[0].clone()];
            let mode = mode(&locks[0]);
            match chance {
                0..20 => self.send(who, None, Call::Check { token }, one),
                20..35 => self.send(who, None, Call::Update { session, token, data: None }, one),
                35..60 => self.send(who, None, Call::Write { token, mode, fenced: true }, one),
                _ => self.send(who, None, Call::Release { session, token }, vec![]),
            }
            return;
        }
        match chance {
            _ if self.now_ns > BUSY_UNTIL => {
                self.clients[who].closing = true;
                self.send(who, None, Call::Close { session }, vec![]);
            }
            0..20 => {
                let lock = LOCKS[self.random.random_range(0..LOCKS.len())];
                self.send(who, None, Call::Get {}, vec![lock.into()]);
            }
            _ => self.acquire(who, session),
        }
    }

    fn acquire(&mut self, who: Who, session: String) {
        let locks: Vec<String> = match self.random.random_range(0..10) {
            0 => vec!["a".into(), "b".into()],
            at => vec![LOCKS[at % LOCKS.len()].into()],
        };
        let wait = match self.random.random_range(0..3) {
            0 => Wait::None,
            1 => Wait::AtMostMs(self.random.random_range(5..80)),
            _ => Wait::Forever,
        };
        self.clients[who].last_request += 1;
        let request = self.clients[who].last_request;
        self.clients[who].pending = Some((request, locks.clone()));
        let exclusive = self.random.random_bool(0.25);
        let mode = |lock: &String| if lock == "shared" && exclusive { Mode::Exclusive } else { mode(lock) };
        let modes = Modes::Each(locks.iter().map(mode).collect());
        let acquire = Acquire { session: session.clone(), request: Some(request), mode: modes, wait, lock_delay_ms: 0 };
        self.send(who, Some(request), Call::Acquire(acquire), locks);
    }

    /// Records the begin of a call and schedules its arrival.
    fn send(&mut self, who: Who, op: Option<u64>, call: Call, locks: Vec<String>) {
        let name = self.clients[who].name.clone();
        self.write(&name, op, &locks, What::Invoke(call.clone()));
        let later = self.delay();
        self.at(later, Next::Arrive(who, Request { op, call, locks }));
    }

    fn arrive(&mut self, who: Who, request: Request) {
        let Request { op, call, locks } = request;
        let f = call.function();
        let alive = self.clients[who].deadline_ns.is_some();
        match call {
            Call::Open { .. } => {
                self.clients[who].deadline_ns = Some(self.now_ns);
                self.renew(who);
                let at = self.now_ns + self.clients[who].ttl_ns / 3;
                self.at(at, Next::Renew(who));
                self.reply(who, op, Answer::Open(Lease::default()));
            }
            Call::Get {} => {
                let view = self.view(&locks[0]);
                self.reply(who, op, Answer::Get(view));
            }
            Call::Check { token } => {
                let held = self.table.held.contains_key(&token);
                self.reply(who, op, Answer::Check { held });
            }
            Call::Write { token, mode, .. } => self.write_register(who, op, token, mode, &locks[0]),
            Call::Read {} | Call::Set { .. } | Call::Txn(_) => unreachable!("no client here has registers"),
            _ if !alive => self.refuse(who, op, f, "session_expired"),
            Call::Close { .. } => {
                self.table.end(who);
                self.clients[who].deadline_ns = None;
                self.reply(who, op, Answer::Close {});
            }
            Call::Acquire(acquire) => self.arrive_acquire(who, &acquire, locks),
            Call::Retry { request, .. } => match self.clients[who].replies.get(&request).copied() {
                Some(token) => self.reply(who, op, Answer::Retry { token }),
                None => self.refuse(who, op, f, "busy"),
            },
            Call::Release { token, .. } => {
                if self.table.release(token) {
                    self.reply(who, op, Answer::Release {});
                } else {
                    self.refuse(who, op, f, "not_held");
                }
            }
            Call::Cancel { request, .. } => self.arrive_cancel(who, op, request.expect("it is always sent")),
            Call::Update { token, .. } => {
                if self.table.held.contains_key(&token) {
                    self.reply(who, op, Answer::Update {});
                } else {
                    self.refuse(who, op, f, "not_held");
                }
            }
            Call::Renew { .. } | Call::ForceRelease { .. } => {}
        }
    }

    fn arrive_acquire(&mut self, who: Who, acquire: &Acquire, locks: Vec<String>) {
        let request = acquire.request.expect("it is always sent");
        let mode = |at: usize| acquire.mode.mode_at(at).expect("one for each");
        let locks = locks.into_iter().enumerate().map(|(at, lock)| (lock, mode(at))).collect();
        let want = Want { session: who, request, locks };
        match self.table.acquire(want.clone(), acquire.wait != Wait::None) {
            Reply::Granted(token) => self.granted(&want, token),
            Reply::Busy => self.refuse(who, Some(request), Function::Acquire, "busy"),
            Reply::Queued => {
                if let Wait::AtMostMs(ms) = acquire.wait {
                    self.at(self.now_ns + ms * MS, Next::TimeOut(who, request));
                }
                if self.random.random_bool(0.1) {
                    let at = self.now_ns + self.random.random_range(1..40) * MS;
                    self.at(at, Next::GiveUp(who, request));
                }
            }
        }
    }

    fn arrive_cancel(&mut self, who: Who, op: Option<u64>, request: u64) {
        let found = match (self.table.leave_queue(who, request), self.table.token_of(who, request)) {
            (true, _) => {
                self.refuse(who, Some(request), Function::Acquire, "cancelled");
                CancelFound::Wait
            }
            (false, Some(token)) => {
                self.table.release(token);
                CancelFound::Grant
            }
            (false, None) => CancelFound::Nothing,
        };
        self.reply(who, op, Answer::Cancel { found });
    }

    fn write_register(&mut self, who: Who, op: Option<u64>, token: u64, mode: Mode, lock: &str) {
        let highest = self.register.entry(lock.to_owned()).or_default();
        match mode {
            Mode::Exclusive if token < *highest => self.refuse(who, op, Function::Write, "refused_token"),
            Mode::Exclusive => {
                *highest = token;
                self.reply(who, op, Answer::Write { seq: None });
            }
            Mode::Shared | Mode::Permits(_) => self.reply(who, op, Answer::Write { seq: None }),
        }
    }

    fn granted(&mut self, want: &Want, token: u64) {
        self.clients[want.session].replies.insert(want.request, token);
        self.reply(want.session, Some(want.request), Answer::Acquire { token, place_lost: false });
    }

    fn reply(&mut self, who: Who, op: Option<u64>, answer: Answer) {
        // The answers to acquires and releases can be lost. The client notices that within the bounds; it retries an acquire.
        let f = answer.function();
        let can_be_lost = matches!(f, Function::Acquire | Function::Release);
        if can_be_lost && self.random.random_bool(0.05) {
            let why = "no answer".to_owned();
            self.at(self.now_ns + 15 * MS, Next::Answer(who, op, What::Info { f, why }));
        } else {
            let later = self.delay();
            self.at(later, Next::Answer(who, op, What::Ok(answer)));
        }
    }

    fn refuse(&mut self, who: Who, op: Option<u64>, f: Function, reason: &str) {
        let later = self.delay();
        self.at(later, Next::Answer(who, op, What::Fail { f, reason: reason.to_owned() }));
    }

    fn answered(&mut self, who: Who, op: Option<u64>, what: What) {
        if self.clients[who].dead {
            return;
        }
        let name = self.clients[who].name.clone();
        self.write(&name, op, &[], what.clone());
        let later = self.now_ns + self.random.random_range(1..20) * MS;
        if let What::Ok(Answer::Acquire { token, .. } | Answer::Retry { token }) = &what {
            if let Some((_, locks)) = self.clients[who].pending.take() {
                self.clients[who].held.push((*token, locks));
            }
        } else if let What::Ok(Answer::Release {}) | What::Fail { f: Function::Release, .. } = &what {
            self.clients[who].held.clear();
        } else if let What::Info { f: Function::Acquire, .. } = &what {
            let session = name;
            let request = op.expect("acquires have numbers");
            return self.send(who, None, Call::Retry { session, request }, vec![]);
        } else if let What::Fail { f: Function::Acquire | Function::Retry, .. } = &what {
            self.clients[who].pending = None;
        } else if let What::Ok(Answer::Cancel { .. }) = &what {
            // The answer to its acquire is still to come.
            return;
        }
        self.at(later, Next::Think(who));
    }

    fn view(&self, lock: &str) -> lockkeeper::chaos::history::View {
        self.table.view(lock, |who| self.clients[who].name.clone())
    }

    fn delay(&mut self) -> u64 {
        self.now_ns + self.random.random_range(1..3 * MS)
    }

    fn at(&mut self, at_ns: u64, next: Next) {
        self.sequence += 1;
        self.next.insert((at_ns, self.sequence), next);
    }

    fn tell_later(&mut self, at_ns: u64, fact: Fact) {
        self.at(at_ns, Next::Tell(fact));
    }

    fn tell(&mut self, process: &str, fact: Fact) {
        self.write(process, None, &[], What::Fact(fact));
    }

    fn write(&mut self, process: &str, op: Option<u64>, locks: &[String], what: What) {
        let process = process.to_owned();
        let locks = locks.to_vec();
        self.events.push(Event { time_ns: self.now_ns, process, op, locks, what });
    }
}

fn mode(lock: &str) -> Mode {
    match lock {
        "shared" => Mode::Shared,
        "pool" => Mode::Permits(2),
        _ => Mode::Exclusive,
    }
}
