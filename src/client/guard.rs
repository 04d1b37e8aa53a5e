//! The guard of a grant.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Error, Loss, Moment, Refusal, Refused, Revocation, Session, call::with, core::Core, lease::TIMER_MAX,
    release::release,
};
use lockkeeper_planted::Planted;
use lockkeeper_proto::v1::{UpdateRequest, UpdateResponse, locks_client::LocksClient, release_request::Target};
use lockkeeper_types::{Data, LockName, Token, Want};

/// Held locks. Drop releases them in the background; [`Guard::release`] reports whether that worked.
///
/// The cluster grants the locks to no other session before [`Guard::deadline`]. A paused process does not notice that
/// its deadline passes; for that case the protected resource checks [`Guard::token`] (see `lockkeeper-fence`).
///
/// **At the end of the program**, await [`Guard::release`], or [`Session::close`] for all grants of a session. A guard
/// that is dropped shortly before `main` returns has only begun its release: the runtime ends its background tasks, and
/// the release may never be sent. The locks then stay held until the session expires, its TTL after the last renewal.
/// The same is true of a dropped [`Session`], of [`std::process::exit`], and of a panic that aborts.
///
/// To share a guard among tasks, put it into an [`Arc`]: each task may wait for the loss, and any of them may release.
#[derive(Debug)]
#[must_use = "dropping it releases the locks"]
pub struct Guard {
    session: Session,
    grant: Arc<Grant>,
    names: Vec<LockName>,
    place_lost: bool,
    /// The outcome of the release, once it has begun.
    release: OnceLock<watch::Receiver<Option<Result<(), Error>>>>,
}

/// The part of a guard that its background tasks share. Does not keep the session open.
#[derive(Debug)]
struct Grant {
    core: Arc<Core>,
    token: u64,
    /// Cancelled when the holder begins the release.
    let_go: CancellationToken,
}

/// A change of the data on a lock. At most 16 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewData<'a> {
    /// Set the data until the grant ends.
    Held(&'a [u8]),
    /// Set the data, and keep it when the grant ends.
    Kept(&'a [u8]),
    /// Remove the data.
    None,
}

impl NewData<'_> {
    /// The checked bytes, and whether they are kept.
    pub(super) fn checked(self) -> Result<(Option<Vec<u8>>, bool), Error> {
        let checked = |data| -> Result<_, Error> { Ok(Some(Data::new(data)?.as_bytes().to_vec())) };
        Ok(match self {
            Self::Held(data) => (checked(data)?, false),
            Self::Kept(data) => (checked(data)?, true),
            Self::None => (None, false),
        })
    }
}

/// Why [`Guard::danger`] returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Danger {
    /// How long the locks may still be trusted; zero if they are lost.
    pub left: Duration,
    /// How they were lost. Otherwise they are held, but renewals are not acknowledged and the deadline is near.
    pub loss: Option<Loss>,
}

impl std::error::Error for Danger {}

impl fmt::Display for Danger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.loss {
            Some(loss) => loss.fmt(f),
            None => write!(f, "no contact with the cluster: to be trusted for another {:?}", self.left),
        }
    }
}

impl Guard {
    pub(super) fn new(session: Session, token: u64, wants: &[Want], place_lost: bool) -> Self {
        let names = wants.iter().map(|want| want.name.clone()).collect();
        let grant = Grant { core: session.core().clone(), token, let_go: CancellationToken::new() };
        Self { session, grant: Arc::new(grant), names, place_lost, release: OnceLock::new() }
    }

    /// The grant's fencing token: higher than that of any earlier grant in the whole cluster, for ever.
    pub fn token(&self) -> Token {
        Token(self.grant.token)
    }

    /// The names of the locks, sorted.
    pub fn names(&self) -> &[LockName] {
        &self.names
    }

    /// Whether the acquire lost its place in a queue before it was granted. The cluster cancels a wait whose call was
    /// broken for too long; the library then queues it again at the end, so later waiters may have been served first.
    pub fn place_lost(&self) -> bool {
        self.place_lost
    }

    /// The session of the grant.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Until when the grant may be trusted, unless it is lost earlier: a moment on the client's clock
    /// ([`super::BootClock`], which counts suspension). Each acknowledged renewal of the session extends it, until an
    /// operator revokes the grant.
    ///
    /// It is the moment at which the last acknowledged open or renewal was *sent*, plus the TTL, less a margin for
    /// clock rates (1 %, at least 10 ms). The cluster counts the TTL from the arrival of that request, so it ends the
    /// session later.
    pub fn deadline(&self) -> Moment {
        self.grant.core.lease.deadline(Some(self.grant.token))
    }

