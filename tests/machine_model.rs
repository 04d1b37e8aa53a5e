//! Random histories: the machine against a small model of it, step by step.
//!
//! After every step, replies, events and views equal the model's, and the invariants hold. A replica runs beside the machine. It is
//! restored from the machine's records, as snapshots write them, at random steps, and it ticks more often. It gives the same replies and
//! events, and has the same hash. The change events for watchers add up to the view of each lock.
//!
//! A second machine applies the same history with a budget of one unit of work a batch, so that most work goes to the backlog. Its replies
//! differ from the model's. But the sessions that clients open live as long as the model's, to the millisecond; the invariants hold; a
//! session that is over is granted nothing; a replica that is restored on the way stays equal to it; and with ticks alone the backlog
//! empties.

#![expect(clippy::unwrap_used, reason = "a test whose own values are bad has failed")]

mod keyspace;
mod model;
mod strategies;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
};

use lockkeeper::{machine::*, table::codec::records};
use proptest::{
    collection::vec,
    option,
    prelude::*,
    test_runner::{Config, FileFailurePersistence, TestRunner},
};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

use self::{
    keyspace::{OF_ENTRIES, check_history, compaction, txn},
    model::Model,
    strategies::*,
};

/// Counts over all histories. A run in which one of these never happened has not tested it.
static HAPPENED: [(&str, AtomicU64); 44] = [
    ("grants", AtomicU64::new(0)),
    ("grants of several locks", AtomicU64::new(0)),
    ("grants after a wait", AtomicU64::new(0)),
    ("waits", AtomicU64::new(0)),
    ("clusters restored", AtomicU64::new(0)),
    ("timeouts", AtomicU64::new(0)),
    ("locks that were to exist and did not", AtomicU64::new(0)),
    ("locks that were to exist and did", AtomicU64::new(0)),
    ("waits abandoned", AtomicU64::new(0)),
    ("expiries", AtomicU64::new(0)),
    ("revocations", AtomicU64::new(0)),
    ("grants lost by force", AtomicU64::new(0)),
    ("renewals that told of what was taken", AtomicU64::new(0)),
    ("requests that heard that their grant was taken", AtomicU64::new(0)),
    ("lock-delays", AtomicU64::new(0)),
    ("retries", AtomicU64::new(0)),
    ("retries below the lowest id", AtomicU64::new(0)),
    ("late arrivals below the lowest id", AtomicU64::new(0)),
    ("stragglers", AtomicU64::new(0)),
    ("restores", AtomicU64::new(0)),
    ("batches that left work", AtomicU64::new(0)),
    ("restores with work left", AtomicU64::new(0)),
    ("transactions that succeeded", AtomicU64::new(0)),
    ("transactions that failed", AtomicU64::new(0)),
    ("transactions that wrote", AtomicU64::new(0)),
    ("transactions that were refused", AtomicU64::new(0)),
    ("sessions that transactions opened", AtomicU64::new(0)),
    ("sessions that were closed without entries", AtomicU64::new(0)),
    ("selections that left some out", AtomicU64::new(0)),
    ("entries that ended with their lease", AtomicU64::new(0)),
    ("compactions", AtomicU64::new(0)),
    ("compactions of the future", AtomicU64::new(0)),
    ("states of the past that were read", AtomicU64::new(0)),
    ("entries that expired with their lease", AtomicU64::new(0)),
    ("entries that claimed a free lock", AtomicU64::new(0)),
    ("entries that waited for a lock", AtomicU64::new(0)),
    ("locks lost at the deadline of an entry", AtomicU64::new(0)),
    ("entries that were granted a lock after a wait", AtomicU64::new(0)),
    ("entries that lost a lock by force", AtomicU64::new(0)),
    ("acquires of a claimed name", AtomicU64::new(0)),
    ("resizes", AtomicU64::new(0)),
    ("resizes that let others in", AtomicU64::new(0)),
    ("resizes to less than is held", AtomicU64::new(0)),
    (OTHER_SIZE, AtomicU64::new(0)),
];

