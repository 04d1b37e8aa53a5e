//! DynamoDB's API on this node: its store is the cluster's keyspace.
//!
//! `lockkeeper-dynamodb` speaks the protocol; here are the listener, the identity of its callers, and [`Keyspace`], its store.
//!
//! **A lease is a session of its own for one entry.** A lease that a write replaces or gives up is closed after it; one whose closing is
//! lost ends by itself, and so does one that an operator took from its entry.
//!
//! **An item that is a lock claims its name** (see `lockkeeper_machine`'s keyspace): operators list, watch and take back
//! `dynamodb/TABLE/KEY`.

use std::{collections::BTreeMap, fs, future::Future, path::Path, sync::Arc, time::Duration};

use lockkeeper_dynamodb as dynamodb;
use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    api::{
        Caller, Deadline, Error, Reason, Retry,
        requests::{CloseSession, GetEntries, ListEntries, OpenSession},
    },
    config::DynamodbConfig,
    http_port::HttpPort,
    service::{Serve, Service},
    wire::Form,
};
use lockkeeper_environment::{Environment, Random};
use lockkeeper_machine::{
    AtLeaseEnd, Compare, Entry, Identity, InvalidTxn, Key, KeyRange, Label, Lease, LockName, Operand, Put, Relation,
    Revision, SessionId, TTL_MS_MIN, Ttl, Txn, TxnOperation, Value,
};
use lockkeeper_transport::{Listen, tls::Acceptor};

/// Closings of leases that are under way beside the writes that caused them. Beyond, a write waits for its own.
const CLOSINGS_MAX: usize = 256;
const CLOSING_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two attempts while no leader is known.
const PAUSE: Duration = Duration::from_millis(50);
/// Attempts to write a lease that others renew and replace at the same time.
const ATTEMPTS_MAX: usize = 8;

/// Serves the API until `stopping`. Fails at once if the secrets cannot be read.
pub(super) fn serve<L: Listen>(
    config: &DynamodbConfig,
    listener: L,
    acceptor: Option<Acceptor>,
    service: Service,
    environment: &Environment,
    stopping: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + use<L>, String> {
    let secrets = match config.secrets.as_os_str().is_empty() {
        true => None,
        false => Some(secrets(&config.secrets)?),
    };
    let (clock, random) = (Arc::clone(&environment.clock), Arc::clone(&environment.random));
    #[expect(clippy::cast_possible_truncation, reason = "half of the random bits are enough")]
    let seed = random.bits() as u64;
    let options = dynamodb::Options {
        plain_tables: config.plain_tables.iter().cloned().collect(),
        secrets: secrets.clone(),
        ..dynamodb::Options::new(move || clock.wall_ms(), seed)
    };
    let (proven, closings) = (secrets.is_some(), Arc::new(Semaphore::new(CLOSINGS_MAX)));
    let store = Keyspace { service, random, proven, closings };
    Ok(dynamodb::serve(HttpPort { listener, acceptor }, store, options, stopping))
}

/// The access keys and their secrets: a line each, two words. Blocks, shortly.
fn secrets(file: &Path) -> Result<dynamodb::Secrets, String> {
    let problem = |what: &dyn std::fmt::Display| format!("dynamodb.secrets: {}: {what}", file.display());
    let text = fs::read_to_string(file).map_err(|error| problem(&error))?;
    let mut pairs = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // The line is not repeated: it has a secret.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [key, secret] = words[..] else {
            return Err(problem(&format!("line {number} is not an access key and its secret, with a space between")));
        };
        Identity::new(key).map_err(|invalid| problem(&format!("line {number}: {invalid}")))?;
        if pairs.insert(key.to_owned(), secret.to_owned()).is_some() {
            return Err(problem(&format!("line {number}: the access key {key} is there twice: remove one")));
        }
    }
    Ok(dynamodb::Secrets::new(pairs))
}

/// The cluster's keyspace, as an adapter sees it.
#[derive(Clone)]
struct Keyspace {
    service: Service,
    random: Arc<dyn Random>,
    /// The signatures of requests are checked, so an access key is an identity.
    proven: bool,
    closings: Arc<Semaphore>,
}

