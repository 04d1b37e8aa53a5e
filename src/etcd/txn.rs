//! A transaction of etcd's, as one of the store's.
//!
//! **Directly**, where the store has everything: compares, reads, puts, deletes. Both branches go into one transaction.
//!
//! **Decided here**, where it has not: transactions in transactions, and puts that keep a value or a lease. The keys that decide are read;
//! the branches follow, since etcd makes all compares before the first operation; and what these branches do is committed under the
//! condition that nothing that was read has changed, or all of it again. Where they write nothing there is nothing to commit: the answer is
//! that of the revision that was read.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::future::BoxFuture;
use lockkeeper_machine::{
    AtLeaseEnd, Committed, Entry, InvalidTxn, Key, KeyRange, Lease, LockName, Operand, Put, PutLease, Relation,
    Revision, Select, Selected, TXN_OPERATIONS_MAX, Txn, TxnOperation, TxnResult, Value,
};

use crate::{
    Etcd, Store, StoreError,
    error::Error,
    header::{inner_header, key_value},
    key,
    proto::{
        etcdserverpb::{
            Compare, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse,
            RequestOp, ResponseOp, TxnRequest, TxnResponse,
            compare::{CompareResult, CompareTarget, TargetUnion},
            request_op::Request,
            response_op::Response,
        },
        mvccpb::KeyValue,
    },
    range,
};

/// Attempts to commit what was decided from keys that change meanwhile.
const ATTEMPTS_MAX: usize = 32;

impl<S: Store> Etcd<S> {
    /// Runs a transaction that was checked. Returns its revision, and the answer without its header.
    pub(crate) async fn transact(
        &self,
        caller: &S::Caller,
        request: &TxnRequest,
    ) -> Result<(Revision, TxnResponse), Error> {
        let mut past = BTreeSet::new();
        past_of(request, &mut past);
        // One that shows a past that cannot be shown fails before it writes, if it runs the branch that shows it.
        let is_readable = match self.ensure_readable(caller, past).await {
            Err(Error::Compacted | Error::Future) => false,
            readable => readable.map(|()| true)?,
        };
        if is_readable && !needs_decision(request) {
            return self.directly(caller, request).await;
        }
        for _ in 0..ATTEMPTS_MAX {
            if let Some(answer) = self.decided(caller, request).await? {
                return Ok(answer);
            }
        }
        Err(StoreError::Overloaded.into())
    }

    /// Fails if one of these revisions cannot be shown.
    async fn ensure_readable(&self, caller: &S::Caller, past: BTreeSet<Revision>) -> Result<(), Error> {
        for revision in past {
            // Of no key: the caller may not be allowed to read one that it does not ask for.
            self.store.get(caller, Vec::new(), Some(revision)).await?;
        }
        Ok(())
    }

    async fn directly(&self, caller: &S::Caller, request: &TxnRequest) -> Result<(Revision, TxnResponse), Error> {
        let mut compares = Vec::new();
        for compare in &request.compare {
            compares.extend(Condition::of(compare)?.in_store(compare)?);
        }
        let claims = Claims::of(request);
        let then = Branch::compile(&claims, &leaves(&request.success))?;
        let otherwise = Branch::compile(&claims, &leaves(&request.failure))?;
        let txn = Txn::new(compares, then.operations.clone(), otherwise.operations.clone()).map_err(invalid)?;
        let committed = self.store.commit(caller, txn).await?;
        self.answer(caller, if committed.succeeded { &then } else { &otherwise }, &committed).await
    }

    /// Reads, decides and commits. `None`: what was read has changed meanwhile.
    async fn decided(
        &self,
        caller: &S::Caller,
        request: &TxnRequest,
    ) -> Result<Option<(Revision, TxnResponse)>, Error> {
        let seen = self.see(caller, request).await?;
        let (succeeded, steps) = decide(request, &seen)?;
        let mut past = BTreeSet::new();
        past_of_decided(&steps, &mut past);
        self.ensure_readable(caller, past).await?;
        let branch = Branch::compile(&Claims::of(request), &steps)?;
        if !branch.writes() {
            let results = self.read_all(caller, &branch.operations, seen.revision).await?;
            let committed = Committed { succeeded, revision: seen.revision, results };
            return Ok(Some(self.answer(caller, &branch, &committed).await?));
        }
        let txn = Txn::new(seen.guards()?, branch.operations.clone(), Vec::new()).map_err(invalid)?;
        let committed = self.store.commit(caller, txn).await?;
        if !committed.succeeded {
            return Ok(None);
        }
        let committed = Committed { succeeded, ..committed };
        Ok(Some(self.answer(caller, &branch, &committed).await?))
    }

