//! Sessions that outlive the process that opened them, or that several processes share.
//!
//! A [`super::Session`] lives and dies with its process, which suits most programs. A shell script is a sequence of
//! processes; so is a job that moves from host to host. For these, a session is an id: one process opens it, another
//! keeps it alive, others acquire and release.
//!
//! The two guarantees of a [`super::Session`] are then up to the caller:
//!
//! * *Safety*: a process that only acquires does not receive renewals and cannot know until when to trust its grant.
//!   The process that keeps the session alive can, and reports its end ([`AttachedSession::keep_alive`]). The token
//!   protects the resource in any case.
//! * *No leaks*: a grant is held until it is released; a session lives until it is closed or is not renewed for its
//!   TTL.
//!
//! Requests are still executed once, however often they are sent. `numbers` shows how, without a process that counts
//! them.
//!
//! Left out: attaching to a live [`super::Session`]. It numbers its requests itself; foreign requests interfere when
//! the session's reply memory is full.

mod acquire;
mod numbers;

use std::{collections::BTreeSet, pin::pin, time::Duration};

pub use self::acquire::AttachedAcquire;
use self::numbers::Numbered;
use super::{
    Client, Danger, Error, Moment, NewData, Revocation, SessionOptions,
    call::with,
    closing::close_session,
    core::{self, Core, loss_of},
    keep_alive,
    lease::{self, Lease, RenewalAnswer},
    session,
};
use lockkeeper_proto::v1::{
    CloseSessionRequest, CloseSessionResponse, ReleaseRequest, UpdateRequest, locks_client::LocksClient,
    release_request::Target,
};
use lockkeeper_types::{LockName, SessionId, Token};

/// A session by its id. Cheap to clone. It is renewed only by [`AttachedSession::keep_alive`], and not closed on drop.
///
/// ```no_run
/// # use lockkeeper_client::{Client, Error, types::{Acquire, LockName, Mode, SessionId, Wait, Want}};
/// # async fn example(client: Client, id: SessionId) -> Result<(), Error> {
/// let session = client.attach(id);
/// let name = LockName::new("jobs/nightly")?;
/// let want = Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false };
/// let token = session.acquire(Acquire::new(vec![want], Wait::Forever, 0)?).granted().await?;
/// // … the token may be released by another process, which attaches to the same id.
/// session.release(token).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AttachedSession {
    client: Client,
    id: SessionId,
}

/// The result of an open or a renewal of an [`AttachedSession`].
#[derive(Clone, PartialEq, Debug)]
pub struct Renewal {
    /// How long the session lives without another renewal.
    pub ttl: Duration,
    /// Until when it may be trusted, on the client's clock: the moment of sending, plus the TTL, less a margin for
    /// clock rates (1 %, at least 10 ms).
    pub deadline: Moment,
    /// Time left until then.
    pub remaining: Duration,
    /// Grants that an operator revoked and that are not released yet. A grant that is over has no time left: its
    /// release fails with [`super::Loss::Revoked`], and the cluster then drops its record.
    pub revoked: Vec<Revocation>,
    /// There are more revoked grants. They are reported after these are released and the session is renewed again.
    pub more_revoked: bool,
}

impl Client {
    /// Opens a session that can outlive this process. It is not kept alive: it expires after its TTL.
    ///
    /// Fails with [`Error::Invalid`], with [`Error::NoCluster`], or with [`Error::Unknown`]: then a session with an
    /// unknown id may remain, which expires. The same if the future is dropped before it completes.
    pub async fn open_detached(&self, options: SessionOptions) -> Result<(AttachedSession, Renewal), Error> {
        let opened = session::loop_while_ended(self, || session::open(self, &options)).await?;
        let session = self.attach(opened.id);
        let renewed = RenewalAnswer { sent: opened.sent, ttl: opened.ttl, revoked: Vec::new(), more_revoked: false };
        let renewal = session.renewal(renewed);
        Ok((session, renewal))
    }

    /// A session that was opened elsewhere, by [`Client::open_detached`] or through the API of another language. Sends
    /// nothing: the first use shows whether the session exists.
    pub fn attach(&self, id: SessionId) -> AttachedSession {
        AttachedSession { client: self.clone(), id }
    }
}

impl AttachedSession {
    /// The session's id: 128 random bits. Any process with this id can use the session.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Renews the session once.
    ///
    /// Fails with [`Error::Lost`] if the session is over, and with [`Error::NoCluster`] or [`Error::Unknown`] if no
    /// node answers within the client's call limit. Cancel safe.
    pub async fn renew(&self) -> Result<Renewal, Error> {
        let renewed = core::renew(&self.client, self.id).await.map_err(lost)?;
        Ok(self.renewal(renewed))
    }

    fn renewal(&self, RenewalAnswer { sent, ttl, revoked, more_revoked }: RenewalAnswer) -> Renewal {
        let deadline = lease::deadline(sent, ttl);
        Renewal { ttl, deadline, remaining: deadline.since(self.client.caller.clock.now()), revoked, more_revoked }
    }

