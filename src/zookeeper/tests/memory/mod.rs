//! A store in memory with several nodes: one state that all agree on, and for each node how much of it is applied there.

mod node;
mod state;
mod txns;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{AppliedStep, ZookeeperEntry, ZookeeperStoreError, ZookeeperTxn};
pub(super) use node::MemoryNode;
use state::MemoryState;

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