    /// Runs the operations of a branch that writes nothing, on the state at a revision.
    async fn read_all(
        &self,
        caller: &S::Caller,
        operations: &[TxnOperation],
        at: Revision,
    ) -> Result<Vec<TxnResult>, Error> {
        let mut results = Vec::with_capacity(operations.len());
        for operation in operations {
            let select = if let TxnOperation::Select(select) = operation { select.clone() } else { Select::default() };
            let (entries, _) = self.entries(caller, select.range.clone(), Some(at)).await?;
            let entries = entries.iter().map(|(key, entry)| (key, Arc::clone(entry)));
            results.push(TxnResult::Selected(select.from(entries)));
        }
        Ok(results)
    }

    /// The revision of a branch that ran, and the answer.
    async fn answer(
        &self,
        caller: &S::Caller,
        branch: &Branch<'_>,
        committed: &Committed,
    ) -> Result<(Revision, TxnResponse), Error> {
        let responses = self.responses(caller, &Ran { branch, committed }, &branch.steps).await?;
        Ok((committed.revision, TxnResponse { header: None, succeeded: committed.succeeded, responses }))
    }

    /// Reads what decides a transaction, all of it as of one revision.
    async fn see(&self, caller: &S::Caller, request: &TxnRequest) -> Result<Seen, Error> {
        let (mut keys, mut ranges) = (BTreeSet::new(), BTreeMap::new());
        deciding(request, &mut keys, &mut ranges)?;
        let keys: Vec<Key> = keys.into_iter().collect();
        let found = self.store.get(caller, keys.clone(), None).await?;
        let mut seen = Seen {
            revision: found.revision,
            entries: keys.into_iter().zip(found.entries).collect(),
            ranges: BTreeMap::new(),
        };
        for (name, range) in ranges {
            let (entries, _) = self.entries(caller, range, Some(seen.revision)).await?;
            seen.ranges.insert(name, entries);
        }
        Ok(seen)
    }

    /// The answers to the operations that ran.
    fn responses<'a>(
        &'a self,
        caller: &'a S::Caller,
        ran: &'a Ran<'a>,
        steps: &'a [Step<'a>],
    ) -> BoxFuture<'a, Result<Vec<ResponseOp>, Error>> {
        // Boxed, since a transaction may be in another.
        Box::pin(async move {
            let header = inner_header(ran.committed.revision);
            let mut responses = Vec::with_capacity(steps.len());
            for step in steps {
                let response = match step {
                    Step::Past(request) => {
                        let (answer, _) = self.read(caller, request).await?;
                        Response::ResponseRange(RangeResponse { header, ..answer })
                    }
                    Step::Range { place } => {
                        Response::ResponseRange(RangeResponse { header, ..range::answer(ran.selected(*place)) })
                    }
                    Step::Put { request, before } => {
                        let prev_kv = self.before(caller, ran, request.prev_kv, &request.key, *before).await?;
                        Response::ResponsePut(PutResponse { header, prev_kv })
                    }
                    Step::Delete { request, place, before } => {
                        let deleted = i64::try_from(ran.deleted(*place)).unwrap_or(i64::MAX);
                        let prev_kvs = match request.range_end.is_empty() {
                            true => {
                                let is_wanted = request.prev_kv && deleted > 0;
                                let before = self.before(caller, ran, is_wanted, &request.key, *before).await?;
                                before.into_iter().collect()
                            }
                            false => before.map(|before| ran.shown(before)).unwrap_or_default(),
                        };
                        Response::ResponseDeleteRange(DeleteRangeResponse { header, deleted, prev_kvs })
                    }
                    Step::Txn { succeeded, steps } => {
                        let responses = self.responses(caller, ran, steps).await?;
                        Response::ResponseTxn(TxnResponse { header, succeeded: *succeeded, responses })
                    }
                };
                responses.push(ResponseOp { response: Some(response) });
            }
            Ok(responses)
        })
    }

    /// What a key had before its write: as the operation at this place shows it, or else from the history.
    async fn before(
        &self,
        caller: &S::Caller,
        ran: &Ran<'_>,
        is_wanted: bool,
        key: &[u8],
        place: Option<usize>,
    ) -> Result<Option<KeyValue>, Error> {
        match place {
            _ if !is_wanted => Ok(None),
            Some(place) => Ok(ran.shown(place).pop()),
            None => {
                let (key, Revision(revision)) = (key::of(key)?, ran.committed.revision);
                let found = self.store.get(caller, vec![key.clone()], Some(Revision(revision - 1))).await?;
                Ok(found.entries.into_iter().flatten().next().map(|entry| key_value(&key, &entry)))
            }
        }
    }
}

