//! Contenders for locks by the protocols of others, and what all of them are judged by.
//!
//! A contender trusts its lease from the sending of the last answered call on, less a margin for its clock, as every client of leases must.
//! For how long is a matter of its protocol.
//! No two contenders may trust at one time that they hold the same lock; tokens rise; and who still trusts its lease is never told that it
//! has none, unless the cluster was lost and restored from a backup since.
//!
//! What has a token is also in the history, as a holder that speaks the protocol: the checker judges the holders of each protocol by
//! themselves, and with all others.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lockkeeper::chaos::{
    history::{Acquire, Answer, Call, Fact, Lease, Wait},
    record::{Begun, Recorder},
};
use rand::{Rng as _, rngs::StdRng};
use tokio::time::timeout;

use crate::{clients::Book, protocols::ContendedProtocol, system};

/// The TTL of leases: whole seconds, for the sake of etcd's.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// What a clock may be wrong, of a TTL.
const MARGIN: Duration = Duration::from_millis(25);
/// The time of a call.
pub(crate) const LIMIT: Duration = Duration::from_millis(700);

/// All contenders of a run.
pub(crate) struct Contention {
    book: Book,
    state: Mutex<ContentionState>,
}

#[derive(Default)]
struct ContentionState {
    /// By lock.
    present: BTreeMap<String, Tenure>,
    /// By protocol.
    counts: BTreeMap<&'static str, TenureCounts>,
    complaints: Vec<String>,
    /// When the cluster was last restored from a backup.
    restored_at: Option<Duration>,
}

/// Who trusts that it holds a lock, and until when.
#[derive(Clone)]
struct Tenure {
    who: String,
    token: Option<u64>,
    until: Duration,
}

#[derive(Clone, Copy, Default)]
struct TenureCounts {
    granted: u64,
    handed_over: u64,
    renewed: u64,
    released: u64,
    /// By a restored cluster.
    granted_anew: u64,
}

impl Contention {
    pub(crate) fn new(book: Book) -> Self {
        Self { book, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, ContentionState> {
        self.state.lock().expect("nothing panics while it has the tenures")
    }

    /// A contender that speaks this protocol, and trusts a lease for this long. So often, in percent, it is late.
    pub(crate) fn contender(
        self: &Arc<Self>,
        (protocol, trust): (&'static str, Duration),
        process: &str,
        late_percent: u32,
    ) -> Contender {
        let recorder = self.book.recorder(process);
        recorder.fact(Fact::Speaks { process: process.to_owned(), protocol: protocol.to_owned() });
        Contender {
            all: Arc::clone(self),
            protocol,
            trust,
            late_percent,
            process: process.to_owned(),
            recorder,
            turns: 0,
        }
    }

    /// Notes what cannot have been.
    pub(crate) fn complain(&self, what: String) {
        self.state().complaints.push(what);
    }

    /// What cannot have been.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.state().complaints.clone()
    }

    /// The cluster was lost with its data, and a new one is about to start from a backup. That may not know what was granted or renewed
    /// until now, and may say so. It must not grant it to others.
    pub(crate) fn restored(&self) {
        self.state().restored_at = Some(system::elapsed());
    }

    /// What the contenders must have done in a meaningful run, and have not.
    pub(crate) fn missing(&self) -> Vec<String> {
        let counts = self.state().counts.clone();
        let lacks = |protocol: &&str| counts.get(protocol).is_none_or(|counts| counts.granted_anew == 0);
        let protocols = ContendedProtocol::ALL.map(ContendedProtocol::name);
        let lacking = protocols.iter().copied().filter(lacks);
        lacking.map(|protocol| format!("no lock of {protocol} granted by a restored cluster")).collect()
    }

    /// What the contenders did, by protocol.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        let counts = self.state().counts.clone();
        let of_protocol = |(protocol, counts): (&'static str, TenureCounts)| {
            let TenureCounts { granted, handed_over, renewed, released, granted_anew } = counts;
            let counts = [
                ("granted", granted),
                ("handed over", handed_over),
                ("renewed", renewed),
                ("released", released),
                ("granted by a restored cluster", granted_anew),
            ];
            counts.map(|(what, count)| (format!("locks of {protocol} {what}"), count))
        };
        counts.into_iter().flat_map(of_protocol).collect()
    }
}

/// A client that takes locks, one at a time.
pub(crate) struct Contender {
    all: Arc<Contention>,
    protocol: &'static str,
    trust: Duration,
    late_percent: u32,
    process: String,
    recorder: Recorder,
    turns: u64,
}

impl Contender {
    /// It is about to ask for a lock: a lease that it gets counts from now.
    pub(crate) fn ask(&mut self, lock: &str) -> Attempt {
        self.turns += 1;
        let who = format!("{}/{}", self.process, self.turns);
        let (all, protocol, recorder) = (Arc::clone(&self.all), self.protocol, self.recorder.clone());
        let (trust, sent) = (self.trust, system::elapsed());
        Attempt { all, protocol, trust, recorder, who, lock: lock.to_owned(), sent, acquiring: None }
    }

