//! A store in memory with several nodes: one state that all agree on, and for each node how much of it is applied there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use tokio::{
    sync::{mpsc, watch},
    time::{Duration, Instant},
};

use super::zookeeper::{
    AppliedFeed, AppliedStep, AppliedZnodes, AttachOutcome, ChildCounts, CloseOutcome, NodeRole, NumberedSession,
    SessionStart, TxnRefusal, WriteRefusal, ZookeeperCaller, ZookeeperChange, ZookeeperChangeKind, ZookeeperCommitted,
    ZookeeperEntry, ZookeeperIdentity, ZookeeperStore, ZookeeperStoreError, ZookeeperTxn, ZookeeperWrite,
};

/// Maximum number of conditions, and of writes.
const TXN_MAX: usize = 1_024;
/// Maximum bytes of keys and values that a transaction has, and of values that its refusal shows.
const TXN_BYTES_MAX: usize = 1_536 << 10;
/// Maximum bytes of a value.
const VALUE_BYTES_MAX: usize = 400 << 10;

#[derive(Clone)]
struct MemoryEntry {
    stored: ZookeeperEntry,
    parent: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
struct MemorySession {
    number: u64,
    ttl_ms: u64,
    deadline: Instant,
    owner: Option<String>,
}

/// A state, as nodes apply it.
#[derive(Clone, Default)]
struct MemoryState {
    revision: u64,
    entries: BTreeMap<Vec<u8>, MemoryEntry>,
    sessions: BTreeMap<u64, MemorySession>,
}

#[derive(Default)]
struct MemoryMember {
    /// Number of steps that are applied.
    applied: usize,
    /// Whether it applies nothing further.
    is_held: bool,
    /// Whether its feeds are told nothing, though it applies.
    is_silent: bool,
    /// Steps that its feeds are to be told.
    untold: Vec<AppliedStep>,
    /// Whether it has lost the leader.
    is_cut_off: bool,
    feeds: Vec<mpsc::Sender<AppliedStep>>,
}

struct MemoryAll {
    now: MemoryState,
    /// The state after each step, and what the feeds are told of it.
    steps: Vec<(MemoryState, AppliedStep)>,
    members: Vec<MemoryMember>,
    fails_next: Option<ZookeeperStoreError>,
    /// The next commit happens, and its answer is lost.
    loses_answer: bool,
    refuses_early: bool,
    /// Happens before the next commits.
    intruders: Vec<ZookeeperTxn>,
    /// The largest number of transactions that were committed together.
    together: usize,
    users: BTreeMap<String, String>,
    /// The open connections of each identity, and how many it may have.
    open: BTreeMap<String, Vec<Weak<()>>>,
    connections_max: usize,
    /// How many sessions each may own.
    sessions_max: usize,
    /// Keys with this part may not be read or written.
    forbidden_part: Option<String>,
    commits: u64,
    /// Entries of ranges that were shown.
    shown: AtomicU64,
}

/// All nodes.
#[derive(Clone)]
pub(super) struct MemoryCluster {
    all: Arc<Mutex<MemoryAll>>,
    moved: watch::Sender<u64>,
}

/// One node.
#[derive(Clone)]
pub(super) struct MemoryNode {
    cluster: MemoryCluster,
    index: usize,
}

impl MemoryCluster {
    pub(super) fn new(members: usize) -> Self {
        let all = MemoryAll {
            now: MemoryState::default(),
            steps: vec![(MemoryState::default(), AppliedStep::default())],
            members: (0..members).map(|_| MemoryMember { applied: 1, ..MemoryMember::default() }).collect(),
            fails_next: None,
            loses_answer: false,
            refuses_early: false,
            intruders: Vec::new(),
            together: 0,
            users: BTreeMap::new(),
            open: BTreeMap::new(),
            connections_max: usize::MAX,
            sessions_max: usize::MAX,
            forbidden_part: None,
            commits: 0,
            shown: AtomicU64::new(0),
        };
        Self { all: Arc::new(Mutex::new(all)), moved: watch::Sender::new(0) }
    }

