//! The gRPC service `lockkeeper.v1.Maintenance`: work on this node, for operators. It is not forwarded.
//!
//! A thread at low priority writes a backup from a clone of the table, and the backup is sent as it is written: only [`PIECES_AHEAD`]
//! pieces wait. The clone keeps the replaced parts of the table in memory, so its life is bounded: `unread` ends a stream of which nothing
//! is read, and [`SENDING_MAX`] ends one that is read slowly. A stream also ends when its caller loses the right to a backup.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt as _, Stream, StreamExt as _, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout_at},
};
use tonic::{Request, Response, Status};

use super::{Service, caller};
use crate::{
    api::{
        Caller, Error,
        requests::{GetLock, SaveBackup},
    },
    wire::Form,
};
use lockkeeper_environment::{Blocking, Environment};
use lockkeeper_machine::{LockName, Note, Page, Ticket, Token, WallTime};
use lockkeeper_planted::VERSION;
use lockkeeper_proto::v1::{SaveSnapshotRequest, SaveSnapshotResponse, maintenance_server};
use lockkeeper_raft::{
    NoteKind, Replica,
    backup::{self, BackupHeader},
    identity::ClusterId,
};
use lockkeeper_table::Applied;

/// Maximum number of backups that a node sends at the same time.
const AT_ONCE: usize = 2;
/// Maximum number of pieces that wait for the client to read.
const PIECES_AHEAD: usize = 2;
/// Maximum time that the sending of one backup takes.
const SENDING_MAX: Duration = Duration::from_secs(10 * 60);
/// Maximum time that a follower takes until it has applied what was acknowledged before the call.
const CATCH_UP: Duration = Duration::from_secs(10);
/// The name of any lock: a linearizable read of it yields the index that the backup must reach.
const SOME_LOCK: &str = "lockkeeper/backup";

/// Serves `Maintenance`.
#[derive(Clone, Debug)]
pub(crate) struct Maintenance {
    service: Service,
    replica: Replica,
    environment: Environment,
    cluster_id: ClusterId,
    node_id: u64,
    /// A permit for each backup that is being sent.
    saving: Arc<Semaphore>,
}

impl Maintenance {
    pub(crate) fn new(service: Service, replica: Replica, environment: Environment, cluster_id: ClusterId) -> Self {
        let node_id = *replica.raft().node_id();
        let saving = Arc::new(Semaphore::new(AT_ONCE));
        Self { service, replica, environment, cluster_id, node_id, saving }
    }

    /// Returns this node's table, which has everything that was acknowledged before the call unless `is_stale`.
    async fn table(&self, caller: &Caller, is_stale: bool) -> Result<Applied, Error> {
        if !is_stale {
            let page = Page { size: 1, holders_after: Token(0), waiters_after: Ticket(0) };
            let name = LockName::new(SOME_LOCK).expect("it is short");

            // This goes to the leader if that is another node.
            let get = Form::Typed(GetLock { name, page, stale: false });

            // Boxed: with the types of everything that it awaits, this future's own type would be too deep for the compiler.
            // The node itself asks: the caller was found to be an administrator, and need not have the right to read this lock.
            let read = self.service.call(&Caller { is_peer: true, ..caller.clone() }, get).boxed().await?;

            let index = read.typed()?.index;
            let wait = self.replica.raft().wait(Some(CATCH_UP));
            wait.applied_index_at_least(Some(index), "a backup").await.map_err(|_| Error::lags(index))?;
        }
        Ok(self.replica.table().read(Clone::clone))
    }

    async fn save(
        &self,
        caller: &Caller,
        is_stale: bool,
    ) -> Result<impl Stream<Item = Result<Bytes, Error>> + Send + use<>, Error> {
        let permit = Arc::clone(&self.saving).try_acquire_owned().map_err(|_| Error::too_many_backups(AT_ONCE))?;
        let end = Instant::now() + caller.deadline.map_or(SENDING_MAX, |deadline| deadline.left().min(SENDING_MAX));

        let applied = self.table(caller, is_stale).await?;
        tracing::info!(index = applied.index(), client = %caller.shown(), "sending a backup");
        let target = format!("from node {}", self.node_id);
        let who = caller.identity.as_ref().map(ToString::to_string);
        let note = Note { who, act: "save-snapshot".to_owned(), target, ..Note::default() };
        _ = self.replica.note(NoteKind::OperatorAct, note);

        let header = BackupHeader {
            cluster_id: self.cluster_id.clone(),
            node_id: self.node_id,
            version: VERSION.to_owned(),
            created: WallTime(self.environment.clock.wall_ms()),
            is_stale,
        };

        let (pieces, sent) = match self.environment.blocking {
            Blocking::OnThreads => mpsc::channel(PIECES_AHEAD),
            // One thread writes the whole backup, and only then reads it.
            Blocking::Here => mpsc::channel(Semaphore::MAX_PERMITS),
        };

        let blocking = self.environment.blocking;
        let write = move || write(Pieces(pieces), &header, &applied);
        tokio::spawn(async move { blocking.run_in_background("backup", write).await });
        Ok(stream::unfold(Some(Sending { sent, end, _permit: permit }), Sending::next))
    }
}

