//! The busiest locks and the longest waits.

use super::{Holder, LockInfo, Waiter, each, name};
use crate::Error;
#[cfg(feature = "serde")]
use crate::json;
use lockkeeper_proto::v1::{self, busiest_response as wire};
use lockkeeper_types::LockName;

/// What [`Client::busiest`](crate::Client::busiest) asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AskBusiest {
    /// Only locks whose names begin with this; empty: all locks.
    pub prefix: String,
    /// At most this many locks and waits in each list; 0 means 20, values above 100 mean 100.
    pub size: u32,
    /// Grants are counted after this log index: [`Busiest::index`] of an earlier answer of the same node; 0: all that are known.
    pub after_index: u64,
}

/// The answer of [`Client::busiest`](crate::Client::busiest).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Busiest {
    /// The locks with the longest queues, then those with the most grants that are not among them.
    pub locks: Vec<BusyLock>,
    /// The longest waits, the oldest first.
    pub waits: Vec<LongWait>,
    /// There are more waits than the node examined: those that arrived last do not count for `locks`.
    pub more_waits: bool,
    /// Grants are counted after this log index: higher than requested if the node keeps no older changes.
    pub counted_after_index: u64,
    /// The log index that this answer shows.
    pub index: u64,
    /// The node that answered.
    pub node_id: u64,
    /// What the table of that node did since the node started, for all locks.
    pub totals: Totals,
}

/// A lock that is awaited, or was granted lately.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BusyLock {
    /// The lock, with its first holder and its first waiter; the counts include all. Without data.
    pub lock: LockInfo,
    /// Number of counted grants.
    pub grants: u64,
}

/// An acquire that has waited long.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct LongWait {
    /// The lock; of an acquire of several locks, the first one under the prefix.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::text"))]
    pub name: LockName,
    /// The acquire.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub waiter: Waiter,
    /// The first holder of the lock.
    pub holder: Option<Holder>,
    /// Number of waiters of the lock.
    pub queue_length: u64,
}

/// What the table of a node did since the node started. Each node counts all entries that it applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Locks granted.
    pub granted: u64,
    /// Locks released by their holders.
    pub released: u64,
    /// Locks lost with the sessions of their holders.
    pub expired: u64,
    /// Locks that an operator took from their holders.
    pub forced: u64,
    /// Acquires that began to wait.
    pub queued: u64,
    /// Waits that ended, by a grant or without.
    pub waits_ended: u64,
    /// Sessions that were closed.
    pub sessions_closed: u64,
    /// Sessions that expired.
    pub sessions_expired: u64,
}

impl Busiest {
    pub(crate) fn from_wire(wire: v1::BusiestResponse) -> Result<Self, Error> {
        let v1::BusiestResponse { locks, waits, more_waits, counted_after_index, index, node_id, totals } = wire;
        Ok(Self {
            locks: each(locks, BusyLock::from_wire)?,
            waits: each(waits, LongWait::from_wire)?,
            more_waits,
            counted_after_index,
            index,
            node_id,
            totals: Totals::from_wire(totals.unwrap_or_default()),
        })
    }
}

impl BusyLock {
    fn from_wire(wire: wire::BusyLock) -> Result<Self, Error> {
        let lock = wire.lock.ok_or_else(|| Error::malformed("locks.lock", ""))?;
        Ok(Self { lock: LockInfo::from_wire(lock)?, grants: wire.grants })
    }
}

impl LongWait {
    fn from_wire(wire: wire::LongWait) -> Result<Self, Error> {
        let wire::LongWait { name: lock, waiter, holder, queue_length } = wire;
        let waiter = waiter.ok_or_else(|| Error::malformed("waits.waiter", ""))?;
        Ok(Self {
            name: name("waits.name", &lock)?,
            waiter: Waiter::from_wire(waiter)?,
            holder: holder.map(Holder::from_wire).transpose()?,
            queue_length,
        })
    }
}

impl Totals {
    fn from_wire(wire: wire::Totals) -> Self {
        let wire::Totals { granted, released, expired, forced, queued, waits_ended, sessions_closed, sessions_expired } =
            wire;
        Self { granted, released, expired, forced, queued, waits_ended, sessions_closed, sessions_expired }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::malformed, *};
    use lockkeeper_types::{SessionId, Ticket, WallTime};

    fn waiter() -> v1::Waiter {
        let session_id = SessionId(2).to_string();
        v1::Waiter { ticket: 5, session_id, label: "bob".to_owned(), since_unix_ms: 7, ..v1::Waiter::default() }
    }

    #[test]
    fn an_answer_keeps_every_value() {
        let lock = v1::LockInfo { name: "jobs".to_owned(), queue_length: 3, ..v1::LockInfo::default() };
        let totals = wire::Totals { granted: 1, sessions_expired: 8, ..wire::Totals::default() };
        let wait = wire::LongWait { name: "jobs".to_owned(), waiter: Some(waiter()), holder: None, queue_length: 3 };
        let answer = v1::BusiestResponse {
            locks: vec![wire::BusyLock { lock: Some(lock), grants: 4 }],
            waits: vec![wait],
            more_waits: true,
            counted_after_index: 40,
            index: 42,
            node_id: 2,
            totals: Some(totals),
        };
        let busiest = Busiest::from_wire(answer).unwrap();
        let numbers = (busiest.more_waits, busiest.counted_after_index, busiest.index, busiest.node_id);
        assert_eq!(numbers, (true, 40, 42, 2));
        assert_eq!(busiest.totals, Totals { granted: 1, sessions_expired: 8, ..Totals::default() });
        let (busy, wait) = (&busiest.locks[0], &busiest.waits[0]);
        assert_eq!((busy.lock.name.as_str(), busy.lock.queue_length, busy.grants), ("jobs", 3, 4));
        assert_eq!((wait.name.as_str(), wait.waiter.ticket, wait.waiter.since), ("jobs", Ticket(5), WallTime(7)));
        assert_eq!((&wait.holder, wait.queue_length), (&None, 3));
    }

    #[test]
    fn what_an_answer_must_have_is_missed() {
        let locks = vec![wire::BusyLock::default()];
        let answer = v1::BusiestResponse { locks, ..v1::BusiestResponse::default() };
        assert_eq!(malformed(Busiest::from_wire(answer)).0, "locks.lock");
        let waits = vec![wire::LongWait { name: "a".to_owned(), ..wire::LongWait::default() }];
        let answer = v1::BusiestResponse { waits, ..v1::BusiestResponse::default() };
        assert_eq!(malformed(Busiest::from_wire(answer)).0, "waits.waiter");
    }
}