    pub(super) fn node(&self, index: usize) -> MemoryNode {
        MemoryNode { cluster: self.clone(), index }
    }

    fn all(&self) -> MutexGuard<'_, MemoryAll> {
        self.all.lock().unwrap()
    }

    /// Lets all nodes that are not held apply what there is.
    fn spread(&self, all: &mut MemoryAll) {
        for member in &mut all.members {
            while !member.is_held && member.applied < all.steps.len() {
                let step = all.steps[member.applied].1.clone();
                member.applied += 1;
                member.untold.push(step);
            }
            if !member.is_silent {
                for step in std::mem::take(&mut member.untold) {
                    member.feeds.retain(|feed| feed.try_send(step.clone()).is_ok());
                }
            }
        }
        self.moved.send_modify(|moved| *moved += 1);
    }

    fn push(&self, all: &mut MemoryAll, state: MemoryState, step: AppliedStep) {
        all.now = state.clone();
        all.steps.push((state, step));
        self.spread(all);
    }

    /// Ends the sessions whose time is over.
    pub(super) fn tick(&self) {
        let mut all = self.all();
        let now = Instant::now();
        let over = all.now.sessions.iter().filter(|(_, session)| session.deadline <= now);
        let over: Vec<_> = over.map(|(session, _)| *session).collect();
        for session in over {
            self.end(&mut all, session);
        }
    }

    fn end(&self, all: &mut MemoryAll, session: u64) {
        let mut state = all.now.clone();
        state.revision += 1;
        state.sessions.remove(&session);
        let owned = state.entries.iter().filter(|(_, entry)| entry.stored.owner == Some(session));
        let owned: Vec<_> = owned.map(|(key, _)| key.clone()).collect();
        let changes = owned.iter().filter_map(|key| state.delete(key)).collect();
        let step = AppliedStep { revision: state.revision, changes, over: vec![session], ..AppliedStep::default() };
        self.push(all, state, step);
    }

    /// Ends a session as its deadline or an operator does.
    pub(super) fn expire(&self, session: u64) {
        self.end(&mut self.all(), session);
    }

    /// From now on this node applies nothing, until it is released.
    pub(super) fn hold(&self, index: usize) {
        self.all().members[index].is_held = true;
    }

    pub(super) fn release(&self, index: usize) {
        let mut all = self.all();
        all.members[index].is_held = false;
        self.spread(&mut all);
    }

    /// From now on this node applies, and its feeds are told nothing, until they are told again.
    pub(super) fn set_silent(&self, index: usize, is_silent: bool) {
        let mut all = self.all();
        all.members[index].is_silent = is_silent;
        self.spread(&mut all);
    }

    /// From now on refusals are answered before the node has applied the state in which they were judged.
    pub(super) fn refuse_early(&self) {
        self.all().refuses_early = true;
    }

    pub(super) fn cut_off(&self, index: usize) {
        self.all().members[index].is_cut_off = true;
    }

    /// Ends the feeds of a node, as the installation of a snapshot does.
    pub(super) fn end_feeds(&self, index: usize) {
        self.all().members[index].feeds.clear();
    }

    pub(super) fn fail_next(&self, failure: ZookeeperStoreError) {
        self.all().fails_next = Some(failure);
    }

    pub(super) fn lose_the_next_answer(&self) {
        self.all().loses_answer = true;
    }

    pub(super) fn intrude(&self, txns: Vec<ZookeeperTxn>) {
        self.all().intruders = txns;
    }

    pub(super) fn add_user(&self, name: &str, password: &str) {
        self.all().users.insert(name.to_owned(), password.to_owned());
    }

    pub(super) fn withdraw_user(&self, name: &str) {
        self.all().users.insert(name.to_owned(), String::new());
        self.moved.send_modify(|moved| *moved += 1);
    }

    pub(super) fn limit_connections(&self, most: usize) {
        self.all().connections_max = most;
    }

    pub(super) fn limit_sessions(&self, most: usize) {
        self.all().sessions_max = most;
    }

