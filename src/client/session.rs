//! A session: the client's lease with the cluster, renewed in the background.

use std::{ffi::OsStr, fmt, path::Path, sync::Arc, time::Duration};

use tokio::{runtime::Handle as Runtime, sync::watch, time::Instant};

use super::{
    Acquire, Client, Error, Loss, Moment,
    call::with,
    keep_alive,
    lease::{Acknowledged, Lease, Renewed, counted_from},
    requests::Requests,
};
use crate::{
    machine::{LABEL_BYTES_MAX, Label, SessionId, TTL_MS_MAX, Ttl, Want},
    planted::Planted,
    proto::v1::{self, Reason, sessions_client::SessionsClient},
};

/// Options of a new session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// How long the session lives without a renewal: 100 ms to one day. Default: 10 s.
    ///
    /// With a short TTL, the locks of a dead client open soon. With a long TTL, the session survives longer outages of
    /// the cluster.
    pub ttl: Duration,
    /// A name of the client, for people. Default: `host process-id program`.
    pub label: String,
}

impl Default for SessionOptions {
    fn default() -> Self {
        let program = std::env::args_os().next().unwrap_or_default();
        Self { ttl: Duration::from_secs(10), label: Self::label_of(&program) }
    }
}

impl SessionOptions {
    /// `host process-id program`, from the path of a program. Truncated to the limit: a long name must not make the
    /// open fail.
    pub fn label_of(program: &OsStr) -> String {
        Self::label_of_process(std::process::id(), program)
    }

    /// The same, for another process.
    pub(crate) fn label_of_process(process_id: u32, program: &OsStr) -> String {
        let system = rustix::system::uname();
        let program = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
        let mut label = format!("{} {process_id} {program}", system.nodename().to_string_lossy());
        label.truncate(label.floor_char_boundary(LABEL_BYTES_MAX));
        label
    }
}

/// A session of this process. Cheap to clone. It is closed in the background when the last clone and the last
/// [`super::Guard`] are dropped; at the end of a program, that may come too late: see [`super::Guard`].
#[derive(Clone, Debug)]
pub struct Session {
    handle: Arc<Handle>,
}

/// Closes the session on drop.
#[derive(Debug)]
struct Handle {
    core: Arc<Core>,
}

/// The state that the session's tasks share.
pub(crate) struct Core {
    pub(crate) client: Client,
    pub(crate) id: SessionId,
    pub(crate) ttl: Duration,
    pub(crate) lease: Lease,
    pub(crate) requests: Requests,
    runtime: Runtime,
}

impl Session {
    pub(super) async fn open(client: &Client, options: SessionOptions) -> Result<Self, Error> {
        let session = loop_while_ended(client, || Self::open_once(client, &options)).await?;
        session.core().spawn(keep_alive::run(session.core().clone()));
        Ok(session)
    }

    async fn open_once(client: &Client, options: &SessionOptions) -> Result<Self, Error> {
        let Opened { id, sent, ttl } = open(client, options).await?;
        let sent = counted_from(sent, &*client.caller.clock);
        let lease = Lease::new(client.caller.clock.clone(), sent, ttl);
        let core = Arc::new(Core::new(client, id, ttl, lease));
        // The open took long: renew now, rather than start with a lease that is about to end.
        if core.lease.remaining(None) < ttl / 2 {
            core.renew().await?;
        }
        Ok(Self { handle: Arc::new(Handle { core }) })
    }

    /// The session's id: 128 random bits.
    pub fn id(&self) -> SessionId {
        self.core().id
    }

    /// How long the session lives without a renewal.
    pub fn ttl(&self) -> Duration {
        self.core().ttl
    }

    /// How long the session may still be trusted. Zero: it is lost.
    pub fn remaining(&self) -> Duration {
        self.core().lease.remaining(None)
    }

    /// How the session was lost; `None` if it is alive.
    pub fn loss(&self) -> Option<Loss> {
        self.core().lease.loss(None)
    }

    /// Waits until the session is lost. Uses a local timer, so it returns also while the cluster cannot be reached.
    /// Cancel safe.
    pub async fn lost(&self) -> Loss {
        self.core().lease.lost(None).await
    }

    /// Renews the session now, in addition to the renewals in the background, and returns how long it may be trusted.
    ///
    /// Seldom needed: [`super::Guard::ensure`] renews where necessary. Fails with [`Error::Lost`] if the session is
    /// over, and with [`Error::NoCluster`] or [`Error::Unknown`] if no node answers within the client's call limit.
    /// Cancel safe.
    pub async fn renew(&self) -> Result<Duration, Error> {
        self.core().while_alive(self.core().renew()).await?;
        Ok(self.remaining())
    }