/// Whether the store lacks what the transaction needs; and one that writes nothing costs no entry of the log.
fn needs_decision(request: &TxnRequest) -> bool {
    let operations = || request.success.iter().chain(&request.failure).filter_map(|it| it.request.as_ref());
    let lacks = |operation: &Request| match operation {
        Request::RequestTxn(_) => true,
        Request::RequestPut(put) => put.ignore_value || put.ignore_lease,
        Request::RequestRange(_) | Request::RequestDeleteRange(_) => false,
    };
    operations().any(lacks) || operations().all(|operation| matches!(operation, Request::RequestRange(_)))
}

/// The revision of the past that a read shows.
fn past_of_range(range: &RangeRequest) -> Option<Revision> {
    u64::try_from(range.revision).ok().filter(|it| *it > 0).map(Revision)
}

/// The revisions of the past that the operations of a branch show.
fn past_of_decided(operations: &[Decided<'_>], past: &mut BTreeSet<Revision>) {
    for operation in operations {
        match operation {
            Decided::Range(range) => past.extend(past_of_range(range)),
            Decided::Txn { operations, .. } => past_of_decided(operations, past),
            Decided::Put { .. } | Decided::Delete(_) => {}
        }
    }
}

/// The revisions of the past that a transaction may show.
fn past_of(request: &TxnRequest, past: &mut BTreeSet<Revision>) {
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(Request::RequestRange(range)) => past.extend(past_of_range(range)),
            Some(Request::RequestTxn(txn)) => past_of(txn, past),
            Some(Request::RequestPut(_) | Request::RequestDeleteRange(_)) | None => {}
        }
    }
}

/// A range, as a compare names it: its key and its end.
type RangeName = (Vec<u8>, Vec<u8>);

/// The keys and ranges that a transaction is decided by: those that it compares, and those whose value or lease it keeps.
fn deciding(
    request: &TxnRequest,
    keys: &mut BTreeSet<Key>,
    ranges: &mut BTreeMap<RangeName, KeyRange>,
) -> Result<(), Error> {
    for Compare { key, range_end, .. } in &request.compare {
        match range_end.is_empty() {
            true => drop(keys.insert(key::of(key)?)),
            false => drop(ranges.insert((key.clone(), range_end.clone()), key::range(key, range_end)?)),
        }
    }
    for operation in request.success.iter().chain(&request.failure) {
        match &operation.request {
            Some(Request::RequestTxn(txn)) => deciding(txn, keys, ranges)?,
            Some(Request::RequestPut(put)) if put.ignore_value || put.ignore_lease => {
                keys.insert(key::of(&put.key)?);
            }
            Some(Request::RequestPut(_) | Request::RequestRange(_) | Request::RequestDeleteRange(_)) | None => {}
        }
    }
    Ok(())
}

/// What decides a transaction, as of one revision.
struct Seen {
    revision: Revision,
    entries: BTreeMap<Key, Option<Arc<Entry>>>,
    ranges: BTreeMap<RangeName, Vec<(Key, Arc<Entry>)>>,
}

