//! Watches of the connections of this node, and the order of events and replies.
//!
//! ```text
//! table       who watches what
//! hub         the feed of applied changes becomes events
//! outbox      events that wait for their connection
//! above       the paths above a path, by their hashes
//! ```
//!
//! **Order.** Each event has the revision of its change. A reply that shows revision R leaves after the hub was told everything up to R,
//! and after the events up to R of its connection; later events follow it. So a client hears of a change before it sees it, and a watch
//! that a read has set hears of exactly the changes that the read does not show: the read and the watch are made under the lock of the
//! hub.
//!
//! **What is done below the lock.** A change fires its watches there, and no more: the paths above it are looked up before, the policy is
//! asked and the events are put into outboxes afterwards. They leave once the whole step is told.
//!
//! Watches are in memory, and die with their connection: clients set them again (`setWatches`) where they connect next.

mod above;
mod hub;
mod outbox;
mod table;

pub(crate) use hub::{MissedChange, WatchHub, WatchingClient};
pub(crate) use outbox::EventOutbox;
pub(crate) use table::{WatchClass, WatchLimitReached, WatchLimits, WatchTable, WatcherId};