    /// The newest acknowledged renewal (at first the open itself), and each newer one. For monitoring and tests; a
    /// holder needs only its [`Guard`].
    ///
    /// [`Guard`]: super::Guard
    pub fn renewals(&self) -> watch::Receiver<Acknowledged> {
        self.core().lease.renewals()
    }

    /// Acquires a lock: exclusively and without a time limit, unless the [`Acquire`] says otherwise.
    ///
    /// ```no_run
    /// # use lockkeeper::client::{Error, Session};
    /// # async fn example(session: Session) -> Result<(), Error> {
    /// let guard = session.acquire("reports/nightly").await?;
    /// println!("token {}", guard.token().0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire(&self, name: &str) -> Acquire {
        Acquire::new(self.clone(), [name])
    }

    /// Acquires several locks, all or nothing. Such acquires cannot deadlock among each other, in whatever order they
    /// name the locks.
    ///
    /// The price is a convoy: an acquire of several locks has a place in the queue of each, so a later acquire of one
    /// of them waits behind it, even while that lock is free. Name no more locks than must be held together, and limit
    /// the wait where others must not queue behind it.
    ///
    /// ```no_run
    /// # use lockkeeper::client::{Error, Session};
    /// # async fn example(session: Session) -> Result<(), Error> {
    /// let guard = session.acquire_all(["accounts/ann", "accounts/bob"]).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_all<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Acquire {
        Acquire::new(self.clone(), names)
    }

    /// As [`Session::acquire_all`], with options for each lock.
    ///
    /// ```no_run
    /// # use lockkeeper::machine::{LockName, Mode, Want};
    /// # use lockkeeper::client::{Error, Session};
    /// # async fn example(session: Session) -> Result<(), Error> {
    /// let want = |name, mode| -> Result<Want, Error> {
    ///     Ok(Want { name: LockName::new(name)?, mode, data: None, keep_data: false, must_exist: false })
    /// };
    /// let wants = vec![want("schema", Mode::Shared)?, want("tables/users", Mode::Exclusive)?];
    /// let guard = session.acquire_wants(wants).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acquire_wants(&self, wants: Vec<Want>) -> Acquire {
        Acquire::of_wants(self.clone(), wants)
    }

    /// Closes the session and its clones: all its grants are released, all its waits are cancelled. Fails if the
    /// cluster did not confirm in time; then the session expires by itself. From the call on the session counts as
    /// lost, also when this future is dropped.
    pub async fn close(self) -> Result<(), Error> {
        let core = self.core().clone();
        if !Planted::TrustedWhileClosing.is_on() {
            core.lease.end(Loss::Closed);
        }
        core.close().await
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}

impl Core {
    pub(super) fn new(client: &Client, id: SessionId, ttl: Duration, lease: Lease) -> Self {
        let (client, requests, runtime) = (client.clone(), Requests::default(), Runtime::current());
        Self { client, id, ttl, lease, requests, runtime }
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
        let loss = if let Error::Refused(refused) = &error { loss_of(refused.reason) } else { None };
        match loss {
            Some(loss) => {
                self.lease.end(loss.clone());
                Error::Lost(loss)
            }
            None => error,
        }
    }

    async fn renew(&self) -> Result<(), Error> {
        let renewed = renew(&self.client, self.id).await.map_err(|error| self.learn(error))?;
        self.lease.renewed(renewed);
        Ok(())
    }