impl dynamodb::Store for Keyspace {
    async fn get(
        &self,
        caller: &dynamodb::Caller,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<dynamodb::Entry>>, dynamodb::StoreError> {
        let keys = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>, _>>()?;
        let entries = self.entries(&self.caller(caller), keys).await.map_err(|error| failed(&error))?;
        Ok(entries.iter().map(|entry| entry.as_deref().map(shown)).collect())
    }

    async fn range(
        &self,
        caller: &dynamodb::Caller,
        from: Vec<u8>,
        to: Option<Vec<u8>>,
        limit: usize,
        backwards: bool,
    ) -> Result<dynamodb::Page, dynamodb::StoreError> {
        let from = if from.is_empty() { None } else { Some(key(&from)?) };
        let to = to.map(|to| key(&to)).transpose()?;
        let request = ListEntries { range: KeyRange { from, to }, backwards, page_size: limit, at: None };
        let page = self.call(&self.caller(caller), request).await;
        let page = page.map_err(|error| failed(&error))?;
        let entries = page.entries.iter().map(|(key, entry)| (key.as_bytes().to_vec(), shown(entry))).collect();
        Ok(dynamodb::Page { entries, more: page.more })
    }

    async fn commit(
        &self,
        caller: &dynamodb::Caller,
        txn: dynamodb::Txn,
    ) -> Result<dynamodb::Committed, dynamodb::StoreError> {
        let caller = self.caller(caller);
        for _ in 0..ATTEMPTS_MAX {
            if let Some(committed) = self.commit_once(&caller, &txn).await? {
                return Ok(committed);
            }
        }
        Err(dynamodb::StoreError::Overloaded("the leases of these entries change too fast: try again".to_owned()))
    }
}

impl Keyspace {
    fn caller(&self, caller: &dynamodb::Caller) -> Caller {
        // An access key that nobody has proven is no identity.
        let identity = caller.identity.as_deref().filter(|_| self.proven).and_then(|name| Identity::new(name).ok());
        let deadline = Some(Deadline::at(caller.deadline));
        Caller { remote: Some(caller.address.into()), identity, deadline, ..Caller::default() }
    }

