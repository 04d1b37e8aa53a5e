//! One stream that keeps sessions alive.
//!
//! Renewals are proposed as they arrive, many at a time, and each is answered when it is applied. Between the answers, the
//! stream tells at once what its sessions lose. It ends when this node no longer leads: its client goes on at the new leader.

use std::collections::BTreeSet;

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{
    PATIENCE, convert,
    errors::{invalid, no_leader, no_reply},
    unreadable::explained,
};
use crate::{
    machine::{Renewal, SessionId},
    proto::v1::{KeepAliveRequest, KeepAliveResponse, keep_alive_response},
    raft::{
        NoReply, Replica,
        table::{Loss, Notice, Table},
    },
};

/// Renewals of one stream on their way through the log, which takes each some milliseconds.
const IN_FLIGHT: usize = 2048;
/// Sessions on one stream.
const SESSIONS: usize = 10_000;
/// Answers that wait for a client that does not read them.
const ANSWERS: usize = 64;

type Answers = mpsc::Sender<Result<KeepAliveResponse, Status>>;

/// Starts to serve a stream.
pub(super) fn start(
    replica: Replica,
    requests: Streaming<KeepAliveRequest>,
) -> ReceiverStream<Result<KeepAliveResponse, Status>> {
    let (answers, stream) = mpsc::channel(ANSWERS);
    tokio::spawn(async move {
        let mut sessions = BTreeSet::new();
        if let Err(status) = serve(&replica, requests, &answers, &mut sessions).await {
            // An error says that the client is gone.
            let _ = answers.send(Err(status)).await;
        }
        replica.table().forget_listeners(sessions);
    });
    ReceiverStream::new(stream)
}

/// Ends with `Ok` when the client does.
async fn serve(
    replica: &Replica,
    mut requests: Streaming<KeepAliveRequest>,
    answers: &Answers,
    sessions: &mut BTreeSet<SessionId>,
) -> Result<(), Status> {
    let mut led = replica.led();
    let mut in_flight = FuturesUnordered::new();
    let (listener, mut notices) = Table::notices();
    loop {
        if led.borrow_and_update().is_none() {
            return Err(no_leader());
        }
        tokio::select! {
            request = requests.message(), if in_flight.len() < IN_FLIGHT => {
                let request = match request {
                    Ok(Some(request)) => request,
                    Ok(None) => return Ok(()),
                    // It is gone, or what it sent cannot be read.
                    Err(status) => return explained(&status).map_or(Ok(()), Err),
                };
                let session = convert::session_id(&request.session_id)?;
                // Before the renewal is proposed: what happens after it was applied is then not missed.
                if sessions.insert(session) {
                    if sessions.len() > SESSIONS {
                        return Err(invalid("session_id", format!("is the {SESSIONS}th on this stream and one more: open another stream")));
                    }
                    replica.table().listen(session, listener.clone());
                }
                in_flight.push(renew(replica, session, request.sequence));
            }
            Some((session, answered)) = in_flight.next() => {
                for answer in answered? {
                    send(answers, session, answer).await?;
                }
            }
            notice = notices.recv() => {
                let Some(Notice { session, what }) = notice else { return Err(no_leader()) };
                send(answers, session, lost(what)).await?;
            }
            changed = led.changed() => {
                if changed.is_err() {
                    return Err(no_leader());
                }
            }
            () = answers.closed() => return Ok(()),
        }
    }
}

type What = keep_alive_response::What;

async fn renew(replica: &Replica, session: SessionId, sequence: u64) -> (SessionId, Result<Vec<What>, Status>) {
    let renewal = match replica.renew(session, PATIENCE).await {
        Ok(renewal) => renewal,
        // Not acknowledged, so the client does not count on it, and sends another one.
        Err(NoReply::Unknown | NoReply::Overloaded) => return (session, Ok(Vec::new())),
        Err(no) => return (session, Err(no_reply(no))),
    };
    let answers = match renewal {
        Renewal::Renewed { ttl, revoked } => {
            // Said with every renewal until the grant is given back: the notice may have been lost with another stream. And said
            // first: a holder must not take the renewal for one of a grant that renewals no longer extend.
            let revoked = revoked.into_iter().map(|revocation| lost(Loss::Revoked(revocation)));
            let renewed = What::Renewed(keep_alive_response::Renewed { sequence, ttl_ms: ttl.as_millis() });
            revoked.chain([renewed]).collect()
        }
        Renewal::Ended(end) => vec![lost(Loss::Ended(end))],
    };
    (session, Ok(answers))
}

fn lost(what: Loss) -> What {
    match what {
        Loss::Ended(end) => What::Ended(convert::show_end(end)),
        Loss::Revoked(revocation) => What::Revoked(convert::show_revocation(revocation)),
    }
}

async fn send(answers: &Answers, session: SessionId, what: What) -> Result<(), Status> {
    let answer = KeepAliveResponse { session_id: session.to_string(), what: Some(what) };
    answers.send(Ok(answer)).await.map_err(|_| Status::cancelled("the client is gone"))
}