/// Runs on a thread of its own, and drops the table there. An error means that the client is gone.
fn write(mut pieces: Pieces, header: &BackupHeader, applied: &Applied) -> io::Result<()> {
    backup::write(&mut pieces, header, applied)?;
    pieces.send(Piece::End)
}

/// A part of a backup.
enum Piece {
    Data(Bytes),
    /// The backup is complete.
    End,
}

/// The end that writes.
struct Pieces(mpsc::Sender<Piece>);

impl Pieces {
    fn send(&self, piece: Piece) -> io::Result<()> {
        let gone = |()| io::Error::from(io::ErrorKind::BrokenPipe);
        match self.0.try_send(piece) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Full(piece)) => self.0.blocking_send(piece).map_err(|_| gone(())),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(gone(())),
        }
    }
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(Piece::Data(Bytes::copy_from_slice(bytes)))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The end that reads. Once it is dropped, the writer ends at its next piece.
struct Sending {
    sent: mpsc::Receiver<Piece>,
    end: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Sending {
    /// Returns the next piece, for `unfold`. An error is the last item.
    async fn next(sending: Option<Self>) -> Option<(Result<Bytes, Error>, Option<Self>)> {
        let mut sending = sending?;
        match timeout_at(sending.end, sending.sent.recv()).await {
            Ok(Some(Piece::Data(bytes))) => Some((Ok(bytes), Some(sending))),
            Ok(Some(Piece::End)) => None,
            Ok(None) => Some((Err(Error::internal("a backup was not written to its end")), None)),
            Err(_) => Some((Err(Error::deadline_passed(false)), None)),
        }
    }
}

#[tonic::async_trait]
impl maintenance_server::Maintenance for Maintenance {
    type SaveSnapshotStream = stream::BoxStream<'static, Result<SaveSnapshotResponse, Status>>;

    async fn save_snapshot(
        &self,
        request: Request<SaveSnapshotRequest>,
    ) -> Result<Response<Self::SaveSnapshotStream>, Status> {
        let caller = caller(&self.service, &request)?;
        self.service.check(&caller, &SaveBackup)?;
        let pieces = self.save(&caller, request.into_inner().stale).await?;
        let pieces = self.service.while_administrator(&caller, pieces);
        let pieces =
            pieces.map(|piece| piece.map(|data| SaveSnapshotResponse { data: data.into() }).map_err(Status::from));
        Ok(Response::new(pieces.boxed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sending(pieces: usize) -> (Pieces, impl Stream<Item = Result<Bytes, Error>>, Arc<Semaphore>) {
        let (sender, sent) = mpsc::channel(pieces);
        let saving = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&saving).try_acquire_owned().expect("free");
        let end = Instant::now() + SENDING_MAX;
        let stream = stream::unfold(Some(Sending { sent, end, _permit: permit }), Sending::next);
        (Pieces(sender), stream, saving)
    }

    #[tokio::test]
    async fn a_backup_whose_writer_breaks_off_does_not_look_complete() {
        let (mut pieces, stream, saving) = sending(8);
        pieces.write_all(b"begun").expect("there is room");
        drop(pieces);
        let got: Vec<_> = stream.collect().await;
        assert!(matches!(&got[..], [Ok(_), Err(_)]), "{got:?}");
        assert_eq!(saving.available_permits(), 1);

        let (mut pieces, stream, _) = sending(8);
        pieces.write_all(b"whole").expect("there is room");
        pieces.send(Piece::End).expect("there is room");
        let got: Vec<_> = stream.collect().await;
        assert!(matches!(&got[..], [Ok(_)]), "{got:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_backup_that_is_read_too_slowly_ends_and_so_does_its_writer() {
        let (mut pieces, stream, saving) = sending(1);
        pieces.write_all(b"the first").expect("there is room");
        let writer = std::thread::spawn(move || {
            loop {
                if let Err(error) = pieces.write_all(&[7; 1000]) {
                    return error.kind();
                }
            }
        });
        let mut stream = Box::pin(stream);
        assert!(matches!(stream.next().await, Some(Ok(_))));
        tokio::time::advance(SENDING_MAX).await;
        // Pieces that are there already may come first.
        let last = stream.collect::<Vec<_>>().await.pop();
        assert!(matches!(last, Some(Err(_))), "{last:?}");
        assert_eq!(saving.available_permits(), 1);
        assert_eq!(writer.join().expect("no panic"), io::ErrorKind::BrokenPipe);
    }
}
