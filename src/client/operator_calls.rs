//! Operators' calls beside [`ForceRelease`](super::ForceRelease): remove a waiter, lift a lock-delay, drop kept data, resize a
//! semaphore, close a session.

use std::time::Duration;

use super::{Client, DroppedData, Error, Resized, Waiter, attached, call::with};
use lockkeeper_proto::v1::{self, locks_client::LocksClient};
use lockkeeper_types::{LockName, Permits, Reason, SessionId, Ticket};

impl Client {
    /// Removes an acquire from the queue of a lock, and from the queues of all other locks that it waits for: an
    /// operator's call. The acquire fails with the reason [`WaitRemoved`](super::Refusal::WaitRemoved) and is not retried
    /// by itself.
    ///
    /// The ticket is the one that [`Client::get`] shows. Returns the removed waiter; `None` if the ticket does not wait for this
    /// lock: it may have been granted, or an earlier attempt of this request removed it and its answer was lost. Fails
    /// as the calls of [`Client`] do. If the future is dropped before it completes, the request may have taken effect.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
    /// use lockkeeper_client::types::Ticket;
    ///
    /// if let Some(waiter) = client.remove_waiter("reports/nightly", Ticket(17)).await? {
    ///     println!("{} waits no more", waiter.label);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn remove_waiter(&self, name: &str, ticket: Ticket) -> Result<Option<Waiter>, Error> {
        let request = v1::RemoveWaiterRequest { name: LockName::new(name)?.as_str().to_owned(), ticket: ticket.0 };
        let answer = self.caller.call(self.caller.policy(), |node| with!(LocksClient, node, remove_waiter, request));
        answer.await?.removed.map(Waiter::from_wire).transpose()
    }

    /// Ends the lock-delay of a lock: an operator's call, for a lost holder whose work is known to be over. The next
    /// waiters are granted at once.
    ///
    /// Returns how long the lock would have stayed closed; `None` if it had no lock-delay. Fails as the calls of
    /// [`Client`] do. If the future is dropped before it completes, the request may have taken effect.
    ///
    /// It is not retried after an attempt of unknown outcome: by then the lock may have been acquired, lost and closed
    /// again.
    pub async fn lift_delay(&self, name: &str) -> Result<Option<Duration>, Error> {
        let request = v1::LiftDelayRequest { name: LockName::new(name)?.as_str().to_owned() };
        let policy = self.caller.once_policy();
        let answer = self.caller.call(policy, |node| with!(LocksClient, node, lift_delay, request)).await?;
        Ok(answer.lifted_ms.map(Duration::from_millis))
    }

    /// Drops the data that were kept on unheld locks under a prefix: an operator's call. An empty prefix means all locks.
    ///
    /// One call examines some hundreds of locks at most. `after` is empty for the first call, then `more_after` of the
    /// answer before, which is `None` after the last call. It is not retried after an attempt of unknown outcome: by
    /// then a holder may have kept other data. Fails as the calls of [`Client`] do. If the future is dropped before it
    /// completes, the request may have taken effect.
    pub async fn drop_data(&self, prefix: &str, after: &str) -> Result<DroppedData, Error> {
        let request = v1::DropDataRequest { prefix: prefix.to_owned(), after: after.to_owned() };
        let answer = self.caller.call(self.caller.once_policy(), |node| with!(LocksClient, node, drop_data, request));
        Ok(DroppedData::from_wire(answer.await?))
    }

    /// Changes the size of a semaphore that is held or awaited to `permits`, 1 to 1,000,000: an operator's call. A larger size is granted
    /// to waiters at once; a smaller one revokes no grant, and no permit is granted until fewer than the new size are held.
    ///
    /// From then on an acquire that names another size is treated as if it named this one, until the semaphore has neither holders,
    /// waiters nor data. In that time the clients can be moved to the new number one by one.
    ///
    /// Fails with [`Error::Refused`] and [`NotSemaphore`](super::Refusal::NotSemaphore) if it is neither held nor awaited as a semaphore,
    /// and else as the calls of [`Client`] do. It is not repeated once its outcome is unknown, because another operator may have resized
    /// the semaphore since. If the future is dropped before it completes, the request may have taken effect.
    ///
    /// ```no_run
    /// # async fn example(client: lockkeeper_client::Client) -> Result<(), lockkeeper_client::Error> {
    /// let resized = client.resize("database/connections", 40).await?;
    /// println!("{} before; {} are held", resized.permits_before, resized.holder_count);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn resize(&self, name: &str, permits: u32) -> Result<Resized, Error> {
        let name = LockName::new(name)?.as_str().to_owned();
        let permits = Permits::new(permits)?.get();
        let request = v1::ResizeRequest { name, permits };
        let answer = self.caller.call(self.caller.once_policy(), |node| with!(LocksClient, node, resize, request));
        Ok(Resized::from_wire(answer.await?))
    }

    /// Closes a session of others: an operator's call. All that it holds is released, all its waits are cancelled. Closing it again is not
    /// an error. `reason`, 1 to 512 bytes, stands in the log of the node that leads.
    ///
    /// Fails with [`Error::Invalid`] for a reason that is empty or too long, with [`Error::Lost`] if the session expired before, and else
    /// as the calls of [`Client`] do. Dropped before its end, it may have taken effect.
    pub async fn close_session(&self, session: SessionId, reason: &str) -> Result<(), Error> {
        attached::close(self, session, Reason::new(reason)?.as_str()).await
    }
}