    /// The owners of all sessions.
    pub(super) fn owners(&self) -> Vec<Option<String>> {
        self.all().now.sessions.values().map(|session| session.owner.clone()).collect()
    }

    pub(super) fn forbid(&self, part: &str) {
        self.all().forbidden_part = Some(part.to_owned());
    }

    pub(super) fn together(&self) -> usize {
        self.all().together
    }

    pub(super) fn commits(&self) -> u64 {
        self.all().commits
    }

    pub(super) fn shown(&self) -> u64 {
        self.all().shown.load(SeqCst)
    }

    pub(super) fn revision(&self) -> u64 {
        self.all().now.revision
    }

    pub(super) fn stored(&self, key: &[u8]) -> Option<ZookeeperEntry> {
        self.all().now.entries.get(key).map(|entry| entry.stored.clone())
    }

    /// When a session ends if nothing is heard of its client.
    pub(super) fn deadline(&self, session: u64) -> Instant {
        self.all().now.sessions[&session].deadline
    }

    pub(super) fn sessions(&self) -> BTreeSet<u64> {
        self.all().now.sessions.keys().copied().collect()
    }
}

impl MemoryState {
    fn delete(&mut self, key: &[u8]) -> Option<ZookeeperChange> {
        let entry = self.entries.remove(key)?;
        let above = entry.parent.and_then(|parent| self.entries.get_mut(&parent));
        let parent = above.map(|above| {
            above.stored.children.live -= 1;
            above.stored.children.changed = self.revision;
            Arc::clone(&above.stored.value)
        });
        let kind = ZookeeperChangeKind::Deleted;
        let before = Some(entry.stored.value);
        Some(ZookeeperChange { revision: self.revision, key: key.to_vec(), kind, before, after: None, parent })
    }

    fn write(
        &mut self,
        write: &ZookeeperWrite,
        changes: &mut Vec<ZookeeperChange>,
    ) -> Result<Option<Vec<u8>>, WriteRefusal> {
        let revision = self.revision;
        match write {
            ZookeeperWrite::Delete { key } => {
                if self.entries.get(key).is_some_and(|entry| entry.stored.children.live > 0) {
                    return Err(WriteRefusal::HasChildren);
                }
                changes.extend(self.delete(key));
                Ok(None)
            }
            ZookeeperWrite::Put { key, value } => {
                let new = ZookeeperEntry {
                    created: revision,
                    modified: revision,
                    owner: None,
                    children: ChildCounts::default(),
                    value: Arc::clone(value),
                };
                let before = self.entries.get(key).map(|entry| Arc::clone(&entry.stored.value));
                let entry =
                    self.entries.entry(key.clone()).or_insert(MemoryEntry { stored: new.clone(), parent: None });
                entry.stored.modified = revision;
                entry.stored.value = Arc::clone(value);
                let is_new = entry.stored.created == revision;
                let kind = if is_new {
                    ZookeeperChangeKind::Created { is_again: false }
                } else {
                    ZookeeperChangeKind::Changed
                };
                let after = Some(Arc::clone(value));
                changes.push(ZookeeperChange { revision, key: key.clone(), kind, before, after, parent: None });
                Ok(None)
            }
            ZookeeperWrite::CreateChild { parent, key, is_numbered, value, owner } => {
                let above = self.entries.get_mut(parent).ok_or(WriteRefusal::NoParent)?;
                let mut key = key.clone();
                if *is_numbered {
                    key.extend_from_slice(format!("{:010}", above.stored.children.made).as_bytes());
                }
                if above.stored.owner.is_some() {
                    return Err(WriteRefusal::ParentEnds);
                }
                if self.entries.contains_key(&key) {
                    return Err(WriteRefusal::Exists);
                }

                let above = self.entries.get_mut(parent).unwrap();
                above.stored.children.made += 1;
                above.stored.children.live += 1;
                above.stored.children.changed = revision;
                let parent_value = Some(Arc::clone(&above.stored.value));
                let stored = ZookeeperEntry {
                    created: revision,
                    modified: revision,
                    owner: *owner,
                    children: ChildCounts::default(),
                    value: Arc::clone(value),
                };
                // One change tells of both, as the event of an entry that had another one before it.
                let told = changes.iter().position(|change| change.key == key);
                let before = told.map(|told| changes.remove(told)).and_then(|change| change.before);
                let is_again = before.is_some();
                self.entries.insert(key.clone(), MemoryEntry { stored, parent: Some(parent.clone()) });
                let kind = ZookeeperChangeKind::Created { is_again };
                let after = Some(Arc::clone(value));
                changes.push(ZookeeperChange { revision, key: key.clone(), kind, before, after, parent: parent_value });
                Ok(Some(key))
            }
        }
    }