    /// Answers a request. While no leader is known it waits for one, until the caller's deadline: SDKs give up after some tens of
    /// milliseconds, and an election takes longer.
    async fn call<C: Serve + Clone>(&self, caller: &Caller, request: C) -> Result<C::Reply, Error> {
        loop {
            let answer = self.service.call(caller, Form::Typed(request.clone())).await.and_then(Form::typed);
            let is_over = caller.deadline.is_none_or(Deadline::has_passed);
            match answer {
                Err(error) if error.reason == Reason::NoLeader && error.retry == Retry::Safe && !is_over => {
                    sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// All entries of these keys, each page as of one moment.
    async fn entries(&self, caller: &Caller, mut keys: Vec<Key>) -> Result<Vec<Option<Arc<Entry>>>, Error> {
        let mut entries = Vec::with_capacity(keys.len());
        while !keys.is_empty() {
            let request = GetEntries { keys: keys.clone(), at: None };
            let found = self.call(caller, request).await?;
            keys.drain(..found.entries.len().clamp(1, keys.len()));
            entries.extend(found.entries);
        }
        Ok(entries)
    }

    /// Commits, unless a lease has changed since it was read (`None`).
    async fn commit_once(
        &self,
        caller: &Caller,
        txn: &dynamodb::Txn,
    ) -> Result<Option<dynamodb::Committed>, dynamodb::StoreError> {
        let keys = txn.writes.iter().map(|write| key(key_of(write))).collect::<Result<Vec<_>, _>>()?;
        let before = match txn.writes.is_empty() {
            true => Vec::new(),
            false => self.entries(caller, keys.clone()).await.map_err(|error| failed(&error))?,
        };
        let mut plan = Plan::default();
        for (bytes, modified) in &txn.expected {
            plan.compare(key(bytes)?, Operand::Modified(Revision(*modified)));
        }
        for ((write, key), entry) in txn.writes.iter().zip(keys).zip(before) {
            let planned = self.plan_write(caller, &mut plan, write, key, entry.as_deref()).await;
            if let Err(error) = planned {
                self.close(caller, plan.opened).await;
                return Err(error);
            }
        }
        if plan.is_outdated {
            self.close(caller, plan.opened).await;
            return Ok(Some(dynamodb::Committed { succeeded: false, revision: 0 }));
        }
        let Plan { compares, expects_lease, is_outdated: _, operations, opened, given_up } = plan;
        let built = Txn::new(compares, operations, Vec::new()).map_err(|invalid| too_large(&invalid));
        let committed = match built {
            Ok(txn) => self.call(caller, txn).await,
            Err(error) => {
                self.close(caller, opened).await;
                return Err(error);
            }
        };
        match committed {
            Ok(committed) if committed.succeeded => {
                self.close(caller, given_up).await;
                Ok(Some(dynamodb::Committed { succeeded: true, revision: committed.revision.0 }))
            }
            Ok(committed) => {
                self.close(caller, opened).await;
                // What the caller expects is compared first by itself: it decides anew. A lease is ours to look at again.
                let failed = dynamodb::Committed { succeeded: false, revision: committed.revision.0 };
                Ok((!expects_lease || !txn.expected.is_empty()).then_some(failed))
            }
            Err(error)
                if matches!(error.reason, Reason::SessionExpired | Reason::SessionUnknown | Reason::SessionClosed) =>
            {
                // A lease ended between the read and the commit.
                self.close(caller, opened).await;
                Ok(None)
            }
            Err(error) => {
                if error.retry != Retry::SameId {
                    self.close(caller, opened).await;
                }
                Err(failed(&error))
            }
        }
    }

    /// Plans one write, and opens the lease that it needs.
    async fn plan_write(
        &self,
        caller: &Caller,
        plan: &mut Plan,
        write: &dynamodb::Write,
        key: Key,
        before: Option<&Entry>,
    ) -> Result<(), dynamodb::StoreError> {
        let old = before.and_then(|entry| entry.lease);
        let claimed = before.and_then(|entry| entry.claim.as_ref()).map(|claim| claim.lock.clone());
        let (value, lease) = match write {
            dynamodb::Write::Delete { .. } => {
                plan.expect_lease(&key, old);
                plan.given_up.extend(old.map(|lease| lease.session));
                plan.operations.push(TxnOperation::Delete(key));
                return Ok(());
            }
            dynamodb::Write::Put { value, lease, .. } => (value, lease),
        };
        let value = Value::new(value).map_err(|invalid| dynamodb::StoreError::TooLarge(invalid.to_string()))?;
        let (lease, claims) = match lease {
            dynamodb::Lease::None => (None, None),
            dynamodb::Lease::Keep => match before {
                // It stays over: a new lease of the shortest time ends it again.
                Some(Entry { is_expired: true, .. }) => {
                    (Some(self.open(caller, plan, "", u64::from(TTL_MS_MIN), AtLeaseEnd::Keep).await?), None)
                }
                Some(_) | None => (old, claimed),
            },
            dynamodb::Lease::Renew => {
                match old {
                    Some(Lease { session, .. }) => plan.operations.push(TxnOperation::Renew(session)),
                    // It ended after it was read.
                    None => plan.is_outdated = true,
                }
                (old, claimed)
            }
            dynamodb::Lease::Grant { lock, owner, ttl_ms, at_end } => {
                let at_end = match at_end {
                    dynamodb::AtEnd::Expire => AtLeaseEnd::Keep,
                    dynamodb::AtEnd::Delete => AtLeaseEnd::Delete,
                };
                let lock = lock.as_deref().map(LockName::new).transpose();
                let lock = lock.map_err(|invalid| dynamodb::StoreError::TooLarge(invalid.to_string()))?;
                (Some(self.open(caller, plan, owner, *ttl_ms, at_end).await?), lock)
            }
        };
        let claims = claims.filter(|_| lease.is_some());
        plan.expect_lease(&key, old);
        let replaced = old.filter(|old| lease.is_none_or(|new| new.session != old.session));
        plan.given_up.extend(replaced.map(|lease| lease.session));
        plan.operations.push(TxnOperation::Put(Put { key, value, lease, claims }));
        Ok(())
    }

    /// Opens the session of a lease.
    async fn open(
        &self,
        caller: &Caller,
        plan: &mut Plan,
        owner: &str,
        ttl_ms: u64,
        at_end: AtLeaseEnd,
    ) -> Result<Lease, dynamodb::StoreError> {
        let invalid = |what: String| dynamodb::StoreError::TooLarge(what);
        let ttl_ms = u32::try_from(ttl_ms.max(u64::from(TTL_MS_MIN))).unwrap_or(u32::MAX);
        let ttl = Ttl::from_millis(ttl_ms).map_err(|error| invalid(error.to_string()))?;
        let label = Label::new(&shortened(owner)).map_err(|error| invalid(error.to_string()))?;
        let session = SessionId(self.random.bits());
        let request = OpenSession { session: Some(session), ttl, label };
        self.call(caller, request).await.map_err(|error| failed(&error))?;
        plan.opened.push(session);
        Ok(Lease { session, at_end })
    }

    /// Closes leases that nothing has any more, beside what follows if there is room for that.
    async fn close(&self, caller: &Caller, sessions: Vec<SessionId>) {
        for session in sessions {
            let (store, caller) = (self.clone(), Caller { deadline: None, ..caller.clone() });
            let closing = async move {
                let request = CloseSession { session, reason: None };
                // One that is not closed ends by itself.
                let _ = timeout(CLOSING_TIMEOUT, store.service.call(&caller, Form::Typed(request))).await;
            };
            match Arc::clone(&self.closings).try_acquire_owned() {
                Ok(permit) => drop(tokio::spawn(async move {
                    closing.await;
                    drop(permit);
                })),
                Err(_) => closing.await,
            }
        }
    }
}

/// A transaction that is being made.
#[derive(Default)]
struct Plan {
    compares: Vec<Compare>,
    /// Some compare is of a lease.
    expects_lease: bool,
    /// It was made from an entry that has changed since.
    is_outdated: bool,
    operations: Vec<TxnOperation>,
    /// Leases that were opened for it.
    opened: Vec<SessionId>,
    /// Leases that are nobody's after it.
    given_up: Vec<SessionId>,
}

impl Plan {
    fn compare(&mut self, key: Key, operand: Operand) {
        self.compares.push(Compare { key, relation: Relation::Equal, operand });
    }

    /// The lease must be as it was read, unless the entry must be anyway: then a lease that has ended since harms nobody, or is refused.
    fn expect_lease(&mut self, key: &Key, lease: Option<Lease>) {
        if self.compares.iter().any(|compare| compare.key == *key) {
            return;
        }
        self.expects_lease = true;
        self.compare(key.clone(), Operand::Lease(lease.map(|lease| lease.session)));
    }
}

fn key(bytes: &[u8]) -> Result<Key, dynamodb::StoreError> {
    Key::new(bytes).map_err(|invalid| dynamodb::StoreError::TooLarge(invalid.to_string()))
}

fn key_of(write: &dynamodb::Write) -> &[u8] {
    match write {
        dynamodb::Write::Put { key, .. } | dynamodb::Write::Delete { key } => key,
    }
}

fn too_large(invalid: &InvalidTxn) -> dynamodb::StoreError {
    dynamodb::StoreError::TooLarge(invalid.to_string())
}

fn shown(entry: &Entry) -> dynamodb::Entry {
    let Entry { created, modified, version, lease, claim: _, is_expired, is_revoked, value } = entry;
    dynamodb::Entry {
        created: created.0,
        modified: modified.0,
        version: *version,
        leased: lease.is_some(),
        expired: *is_expired,
        revoked: *is_revoked,
        value: value.as_bytes().to_vec(),
    }
}

/// A label has a limit; an owner of DynamoDB's clients has none.
fn shortened(owner: &str) -> String {
    let mut label: String = owner.chars().filter(|c| !c.is_control()).collect();
    while label.len() > lockkeeper_machine::LABEL_BYTES_MAX {
        label.pop();
    }
    label
}

fn failed(error: &Error) -> dynamodb::StoreError {
    use dynamodb::StoreError::{Denied, Overloaded, TooLarge, Unavailable, Unknown};
    let is = |reasons: &[Reason]| reasons.contains(&error.reason);
    let kind = if is(&[Reason::Unauthenticated, Reason::PermissionDenied, Reason::NotOwner]) {
        Denied
    } else if is(&[Reason::LimitReached, Reason::InvalidArgument]) {
        TooLarge
    } else if is(&[Reason::Overloaded, Reason::DiskSpaceLow]) {
        Overloaded
    } else if error.retry == Retry::SameId || is(&[Reason::DeadlineExceeded]) {
        Unknown
    } else {
        Unavailable
    };
    kind(error.message.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transaction of 100 items, DynamoDB's most, fits into one of the keyspace.
    #[test]
    fn the_lease_of_an_entry_that_is_expected_is_not_compared_too() {
        let (expected, other) = (key(b"expected").expect("a key"), key(b"other").expect("a key"));
        let mut plan = Plan::default();
        plan.compare(expected.clone(), Operand::Modified(Revision(1)));
        plan.expect_lease(&expected, None);
        assert!(plan.compares.len() == 1 && !plan.expects_lease);
        plan.expect_lease(&other, None);
        assert!(plan.compares.len() == 2 && plan.expects_lease);
    }

    #[test]
    fn owners_become_labels() {
        assert_eq!(shortened("ann\n"), "ann");
        assert!(Label::new(&shortened(&"ä".repeat(10_000))).is_ok());
    }

    #[test]
    fn secrets_are_read_and_errors_name_the_line_and_not_the_secret() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("secrets");
        let read = |text: &str| {
            fs::write(&file, text).expect("written");
            secrets(&file)
        };
        assert!(read("# comment\n\nAKIDANN hush\n").is_ok());
        for (text, says) in [("ann", "line 1"), ("a b c", "line 1"), ("ann x\nann y", "twice"), ("ü x", "line 1")] {
            let error = read(text).expect_err(text);
            assert!(error.contains(says) && !error.contains(" x"), "{error}");
        }
        assert!(secrets(&folder.path().join("none")).expect_err("no file").contains("dynamodb.secrets"));
    }
}
