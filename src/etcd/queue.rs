//! A queue of keys, as etcd's recipes for locks and elections have it.
//!
//! A contender puts the key `NAME/LEASE`, with its lease; the oldest key under `NAME/` has its turn, and each other one waits until the
//! one before it is deleted. These are the keys that client-side recipes put, so all of them exclude each other.
//!
//! * **No key of a disconnected caller blocks the queue**: the key is deleted, even while it is still being put. So are the keys of all
//!   callers that wait at a node that is stopped. (A node that dies leaves them until their leases end.) A contender whose own key is
//!   deleted, such as by the end of its lease, fails at once.
//! * **A key that is there already is taken up again**, with its place: the caller repeats a request whose answer was lost. The key is
//!   written again, so that the end of the earlier request, which may be noticed late, does not delete what the later one waits for or
//!   holds. If the key had its turn before, it has it still, and keeps it when the later request is cancelled.
//! * **A caller keeps its place over a change of leader**: an interrupted request is repeated.
//! * **A caller that loses its rights while it waits** has left the queue before it is refused. It believes then that it holds nothing, and
//!   would not unlock what its key is granted later.

use std::{future::Future, sync::Arc, time::Duration};

use futures::StreamExt as _;
use lockkeeper_machine::{
    AtLeaseEnd, Bounds, Compare, Entry, Key, KeyRange, Lease, Operand, Put, PutClaim, PutLease, Relation, Revision,
    Select, Shows, SortBy, Txn, TxnOperation, TxnResult, Value,
};
use lockkeeper_planted::Planted;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

use crate::{
    Etcd, EtcdStore, EtcdStoreError, WatchedEvents,
    error::{Error, passes},
    follow::Followed,
    key,
};

/// How long a write is repeated while it fails for a reason that passes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// A key that has its turn.
pub(crate) struct QueueTurn {
    pub(crate) key: Key,
    /// Its create revision: the token.
    pub(crate) created: Revision,
    /// The revision that shows it as the oldest.
    pub(crate) revision: Revision,
}

