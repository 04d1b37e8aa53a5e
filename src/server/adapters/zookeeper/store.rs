//! The store of `lockkeeper-zookeeper`: this node's copy of the table for reads, and requests to the leader for the rest.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::FutureExt as _;
use openraft::async_runtime::WatchReceiver as _;
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout_at},
};

use lockkeeper_environment::Random;
use lockkeeper_machine::{
    AtLeaseEnd, Attached, Committed, Compare, Identity, Key, Label, Lease, LockName, Operand, Put, PutChild, PutClaim,
    PutLease, Relation, Revision, Ttl, Txn, TxnFailure, TxnFailureReason, TxnOperation, TxnResult, Value, Version,
};
use lockkeeper_policy::{RequestSubject, Right};
use lockkeeper_zookeeper::{
    AppliedFeed, AppliedZnodes, AttachOutcome, CloseOutcome, NodeRole, NumberedSession, SessionStart, TxnRefusal,
    WriteRefusal, ZookeeperCaller, ZookeeperCommitted, ZookeeperCondition, ZookeeperIdentity, ZookeeperStore,
    ZookeeperStoreError, ZookeeperTxn, ZookeeperWrite,
};

use super::{
    copy::{self, CopyState, NodeCopy},
    leases::SessionLeases,
    names,
};
use crate::{
    adapters::{
        failure_class::FailureClass,
        keyspace_client::{KeyspaceClient, this_node},
    },
    api::{
        Caller, Deadline, Error, FailureReason as Reason,
        requests::{AttachSession, GetEntries, ListSessions, OpenSession, SetSessionOwner},
    },
    service::Serve,
};

/// The key of the secret from which the passwords of sessions are made. No client can name it.
const SECRET: &[u8] = b"zookeeper-secret";
/// Time limit of a request of the node itself.
const OWN_TIMEOUT: Duration = Duration::from_secs(4);

/// The cluster's keyspace, as this adapter sees it.
#[derive(Clone)]
pub(super) struct ZookeeperKeyspace {
    pub(super) client: KeyspaceClient,
    pub(super) copy: NodeCopy,
    pub(super) leases: SessionLeases,
    pub(super) random: Arc<dyn Random>,
    pub(super) secret: Arc<OnceCell<Vec<u8>>>,
}

impl fmt::Debug for ZookeeperKeyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZookeeperKeyspace").finish_non_exhaustive()
    }
}

impl ZookeeperStore for ZookeeperKeyspace {
    async fn open(
        &self,
        caller: &ZookeeperCaller,
        session: u64,
        ttl_ms: u64,
    ) -> Result<SessionStart, ZookeeperStoreError> {
        // What does not fit is refused there, with the limit.
        let ttl = Ttl::from_millis(u32::try_from(ttl_ms).unwrap_or(u32::MAX)).map_err(too_large)?;
        let id = names::session_id(session);
        let request = OpenSession { session: Some(id), ttl, label: label(caller) };

        // Who it is may be proven after the session is open, also where those without a proof may read at the most, and a certificate whose
        // identity may only read needs a session for that. Its writes ask for rights of their own.
        let service_caller = self.service_caller(caller);
        let access = self.client.service().access();
        let may_open = access.admit(&service_caller).is_ok()
            && access.allows(&service_caller, Right::Acquire, RequestSubject::Anywhere);
        let sent = Instant::now();
        // An identity with no right at all is refused as any other caller.
        let is_refused =
            service_caller.identity.is_some() && !access.allows(&service_caller, Right::Read, RequestSubject::Anywhere);
        if may_open || is_refused {
            self.call(caller, &service_caller, request).await?;
        } else {
            self.call(caller, &own(caller), request).await?;
            self.own_opened(caller, session).await?;
        }

        // A client whose session is over may open this one in its place, and must see nothing of the one before. Where many sessions end at
        // once, or one with very many nodes, their entries go over several entries of the log. Those that end later are no concern of it.
        let opened = self.applied_here(caller, |state| state.has_session(id)).await?.now();
        let state = self.applied_here(caller, |state| state.has_cleared(opened)).await?;
        Ok(self.begin(NumberedSession { session, number: 0 }, sent, ttl, &state))
    }

