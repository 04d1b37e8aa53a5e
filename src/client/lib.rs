//! The Rust client.
//!
//! ```no_run
//! # async fn example() -> Result<(), lockkeeper_client::Error> {
//! use lockkeeper_client::{Client, SessionOptions};
//!
//! let client = Client::new("10.0.0.1:7101,10.0.0.2:7101,10.0.0.3:7101")?;
//! let session = client.open(SessionOptions::default()).await?;
//! let held = session.acquire("reports/nightly").await?;
//! // Pass `held.token()` to the resource that the lock protects, and stop when `held.lost()` returns.
//! held.release().await?;
//! session.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! With concurrent work that must stop when the lock is lost:
//!
//! ```no_run
//! # use lockkeeper_client::{Client, SessionOptions, types::Token};
//! # async fn write_report(fence: Token) {}
//! # async fn example(client: Client) -> Result<(), lockkeeper_client::Error> {
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
//! The modules, from the lowest layer up:
//!
//! * `views`, `refusal`: the replies of the cluster in types of this crate, apart from the messages of the protocol;
//! * [`Clock`]: the clock of all deadlines, and why it must count suspension;
//! * `nodes`: the nodes of the cluster and the current leader;
//! * `call`: one request, retried where a retry is safe, until it is answered or its deadline has passed;
//! * `lease`: until when a session may be trusted, and how it was lost;
//! * `core`, `release`: the state that the tasks of a session share, and releases that are retried until nothing is held;
//! * `keep_alive`: renews a session in the background;
//! * [`Client`], [`Session`], [`Acquire`], [`Guard`]: the types that an application uses;
//! * [`Election`], [`Leadership`], [`Observe`]: leader election on top of a lock and its data;
//! * [`AttachedSession`]: a session that several processes share.
//!
//! Two guarantees. *Safety*: a holder may trust its grant until [`Guard::deadline`]; the cluster grants the lock to no
//! other session before that. *No leaks*: a dropped future or guard releases in the background every grant that it has
//! or may have; a grant that cannot be released ends with the session. ([`AttachedSession`] leaves both to its
//! callers.)
//!
//! For programs without an asynchronous runtime, [`blocking`] is the same client with blocking calls.
//!
//! Deliberately left out: a lock cache (cached answers would not be linearizable).

mod acquire;
mod attached;
mod backoff;
mod backup;
pub mod blocking;
mod call;
mod clock;
mod closing;
mod cluster;
mod contact;
mod core;
mod credentials;
mod election;
mod error;
mod force_release;
mod guard;
#[cfg(feature = "serde")]
pub mod json;
mod keep_alive;
mod lease;
mod members;
mod nodes;
mod operator_calls;
mod pipeline;
mod reentrant;
mod refusal;
mod release;
mod requests;
mod session;
mod token_file;
mod views;
mod watch;

/// Certificates: [`Builder::tls`].
#[cfg(feature = "tls")]
pub use lockkeeper_transport::tls::{Subject, Tls, TlsError, TlsFiles};
/// Names, tokens and limits.
pub use lockkeeper_types as types;

pub use acquire::Acquire;
pub use attached::{AttachedAcquire, AttachedSession, Renewal};
pub use backup::Backup;
pub use clock::{BootClock, Clock, Moment};
// For the program `lockkeeper`, which says so when it gets no answer. The client itself tells it by its errors.
pub use cluster::{Builder, Client, DEFAULT_ENDPOINTS};
#[doc(hidden)]
pub use contact::Silence;
pub use credentials::{Authorized, Credentials};
pub use election::{Campaign, Election, Leader, Leadership, Observe};
pub use error::{Error, Loss, NotAcquired, Refused};
pub use force_release::ForceRelease;
pub use guard::{Danger, Guard, NewData};
pub use lease::AcknowledgedLease;
pub use members::NewMember;
pub use nodes::Connect;
pub use reentrant::{Entered, Reentrant};
pub use refusal::Refusal;
pub use session::{Session, SessionOptions};
pub use views::{
    AskBusiest, Busiest, Busy, BusyLock, Change, ChangeKind, Changes, CheckAnswer, DroppedData, EarlierCluster, Forced,
    Holder, LockAnswer, LockInfo, LockKind, LockPage, LongWait, Member, NodeStatus, Resized, Revocation, Role,
    SessionInfo, SessionPage, StatePart, Totals, Waiter, WatchMessage,
};
pub use watch::Watch;