    /// How long the grant may still be trusted. Zero: it is lost.
    pub fn remaining(&self) -> Duration {
        self.grant.remaining()
    }

    /// Makes sure that the grant may be trusted for at least `min_left` from now, and returns for how long it may.
    /// Renews the session at once if needed.
    ///
    /// Fails with [`Error::Lost`] if the grant is lost or revoked, with [`Error::NotEnsured`] if the TTL is shorter
    /// than `min_left`, or as [`Session::renew`] does. Cancel safe.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use lockkeeper_client::{Error, Guard};
    /// # async fn write_batch() {}
    /// # async fn example(guard: Guard) -> Result<(), Error> {
    /// guard.ensure(Duration::from_secs(3)).await?;
    /// write_batch().await; // takes a second or two
    /// # Ok(())
    /// # }
    /// ```
    pub async fn ensure(&self, min_left: Duration) -> Result<Duration, Error> {
        if self.loss().is_none() && self.remaining() < min_left {
            self.session.renew().await?;
        }
        if let Some(loss) = self.loss() {
            return Err(Error::Lost(loss));
        }
        match self.remaining() {
            left if left >= min_left => Ok(left),
            left => Err(Error::NotEnsured { left, min_left }),
        }
    }

    /// How the grant was lost; `None` if it is held. A revoked grant counts as lost at once, although its locks stay
    /// closed for [`Guard::remaining`]: that is the time for stopping.
    pub fn loss(&self) -> Option<Loss> {
        self.grant.loss()
    }