    async fn attach(&self, caller: &ZookeeperCaller, session: u64) -> Result<AttachOutcome, ZookeeperStoreError> {
        let id = names::session_id(session);
        // Before the call: a session is vouched for from the sending on, which is never longer than the table keeps it.
        let sent = Instant::now();
        // The client has proven by its password that the session is its own.
        let attached = self.client_call(caller, &own(caller), AttachSession { session: id }).await;

        match attached {
            Ok(attachment) => {
                let is_here = |state: &CopyState| state.attached(id).is_some_and(|last| last >= attachment.number);
                let state = self.applied_here(caller, is_here).await?;
                let attached = NumberedSession { session, number: attachment.number };
                Ok(AttachOutcome::Attached(self.begin(attached, sent, attachment.ttl, &state)))
            }
            Err(error) if is_session_over(&error) => {
                let revision = self.gone_here(caller, session).await?;
                Ok(AttachOutcome::Over { revision })
            }
            Err(error) => Err(failed(&error)),
        }
    }

    async fn set_owner(&self, caller: &ZookeeperCaller, session: u64) -> Result<(), ZookeeperStoreError> {
        let id = names::session_id(session);
        // Until every member knows owners of sessions, each write is checked for the rights of the identity in any case.
        let is_known = self.client.service().replica().versions().cluster() >= Version::LATE_OWNERS;
        if !is_known || self.copy.state().has_owner(id) {
            return Ok(());
        }

        let owned = self.client_call(caller, &self.service_caller(caller), SetSessionOwner { session: id }).await;
        match owned {
            // Another connection of its client has shown another identity meanwhile.
            Err(error) if error.reason == Reason::SessionExists => Ok(()),
            owned => owned.map(drop).map_err(|error| failed(&error)),
        }
    }

    async fn close(
        &self,
        caller: &ZookeeperCaller,
        attached: NumberedSession,
    ) -> Result<CloseOutcome, ZookeeperStoreError> {
        let NumberedSession { session, number } = attached;
        // Use one command: an attach between the check of the owner and the end would get a session that is over.
        let closing = Txn::new(Vec::new(), Vec::new(), Vec::new()).map_err(too_large)?;
        let closing = closing.closing(Attached { session: names::session_id(session), number });
        match self.client_call(caller, &own(caller), closing).await {
            Ok(_) => {}
            Err(error) if error.is_session_moved() => {
                return Ok(CloseOutcome::Moved { revision: self.copy.state().revision() });
            }
            Err(error) if is_session_over(&error) => {}
            Err(error) => return Err(failed(&error)),
        }

        let revision = self.gone_here(caller, session).await?;
        Ok(CloseOutcome::Over { revision })
    }

    fn note_alive(&self, attached: NumberedSession) {
        self.leases.note_alive(attached);
    }

    fn vouches_for(&self, attached: NumberedSession) -> bool {
        self.leases.vouches_for(attached)
    }

    async fn vouch(&self, attached: NumberedSession) -> bool {
        self.leases.vouch(attached).await
    }

    fn applied<T>(&self, look: impl FnOnce(&dyn AppliedZnodes) -> T) -> T {
        look(&*self.copy.state())
    }

    async fn catch_up(&self, caller: &ZookeeperCaller) -> Result<u64, ZookeeperStoreError> {
        // Any linearizable read says up to which entry of the log the leader has come.
        let request = ListSessions { after: None, last: None, page_size: 1, stale: false };
        let index = self.call(caller, &own(caller), request).await?.index;
        let state = self.applied_here(caller, |state| state.index() >= index).await?;
        Ok(state.revision())
    }

    async fn commit(
        &self,
        caller: &ZookeeperCaller,
        attached: Option<NumberedSession>,
        txn: ZookeeperTxn,
    ) -> Result<ZookeeperCommitted, ZookeeperStoreError> {
        let compiled = compile(caller, attached, &txn)?;
        let service_caller = self.service_caller(caller);
        let answer = self.client_call(caller, &service_caller, compiled).await;
        self.outcome(caller, attached, &txn, answer).await
    }

