//! A store in memory: a table, whose time passes when a test says so.
//!
//! This file is a module of two tests: of the services (`mod.rs`), and of parsers (`tests/fuzz`).

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{
    StreamExt as _,
    stream::{BoxStream, once, unfold},
};
use http::{Extensions, HeaderMap};
use lockkeeper_machine::{
    Command, Committed, EntryEvent, Key, KeyRange, Label, Limit, Machine, Put, PutLease, Refusal, Renewal, Reply,
    Revision, RevisionError, Select, Selected, SessionId, Stamp, Time, Ttl, Txn, TxnOperation, Value, WallTime,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::yield_now,
    time::sleep,
};

use super::{
    EtcdFacts, EtcdFound, EtcdMember, EtcdPage, EtcdSession, EtcdStore, EtcdStoreError, KeptAlive, NodeCondition,
    WatchedEvents,
};

/// Entries of a page: few, so that tests meet its end.
const PAGE_MAX: usize = 4;

/// Entries of a range that can be selected from, as few.
const SELECT_MAX: u64 = 8;

/// A store in memory. Clones share it.
#[derive(Clone)]
pub(crate) struct Memory {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Told of each command.
    changed: watch::Sender<()>,
    /// The turns of large answers.
    answers: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    machine: Machine,
    time: Time,
    random: u64,
    is_leaderless: bool,
    /// Commands that ask for more are refused.
    is_pressed: bool,
    /// The caller's rights are withdrawn.
    is_denied: bool,
    /// The caller's token is withdrawn.
    is_unknown: bool,
    /// A session that is not the caller's.
    foreign: Option<SessionId>,
    /// Renewals that will have no answer.
    lost_renewals: usize,
    /// This node's copy, while it lags.
    copy: Option<Machine>,
    /// Calls that read at the leader, of keys.
    led_reads: usize,
    /// Transactions that were committed.
    commits: usize,
    /// The next commit takes effect, and has no answer.
    loses_answer: bool,
    /// How long a read takes.
    read_time: Duration,
    /// Right after the next commit, everything before it is forgotten.
    forgets_past: bool,
    /// Writes of others, one before each call of keys.
    others: VecDeque<Txn>,
    /// The tables that calls have met, in their order.
    met: Vec<Machine>,
}

impl Default for Memory {
    /// At revision 1: by a write that is none of etcd's, as a store makes it before the first one that is.
    fn default() -> Self {
        let memory = Self::empty();
        let (key, value) = (Key::new(b"members/1").expect("a key"), Value::new(b"").expect("a value"));
        let first = TxnOperation::Put(Put { key, value, lease: PutLease::None, claims: None });
        memory.apply(Command::Txn(Txn::new(Vec::new(), vec![first], Vec::new()).expect("in bounds")));
        memory
    }
}

impl Shared {
    fn new() -> Self {
        let answers = Arc::new(Semaphore::new(1));
        Self { state: Mutex::default(), changed: watch::Sender::new(()), answers }
    }
}

impl Memory {
    /// The turns of large answers, of which there is one.
    pub(crate) fn answers(&self) -> &Arc<Semaphore> {
        &self.shared.answers
    }

