//! Leader election: one leader at a time, visible to all, with an epoch for each leadership.
//!
//! An election is a lock and its data. The holder of the lock is the leader; the data are the leader's *value*, usually
//! its address; the token of the grant is the *epoch*. So the guarantees of locks apply: candidates lead in the order
//! of arrival, a dead leader is replaced after the TTL of its session and never before, a leader that resigns is
//! replaced at once, and `lockkeeper get NAME` shows the leader and the candidates.
//!
//! ```no_run
//! # use lockkeeper_client::{Client, SessionOptions, types::Token};
//! # async fn schedule_jobs(epoch: Token) {}
//! # async fn example(client: Client) -> Result<(), lockkeeper_client::Error> {
//! let session = client.open(SessionOptions::default()).await?;
//! let election = client.election("schedulers")?;
//! loop {
//!     let leadership = election.campaign(&session, "10.0.0.7:9000").await?;
//!     tokio::select! {
//!         () = schedule_jobs(leadership.epoch()) => return leadership.resign().await,
//!         loss = leadership.lost() => eprintln!("no longer the leader: {loss}"),
//!     }
//! // An operator revoked it and the session lives: campaign again. If the session is lost too, the campaign fails.
//! }
//! # }
//! ```
//!
//! As an observer:
//!
//! ```no_run
//! # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
//! let mut leaders = client.election("schedulers")?.observe();
//! loop {
//!     match leaders.next().await? {
//!         Some(leader) => println!("{} leads, epoch {}", leader.label, leader.epoch.0),
//!         None => println!("no leader"),
//!     }
//! }
//! # }
//! ```
//!
//! # Epochs
//!
//! An election cannot prevent a paused leader from waking up after its successor took over and finishing a write that
//! it had begun. The resource can, if it knows the latest epoch. Epochs rise from leader to leader, for ever. So the
//! leader sends its epoch with every write and order, and each receiver refuses an epoch lower than the highest it has
//! seen.
//!
//! # Loss of leadership
//!
//! The leader stops. [`Leadership::lost`] returns at that moment, [`Leadership::loss`] gives the reason, and
//! [`Leadership::remaining`] how long the cluster allows no other leader: that is the time for finishing. Begin work
//! that cannot be undone only if it completes well within that time.
//!
//! # Deliberately left out
//!
//! * A query "do I lead?" with a yes or no. The answer would be out of date when it is read: [`Leadership::remaining`]
//!   says for how long it is valid.
//! * A value that outlives its leader. Store lasting values elsewhere, under the epoch.
//! * The start time of a leadership. The changes that an observer receives do not carry it; [`Client::get`] does.

mod leadership;
mod observe;

pub use leadership::{Campaign, Leadership};
pub use observe::Observe;

use super::{Client, Error, LockAnswer, LockInfo, Session};
use lockkeeper_proto::v1::GetRequest;
use lockkeeper_types::{LockName, Mode, SessionId, Token};

impl Client {
    /// An election: the leader is the holder of the lock of this name. Fails with [`Error::Invalid`]; nothing is sent.
    pub fn election(&self, name: &str) -> Result<Election, Error> {
        Election::new(self.clone(), name)
    }
}

/// An election by its name, which is the name of its lock. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    name: LockName,
}

/// The current leader.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// The epoch: higher than that of any earlier leader. It is the token of the grant.
    pub epoch: Token,
    /// The value that it published last, up to 16 KiB. Empty if it published none: it may hold the lock without a
    /// campaign.
    pub value: Vec<u8>,
    /// The label of its session, for people.
    pub label: String,
    /// The id of its session.
    pub session_id: SessionId,
}

impl Election {
    pub(super) fn new(client: Client, name: &str) -> Result<Self, Error> {
        Ok(Self { client, name: LockName::new(name)? })
    }

    /// The name of the election and of its lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Stands for election; leads after all earlier candidates are gone. `value`, up to 16 KiB, is published to
    /// observers; it may be empty. The session belongs to the same cluster; its loss ends the leadership.
    ///
    /// ```no_run
    /// # use lockkeeper_client::{Election, Error, Session};
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

    /// The current leader, if there is one. Linearizable: the answer is at least as new as the call. Fails as
    /// [`Client::get`] does. Cancel safe.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
    /// if let Some(leader) = client.election("schedulers")?.leader().await? {
    ///     println!("ask {}", String::from_utf8_lossy(&leader.value));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        // Only the holder is needed; the queue can be long.
        let request = GetRequest { name: self.name.as_str().to_owned(), page_size: 1, ..GetRequest::default() };
        let caller = &self.client.caller;
        let answer = caller.call(caller.policy(), |node| node.pipeline.get(request.clone())).await?;
        Ok(Leader::from_lock(LockAnswer::from_wire(answer)?.lock))
    }

    /// The current leader, then every change. See [`Observe`].
    pub fn observe(&self) -> Observe {
        Observe::new(self.client.clone(), self.name.clone())
    }
}

impl Leader {
    /// A sharer or a holder of a permit is one of several, and no leader.
    fn from_lock(lock: LockInfo) -> Option<Self> {
        let holder = lock.holders.into_iter().next()?;
        (holder.mode == Some(Mode::Exclusive)).then(|| Self {
            epoch: holder.token,
            value: lock.data.unwrap_or_default(),
            label: holder.label,
            session_id: holder.session_id,
        })
    }
}
