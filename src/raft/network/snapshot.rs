//! The transfer of snapshots: a header, then the file in pieces.
//!
//! The network does not know where the file is or how it is verified: it reads from a [`SnapshotSource`] and writes to a
//! [`SnapshotSink`].

use std::{future::Future, io};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::mpsc,
    time::timeout,
};
use tonic::{Status, Streaming};

use super::{SNAPSHOT_PIECE_BYTES, SNAPSHOT_PIECE_TIMEOUT};
use crate::messages::{SnapshotHeader, SnapshotPiece, snapshot_piece::Kind};
use crate::types::{SnapshotMeta, Vote};
use lockkeeper_table::Malformed;

/// A snapshot that can be sent: openraft's snapshot data.
pub trait SnapshotSource: Send + Sync + 'static {
    /// Reads its bytes.
    type Reader: AsyncRead + Send + Unpin;

    /// Its length in bytes.
    fn length(&self) -> u64;

    /// Opens it at its first byte.
    fn open(&self) -> impl Future<Output = io::Result<Self::Reader>> + Send;
}

/// Receives snapshots.
pub trait SnapshotSink: Send + Sync + 'static {
    /// A snapshot that arrived completely.
    type SnapshotData: Send + 'static;
    /// A snapshot that is arriving.
    type Receiver: SnapshotReceiver<SnapshotData = Self::SnapshotData>;

    /// Begins to receive a snapshot of `length` bytes. Snapshots are received one at a time.
    fn begin(&self, meta: &SnapshotMeta, length: u64) -> impl Future<Output = io::Result<Self::Receiver>> + Send;
}

/// A snapshot that is arriving. If dropped before its end, it leaves nothing behind.
pub trait SnapshotReceiver: Send + 'static {
    /// The type of the complete snapshot.
    type SnapshotData: Send + 'static;

    /// Writes the next bytes, in order, at most as many as announced.
    fn write(&mut self, bytes: Bytes) -> impl Future<Output = io::Result<()>> + Send;

    /// Verifies the snapshot once all announced bytes are written; returns once they are durable.
    fn finish(self) -> impl Future<Output = io::Result<Self::SnapshotData>> + Send;
}

/// Sends a snapshot into a call, piece by piece. If the call ends early, so does this, without an error.
pub(super) async fn send<D: SnapshotSource>(
    vote: &Vote,
    meta: &SnapshotMeta,
    source: &D,
    pieces: mpsc::Sender<SnapshotPiece>,
) -> io::Result<()> {
    let mut reader = source.open().await?;
    let header = SnapshotHeader::new(vote, meta, source.length());
    let mut piece = Kind::Header(header);

    while pieces.send(SnapshotPiece { kind: Some(piece) }).await.is_ok() {
        let mut bytes = BytesMut::with_capacity(SNAPSHOT_PIECE_BYTES);
        while bytes.len() < SNAPSHOT_PIECE_BYTES && reader.read_buf(&mut bytes).await? > 0 {}
        if bytes.is_empty() {
            break;
        }
        piece = Kind::Bytes(bytes.freeze());
    }

    Ok(())
}

/// Receives a snapshot from [`send`], if `accept` says so of its header.
pub(super) async fn receive<K: SnapshotSink>(
    sink: &K,
    mut pieces: Streaming<SnapshotPiece>,
    accept: impl FnOnce(&Vote, &SnapshotMeta) -> Result<(), Status>,
) -> Result<(Vote, SnapshotMeta, K::SnapshotData), Status> {
    let Some(Kind::Header(header)) = next(&mut pieces).await? else {
        return Err(Status::invalid_argument("the first piece of a snapshot must be its header"));
    };
    let malformed = |error: Malformed| Status::invalid_argument(error.to_string());
    let (vote, meta, length) = header.into_parts().map_err(malformed)?;
    // Check before any of its bytes is written.
    accept(&vote, &meta)?;

    let mut receiver = in_time(sink.begin(&meta, length)).await?;
    let mut missing = length;
    while let Some(piece) = next(&mut pieces).await? {
        let Kind::Bytes(bytes) = piece else {
            return Err(Status::invalid_argument("a snapshot must have only one header"));
        };
        missing = match missing.checked_sub(bytes.len() as u64) {
            Some(missing) => missing,
            None => {
                return Err(Status::invalid_argument(format!(
                    "the snapshot exceeds its announced length of {length} bytes"
                )));
            }
        };
        in_time(receiver.write(bytes)).await?;
    }
    if missing > 0 {
        return Err(Status::invalid_argument(format!("{missing} of the snapshot's {length} bytes are missing")));
    }
    // Verifying and syncing have no limit here: the sender's deadline grows with the size.
    let data = receiver.finish().await.map_err(failed)?;
    Ok((vote, meta, data))
}

async fn next(pieces: &mut Streaming<SnapshotPiece>) -> Result<Option<Kind>, Status> {
    let piece = timeout(SNAPSHOT_PIECE_TIMEOUT, pieces.message()).await;
    let late = |_| Status::deadline_exceeded(format!("no piece of the snapshot within {SNAPSHOT_PIECE_TIMEOUT:?}"));
    let piece = piece.map_err(late)??;
    match piece {
        Some(SnapshotPiece { kind: None }) => Err(Status::invalid_argument("a piece of a snapshot without content")),
        Some(SnapshotPiece { kind }) => Ok(kind),
        None => Ok(None),
    }
}

async fn in_time<T>(io: impl Future<Output = io::Result<T>>) -> Result<T, Status> {
    let done = timeout(SNAPSHOT_PIECE_TIMEOUT, io).await;
    let late = |_| Status::deadline_exceeded(format!("the snapshot was not written within {SNAPSHOT_PIECE_TIMEOUT:?}"));
    done.map_err(late)?.map_err(failed)
}

fn failed(error: io::Error) -> Status {
    tracing::error!(%error, "cannot receive a snapshot");
    Status::internal(format!("cannot receive the snapshot: {error}"))
}
