//! Watching the locks under a prefix.
//!
//! First their present state, as of one log entry, then every change after it. A watcher that lags too far behind is sent the state
//! again, rather than slow anybody down. The stream ends when this node no longer leads, or is cut off from most members: its client
//! goes on at the new leader.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{
        broadcast::{self, error::RecvError},
        mpsc,
    },
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{
    PATIENCE, convert,
    errors::{no_leader, no_reply},
    pages::page_of_locks,
};
use crate::{
    machine::LockName,
    planted::Planted,
    proto::v1::{WatchResponse, watch_response},
    raft::{
        Replica,
        table::{Applied, Changes},
    },
};

/// Messages that wait for a watcher that does not read them.
const MESSAGES: usize = 16;
/// Locks in one part of the state.
const PART: usize = 256;
/// After so long without anything else, the watcher is told that there was nothing.
const PROGRESS: Duration = Duration::from_secs(1);

type Messages = mpsc::Sender<Result<WatchResponse, Status>>;

/// Starts to serve a watcher. Fails if this node does not lead.
pub(super) async fn start(
    replica: Replica,
    prefix: String,
) -> Result<ReceiverStream<Result<WatchResponse, Status>>, Status> {
    // Subscribed before the state is taken: what comes in both is left out by its index.
    let changes = replica.table().changes();
    let state = replica.read(PATIENCE, Applied::clone).await.map_err(no_reply)?;
    let (messages, stream) = mpsc::channel(MESSAGES);
    tokio::spawn(async move {
        let ended = serve(&replica, &prefix, state, changes, &messages).await;
        if let Err(Some(status)) = ended {
            // An error says that the watcher is gone.
            let _ = messages.send(Err(status)).await;
        }
    });
    Ok(ReceiverStream::new(stream))
}

/// Ends with `Err(None)` when the watcher is gone.
async fn serve(
    replica: &Replica,
    prefix: &str,
    state: Applied,
    mut changes: broadcast::Receiver<Arc<Changes>>,
    messages: &Messages,
) -> Result<(), Option<Status>> {
    let mut led = replica.led();
    let mut shown = state.index();
    send_state(prefix, state, messages).await?;
    if Planted::WatchAfterState.is_on() {
        changes = replica.table().changes();
    }
    loop {
        if led.borrow_and_update().is_none() {
            return Err(Some(no_leader()));
        }
        let received = tokio::select! {
            received = timeout(PROGRESS, changes.recv()) => received,
            _ = led.changed() => continue,
            () = messages.closed() => return Err(None),
        };
        match received {
            Ok(Ok(entry)) if entry.index <= shown => {}
            Ok(Ok(entry)) => {
                shown = entry.index;
                send_changes(prefix, &entry, messages).await?;
            }
            Ok(Err(RecvError::Lagged(_))) => {
                let state = replica.table().read(Applied::clone);
                shown = state.index();
                send_state(prefix, state, messages).await?;
            }
            Ok(Err(RecvError::Closed)) => return Err(Some(no_leader())),
            // Its table stands still, and another node may lead by now.
            Err(_) if replica.cut_off() => return Err(Some(no_leader())),
            Err(_) => {
                // The index first: a change that comes between the two is then still in the channel, with a higher one.
                let index = replica.table().told();
                if changes.is_empty() {
                    send(messages, watch_response::What::Progress(watch_response::Progress { index })).await?;
                }
            }
        }
    }
}

async fn send_state(prefix: &str, state: Applied, messages: &Messages) -> Result<(), Option<Status>> {
    let index = state.index();
    let mut first = true;
    let mut after: Option<LockName> = None;
    loop {
        let (locks, next) = page_of_locks(&state.machine, prefix, after.as_ref(), PART);
        // The names in a table are valid names; an empty one says that this was the last page.
        after = LockName::new(&next).ok();
        let last = after.is_none();
        send(messages, watch_response::What::State(watch_response::State { locks, index, first, last })).await?;
        first = false;
        if last {
            return Ok(());
        }
    }
}

async fn send_changes(prefix: &str, entry: &Changes, messages: &Messages) -> Result<(), Option<Status>> {
    let changes: Vec<_> = entry
        .changes
        .iter()
        .filter(|change| change.name.as_str().starts_with(prefix))
        .map(convert::show_change)
        .collect();
    if changes.is_empty() {
        return Ok(());
    }
    let changes = watch_response::Changes { index: entry.index, changes };
    send(messages, watch_response::What::Changes(changes)).await
}

async fn send(messages: &Messages, what: watch_response::What) -> Result<(), Option<Status>> {
    messages.send(Ok(WatchResponse { what: Some(what) })).await.map_err(|_| None)
}
