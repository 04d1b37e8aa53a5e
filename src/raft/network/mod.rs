//! The peers' network: Raft's calls between the nodes of one cluster, by gRPC.
//!
//! * [`Network`] makes the clients that openraft calls through: for each peer one for entries, one for heartbeats, one for snapshots,
//!   and one for each round of votes. Each has a connection of its own, so that a heartbeat waits neither behind megabytes of
//!   entries nor behind a snapshot.
//! * [`PeerService`] answers them, for the replica of this node. It says who it is before it has a replica, so that nodes can find
//!   each other ([`super::forming`]).
//! * [`Acknowledgements`]: which of this node's requests each peer has answered, as linearizable reads must know.
//! * [`SnapshotSource`] and [`SnapshotSink`] are where the snapshot's file meets the network.
//!
//! Entries and heartbeats take the same way: [`Append`](crate::proto::internal::peer_server::Peer::append), a stream of requests and
//! one of answers in the same order. Entries are pipelined: the next request does not wait for the answer to the last one, which
//! comes only when the follower has flushed. A heartbeat is a stream of one.
//!
//! Every call says for whom it is and from whom: the cluster, and the id and the incarnation of both ends. A node refuses a call that
//! is not for it, or from one that is not who it was: see [`super::identity`].
//!
//! **Time.** No wait is without an end: openraft sets the time for an answer, and what is large has as much longer as it takes at
//! [`SLOWEST_BYTES_PER_SECOND`]. A connection on which a call failed or timed out is dropped, and the next call dials again: a
//! peer that came back is found by the next try, not by TCP's timers.
//!
//! **Deliberately absent**: authentication and encryption. Who can reach the peer port is trusted; what it sends is still checked,
//! so that noise and mix-ups do no harm.

use std::time::Duration;

mod acknowledgements;
mod append;
mod client;
mod envelope;
mod service;
mod snapshot;

pub use acknowledgements::{Acknowledgements, Number};
pub use client::{Network, PeerClient, hello};
pub use service::PeerService;
pub use snapshot::{SnapshotReceiver, SnapshotSink, SnapshotSource};

/// The largest message, either way. Far above what is sent: see [`APPEND_BYTES_MAX`].
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// An append is closed when the next entry would make it larger. An entry larger than this, which a batch of commands can be by a
/// little, travels alone. openraft counts entries, not bytes; what it asks for at once is split.
pub const APPEND_BYTES_MAX: usize = 1 << 20;
/// Appends to one peer that wait for their answers: as many as the other side's pipeline holds.
pub const APPENDS_IN_FLIGHT_MAX: usize = 64;
/// Bytes of entries under way to one peer; a single append may exceed it.
pub const APPEND_BYTES_IN_FLIGHT_MAX: usize = 8 << 20;
/// How long the news that entries are committed wait for further entries to go along with. Followers apply so much later when there are
/// none; who wants to know what is committed asks the leader.
pub const COMMITTED_WAITS: Duration = Duration::from_millis(3);
/// Bytes of a snapshot in one message.
pub const SNAPSHOT_PIECE_BYTES: usize = 256 << 10;
/// How long a snapshot's receiver waits for the next piece, and for the one before it to be done.
pub const SNAPSHOT_PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// The slowest transfer that is not taken for a failure.
pub const SLOWEST_BYTES_PER_SECOND: u64 = 1 << 20;
/// For entries, the time for an answer is so many times what openraft gives for a heartbeat.
///
/// openraft allows less than one heartbeat interval for either. But an answer to entries waits for a flush, and a single slow flush is
/// no reason to dial anew and send megabytes again to a disk that has enough to do. Whether the peer is alive, heartbeats tell.
pub const ENTRIES_PATIENCE: u32 = 4;
/// How long a peer may take to say who it is.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// How much longer a transfer of so many bytes may take than one of none.
fn allowance(bytes: u64) -> Duration {
    Duration::from_millis(bytes * 1000 / SLOWEST_BYTES_PER_SECOND)
}
