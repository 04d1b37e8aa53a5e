//! DynamoDB's API on this node: its store is the cluster's keyspace.
//!
//! `lockkeeper-dynamodb` speaks the protocol. This file has the listener, the identity of its callers, and [`DynamoKeyspace`], its store.
//!
//! **A lease is a session of its own for one entry**, opened by the transaction that grants it, and closed with the entry.
//!
//! **Data that the protocol keeps for a limited time has no session**, but a deadline (`lockkeeper_machine`'s temporary entries). Until the
//! cluster has version 5, some member may not know temporary entries; the data then has a session, as in earlier versions of this program.
//! The protocol reads both alike, by their keys and values. So an answer that an earlier version kept is repeated after an upgrade, until
//! its session expires, and nothing has to be rewritten.
//!
//! **An item that is a lock claims its name** (see `lockkeeper_machine`'s keyspace): operators list, watch and take back
//! `dynamodb/TABLE/KEY`.

use std::{collections::BTreeMap, fmt, fs, future::Future, path::Path, sync::Arc};

use http::Extensions;
use lockkeeper_dynamodb::{
    AtEnd, DynamoCaller, DynamoCommitted, DynamoEntry, DynamoLease, DynamoLimits, DynamoOptions, DynamoPage,
    DynamoStore, DynamoStoreError, DynamoTxn, DynamoWrite, Secrets,
};
use tokio_util::sync::CancellationToken;

use lockkeeper_config::DynamodbConfig;
use lockkeeper_environment::{Environment, Random};
use lockkeeper_machine::{
    AtLeaseEnd, Compare, Entry, Identity, Key, KeyRange, LIFETIME_MS_MAX, Label, Lease, Lifetime, LockName, NewSession,
    Operand, Put, PutClaim, PutLease, Relation, Revision, SessionId, TTL_MS_MIN, Ttl, Txn, TxnOperation, Value,
    Version,
};
use lockkeeper_transport::Listen;

use super::{
    failure_class::FailureClass,
    keyspace_client::{KeyspaceClient, this_node},
};
use crate::{
    api::{
        Caller, Deadline, Error, FailureReason,
        requests::{EntriesFound, GetEntries, ListEntries},
    },
    http_port::{HttpConnection, HttpPort},
    service::Service,
};

/// Maximum number of bytes of the entries that one request names: four times that of the items of a transaction.
const ENTRIES_BYTES_MAX: usize = 16 << 20;
/// Attempts to read the entries of one request, if its revision is forgotten before all of them are read.
const READS_MAX: usize = 4;

/// Serves the API until `stopping` is cancelled. Fails at once if the secrets cannot be read.
pub(crate) fn serve<L: Listen>(
    config: &DynamodbConfig,
    port: HttpPort<L>,
    connections_max: usize,
    limits: DynamoLimits,
    service: Service,
    environment: &Environment,
    stopping: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + use<L>, String> {
    let secrets = if config.secrets.as_os_str().is_empty() { None } else { Some(secrets(&config.secrets)?) };
    let clock = Arc::clone(&environment.clock);
    let random = Arc::clone(&environment.random);

    #[expect(clippy::cast_possible_truncation, reason = "half of the random bits are enough")]
    let seed = random.bits() as u64;

    let options = DynamoOptions {
        secrets: secrets.clone(),
        connections_max,
        ..DynamoOptions::new(move || clock.wall_ms(), seed).with_limits(limits)
    };

    let store = DynamoKeyspace { client: KeyspaceClient::new(service), random, proven: secrets.is_some() };
    Ok(lockkeeper_dynamodb::serve(port, store, options, stopping))
}

/// Reads the access keys and their secrets: two words on each line. Blocks for a short time.
fn secrets(file: &Path) -> Result<Secrets, String> {
    let problem = |what: &dyn std::fmt::Display| format!("dynamodb.secrets: {}: {what}", file.display());
    let text = fs::read_to_string(file).map_err(|error| problem(&error))?;

    let mut pairs = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }

        // The error does not repeat the line, which has a secret.
        let words: Vec<&str> = line.split_whitespace().collect();
        let [key, secret] = words[..] else {
            return Err(problem(&format!("line {number} is not an access key and its secret, with a space between")));
        };

        Identity::new(key).map_err(|invalid| problem(&format!("line {number}: {invalid}")))?;
        if pairs.insert(key.to_owned(), secret.to_owned()).is_some() {
            return Err(problem(&format!("line {number}: the access key {key} is there twice: remove one")));
        }
    }
    Ok(Secrets::new(pairs))
}

