//! Locks, for clients that leave the recipe to the server.
//!
//! The caller's lease is the lock's. A caller without one gets a lease of [`LENT_TTL`](crate::lease::LENT_TTL) that nobody keeps alive, as
//! in etcd. Only a key that is a place in a lock's queue is unlocked; etcd deletes whatever key it is given.

use lockkeeper_machine::{Entry, Key};
use tonic::{Request, Response, Status};

use crate::{
    Etcd, EtcdStore,
    error::{Error, passes},
    key,
    proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse, lock_server::Lock},
};

#[tonic::async_trait]
impl<S: EtcdStore> Lock for Etcd<S> {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        let caller = self.caller(&request)?;
        let LockRequest { name, lease } = request.into_inner();
        let lease = self.lease_or_lent(&caller, lease).await?;
        let turn = self.turn(&caller, &name, lease.id(), &[]).await?;
        lease.keep();
        Ok(Response::new(LockResponse { header: self.header(turn.revision), key: key::shown(&turn.key).to_vec() }))
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Result<Response<UnlockResponse>, Status> {
        let caller = self.caller(&request)?;
        let key = key::from_wire(&request.into_inner().key)?;

        // One entry of the log: nearly always the key is there, with the lease that it names.
        let mut may_be_deleted = false;
        if let Some(lease) = key::named_lease(&key) {
            match self.leave_leased(&caller, &key, lease).await {
                Ok(Some(revision)) => return Ok(Response::new(UnlockResponse { header: self.header(revision) })),
                Ok(None) => {}
                Err(error) if passes(&error) => may_be_deleted = error.may_have_taken_effect(),
                Err(error) => return Err(error.into()),
            }
        }

        // It was not there, or had another lease, or no answer came.
        let found = self.patiently(|| self.store.get(&caller, vec![key.clone()], None)).await?;
        let revision = found.revision;
        let place = found.entries.into_iter().flatten().next().filter(|entry| is_place(&key, entry));
        let Some(entry) = place else {
            if may_be_deleted {
                return Ok(Response::new(UnlockResponse { header: self.header(revision) }));
            }
            return Err(Error::NotLocked { key: String::from_utf8_lossy(key::shown(&key)).into_owned() }.into());
        };

        // The key existed. An attempt of this call or another client has deleted it, so the lock is released in either case.
        let revision = self.leave(&caller, &key, entry.created).await?;
        Ok(Response::new(UnlockResponse { header: self.header(revision) }))
    }
}

/// Whether an entry is a place in a queue: its key ends with its lease.
fn is_place(key: &Key, entry: &Entry) -> bool {
    let lease = entry.lease.and_then(|lease| key::lease(lease.session));
    lease.is_some_and(|lease| key::queue(key, lease).is_some())
}