    async fn commit_each(
        &self,
        caller: &ZookeeperCaller,
        attached: NumberedSession,
        txns: Vec<ZookeeperTxn>,
    ) -> Vec<Result<ZookeeperCommitted, ZookeeperStoreError>> {
        let attached = Some(attached);
        if txns.len() > 1 {
            let compiled = txns.iter().map(|txn| compile(caller, attached, txn)).map_while(Result::ok).collect();
            let answers = self.client.commit_each(&self.service_caller(caller), caller.deadline, compiled).await;
            let mut outcomes = Vec::with_capacity(answers.len());
            for (txn, answer) in txns.iter().zip(answers) {
                outcomes.push(self.outcome(caller, attached, txn, answer).await);
            }
            if !outcomes.is_empty() {
                return outcomes;
            }
        }

        let mut outcomes = Vec::with_capacity(txns.len());
        for txn in txns {
            outcomes.push(self.commit(caller, attached, txn).await);
            if matches!(outcomes.last(), Some(Err(_))) {
                break;
            }
        }
        outcomes
    }

    async fn feed(&self) -> Result<AppliedFeed, ZookeeperStoreError> {
        Ok(self.copy.feed())
    }

    async fn secret(&self) -> Result<Vec<u8>, ZookeeperStoreError> {
        self.secret.get_or_try_init(|| self.read_or_make_secret()).await.cloned()
    }

    fn authenticate(
        &self,
        user: &str,
        password: &str,
        connection: Weak<()>,
    ) -> Result<Option<ZookeeperIdentity>, ZookeeperStoreError> {
        let access = self.client.service().access();
        let shown = access.token(password).ok().filter(|(identity, _)| identity.as_str() == user);
        let Some((identity, token)) = shown else { return Ok(None) };

        access.count_other_connection(&identity, connection).map_err(|error| failed(&error))?;
        let caller = Caller { identity: Some(identity), token: Some(token), ..Caller::default() };
        let withdrawn = Arc::clone(access).withdrawn(caller);
        Ok(Some(ZookeeperIdentity { name: user.to_owned(), withdrawn: withdrawn.map(drop).boxed() }))
    }

    fn admit(&self, identity: &str, connection: Weak<()>) -> Result<(), ZookeeperStoreError> {
        let identity = Identity::new(identity).map_err(|invalid| ZookeeperStoreError::Denied(invalid.to_string()))?;
        let access = self.client.service().access();
        access.count_other_connection(&identity, connection).map_err(|error| failed(&error))
    }

    fn needs_identity(&self) -> bool {
        !self.client.service().access().serves_anonymous()
    }

    fn may_read(&self, caller: &ZookeeperCaller, key: &[u8]) -> bool {
        let service_caller = self.service_caller(caller);
        let access = self.client.service().access();
        service_caller.is_peer
            || access.admit(&service_caller).is_ok()
                && access.allows(&service_caller, Right::Read, RequestSubject::Key(key))
    }

    fn role(&self) -> NodeRole {
        let replica = self.client.service().replica();
        let metrics = replica.raft().server_metrics();
        let is_alone = metrics.borrow_watched().membership_config.membership().nodes().count() == 1;
        if replica.leads() {
            if is_alone { NodeRole::Standalone } else { NodeRole::Leader }
        } else if self.client.service().leader().is_some() {
            NodeRole::Follower
        } else {
            NodeRole::Looking
        }
    }
}

impl ZookeeperKeyspace {
    fn service_caller(&self, caller: &ZookeeperCaller) -> Caller {
        if caller.is_port {
            return own(caller);
        }
        let deadline = Some(Deadline::at(caller.deadline));
        let identity = caller.identity.as_deref().and_then(|name| Identity::new(name).ok());
        Caller { remote: Some(caller.address.into()), identity, deadline, ..Caller::default() }
    }