    /// Judges a transaction, and does it.
    fn run(&mut self, txn: &ZookeeperTxn) -> Result<Ran, TxnRefusal> {
        for (index, condition) in txn.conditions.iter().enumerate() {
            let modified = self.entries.get(&condition.key).map_or(0, |entry| entry.stored.modified);
            if modified != condition.modified {
                return Err(TxnRefusal::Condition(index));
            }
        }
        if !txn.writes.is_empty() {
            self.revision += 1;
        }
        let mut changes = Vec::new();
        let mut created = Vec::new();
        for (index, write) in txn.writes.iter().enumerate() {
            let child = self.write(write, &mut changes).map_err(|reason| TxnRefusal::Write { index, reason })?;
            created.push(child);
        }
        Ok((changes, created))
    }
}

/// Whether a key is put twice: the store would not take it.
fn puts_twice(txn: &ZookeeperTxn) -> bool {
    let put = |write: &ZookeeperWrite| match write {
        ZookeeperWrite::CreateChild { key, is_numbered: false, .. } | ZookeeperWrite::Put { key, .. } => {
            Some(key.clone())
        }
        ZookeeperWrite::CreateChild { .. } | ZookeeperWrite::Delete { .. } => None,
    };
    let mut seen = BTreeSet::new();
    txn.writes.iter().filter_map(put).any(|key| !seen.insert(key))
}

/// Bytes of its keys and values, as the store counts them.
fn txn_bytes(txn: &ZookeeperTxn) -> usize {
    let written = txn.writes.iter().map(|write| match write {
        ZookeeperWrite::CreateChild { parent, key, value, .. } => parent.len() + key.len() + value.len(),
        ZookeeperWrite::Put { key, value } => key.len() + value.len(),
        ZookeeperWrite::Delete { key } => key.len(),
    });
    let compared = txn.conditions.iter().map(|condition| condition.key.len());
    written.chain(compared).chain(txn.otherwise_get.iter().map(Vec::len)).sum()
}

fn keys(txn: &ZookeeperTxn) -> impl Iterator<Item = &Vec<u8>> {
    txn.writes.iter().map(|write| match write {
        ZookeeperWrite::CreateChild { key, .. } | ZookeeperWrite::Put { key, .. } | ZookeeperWrite::Delete { key } => {
            key
        }
    })
}

/// Changes, and the children that were made by each write.
type Ran = (Vec<ZookeeperChange>, Vec<Option<Vec<u8>>>);

struct MemoryView<'a>(&'a MemoryState, &'a AtomicU64);

impl AppliedZnodes for MemoryView<'_> {
    fn revision(&self) -> u64 {
        self.0.revision
    }

    fn get(&self, key: &[u8]) -> Option<ZookeeperEntry> {
        self.0.entries.get(key).map(|entry| entry.stored.clone())
    }

    fn range(&self, from: &[u8], to: &[u8], show: &mut dyn FnMut(&[u8], &ZookeeperEntry) -> bool) {
        for (key, entry) in self.0.entries.range(from.to_vec()..to.to_vec()) {
            self.1.fetch_add(1, SeqCst);
            if !show(key, &entry.stored) {
                break;
            }
        }
    }

    fn keys(&self, from: &[u8], to: &[u8], show: &mut dyn FnMut(&[u8]) -> bool) {
        self.range(from, to, &mut |key, _| show(key));
    }

    fn owned_by(&self, session: u64) -> Vec<Vec<u8>> {
        let entries = self.0.entries.iter();
        entries.filter(|(_, entry)| entry.stored.owner == Some(session)).map(|(key, _)| key.clone()).collect()
    }
}

