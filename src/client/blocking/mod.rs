//! The blocking client, for programs without an asynchronous runtime.
//!
//! ```no_run
//! # fn write_report(fence: lockkeeper_client::types::Token) {}
//! # fn main() -> Result<(), lockkeeper_client::Error> {
//! use lockkeeper_client::{SessionOptions, blocking::Client};
//!
//! let client = Client::new("10.0.0.1:7101,10.0.0.2:7101,10.0.0.3:7101")?;
//! let session = client.open(SessionOptions::default())?;
//! let held = session.acquire("reports/nightly").lock()?;
//! write_report(held.token());
//! held.release()?;
//! session.close()
//! # }
//! ```
//!
//! The client of [`super`] with the same options, errors and guarantees; each call blocks until it is done. One thread,
//! started by [`Client::new`], runs the client and renews sessions while the program does other work.
//!
//! Two differences:
//!
//! * A running thread is not interrupted when its lock is lost. Call [`Guard::ensure`] before each step, register a
//!   callback with [`Guard::on_danger`], and let the protected resource check [`Guard::token`].
//! * Drop of a [`Guard`] releases it before the drop returns, if the cluster answers within [`DROP_WAITS_MAX`]. So a
//!   program that ends normally leaves no lock behind.
//!
//! These types may be used and dropped in an asynchronous program too, where each call blocks its thread; only the drop
//! of a guard does not wait there.
//!
//! Left out: calls that are useful only beside other asynchronous work, such as [`super::Watch`] and
//! [`super::Election::observe`]. [`Client::block_on`] runs any call of [`Client::asynchronous`].

mod runtime;

use std::{fmt, sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::timeout};

use self::runtime::BlockingRuntime;
use super::{Builder, CheckAnswer, Danger, Error, LockAnswer, Loss, Moment, NewData, SessionOptions};
use lockkeeper_types::{LockName, SessionId, Token};

/// How long the drop of a [`Guard`] waits for its release. Afterwards the release goes on in the background, until the
/// program ends.
pub const DROP_WAITS_MAX: Duration = Duration::from_secs(2);

/// As [`super::Client`]. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    client: super::Client,
    runtime: BlockingRuntime,
}

/// As [`super::Session`]. Cheap to clone.
///
/// When its last clone and its last guard are dropped, it is closed in the background, or expires if the program ends
/// first; it holds no locks by then. [`Session::close`] waits.
#[derive(Clone, Debug)]
pub struct Session {
    session: super::Session,
    runtime: BlockingRuntime,
}

/// As [`super::Acquire`]: nothing is sent before [`Acquire::lock`].
#[derive(Clone, Debug)]
#[must_use = "an acquire does nothing before `lock`"]
pub struct Acquire {
    acquire: super::Acquire,
    runtime: BlockingRuntime,
}

/// As [`super::Guard`]. Dropped, it releases the locks: see [`DROP_WAITS_MAX`].
#[must_use = "dropping it releases the locks"]
pub struct Guard {
    guard: Arc<super::Guard>,
    runtime: BlockingRuntime,
}

impl Client {
    /// A client of the cluster with these nodes: `host:port`, separated by commas. Fails with [`Error::Endpoint`].
    ///
    /// Panics if the system cannot start a thread.
    pub fn new(endpoints: &str) -> Result<Self, Error> {
        Self::build(super::Client::builder(endpoints))
    }

    /// As [`Client::new`], with more options. Fails with [`Error::Endpoint`].
    ///
    /// Panics if the system cannot start a thread.
    pub fn build(builder: Builder) -> Result<Self, Error> {
        let runtime = BlockingRuntime::start().expect("the system has a thread left");
        let client = runtime.enter(|| builder.build())?;
        Ok(Self { client, runtime })
    }

    /// As [`super::Client::open`].
    pub fn open(&self, options: SessionOptions) -> Result<Session, Error> {
        let client = self.client.clone();
        let session = self.runtime.run(async move { client.open(options).await })?;
        Ok(Session { session, runtime: self.runtime.clone() })
    }

    /// As [`super::Client::stale`].
    pub fn stale(&self) -> Self {
        Self { client: self.client.stale(), runtime: self.runtime.clone() }
    }

    /// As [`super::Client::get`].
    pub fn get(&self, name: &str) -> Result<LockAnswer, Error> {
        let client = self.client.clone();
        let name = name.to_owned();
        self.runtime.run(async move { client.get(&name).await })
    }

    /// As [`super::Client::check`].
    pub fn check(&self, name: &str, token: Token) -> Result<CheckAnswer, Error> {
        let client = self.client.clone();
        let name = name.to_owned();
        self.runtime.run(async move { client.check(&name, token).await })
    }

    /// The underlying client, for [`Client::block_on`].
    pub fn asynchronous(&self) -> &super::Client {
        &self.client
    }

    /// Runs a future to completion on the thread of this client, and waits for it.
    ///
    /// ```no_run
    /// # fn example(client: lockkeeper_client::blocking::Client) -> Result<(), lockkeeper_client::Error> {
    /// let asynchronous = client.asynchronous().clone();
    /// let forced = client.block_on(async move { asynchronous.force_release("jobs", "host 7 is gone").await })?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn block_on<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> T {
        self.runtime.run(call)
    }
}

impl Session {
    /// As [`super::Session::id`].
    pub fn id(&self) -> SessionId {
        self.session.id()
    }

    /// As [`super::Session::ttl`].
    pub fn ttl(&self) -> Duration {
        self.session.ttl()
    }

