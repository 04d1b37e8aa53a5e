//! One node of the store in memory.

use std::sync::Weak;

use tokio::{
    sync::mpsc,
    time::{Duration, Instant},
};

use super::{
    MemoryAll, MemoryCluster,
    state::{MemorySession, MemoryView},
    txns::{TXN_BYTES_MAX, TXN_MAX, VALUE_BYTES_MAX, keys, puts_twice, txn_bytes},
};
use crate::{
    AppliedFeed, AppliedStep, AppliedZnodes, AttachOutcome, CloseOutcome, NodeRole, NumberedSession, SessionStart,
    TxnRefusal, ZookeeperCaller, ZookeeperCommitted, ZookeeperIdentity, ZookeeperStore, ZookeeperStoreError,
    ZookeeperTxn, ZookeeperWrite,
};

/// One node.
#[derive(Clone)]
pub(in super::super) struct MemoryNode {
    pub(super) cluster: MemoryCluster,
    pub(super) index: usize,
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