impl MemoryNode {
    /// Waits until this node has applied so many steps.
    async fn applied_steps(&self, steps: usize) -> Result<(), ZookeeperStoreError> {
        let mut moved = self.cluster.moved.subscribe();
        let waited = tokio::time::timeout(Duration::from_secs(60), async {
            while self.cluster.all().members[self.index].applied < steps {
                moved.changed().await.unwrap();
            }
        });
        waited.await.map_err(|_| ZookeeperStoreError::Unknown("this node does not apply".to_owned()))
    }

    fn start(session: u64, all: &MemoryAll) -> SessionStart {
        let MemorySession { number, ttl_ms, .. } = all.now.sessions[&session];
        SessionStart { attached: NumberedSession { session, number }, ttl_ms, revision: all.now.revision }
    }
}

impl ZookeeperStore for MemoryNode {
    async fn open(
        &self,
        caller: &ZookeeperCaller,
        session: u64,
        ttl_ms: u64,
    ) -> Result<SessionStart, ZookeeperStoreError> {
        let (start, steps) = {
            let mut all = self.cluster.all();
            let mut state = all.now.clone();
            state.revision += 1;
            let deadline = Instant::now() + Duration::from_millis(ttl_ms);
            state
                .sessions
                .insert(session, MemorySession { number: 1, ttl_ms, deadline, owner: caller.identity.clone() });
            let step = AppliedStep { revision: state.revision, ..AppliedStep::default() };
            self.cluster.push(&mut all, state, step);
            (Self::start(session, &all), all.steps.len())
        };
        self.applied_steps(steps).await?;
        Ok(start)
    }

    async fn attach(&self, _: &ZookeeperCaller, session: u64) -> Result<AttachOutcome, ZookeeperStoreError> {
        self.cluster.tick();
        let (outcome, steps) = {
            let mut all = self.cluster.all();
            let mut state = all.now.clone();
            let outcome = if let Some(known) = state.sessions.get_mut(&session) {
                state.revision += 1;
                known.number += 1;
                known.deadline = Instant::now() + Duration::from_millis(known.ttl_ms);
                let attached = vec![NumberedSession { session, number: known.number }];
                let step = AppliedStep { revision: state.revision, attached, ..AppliedStep::default() };
                self.cluster.push(&mut all, state, step);
                AttachOutcome::Attached(Self::start(session, &all))
            } else {
                AttachOutcome::Over { revision: state.revision }
            };
            (outcome, all.steps.len())
        };
        self.applied_steps(steps).await?;
        Ok(outcome)
    }

    async fn set_owner(&self, caller: &ZookeeperCaller, session: u64) -> Result<(), ZookeeperStoreError> {
        let mut all = self.cluster.all();
        let owned = all.now.sessions.values().filter(|session| session.owner == caller.identity).count();
        let most = all.sessions_max;
        let Some(known) = all.now.sessions.get_mut(&session).filter(|session| session.owner.is_none()) else {
            return Ok(());
        };
        if owned >= most {
            return Err(ZookeeperStoreError::Full(format!("{:?} has {owned} sessions", caller.identity)));
        }
        known.owner.clone_from(&caller.identity);
        Ok(())
    }

    async fn close(&self, _: &ZookeeperCaller, attached: NumberedSession) -> Result<CloseOutcome, ZookeeperStoreError> {
        let (outcome, steps) = {
            let mut all = self.cluster.all();
            let number = all.now.sessions.get(&attached.session).map(|session| session.number);
            let outcome = match number {
                Some(number) if number != attached.number => CloseOutcome::Moved { revision: all.now.revision },
                Some(_) => {
                    self.cluster.end(&mut all, attached.session);
                    CloseOutcome::Over { revision: all.now.revision }
                }
                None => CloseOutcome::Over { revision: all.now.revision },
            };
            (outcome, all.steps.len())
        };
        self.applied_steps(steps).await?;
        Ok(outcome)
    }