    /// As [`super::Session::remaining`].
    pub fn remaining(&self) -> Duration {
        self.session.remaining()
    }

    /// As [`super::Session::loss`].
    pub fn loss(&self) -> Option<Loss> {
        self.session.loss()
    }

    /// As [`super::Session::acquire`]; [`Acquire::lock`] waits for it.
    pub fn acquire(&self, name: &str) -> Acquire {
        Acquire { acquire: self.session.acquire(name), runtime: self.runtime.clone() }
    }

    /// As [`super::Session::acquire_all`]; [`Acquire::lock`] waits for it.
    pub fn acquire_all<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Acquire {
        Acquire { acquire: self.session.acquire_all(names), runtime: self.runtime.clone() }
    }

    /// As [`super::Session::close`].
    pub fn close(self) -> Result<(), Error> {
        let Self { session, runtime } = self;
        runtime.run(session.close())
    }
}

impl Acquire {
    /// As [`super::Acquire::shared`].
    pub fn shared(self) -> Self {
        self.with(super::Acquire::shared)
    }

    /// As [`super::Acquire::permits`].
    pub fn permits(self, permits: u32) -> Self {
        self.with(|acquire| acquire.permits(permits))
    }

    /// As [`super::Acquire::data`].
    pub fn data(self, data: &[u8]) -> Self {
        self.with(|acquire| acquire.data(data))
    }

    /// As [`super::Acquire::keep_data`].
    pub fn keep_data(self) -> Self {
        self.with(super::Acquire::keep_data)
    }

    /// As [`super::Acquire::must_exist`].
    pub fn must_exist(self) -> Self {
        self.with(super::Acquire::must_exist)
    }

    /// As [`super::Acquire::lock_delay`].
    pub fn lock_delay(self, delay: Duration) -> Self {
        self.with(|acquire| acquire.lock_delay(delay))
    }

    /// As [`super::Acquire::no_wait`].
    pub fn no_wait(self) -> Self {
        self.with(super::Acquire::no_wait)
    }

    /// As [`super::Acquire::wait_at_most`].
    pub fn wait_at_most(self, limit: Duration) -> Self {
        self.with(|acquire| acquire.wait_at_most(limit))
    }

    /// As [`super::Acquire::wait_forever`].
    pub fn wait_forever(self) -> Self {
        self.with(super::Acquire::wait_forever)
    }

    /// Waits until the locks are held. Fails as an awaited [`super::Acquire`] does.
    pub fn lock(self) -> Result<Guard, Error> {
        let Self { acquire, runtime } = self;
        let guard = runtime.run(async move { acquire.await })?;
        Ok(Guard { guard: Arc::new(guard), runtime })
    }

    fn with(self, change: impl FnOnce(super::Acquire) -> super::Acquire) -> Self {
        Self { acquire: change(self.acquire), runtime: self.runtime }
    }
}

impl Guard {
    /// As [`super::Guard::token`].
    pub fn token(&self) -> Token {
        self.guard.token()
    }

    /// As [`super::Guard::names`].
    pub fn names(&self) -> &[LockName] {
        self.guard.names()
    }

    /// As [`super::Guard::deadline`].
    pub fn deadline(&self) -> Moment {
        self.guard.deadline()
    }

    /// As [`super::Guard::remaining`].
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// As [`super::Guard::loss`].
    pub fn loss(&self) -> Option<Loss> {
        self.guard.loss()
    }

    /// As [`super::Guard::ensure`].
    pub fn ensure(&self, min_left: Duration) -> Result<Duration, Error> {
        let guard = Arc::clone(&self.guard);
        self.runtime.run(async move { guard.ensure(min_left).await })
    }

    /// Waits for at most `limit` until the grant is lost; `None` if it is still held.
    pub fn lost_within(&self, limit: Duration) -> Option<Loss> {
        let guard = Arc::clone(&self.guard);
        self.runtime.run(async move { timeout(limit, guard.lost()).await.ok() })
    }

    /// As [`super::Guard::on_danger`]. The callback runs on the thread that renews the session: it must not block or
    /// make blocking calls.
    pub fn on_danger(&self, left: Duration, callback: impl FnOnce(Danger) + Send + 'static) {
        self.guard.on_danger(left, callback);
    }

    /// As [`super::Guard::update`].
    pub fn update(&self, name: &str, data: NewData<'_>) -> Result<(), Error> {
        let guard = Arc::clone(&self.guard);
        let name = name.to_owned();
        let bytes = |data: &[u8]| data.to_vec();
        let (data, keep) = match data {
            NewData::Held(data) => (Some(bytes(data)), false),
            NewData::Kept(data) => (Some(bytes(data)), true),
            NewData::None => (None, false),
        };

        // The data must outlive this call: the future runs on another thread.
        self.runtime.run(async move {
            let data = match &data {
                Some(data) if keep => NewData::Kept(data),
                Some(data) => NewData::Held(data),
                None => NewData::None,
            };
            guard.update(&name, data).await
        })
    }

    /// As [`super::Guard::release`].
    pub fn release(&self) -> Result<(), Error> {
        let guard = Arc::clone(&self.guard);
        self.runtime.run(async move { guard.release().await })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let guard = Arc::clone(&self.guard);
        let release = async move { guard.release().await };
        // In an asynchronous program, a wait would block unrelated tasks of this thread.
        let limit = if Handle::try_current().is_ok() { Duration::ZERO } else { DROP_WAITS_MAX };
        let _ = self.runtime.run_for(limit, release);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}
