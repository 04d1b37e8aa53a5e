//! The peers' network: Raft's calls between the nodes of one cluster, by gRPC.
//!
//! * [`Network`] makes the clients that openraft calls through: for each peer one for entries, one for heartbeats, one for snapshots, and
//!   one for each round of votes. Each has its own connection, so that a heartbeat waits neither behind megabytes of entries nor behind a
//!   snapshot.
//! * [`PeerService`] answers them, for the replica of this node. Before it has a replica it answers only Hello, so that nodes can find
//!   each other ([`crate::members::forming`]).
//! * [`Acknowledgements`]: which of this node's requests each peer has answered; linearizable reads need it.
//! * [`SnapshotSource`] and [`SnapshotSink`] connect snapshot files with the network; `snapshot_files` implements them.
//! * [`addresses`]: where the members are reached; [`liveness`]: when each was last heard; [`versions`]: which programs they run.
//!
//! Entries and heartbeats use the same RPC: [`Append`](crate::messages::peer_server::Peer::append), a stream of requests and one
//! of answers in the same order. Entries are pipelined: the next request does not wait for the previous answer, which comes only when the
//! follower has flushed. Heartbeats within half a second share a stream.
//!
//! Every call names both ends: the cluster, and the id and the incarnation of caller and callee. A node refuses a call that is not for
//! it, or whose caller has another incarnation than before: see [`crate::identity`].
//!
//! **Time.** Every wait has a deadline: openraft sets the time for an answer, and large messages get as much longer as they take at
//! [`SLOWEST_BYTES_PER_SECOND`]. A connection on which a call failed or timed out is dropped, and the next call dials again: a peer that
//! came back is found by the next call, not by TCP's timers.
//!
//! A new connection needs two round trips more than an open one (TCP, TLS), and at first contact both ends remember each other's start,
//! with a sync. A heartbeat is given up before that on a long line, and if each one dialled from the beginning, none would ever be
//! answered. So one that was given up leaves its connection opening, for the next ones: for as long as an answer to entries is waited for
//! ([`ENTRIES_PATIENCE`]).
//!
//! **Deliberately absent**: encryption, which is the connector's and the listener's. Where a connection has certificates, a call must come
//! from the node that its certificate names. Without them everything that can reach the peer port is trusted; its messages are still
//! checked, so that noise and mix-ups do no harm.

use std::time::Duration;

mod acknowledgements;
pub mod addresses;
mod append;
mod client;
pub(crate) mod envelope;
pub mod liveness;
mod parked;
mod peer;
mod service;
mod snapshot;
mod snapshot_files;
pub mod versions;

pub(crate) use acknowledgements::is_quorum;
pub use acknowledgements::{Acknowledgements, RequestNumber};
pub use client::{Network, Prober, hello};
pub use peer::PeerClient;
pub use service::PeerService;
pub use snapshot::{SnapshotReceiver, SnapshotSink, SnapshotSource};

/// The largest message in either direction. Far above the usual: see [`APPEND_BYTES_MAX`].
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// Maximum bytes of entries in one append. A larger entry, which a batch of commands can be by a little, travels alone. openraft counts
/// entries, not bytes; its requests are split here.
pub const APPEND_BYTES_MAX: usize = 1 << 20;
/// Maximum unanswered appends to one peer: the length of the other side's pipeline.
pub const APPENDS_IN_FLIGHT_MAX: usize = 64;
/// Maximum bytes of unanswered entries to one peer; a single append may exceed it.
pub const APPEND_BYTES_IN_FLIGHT_MAX: usize = 8 << 20;
/// Delay before a commit index is sent without entries; new entries piggyback it at once. Without entries, followers apply this much
/// later; for the newest commit index ask the leader.
pub const COMMITTED_WAITS: Duration = Duration::from_millis(3);
/// Bytes of a snapshot in one message.
pub const SNAPSHOT_PIECE_BYTES: usize = 256 << 10;
/// How long a snapshot's receiver waits for the next piece, and for writing the previous one.
pub const SNAPSHOT_PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// The slowest transfer that does not count as failed.
pub const SLOWEST_BYTES_PER_SECOND: u64 = 1 << 20;
/// Factor from openraft's time for a heartbeat to the time for an answer to entries.
///
/// openraft allows less than one heartbeat interval for either. But an answer to entries waits for a flush, and one slow flush is no
/// reason to dial again and resend megabytes to a busy disk. Heartbeats show whether the peer is alive.
pub const ENTRIES_PATIENCE: u32 = 4;
/// Time limit of a Hello call.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// The extra time for a transfer of this many bytes.
fn allowance(bytes: u64) -> Duration {
    Duration::from_millis(bytes * 1000 / SLOWEST_BYTES_PER_SECOND)
}
