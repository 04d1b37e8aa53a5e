//! A store in memory, with leases by tokio's clock.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use http::Extensions;
use tokio::time::Instant;

use crate::{
    AtEnd, DynamoCaller, DynamoCommitted, DynamoEntry, DynamoLease, DynamoPage, DynamoStore, DynamoStoreError,
    DynamoTxn, DynamoWrite,
};

#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Arc<Mutex<State>>);

/// The end of a lease, and its length.
type Granted = Option<(Instant, AtEnd, Duration)>;

#[derive(Debug, Default)]
struct State {
    revision: u64,
    entries: BTreeMap<Vec<u8>, (DynamoEntry, Granted)>,
    commits: u64,
    /// The next commit happens, and its answer is lost.
    loses_answer: bool,
    overloaded: bool,
    /// Only clients with an identity, and the endpoint, are served.
    has_policy: bool,
    refuses_leases: bool,
    /// The one that may have connections.
    admitted: Option<String>,
    /// There is no room for what is remembered for a time.
    is_memory_full: bool,
    /// Happens before the next commit.
    intruder: Option<DynamoTxn>,
}

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap();
        let now = Instant::now();
        state.entries.retain(|_, (entry, lease)| {
            let over = lease.is_some_and(|(deadline, ..)| deadline <= now);
            entry.expired |= over;
            entry.leased &= !over;
            !(over && lease.is_some_and(|(_, at_end, _)| at_end == AtEnd::Delete))
        });
        state
    }

    pub(super) fn lose_the_next_answer(&self) {
        self.state().loses_answer = true;
    }

    pub(super) fn overload(&self, overloaded: bool) {
        self.state().overloaded = overloaded;
    }

    /// From now on callers without an identity are refused, as with TLS or a policy.
    pub(super) fn obey_policy(&self) {
        self.state().has_policy = true;
    }

    pub(super) fn fill_memory(&self) {
        self.state().is_memory_full = true;
    }

    pub(super) fn intrude(&self, txn: DynamoTxn) {
        self.state().intruder = Some(txn);
    }

    pub(super) fn commits(&self) -> u64 {
        self.state().commits
    }

    pub(super) fn keys(&self) -> Vec<String> {
        self.state().entries.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// The key of the item whose key ends so.
    pub(super) fn item_key(&self, end: &str) -> Vec<u8> {
        let state = self.state();
        let is_item = |key: &&Vec<u8>| {
            let key = String::from_utf8_lossy(key);
            key.contains("/item/") && key.ends_with(end)
        };
        state.entries.keys().find(is_item).expect("it is there").clone()
    }

    /// As an operator ends them.
    pub(super) fn revoke_leases(&self) {
        self.end_leases();
        for (entry, _) in self.state().entries.values_mut() {
            entry.revoked = entry.expired;
        }
    }

    /// Those of items; the answers that are kept stay.
    pub(super) fn end_leases(&self) {
        self.end_leases_of("");
    }

    /// Those of items whose keys end so.
    pub(super) fn end_leases_of(&self, end: &str) {
        let mut state = self.state();
        for (key, (_, lease)) in &mut state.entries {
            let key = String::from_utf8_lossy(key);
            if key.contains("/item/")
                && key.ends_with(end)
                && let Some((deadline, ..)) = lease
            {
                *deadline = Instant::now();
            }
        }
    }

    /// From now on no other access key may have a connection.
    pub(super) fn admit_only(&self, access_key: &str) {
        self.state().admitted = Some(access_key.to_owned());
    }

    /// From now on there is no room for another lease.
    pub(super) fn refuse_leases(&self) {
        self.state().refuses_leases = true;
    }
}

impl State {
    fn check(&self, caller: &DynamoCaller) -> Result<(), DynamoStoreError> {
        if self.has_policy && caller.identity.is_none() && !caller.is_port {
            return Err(DynamoStoreError::Denied("this node serves no anonymous callers".to_owned()));
        }
        Ok(())
    }

    fn commit(&mut self, txn: DynamoTxn) -> DynamoCommitted {
        let is_renewed = |write: &DynamoWrite| match write {
            DynamoWrite::Put { key, lease: DynamoLease::Renewed, .. } => {
                self.entries.get(key).is_some_and(|(entry, lease)| lease.is_some() && !entry.expired)
            }
            DynamoWrite::Put { .. } | DynamoWrite::Delete { .. } => true,
        };
        let renewed = txn.writes.iter().all(is_renewed);
        let modified = |key| self.entries.get(key).map_or(0, |(entry, _): &(DynamoEntry, _)| entry.modified);
        let succeeded = txn.expected.iter().all(|(key, expected)| modified(key) == *expected) && renewed;
        if succeeded && !txn.writes.is_empty() {
            self.revision += 1;
            for write in txn.writes {
                self.write(write);
            }
        }
        DynamoCommitted { succeeded, revision: self.revision }
    }