impl Seen {
    fn entry(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)?.as_deref()
    }

    /// The condition that nothing of it has changed: each entry is as it was, and no range has one that was written since.
    fn guards(&self) -> Result<Vec<lockkeeper_machine::Compare>, Error> {
        let modified = |entry: Option<&Entry>| entry.map_or(Revision(0), |entry| entry.modified);
        let mut entries: BTreeMap<&Key, Revision> =
            self.entries.iter().map(|(key, entry)| (key, modified(entry.as_deref()))).collect();
        entries.extend(self.ranges.values().flatten().map(|(key, entry)| (key, entry.modified)));
        let mut guards: Vec<_> = entries
            .into_iter()
            .map(|(key, revision)| lockkeeper_machine::Compare {
                key: key.clone(),
                up_to: None,
                relation: Relation::Equal,
                operand: Operand::Modified(revision),
            })
            .collect();
        for (key, end) in self.ranges.keys() {
            guards.push(lockkeeper_machine::Compare {
                key: key::of(key)?,
                up_to: key::range(key, end)?.to,
                relation: Relation::Less,
                operand: Operand::Modified(Revision(self.revision.0 + 1)),
            });
        }
        Ok(guards)
    }

    fn holds(&self, compare: &Compare) -> Result<bool, Error> {
        let condition = Condition::of(compare)?;
        if compare.range_end.is_empty() {
            return Ok(condition.holds(self.entry(&key::of(&compare.key)?)));
        }
        let name = (compare.key.clone(), compare.range_end.clone());
        let entries = self.ranges.get(&name).map(Vec::as_slice).unwrap_or_default();
        Ok(match entries {
            [] => condition.holds(None),
            entries => entries.iter().all(|(_, entry)| condition.holds(Some(entry))),
        })
    }
}

/// A compare of etcd's. Its numbers are signed, and those of the store are not.
enum Condition {
    /// It holds, or not, whatever there is.
    Constant(bool),
    Of(Relation, Operand),
}

impl Condition {
    fn of(compare: &Compare) -> Result<Self, Error> {
        let relation = match compare.result() {
            CompareResult::Equal => Relation::Equal,
            CompareResult::NotEqual => Relation::NotEqual,
            CompareResult::Less => Relation::Less,
            CompareResult::Greater => Relation::Greater,
        };
        let union = compare.target_union.as_ref();
        // An operand of another target than the one named counts as none.
        let number = match (compare.target(), union) {
            (CompareTarget::Version, Some(TargetUnion::Version(number)))
            | (CompareTarget::Create, Some(TargetUnion::CreateRevision(number)))
            | (CompareTarget::Mod, Some(TargetUnion::ModRevision(number)))
            | (CompareTarget::Lease, Some(TargetUnion::Lease(number))) => *number,
            _ => 0,
        };
        let unsigned = u64::try_from(number);
        let operand = match (compare.target(), unsigned) {
            (CompareTarget::Value, _) => {
                let value = if let Some(TargetUnion::Value(value)) = union { value.as_slice() } else { &[] };
                Operand::Value(Value::new(value).map_err(|_| Error::TooLarge)?)
            }
            (CompareTarget::Lease, _) => Operand::Lease((number != 0).then(|| key::session(number))),
            // Nothing is below zero.
            (_, Err(_)) => return Ok(Self::Constant(matches!(relation, Relation::NotEqual | Relation::Greater))),
            (CompareTarget::Version, Ok(number)) => Operand::Version(number),
            (CompareTarget::Create, Ok(number)) => Operand::Created(Revision(number)),
            (CompareTarget::Mod, Ok(number)) => Operand::Modified(Revision(number)),
        };
        Ok(Self::Of(relation, operand))
    }

    /// As a compare of the store; `None`: it always holds.
    fn in_store(self, compare: &Compare) -> Result<Option<lockkeeper_machine::Compare>, Error> {
        let (relation, operand) = match self {
            Self::Constant(true) => return Ok(None),
            // No version is below zero.
            Self::Constant(false) => (Relation::Less, Operand::Version(0)),
            Self::Of(relation, operand) => (relation, operand),
        };
        let up_to = match compare.range_end.is_empty() {
            true => None,
            false => key::range(&compare.key, &compare.range_end)?.to,
        };
        Ok(Some(lockkeeper_machine::Compare { key: key::of(&compare.key)?, up_to, relation, operand }))
    }

    /// As the store decides it.
    fn holds(&self, entry: Option<&Entry>) -> bool {
        match self {
            Self::Constant(holds) => *holds,
            Self::Of(relation, operand) => operand.holds(*relation, entry),
        }
    }
}

/// The locks that puts of a transaction claim: see `README.md`.
struct Claims {
    compared: BTreeSet<Vec<u8>>,
}

impl Claims {
    fn of(request: &TxnRequest) -> Self {
        let mut compared = BTreeSet::new();
        compared_by(request, &mut compared);
        Self { compared }
    }

    /// The lock of a put with this lease.
    fn lock(&self, key: &Key, lease: i64) -> Option<LockName> {
        let is_single = key::is_leader(key) || self.compared.contains(key::shown(key));
        let single = || is_single.then(|| key::single(key)).flatten();
        key::queue(key, lease).or_else(single)
    }
}

