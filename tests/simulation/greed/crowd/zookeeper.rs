//! ZooKeeper's clients that have their node keep more than it may.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::time::timeout;

use crate::{
    contenders::Contention,
    jute::JuteRequest,
    protocols::ContendedProtocol,
    znode_session::{SessionKey, ZnodeSession},
};

/// Watches of one session.
const WATCHES: usize = 60;
/// Bytes of a node's data, how often it is asked for at one time, and sessions that do so.
const DATA_BYTES: usize = 20_000;
const READS: usize = 16;
const SESSIONS: usize = 4;
/// What one session may take.
const EXCHANGES: Duration = Duration::from_secs(2);
/// The flag of a node that ends with its session.
const EPHEMERAL: i32 = 1;

/// Comes to the limits of the port at this seat.
pub(super) async fn crowd(contention: &Arc<Contention>, id: u64, seat: u64) {
    let address = ContendedProtocol::Zookeeper.seat_address(seat);
    let watching = within(&address, contention, async |session| watch(session, id).await);
    let large = join_all((0..SESSIONS).map(|number| {
        within(&address, contention, async move |session| put_and_read(session, &format!("/crowd-{id}-{number}")).await)
    }));
    tokio::join!(watching, large);
}

/// Does this by a session of its own, as far as there are answers.
async fn within(
    address: &str,
    contention: &Arc<Contention>,
    exchange: impl AsyncFnOnce(&mut ZnodeSession) -> Option<()>,
) {
    let Some(Some(mut session)) = ZnodeSession::connect(address, SessionKey::fresh(0), contention).await else {
        return;
    };
    let _ = timeout(EXCHANGES, exchange(&mut session)).await;
    let _ = timeout(EXCHANGES, session.call(&JuteRequest::Close)).await;
}

/// Watches nodes that are not there until a watch is refused.
async fn watch(session: &mut ZnodeSession, id: u64) -> Option<()> {
    for number in 0..WATCHES {
        // A watch that is refused is no reason to end: others still find room.
        let exists = JuteRequest::Exists { path: format!("/crowd-{id}-watched-{number}"), watch: true };
        let _ = session.call(&exists).await?;
    }
    Some(())
}

/// Makes a large node, and asks for it often before it reads an answer.
async fn put_and_read(session: &mut ZnodeSession, path: &str) -> Option<()> {
    let create = JuteRequest::create(path, &[b'z'; DATA_BYTES], EPHEMERAL);
    if session.call(&create).await?.is_err() {
        return Some(());
    }
    let read = JuteRequest::GetData { path: path.to_owned(), watch: false };
    session.call_all(&vec![read; READS]).await.map(drop)
}