const OTHER_SIZE: &str = "permits of another size than was asked for";

fn happened(what: &str) {
    let (_, count) = HAPPENED.iter().find(|(name, _)| *name == what).expect("it is listed");
    count.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn histories_agree_with_the_model() {
    let config = Config {
        cases: 600,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/machine_model/regressions"))),
        ..Config::default()
    };
    TestRunner::new(config.clone())
        .run(&Model::sequential_strategy(1..150), |(initial, steps, seen)| {
            Test::test_sequential(config.clone(), initial, steps, seen);
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    for (what, count) in &HAPPENED {
        let count = count.load(Ordering::Relaxed);
        println!("{what}: {count}");
        // The rarest of them happen some thirty times in the mean: a run has never as few as this by chance.
        assert!(count >= 5, "only {count} {what} in all histories");
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Apply(u64, Command),
    /// The replica is restored from the machine's records.
    Restore,
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Step> {
        let ttl =
            prop_oneof![Just(100u32), Just(100), Just(150), Just(1000)].prop_map(|ms| Ttl::from_millis(ms).unwrap());
        let label = prop_oneof![9 => Just(""), 1 => Just("x")].prop_map(|label| Label::new(label).unwrap());
        let address = option::of((1..=3u16).prop_map(|port| std::net::SocketAddr::from(([10, 0, 0, 7], port)).into()));
        let owner =
            prop_oneof![8 => Just(None), 2 => Just(Identity::new("ann").ok()), 1 => Just(Identity::new("bob").ok())];
        // Ended sessions do not come back, so ids rise with time.
        let opened = (1..=4u128).prop_map({
            let first = u128::from(model.now / 400);
            move |id| SessionId(first + id)
        });
        let alive: Vec<_> = model.sessions.keys().copied().collect();
        let session = || {
            if alive.is_empty() {
                session().boxed()
            } else {
                prop_oneof![15 => proptest::sample::select(alive.clone()), 1 => session()].boxed()
            }
        };
        let requested = |operation: BoxedStrategy<Operation>| {
            (session(), request(), operation).prop_map(|(session, request, operation)| Command::Session {
                session,
                request,
                operation,
            })
        };
        let tickets = model.waits.iter().map(|waiting| waiting.ticket).chain([Ticket(1)]).collect::<Vec<_>>();
        let queued = model.waits.iter().map(|waiting| (waiting.acquire.wants()[0].name.clone(), waiting.ticket));
        let queued: Vec<_> = queued.chain([(names().remove(0), Ticket(1))]).collect();
        let reason = || Reason::new("test").unwrap();
        let (resizes, resize) = resize(model);
        let command = prop_oneof![
            6 => (opened, ttl, label, address, owner).prop_map(|(session, ttl, label, address, owner)| {
                Command::Open { session, ttl, label, address, owner }
            }),
            8 => vec(session(), 0..6).prop_map(|sessions| Command::Renew { sessions }),
            2 => session().prop_map(|session| Command::Attach { session }),
            2 => (session(), any::<bool>()).prop_map(|(session, is_ann)| {
                let owner = Identity::new(if is_ann { "ann" } else { "bob" }).unwrap();
                Command::SetOwner { session, owner }
            }),
            1 => session().prop_map(|session| Command::Close { session, by: None, reason: None }),
            20 => requested(acquire().prop_map(Operation::Acquire).boxed()),
            6 => (held(model), request()).prop_map(|((session, token, _), request)| {
                Command::Session { session, request, operation: Operation::Release(Target::Grant(token)) }
            }),
            4 => (taken_back(model), request()).prop_map(|((session, id), request)| {
                Command::Session { session, request, operation: Operation::Release(Target::Acquire(id)) }
            }),
            4 => (held(model), request(), data(), any::<bool>()).prop_map(|((session, token, name), request, data, keep_data)| {
                let operation = Operation::Update(Update { token, name, data, keep_data });
                Command::Session { session, request, operation }
            }),
            5 => retry(model),
            2 => (proptest::sample::select(tickets), proptest::option::of(0..2u64))
                .prop_map(|(ticket, repeats)| Command::CancelWait { ticket, repeats }),
            2 => any::<bool>().prop_map(move |by| {
                let by = by.then(|| Identity::new("ops").unwrap());
                let name = claimed();
                let reason = Reason::new("test").unwrap();
                let token = None;
                let after = Token(0);
                let up_to = None;
                Command::ForceRelease(ForceRelease { name, token, after, up_to, reason, now: false, by })
            }),
            4 => (held(model), any::<bool>(), any::<bool>()).prop_map(move |((_, token, name), all, now)| {
                let token = (!all).then_some(token);
                let by = now.then(|| Identity::new("ops").unwrap());
                Command::ForceRelease(ForceRelease { name, token, after: Token(0), up_to: None, reason: reason(), now, by })
            }),
            2 => (proptest::sample::select(queued), proptest::option::weighted(0.2, proptest::sample::select(names())))
                .prop_map(|((name, ticket), other)| Command::RemoveWaiter { name: other.unwrap_or(name), ticket, by: None }),
            2 => proptest::sample::select(names()).prop_map(|name| Command::LiftDelay { name, by: None }),
            1 => (prop_oneof![3 => Just(""), 1 => Just("b")], proptest::option::weighted(0.2, proptest::sample::select(names())))
                .prop_map(|(prefix, after)| Command::DropData { prefix: prefix.to_owned(), after, by: None }),
            resizes => resize,
            12 => txn(model, session()),
            1 => compaction(model),
            1 => Just(Command::Tick),
            1 => (1..4u32).prop_map(|to| Command::RaiseVersion { to: Version(to) }),
        ];
        let after_ms = prop_oneof![6 => Just(0u64), 6 => 1..40u64, 1 => 100..400u64];
        prop_oneof![
            40 => (after_ms, command).prop_map(|(after_ms, command)| Step::Apply(after_ms, command)),
            1 => Just(Step::Restore),
        ]
        .boxed()
    }

    fn apply(mut model: Self, step: &Step) -> Self {
        if let Step::Apply(after_ms, command) = step {
            let time = time(model.now + after_ms);
            model.apply(time, command);
        }
        model
    }
}

fn time(stamp: u64) -> Time {
    Time { stamp: Stamp(stamp), wall: WallTime(1_000_000 + stamp) }
}

struct Test {
    machine: Machine,
    replica: Machine,
    /// A clone from the last restore, and its hash at that time: later steps of the machine must not change the clone.
    snapshot: (Machine, u64),
    watcher: Watcher,
    hurried: Hurried,
}

/// A watcher's knowledge of the locks.
type Watcher = BTreeMap<LockName, Watched>;

/// A lock as its change events describe it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Watched {
    holders: BTreeSet<Token>,
    waiters: BTreeSet<Ticket>,
    data: Option<Data>,
    closed: bool,
    /// The size that an operator set. No event reports its end: it ends with the last holder, waiter and data.
    resized: Option<Permits>,
}

impl StateMachineTest for Test {
    type SystemUnderTest = Self;
    type Reference = Model;

    fn init_test(_: &Model) -> Self {
        let machine = Machine::default();
        let hash = machine.hash();
        let hurried = Hurried::default();
        Self { replica: machine.clone(), snapshot: (machine.clone(), hash), machine, watcher: Watcher::new(), hurried }
    }

    fn apply(mut test: Self, model: &Model, step: Step) -> Self {
        match step {
            Step::Apply(_, command) => {
                test.hurried.step(model, &command);
                test.step(model, command);
            }
            Step::Restore => {
                test.hurried.restore();
                test.restore();
            }
        }
        test
    }

    fn check_invariants(test: &Self, model: &Model) {
        test.machine.check().unwrap();
        assert_eq!(test.machine.now(), Stamp(model.now));
        for name in all_names() {
            let view = whole_view(&test.machine, &name);
            assert_eq!(view, model.lock(&name));
            assert_eq!(test.watcher.get(&name).cloned().unwrap_or_default(), seen(view), "of {name}");
        }
        assert!(test.machine.locks("", None).eq(&model.names(&all_names())));
        let entries = test.machine.entries(&KeyRange::default());
        let entries: Vec<_> = entries.map(|(key, entry)| (key.clone(), Entry::clone(&entry))).collect();
        assert!(entries.iter().map(|(key, entry)| (key, entry)).eq(&model.entries), "{entries:#?}");
        check_history(&test.machine, model);
        let sessions: Vec<_> = model.sessions.keys().filter_map(|id| model.session(*id)).collect();
        // Bytes are not in the model: the machine's own check counts them.
        let plain = |view: SessionView| SessionView { bytes: 0, ..view };
        assert!(test.machine.sessions(None).map(plain).eq(sessions.iter().cloned()));
        // The hash does not include the sessions' addresses.
        assert!(test.replica.sessions(None).map(plain).eq(sessions));
        for id in model.sessions.keys() {
            assert!(test.machine.revocations(*id, Token(0)).eq(model.revocations(*id)));
        }
        assert_eq!(test.machine.hash(), test.replica.hash());
        test.hurried.check(model);
    }

    fn teardown(test: Self, model: Model) {
        test.hurried.finish(&model);
        assert_eq!(test.snapshot.0.hash(), test.snapshot.1, "a clone changed with its original");
    }
}

/// A view of the whole lock.
fn whole_view(machine: &Machine, name: &LockName) -> LockView {
    machine.lock(name, Page { size: usize::MAX, holders_after: Token(0), waiters_after: Ticket(0) })
}

fn seen(view: LockView) -> Watched {
    Watched {
        holders: view.holders.iter().map(|holder| holder.token).collect(),
        waiters: view.waiters.iter().map(|waiter| waiter.ticket).collect(),
        data: view.data,
        closed: view.delay_remaining_ms > 0,
        resized: view.mode.and_then(Mode::permits).filter(|_| view.resized),
    }
}

/// A machine whose batches have a budget of one unit of work.
#[derive(Default)]
struct Hurried {
    machine: Machine,
    replica: Machine,
    watcher: Watcher,
    /// Sessions that a transaction was to close. Whether it did depends on revisions, which are others here than in the model.
    perhaps_closed: BTreeSet<SessionId>,
}

impl Hurried {
    const LIMITS: Limits = Limits { work: 1, ..Limits::NONE };

    fn step(&mut self, model: &Model, command: &Command) {
        let wanted = model.reply.as_ref().unwrap();
        if let Command::Txn(txn) = command {
            self.perhaps_closed.extend(txn.attached().filter(|_| txn.closes()).map(|attached| attached.session));
        }
        let reply = self.apply(time(model.now), command);
        match (command, &reply, wanted) {
            (Command::Renew { sessions }, Reply::Renewed(renewals), Reply::Renewed(wanted)) => {
                let ends = |renewals: &[Renewal]| {
                    let end = |renewal: &Renewal| if let Renewal::Ended(end) = renewal { Some(*end) } else { None };
                    let of_clients = sessions.iter().zip(renewals).filter(|(id, _)| self.is_as_modelled(**id));
                    of_clients.map(|(_, renewal)| end(renewal)).collect::<Vec<_>>()
                };
                assert_eq!(ends(renewals), ends(wanted));
            }
            (Command::Open { session, .. } | Command::Close { session, .. }, ..) if self.is_as_modelled(*session) => {
                assert_eq!(&reply, wanted);
            }
            _ => {}
        }
        if self.machine.has_work() {
            happened("batches that left work");
        }
    }

    fn apply(&mut self, time: Time, command: &Command) -> Reply {
        let mut events = Vec::new();
        let mut again = Vec::new();
        let mut lived: BTreeSet<_> = self.machine.sessions(None).map(|view| view.session).collect();
        if let Command::Txn(txn) = command {
            lived.extend(txn.opens().into_iter().flatten().map(|new| new.session));
        }
        let everything = KeyRange::default();
        let claims = self.machine.entries(&everything).filter_map(|(_, entry)| Some(entry.claim.as_ref()?.token));
        let claims: BTreeSet<_> = claims.collect();
        let last_token = self.machine.last_token();
        let mut replies = self.machine.apply_batch(time, Self::LIMITS, [command.clone()], &mut events);
        assert_eq!(self.replica.apply_batch(time, Self::LIMITS, [command.clone()], &mut again), replies);
        assert_eq!(again, events);
        self.machine.check().unwrap();
        for event in events {
            if let Event::Changed(Change { kind: ChangeKind::Granted { session, token, .. }, .. }) = &event {
                let has_lived = match *session {
                    SessionId::NONE => claims.contains(token) || *token > last_token,
                    session => lived.contains(&session),
                };
                assert!(has_lived, "{event:?} to a session or an entry that was over");
            }
            watch(&mut self.watcher, event);
        }
        replies.remove(0)
    }

    fn restore(&mut self) {
        let records = self.machine.records().map(|record| records::decode(&records::encode(&record)).unwrap());
        self.replica = Machine::from_records(records).unwrap();
        check_restored(&self.machine);
        if self.machine.has_work() {
            happened("restores with work left");
        }
    }

    fn check(&self, model: &Model) {
        assert_eq!(self.machine.hash(), self.replica.hash());
        let lives = |view: SessionView| self.is_as_modelled(view.session).then_some((view.session, view.remaining_ms));
        let sessions: Vec<_> = model.sessions.keys().filter_map(|id| model.session(*id)).filter_map(lives).collect();
        assert_eq!(self.machine.sessions(None).filter_map(lives).collect::<Vec<_>>(), sessions);
        let is_over = |id| {
            if self.is_as_modelled(id) { !model.sessions.contains_key(&id) } else { self.machine.session(id).is_none() }
        };
        for (key, entry) in self.machine.entries(&KeyRange::default()) {
            assert!(!entry.lease.is_some_and(|lease| is_over(lease.session)), "{key:?} has a lease that is over");
        }
        for name in all_names() {
            let mut told = self.watcher.get(&name).cloned().unwrap_or_default();
            let seen = seen(whole_view(&self.machine, &name));
            // The lock-delay may be over, and its opening still in the backlog.
            told.closed &= seen.closed || !self.machine.has_work();
            assert_eq!(told, seen, "of {name}");
        }
    }

    /// Whether a session must be as in the model.
    fn is_as_modelled(&self, session: SessionId) -> bool {
        is_of_client(session) && !self.perhaps_closed.contains(&session)
    }

    /// With ticks alone, at the same stamp, the backlog empties.
    fn finish(mut self, model: &Model) {
        let most = 10 * self.machine.records().count();
        for _ in 0..most {
            self.apply(time(model.now), &Command::Tick);
        }
        assert!(!self.machine.has_work(), "after {most} ticks");
        for name in all_names() {
            for HolderView { session, .. } in whole_view(&self.machine, &name).holders {
                let is_alive = !self.is_as_modelled(session) || model.sessions.contains_key(&session);
                assert!(is_alive, "{name} is held by a session that is over");
            }
        }
    }
}

/// Whether a client opened the session. Those of entries end with them, and revisions differ in a hurried machine: so other branches run.
fn is_of_client(session: SessionId) -> bool {
    session != SessionId::NONE && session.0 < OF_ENTRIES
}

/// A cluster that is restored from this table has all its grants and entries, none of its acquires that wait, and issues tokens far above.
/// Without their clients, all its sessions expire.
fn check_restored(machine: &Machine) {
    let draw = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
    let restore = Restore { at: WallTime(1_768_176_000_000), draw, first_token: None, closed_ms: Some(1) };
    let mut restored = machine.restored(&restore).unwrap();
    let then = machine.counts();
    let now = restored.counts();
    let entries_waiting = then.waiters - machine.waits().count();
    assert_eq!((now.sessions, now.grants, now.waiters), (then.sessions, then.grants, entries_waiting));
    let revisions = |machine: &Machine| {
        let entries = machine.entries(&KeyRange::default());
        entries.map(|(key, entry)| (key.clone(), entry.created, entry.modified, entry.version)).collect::<Vec<_>>()
    };
    assert_eq!(revisions(&restored), revisions(machine));
    assert_eq!(restored.last_token().0, first_at(restore.at) - 1);
    let known = |session: SessionView| machine.session(session.session).is_some();
    assert!(!restored.sessions(None).any(known), "a client has its session back");
    let late = Time { stamp: Stamp(machine.now().0 + u64::from(TTL_MS_MAX)), wall: WallTime(0) };
    restored.apply(late, Command::Tick, &mut Vec::new());
    while restored.has_work() {
        restored.apply(late, Command::Tick, &mut Vec::new());
    }
    assert_eq!(restored.counts().sessions, 0, "a session without a client goes on");
    assert_eq!(restored.counts().grants, 0);
    assert!(restored.entries(&KeyRange::default()).all(|(_, entry)| entry.claimant().is_none()));
    happened("clusters restored");
}

fn watch(watcher: &mut Watcher, event: Event) {
    let Change { name, of, kind } = match event {
        Event::Changed(change) => change,
        // No other event reports that a granted acquire leaves its queues.
        Event::WaitEnded { ticket, end: WaitEnd::Granted(grant) } => {
            for name in grant.names.iter() {
                let lock = watcher.entry(name.clone()).or_default();
                assert!(lock.waiters.remove(&ticket));
                lock.forget_size();
            }
            return;
        }
        Event::WaitEnded { .. } | Event::SessionEnded { .. } | Event::Revoked { .. } => return,
    };
    let lock = watcher.entry(name).or_default();
    match kind {
        ChangeKind::Granted { token, mode, ticket, .. } => {
            assert!(lock.holders.insert(token));
            if of == LockKind::Entry {
                assert!(ticket.is_none_or(|ticket| lock.waiters.remove(&ticket)));
            }
            let most = match mode {
                Mode::Exclusive => 1,
                Mode::Shared => usize::MAX,
                Mode::Permit(permits) => permits.get() as usize,
            };
            assert!(
                lock.holders.len() <= most,
                "{mode:?} was granted to {} holders, at most {most} may hold it",
                lock.holders.len()
            );
            if let (Mode::Permit(permits), Some(resized)) = (mode, lock.resized) {
                assert_eq!(permits, resized);
            }
        }
        ChangeKind::Resized(permits) => lock.resized = Some(permits),
        ChangeKind::Released { token, .. } | ChangeKind::Lost { token, .. } => assert!(lock.holders.remove(&token)),
        ChangeKind::Revoked { token, .. } => assert!(lock.holders.contains(&token)),
        ChangeKind::Queued { ticket, .. } => assert!(lock.waiters.insert(ticket)),
        ChangeKind::Left { ticket, .. } => assert!(lock.waiters.remove(&ticket)),
        ChangeKind::Data(data) => lock.data = data,
        ChangeKind::Delayed => assert!(!std::mem::replace(&mut lock.closed, true)),
        ChangeKind::Opened => assert!(std::mem::replace(&mut lock.closed, false)),
    }
    lock.forget_size();
}

impl Watched {
    fn forget_size(&mut self) {
        if self.holders.is_empty() && self.waiters.is_empty() && self.data.is_none() {
            self.resized = None;
        }
    }
}

impl Test {
    fn step(&mut self, model: &Model, command: Command) {
        let before = self.machine.now().0;
        let leased: Vec<_> = self.machine.entries(&KeyRange::default()).filter_map(|(_, entry)| entry.lease).collect();
        let time = time(model.now);
        let mut events = Vec::new();
        let reply = self.machine.apply(time, command.clone(), &mut events);
        assert_eq!(Some(&reply), model.reply.as_ref(), "to {command:?}");
        let told = events.iter().filter(|event| !matches!(event, Event::Changed(_)));
        assert!(told.eq(&model.events), "{events:#?} where the model has {:#?}", model.events);

        let half_way = Time { stamp: Stamp(before.midpoint(model.now)), ..time };
        let mut replica_events = Vec::new();
        self.replica.apply(half_way, Command::Tick, &mut replica_events);
        assert_eq!(self.replica.apply(time, command.clone(), &mut replica_events), reply);
        assert_eq!(replica_events, events);

        self.count(model, &command, &reply, &events);
        for event in &events {
            let Event::SessionEnded { session, .. } = event else { continue };
            for lease in leased.iter().filter(|lease| lease.session == *session) {
                happened(match lease.at_end {
                    AtLeaseEnd::Delete => "entries that ended with their lease",
                    AtLeaseEnd::Keep => "entries that expired with their lease",
                });
            }
        }
        events.into_iter().for_each(|event| watch(&mut self.watcher, event));
    }

    fn restore(&mut self) {
        let records = self.machine.records().map(|record| records::decode(&records::encode(&record)).unwrap());
        self.replica = Machine::from_records(records).unwrap();
        check_restored(&self.machine);
        self.snapshot = (self.machine.clone(), self.machine.hash());
        happened("restores");
    }

    fn count(&self, model: &Model, command: &Command, reply: &Reply, events: &[Event]) {
        if let Reply::Queued(_) = reply {
            happened("waits");
        }
        let granted = |grant: &Grant| {
            happened("grants");
            if grant.names.len() > 1 {
                happened("grants of several locks");
            }
        };
        if let (Command::Session { .. }, Reply::Acquired(WaitEnd::Granted(grant))) = (command, reply) {
            if events.iter().any(|event| matches!(event, Event::Changed(_))) {
                granted(grant);
            } else {
                happened("retries");
            }
            if let Command::Session { session, request: Some(request), .. } = command
                && request.id < model.sessions[session].lowest()
            {
                let is_repeated = events.is_empty();
                happened(if is_repeated { "retries below the lowest id" } else { "late arrivals below the lowest id" });
            }
        }
        if let Reply::Committed(Committed { succeeded, results, .. }) = reply {
            happened(if *succeeded { "transactions that succeeded" } else { "transactions that failed" });
            if results.contains(&TxnResult::Put) {
                happened("transactions that wrote");
            }
            if results.iter().any(|result| matches!(result, TxnResult::Opened(_))) {
                happened("sessions that transactions opened");
            }
            if results.iter().any(|result| matches!(result, TxnResult::Selected(Selected { more: true, .. }))) {
                happened("selections that left some out");
            }
            let is_of_entries =
                |event: &Event| matches!(event, Event::SessionEnded { session, .. } if !is_of_client(*session));
            if events.iter().any(is_of_entries) {
                happened("sessions that were closed without entries");
            }
        }
        match (command, reply) {
            (Command::Compact { .. }, Reply::Compacted(_)) => happened("compactions"),
            (Command::Compact { .. }, _) => happened("compactions of the future"),
            _ => {}
        }
        if let (Command::Txn(_), Reply::Refused(_)) = (command, reply) {
            happened("transactions that were refused");
        }
        if let Reply::Refused(Refusal::LockUnknown { .. }) = reply {
            happened("locks that were to exist and did not");
        }
        if let (Command::Session { operation: Operation::Acquire(acquire), .. }, Reply::Acquired(_)) = (command, reply)
            && acquire.wants().iter().any(|want| want.must_exist)
        {
            happened("locks that were to exist and did");
        }
        if let (Command::Session { operation: Operation::Acquire(acquire), .. }, Reply::Acquired(WaitEnd::Granted(_))) =
            (command, reply)
        {
            let gets_another = |want: &&Want| {
                let used = whole_view(&self.machine, &want.name).mode.and_then(Mode::permits);
                want.mode.permits().is_some() && used.is_some() && used != want.mode.permits()
            };
            acquire.wants().iter().filter(gets_another).for_each(|_| happened(OTHER_SIZE));
        }
        if let (Command::Resize { permits, .. }, Reply::Resized { holders, .. }) = (command, reply) {
            happened("resizes");
            if *holders > permits.get().into() {
                happened("resizes to less than is held");
            }
            let lets_in = |event: &Event| matches!(event, Event::WaitEnded { end: WaitEnd::Granted(_), .. });
            if events.iter().any(lets_in) {
                happened("resizes that let others in");
            }
        }
        if let Reply::Refused(Refusal::RequestStale { .. }) = reply {
            happened("stragglers");
        }
        if let Reply::Refused(Refusal::Revoked { .. }) = reply {
            happened("requests that heard that their grant was taken");
        }
        if let Reply::Renewed(renewals) = reply {
            let taken = |revocation: &Revocation| revocation.remaining_ms == 0;
            let told =
                |renewal: &Renewal| matches!(renewal, Renewal::Renewed { revoked, .. } if revoked.iter().any(taken));
            renewals
                .iter()
                .filter(|renewal| told(renewal))
                .for_each(|_| happened("renewals that told of what was taken"));
        }
        if let Reply::Refused(Refusal::ModeMismatch { name, .. }) = reply
            && whole_view(&self.machine, name).kind == LockKind::Entry
        {
            happened("acquires of a claimed name");
        }
        for event in events {
            match event {
                Event::Changed(Change { of: LockKind::Entry, kind, .. }) => match kind {
                    ChangeKind::Lost { session: SessionId::NONE, reason: None, .. } => {
                        happened("locks lost at the deadline of an entry");
                    }
                    ChangeKind::Granted { ticket: None, .. } => happened("entries that claimed a free lock"),
                    ChangeKind::Granted { .. } => happened("entries that were granted a lock after a wait"),
                    ChangeKind::Queued { .. } => happened("entries that waited for a lock"),
                    ChangeKind::Lost { reason: Some(_), .. } => happened("entries that lost a lock by force"),
                    ChangeKind::Released { .. } | ChangeKind::Left { .. } | ChangeKind::Lost { reason: None, .. } => {}
                    ChangeKind::Revoked { .. } | ChangeKind::Data(_) | ChangeKind::Delayed => {}
                    ChangeKind::Opened | ChangeKind::Resized(_) => {}
                },
                Event::WaitEnded { end: WaitEnd::Granted(grant), .. } => {
                    happened("grants after a wait");
                    granted(grant);
                }
                Event::WaitEnded { end: WaitEnd::TimedOut(_), .. } => happened("timeouts"),
                Event::WaitEnded { end: WaitEnd::Abandoned, .. } => happened("waits abandoned"),
                Event::SessionEnded { end: SessionEnd::Expired, .. } => happened("expiries"),
                Event::Revoked { .. } => happened("revocations"),
                Event::Changed(Change { kind: ChangeKind::Lost { reason: Some(_), .. }, .. }) => {
                    happened("grants lost by force");
                }
                Event::Changed(Change { kind: ChangeKind::Delayed, .. }) => happened("lock-delays"),
                Event::Changed(_) | Event::WaitEnded { .. } | Event::SessionEnded { .. } => {}
            }
        }
    }
}