/// The cluster's keyspace, as an adapter sees it.
#[derive(Clone)]
struct DynamoKeyspace {
    client: KeyspaceClient,
    random: Arc<dyn Random>,
    /// Whether signatures are checked. Only then is an access key an identity.
    proven: bool,
}

impl DynamoStore for DynamoKeyspace {
    fn admit(&self, access_key: &str, connection: &Extensions) -> Result<(), DynamoStoreError> {
        let who = self.proven_identity(access_key);
        if let (Some(who), Some(connection)) = (who, connection.get::<HttpConnection>()) {
            let access = self.client.service().access();
            access.count_http_connection(&who, connection).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    async fn get(
        &self,
        caller: &DynamoCaller,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<DynamoEntry>>, DynamoStoreError> {
        let keys = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>, _>>()?;
        let service_caller = self.service_caller(caller);
        let entries = read_entries(&keys, |request| self.client.call(&service_caller, request)).await?;
        Ok(entries.iter().map(|entry| entry.as_deref().map(stored)).collect())
    }

    async fn list(
        &self,
        caller: &DynamoCaller,
        from: Vec<u8>,
        to: Option<Vec<u8>>,
        limit: usize,
        backwards: bool,
    ) -> Result<DynamoPage, DynamoStoreError> {
        let from = if from.is_empty() { None } else { Some(key(&from)?) };
        let to = to.map(|to| key(&to)).transpose()?;
        let request = ListEntries {
            range: KeyRange { from, to },
            backwards,
            page_size: limit,
            at: None,
            leased_by: None,
            on_time: false,
        };

        let page = self.client.call(&self.service_caller(caller), request).await;
        let page = page.map_err(|error| failed(&error))?;

        let entries = page.entries.iter().map(|(key, entry)| (key.as_bytes().to_vec(), stored(entry))).collect();
        Ok(DynamoPage { entries, more: page.more })
    }

    async fn commit(&self, caller: &DynamoCaller, txn: DynamoTxn) -> Result<DynamoCommitted, DynamoStoreError> {
        let has_temporaries = self.client.service().replica().versions().cluster() >= Version::CHILDREN;
        let mut plan = Plan { has_temporaries, ..Plan::default() };
        for (bytes, modified) in &txn.expected {
            plan.compare(key(bytes)?, Relation::Equal, Operand::Modified(Revision(*modified)));
        }

        for write in &txn.writes {
            plan.write(write, || SessionId(self.random.bits()))?;
        }

        let Plan { compares, operations, has_temporaries: _ } = plan;
        let txn = Txn::new(compares, operations, Vec::new()).map_err(too_large)?;

        let committed = self.client.call(&self.service_caller(caller), txn).await.map_err(|error| failed(&error))?;
        Ok(DynamoCommitted { succeeded: committed.succeeded, revision: committed.revision.0 })
    }
}

impl DynamoKeyspace {
    /// The identity of an access key. Without a checked signature, it is none.
    fn proven_identity(&self, access_key: &str) -> Option<Identity> {
        if self.proven { Identity::new(access_key).ok() } else { None }
    }

    fn service_caller(&self, caller: &DynamoCaller) -> Caller {
        if caller.is_port {
            // This node's own work asks as a member does.
            let deadline = Some(Deadline::at(caller.deadline));
            return Caller { deadline, ..this_node() };
        }

        let identity = caller.identity.as_deref().and_then(|access_key| self.proven_identity(access_key));
        let deadline = Some(Deadline::at(caller.deadline));
        Caller { remote: Some(caller.address.into()), identity, deadline, ..Caller::default() }
    }
}

/// Reads all entries of these keys, all of the same revision, by as many requests as they need.
async fn read_entries<F>(
    keys: &[Key],
    mut read: impl FnMut(GetEntries) -> F,
) -> Result<Vec<Option<Arc<Entry>>>, DynamoStoreError>
where
    F: Future<Output = Result<EntriesFound, Error>>,
{
    for _ in 0..READS_MAX {
        match read_pages(keys, &mut read).await? {
            Some(entries) => return Ok(entries),
            // The pages that are read are of no use any more: all of them must show one moment.
            None => tracing::debug!("the history was compacted between two pages of a read, which begins again"),
        }
    }

    Err(DynamoStoreError::Overloaded(
        "the history of the keyspace was forgotten faster than the items were read: name fewer of them".to_owned(),
    ))
}

/// One attempt to read the pages. There are no entries if the revision of the first page was compacted before the last one.
async fn read_pages<F>(
    mut keys: &[Key],
    mut read: impl FnMut(GetEntries) -> F,
) -> Result<Option<Vec<Option<Arc<Entry>>>>, DynamoStoreError>
where
    F: Future<Output = Result<EntriesFound, Error>>,
{
    let mut entries = Vec::with_capacity(keys.len());
    let mut bytes = 0;
    let mut at = None;

    while !keys.is_empty() {
        let found = match read(GetEntries { keys: keys.to_vec(), at, on_time: false }).await {
            Err(error) if at.is_some() && error.reason == FailureReason::RevisionCompacted => return Ok(None),
            found => found.map_err(|error| failed(&error))?,
        };
        // Read all pages at the revision of the first one.
        at = at.or(Some(found.revision));

        bytes += found.entries.iter().flatten().map(|entry| entry.value.as_bytes().len()).sum::<usize>();
        if bytes > ENTRIES_BYTES_MAX {
            return Err(too_large(format!(
                "the items of the request have more than {ENTRIES_BYTES_MAX} bytes, the limit: name fewer of them"
            )));
        }

        keys = &keys[found.entries.len().clamp(1, keys.len())..];
        entries.extend(found.entries);
    }
    Ok(Some(entries))
}

/// A transaction that is being built.
#[derive(Default)]
struct Plan {
    compares: Vec<Compare>,
    operations: Vec<TxnOperation>,
    /// Whether all members know temporary entries without a session.
    has_temporaries: bool,
}

impl Plan {
    fn compare(&mut self, key: Key, relation: Relation, operand: Operand) {
        self.compares.push(Compare { key, up_to: None, relation, operand });
    }

    fn write(&mut self, write: &DynamoWrite, id: impl Fn() -> SessionId) -> Result<(), DynamoStoreError> {
        let (bytes, value, lease) = match write {
            DynamoWrite::Delete { key: bytes } => {
                self.operations.push(TxnOperation::Delete(key(bytes)?));
                return Ok(());
            }
            DynamoWrite::Put { key, value, lease } => (key, value, lease),
        };
        let key = key(bytes)?;
        let value = Value::new(value).map_err(too_large)?;

        let (lease, claims) = match lease {
            DynamoLease::None => (PutLease::None, None),
            DynamoLease::Kept => (PutLease::Kept, None),
            DynamoLease::Renewed => {
                // The entry must have a lease to renew.
                self.compare(key.clone(), Relation::NotEqual, Operand::Lease(None));
                (PutLease::Renewed, None)
            }
            DynamoLease::Granted { lock, owner, ttl_ms, at_end } => {
                let at_end = match at_end {
                    AtEnd::Expire => AtLeaseEnd::Keep,
                    AtEnd::Delete => AtLeaseEnd::Delete,
                };
                let session = self.open(id(), owner, *ttl_ms)?;
                let lock = lock.as_deref().map(LockName::new).transpose().map_err(too_large)?;
                (PutLease::Given(Lease { session, at_end }), lock.map(PutClaim::from))
            }
            DynamoLease::Memory { ttl_ms, .. } if self.has_temporaries => {
                let lifetime = Lifetime::from_millis((*ttl_ms).clamp(1, LIFETIME_MS_MAX)).map_err(too_large)?;
                (PutLease::Temporary(lifetime), None)
            }
            DynamoLease::Memory { owner, ttl_ms } => {
                let session = self.open(id(), owner, *ttl_ms)?;
                (PutLease::Given(Lease { session, at_end: AtLeaseEnd::Delete }), None)
            }
        };
        self.operations.push(TxnOperation::Put(Put { key, value, lease, claims }));
        Ok(())
    }

    /// Opens a session for one entry, and returns it.
    fn open(&mut self, session: SessionId, owner: &str, ttl_ms: u64) -> Result<SessionId, DynamoStoreError> {
        let ttl_ms = u32::try_from(ttl_ms.max(u64::from(TTL_MS_MIN))).unwrap_or(u32::MAX);
        let ttl = Ttl::from_millis(ttl_ms).map_err(too_large)?;
        let label = Label::new(&shortened(owner)).map_err(too_large)?;
        self.operations.push(TxnOperation::Open(NewSession { session, ttl, label, address: None, owner: None }));
        Ok(session)
    }
}

fn key(bytes: &[u8]) -> Result<Key, DynamoStoreError> {
    Key::new(bytes).map_err(too_large)
}

fn too_large(invalid: impl fmt::Display) -> DynamoStoreError {
    DynamoStoreError::TooLarge(invalid.to_string())
}

fn stored(entry: &Entry) -> DynamoEntry {
    let Entry { created, modified, version, lease, is_expired, is_revoked, value, .. } = entry;
    DynamoEntry {
        created: created.0,
        modified: modified.0,
        version: *version,
        leased: lease.is_some(),
        expired: *is_expired,
        revoked: *is_revoked,
        value: value.as_bytes().to_vec(),
    }
}

/// Shortens an owner of DynamoDB's clients, which has no limit, to a label, which has one.
fn shortened(owner: &str) -> String {
    let mut label: String = owner.chars().filter(|c| !c.is_control()).collect();
    while label.len() > lockkeeper_machine::LABEL_BYTES_MAX {
        label.pop();
    }
    label
}

fn failed(error: &Error) -> DynamoStoreError {
    use DynamoStoreError::{Denied, Full, Overloaded, TooLarge, Unavailable, Unknown};
    let is_memory_full =
        error.reason == FailureReason::LimitReached && error.about("limit") == Some("temporary_entries");

    let kind = match FailureClass::from(error) {
        // Kept answers end within minutes.
        _ if is_memory_full => Overloaded,
        FailureClass::Denied => Denied,
        FailureClass::TooLarge => TooLarge,
        FailureClass::Full => Full,
        FailureClass::Overloaded => Overloaded,
        FailureClass::Unavailable => Unavailable,
        FailureClass::Unknown => Unknown,
    };
    kind(error.message.to_string())
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;
    use lockkeeper_machine::{Command, Committed, Machine, Reply, Stamp, Time};

    /// A transaction of 100 items, DynamoDB's most, with a lease each, fits into one of the keyspace.
    #[test]
    fn a_hundred_leases_are_one_transaction() {
        let mut plan = Plan::default();
        for number in 0..100_u8 {
            plan.compare(key(&[number]).expect("a key"), Relation::Equal, Operand::Modified(Revision(0)));
            let at_end = AtEnd::Expire;
            let lease = DynamoLease::Granted { lock: None, owner: "ann".to_owned(), ttl_ms: 1, at_end };
            let write = DynamoWrite::Put { key: vec![number], value: Vec::new(), lease };
            plan.write(&write, || SessionId(number.into())).expect("in bounds");
        }
        let txn = Txn::new(plan.compares, plan.operations, Vec::new()).expect("in bounds");
        let [then, _] = txn.opens();
        assert_eq!(then.count(), 100);
    }

    /// Under pressure, what asks for more is refused, and nothing else.
    #[test]
    fn heartbeats_and_releases_ask_for_nothing_more() {
        for has_temporaries in [false, true] {
            let mut machine = Machine::default();
            let mut last_session = 0;
            let mut commit = |writes: Vec<DynamoWrite>| {
                let mut plan = Plan { has_temporaries, ..Plan::default() };
                for write in &writes {
                    last_session += 1;
                    plan.write(write, || SessionId(last_session)).expect("in bounds");
                }
                let txn = Txn::new(plan.compares, plan.operations, Vec::new()).expect("in bounds");
                let asks = machine.txn_asks_for_more(&txn);
                let reply = machine.apply(Time::default(), Command::Txn(txn), &mut Vec::new());
                assert!(matches!(reply, Reply::Committed(Committed { succeeded: true, .. })), "{reply:?}");
                asks
            };
            let put = |key: u8, bytes: usize, lease| DynamoWrite::Put { key: vec![key], value: vec![7; bytes], lease };
            let grant = |lock: Option<&str>, at_end| {
                let lock = lock.map(str::to_owned);
                DynamoLease::Granted { lock, owner: "ann".to_owned(), ttl_ms: 1000, at_end }
            };
            let acquired = || grant(Some("dynamodb/t/k"), AtEnd::Expire);
            let answer = |key| put(key, 200, DynamoLease::Memory { owner: "ann".to_owned(), ttl_ms: 1000 });

            assert!(commit(vec![put(1, 100, acquired())]));
            assert!(!commit(vec![put(1, 120, DynamoLease::Renewed)]), "a heartbeat");
            assert!(!commit(vec![put(1, 120, DynamoLease::Renewed), answer(2)]), "one that keeps its answer");
            assert!(!commit(vec![put(1, 140, DynamoLease::None)]), "a release");
            assert!(commit(vec![put(1, 140, DynamoLease::None)]), "a write of what is free");
            assert!(commit(vec![put(1, 100, acquired())]));
            assert!(!commit(vec![DynamoWrite::Delete { key: vec![1] }, answer(3)]), "a release that keeps its answer");
            assert!(commit(vec![DynamoWrite::Delete { key: vec![1] }, answer(4)]), "it deletes nothing");
            assert!(commit(vec![put(5, 1, DynamoLease::None)]));
        }
    }

    /// An answer has no session, however many there are. One that an earlier version of this program kept has one until its end, and is
    /// read like the others.
    #[test]
    fn answers_take_no_sessions_and_those_of_before_are_there_until_their_end() {
        let mut machine = Machine::default();
        let commit = |machine: &mut Machine, number: u8, has_temporaries| {
            let mut plan = Plan { has_temporaries, ..Plan::default() };
            plan.compare(key(&[number]).expect("a key"), Relation::Equal, Operand::Modified(Revision(0)));
            let lease = DynamoLease::Memory { owner: "ann".to_owned(), ttl_ms: 120_000 };
            let write = DynamoWrite::Put { key: vec![number], value: vec![number; 9], lease };
            plan.write(&write, || SessionId(number.into())).expect("in bounds");
            let txn = Txn::new(plan.compares, plan.operations, Vec::new()).expect("in bounds");
            let reply = machine.apply(Time::default(), Command::Txn(txn), &mut Vec::new());
            matches!(reply, Reply::Committed(Committed { succeeded: true, .. }))
        };
        assert!((0..3).all(|number| commit(&mut machine, number, false)));
        assert_eq!(machine.counts().sessions, 3);
        assert!((3..100).all(|number| commit(&mut machine, number, true)));
        assert_eq!(machine.counts().sessions, 3, "the answers of this version have none");
        assert!((0..100).all(|number| !commit(&mut machine, number, true)), "each is there");

        let answer = |machine: &Machine, number: u8| machine.entry(&key(&[number]).expect("a key"));
        for number in 0..100 {
            let kept = answer(&machine, number).expect("it is kept");
            assert_eq!(stored(&kept).value, [number; 9]);
        }
        let late = Time { stamp: lockkeeper_machine::Stamp(120_000), ..Time::default() };
        machine.apply(late, Command::Tick, &mut Vec::new());
        assert!((0..100).all(|number| answer(&machine, number).is_none()), "their time is over");
        assert_eq!((machine.counts().sessions, machine.counts().entries), (0, 0));
    }

    /// A table between whose pages of two entries others write.
    struct PagedTable {
        machine: Machine,
        /// Whether each write is followed by a compaction.
        forgets: bool,
        reads: usize,
    }

    impl PagedTable {
        fn put_all(&mut self, value: u8) {
            let put = |number: u8| {
                let value = Value::new(&[value]).expect("short");
                TxnOperation::Put(Put { key: item(number), value, lease: PutLease::None, claims: None })
            };
            let txn = Txn::new(Vec::new(), (0..5).map(put).collect(), Vec::new()).expect("in bounds");
            self.machine.apply(Time::default(), Command::Txn(txn), &mut Vec::new());
        }

        fn page(&mut self, request: &GetEntries) -> Result<EntriesFound, Error> {
            let revision = self.machine.revision();
            let entry = |key| self.machine.entry_at(key, request.at.unwrap_or(revision)).map_err(Error::revision);
            let entries = request.keys.iter().take(2).map(entry).collect::<Result<_, _>>()?;

            // What is read next is as others leave it.
            self.reads += 1;
            self.put_all(u8::try_from(self.reads).expect("few"));
            if self.forgets {
                let revision = self.machine.revision();
                self.machine.apply(Time::default(), Command::Compact { revision }, &mut Vec::new());
            }
            Ok(EntriesFound { entries, revision, now: Stamp::default() })
        }
    }

    fn item(number: u8) -> Key {
        key(&[b'k', number]).expect("a key")
    }

    /// The first byte of each of five items, which are read in pages of two while others write all of them after each page.
    async fn read_beside_writers(forgets_until: usize) -> (Result<Vec<u8>, DynamoStoreError>, usize) {
        let mut table = PagedTable { machine: Machine::default(), forgets: true, reads: 0 };
        table.put_all(0);
        let keys: Vec<_> = (0..5).map(item).collect();
        let read = read_entries(&keys, |request| {
            table.forgets = table.reads < forgets_until;
            ready(table.page(&request))
        });
        let entries = read.await;
        let first = |entry: Option<Arc<Entry>>| entry.expect("it is there").value.as_bytes()[0];
        (entries.map(|entries| entries.into_iter().map(first).collect()), table.reads)
    }

    #[tokio::test]
    async fn all_items_of_a_request_are_of_one_moment() {
        let (values, reads) = read_beside_writers(0).await;
        assert_eq!(values, Ok(vec![0; 5]));
        assert_eq!(reads, 3);

        // Forgotten after the first page: it begins again.
        let (values, reads) = read_beside_writers(1).await;
        assert_eq!(values, Ok(vec![1; 5]));
        assert_eq!(reads, 4);

        let (values, reads) = read_beside_writers(usize::MAX).await;
        assert!(matches!(values, Err(DynamoStoreError::Overloaded(_))), "{values:?}");
        assert_eq!(reads, READS_MAX);
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
