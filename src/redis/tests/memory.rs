//! A store in memory, with deadlines by tokio's clock.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until, timeout_at},
};

use super::redis::{
    ClientConnection, Expiry, LockClaim, NodeAddress, RedisCaller, RedisChange, RedisCommitted, RedisCondition,
    RedisEntry, RedisFound, RedisIdentity, RedisPage, RedisStore, RedisStoreError, RedisTxn, RedisWrite,
};

/// Maximum number of conditions, and of writes, as in the keyspace.
const TXN_MAX: usize = 256;
/// Number of entries that one range may delete.
const DELETED_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) struct Memory(Arc<Mutex<State>>);

type FeedSender = mpsc::Sender<Vec<RedisChange>>;

#[derive(Debug)]
struct State {
    began: Instant,
    revision: u64,
    entries: BTreeMap<Vec<u8>, (RedisEntry, LockClaim)>,
    commits: u64,
    /// The largest number of transactions that were committed together.
    together: usize,
    reads: u64,
    users: BTreeMap<String, String>,
    /// The number of the node that leads.
    leader: u8,
    /// Told when a user is removed.
    users_changed: watch::Sender<()>,
    /// The connections that have proven who they are.
    connections: Vec<Weak<()>>,
    connections_max: usize,
    /// Answers every call so.
    failure: Option<RedisStoreError>,
    /// Each call waits in vain for a leader until its deadline.
    is_leaderless: bool,
    /// The next commit happens, and its answer is lost.
    loses_answer: bool,
    /// The next commit does not happen, and nobody is told so.
    loses_request: bool,
    /// How long a commit takes.
    commit_takes: Duration,
    /// How long a read of a range takes.
    range_takes: Duration,
    /// From this number of commits on, each fails so.
    failure_from: Option<(u64, RedisStoreError)>,
    /// Happens before the next commits, so many times.
    intruder: Option<(RedisTxn, usize)>,
    /// The time of what was committed, as far as it is known. The next read makes the other one known.
    committed_wall_ms: u64,
    unread_wall_ms: u64,
    /// Units that were given to the leader, if this node does not lead.
    is_follower: bool,
    given: Vec<Vec<u8>>,
    /// No transaction may write a key with this part.
    refused_part: Option<String>,
    /// No client may read a key with this part.
    denied_part: Option<String>,
    /// Whether there is no room for another entry.
    is_full: bool,
    /// Feeds, with their ranges.
    feeds: Vec<(std::ops::Range<Vec<u8>>, FeedSender)>,
}