    /// What became of a transaction, once it is applied at this node.
    async fn outcome(
        &self,
        caller: &ZookeeperCaller,
        attached: Option<NumberedSession>,
        txn: &ZookeeperTxn,
        answer: Result<Committed, Error>,
    ) -> Result<ZookeeperCommitted, ZookeeperStoreError> {
        match answer {
            Ok(committed) => {
                let revision = committed.revision;
                self.applied_here(caller, |state| copy::has_reached(state, revision)).await?;
                Ok(outcome(txn, committed))
            }
            Err(error) if error.is_session_moved() => {
                let revision = self.copy.state().revision();
                Ok(ZookeeperCommitted {
                    revision,
                    refusal: Some(TxnRefusal::SessionMoved),
                    ..ZookeeperCommitted::default()
                })
            }
            Err(error) => match attached {
                // The client learns that the session is over. Its entries must be invisible at this node by then.
                Some(NumberedSession { session, .. }) if is_session_over(&error) => {
                    let revision = self.gone_here(caller, session).await?;
                    Ok(ZookeeperCommitted {
                        revision,
                        refusal: Some(TxnRefusal::SessionOver),
                        ..ZookeeperCommitted::default()
                    })
                }
                Some(_) | None => Err(failed(&error)),
            },
        }
    }

    /// Gives a session that this node has opened in its own name to the identity of the caller, if it has one.
    async fn own_opened(&self, caller: &ZookeeperCaller, session: u64) -> Result<(), ZookeeperStoreError> {
        if caller.identity.is_none() {
            return Ok(());
        }
        let owned = self.set_owner(caller, session).await;
        if owned.is_err() {
            // A session too many: its client is told nothing of it. The time of the client's call may be over.
            let caller = ZookeeperCaller { deadline: Instant::now() + OWN_TIMEOUT, ..caller.clone() };
            let _ = self.close(&caller, NumberedSession { session, number: 0 }).await;
        }
        owned
    }

    fn begin(&self, attached: NumberedSession, sent: Instant, ttl: Ttl, state: &CopyState) -> SessionStart {
        self.leases.begin(attached, sent, Duration::from_millis(ttl.as_millis().into()));
        SessionStart { attached, ttl_ms: ttl.as_millis().into(), revision: state.revision() }
    }

    /// Waits until this node shows a state for which this holds. What was asked for has happened already, so a failure is not *nothing
    /// happened*.
    async fn applied_here(
        &self,
        caller: &ZookeeperCaller,
        is_there: impl Fn(&CopyState) -> bool,
    ) -> Result<Arc<CopyState>, ZookeeperStoreError> {
        let state = self.copy.wait_for(caller.deadline, is_there).await;
        state.ok_or_else(|| ZookeeperStoreError::Unknown("this node lags behind the leader".to_owned()))
    }

    /// Waits until this node shows no entry of a session that is over, however far it lags.
    async fn gone_here(&self, caller: &ZookeeperCaller, session: u64) -> Result<u64, ZookeeperStoreError> {
        self.catch_up(caller).await?;
        let id = names::session_id(session);
        let state = self.applied_here(caller, |state| state.is_cleared(id)).await?;
        Ok(state.revision())
    }

    async fn call<C: Serve + Clone>(
        &self,
        caller: &ZookeeperCaller,
        service_caller: &Caller,
        request: C,
    ) -> Result<C::Reply, ZookeeperStoreError> {
        self.client_call(caller, service_caller, request).await.map_err(|error| failed(&error))
    }

    async fn client_call<C: Serve + Clone>(
        &self,
        caller: &ZookeeperCaller,
        service_caller: &Caller,
        request: C,
    ) -> Result<C::Reply, Error> {
        let answer = timeout_at(caller.deadline, self.client.call(service_caller, request)).await;
        answer.unwrap_or_else(|_| Err(Error::deadline_passed(C::CHANGES)))
    }

