//! Watches of the connections of this node, and the order of events and replies.
//!
//! ```text
//! table       who watches what
//! hub         the feed of applied changes becomes events
//! outbox      events that wait for their connection
//! ```
//!
//! **Order.** Each event has the revision of its change. A reply that shows revision R leaves after the hub was told everything up to R,
//! and after the events up to R of its connection; later events follow it. So a client hears of a change before it sees it, and a watch
//! that a read has set hears of exactly the changes that the read does not show: the read and the watch are made under the lock of the
//! hub.
//!
//! Watches are in memory, and die with their connection: clients set them again (`setWatches`) where they connect next.

mod hub;
mod outbox;
mod table;

pub(crate) use hub::{MissedChange, WatchHub, WatchingClient};
pub(crate) use outbox::EventOutbox;
pub(crate) use table::{WatchClass, WatchLimitReached, WatchLimits, WatchTable, WatcherId};
