//! The keyspace: keys with values beside the locks, for adapters of protocols that lock by writing.
//!
//! A small ordered map of the present state, and a bounded history of its changes: no conditions but compares. An adapter reads, decides by
//! the rules of its protocol, and commits a [`Txn`] that compares what it has read, as `modified`: optimistic concurrency. So the rules of
//! no other product are in the log.
//!
//! * **Revisions** come from the counter of tokens. So the revision of a write is a fencing token: it rises with every write and every
//!   grant of the cluster, through failover, snapshots and restores. All writes of one transaction have one revision; a transaction that
//!   writes nothing takes none.
//! * **A lease is a session.** An entry that is put with one is deleted when the session ends, however it ends, or is kept and marked as
//!   expired, as the put said. Either is a change of the entry, with a revision of its own. A transaction may open the session of what it
//!   puts: then one entry of the log makes an entry with its lease, and the session is closed when the last entry leaves it.
//! * **An entry may have a deadline of its own** instead of a lease: a moment of cluster time, from a millisecond after the write on to
//!   millennia. At that moment it is deleted, by a change of its own. It costs no session and no limit of sessions; later writes keep the
//!   deadline, move it, or remove it ([`PutLease`], [`Expire`]). What is said here of leases that are over holds for it too.
//! * **A lease that is over is over for everybody**, at its deadline, though the session's end may be in the backlog: whoever reads,
//!   compares or writes sees the entry as it will be ([`Machine::entry`]). Only the revision of the change is not known yet: a kept entry
//!   shows its last write as `modified` until then, and the history has no event of it. A transaction that replaces this entry ends
//!   its lease first, at a revision of its own.
//! * **A transaction runs whole or not at all.** It is planned against the table, and refused before the first change: for a lease that is
//!   over, or for a limit. Its work is bounded by its number of operations and by [`TXN_WRITES_MAX`].
//!
//! * **An entry with a lease or a deadline may claim a lock**: an adapter names the lock under which people know the entry. So operators
//!   see it, watch it, take it back and find it in the audit as any other lock, with no rule of the protocol in the machine. See `claims`.
//!
//! The files:
//!
//! * `entries`: an entry as everybody sees it, and the end of leases;
//! * `transactions`: compares and operations;
//! * `children`: children of keys, and attachments of sessions;
//! * `events`: the history, for watches and for reads of the past;
//! * `claims`: the locks of entries;
//! * `demand`: whether a command asks for more, or renews or gives back, and so is refused last;
//! * `cost`: how much work a command is;
//! * `temporary`: what adapters remember for a time, within limits of its own.
//!
//! Left out: the request ids of sessions. A transaction that compares what it replaces takes effect once by itself; one that does not may
//! take effect again when it is repeated.

mod children;
mod claims;
mod cost;
mod demand;
mod entries;
mod events;
#[cfg(test)]
mod judged;
mod temporary;
#[cfg(test)]
mod tests;
mod transactions;

pub use cost::CommandWork;
pub use events::PastEntries;
