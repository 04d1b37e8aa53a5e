//! The transfer of snapshot files: implements the traits of [`crate::network`] for [`crate::snapshot`].
//!
//! The files' methods block; here they run where blocking is allowed.

use std::{io, pin::Pin};

use bytes::Bytes;
use futures::{Stream, stream};
use tokio_util::io::StreamReader;

use crate::{
    network::{SNAPSHOT_PIECE_BYTES, SnapshotReceiver, SnapshotSink, SnapshotSource},
    snapshot::{Receiving, SnapshotFile, SnapshotStore},
    types::SnapshotMeta,
};
use lockkeeper_environment::Blocking;

type PieceStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

impl SnapshotSource for SnapshotFile {
    type Reader = StreamReader<PieceStream, Bytes>;

    fn length(&self) -> u64 {
        SnapshotFile::length(self)
    }

    async fn open(&self) -> io::Result<Self::Reader> {
        let pieces = stream::try_unfold((self.clone(), 0), async |(file, offset): (SnapshotFile, u64)| {
            let blocking = file.blocking();
            let read = move || {
                let piece = file.read_at(offset, SNAPSHOT_PIECE_BYTES)?;
                Ok((file, piece))
            };
            let (file, piece) = blocking.run(read).await?;
            let next = offset + piece.len() as u64;
            Ok((!piece.is_empty()).then_some((piece, (file, next))))
        });
        Ok(StreamReader::new(Box::pin(pieces)))
    }
}

impl SnapshotSink for SnapshotStore {
    type SnapshotData = SnapshotFile;
    type Receiver = Arriving;

    async fn begin(&self, meta: &SnapshotMeta, length: u64) -> io::Result<Arriving> {
        let store = self.clone();
        let meta = meta.clone();
        let blocking = store.blocking();
        let receiving = blocking.run(move || store.receive(meta, length)).await?;
        Ok(Arriving { receiving: Some(receiving), blocking })
    }
}

/// A snapshot that is arriving.
#[derive(Debug)]
pub struct Arriving {
    /// `None` only while a piece is written, and after a failed write.
    receiving: Option<Receiving>,
    blocking: Blocking,
}

impl SnapshotReceiver for Arriving {
    type SnapshotData = SnapshotFile;

    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        let mut receiving = self.take()?;
        let receiving = self.blocking.run(move || receiving.write(&bytes).map(|()| receiving)).await?;
        self.receiving = Some(receiving);
        Ok(())
    }

    async fn finish(mut self) -> io::Result<SnapshotFile> {
        let receiving = self.take()?;
        self.blocking.run(move || receiving.finish()).await
    }
}

impl Arriving {
    fn take(&mut self) -> io::Result<Receiving> {
        self.receiving.take().ok_or_else(|| io::Error::other("a piece of this snapshot could not be written"))
    }
}