impl Default for Memory {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State {
            began: Instant::now(),
            revision: 0,
            entries: BTreeMap::new(),
            commits: 0,
            together: 0,
            reads: 0,
            users: BTreeMap::new(),
            leader: 2,
            users_changed: watch::Sender::new(()),
            connections: Vec::new(),
            connections_max: usize::MAX,
            failure: None,
            is_leaderless: false,
            loses_answer: false,
            loses_request: false,
            commit_takes: Duration::ZERO,
            range_takes: Duration::ZERO,
            failure_from: None,
            intruder: None,
            committed_wall_ms: 0,
            unread_wall_ms: 0,
            is_follower: false,
            given: Vec::new(),
            refused_part: None,
            denied_part: None,
            is_full: false,
            feeds: Vec::new(),
        })))
    }
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap();
        let now_ms = state.now_ms();
        let over = state.entries.iter().filter(|(_, (entry, _))| entry.deadline_ms.is_some_and(|due| due <= now_ms));
        let over: Vec<_> = over.map(|(key, _)| key.clone()).collect();
        for key in over {
            state.revision += 1;
            state.entries.remove(&key);
            state.tell(&[RedisChange { key, value: None }]);
        }
        state
    }

    /// The largest number of transactions that were committed together.
    pub(super) fn together(&self) -> usize {
        self.state().together
    }

    pub(super) fn commits(&self) -> u64 {
        self.state().commits
    }

    pub(super) fn reads(&self) -> u64 {
        self.state().reads
    }

    pub(super) fn fail(&self, failure: Option<RedisStoreError>) {
        self.state().failure = failure;
    }

    /// From now on each commit takes so long.
    pub(super) fn slow_down(&self, commit_takes: Duration) {
        self.state().commit_takes = commit_takes;
    }

    /// From now on each read of a range takes so long.
    pub(super) fn slow_down_ranges(&self, range_takes: Duration) {
        self.state().range_takes = range_takes;
    }

    /// Has commits fail after so many that do not.
    pub(super) fn fail_after(&self, commits: u64, failure: RedisStoreError) {
        let mut state = self.state();
        state.failure_from = Some((state.commits + commits, failure));
    }

    pub(super) fn lose_the_next_answer(&self) {
        self.state().loses_answer = true;
    }

    pub(super) fn lose_the_next_request(&self) {
        self.state().loses_request = true;
    }

    pub(super) fn intrude(&self, txn: RedisTxn, times: usize) {
        self.state().intruder = Some((txn, times));
    }

    pub(super) fn add_user(&self, name: &str, password: &str) {
        self.state().users.insert(name.to_owned(), password.to_owned());
    }

    pub(super) fn remove_user(&self, name: &str) {
        let mut state = self.state();
        state.users.remove(name);
        state.users_changed.send_replace(());
    }

    pub(super) fn elect(&self, leader: u8) {
        self.state().leader = leader;
    }

    /// From now on there are no more connections with an identity than these.
    pub(super) fn limit_connections(&self, connections_max: usize) {
        self.state().connections_max = connections_max;
    }

    /// From now on each call waits in vain for a leader until its deadline.
    pub(super) fn lose_the_leader(&self) {
        self.state().is_leaderless = true;
    }

    /// From now on another node leads.
    pub(super) fn follow(&self) {
        self.state().is_follower = true;
    }

    /// Another leader has committed something when its clock showed this time. Who reads has applied it.
    pub(super) fn commit_at(&self, wall_ms: u64) {
        self.state().unread_wall_ms = wall_ms;
    }

    pub(super) fn given(&self) -> Vec<Vec<u8>> {
        self.state().given.clone()
    }

    /// From now on keys with this part are too much.
    pub(super) fn refuse_keys_with(&self, part: &str) {
        self.state().refused_part = Some(part.to_owned());
    }

    /// From now on clients may not read keys with this part.
    pub(super) fn deny_keys_with(&self, part: &str) {
        self.state().denied_part = Some(part.to_owned());
    }

    /// Whether there is room for another entry.
    pub(super) fn fill(&self, is_full: bool) {
        self.state().is_full = is_full;
    }

    /// Ends all feeds.
    pub(super) fn end_feeds(&self) {
        self.state().feeds.clear();
    }

    pub(super) fn claim(&self, key: &str) -> Option<LockClaim> {
        self.state().entries.get(key.as_bytes()).map(|(_, claim)| claim.clone())
    }

    pub(super) fn delete(&self, key: &str) {
        let write = RedisWrite::Delete { key: key.as_bytes().to_vec() };
        self.state().commit(RedisTxn { writes: vec![write], ..RedisTxn::default() });
    }

    pub(super) fn put(&self, key: &str, value: &[u8]) {
        let write = RedisWrite::Put {
            key: key.as_bytes().to_vec(),
            value: value.to_vec(),
            expiry: Expiry::None,
            claim: LockClaim::None,
        };
        self.state().commit(RedisTxn { writes: vec![write], ..RedisTxn::default() });
    }
}

impl Memory {
    /// Waits for a leader.
    async fn lead(&self, caller: &RedisCaller) -> Result<(), RedisStoreError> {
        if !self.state().is_leaderless {
            return Ok(());
        }
        sleep_until(caller.deadline).await;
        Err(RedisStoreError::Unavailable("no leader".to_owned()))
    }