    fn note_alive(&self, attached: NumberedSession) {
        let mut all = self.cluster.all();
        if let Some(session) = all.now.sessions.get_mut(&attached.session) {
            session.deadline = Instant::now() + Duration::from_millis(session.ttl_ms);
        }
    }

    fn vouches_for(&self, attached: NumberedSession) -> bool {
        let all = self.cluster.all();
        let member = &all.members[self.index];
        let known = all.steps[member.applied - 1].0.sessions.get(&attached.session);
        !member.is_cut_off && known.is_none_or(|session| session.number <= attached.number)
    }

    async fn vouch(&self, attached: NumberedSession) -> bool {
        self.vouches_for(attached)
    }

    fn applied<T>(&self, look: impl FnOnce(&dyn AppliedZnodes) -> T) -> T {
        let all = self.cluster.all();
        look(&MemoryView(&all.steps[all.members[self.index].applied - 1].0, &all.shown))
    }

    fn may_read(&self, _: &ZookeeperCaller, key: &[u8]) -> bool {
        let all = self.cluster.all();
        all.forbidden_part.as_ref().is_none_or(|part| !String::from_utf8_lossy(key).contains(part))
    }

    async fn catch_up(&self, _: &ZookeeperCaller) -> Result<u64, ZookeeperStoreError> {
        let (revision, steps) = {
            let all = self.cluster.all();
            (all.now.revision, all.steps.len())
        };
        self.applied_steps(steps).await?;
        Ok(revision)
    }

    async fn commit(
        &self,
        _: &ZookeeperCaller,
        attached: Option<NumberedSession>,
        txn: ZookeeperTxn,
    ) -> Result<ZookeeperCommitted, ZookeeperStoreError> {
        let (verdict, steps, is_lost) = {
            let mut all = self.cluster.all();
            if let Some(failure) = all.fails_next.take() {
                return Err(failure);
            }
            assert!(!puts_twice(&txn), "a key is put twice: {txn:?}");
            let is_forbidden = |part: &String| keys(&txn).any(|key| String::from_utf8_lossy(key).contains(part));
            if all.forbidden_part.as_ref().is_some_and(is_forbidden) {
                return Err(ZookeeperStoreError::Denied("these keys are forbidden".to_owned()));
            }
            let is_large = |write: &ZookeeperWrite| match write {
                ZookeeperWrite::CreateChild { value, .. } | ZookeeperWrite::Put { value, .. } => {
                    value.len() > VALUE_BYTES_MAX
                }
                ZookeeperWrite::Delete { .. } => false,
            };
            let is_long =
                txn.conditions.len() > TXN_MAX || txn.writes.len() > TXN_MAX || txn_bytes(&txn) > TXN_BYTES_MAX;
            if is_long || txn.writes.iter().any(is_large) {
                return Err(ZookeeperStoreError::TooLarge("too large".to_owned()));
            }
            if let Some(intruder) = all.intruders.pop() {
                let mut state = all.now.clone();
                if let Ok((changes, _)) = state.run(&intruder) {
                    let step = AppliedStep { revision: state.revision, changes, ..AppliedStep::default() };
                    self.cluster.push(&mut all, state, step);
                }
            }

            all.commits += 1;
            let verdict = self.judge(&mut all, attached, &txn);
            let shown_bytes = verdict.found.iter().flatten().map(|stored| stored.value.len()).sum::<usize>();
            if shown_bytes > TXN_BYTES_MAX {
                return Err(ZookeeperStoreError::TooLarge("it shows too much".to_owned()));
            }
            if verdict.refusal.is_some() && all.refuses_early {
                return Ok(verdict);
            }
            (verdict, all.steps.len(), std::mem::take(&mut all.loses_answer))
        };
        self.applied_steps(steps).await?;
        if is_lost { Err(ZookeeperStoreError::Unknown("no answer in time".to_owned())) } else { Ok(verdict) }
    }

