//! Fencing: how a resource checks tokens.
//!
//! A lock alone cannot stop a holder that was paused in the middle of its write until its lock went to another client. The resource that
//! the lock protects can: each write carries the token of the grant under which it is made, and the resource refuses tokens that come too
//! late. A [`Fence`] remembers the tokens, for a resource that is a Rust program. It belongs *in the resource*, where writes end: in the
//! storage server, not in its clients.
//!
//! ```
//! # futures::executor::block_on(async {
//! use lockkeeper_fence::{Fence, Hold, Memory, Token};
//!
//! let fence = Fence::open(Memory)?;
//! let sell = async |buyer| format!("sold to {buyer}");
//! let sold = fence.run("seats/A5", Token(42), Hold::Exclusive, || sell("bob")).await?;
//! assert_eq!(sold, "sold to bob");
//!
//! let late = fence.run("seats/A5", Token(41), Hold::Exclusive, || sell("ann")).await.unwrap_err();
//! assert_eq!(
//!     late.to_string(),
//!     "token 41 is refused at \"seats/A5\", which has seen token 42: another client got the lock since; stop, or acquire the lock again",
//! );
//! # Ok::<_, lockkeeper_fence::Error>(())
//! # }).unwrap();
//! ```
//!
//! ## The rule
//!
//! An exclusive token is refused if it is lower than *any* that the resource has seen; a shared one, if it is lower than the highest
//! *exclusive* one. The same token may come again: one grant makes many writes. Permits of a semaphore are not ordered, and a fence does
//! not help there: their holders hold them at the same time.
//!
//! ## Two things that are easy to get wrong
//!
//! **Checking and writing must be one step.** A resource that checks 41, is then shown 42 and writes it, and only then makes the write of
//! 41, has overwritten the newer value by the older, although it had checked both. So a token locks its resource from the check until its
//! write has ended: [`Fence::admit`] returns an [`Admission`], and [`Fence::run`] holds one around a write. While it lives, all other
//! tokens of that resource wait; other resources are not affected.
//!
//! **The token must be durable before the write that it admits.** Otherwise a crash in between leaves the write of 42 without the record
//! of 42, and 41 is admitted after the restart. So an admission returns when the token is durable: see [`Store`]. It costs one fsync per
//! new token and resource, not per write.
//!
//! ## Without this module
//!
//! A database checks and writes in one statement, and one transaction keeps them together:
//!
//! ```sql
//! UPDATE seats SET state = 'sold', fence = :token WHERE name = 'A5' AND fence <= :token;  -- no row changed: refused
//! ```
//!
//! A store with conditional writes (`If-Match`, a version, a compare-and-swap) keeps the token beside the value:
//!
//! 1. read the value, its token and its version; if that token is higher than yours, stop;
//! 2. write the value and your token with `If-Match: version`;
//! 3. if that fails (`412`), another client wrote in between: go back to 1.
//!
//! A client that was paused between 1 and 2 finds the version changed, and then a higher token. In both cases, only a holder that has
//! *written* keeps lower tokens out: a holder whose decision depends on more than what it writes must write its token first, and read
//! after that.
//!
//! ## To know
//!
//! * A resource is fenced by the tokens of *one* lock, or of grants that include it. Between two locks, the order of tokens means
//!   nothing.
//! * All writes to the resource must pass one fence. If two processes write to one disk, the disk must check.
//! * Memory and disk grow with the number of different names that were ever admitted (some 200 bytes and the name, each), never with the
//!   number of writes. Take names from a bounded set: the seats, not the requests.
//! * Tokens are ordered within one cluster, and go on in one that is restored from its backup. A newly founded cluster begins at 1, unless
//!   it is made with a first token above those that the fence has seen: otherwise give it an empty fence, and only when no holder from
//!   the old cluster is left.
//!
//! ## Left out
//!
//! *Forgetting a name.* A fence that has forgotten 42 admits 41, and no clock can tell when its holder is gone for good. *Concurrent
//! sharers*: one operation at a time passes for each resource, whatever its mode.

#[cfg(feature = "disk")]
mod disk;
mod error;
mod rule;
mod store;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, OnceLock},
};

use lockkeeper_planted::Planted;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

#[cfg(feature = "disk")]
pub use disk::Disk;
pub use error::{Error, RefusedToken};
#[cfg(feature = "disk")]
pub use lockkeeper_storage::durable_map::OpenError;
pub use lockkeeper_types::Token;
pub use rule::{HighestTokens, Hold};
pub use store::{Memory, Store};

/// The longest name of a resource, in bytes: as long as that of a lock, since both often have the same name.
pub const RESOURCE_BYTES_MAX: usize = lockkeeper_types::NAME_BYTES_MAX;

