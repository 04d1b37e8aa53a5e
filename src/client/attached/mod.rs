//! Sessions that outlive the process that works with them, or that another one opened.
//!
//! A [`super::Session`] lives and dies with its process: that is what most programs want. A shell script is many processes, one after the
//! other; so is a job that is handed from host to host. For them a session is an id that is passed on: one process opens it, another
//! keeps it alive, others acquire and release.
//!
//! The two promises of a [`super::Session`] are then nobody's but the caller's:
//!
//! * *Trust*: who only acquires does not hear of renewals, and cannot know for how long to trust its grant. Who keeps the session alive
//!   does, and says so when it ends ([`AttachedSession::keep_alive`]). The token is what protects in any case.
//! * *Nothing leaks*: a grant is held until it is released, and a session lives on until it is closed or not renewed for its TTL.
//!
//! What is sent happens once all the same, however often it had to be sent: how, without a process that counts the requests, is in
//! `numbers`.
//!
//! Left out: to attach to the session of a [`super::Session`] that is alive. It counts its requests; those of others are in its way when
//! the session's memory is full.

mod acquire;
mod numbers;

use std::{collections::BTreeSet, pin::pin, time::Duration};

pub use self::acquire::AttachedAcquire;
use self::numbers::Numbered;
use super::{
    Client, Danger, Error, Moment, NewData, SessionOptions,
    call::with,
    keep_alive,
    lease::{self, Lease, Renewed},
    session::{self, Core, loss_of},
};
use crate::{
    machine::{self, LockName, SessionId, Token},
    proto::v1::{
        CloseSessionRequest, CloseSessionResponse, ReleaseRequest, Revocation, UpdateRequest,
        locks_client::LocksClient, release_request::Target, sessions_client::SessionsClient,
    },
};

/// A session by its id. Cheap to clone; it is not kept alive, unless [`AttachedSession::keep_alive`] does, and not closed when this is
/// dropped.
///
/// ```no_run
/// # use lockkeeper::{client::{Client, Error}, machine::{Acquire, LockName, Mode, SessionId, Wait, Want}};
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

/// What an open or a renewal of an [`AttachedSession`] brought.
#[derive(Clone, PartialEq, Debug)]
pub struct Renewal {
    /// How long the session lives without a renewal.
    pub ttl: Duration,
    /// Until when it may be trusted, on the client's clock: the moment of the sending, plus the TTL, less a margin for the rates of
    /// clocks (1 %, at least 10 ms).
    pub deadline: Moment,
    /// How long that still is.
    pub remaining: Duration,
    /// Grants that an operator took back and that are not released yet. Nothing remains of one that is over: its release fails with
    /// [`super::Loss::Revoked`], and with that the cluster forgets it.
    pub revoked: Vec<Revocation>,
    /// There are more, of which nothing is known before those are released and the session is renewed again.
    pub more_revoked: bool,
}

impl Client {
    /// Opens a session that outlives this process if it has to. Nobody keeps it alive: it expires after its TTL.
    ///
    /// Fails with [`Error::Invalid`], with [`Error::NoCluster`], or with [`Error::Unknown`]: then there may be a session that nobody
    /// knows, and that expires by itself. The same if this is dropped before its end.
    pub async fn open_detached(&self, options: SessionOptions) -> Result<(AttachedSession, Renewal), Error> {
        let opened = session::loop_while_ended(self, || session::open(self, &options)).await?;
        let session = self.attach(opened.id);
        let renewed = Renewed { sent: opened.sent, ttl: opened.ttl, revoked: Vec::new(), more_revoked: false };
        let renewal = session.renewal(renewed);
        Ok((session, renewal))
    }

    /// A session that was opened elsewhere, by [`Client::open_detached`] or by the API of another language. Asks nobody whether it is
    /// there: its first use tells.
    pub fn attach(&self, id: SessionId) -> AttachedSession {
        AttachedSession { client: self.clone(), id }
    }
}

impl AttachedSession {
    /// Its name: 128 random bits. Whoever knows it can work with it.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Renews it once.
    ///
    /// Fails with [`Error::Lost`] if it is over, and with [`Error::NoCluster`] or [`Error::Unknown`] if nobody answers within the client's
    /// limit for a call. Cancel safe.
    pub async fn renew(&self) -> Result<Renewal, Error> {
        let renewed = session::renew(&self.client, self.id).await.map_err(lost)?;
        Ok(self.renewal(renewed))
    }

    fn renewal(&self, Renewed { sent, ttl, revoked, more_revoked }: Renewed) -> Renewal {
        let deadline = lease::deadline(sent, ttl);
        Renewal { ttl, deadline, remaining: deadline.since(self.client.caller.clock.now()), revoked, more_revoked }
    }

