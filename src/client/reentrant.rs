//! A lock that may be entered again by whoever is inside.
//!
//! Acquires of one session exclude each other like those of two: a task that asks for what it holds itself waits for ever. Where a
//! function that holds a lock calls another one that needs it too, both enter through a [`Reentrant`]: the first to come in acquires,
//! those who come while somebody is inside share its grant, and the last one out releases.
//!
//! Who is "inside" is whoever has an [`Entered`]; tasks and threads play no part. Give a clone to those who belong together, and to nobody
//! else.

use std::{
    ops::Deref,
    sync::{Arc, Weak},
};

use tokio::sync::Mutex;

use super::{Acquire, Error, Guard};

/// An acquire that is made when the first one enters, and shared by those who follow. Clones are the same.
///
/// ```no_run
/// # use lockkeeper::client::{Error, Reentrant, Session};
/// async fn transfer(accounts: &Reentrant) -> Result<(), Error> {
///     let inside = accounts.enter().await?;
///     audit(accounts).await?;
///     inside.leave().await
/// }
///
/// async fn audit(accounts: &Reentrant) -> Result<(), Error> {
///     let inside = accounts.enter().await?; // at once, under `transfer`'s token
///     println!("token {}", inside.token().0);
///     Ok(())
/// }
///
/// # async fn example(session: Session) -> Result<(), Error> {
/// let accounts = session.acquire("accounts").reentrant();
/// transfer(&accounts).await
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Reentrant {
    acquire: Acquire,
    inside: Arc<Mutex<Weak<Guard>>>,
}

/// One that is inside. Dropped, it leaves; the last one to leave releases the locks.
#[derive(Debug)]
#[must_use = "dropping it leaves at once"]
pub struct Entered(Arc<Guard>);

impl Reentrant {
    pub(super) fn new(acquire: Acquire) -> Self {
        Self { acquire, inside: Arc::default() }
    }

    /// Enters: at once if somebody is inside, otherwise as the acquire does, with its errors. Fails with [`Error::Lost`] while somebody is
    /// inside whose grant is lost. Cancel safe: dropped, it leaves nothing behind.
    pub async fn enter(&self) -> Result<Entered, Error> {
        // Held while the first one waits for the locks: those who come meanwhile share what it gets.
        let mut inside = self.inside.lock().await;
        if let Some(guard) = inside.upgrade() {
            return match guard.loss() {
                None => Ok(Entered(guard)),
                Some(loss) => Err(Error::Lost(loss)),
            };
        }
        let guard = Arc::new(self.acquire.clone().await?);
        *inside = Arc::downgrade(&guard);
        Ok(Entered(guard))
    }
}

impl Entered {
    /// Leaves. The last one to leave releases the locks and says whether that worked: see [`Guard::release`].
    pub async fn leave(self) -> Result<(), Error> {
        match Arc::into_inner(self.0) {
            Some(guard) => guard.release().await,
            None => Ok(()),
        }
    }
}

/// To release through this takes the locks from all that are inside.
impl Deref for Entered {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}