    /// All contenders of the run.
    pub(crate) fn contention(&self) -> &Arc<Contention> {
        &self.all
    }

    /// How long it works before it says something of a lock that it holds. At times it stands still for longer than its lease, and goes on
    /// as if it had the lock.
    pub(crate) fn pause(&self, random: &mut StdRng) -> Duration {
        let ms = if random.random_range(0..100) < self.late_percent { 2_100..3_500 } else { 20..700 };
        Duration::from_millis(random.random_range(ms))
    }
}

/// An acquire under way. If it is dropped, its outcome is unknown.
pub(crate) struct Attempt {
    all: Arc<Contention>,
    protocol: &'static str,
    trust: Duration,
    recorder: Recorder,
    who: String,
    lock: String,
    sent: Duration,
    acquiring: Option<Begun>,
}

impl Attempt {
    /// A name for the holder that no other has.
    pub(crate) fn who(&self) -> &str {
        &self.who
    }

    /// Its grant will have a token, so the history has it.
    pub(crate) fn recorded(mut self) -> Self {
        let session = self.who.clone();
        let ttl_ms = u64::try_from(self.trust.as_millis()).expect("a few seconds");
        self.recorder.begin(&[], Call::Open { session: session.clone(), ttl_ms }).ok(Answer::Open(Lease::default()));
        let acquire = Acquire { session, wait: Wait::None, ..Acquire::default() };
        self.acquiring = Some(self.recorder.begin(&[self.lock.clone()], Call::Acquire(acquire)));
        self
    }

    /// A call that was sent then has renewed the lease that it is about to hold the lock by.
    pub(crate) fn renewed(&mut self, sent: Duration) {
        self.sent = sent;
        if self.acquiring.is_some() {
            note_renewal(&self.recorder, &self.who, sent);
        }
    }

    /// It was refused, and has no effect, since another has the lock.
    pub(crate) fn busy(self) {
        self.failed("busy");
    }

    /// It has no effect, and that says nothing about the lock.
    pub(crate) fn unavailable(self) {
        self.failed("unavailable");
    }

    /// It has waited, and has no effect.
    pub(crate) fn timed_out(self) {
        self.failed("timed_out");
    }

    fn failed(self, reason: &str) {
        if let Some(acquiring) = self.acquiring {
            acquiring.failed(reason);
            self.recorder.begin(&[], Call::Close { session: self.who }).ok(Answer::Close {});
        }
    }

    /// It has the lock. A token is needed if the history has it.
    pub(crate) fn granted(self, token: Option<u64>) -> HeldLock {
        let Self { all, protocol, trust, recorder, who, lock, sent, acquiring } = self;
        let recorded = acquiring.zip(token).map(|(acquiring, token)| {
            acquiring.ok(Answer::Acquire { token, place_lost: false });
        });
        let is_recorded = recorded.is_some();
        let told = system::elapsed();
        let mut held = HeldLock { all, protocol, trust, recorder, who, lock, until: sent, told, token, is_recorded };
        held.until = held.until_after(sent);
        held.begin();
        held
    }
}

/// A lock that a contender holds.
pub(crate) struct HeldLock {
    all: Arc<Contention>,
    protocol: &'static str,
    trust: Duration,
    recorder: Recorder,
    who: String,
    lock: String,
    /// Until when it trusts its lease.
    until: Duration,
    /// When it was last told that it has the lock.
    told: Duration,
    token: Option<u64>,
    is_recorded: bool,
}

impl HeldLock {
    fn until_after(&self, sent: Duration) -> Duration {
        sent + self.trust - MARGIN
    }

    fn trusts(&self) -> bool {
        self.until > system::elapsed()
    }

    fn begin(&self) {
        let Self { protocol, who, lock, until, token, .. } = self;
        let now = system::elapsed();
        let mut state = self.all.state();
        // An answer that comes after its own lease says nothing about who has the lock now.
        let is_held = state.present.get(lock).is_some_and(|tenure| tenure.until > now);
        if is_held && !self.trusts() {
            return;
        }
        let before = state.present.insert(lock.clone(), Tenure { who: who.clone(), token: *token, until: *until });
        let mut complaints = Vec::new();
        if let Some(Tenure { who: other, token: earlier, until: trusts }) = &before {
            if *trusts > now {
                complaints.push(format!(
                    "{who} holds the lock {lock} of {protocol} at {now:?} (token {token:?}), and {other} trusts until {trusts:?} that it \
                     does (token {earlier:?})"
                ));
            }
            if earlier.zip(*token).is_some_and(|(earlier, token)| token <= earlier) {
                complaints.push(format!(
                    "the lock {lock} of {protocol} went from {other} with {earlier:?} to {who} with {token:?}"
                ));
            }
        }
        state.complaints.extend(complaints);
        let is_restored = state.restored_at.is_some();
        let counts = state.counts.entry(*protocol).or_default();
        counts.granted += 1;
        counts.granted_anew += u64::from(is_restored);
        counts.handed_over += u64::from(before.is_some());
    }