    /// One to which nothing was written.
    pub(crate) fn empty() -> Self {
        Self { shared: Arc::new(Shared::new()) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn apply(&self, command: Command) -> Reply {
        let mut state = self.state();
        let time = state.time;
        let reply = state.machine.apply(time, command, &mut Vec::new());
        drop(state);
        self.shared.changed.send_replace(());
        reply
    }

    /// Lets time pass, and sessions end.
    pub(crate) fn pass(&self, ms: u64) {
        let mut state = self.state();
        state.time.stamp = Stamp(state.time.stamp.0 + ms);
        state.time.wall = WallTime(state.time.wall.0 + ms);
        drop(state);
        // What is due is handled by the next command.
        self.apply(Command::Renew { sessions: Vec::new() });
    }

    /// From now on no leader is known, or one is again.
    pub(crate) fn be_leaderless(&self, is_leaderless: bool) {
        self.state().is_leaderless = is_leaderless;
        self.shared.changed.send_replace(());
    }

    /// From now on commands that ask for more are refused.
    pub(crate) fn be_pressed(&self) {
        self.state().is_pressed = true;
    }

    /// From now on the caller may not write.
    pub(crate) fn deny(&self) {
        self.state().is_denied = true;
        self.shared.changed.send_replace(());
    }

    /// From now on the caller's token is not known.
    pub(crate) fn withdraw_token(&self) {
        self.state().is_unknown = true;
        self.shared.changed.send_replace(());
    }

    /// The next renewals have no answer.
    pub(crate) fn lose_renewals(&self, count: usize) {
        self.state().lost_renewals = count;
    }

    /// From now on this session belongs to somebody else.
    pub(crate) fn give_away(&self, session: SessionId) {
        self.state().foreign = Some(session);
    }

    /// From now on this node applies nothing, or again all that there is.
    pub(crate) fn lag(&self, lags: bool) {
        let mut state = self.state();
        state.copy = lags.then(|| state.machine.clone());
        drop(state);
        self.shared.changed.send_replace(());
    }

    /// Another store with this table.
    pub(crate) fn with_table(machine: Machine) -> Self {
        let memory = Self::empty();
        memory.state().machine = machine;
        memory
    }

    /// From now on others write, one of these transactions before each call of keys.
    pub(crate) fn interleave(&self, others: impl IntoIterator<Item = Txn>) {
        let mut state = self.state();
        state.others = others.into_iter().collect();
        state.met = Vec::new();
    }

    /// The tables that calls have met since then.
    pub(crate) fn met(&self) -> Vec<Machine> {
        std::mem::take(&mut self.state().met)
    }

    fn let_others_write(&self) {
        let other = self.state().others.pop_front();
        if let Some(other) = other {
            self.apply(Command::Txn(other));
        }
        let mut state = self.state();
        let table = state.machine.clone();
        state.met.push(table);
    }

    /// The answer to the next commit is lost.
    pub(crate) fn lose_answer(&self) {
        self.state().loses_answer = true;
    }

    /// The next commit is followed by a compaction of all that was before it.
    pub(crate) fn forget_past(&self) {
        self.state().forgets_past = true;
    }

    /// From now on each read takes this time.
    pub(crate) fn read_slowly(&self, read_time: Duration) {
        self.state().read_time = read_time;
    }

    /// How many transactions were committed.
    pub(crate) fn commits(&self) -> usize {
        self.state().commits
    }

    /// How many reads the leader has answered.
    pub(crate) fn led_reads(&self) -> usize {
        self.state().led_reads
    }

    pub(crate) fn machine(&self) -> Machine {
        self.state().machine.clone()
    }

    /// A table to read, at a leader.
    fn led(&self) -> Result<Machine, EtcdStoreError> {
        let state = self.state();
        if state.is_leaderless { Err(EtcdStoreError::NoLeader) } else { Ok(state.machine.clone()) }
    }

    /// The same, for a call that only reads.
    fn read_at_leader(&self) -> Result<Machine, EtcdStoreError> {
        self.let_others_write();
        self.state().led_reads += 1;
        self.led()
    }

    /// This node's own.
    fn copy(&self) -> Machine {
        let state = self.state();
        state.copy.as_ref().unwrap_or(&state.machine).clone()
    }

    fn change(&self, command: Command) -> Result<Reply, EtcdStoreError> {
        self.let_others_write();
        let machine = self.led()?;
        if self.state().is_pressed && machine.asks_for_more(&command) {
            return Err(EtcdStoreError::Full("pressed".to_owned()));
        }
        let reply = self.apply(command);
        if let Reply::Refused(refusal) = reply { Err(refused(refusal)) } else { Ok(reply) }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "few of them concern the keyspace")]
fn refused(refusal: Refusal) -> EtcdStoreError {
    match refusal {
        Refusal::SessionEnded(_) => EtcdStoreError::SessionEnded,
        Refusal::SessionExists => EtcdStoreError::SessionExists,
        Refusal::RevisionFuture { .. } => EtcdStoreError::Future,
        Refusal::Limit(Limit::TxnWrites | Limit::TxnBytes) => EtcdStoreError::TooLarge("a limit".to_owned()),
        Refusal::Closed { .. } => EtcdStoreError::Overloaded,
        Refusal::Limit(_) => EtcdStoreError::Full("a limit".to_owned()),
        other => EtcdStoreError::Other(format!("{other:?}")),
    }
}

fn past(error: RevisionError) -> EtcdStoreError {
    match error {
        RevisionError::Compacted { compacted } => EtcdStoreError::Compacted { compacted },
        RevisionError::Future { .. } => EtcdStoreError::Future,
    }
}

impl EtcdStore for Memory {
    type Caller = ();
    type AnswerTurn = OwnedSemaphorePermit;

    /// Nobody has a token here.
    fn caller(&self, _extensions: &Extensions, headers: &HeaderMap) -> Result<(), EtcdStoreError> {
        if headers.contains_key("token") { Err(EtcdStoreError::UnknownToken) } else { Ok(()) }
    }

    fn authenticate(&self, _name: &str, _password: &str) -> Result<Option<String>, EtcdStoreError> {
        Err(EtcdStoreError::Anonymous)
    }

    fn needs_identity(&self) -> bool {
        false
    }

    fn facts(&self) -> EtcdFacts {
        EtcdFacts { cluster_id: 7, member_id: 1, term: 3, revision: self.copy().revision() }
    }

    fn leader(&self) -> Option<u64> {
        (!self.state().is_leaderless).then_some(1)
    }

    fn condition(&self) -> NodeCondition {
        NodeCondition::default()
    }

    async fn members(&self, _caller: &()) -> Result<Vec<EtcdMember>, EtcdStoreError> {
        let client_url = Some("http://127.0.0.1:2379".to_owned());
        Ok(vec![EtcdMember { id: 1, peer_url: "http://127.0.0.1:2380".to_owned(), client_url, is_learner: false }])
    }

    async fn get(&self, _caller: &(), keys: Vec<Key>, at: Option<Revision>) -> Result<EtcdFound, EtcdStoreError> {
        let machine = self.read_at_leader()?;
        let revision = machine.revision();
        machine.ensure_known(at.unwrap_or(revision)).map_err(past)?;
        let entry = |key| machine.entry_at(key, at.unwrap_or(revision)).map_err(past);
        Ok(EtcdFound { entries: keys.iter().map(entry).collect::<Result<_, _>>()?, revision })
    }

    async fn list(
        &self,
        _caller: &(),
        range: KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<EtcdPage, EtcdStoreError> {
        let read_time = self.state().read_time;
        if !read_time.is_zero() {
            sleep(read_time).await;
        }

        let machine = self.read_at_leader()?;
        let revision = machine.revision();
        let entries = machine.entries_at(&range, at.unwrap_or(revision)).map_err(past)?;
        let limit = if limit == 0 { PAGE_MAX } else { limit.min(PAGE_MAX) };
        let mut entries: Vec<_> =
            entries.iter(false).take(limit + 1).map(|(key, entry)| (key.clone(), entry)).collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(EtcdPage { entries, more, revision })
    }

    async fn select(
        &self,
        _caller: &(),
        select: Select,
        at: Option<Revision>,
    ) -> Result<(Selected, Revision), EtcdStoreError> {
        let machine = self.read_at_leader()?;
        let revision = machine.revision();
        let entries = machine.entries_at(&select.range, at.unwrap_or(revision)).map_err(past)?;
        let selected = select.from(entries.iter(false));
        if selected.count > SELECT_MAX {
            return Err(EtcdStoreError::TooLarge("too many".to_owned()));
        }
        Ok((selected, revision))
    }

    async fn select_from_copy(&self, _caller: &(), select: Select) -> Result<(Selected, Revision), EtcdStoreError> {
        let machine = self.copy();
        let selected = select.from(machine.entries(&select.range));
        Ok((selected, machine.revision()))
    }

    async fn commit(&self, caller: &(), txn: Txn) -> Result<Committed, EtcdStoreError> {
        if self.state().is_denied {
            return Err(EtcdStoreError::Denied("by a test".to_owned()));
        }
        self.withdraw(caller, txn).await
    }

    async fn denied(&self, _caller: &(), _txn: &Txn) -> EtcdStoreError {
        let mut changed = self.shared.changed.subscribe();
        while !self.state().is_denied {
            changed.changed().await.expect("this store has the other end");
        }
        EtcdStoreError::Denied("by a test".to_owned())
    }

    async fn withdraw(&self, _caller: &(), txn: Txn) -> Result<Committed, EtcdStoreError> {
        let Reply::Committed(committed) = self.change(Command::Txn(txn))? else {
            panic!("not an answer to a transaction")
        };
        self.state().commits += 1;
        if std::mem::take(&mut self.state().forgets_past) {
            self.apply(Command::Compact { revision: committed.revision });
        }
        // Who asked may be gone when the answer comes.
        yield_now().await;
        let is_lost = std::mem::take(&mut self.state().loses_answer);
        if is_lost { Err(EtcdStoreError::LeaderChanged) } else { Ok(committed) }
    }

    async fn compact(&self, _caller: &(), revision: Revision) -> Result<(), EtcdStoreError> {
        self.change(Command::Compact { revision }).map(drop)
    }

    fn random(&self) -> u64 {
        let mut state = self.state();
        state.random += 1;
        state.random * 2
    }

    async fn open(&self, _caller: &(), session: SessionId, ttl: Ttl) -> Result<(), EtcdStoreError> {
        // Another label each time: a session is opened once.
        let label = Label::new(&format!("lease {}", self.random())).expect("short");
        match self.change(Command::Open { session, ttl, label, address: None, owner: None }) {
            Err(EtcdStoreError::SessionEnded) => Err(EtcdStoreError::SessionExists),
            opened => opened.map(drop),
        }
    }

    async fn close(&self, _caller: &(), session: SessionId) -> Result<(), EtcdStoreError> {
        self.change(Command::Close { session, by: None, reason: None }).map(drop)
    }

    async fn session(
        &self,
        _caller: &(),
        session: SessionId,
        keys: bool,
    ) -> Result<Option<EtcdSession>, EtcdStoreError> {
        let machine = self.led()?;
        let Some(view) = machine.sessions(SessionId(session.0 - 1).into()).next().filter(|it| it.session == session)
        else {
            return Ok(None);
        };
        let leased = |entry: &lockkeeper_machine::Entry| entry.lease.is_some_and(|lease| lease.session == session);
        let all = machine.entries(&KeyRange::default()).filter(|(_, entry)| keys && leased(entry));
        let keys = all.map(|(key, _)| key.clone()).collect();
        Ok(Some(EtcdSession { ttl: view.ttl, remaining_ms: view.remaining_ms, keys }))
    }

    async fn answer_turn(&self, _caller: &()) -> Result<OwnedSemaphorePermit, EtcdStoreError> {
        let turn = Arc::clone(&self.shared.answers).acquire_owned().await;
        turn.map_err(|_| EtcdStoreError::Overloaded)
    }

    async fn sessions(
        &self,
        _caller: &(),
        first: SessionId,
        last: SessionId,
        most: usize,
    ) -> Result<Vec<SessionId>, EtcdStoreError> {
        let machine = self.led()?;
        let all = machine.sessions(SessionId(first.0 - 1).into()).take_while(|view| view.session <= last);
        let mut all: Vec<_> = all.map(|view| (view.opened, view.session)).collect();
        if all.len() > most {
            return Err(EtcdStoreError::TooLarge(format!("there are {} sessions", all.len())));
        }
        all.sort_unstable();
        Ok(all.into_iter().map(|(_, session)| session).collect())
    }

    async fn keep_alive(
        &self,
        _caller: &(),
        renewals: BoxStream<'static, SessionId>,
    ) -> Result<BoxStream<'static, Result<KeptAlive, EtcdStoreError>>, EtcdStoreError> {
        self.led()?;
        let keeping = (self.clone(), self.shared.changed.subscribe(), renewals, Vec::<SessionId>::new());
        let kept = unfold(Some(keeping), |keeping| async move {
            let (store, mut changed, mut renewals, mut known) = keeping?;
            loop {
                if store.led().is_err() {
                    return Some((Err(EtcdStoreError::NoLeader), Some((store, changed, renewals, known))));
                }
                let machine = store.machine();
                if let Some(place) = known.iter().position(|session| !machine.has_session(*session)) {
                    let session = known.remove(place);
                    return Some((Ok(KeptAlive::Ended(session)), Some((store, changed, renewals, known))));
                }
                let session = tokio::select! {
                    session = renewals.next() => session?,
                    _ = changed.changed() => continue,
                };
                if store.state().foreign == Some(session) {
                    return Some((Ok(KeptAlive::Ended(session)), None));
                }
                let lost = store.state().lost_renewals;
                if lost > 0 {
                    store.state().lost_renewals = lost - 1;
                    continue;
                }
                let Reply::Renewed(answers) = store.apply(Command::Renew { sessions: vec![session] }) else {
                    panic!("not an answer to a renewal");
                };
                known.retain(|known| *known != session);
                let kept = match answers.first() {
                    Some(Renewal::Renewed { ttl, .. }) => {
                        known.push(session);
                        KeptAlive::Renewed(session, *ttl)
                    }
                    _ => KeptAlive::Ended(session),
                };
                return Some((Ok(kept), Some((store, changed, renewals, known))));
            }
        });
        Ok(kept.boxed())
    }

    async fn watch(
        &self,
        _caller: &(),
        range: KeyRange,
        from: Option<Revision>,
        with_previous: bool,
    ) -> Result<BoxStream<'static, Result<WatchedEvents, EtcdStoreError>>, EtcdStoreError> {
        let complete = match from {
            Some(from) => Revision(from.0.saturating_sub(1)),
            None => self.led()?.revision(),
        };
        // One event a message, so that tests meet revisions in parts.
        let watching = (self.clone(), self.shared.changed.subscribe(), complete, None::<(Revision, Key)>);
        let events = unfold(Some(watching), move |watching| {
            let range = range.clone();
            async move {
                let (store, mut changed, complete, within) = watching?;
                loop {
                    changed.borrow_and_update();
                    if store.led().is_err() {
                        return Some((Err(EtcdStoreError::NoLeader), None));
                    }
                    if store.state().is_unknown {
                        return Some((Err(EtcdStoreError::Anonymous), None));
                    }
                    let machine = store.copy();
                    let (event, is_part) = match next_event(&machine, &range, complete, within.as_ref()) {
                        Ok(Some(next)) => next,
                        Ok(None) if machine.revision() > complete => {
                            let complete = machine.revision();
                            let told = WatchedEvents { events: Vec::new(), complete };
                            return Some((Ok(told), Some((store, changed, complete, None))));
                        }
                        Ok(None) => {
                            changed.changed().await.ok()?;
                            continue;
                        }
                        Err(error) => return Some((Err(error), None)),
                    };
                    let complete = if is_part { Revision(event.revision.0 - 1) } else { event.revision };
                    let within = is_part.then(|| (event.revision, event.key.clone()));
                    let before = event.before.clone().filter(|_| with_previous);
                    let events = vec![EntryEvent { before, ..event }];
                    return Some((Ok(WatchedEvents { events, complete }), Some((store, changed, complete, within))));
                }
            }
        });
        let began = once(async move { Ok(WatchedEvents { events: Vec::new(), complete }) });
        Ok(began.chain(events).boxed())
    }
}

/// The next event of a range, and whether its revision has more of them.
fn next_event(
    machine: &Machine,
    range: &KeyRange,
    complete: Revision,
    within: Option<&(Revision, Key)>,
) -> Result<Option<(EntryEvent, bool)>, EtcdStoreError> {
    let (revision, key) = within.map_or((complete, None), |(revision, key)| (*revision, Some(key)));
    let after = machine.history().after(revision, key).map_err(past)?;
    let mut after = after.filter(|event| range.contains(&event.key));
    let Some(event) = after.next() else { return Ok(None) };
    let is_part = after.next().is_some_and(|next| next.revision == event.revision);
    Ok(Some((EntryEvent::clone(event), is_part)))
}
