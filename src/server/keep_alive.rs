//! One stream that keeps sessions alive.
//!
//! Renewals are proposed as they arrive, many at a time, and each is answered when it is applied. Between the answers, the
//! stream tells at once what its sessions lose. It ends when this node no longer leads: its client goes on at the new leader. It also
//! ends when more is lost at once than it has room to tell: nothing of that is lost to the client, whose next renewal, on whatever
//! stream, is told all of it.

use std::collections::BTreeSet;

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{
    PATIENCE, convert,
    errors::{invalid, lags_behind, no_leader, no_reply},
    unreadable::explained,
};
use crate::{
    machine::{Renewal, SessionId, Token},
    planted::Planted,
    proto::v1::{KeepAliveRequest, KeepAliveResponse, keep_alive_response},
    raft::{
        NoReply, Replica,
        table::{Loss, Notice, Notices},
    },
};

/// Renewals of one stream on their way through the log, which takes each some milliseconds.
const IN_FLIGHT: usize = 2048;
/// Sessions on one stream.
const SESSIONS: usize = 10_000;
/// Revocations that are read from the table at a time.
const REVOCATIONS: usize = 256;
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
    let (listener, mut notices) = Notices::new();
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
            Some(renewed) = in_flight.next() => {
                let Renewed { session, sequence, renewal } = renewed;
                if let Some(renewal) = renewal? {
                    answer(replica, answers, session, sequence, renewal).await?;
                }
            }
            notice = notices.next() => {
                let Some(Notice { session, what }) = notice else { return Err(lags_behind()) };
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

/// What came of a renewal.
struct Renewed {
    session: SessionId,
    sequence: u64,
    renewal: Result<Option<Renewal>, Status>,
}

async fn renew(replica: &Replica, session: SessionId, sequence: u64) -> Renewed {
    let renewal = match replica.renew(session, PATIENCE).await {
        Ok(renewal) => Ok(Some(renewal)),
        // Not acknowledged, so the client does not count on it, and sends another one.
        Err(NoReply::Unknown | NoReply::Overloaded) => Ok(None),
        Err(no) => Err(no_reply(no)),
    };
    Renewed { session, sequence, renewal }
}

/// What was revoked is said with every renewal until it is given back: the notice may have been lost with another stream. And it is said
/// first: a holder must not take the renewal for one of a grant that renewals no longer extend.
async fn answer(
    replica: &Replica,
    answers: &Answers,
    session: SessionId,
    sequence: u64,
    renewal: Renewal,
) -> Result<(), Status> {
    let (ttl, mut revoked, mut more) = match renewal {
        Renewal::Renewed { ttl, revoked, more } => (ttl, revoked, more),
        Renewal::Ended(end) => return send(answers, session, lost(Loss::Ended(end))).await,
    };
    let renewed = What::Renewed(keep_alive_response::Renewed { sequence, ttl_ms: ttl.as_millis() });
    if Planted::RevokedAfterRenewed.is_on() {
        send(answers, session, renewed.clone()).await?;
    }
    loop {
        let last = revoked.last().map_or(Token(0), |revocation| revocation.token);
        for revocation in revoked {
            send(answers, session, lost(Loss::Revoked(revocation))).await?;
        }
        if !more {
            return send(answers, session, renewed).await;
        }
        // The table here is as new as the renewal: what the answer to it had no room for is there, unless it was released meanwhile.
        revoked = replica.table().read(|it| it.machine.revocations(session, last).take(REVOCATIONS).collect());
        more = revoked.len() == REVOCATIONS;
    }
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