    fn commit_now(&self, txn: RedisTxn) -> Result<RedisCommitted, RedisStoreError> {
        let mut state = self.state();
        if let Some(failure) = state.failure.clone() {
            return Err(failure);
        }
        if let Some((from, failure)) = &state.failure_from
            && state.commits >= *from
        {
            return Err(failure.clone());
        }
        if txn.conditions.len() > TXN_MAX || txn.writes.len() > TXN_MAX {
            return Err(RedisStoreError::TooLarge(format!("more than {TXN_MAX} conditions or writes")));
        }
        let is_new =
            |write: &&RedisWrite| matches!(write, RedisWrite::Put { key, .. } if !state.entries.contains_key(key));
        let new = txn.writes.iter().filter(is_new).count();
        let is_removed =
            |write: &&RedisWrite| matches!(write, RedisWrite::Delete { key } if state.entries.contains_key(key));
        if state.is_full && new > txn.writes.iter().filter(is_removed).count() {
            return Err(RedisStoreError::Full("the store".to_owned()));
        }
        for write in &txn.writes {
            if let (RedisWrite::Put { key, .. }, Some(part)) = (write, &state.refused_part)
                && String::from_utf8_lossy(key).contains(part)
            {
                return Err(RedisStoreError::TooLarge("this key".to_owned()));
            }
            if let RedisWrite::DeleteRange { from, to } = write
                && state.entries.range(from.clone()..to.clone()).count() > DELETED_MAX
            {
                return Err(RedisStoreError::TooLarge(format!("more than {DELETED_MAX} entries")));
            }
        }

        state.commits += 1;
        if let Some((intruder, times)) = state.intruder.take() {
            state.commit(intruder.clone());
            if times > 1 {
                state.intruder = Some((intruder, times - 1));
            }
        }
        if std::mem::take(&mut state.loses_request) {
            return Err(RedisStoreError::Unknown("no answer in time".to_owned()));
        }
        let outcome = state.commit(txn);
        if std::mem::take(&mut state.loses_answer) {
            return Err(RedisStoreError::Unknown("no answer in time".to_owned()));
        }
        Ok(outcome)
    }
}

