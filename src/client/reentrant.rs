//! A reentrant lock.
//!
//! Acquires of one session exclude each other like those of two sessions: a task that acquires a lock which it holds
//! itself deadlocks. If a function that holds a lock calls another function that needs the same lock, both enter
//! through a [`Reentrant`]: the first entry acquires, nested entries share its grant, and the last one to leave
//! releases.
//!
//! Ownership of an [`Entered`] counts, not the task or thread. Clone a [`Reentrant`] only for code that may share the
//! grant.

use std::{
    ops::Deref,
    sync::{Arc, Weak},
};

use tokio::sync::Mutex;

use super::{Acquire, Error, Guard};

impl Acquire {
    /// A reentrant form of this acquire: see [`Reentrant`].
    pub fn reentrant(self) -> Reentrant {
        Reentrant::new(self)
    }
}

/// An acquire that is made by the first entry and shared by the nested ones. Clones share it too.
///
/// ```no_run
/// # use lockkeeper_client::{Error, Reentrant, Session};
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

/// One entry. Drop leaves; the last one to leave releases the locks.
#[derive(Debug)]
#[must_use = "dropping it leaves at once"]
pub struct Entered(Arc<Guard>);

impl Reentrant {
    pub(super) fn new(acquire: Acquire) -> Self {
        Self { acquire, inside: Arc::default() }
    }

    /// Enters: at once if there is another entry, otherwise as the acquire does, with its errors. Fails with
    /// [`Error::Lost`] if another entry exists and its grant is lost. Cancel safe: a dropped future leaves nothing
    /// behind.
    pub async fn enter(&self) -> Result<Entered, Error> {
        // The mutex is held during the acquire: concurrent entries wait for it and share its grant.
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
    /// Leaves. The last one to leave releases the locks and reports whether that worked: see [`Guard::release`].
    pub async fn leave(self) -> Result<(), Error> {
        match Arc::into_inner(self.0) {
            Some(guard) => guard.release().await,
            None => Ok(()),
        }
    }
}

/// A release through this guard ends the grant for all entries.
impl Deref for Entered {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}