    /// Waits until the grant is lost. Uses a local timer, so it returns also while the cluster cannot be reached.
    /// Cancel safe.
    ///
    /// ```no_run
    /// # use lockkeeper_client::{Error, Guard};
    /// # async fn work() {}
    /// # async fn example(guard: Guard) -> Result<(), Error> {
    /// tokio::select! {
    ///     () = work() => guard.release().await?,
    ///     loss = guard.lost() => eprintln!("stop: {loss}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) -> Loss {
        self.grant.lost().await
    }

    /// Waits until the grant is lost or may be trusted for at most `left`: renewals are not acknowledged, and it is
    /// time to prepare to stop. The session is renewed every third of its TTL, so `left` should be less than half of
    /// the TTL. Cancel safe.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use lockkeeper_client::Guard;
    /// # async fn work() {}
    /// # async fn save_what_is_done() {}
    /// # async fn example(guard: Guard) {
    /// tokio::select! {
    ///     () = work() => {}
    ///     _ = guard.danger(Duration::from_secs(3)) => save_what_is_done().await,
    /// }
    /// # }
    /// ```
    pub async fn danger(&self, left: Duration) -> Danger {
        self.grant.danger(left).await
    }

    /// Calls `callback` once, in the background, when [`Guard::danger`] returns; never if the guard is released or
    /// dropped before. The callback must not block.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use lockkeeper_client::Guard;
    /// # fn example(guard: &Guard) {
    /// guard.on_danger(Duration::from_secs(3), |danger| match danger.loss {
    ///     None => eprintln!("no contact; {:?} left", danger.left),
    ///     Some(loss) => eprintln!("stop: {loss}"),
    /// });
    /// # }
    /// ```
    pub fn on_danger(&self, left: Duration, callback: impl FnOnce(Danger) + Send + 'static) {
        let grant = Arc::clone(&self.grant);
        self.grant.core.spawn(async move {
            let danger = grant.danger(left).await;
            if danger.loss != Some(Loss::Released) {
                callback(danger);
            }
        });
    }

    /// Sets or removes the data on one of the locks.
    ///
    /// Fails with [`Error::Refused`] and [`Refusal::NotHeld`] if this grant does not hold the lock. If
    /// the future is dropped before it completes, the update may or may not have taken effect.
    ///
    /// ```no_run
    /// # use lockkeeper_client::{Error, Guard, NewData};
    /// # async fn example(guard: Guard) -> Result<(), Error> {
    /// guard.update("reports/nightly", NewData::Kept(b"half done")).await
    /// # }
    /// ```
    pub async fn update(&self, name: &str, data: NewData<'_>) -> Result<(), Error> {
        let name = LockName::new(name)?.as_str().to_owned();
        let (data, keep_data) = data.checked()?;
        let core = &self.grant.core;
        let request = core.requests.begin();
        let request = UpdateRequest {
            session_id: core.id.to_string(),
            request: Some(request.message()),
            token: self.grant.token,
            name,
            data,
            keep_data,
        };

        let caller = &core.client.caller;
        let call = caller.call(caller.policy(), |node| with!(LocksClient, node, update, request));
        let answer = core.while_alive(call).await;
        if let Err(Error::Lost(Loss::Revoked { reason })) = &answer {
            // This answer can arrive before the keep-alive stream reports the revocation.
            core.lease.revoked(Revocation { token: self.token(), reason: reason.clone(), remaining: Duration::ZERO });
        }
        let UpdateResponse {} = answer?;
        Ok(())
    }

    /// Releases the locks. From this moment on the guard counts as lost ([`Loss::Released`]).
    ///
    /// Fails with [`Error::Lost`], which says how, or with [`Refusal::NotHeld`], if the locks were
    /// lost before. The release goes on in the background until the cluster has confirmed it or the session is over,
    /// also when this future is dropped or fails with [`Error::Unknown`] at the client's call limit; until then the
    /// locks may stay held. A second release returns the outcome of the first.
    ///
    /// ```no_run
    /// # use lockkeeper_client::{Error, Guard};
    /// # async fn example(guard: Guard) -> Result<(), Error> {
    /// guard.release().await?;
    /// guard.release().await // the same outcome, without a request
    /// # }
    /// ```
    pub async fn release(&self) -> Result<(), Error> {
        let mut answer = self.let_go().clone();
        let limit = self.grant.core.client.caller.call_limit;
        match timeout(limit, answer.wait_for(Option::is_some)).await {
            Ok(Ok(answer)) => answer.clone().expect("it was waited for"),
            Ok(Err(_)) => Err(Error::Unknown { why: "the runtime of the session was shut down".to_owned() }),
            Err(_) => Err(Error::Unknown {
                why: "no confirmation within the call limit; the release goes on in the background".to_owned(),
            }),
        }
    }

    /// Begins the release, at most once.
    fn let_go(&self) -> &watch::Receiver<Option<Result<(), Error>>> {
        self.release.get_or_init(|| {
            let (told, answer) = watch::channel(None);
            let grant = Arc::clone(&self.grant);
            // Do this before the release is sent: on its arrival, the locks may be granted to another session.
            if !Planted::TrustedWhileReleasing.is_on() {
                grant.let_go.cancel();
            }

            self.grant.core.spawn(async move {
                let outcome = match release(&grant.core, Target::Token(grant.token)).await {
                    // A grant taken by force is not held. Once its release is acknowledged, the cluster does not report
                    // it again.
                    Err(Error::Refused(refused)) if refused.reason == Refusal::NotHeld => Err(grant.over(refused)),
                    outcome => outcome,
                };
                grant.core.lease.forget(grant.token);
                told.send_replace(Some(outcome));
            });
            answer
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Grant {
    fn remaining(&self) -> Duration {
        if self.let_go.is_cancelled() { Duration::ZERO } else { self.core.lease.remaining(Some(self.token)) }
    }

    fn loss(&self) -> Option<Loss> {
        if self.let_go.is_cancelled() { Some(Loss::Released) } else { self.core.lease.loss(Some(self.token)) }
    }

    /// The error for a grant that is not held.
    fn over(&self, refused: Refused) -> Error {
        match self.core.lease.loss(Some(self.token)) {
            Some(loss @ Loss::Revoked { .. }) => Error::Lost(loss),
            _ => Error::Refused(refused),
        }
    }

    async fn lost(&self) -> Loss {
        tokio::select! {
            biased;
            () = self.let_go.cancelled() => Loss::Released,
            loss = self.core.lease.lost(Some(self.token)) => loss,
        }
    }

    async fn danger(&self, left: Duration) -> Danger {
        loop {
            let danger = Danger { left: self.remaining(), loss: self.loss() };
            if danger.loss.is_some() || danger.left <= left {
                return danger;
            }
            tokio::select! {
                _ = self.lost() => {}
                () = sleep((danger.left - left).min(TIMER_MAX)) => {}
            }
        }
    }
}