    /// Keeps the session alive until it is lost, or cannot be renewed and may be trusted for at most `margin`; returns
    /// which. The margin is the time in which the users of the session can stop; without one it is a fifth of the TTL.
    /// `on_revoked` is called once for each grant that an operator revokes, with its token and the reason; the locks of
    /// that grant stay closed until it is released, or to the deadline that the session had then.
    ///
    /// Fails as [`AttachedSession::renew`] does, if the first renewal does; with [`Error::NotEnsured`] if the margin is
    /// longer than half of the TTL, since a third of the TTL passes between two renewals. A dropped future no longer
    /// keeps the session alive.
    pub async fn keep_alive(
        &self,
        margin: Option<Duration>,
        mut on_revoked: impl FnMut(Token, &str),
    ) -> Result<Danger, Error> {
        let renewed = match core::renew(&self.client, self.id).await.map_err(lost) {
            Ok(renewed) => renewed,
            Err(Error::Lost(loss)) => return Ok(Danger { left: Duration::ZERO, loss: Some(loss) }),
            Err(error) => return Err(error),
        };

        let ttl = renewed.ttl;
        let margin = margin.unwrap_or(ttl / 5);
        if margin > ttl / 2 {
            return Err(Error::NotEnsured { left: ttl / 2, min_left: margin });
        }

        let lease = Lease::from_renewal(self.client.caller.clock.clone(), renewed);
        let core = Core::new(&self.client, self.id, ttl, lease);

        let mut renewals = pin!(keep_alive::keep_alive(&core));
        let mut told = BTreeSet::new();
        loop {
            tokio::select! {
                biased;
                // Answers are polled first: one that was received while this process was stopped may still save the
                // session.
                () = &mut renewals => return Ok(core.lease.endangered(margin).await),
                danger = core.lease.endangered(margin) => return Ok(danger),
                (token, reason) = core.lease.revoked_besides(&told) => {
                    on_revoked(Token(token), &reason);
                    told.insert(token);
                }
            }
        }
    }

    /// Requests locks: [`AttachedAcquire::granted`] waits for them.
    pub fn acquire(&self, acquire: lockkeeper_types::Acquire) -> AttachedAcquire {
        AttachedAcquire::new(self.clone(), acquire)
    }

    /// Releases a grant.
    ///
    /// Fails with [`Error::Lost`] if the session is over or an operator took the grant; with [`Error::Refused`] and
    /// [`Refusal::NotHeld`](super::Refusal::NotHeld) if the grant was lost or released before; and with [`Error::NoCluster`] or
    /// [`Error::Unknown`] if no node answers within the client's call limit. If the future is dropped before it
    /// completes, the release may or may not have taken effect.
    pub async fn release(&self, token: Token) -> Result<(), Error> {
        let caller = &self.client.caller;
        let session_id = self.id.to_string();
        let target = Some(Target::Token(token.0));
        let answer = Numbered::begin(caller)
            .send(caller, caller.policy(), |node, request| {
                let request = ReleaseRequest { session_id: session_id.clone(), request: Some(request), target };
                node.pipeline.release(request.clone())
            })
            .await;
        answer.map(|_| ()).map_err(lost)
    }

    /// Sets or removes the data on a lock of a grant.
    ///
    /// Fails as [`AttachedSession::release`] does. If the future is dropped before it completes, the update may or may
    /// not have taken effect.
    pub async fn update(&self, token: Token, name: &str, data: NewData<'_>) -> Result<(), Error> {
        let name = LockName::new(name)?.as_str().to_owned();
        let (data, keep_data) = data.checked()?;
        let caller = &self.client.caller;
        let session_id = self.id.to_string();
        let template = UpdateRequest { session_id, request: None, token: token.0, name, data, keep_data };
        let answer = Numbered::begin(caller)
            .send(caller, caller.policy(), |node, request| {
                let request = UpdateRequest { request: Some(request), ..template.clone() };
                with!(LocksClient, node, update, request)
            })
            .await;
        answer.map(|_| ()).map_err(lost)
    }

    /// Closes the session: all its grants are released, all its waits are cancelled. Closing a closed session is no
    /// error.
    ///
    /// Fails with [`Error::Lost`] if it expired before, and with [`Error::NoCluster`] or [`Error::Unknown`] if no node
    /// answers within the client's call limit.
    pub async fn close(&self) -> Result<(), Error> {
        close(&self.client, self.id, "").await
    }
}

/// Closes a session. `reason` is an operator's reason, or empty.
pub(super) async fn close(client: &Client, id: SessionId, reason: &str) -> Result<(), Error> {
    let request = CloseSessionRequest { session_id: id.to_string(), reason: reason.to_owned() };
    let call = client.caller.call(client.caller.policy(), |node| close_session(node, &request));
    let CloseSessionResponse {} = call.await.map_err(lost)?;
    Ok(())
}

/// Turns a refusal that implies the end of the session into a loss.
fn lost(error: Error) -> Error {
    let loss = if let Error::Refused(refused) = &error { loss_of(&refused.reason) } else { None };
    loss.map_or(error, Error::Lost)
}