    /// A call that was sent then has renewed the lease.
    pub(crate) fn renewed(&mut self, sent: Duration) {
        // While it trusted nothing, another could have had the lock in the cluster that is lost.
        if !self.trusts() && self.may_be_forgotten() {
            self.end_record("its lease was over, and its cluster lost");
        }
        self.until = self.until_after(sent);
        self.told = system::elapsed();
        if self.is_recorded {
            note_renewal(&self.recorder, &self.who, sent);
        }
        let Self { protocol, who, lock, until, .. } = &*self;
        let mut state = self.all.state();
        let state = &mut *state;
        state.counts.entry(*protocol).or_default().renewed += 1;
        match state.present.get_mut(lock) {
            Some(tenure) if tenure.who == *who => tenure.until = *until,
            Some(Tenure { who: other, until: trusts, .. }) if *trusts > system::elapsed() => {
                let what = format!("{who} renewed the lock {lock} of {protocol}, which {other} has had since");
                state.complaints.push(what);
            }
            // It got the lock too late to trust it, and trusts it now.
            Some(_) | None => {
                let tenure = Tenure { who: who.clone(), token: self.token, until: *until };
                state.present.insert(lock.clone(), tenure);
            }
        }
    }

    /// It has lost its connection, and trusts nothing until it hears more.
    pub(crate) fn suspend(&mut self) {
        self.until = system::elapsed();
        self.forget();
        self.end_record("its connection was closed");
    }

    /// The history has it no longer: there is no word there for one that trusts again.
    fn end_record(&mut self, why: &str) {
        if self.is_recorded {
            self.recorder.begin(&[], Call::Close { session: self.who.clone() }).unknown(why);
            self.is_recorded = false;
        }
    }

    /// It was told that it does not hold the lock.
    pub(crate) fn lost(self) {
        let is_forgotten = self.may_be_forgotten();
        if self.trusts() && !is_forgotten {
            let Self { protocol, who, lock, until, .. } = &self;
            let what = format!(
                "{who} was told at {:?} that it does not hold the lock {lock} of {protocol}, and trusts it until {until:?}",
                system::elapsed()
            );
            self.all.state().complaints.push(what);
        }
        if self.is_recorded {
            let why = if is_forgotten { "unknown" } else { "expired" };
            self.recorder.fact(Fact::Lost { session: self.who.clone(), why: why.to_owned(), token: None });
        }
        self.forget();
    }

    /// Whether the cluster that has told it of its lock is lost.
    fn may_be_forgotten(&self) -> bool {
        self.all.state().restored_at.is_some_and(|at| self.told <= at)
    }

    /// It is about to release the lock, and trusts nothing any more.
    pub(crate) fn release(self) -> ReleasingLock {
        self.forget();
        let call = |token| Call::Release { session: self.who.clone(), token };
        let recorded = self.token.filter(|_| self.is_recorded);
        let releasing = recorded.map(|token| self.recorder.begin(std::slice::from_ref(&self.lock), call(token)));
        ReleasingLock { held: self, releasing }
    }

    fn forget(&self) {
        let mut state = self.all.state();
        if let Some(tenure) = state.present.get_mut(&self.lock).filter(|tenure| tenure.who == self.who) {
            tenure.until = Duration::ZERO;
        }
    }
}

/// A release under way. If it is dropped, its outcome is unknown.
pub(crate) struct ReleasingLock {
    held: HeldLock,
    releasing: Option<Begun>,
}

impl ReleasingLock {
    /// It is released.
    pub(crate) fn done(self) {
        let Self { held, releasing } = self;
        held.all.state().counts.entry(held.protocol).or_default().released += 1;
        if let Some(releasing) = releasing {
            releasing.ok(Answer::Release {});
            held.recorder.begin(&[], Call::Close { session: held.who }).ok(Answer::Close {});
        }
    }

    /// It was told that it did not hold the lock.
    pub(crate) fn was_lost(self) {
        if let Some(releasing) = self.releasing {
            releasing.failed("not_held");
        }
        self.held.lost();
    }
}

fn note_renewal(recorder: &Recorder, who: &str, sent: Duration) {
    let sent_ns = u64::try_from(sent.as_nanos()).expect("no run takes centuries");
    recorder.fact(Fact::Renewed { session: who.to_owned(), sent_ns, ttl_ms: None });
}

/// The answer of a call, if it comes in time.
pub(crate) async fn in_time<T>(call: impl Future<Output = Option<T>>) -> Option<T> {
    timeout(LIMIT, call).await.ok().flatten()
}
