//! The way to a cluster from Rust.
//!
//! ```no_run
//! # async fn example() -> Result<(), lockkeeper::client::Error> {
//! use lockkeeper::client::{Client, SessionOptions};
//!
//! let client = Client::new("10.0.0.1:7101,10.0.0.2:7101,10.0.0.3:7101")?;
//! let session = client.open(SessionOptions::default()).await?;
//! let held = session.acquire("reports/nightly").await?;
//! // Give `held.token()` to whatever the lock protects, and stop when `held.lost()` says so.
//! held.release().await?;
//! session.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! With something to do meanwhile, which must stop when the lock is lost:
//!
//! ```no_run
//! # use lockkeeper::{client::{Client, SessionOptions}, machine::Token};
//! # async fn write_report(fence: Token) {}
//! # async fn example(client: Client) -> Result<(), lockkeeper::client::Error> {
//! let session = client.open(SessionOptions::default()).await?;
//! let held = session.acquire("reports/nightly").await?; // .shared(), .permits(3), .no_wait(), .wait_at_most(…)
//! tokio::select! {
//!     () = write_report(held.token()) => held.release().await?,
//!     loss = held.lost() => eprintln!("stop: {loss}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! From the ground up:
//!
//! * [`Clock`]: the clock that deadlines are read from, and what it must count;
//! * `nodes`: the nodes of the cluster, and which of them leads;
//! * `call`: one request, repeated where that is safe until it is answered or its time is over;
//! * `lease`: how long a session may be trusted, and how it was lost;
//! * `keep_alive`: renews it in the background;
//! * [`Client`], [`Session`], [`Acquire`], [`Guard`]: what an application holds in its hands;
//! * [`Election`], [`Leadership`], [`Observe`]: one of many leads, and all know who; on top of a lock and its data;
//! * [`AttachedSession`]: a session that several processes pass on.
//!
//! Two promises hold everything together. A *holder* may trust its grant until [`Guard::deadline`]: the cluster gives the lock to nobody
//! else before that. And nothing *leaks*: a future or a guard that is dropped releases what it has, or may have, in the
//! background; what cannot be released goes with the session. ([`AttachedSession`] leaves both to its callers.)
//!
//! For programs without an asynchronous runtime, [`blocking`] is the same client whose calls return when they are over.
//!
//! Left out, deliberately: TLS and authentication (the cluster has none yet), and a cache of locks (the cluster answers linearizably, a
//! cache would not).

mod acquire;
mod attached;
mod backoff;
pub mod blocking;
mod call;
mod clock;
mod cluster;
mod contact;
mod election;
mod error;
mod force_release;
mod guard;
mod keep_alive;
mod lease;
mod nodes;
mod pipeline;
mod reentrant;
mod requests;
mod session;
mod undo;
mod watch;

pub use acquire::Acquire;
pub use attached::{AttachedAcquire, AttachedSession, Renewal};
pub use clock::{BootClock, Clock, Moment};
pub use cluster::{Builder, Client, DEFAULT_ENDPOINTS};
pub use election::{Campaign, Election, Leader, Leadership, Observe};
pub use error::{Error, Loss, NotAcquired, Refused};
pub use force_release::ForceRelease;
pub use guard::{Danger, Guard, NewData};
pub use lease::Acknowledged;
pub use nodes::Connect;
pub use reentrant::{Entered, Reentrant};
pub use session::{Session, SessionOptions};
pub use watch::Watch;