    /// The secret, which the first node that needs it draws: the others find it.
    async fn read_or_make_secret(&self) -> Result<Vec<u8>, ZookeeperStoreError> {
        let caller = Caller { deadline: Some(Deadline::at(Instant::now() + OWN_TIMEOUT)), ..this_node() };
        let key = Key::new(SECRET).map_err(too_large)?;
        let drawn = [self.random.bits(), self.random.bits()].map(u128::to_be_bytes).concat();

        let absent = Compare { key: key.clone(), up_to: None, relation: Relation::Equal, operand: Operand::Version(0) };
        let value = Value::new(&drawn).map_err(too_large)?;
        let put = Put { key: key.clone(), value, lease: PutLease::None, claims: None };
        let txn = Txn::new(vec![absent], vec![TxnOperation::Put(put)], Vec::new()).map_err(too_large)?;
        self.client.call(&caller, txn).await.map_err(|error| failed(&error))?;

        let request = GetEntries { keys: vec![key], at: None, on_time: false };
        let found = self.client.call(&caller, request).await.map_err(|error| failed(&error))?;
        let secret = found.entries.into_iter().flatten().next();
        let missing = || ZookeeperStoreError::NotExecuted("the secret of sessions is missing: try again".to_owned());
        secret.map(|entry| entry.value.as_bytes().to_vec()).ok_or_else(missing)
    }
}

/// The node itself, in the time of a client.
fn own(caller: &ZookeeperCaller) -> Caller {
    Caller { deadline: Some(Deadline::at(caller.deadline)), ..this_node() }
}

/// Who claims locks, for operators.
fn label(caller: &ZookeeperCaller) -> Label {
    Label::new(&caller.address.to_string()).unwrap_or_default()
}

/// The transaction of the machine that does this.
fn compile(
    caller: &ZookeeperCaller,
    attached: Option<NumberedSession>,
    txn: &ZookeeperTxn,
) -> Result<Txn, ZookeeperStoreError> {
    let compares = txn.conditions.iter().map(compare).collect::<Result<Vec<_>, _>>()?;
    let mut claimed = BTreeSet::new();
    let operations = txn.writes.iter().map(|write| operation(caller, write, &mut claimed));
    let then = operations.collect::<Result<Vec<_>, _>>()?;
    let get = |bytes: &Vec<u8>| Ok(TxnOperation::Get(key(bytes)?));
    let otherwise = txn.otherwise_get.iter().map(get).collect::<Result<Vec<_>, ZookeeperStoreError>>()?;

    let compiled = Txn::new(compares, then, otherwise).map_err(too_large)?.falling_back();
    Ok(match attached {
        None => compiled,
        Some(NumberedSession { session, number }) => {
            compiled.by_attached(Attached { session: names::session_id(session), number })
        }
    })
}

fn compare(condition: &ZookeeperCondition) -> Result<Compare, ZookeeperStoreError> {
    let operand = Operand::Modified(Revision(condition.modified));
    Ok(Compare { key: key(&condition.key)?, up_to: None, relation: Relation::Equal, operand })
}

/// The operation of a write, which claims no lock that an earlier one of its transaction has claimed: claims of one revision have no order,
/// so the first place in a queue stands for all that a client takes at once.
fn operation(
    caller: &ZookeeperCaller,
    write: &ZookeeperWrite,
    claimed: &mut BTreeSet<LockName>,
) -> Result<TxnOperation, ZookeeperStoreError> {
    Ok(match write {
        ZookeeperWrite::CreateChild { parent, key: bytes, is_numbered, value, owner } => {
            let lock = owner.and_then(|_| names::lock_of(parent, bytes, *is_numbered));
            let lock = lock.filter(|lock| claimed.insert(lock.clone()));
            let claims = lock.map(|lock| PutClaim { lock, label: label(caller) });
            let lease = owner.map_or(PutLease::None, |session| {
                PutLease::Given(Lease { session: names::session_id(session), at_end: AtLeaseEnd::Delete })
            });
            let put = Put { key: key(bytes)?, value: bytes_of(value)?, lease, claims };
            TxnOperation::PutChild(PutChild { parent: key(parent)?, put, is_numbered: *is_numbered })
        }
        ZookeeperWrite::Put { key: bytes, value } => {
            TxnOperation::Put(Put { key: key(bytes)?, value: bytes_of(value)?, lease: PutLease::Kept, claims: None })
        }
        ZookeeperWrite::Delete { key: bytes } => TxnOperation::Delete(key(bytes)?),
    })
}

