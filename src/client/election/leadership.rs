//! Becoming the leader, and being it.

use std::{future::IntoFuture, pin::Pin, time::Duration};

use super::super::{Acquire, Error, Guard, Loss, NewData, Session};
use crate::machine::Token;

/// A candidacy that is not sent yet: `await` it. It waits as long as it takes, if it is not told otherwise.
///
/// It survives the loss of its connection and a change of the cluster's leader, and keeps its place. Dropped before it is over, it is
/// withdrawn in the background, and resigns if it was won meanwhile. Fails with [`Error::Invalid`] if the value is too large, with
/// [`Error::NotAcquired`] if another one leads and its time is over, with [`Error::Lost`] if the session is.
///
/// A session that stands twice waits for itself.
#[derive(Debug)]
#[must_use = "a campaign does nothing before it is awaited"]
pub struct Campaign {
    acquire: Acquire,
}

impl Campaign {
    pub(super) fn new(acquire: Acquire) -> Self {
        Self { acquire }
    }

    /// Do not wait: fail with [`Error::NotAcquired`], which names the leader, if the office is taken.
    pub fn no_wait(self) -> Self {
        Self { acquire: self.acquire.no_wait() }
    }

    /// Wait that long, then fail with [`Error::NotAcquired`].
    pub fn wait_at_most(self, limit: Duration) -> Self {
        Self { acquire: self.acquire.wait_at_most(limit) }
    }

    /// Wait as long as it takes.
    pub fn wait_forever(self) -> Self {
        Self { acquire: self.acquire.wait_forever() }
    }

    /// If this leader is lost, let nobody lead for that long. For followers that cannot check epochs.
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

/// The office, as its holder has it in hand. Dropped, it resigns in the background; [`Leadership::resign`] says whether that worked.
///
/// The cluster lets nobody else lead before [`Leadership::remaining`] is zero. A process that is stopped in between does not notice:
/// for that, whatever the leader writes to checks [`Leadership::epoch`].
///
/// ```no_run
/// # use lockkeeper::client::{Error, Leadership};
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
    /// The number of this term: higher than that of any leader before. Send it with whatever the leader writes.
    pub fn epoch(&self) -> Token {
        self.guard.token()
    }

    /// Says something else to those who follow: up to 16 KiB, in place of what was said before. It goes with the leader.
    ///
    /// Fails with [`Error::Lost`] or [`crate::proto::v1::Reason::NotHeld`] if another one leads, or may. Dropped, it may have taken
    /// effect or not, and no longer will once a later one has.
    pub async fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let name = self.guard.names().first().expect("a campaign is for one lock");
        self.guard.update(name.as_str(), NewData::Held(value.as_ref())).await
    }

    /// Lets the next one lead, at once. Fails as [`Guard::release`] does.
    pub async fn resign(self) -> Result<(), Error> {
        self.guard.release().await
    }

    /// For how long nobody else leads. Zero: it is lost.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// How it was lost, if it was. One that an operator revoked counts as lost at once, although nobody else leads for
    /// [`Leadership::remaining`]: that is the time to stop in.
    pub fn loss(&self) -> Option<Loss> {
        self.guard.loss()
    }

    /// Waits until it is lost. Cancel safe.
    pub async fn lost(&self) -> Loss {
        self.guard.lost().await
    }

    /// The session that leads.
    pub fn session(&self) -> &Session {
        self.guard.session()
    }

    /// The grant behind it.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }
}
