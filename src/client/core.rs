//! The state that the tasks of a session share: its identity, its lease, its requests.
//!
//! It lies below [`super::Session`], which closes the session when it is dropped, and below [`super::Guard`]: a task that has only this
//! does not keep the session open.

use std::{fmt, sync::Arc, time::Duration};

use tokio::runtime::Handle as Runtime;

use super::{
    Client, Error, Loss, Refusal, Revocation,
    call::with,
    closing::close_session,
    lease::{Lease, RenewalAnswer, counted_from},
    requests::Requests,
};
use lockkeeper_proto::v1::{self, sessions_client::SessionsClient};
use lockkeeper_types::SessionId;

/// The state that the session's tasks share.
pub(crate) struct Core {
    pub(crate) client: Client,
    pub(crate) id: SessionId,
    pub(crate) ttl: Duration,
    pub(crate) lease: Lease,
    pub(crate) requests: Requests,
    runtime: Runtime,
}

impl Core {
    pub(super) fn new(client: &Client, id: SessionId, ttl: Duration, lease: Lease) -> Self {
        let runtime = Runtime::current();
        Self { client: client.clone(), id, ttl, lease, requests: Requests::default(), runtime }
    }

    /// Runs the task in the background. Works also from threads that do not belong to tokio.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// Runs a request of the session until it is answered or the session is lost, unless the call has a limit of its
    /// own.
    pub(crate) async fn while_alive<A>(&self, call: impl Future<Output = Result<A, Error>>) -> Result<A, Error> {
        let answer = tokio::select! {
            biased;
            answer = call => answer,
            loss = self.lease.lost(None) => Err(Error::Lost(loss)),
        };
        answer.map_err(|error| self.learn(error))
    }

    /// A refusal can be the first report that the session is over.
    fn learn(&self, error: Error) -> Error {
        let loss = if let Error::Refused(refused) = &error { loss_of(&refused.reason) } else { None };
        let Some(loss) = loss else { return error };
        self.lease.end(loss.clone());
        Error::Lost(loss)
    }

    pub(super) async fn renew(&self) -> Result<(), Error> {
        let renewed = renew(&self.client, self.id).await.map_err(|error| self.learn(error))?;
        self.lease.renewed(renewed);
        Ok(())
    }

    /// Tells the cluster that the session is over.
    pub(super) async fn close(&self) -> Result<(), Error> {
        let request = v1::CloseSessionRequest { session_id: self.id.to_string(), reason: String::new() };
        let policy = self.client.caller.policy();
        match self.client.caller.call(policy, |node| close_session(node, &request)).await {
            Ok(v1::CloseSessionResponse {}) => Ok(()),
            // It was over before, as requested.
            Err(Error::Refused(refused)) if loss_of(&refused.reason).is_some() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Like [`Core::close`], but best effort: if it fails, the session expires.
    pub(crate) async fn close_in_background(self: Arc<Self>) {
        if let Err(error) = self.close().await {
            tracing::debug!(session = %self.id, %error, "the session was not closed; it expires by itself");
        }
    }
}

/// Renews a session once, by a separate call.
pub(super) async fn renew(client: &Client, id: SessionId) -> Result<RenewalAnswer, Error> {
    let caller = &client.caller;
    let request = v1::RenewSessionRequest { session_id: id.to_string() };
    let sent = std::sync::Mutex::new(caller.clock.now());
    let call = caller.call(caller.policy(), |node| {
        // An answer belongs to the last attempt, so its sending time counts.
        *sent.lock().expect("no code panics while it holds this lock") = caller.clock.now();
        with!(SessionsClient, node, renew, request)
    });
    let v1::RenewSessionResponse { ttl_ms, revoked, more_revoked } = call.await?;

    let sent = *sent.lock().expect("no code panics while it holds this lock");
    let sent = counted_from(sent, &*caller.clock);
    let revoked = revoked.into_iter().map(Revocation::from_wire).collect();
    Ok(RenewalAnswer { sent, ttl: Duration::from_millis(ttl_ms.into()), revoked, more_revoked })
}

/// The loss of the session that a refusal implies, if any.
pub(super) fn loss_of(reason: &Refusal) -> Option<Loss> {
    match reason {
        Refusal::SessionUnknown => Some(Loss::Unknown),
        Refusal::SessionExpired => Some(Loss::Expired),
        Refusal::SessionClosed => Some(Loss::Closed),
        Refusal::InvalidArgument
        | Refusal::SessionExists
        | Refusal::NotHeld
        | Refusal::Revoked
        | Refusal::ModeMismatch
        | Refusal::LockUnknown
        | Refusal::Abandoned
        | Refusal::RequestStale
        | Refusal::RequestReused
        | Refusal::WaitCancelled
        | Refusal::WaitRemoved
        | Refusal::NotSemaphore
        | Refusal::ClusterVersion
        | Refusal::Unauthenticated
        | Refusal::PermissionDenied
        | Refusal::NotOwner
        | Refusal::RevisionCompacted
        | Refusal::RevisionFuture
        | Refusal::LimitReached
        | Refusal::Overloaded
        | Refusal::DiskSpaceLow
        | Refusal::NoLeader
        | Refusal::ShuttingDown
        | Refusal::OutcomeUnknown
        | Refusal::DeadlineExceeded
        | Refusal::MembershipRefused
        | Refusal::MembershipChanging
        | Refusal::Internal
        | Refusal::Other(_) => None,
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("lease", &self.lease).finish_non_exhaustive()
    }
}