impl State {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap() + 1
    }

    fn tell(&mut self, changes: &[RedisChange]) {
        self.feeds.retain(|(range, feed)| {
            let own: Vec<_> = changes.iter().filter(|change| range.contains(&change.key)).cloned().collect();
            own.is_empty() || feed.try_send(own).is_ok()
        });
    }

    fn ensure_may_use(&self, caller: &RedisCaller, keys: &[Vec<u8>]) -> Result<(), RedisStoreError> {
        let denied_part = self.denied_part.as_ref().filter(|_| !caller.is_port);
        match denied_part.filter(|part| keys.iter().any(|key| String::from_utf8_lossy(key).contains(*part))) {
            Some(part) => Err(RedisStoreError::Denied(format!("no right to {part}"))),
            None => Ok(()),
        }
    }

    fn check(&mut self) -> Result<(), RedisStoreError> {
        self.reads += 1;
        self.committed_wall_ms = self.unread_wall_ms;
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn holds(&self, condition: &RedisCondition) -> bool {
        match condition {
            RedisCondition::Modified { key, revision } => {
                self.entries.get(key).map_or(0, |(entry, _)| entry.modified) == *revision
            }
            RedisCondition::Present { key } => self.entries.contains_key(key),
            RedisCondition::Value { key, value } => {
                self.entries.get(key).is_some_and(|(entry, _)| entry.value == *value)
            }
            RedisCondition::RangeUnwritten { from, to, revision } => {
                self.entries.range(from.clone()..to.clone()).all(|(_, (entry, _))| entry.modified <= *revision)
            }
        }
    }

    fn commit(&mut self, txn: RedisTxn) -> RedisCommitted {
        let now_ms = self.now_ms();
        let succeeded = txn.conditions.iter().all(|condition| self.holds(condition));
        if !succeeded {
            let found = txn.otherwise_get.iter().map(|key| self.entries.get(key).map(|(entry, _)| entry.clone()));
            return RedisCommitted {
                revision: self.revision,
                now_ms,
                found: found.collect(),
                ..RedisCommitted::default()
            };
        }

        let mut deleted = 0;
        if !txn.writes.is_empty() {
            self.revision += 1;
        }
        let mut changes = Vec::new();
        for write in txn.writes {
            let written = match &write {
                RedisWrite::Put { key, value, .. } => {
                    Some(RedisChange { key: key.clone(), value: Some(value.clone()) })
                }
                RedisWrite::Delete { key } => {
                    self.entries.contains_key(key).then(|| RedisChange { key: key.clone(), value: None })
                }
                RedisWrite::Expire { .. } | RedisWrite::DeleteRange { .. } => None,
            };
            changes.extend(written);
            deleted += self.write(write, now_ms);
        }
        self.tell(&changes);
        RedisCommitted { succeeded, revision: self.revision, now_ms, deleted, found: Vec::new() }
    }

    /// Makes a write, and returns the number of entries that it deleted.
    fn write(&mut self, write: RedisWrite, now_ms: u64) -> u64 {
        let modified = self.revision;
        let deadline = |expiry, before: Option<u64>| match expiry {
            Expiry::None => None,
            Expiry::Kept => before,
            Expiry::AfterMs(ms) => Some(now_ms + ms),
            Expiry::AtMs(at_ms) => Some(at_ms),
        };
        match write {
            RedisWrite::Delete { key } => u64::from(self.entries.remove(&key).is_some()),
            RedisWrite::DeleteRange { from, to } => {
                let keys: Vec<_> = self.entries.range(from..to).map(|(key, _)| key.clone()).collect();
                keys.iter().for_each(|key| drop(self.entries.remove(key)));
                keys.len() as u64
            }
            RedisWrite::Expire { key, expiry } => {
                if let Some((entry, _)) = self.entries.get_mut(&key) {
                    entry.deadline_ms = deadline(expiry, entry.deadline_ms);
                    entry.modified = modified;
                }
                0
            }
            RedisWrite::Put { key, value, expiry, claim } => {
                let before = self.entries.get(&key);
                let created = before.map_or(modified, |(entry, _)| entry.created);
                let deadline_ms = deadline(expiry, before.and_then(|(entry, _)| entry.deadline_ms));
                let (token, claim) = match claim {
                    LockClaim::None => (None, LockClaim::None),
                    LockClaim::Kept => {
                        before.map_or((None, LockClaim::None), |(entry, claim)| (entry.token, claim.clone()))
                    }
                    new @ LockClaim::New { .. } => match before {
                        // As in the table: an entry that is put again for the same lock keeps its claim.
                        Some((entry, claim @ LockClaim::New { .. })) => (entry.token, claim.clone()),
                        Some(_) | None => (Some(modified), new),
                    },
                };
                let holder = match &claim {
                    LockClaim::New { holder, .. } => Some(holder.clone()),
                    LockClaim::None | LockClaim::Kept => None,
                };
                let entry = RedisEntry { created, modified, deadline_ms, token, holder, value };
                self.entries.insert(key, (entry, claim));
                0
            }
        }
    }
}

impl RedisStore for Memory {
    fn authenticate(
        &self,
        user: &str,
        password: &[u8],
        connection: &ClientConnection,
    ) -> Result<Option<RedisIdentity>, RedisStoreError> {
        if self.state().users.get(user).is_none_or(|right| right.as_bytes() != password) {
            return Ok(None);
        }
        self.admit(user, connection)?;

        let store = self.clone();
        let name = user.to_owned();
        let mut changes = self.state().users_changed.subscribe();
        let withdrawn = async move {
            while store.state().users.contains_key(&name) {
                let _ = changes.changed().await;
            }
        };
        Ok(Some(RedisIdentity { name: user.to_owned(), withdrawn: Box::pin(withdrawn) }))
    }

    fn admit(&self, _identity: &str, connection: &ClientConnection) -> Result<(), RedisStoreError> {
        let mut state = self.state();
        let new = connection.observe();
        state.connections.retain(|open| open.strong_count() > 0);
        if state.connections.iter().any(|open| open.ptr_eq(&new)) {
            return Ok(());
        }
        if state.connections.len() >= state.connections_max {
            return Err(RedisStoreError::Full("too many".to_owned()));
        }
        state.connections.push(new);
        Ok(())
    }

    fn ensure_may_pop(&self, caller: &RedisCaller, keys: &[Vec<u8>]) -> Result<(), RedisStoreError> {
        self.state().ensure_may_use(caller, keys)
    }

    fn has_users(&self) -> bool {
        !self.state().users.is_empty()
    }