impl<S: EtcdStore> Etcd<S> {
    /// Waits for a turn, with this value of the key. Dropping the future withdraws from the queue, and so does a refusal, before it is
    /// returned.
    pub(crate) async fn turn(
        &self,
        caller: &S::Caller,
        name: &[u8],
        lease: i64,
        value: &[u8],
    ) -> Result<QueueTurn, Error> {
        let (prefix, range) = under(name)?;
        let key = key::from_wire(&[&prefix, key::hex(lease).as_bytes()].concat())?;
        let value = Value::new(value).map_err(|_| Error::TooLarge)?;
        let txn = joining(&range, &key, lease, value)?;

        loop {
            // This runs in its own task, so it completes even if the caller disconnects. The key that it puts is then deleted.
            let joining = self.clone().join(caller.clone(), key.clone(), txn.clone());
            let joined = tokio::spawn(joining).await.map_err(|error| Error::Other(error.to_string()))??;
            let Joined { place, is_new, first } = joined;

            let revision = match first {
                Some(revision) => Ok(revision),
                None => tokio::select! {
                    // A turn that has come counts.
                    biased;
                    revision = self.wait(caller, &range, &place, lease) => revision,
                    denied = self.store.denied(caller, &txn) => Err(denied.into()),
                },
            };

            match revision {
                Ok(revision) => return Ok(QueueTurn { created: place.keep(), key, revision }),
                // The request that put it deleted it.
                Err(Error::PlaceLost) if !is_new => {}
                // The answer waits for it: once all requests are answered, this process ends. A caller that is refused asks no more.
                Err(error) if error == Error::Stopped || error.is_refusal() => {
                    place.leave().await?;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Puts the key; one that is there keeps its place.
    async fn join(self, caller: S::Caller, key: Key, txn: Txn) -> Result<Joined<S>, Error> {
        let committed = self.patiently(|| self.store.commit(&caller, txn.clone())).await?;

        let mut created = committed.revision;
        let mut oldest = None;
        for result in &committed.results {
            match result {
                TxnResult::Got(Some(found)) => created = found.created,
                TxnResult::Selected(selected) => oldest = selected.entries.first().map(|(_, oldest)| oldest.created),
                TxnResult::Got(None) | TxnResult::Put | TxnResult::Expires(_) => {}
                TxnResult::Deleted(_) | TxnResult::Opened(_) | TxnResult::PutChild(_) => {}
            }
        }

        let is_new = committed.succeeded;
        let is_first = oldest == Some(created);
        let written = committed.revision;
        let place = QueuePlace { etcd: self, caller, key, created, written, is_kept: is_first && !is_new };
        Ok(Joined { place, is_new, first: is_first.then_some(committed.revision) })
    }

    /// Waits until no older key is there. Returns a revision that shows it.
    async fn wait(
        &self,
        caller: &S::Caller,
        range: &KeyRange,
        place: &QueuePlace<S>,
        lease: i64,
    ) -> Result<Revision, Error> {
        loop {
            let (standing, revision) = self.patiently(|| self.standing(caller, range, place)).await?;
            let ahead = match standing {
                Standing::Gone => return Err(self.why_gone(caller, lease).await?),
                Standing::First => return Ok(revision),
                Standing::Behind(ahead) => ahead,
            };

            // What happened up to this revision shows in where the key stands.
            let from = Some(Revision(revision.0 + 1));
            let follow =
                |key: &Key| Ok::<_, Error>(self.follow(caller, key::range(key::shown(key), &[])?, from, false));
            let mut ahead = follow(&ahead)?;
            let mut own = follow(&place.key)?;

            let ended = tokio::select! {
                ended = deleted(&mut ahead) => ended,
                ended = deleted(&mut own) => ended,
            };

            match ended {
                // Missed events do not matter: the entries are read again.
                Ok(()) | Err(EtcdStoreError::Compacted { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The place of a key in its queue, at a revision.
    ///
    /// Reads this node's copy of the table, once it has the key, without asking the leader. The copy is newer than this request, and a key
    /// that was first stays first, because a key that is created later is behind it. So the answer is as good as that of a write, however
    /// late it comes.
    async fn standing(
        &self,
        caller: &S::Caller,
        range: &KeyRange,
        place: &QueuePlace<S>,
    ) -> Result<(Standing, Revision), Error> {
        // The key itself, and the next one ahead of it.
        let (selected, revision) = self.store.select_from_copy(caller, up_to(place.created, range, 2)).await?;
        let own = |(key, entry): &(Key, Arc<Entry>)| *key == place.key && entry.created == place.created;
        let is_there = selected.entries.iter().any(own);
        let ahead = selected.entries.into_iter().find(|(_, entry)| entry.created < place.created);

        // Otherwise keys of the same transaction, which have the same age, may hide them.
        let is_clear = !selected.more || (is_there && ahead.is_some());
        // A copy without the key's own write would take the key for deleted.
        let is_behind = revision < place.written && !Planted::CopyBehindItsWrite.is_on();
        if is_behind || !is_clear {
            return self.standing_at_leader(caller, range, place).await;
        }

        let standing = match ahead {
            _ if !is_there => Standing::Gone,
            Some((ahead, _)) => Standing::Behind(ahead),
            None => Standing::First,
        };
        Ok((standing, revision))
    }

    /// The same by the leader. However long the queue is, that is two small reads.
    async fn standing_at_leader(
        &self,
        caller: &S::Caller,
        range: &KeyRange,
        place: &QueuePlace<S>,
    ) -> Result<(Standing, Revision), Error> {
        // Like etcd's recipe: keys of one transaction have the same age, and none of them is ahead of another.
        let older = up_to(Revision(place.created.0.saturating_sub(1)), range, 1);
        let (selected, revision) = self.store.select(caller, older, None).await?;

        let own = self.store.get(caller, vec![place.key.clone()], Some(revision)).await;
        // Forgotten between the two reads: both are made again.
        let own = own.map_err(|error| {
            if matches!(error, EtcdStoreError::Compacted { .. }) { Error::TooManyRequests } else { error.into() }
        })?;

        let is_there = own.entries.into_iter().flatten().any(|entry| entry.created == place.created);
        let standing = match selected.entries.into_iter().next() {
            _ if !is_there => Standing::Gone,
            Some((ahead, _)) => Standing::Behind(ahead),
            None => Standing::First,
        };
        Ok((standing, revision))
    }

    async fn why_gone(&self, caller: &S::Caller, lease: i64) -> Result<Error, Error> {
        let session = self.patiently(|| self.store.session(caller, key::session(lease), false)).await?;
        Ok(if session.is_some() { Error::PlaceLost } else { Error::LeaseNotFound })
    }

    /// Writes the value of a key that was created at this revision. Returns the revision.
    pub(crate) async fn proclaim(
        &self,
        caller: &S::Caller,
        key: &Key,
        created: Revision,
        lease: i64,
        value: &Value,
    ) -> Result<Revision, Error> {
        let lease_of = Lease { session: key::session(lease), at_end: AtLeaseEnd::Delete };
        let claims = key::queue(key, lease).map(PutClaim::from);
        let put = Put { key: key.clone(), value: value.clone(), lease: PutLease::Given(lease_of), claims };

        let txn = Txn::new(vec![is_at(key, Operand::Created(created))], vec![TxnOperation::Put(put)], Vec::new());
        let txn = txn.map_err(|_| Error::TooLarge)?;
        let committed = self.patiently(|| self.store.commit(caller, txn.clone())).await?;
        if committed.succeeded { Ok(committed.revision) } else { Err(Error::NotLeader) }
    }

    /// Deletes a key that was created at this revision, if it is there. Returns the revision.
    pub(crate) async fn leave(&self, caller: &S::Caller, key: &Key, created: Revision) -> Result<Revision, Error> {
        let txn = delete_if(is_at(key, Operand::Created(created)))?;
        let committed = self.patiently(|| self.store.commit(caller, txn.clone())).await?;
        Ok(committed.revision)
    }

    /// Deletes a key whose lease is this one. Returns the revision, or `None` if there is no such key.
    pub(crate) async fn leave_leased(
        &self,
        caller: &S::Caller,
        key: &Key,
        lease: i64,
    ) -> Result<Option<Revision>, Error> {
        let txn = delete_if(is_at(key, Operand::Lease(Some(key::session(lease)))))?;
        let committed = self.store.commit(caller, txn).await?;
        Ok(committed.succeeded.then_some(committed.revision))
    }

    /// Deletes a key that was written last at this revision, if it is there: its caller is gone or refused, or this node stops.
    async fn withdraw(&self, caller: &S::Caller, key: &Key, written: Revision) -> Result<(), Error> {
        let withdrawn = async {
            let wrote = if Planted::RetryLosesPlace.is_on() {
                Compare { relation: Relation::NotEqual, ..is_at(key, Operand::Modified(Revision(0))) }
            } else {
                is_at(key, Operand::Modified(written))
            };
            let txn = delete_if(wrote)?;
            self.patiently(|| self.store.withdraw(caller, txn.clone())).await
        };

        withdrawn.await.map(drop).inspect_err(|error| {
            tracing::debug!(%error, ?key, "the key of a caller that waits no more is not deleted; it stays until its lease ends");
        })
    }

    /// Repeats what fails for a reason that passes. All that is repeated here may take effect twice.
    pub(crate) async fn patiently<T, E, F>(&self, attempt: impl Fn() -> F) -> Result<T, Error>
    where
        E: Into<Error>,
        F: Future<Output = Result<T, E>>,
    {
        let began = Instant::now();
        loop {
            match attempt().await.map_err(Into::into) {
                Err(error) if passes(&error) && began.elapsed() < PATIENCE => sleep(PAUSE).await,
                outcome => return outcome,
            }
        }
    }
}

/// What the keys of a name begin with, and their range.
pub(crate) fn under(name: &[u8]) -> Result<(Vec<u8>, KeyRange), Error> {
    let prefix = [name, b"/"].concat();
    let end = [name, b"0"].concat();
    let range = key::range(&prefix, &end)?;
    Ok((prefix, range))
}

/// A key in a queue. It leaves when it is dropped, unless it is kept.
struct QueuePlace<S: EtcdStore> {
    etcd: Etcd<S>,
    caller: S::Caller,
    key: Key,
    created: Revision,
    /// When this request wrote it. A later write is another request's.
    written: Revision,
    is_kept: bool,
}

impl<S: EtcdStore> QueuePlace<S> {
    fn keep(mut self) -> Revision {
        self.is_kept = true;
        self.created
    }

    /// Gives the place up. Returns once it is free. Fails if it may not be.
    async fn leave(mut self) -> Result<(), Error> {
        if self.is_kept {
            return Ok(());
        }
        self.is_kept = true;
        self.etcd.withdraw(&self.caller, &self.key, self.written).await
    }
}

impl<S: EtcdStore> Drop for QueuePlace<S> {
    fn drop(&mut self) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.is_kept {
            return;
        }

        let etcd = self.etcd.clone();
        let caller = self.caller.clone();
        let key = self.key.clone();
        let written = self.written;
        runtime.spawn(async move { etcd.withdraw(&caller, &key, written).await });
    }
}

/// A key that is in its queue.
struct Joined<S: EtcdStore> {
    place: QueuePlace<S>,
    /// It was not there before.
    is_new: bool,
    /// The revision that shows it as the oldest.
    first: Option<Revision>,
}

/// The place of a key in its queue.
enum Standing {
    Gone,
    First,
    Behind(Key),
}

/// The transaction that puts a key into its queue.
fn joining(range: &KeyRange, key: &Key, lease: i64, value: Value) -> Result<Txn, Error> {
    let put = TxnOperation::Put(Put {
        key: key.clone(),
        value,
        lease: PutLease::Given(Lease { session: key::session(lease), at_end: AtLeaseEnd::Delete }),
        claims: key::queue(key, lease).map(PutClaim::from),
    });

    let by = if Planted::QueueByKey.is_on() { SortBy::Key } else { SortBy::Created };
    let oldest = Select { range: range.clone(), by, limit: 1, shows: Shows::Keys, ..Select::default() };
    let oldest = TxnOperation::Select(oldest);

    // The transaction that puts the key also shows the oldest one: the first in the queue needs no read.
    let then = vec![put.clone(), oldest.clone()];
    // A key that is there keeps its create revision, which is its token: only the entry shows it.
    let otherwise = vec![TxnOperation::Get(key.clone()), put, oldest];
    let is_absent = is_at(key, Operand::Created(Revision(0)));
    Txn::new(vec![is_absent], then, otherwise).map_err(|_| Error::TooLarge)
}

/// The latest keys of a range that were created up to a revision.
fn up_to(created: Revision, range: &KeyRange, limit: u32) -> Select {
    let created = Bounds { max: Some(created), ..Bounds::default() };
    Select {
        range: range.clone(),
        created,
        by: SortBy::Created,
        is_descending: true,
        limit,
        shows: Shows::Keys,
        ..Select::default()
    }
}

/// Returns when a key is deleted.
async fn deleted(events: &mut Followed) -> Result<(), EtcdStoreError> {
    loop {
        let WatchedEvents { events, .. } = events.next().await.unwrap_or(Err(EtcdStoreError::Stopping))?;
        if events.iter().any(|event| event.after.is_none()) {
            return Ok(());
        }
    }
}

/// Deletes the key of a condition that holds.
fn delete_if(condition: Compare) -> Result<Txn, Error> {
    let delete = vec![TxnOperation::Delete(condition.key.clone())];
    Txn::new(vec![condition], delete, Vec::new()).map_err(|_| Error::TooLarge)
}

/// The condition that a key has this property.
fn is_at(key: &Key, operand: Operand) -> Compare {
    Compare { key: key.clone(), up_to: None, relation: Relation::Equal, operand }
}