    /// Tells the cluster that the session is over.
    async fn close(&self) -> Result<(), Error> {
        let request = v1::CloseSessionRequest { session_id: self.id.to_string(), reason: String::new() };
        let plan = self.client.caller.plan();
        match self.client.caller.call(plan, |node| with!(SessionsClient, node, close, request)).await {
            Ok(v1::CloseSessionResponse {}) => Ok(()),
            // It was over before, as requested.
            Err(Error::Refused(refused)) if loss_of(refused.reason).is_some() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// As [`Core::close`], best effort: otherwise the session expires.
    pub(crate) async fn close_in_background(self: Arc<Self>) {
        if let Err(error) = self.close().await {
            tracing::debug!(session = %self.id, %error, "the session was not closed; it expires by itself");
        }
    }
}

/// Renews a session once, by a separate call.
pub(super) async fn renew(client: &Client, id: SessionId) -> Result<Renewed, Error> {
    let caller = &client.caller;
    let request = v1::RenewSessionRequest { session_id: id.to_string() };
    let sent = std::sync::Mutex::new(caller.clock.now());
    let call = caller.call(caller.plan(), |node| {
        // An answer belongs to the last attempt, so its sending time counts.
        *sent.lock().expect("no code panics while it holds this lock") = caller.clock.now();
        with!(SessionsClient, node, renew, request)
    });
    let v1::RenewSessionResponse { ttl_ms, revoked, more_revoked } = call.await?;
    let sent = *sent.lock().expect("no code panics while it holds this lock");
    let sent = counted_from(sent, &*caller.clock);
    Ok(Renewed { sent, ttl: Duration::from_millis(ttl_ms.into()), revoked, more_revoked })
}

/// A session that the cluster has opened.
pub(super) struct Opened {
    pub(super) id: SessionId,
    /// When the open was first sent. It is not known which attempt was answered; the first one gives the earlier
    /// deadline.
    pub(super) sent: Moment,
    pub(super) ttl: Duration,
}

/// Opens a session with a new id.
pub(super) async fn open(client: &Client, options: &SessionOptions) -> Result<Opened, Error> {
    let id = SessionId(client.caller.random_id());
    let request = open_request(id, options)?;
    let sent = client.caller.clock.now();
    let plan = client.caller.plan();
    let answer = client.caller.call(plan, |node| with!(SessionsClient, node, open, request)).await?;
    Ok(Opened { id, sent, ttl: Duration::from_millis(answer.ttl_ms.into()) })
}

/// Opens another session while the opened one has ended before its answer arrived, within the call limit. The answer to
/// an open can be lost with a leader that dies; a session with a short TTL can then expire before a retry reaches the
/// next leader, and its id is used up.
pub(super) async fn loop_while_ended<T, F>(client: &Client, open: impl Fn() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let until = Instant::now() + client.caller.call_limit;
    loop {
        let ended = match open().await {
            Err(Error::Refused(refused)) if loss_of(refused.reason).is_some() => Error::Refused(refused),
            Err(Error::Lost(loss)) => Error::Lost(loss),
            answer => return answer,
        };
        if Instant::now() >= until {
            return Err(ended);
        }
        tracing::debug!(%ended, "the session ended before it was known to be open; opening another one");
    }
}

/// The request that opens a session with this id. Fails with [`Error::Invalid`].
fn open_request(id: SessionId, options: &SessionOptions) -> Result<v1::OpenSessionRequest, Error> {
    let ttl_ms = u32::try_from(options.ttl.as_millis()).unwrap_or(TTL_MS_MAX.saturating_add(1));
    let ttl_ms = Ttl::from_millis(ttl_ms)?.as_millis();
    let label = Label::new(&options.label)?.as_str().to_owned();
    Ok(v1::OpenSessionRequest { session_id: id.to_string(), ttl_ms, label })
}

/// The loss of the session that a refusal implies, if any.
pub(super) fn loss_of(reason: Reason) -> Option<Loss> {
    match reason {
        Reason::SessionUnknown => Some(Loss::Unknown),
        Reason::SessionExpired => Some(Loss::Expired),
        Reason::SessionClosed => Some(Loss::Closed),
        Reason::Unspecified
        | Reason::InvalidArgument
        | Reason::SessionExists
        | Reason::NotHeld
        | Reason::Revoked
        | Reason::ModeMismatch
        | Reason::LockUnknown
        | Reason::Abandoned
        | Reason::RequestStale
        | Reason::RequestReused
        | Reason::WaitCancelled
        | Reason::WaitRemoved
        | Reason::NotSemaphore
        | Reason::LimitReached
        | Reason::Overloaded
        | Reason::NoLeader
        | Reason::ShuttingDown
        | Reason::OutcomeUnknown
        | Reason::DeadlineExceeded
        | Reason::Internal => None,
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.core.lease.is_ended() {
            self.core.lease.end(Loss::Closed);
            self.core.spawn(self.core.clone().close_in_background());
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id).field("lease", &self.lease).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_label_names_the_process_and_fits() {
        let label = SessionOptions::default().label;
        assert!(label.contains(&std::process::id().to_string()), "{label}");
        let long = SessionOptions::label_of(OsStr::new(&"ö".repeat(500)));
        assert!(Label::new(&long).is_ok(), "{long}");
    }
}
