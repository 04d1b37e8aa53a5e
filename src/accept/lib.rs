//! Which connections a port accepts, and which of them stay: one policy for all ports of a node, for every protocol.
//!
//! ```text
//! slots           a slot for each connection; which one is closed when they are short
//! shortage        errors of accept(2), and what to do when file descriptors are short
//! arriving        limits the bytes of requests that are not answered yet
//! write_deadline  ends a connection whose client does not read
//! read_state      the bytes that a connection may read in its turn
//! log_throttle    at most one line in some seconds about what a client can cause
//! serve           the loop of a port that accepts, for a protocol and a listener that are parameters
//! ```
//!
//! A port admits each connection ([`Slots::admit`]), counts its calls ([`Slot::call`]), and ends it when it is told to
//! ([`Slot::must_end`]). Deadlines of a protocol (its handshake, its headers) are the port's own.
//!
//! Protocols are not part of this crate, and of sockets it has only what TCP itself gives.

mod arriving;
mod bounded_read;
mod log_throttle;
mod read_state;
mod serve;
mod shortage;
mod slots;
mod write_deadline;

use std::{fmt, sync::Arc};

pub use arriving::{ArrivingBytes, ArrivingRequest, FREE_BYTES, TooManyBytes};
pub use bounded_read::read_at_most;
pub use log_throttle::LogThrottle;
pub use read_state::ReadState;
pub use serve::{AcceptLimits, AcceptedConnection, ConnectionSource, serve_connections};
pub use slots::{NoSlot, OpenCall, Slot, SlotGuard, Slots, TaskOrder, origin};
pub use write_deadline::{UNREAD_TIMEOUT, WriteDeadline};

/// Whom the port tells of refused connections.
#[derive(Clone, Default)]
pub struct Refusals(Option<Arc<dyn Fn() + Send + Sync>>);

impl Refusals {
    /// Calls this function for each refused connection. The function must not block.
    pub fn told_to(told: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self(Some(told))
    }

    fn tell(&self) {
        if let Some(told) = &self.0 {
            told();
        }
    }
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Refusals").field(&self.0.is_some()).finish()
    }
}