    /// Keeps it alive until it is lost, or cannot be renewed and may be trusted for no longer than `margin`; says which. That is the time in
    /// which whoever works in the session can stop. `None`: a fifth of the TTL. `on_revoked` is called once for each grant that an
    /// operator takes back, with its token and the reason; its locks stay closed until it is released, or to the deadline that the session
    /// then had.
    ///
    /// Fails as [`AttachedSession::renew`] does, if the first renewal does; with [`Error::NotEnsured`] if the margin is longer than half of
    /// the TTL, of which a third passes between two renewals. Dropped, it no longer keeps the session alive.
    pub async fn keep_alive(
        &self,
        margin: Option<Duration>,
        mut on_revoked: impl FnMut(Token, &str),
    ) -> Result<Danger, Error> {
        let renewed = match session::renew(&self.client, self.id).await.map_err(lost) {
            Ok(renewed) => renewed,
            Err(Error::Lost(loss)) => return Ok(Danger { left: Duration::ZERO, loss: Some(loss) }),
            Err(error) => return Err(error),
        };
        let ttl = renewed.ttl;
        let margin = margin.unwrap_or(ttl / 5);
        if margin > ttl / 2 {
            return Err(Error::NotEnsured { left: ttl / 2, min_left: margin });
        }
        let lease = Lease::of(self.client.caller.clock.clone(), renewed);
        let core = Core::new(&self.client, self.id, ttl, lease);
        let mut renewals = pin!(keep_alive::keep_alive(&core));
        let mut told = BTreeSet::new();
        loop {
            tokio::select! {
                biased;
                // Answers first: one that lay in the socket while this process was stopped may save the session.
                () = &mut renewals => return Ok(core.lease.endangered(margin).await),
                danger = core.lease.endangered(margin) => return Ok(danger),
                (token, reason) = core.lease.revoked_besides(&told) => {
                    on_revoked(Token(token), &reason);
                    told.insert(token);
                }
            }
        }
    }

    /// Asks for locks: [`AttachedAcquire::granted`] waits for them.
    pub fn acquire(&self, acquire: machine::Acquire) -> AttachedAcquire {
        AttachedAcquire::new(self.clone(), acquire)
    }

    /// Gives a grant back.
    ///
    /// Fails with [`Error::Lost`] if the session is over, or if an operator took the grant; with [`Error::Refused`] and [`crate::proto::v1::Reason::NotHeld`] if the grant is
    /// (it was lost or released before), and with [`Error::NoCluster`] or [`Error::Unknown`] if nobody answers within the client's limit
    /// for a call. Dropped before its end, it may or may not have taken effect.
    pub async fn release(&self, token: Token) -> Result<(), Error> {
        let (caller, session_id) = (&self.client.caller, self.id.to_string());
        let answer = Numbered::begin(caller)
            .send(caller, caller.plan(), |node, request| {
                let (session_id, target) = (session_id.clone(), Some(Target::Token(token.0)));
                let request = ReleaseRequest { session_id, request: Some(request), target };
                node.pipeline.release(request.clone())
            })
            .await;
        answer.map(|_| ()).map_err(lost)
    }

    /// Sets or removes the data on a lock of a grant.
    ///
    /// Fails as [`AttachedSession::release`] does. Dropped before its end, it may or may not have taken effect.
    pub async fn update(&self, token: Token, name: &str, data: NewData<'_>) -> Result<(), Error> {
        let name = LockName::new(name)?.as_str().to_owned();
        let (data, keep_data) = data.checked()?;
        let (caller, session_id) = (&self.client.caller, self.id.to_string());
        let template = UpdateRequest { session_id, request: None, token: token.0, name, data, keep_data };
        let answer = Numbered::begin(caller)
            .send(caller, caller.plan(), |node, request| {
                let request = UpdateRequest { request: Some(request), ..template.clone() };
                with!(LocksClient, node, update, request)
            })
            .await;
        answer.map(|_| ()).map_err(lost)
    }

    /// Closes it: all that it holds is released, all its waits are cancelled. To close it again is no error.
    ///
    /// Fails with [`Error::Lost`] if it expired before, and with [`Error::NoCluster`] or [`Error::Unknown`] if nobody answers within the
    /// client's limit for a call.
    pub async fn close(&self) -> Result<(), Error> {
        close(&self.client, self.id, "").await
    }
}

/// `reason`: empty, or why an operator does it.
pub(super) async fn close(client: &Client, id: SessionId, reason: &str) -> Result<(), Error> {
    let request = CloseSessionRequest { session_id: id.to_string(), reason: reason.to_owned() };
    let call = client.caller.call(client.caller.plan(), |node| with!(SessionsClient, node, close, request));
    let CloseSessionResponse {} = call.await.map_err(lost)?;
    Ok(())
}

/// A refusal that says that the session is over.
fn lost(error: Error) -> Error {
    let loss = if let Error::Refused(refused) = &error { loss_of(refused.reason) } else { None };
    loss.map_or(error, Error::Lost)
}
