//! A stream of heartbeats between two of them: see [`append`](super::append).

use tokio::{sync::mpsc, time::Instant};
use tonic::Streaming;

use crate::messages as pb;

/// An open stream, all of whose heartbeats were answered.
pub(super) struct Parked {
    pub(super) requests: mpsc::Sender<pb::AppendRequest>,
    pub(super) answers: Box<Streaming<pb::AppendResponse>>,
    /// When it was opened.
    pub(super) opened_at: Instant,
}