/// What the machine says became of a transaction.
fn outcome(txn: &ZookeeperTxn, committed: Committed) -> ZookeeperCommitted {
    let revision = committed.revision.0;
    let Some(failure) = committed.failed.filter(|_| !committed.succeeded) else {
        let created = committed
            .results
            .into_iter()
            .map(|result| if let TxnResult::PutChild(key) = result { Some(key.as_bytes().to_vec()) } else { None });
        return ZookeeperCommitted { revision, created: created.collect(), ..ZookeeperCommitted::default() };
    };

    let refusal = match failure {
        TxnFailure::Compare(index) => TxnRefusal::Condition(index as usize),
        TxnFailure::Operation { index, reason } => {
            TxnRefusal::Write { index: index as usize, reason: write_refusal(reason) }
        }
    };
    let found = committed
        .results
        .into_iter()
        .map(|result| if let TxnResult::Got(entry) = result { entry.as_deref().map(copy::stored) } else { None });
    let found: Vec<_> = found.take(txn.otherwise_get.len()).collect();
    ZookeeperCommitted { revision, created: Vec::new(), refusal: Some(refusal), found }
}

fn write_refusal(reason: TxnFailureReason) -> WriteRefusal {
    match reason {
        TxnFailureReason::NoParent => WriteRefusal::NoParent,
        // Only an entry with an owner ends, and none with children is given one.
        TxnFailureReason::ParentEnds | TxnFailureReason::ParentCannotEnd => WriteRefusal::ParentEnds,
        TxnFailureReason::ChildExists | TxnFailureReason::PutTwice => WriteRefusal::Exists,
        TxnFailureReason::ChildrenLeft => WriteRefusal::HasChildren,
    }
}

fn key(bytes: &[u8]) -> Result<Key, ZookeeperStoreError> {
    Key::new(bytes).map_err(too_large)
}

fn bytes_of(value: &[u8]) -> Result<Value, ZookeeperStoreError> {
    Value::new(value).map_err(too_large)
}

fn too_large(invalid: impl fmt::Display) -> ZookeeperStoreError {
    ZookeeperStoreError::TooLarge(invalid.to_string())
}

fn is_session_over(error: &Error) -> bool {
    matches!(error.reason, Reason::SessionExpired | Reason::SessionClosed | Reason::SessionUnknown)
}

fn failed(error: &Error) -> ZookeeperStoreError {
    let kind = match FailureClass::from(error) {
        // The id that was drawn for a new session is taken.
        _ if error.reason == Reason::SessionExists => ZookeeperStoreError::NotExecuted,
        FailureClass::Denied => ZookeeperStoreError::Denied,
        FailureClass::TooLarge => ZookeeperStoreError::TooLarge,
        FailureClass::Full => ZookeeperStoreError::Full,
        FailureClass::Overloaded | FailureClass::Unavailable => ZookeeperStoreError::NotExecuted,
        FailureClass::Unknown => ZookeeperStoreError::Unknown,
    };
    kind(error.message.to_string())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    #[test]
    fn places_of_one_queue_that_are_taken_at_once_claim_its_lock_once() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let deadline = Instant::now() + OWN_TIMEOUT;
        let caller = ZookeeperCaller { identity: None, address, deadline, is_port: false };
        let place = |parent: &str, name: &str| ZookeeperWrite::CreateChild {
            parent: format!("zookeeper\0{parent}").into_bytes(),
            key: format!("zookeeper/{parent}\0{name}-").into_bytes(),
            is_numbered: true,
            value: Arc::default(),
            owner: Some(1),
        };
        let writes = vec![place("lock", "a"), place("lock", "a"), place("lock", "b"), place("other", "a")];
        let txn = ZookeeperTxn { writes, ..ZookeeperTxn::default() };
        let compiled = compile(&caller, None, &txn).expect("a transaction");
        let claims = compiled.then().iter().map(|operation| operation.put()?.claims.as_ref()).collect::<Vec<_>>();
        assert_eq!(claims.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false, true]);
    }
}