    fn needs_identity(&self) -> bool {
        self.has_users()
    }

    fn has_leader(&self) -> bool {
        self.state().failure.is_none()
    }

    fn nodes(&self) -> Vec<NodeAddress> {
        let leader = self.state().leader;
        let node = |number| NodeAddress { host: format!("10.0.0.{number}"), port: 6379, leads: number == leader };
        (1..=3).map(node).collect()
    }

    fn committed_wall_ms(&self) -> u64 {
        self.state().committed_wall_ms
    }

    async fn get(&self, caller: &RedisCaller, keys: Vec<Vec<u8>>) -> Result<RedisFound, RedisStoreError> {
        self.lead(caller).await?;
        let mut state = self.state();
        state.check()?;
        state.ensure_may_use(caller, &keys)?;
        let entries = keys.iter().map(|key| state.entries.get(key).map(|(entry, _)| entry.clone())).collect();
        Ok(RedisFound { entries, revision: state.revision, now_ms: state.now_ms() })
    }

    async fn list(
        &self,
        _caller: &RedisCaller,
        from: Vec<u8>,
        to: Vec<u8>,
        limit: usize,
    ) -> Result<RedisPage, RedisStoreError> {
        let takes = self.state().range_takes;
        if !takes.is_zero() {
            sleep(takes).await;
        }
        let mut state = self.state();
        state.check()?;
        // Fewer than asked for, so that ranges have more than one page.
        let limit = limit.min(100);
        let range = if from < to { Some(state.entries.range(from..to)) } else { None };
        let shown = |(key, (entry, _)): (&Vec<u8>, &(RedisEntry, LockClaim))| (key.clone(), entry.clone());
        let mut entries: Vec<_> = range.into_iter().flatten().take(limit + 1).map(shown).collect();
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(RedisPage { entries, more, revision: state.revision, now_ms: state.now_ms() })
    }

    async fn count(&self, _caller: &RedisCaller, from: Vec<u8>, to: Vec<u8>) -> Result<u64, RedisStoreError> {
        let mut state = self.state();
        state.check()?;
        Ok(state.entries.range(from..to).count() as u64)
    }

    async fn commit(&self, caller: &RedisCaller, txn: RedisTxn) -> Result<RedisCommitted, RedisStoreError> {
        self.lead(caller).await?;
        let takes = self.state().commit_takes;
        if !takes.is_zero() && timeout_at(caller.deadline, sleep(takes)).await.is_err() {
            return Err(RedisStoreError::Unavailable("the deadline passed".to_owned()));
        }
        let outcome = self.commit_now(txn);
        // The answer takes a while, in which its client may go away.
        tokio::task::yield_now().await;
        outcome
    }

    async fn commit_each(
        &self,
        caller: &RedisCaller,
        txns: Vec<RedisTxn>,
    ) -> Vec<Result<RedisCommitted, RedisStoreError>> {
        let together = self.state().together.max(txns.len());
        self.state().together = together;
        let mut outcomes = Vec::new();
        for txn in txns {
            outcomes.push(self.commit(caller, txn).await);
            if matches!(outcomes.last(), Some(Err(RedisStoreError::Unknown(_)))) {
                break;
            }
        }
        outcomes
    }

    async fn watch(
        &self,
        _caller: &RedisCaller,
        from: Vec<u8>,
        to: Vec<u8>,
    ) -> Result<mpsc::Receiver<Vec<RedisChange>>, RedisStoreError> {
        let mut state = self.state();
        state.check()?;
        let (sender, receiver) = mpsc::channel(1000);
        state.feeds.push((from..to, sender));
        Ok(receiver)
    }

    async fn run_at_leader(
        &self,
        caller: &RedisCaller,
        unit: impl FnOnce() -> Vec<u8> + Send,
    ) -> Result<Option<Vec<u8>>, RedisStoreError> {
        self.lead(caller).await?;
        let mut state = self.state();
        if let Some(failure) = state.failure.clone() {
            return Err(failure);
        }
        let is_follower = state.is_follower;
        state.given.extend(is_follower.then(unit));
        Ok(None)
    }
}