    fn write(&mut self, write: DynamoWrite) {
        let modified = self.revision;
        match write {
            DynamoWrite::Delete { key } => {
                self.entries.remove(&key);
            }
            DynamoWrite::Put { key, value, lease } => {
                let before = self.entries.get(&key);
                let (created, version) = before.map_or((modified, 0), |(entry, _)| (entry.created, entry.version));
                let kept = before.map(|(entry, lease)| (entry.expired, *lease));
                let (expired, lease) = match lease {
                    DynamoLease::None => (false, None),
                    DynamoLease::Kept => kept.unwrap_or((false, None)),
                    DynamoLease::Renewed => {
                        let lease = kept.and_then(|(_, lease)| lease);
                        (false, lease.map(|(_, at_end, ttl)| (Instant::now() + ttl, at_end, ttl)))
                    }
                    DynamoLease::Granted { ttl_ms, at_end, .. } => {
                        let ttl = Duration::from_millis(ttl_ms);
                        (false, Some((Instant::now() + ttl, at_end, ttl)))
                    }
                    DynamoLease::Memory { ttl_ms, .. } => {
                        let ttl = Duration::from_millis(ttl_ms);
                        (false, Some((Instant::now() + ttl, AtEnd::Delete, ttl)))
                    }
                };
                let version = version + 1;
                let leased = lease.is_some() && !expired;
                let entry = DynamoEntry { created, modified, version, leased, expired, revoked: false, value };
                self.entries.insert(key, (entry, lease));
            }
        }
    }
}

impl DynamoStore for Memory {
    fn admit(&self, access_key: &str, _: &Extensions) -> Result<(), DynamoStoreError> {
        if self.state().admitted.as_ref().is_none_or(|admitted| admitted == access_key) {
            return Ok(());
        }
        Err(DynamoStoreError::Overloaded("too many connections".to_owned()))
    }

    async fn get(
        &self,
        caller: &DynamoCaller,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<DynamoEntry>>, DynamoStoreError> {
        let state = self.state();
        state.check(caller)?;
        if state.overloaded {
            return Err(DynamoStoreError::Overloaded("too many requests".to_owned()));
        }
        Ok(keys.iter().map(|key| state.entries.get(key).map(|(entry, _)| entry.clone())).collect())
    }

    async fn list(
        &self,
        caller: &DynamoCaller,
        from: Vec<u8>,
        to: Option<Vec<u8>>,
        limit: usize,
        backwards: bool,
    ) -> Result<DynamoPage, DynamoStoreError> {
        if to.as_ref().is_some_and(|to| *to <= from) {
            return Ok(DynamoPage::default());
        }
        let state = self.state();
        state.check(caller)?;
        let range = state.entries.range((Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded)));
        let shown = |(key, (entry, _)): (&Vec<u8>, &(DynamoEntry, _))| (key.clone(), entry.clone());
        // Fewer than asked for, so that pages have more than one part.
        let limit = limit.min(3);
        let mut entries: Vec<_> = if backwards {
            range.rev().take(limit + 1).map(shown).collect()
        } else {
            range.take(limit + 1).map(shown).collect()
        };
        let more = entries.len() > limit;
        entries.truncate(limit);
        Ok(DynamoPage { entries, more })
    }

    async fn commit(&self, caller: &DynamoCaller, txn: DynamoTxn) -> Result<DynamoCommitted, DynamoStoreError> {
        let mut state = self.state();
        state.check(caller)?;
        state.commits += 1;
        let is_memory =
            |write: &DynamoWrite| matches!(write, DynamoWrite::Put { lease: DynamoLease::Memory { .. }, .. });
        if state.is_memory_full && txn.writes.iter().any(is_memory) {
            return Err(DynamoStoreError::Overloaded("too many answers are kept".to_owned()));
        }
        if let Some(intruder) = state.intruder.take() {
            state.commit(intruder);
        }
        let grants = |write: &DynamoWrite| {
            matches!(write, DynamoWrite::Put { lease: DynamoLease::Granted { .. } | DynamoLease::Memory { .. }, .. })
        };
        if state.refuses_leases && txn.writes.iter().any(grants) {
            return Err(DynamoStoreError::TooLarge("the table has no room for another session".to_owned()));
        }
        let committed = state.commit(txn);
        if std::mem::take(&mut state.loses_answer) {
            return Err(DynamoStoreError::Unknown("no answer in time".to_owned()));
        }
        Ok(committed)
    }
}