/// Remembers the tokens that each resource has seen, and refuses those that come too late. See the [module](self).
///
/// Share it in an [`Arc`]. It needs no runtime: a program without one blocks on its futures.
pub struct Fence<S> {
    store: S,
    resources: Mutex<HashMap<String, Arc<AsyncMutex<ResourceState>>>>,
    /// Why the fence no longer admits tokens.
    failure: OnceLock<Arc<std::io::Error>>,
}

/// The state of a resource. Only the task that holds its lock checks, saves or writes.
#[derive(Debug, Default)]
struct ResourceState {
    seen: HighestTokens,
    /// Whether `seen` is durable. `false` after an admission that was dropped while it was saved.
    is_saved: bool,
}

impl<S: Store> Fence<S> {
    /// A fence with the tokens in the store. Blocks while they are loaded; fails with [`Error::Store`].
    pub fn open(mut store: S) -> Result<Self, Error> {
        let loaded = store.load().map_err(|error| Error::Store(Arc::new(error)))?;
        let state = |seen| Arc::new(AsyncMutex::new(ResourceState { seen, is_saved: true }));
        let resources = loaded.into_iter().map(|(resource, seen)| (resource, state(seen))).collect();
        Ok(Self { store, resources: Mutex::new(resources), failure: OnceLock::new() })
    }

    /// Checks a token and makes it durable. While the [`Admission`] lives, no other token passes at this resource: write, and then drop
    /// it. An admission that is dropped at once only records the token, which keeps lower ones out from now on.
    ///
    /// It waits for earlier callers at this resource, first come, first served, and for the disk, without a limit. So have all data of
    /// the write ready before, or one slow sender delays the others.
    ///
    /// Cancel safe: if dropped before it returns, it admitted nothing. The token may count as seen all the same.
    ///
    /// ```
    /// # futures::executor::block_on(async {
    /// # use lockkeeper_fence::{Fence, Hold, Memory, Token};
    /// # let fence = Fence::open(Memory)?;
    /// let admission = fence.admit("seats/A5", Token(42), Hold::Exclusive).await?;
    /// // Write here.
    /// drop(admission);
    /// # Ok::<_, lockkeeper_fence::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn admit(&self, resource: &str, token: Token, hold: Hold) -> Result<Admission, Error> {
        if resource.is_empty() || resource.len() > RESOURCE_BYTES_MAX {
            return Err(Error::Name { bytes: resource.len() });
        }
        if token == Token(0) {
            return Err(Error::NoToken);
        }

        // Held until the admission is dropped: no other token may pass between this check and the caller's write.
        let mut state = self.state_of(resource).lock_owned().await;

        // After a failed save nobody knows which token is durable.
        if let Some(failure) = self.failure.get() {
            return Err(Error::Store(failure.clone()));
        }
        if let Some(seen) = state.seen.bars(token, hold) {
            return Err(RefusedToken { resource: resource.to_owned(), token, hold, seen }.into());
        }

        let seen = state.seen.with(token, hold);
        // Stays `false` if this future is dropped while saving: the next caller then saves again.
        state.is_saved &= seen == state.seen;
        state.seen = seen;

        // Durable before the caller writes: after a crash, a token below this one must not pass.
        if !state.is_saved && !Planted::FenceAdmitsUnsaved.is_on() {
            let saved = self.store.save(resource, seen).await;
            saved.map_err(|error| Error::Store(self.failure.get_or_init(|| Arc::new(error)).clone()))?;
            state.is_saved = true;
        }

        Ok(Admission { _state: state })
    }

    /// Makes a write under a token: [`Fence::admit`], then the write, and only then the next one. If the token is refused, `write` is not
    /// called.
    ///
    /// The write must have ended when its future has: work that continues elsewhere (a task, a request that timed out) is no longer
    /// fenced. The same holds if this future is dropped in the middle of the write. To be safe, run it to the end in a task of its own.
    pub async fn run<W: Future>(
        &self,
        resource: &str,
        token: Token,
        hold: Hold,
        write: impl FnOnce() -> W,
    ) -> Result<W::Output, Error> {
        let _admission = self.admit(resource, token, hold).await?;
        Ok(write().await)
    }

    fn state_of(&self, resource: &str) -> Arc<AsyncMutex<ResourceState>> {
        let mut resources = self.resources.lock().expect("nothing panics while it has the resources");
        match resources.get(resource) {
            Some(state) => state.clone(),
            None => resources.entry(resource.to_owned()).or_default().clone(),
        }
    }
}

/// An admitted token, and the lock on its resource: no other token passes there until this is dropped.
///
/// Asking for a second one at the same resource while holding the first waits for ever.
#[must_use = "make the write while it lives"]
pub struct Admission {
    _state: OwnedMutexGuard<ResourceState>,
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission").finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for Fence<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("failure", &self.failure.get()).finish_non_exhaustive()
    }
}
