//! Campaigns and leadership.

use std::{future::IntoFuture, pin::Pin, time::Duration};

use super::super::{Acquire, Error, Guard, Loss, NewData, Session};
use lockkeeper_types::Token;

/// A candidacy that is not sent yet: `await` it. It waits without a time limit, unless told otherwise.
///
/// It survives a broken connection and a change of the cluster's leader, and keeps its place in the queue. If the
/// future is dropped before it completes, the candidacy is withdrawn in the background, or resigned if it was won
/// meanwhile. Fails with [`Error::Invalid`] if the value is too large, with [`Error::NotAcquired`] if another candidate
/// still leads at the end of the wait, with [`Error::Lost`] if the session is over.
///
/// A second campaign of the same session waits for the first.
#[derive(Debug)]
#[must_use = "a campaign does nothing before it is awaited"]
pub struct Campaign {
    acquire: Acquire,
}

impl Campaign {
    pub(super) fn new(acquire: Acquire) -> Self {
        Self { acquire }
    }

    /// Do not wait: fail with [`Error::NotAcquired`], which names the leader, if there is one.
    pub fn no_wait(self) -> Self {
        Self { acquire: self.acquire.no_wait() }
    }

    /// Wait for at most `limit`, then fail with [`Error::NotAcquired`].
    pub fn wait_at_most(self, limit: Duration) -> Self {
        Self { acquire: self.acquire.wait_at_most(limit) }
    }

    /// Wait without a time limit.
    pub fn wait_forever(self) -> Self {
        Self { acquire: self.acquire.wait_forever() }
    }

    /// If this leader is lost, allow no new leader for `delay`. For followers that cannot check epochs.
    pub fn lock_delay(self, delay: Duration) -> Self {
        Self { acquire: self.acquire.lock_delay(delay) }
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Leadership, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { Ok(Leadership { guard: self.acquire.await? }) })
    }
}

/// A won election. Drop resigns in the background; [`Leadership::resign`] reports whether that worked.
///
/// The cluster allows no other leader before [`Leadership::remaining`] is zero. A paused process does not notice that
/// moment; for that case the resources that the leader writes to check [`Leadership::epoch`].
///
/// ```no_run
/// # use lockkeeper_client::{Error, Leadership};
/// # async fn lead(epoch: u64) {}
/// # async fn example(leadership: Leadership) -> Result<(), Error> {
/// tokio::select! {
///     () = lead(leadership.epoch().0) => leadership.resign().await?,
///     loss = leadership.lost() => eprintln!("stop: {loss}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping it resigns"]
pub struct Leadership {
    guard: Guard,
}

impl Leadership {
    /// The epoch of this leadership: higher than that of any earlier leader. Send it with every write.
    pub fn epoch(&self) -> Token {
        self.guard.token()
    }

    /// Replaces the leader's published value, up to 16 KiB. The value ends with the leadership.
    ///
    /// Fails with [`Error::Lost`] or [`Refusal::NotHeld`](super::super::Refusal::NotHeld) if another leader exists or may exist. If
    /// the future is dropped before it completes, the value may or may not take effect, but never after a later one.
    pub async fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let name = self.guard.names().first().expect("a campaign is for one lock");
        self.guard.update(name.as_str(), NewData::Held(value.as_ref())).await
    }

    /// Gives up the leadership; the next candidate leads at once. Fails as [`Guard::release`] does.
    pub async fn resign(self) -> Result<(), Error> {
        self.guard.release().await
    }

    /// For how long no other leader is possible. Zero: the leadership is lost.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// How the leadership was lost; `None` if it is held. A revoked leadership counts as lost at once, although no
    /// other leader is possible for [`Leadership::remaining`]: that is the time for stopping.
    pub fn loss(&self) -> Option<Loss> {
        self.guard.loss()
    }

    /// Waits until the leadership is lost. Cancel safe.
    pub async fn lost(&self) -> Loss {
        self.guard.lost().await
    }

    /// The leader's session.
    pub fn session(&self) -> &Session {
        self.guard.session()
    }

    /// The underlying grant.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }
}