    async fn commit_each(
        &self,
        caller: &ZookeeperCaller,
        attached: NumberedSession,
        txns: Vec<ZookeeperTxn>,
    ) -> Vec<Result<ZookeeperCommitted, ZookeeperStoreError>> {
        let together = self.cluster.all().together.max(txns.len());
        self.cluster.all().together = together;
        let mut verdicts = Vec::new();
        for txn in txns {
            verdicts.push(self.commit(caller, Some(attached), txn).await);
            if matches!(verdicts.last(), Some(Err(_))) {
                break;
            }
        }
        verdicts
    }

    async fn feed(&self) -> Result<AppliedFeed, ZookeeperStoreError> {
        let mut all = self.cluster.all();
        let applied = all.members[self.index].applied;
        let after = all.steps[applied - 1].0.revision;
        all.members[self.index].untold.clear();
        let (feed, steps) = mpsc::channel(100_000);
        all.members[self.index].feeds.push(feed);
        Ok(AppliedFeed { after, steps })
    }

    async fn secret(&self) -> Result<Vec<u8>, ZookeeperStoreError> {
        Ok(b"a secret of the tests".to_vec())
    }

    fn authenticate(
        &self,
        user: &str,
        password: &str,
        connection: Weak<()>,
    ) -> Result<Option<ZookeeperIdentity>, ZookeeperStoreError> {
        if self.cluster.all().users.get(user).is_none_or(|right| *right != password) {
            return Ok(None);
        }
        self.admit(user, connection)?;

        let cluster = self.cluster.clone();
        let identity = user.to_owned();
        let user = identity.clone();
        let password = password.to_owned();
        let withdrawn = async move {
            let mut moved = cluster.moved.subscribe();
            while cluster.all().users.get(&user) == Some(&password) {
                let _ = moved.changed().await;
            }
        };
        Ok(Some(ZookeeperIdentity { name: identity, withdrawn: Box::pin(withdrawn) }))
    }

    fn admit(&self, identity: &str, connection: Weak<()>) -> Result<(), ZookeeperStoreError> {
        let mut all = self.cluster.all();
        let most = all.connections_max;
        let open = all.open.entry(identity.to_owned()).or_default();
        open.retain(|open| open.strong_count() > 0);
        if open.len() >= most {
            return Err(ZookeeperStoreError::Full(format!("{identity} has {most} connections")));
        }
        open.push(connection);
        Ok(())
    }

    fn needs_identity(&self) -> bool {
        !self.cluster.all().users.is_empty()
    }

    fn role(&self) -> NodeRole {
        let all = self.cluster.all();
        match (all.members[self.index].is_cut_off, all.members.len(), self.index) {
            (true, _, _) => NodeRole::Looking,
            (false, 1, _) => NodeRole::Standalone,
            (false, _, 0) => NodeRole::Leader,
            (false, _, _) => NodeRole::Follower,
        }
    }
}

impl MemoryNode {
    fn judge(&self, all: &mut MemoryAll, attached: Option<NumberedSession>, txn: &ZookeeperTxn) -> ZookeeperCommitted {
        let revision = all.now.revision;
        let refused =
            |refusal| ZookeeperCommitted { revision, refusal: Some(refusal), ..ZookeeperCommitted::default() };
        if let Some(attached) = attached {
            match all.now.sessions.get(&attached.session) {
                None => return refused(TxnRefusal::SessionOver),
                Some(session) if session.number != attached.number => return refused(TxnRefusal::SessionMoved),
                Some(_) => {}
            }
        }

        let mut state = all.now.clone();
        match state.run(txn) {
            Ok((changes, created)) => {
                let revision = state.revision;
                if !txn.writes.is_empty() {
                    let step = AppliedStep { revision, changes, ..AppliedStep::default() };
                    self.cluster.push(all, state, step);
                }
                ZookeeperCommitted { revision, created, refusal: None, found: Vec::new() }
            }
            Err(refusal) => {
                let found = txn.otherwise_get.iter();
                let found = found.map(|key| all.now.entries.get(key).map(|entry| entry.stored.clone())).collect();
                ZookeeperCommitted { found, ..refused(refusal) }
            }
        }
    }
}
