//! Elections: one of many leads, all know who, and each term has a number.
//!
//! An election is a lock and its data. Who holds the lock leads; the data are the leader's *value*, as a rule where it is to be reached;
//! the grant's token is the *epoch* of its term. So all that is true of locks is true here: candidates lead in the order in which they
//! came, a leader that dies is replaced after the TTL of its session and never before, one that resigns is replaced at once, and
//! `lockkeeper get NAME` shows who leads and who comes next.
//!
//! ```no_run
//! # use lockkeeper::{client::{Client, SessionOptions}, machine::Token};
//! # async fn schedule_jobs(epoch: Token) {}
//! # async fn example(client: Client) -> Result<(), lockkeeper::client::Error> {
//! let session = client.open(SessionOptions::default()).await?;
//! let election = client.election("schedulers")?;
//! loop {
//!     let leadership = election.campaign(&session, "10.0.0.7:9000").await?;
//!     tokio::select! {
//!         () = schedule_jobs(leadership.epoch()) => return leadership.resign().await,
//!         loss = leadership.lost() => eprintln!("no longer the leader: {loss}"),
//!     }
//!     // An operator took it back, and the session lives: stand again. If the session is lost too, the campaign says so.
//! }
//! # }
//! ```
//!
//! And from outside:
//!
//! ```no_run
//! # async fn example(client: lockkeeper::client::Client) -> Result<(), lockkeeper::client::Error> {
//! let mut leaders = client.election("schedulers")?.observe();
//! loop {
//!     match leaders.next().await? {
//!         Some(leader) => println!("{} leads, epoch {}", leader.label, leader.epoch.0),
//!         None => println!("nobody leads"),
//!     }
//! }
//! # }
//! ```
//!
//! # What the epoch is for
//!
//! No election can stop a leader that was paused from waking up after the next one took over, and from finishing the write that it had
//! begun. Whatever the leader writes to can, if it knows who came later. Epochs rise from leader to leader, for ever. So the leader
//! sends its epoch with all that it writes or orders, and whoever takes that refuses an epoch lower than the highest it has seen.
//!
//! # What a leader does on loss
//!
//! It stops. [`Leadership::lost`] says when, [`Leadership::loss`] why, and [`Leadership::remaining`] how long the cluster lets nobody
//! else lead: that is the time to finish in. What cannot be undone is begun only if it is done well within it.
//!
//! # What is left out, deliberately
//!
//! * A question "do I lead?" whose answer is yes or no. It would be out of date when it is read: ask [`Leadership::remaining`], which
//!   says for how long it holds.
//! * A value that outlives its leader. It goes with the term; what is to stay belongs into a store, under the epoch.
//! * Since when somebody leads. The changes that an observer hears do not tell; [`Client::get`] does.

mod leadership;
mod observe;

pub use leadership::{Campaign, Leadership};
pub use observe::Observe;

use super::{Client, Error, Session};
use crate::{
    machine::{LockName, Token},
    proto::v1::{GetRequest, LockInfo, mode::Kind},
};

/// An election, by its name: that of the lock that stands behind it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    name: LockName,
}

/// Who leads.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The number of its term: higher than that of any leader before. It is the token of the grant.
    pub epoch: Token,
    /// What it proclaimed last, up to 16 KiB. Empty if it did not say anything: it may have taken the lock otherwise.
    pub value: Vec<u8>,
    /// Who its session is, for people to read.
    pub label: String,
    /// Its session: 32 hexadecimal digits, as [`Session::id`] is written.
    pub session_id: String,
}

impl Election {
    pub(super) fn new(client: Client, name: &str) -> Result<Self, Error> {
        Ok(Self { client, name: LockName::new(name)? })
    }

    /// Its name, and that of the lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Stands for election, and leads once all who came earlier are gone. `value`, up to 16 KiB, is what the others are to know of the
    /// leader; an empty one is one too. The session is one of the same cluster; if it is lost, so is what it leads.
    ///
    /// ```no_run
    /// # use lockkeeper::client::{Election, Error, Session};
    /// # use std::time::Duration;
    /// # async fn example(election: Election, session: Session) -> Result<(), Error> {
    /// match election.campaign(&session, "10.0.0.7:9000").wait_at_most(Duration::from_secs(5)).await {
    ///     Ok(leadership) => println!("leading, epoch {}", leadership.epoch().0),
    ///     Err(Error::NotAcquired(why)) => println!("following: {why}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn campaign(&self, session: &Session, value: impl AsRef<[u8]>) -> Campaign {
        Campaign::new(session.acquire(self.name.as_str()).data(value.as_ref()))
    }

    /// Who leads now; `None`: nobody does. Linearizable: who led when this was asked, or later, is in the answer. Fails as
    /// [`Client::get`] does. Dropping the future changes nothing.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper::client::Client) -> Result<(), lockkeeper::client::Error> {
    /// if let Some(leader) = client.election("schedulers")?.leader().await? {
    ///     println!("ask {}", String::from_utf8_lossy(&leader.value));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        // The first of the queue is more than is asked for: that can be long.
        let request = GetRequest { name: self.name.as_str().to_owned(), page_size: 1, ..GetRequest::default() };
        let caller = &self.client.caller;
        let answer = caller.call(caller.plan(), |node| node.pipeline.get(request.clone())).await?;
        Ok(answer.lock.and_then(Leader::of))
    }

    /// Who leads, and then every change of that. See [`Observe`].
    pub fn observe(&self) -> Observe {
        Observe::new(self.client.clone(), self.name.clone())
    }
}

impl Leader {
    /// Who shares the lock, or has a permit of it, is one of several and leads nobody.
    fn of(lock: LockInfo) -> Option<Self> {
        let holder = lock.holders.into_iter().next()?;
        matches!(holder.mode?.kind?, Kind::Exclusive(_)).then(|| Self {
            epoch: Token(holder.token),
            value: lock.data.unwrap_or_default(),
            label: holder.label,
            session_id: holder.session_id,
        })
    }
}
