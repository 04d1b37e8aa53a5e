//! A session: the client's lease with the cluster, renewed in the background.

use std::{ffi::OsStr, path::Path, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};

use super::{
    Client, Error, Loss, Moment,
    call::with,
    core::{Core, loss_of},
    keep_alive,
    lease::{AcknowledgedLease, Lease, counted_from},
};
use lockkeeper_planted::Planted;
use lockkeeper_proto::v1::{self, sessions_client::SessionsClient};
use lockkeeper_types::{LABEL_BYTES_MAX, Label, SessionId, TTL_MS_MAX, Ttl};

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
    // For `lockkeeper session open`, whose session is that of another process.
    #[doc(hidden)]
    pub fn label_of_process(process_id: u32, program: &OsStr) -> String {
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

impl Client {
    /// Opens a session and keeps it alive in the background. If the future is dropped before it completes, a session
    /// may remain, which expires after its TTL.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
    /// use lockkeeper_client::SessionOptions;
    ///
    /// let options = SessionOptions { ttl: Duration::from_secs(30), ..SessionOptions::default() };
    /// let session = client.open(options).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open(&self, options: SessionOptions) -> Result<Session, Error> {
        Session::open(self, options).await
    }
}

impl Session {
    pub(super) async fn open(client: &Client, options: SessionOptions) -> Result<Self, Error> {
        let session = loop_while_ended(client, || Self::open_once(client, &options)).await?;
        session.core().spawn(keep_alive::run(session.core().clone()));
        Ok(session)
    }

    async fn open_once(client: &Client, options: &SessionOptions) -> Result<Self, Error> {
        let OpenedSession { id, sent, ttl } = open(client, options).await?;
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
    pub fn renewals(&self) -> watch::Receiver<AcknowledgedLease> {
        self.core().lease.renewals()
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

    /// The client that opened it.
    // For `lockkeeper bench`, which sends messages of its own making.
    #[doc(hidden)]
    pub fn client(&self) -> &Client {
        &self.core().client
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.handle.core
    }
}

/// A session that the cluster has opened.
pub(super) struct OpenedSession {
    pub(super) id: SessionId,
    /// When the open was first sent. It is not known which attempt was answered; the first one gives the earlier
    /// deadline.
    pub(super) sent: Moment,
    pub(super) ttl: Duration,
}

/// Opens a session with a new id.
pub(super) async fn open(client: &Client, options: &SessionOptions) -> Result<OpenedSession, Error> {
    let id = SessionId(client.caller.random_id());
    let request = open_request(id, options)?;
    let sent = client.caller.clock.now();
    let policy = client.caller.policy();
    let answer = client.caller.call(policy, |node| with!(SessionsClient, node, open, request)).await?;
    Ok(OpenedSession { id, sent, ttl: Duration::from_millis(answer.ttl_ms.into()) })
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
            Err(Error::Refused(refused)) if loss_of(&refused.reason).is_some() => Error::Refused(refused),
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

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.core.lease.is_ended() {
            self.core.lease.end(Loss::Closed);
            self.core.spawn(self.core.clone().close_in_background());
        }
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