fn compared_by(request: &TxnRequest, compared: &mut BTreeSet<Vec<u8>>) {
    compared.extend(request.compare.iter().filter(|it| it.range_end.is_empty()).map(|it| it.key.clone()));
    for operation in request.success.iter().chain(&request.failure) {
        if let Some(Request::RequestTxn(txn)) = &operation.request {
            compared_by(txn, compared);
        }
    }
}

/// An operation that is to run, with what was decided about it.
enum Decided<'a> {
    Range(&'a RangeRequest),
    Put {
        request: &'a PutRequest,
        /// The value and the lease that it keeps, where it does.
        kept: Option<Arc<Entry>>,
    },
    Delete(&'a DeleteRangeRequest),
    Txn {
        succeeded: bool,
        operations: Vec<Self>,
    },
}

/// Operations about which nothing is to be decided.
fn leaves(operations: &[RequestOp]) -> Vec<Decided<'_>> {
    let requests = operations.iter().filter_map(|operation| operation.request.as_ref());
    requests
        .filter_map(|request| match request {
            Request::RequestRange(request) => Some(Decided::Range(request)),
            Request::RequestPut(request) => Some(Decided::Put { request, kept: None }),
            Request::RequestDeleteRange(request) => Some(Decided::Delete(request)),
            Request::RequestTxn(_) => None,
        })
        .collect()
}

/// Whether the compares hold, and what runs then.
fn decide<'a>(request: &'a TxnRequest, seen: &Seen) -> Result<(bool, Vec<Decided<'a>>), Error> {
    let mut succeeded = true;
    for compare in &request.compare {
        succeeded &= seen.holds(compare)?;
    }
    let mut operations = Vec::new();
    for operation in if succeeded { &request.success } else { &request.failure } {
        operations.push(match &operation.request {
            Some(Request::RequestTxn(txn)) => {
                let (succeeded, operations) = decide(txn, seen)?;
                Decided::Txn { succeeded, operations }
            }
            Some(Request::RequestPut(put)) if put.ignore_value || put.ignore_lease => {
                let entry = seen.entries.get(&key::of(&put.key)?).cloned().flatten();
                Decided::Put { request: put, kept: Some(entry.ok_or(Error::KeyNotFound)?) }
            }
            Some(Request::RequestPut(request)) => Decided::Put { request, kept: None },
            Some(Request::RequestRange(request)) => Decided::Range(request),
            Some(Request::RequestDeleteRange(request)) => Decided::Delete(request),
            None => return Err(Error::KeyNotFound),
        });
    }
    Ok((succeeded, operations))
}

/// A step of a branch, and where the store's operations for it are.
enum Step<'a> {
    /// A read of the past.
    Past(&'a RangeRequest),
    Range {
        place: usize,
    },
    Put {
        request: &'a PutRequest,
        /// The operation that shows what was there before. `None`: the history does, if that is wanted.
        before: Option<usize>,
    },
    Delete {
        request: &'a DeleteRangeRequest,
        place: usize,
        before: Option<usize>,
    },
    Txn {
        succeeded: bool,
        steps: Vec<Self>,
    },
}

/// A branch, as operations of the store.
#[derive(Default)]
struct Branch<'a> {
    operations: Vec<TxnOperation>,
    steps: Vec<Step<'a>>,
    claimed: BTreeSet<LockName>,
    /// The former entries of single keys are left to the history: they do not fit into the transaction.
    is_crowded: bool,
}

impl<'a> Branch<'a> {
    fn compile(claims: &Claims, decided: &[Decided<'a>]) -> Result<Self, Error> {
        let mut branch = Self::default();
        branch.steps = branch.add(claims, decided)?;
        if branch.operations.len() > TXN_OPERATIONS_MAX {
            branch = Self { is_crowded: true, ..Self::default() };
            branch.steps = branch.add(claims, decided)?;
        }
        Ok(branch)
    }

    fn add(&mut self, claims: &Claims, decided: &[Decided<'a>]) -> Result<Vec<Step<'a>>, Error> {
        let mut steps = Vec::with_capacity(decided.len());
        for operation in decided {
            steps.push(match operation {
                Decided::Range(request) if request.revision > 0 => Step::Past(request),
                Decided::Range(request) => {
                    Step::Range { place: self.push(TxnOperation::Select(range::select(request)?)) }
                }
                Decided::Put { request, kept } => {
                    let before = self.show(request.prev_kv, &request.key)?;
                    let put = self.put(claims, request, kept.as_deref())?;
                    self.push(TxnOperation::Put(put));
                    Step::Put { request, before }
                }
                Decided::Delete(request) if request.range_end.is_empty() => {
                    let before = self.show(request.prev_kv, &request.key)?;
                    let place = self.push(TxnOperation::Delete(key::of(&request.key)?));
                    Step::Delete { request, place, before }
                }
                Decided::Delete(request) => {
                    let range = key::range(&request.key, &request.range_end)?;
                    let all = Select { range: range.clone(), ..Select::default() };
                    let before = request.prev_kv.then(|| self.push(TxnOperation::Select(all)));
                    Step::Delete { request, place: self.push(TxnOperation::DeleteRange(range)), before }
                }
                Decided::Txn { succeeded, operations } => {
                    Step::Txn { succeeded: *succeeded, steps: self.add(claims, operations)? }
                }
            });
        }
        Ok(steps)
    }

    /// Adds an operation. Returns its place.
    fn push(&mut self, operation: TxnOperation) -> usize {
        self.operations.push(operation);
        self.operations.len() - 1
    }

    /// Shows a key, if that is wanted and fits.
    fn show(&mut self, is_wanted: bool, key: &[u8]) -> Result<Option<usize>, Error> {
        let key = key::of(key)?;
        Ok((is_wanted && !self.is_crowded).then(|| self.push(TxnOperation::Get(key))))
    }

    fn put(&mut self, claims: &Claims, request: &PutRequest, kept: Option<&Entry>) -> Result<Put, Error> {
        let key = key::of(&request.key)?;
        let value = match kept.filter(|_| request.ignore_value) {
            Some(kept) => kept.value.clone(),
            None => Value::new(&request.value).map_err(|_| Error::TooLarge)?,
        };
        if request.ignore_lease {
            return Ok(Put { key, value, lease: PutLease::Kept, claims: None });
        }
        if request.lease == 0 {
            return Ok(Put { key, value, lease: PutLease::None, claims: None });
        }
        let lease = Lease { session: key::session(request.lease), at_end: AtLeaseEnd::Delete };
        // Claims of one revision have no order: the first one stands for all.
        let claims = claims.lock(&key, request.lease).filter(|lock| self.claimed.insert(lock.clone()));
        Ok(Put { key, value, lease: PutLease::Given(lease), claims })
    }

    fn writes(&self) -> bool {
        !self.operations.iter().all(|operation| matches!(operation, TxnOperation::Get(_) | TxnOperation::Select(_)))
    }
}

/// A branch that ran.
struct Ran<'a> {
    branch: &'a Branch<'a>,
    committed: &'a Committed,
}

impl Ran<'_> {
    /// What the operation at this place selected.
    fn selected(&self, place: usize) -> Selected {
        match self.committed.results.get(place) {
            Some(TxnResult::Selected(selected)) => selected.clone(),
            Some(TxnResult::Got(_) | TxnResult::Put | TxnResult::Deleted(_) | TxnResult::Opened(_)) | None => {
                Selected::default()
            }
        }
    }

    /// The entries that the operation at this place shows.
    fn shown(&self, place: usize) -> Vec<KeyValue> {
        match (self.branch.operations.get(place), self.committed.results.get(place)) {
            (Some(TxnOperation::Get(key)), Some(TxnResult::Got(Some(entry)))) => vec![key_value(key, entry)],
            (_, Some(TxnResult::Selected(selected))) => {
                selected.entries.iter().map(|(key, entry)| key_value(key, entry)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Keys that the operation at this place deleted.
    fn deleted(&self, place: usize) -> u64 {
        if let Some(TxnResult::Deleted(count)) = self.committed.results.get(place) { *count } else { 0 }
    }
}

fn invalid(invalid: InvalidTxn) -> Error {
    match invalid {
        InvalidTxn::TooManyOperations { .. } => Error::TooManyOperations,
        InvalidTxn::TooLarge { .. } => Error::TooLarge,
        InvalidTxn::PutTwice { .. } => Error::DuplicateKey,
        InvalidTxn::ClaimWithoutLease { .. }
        | InvalidTxn::ClaimedTwice { .. }
        | InvalidTxn::OpenedTwice { .. }
        | InvalidTxn::NothingLeased { .. }
        | InvalidTxn::Value(_) => Error::Other(invalid.to_string()),
    }
}
