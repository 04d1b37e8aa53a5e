//! One stream that keeps sessions alive.
//!
//! Renewals are proposed as they arrive, up to [`IN_FLIGHT`] at a time, and each is answered when it is applied. Between the answers the
//! stream reports at once what its sessions lose. Its first answer, and the first one after a change of the membership, names the addresses
//! of the members: a client may outlive all the nodes that it was configured with.
//!
//! The stream ends when this node no longer leads: its client goes on at the new leader. It also ends when its sessions lose more at once
//! than its queue holds. The client misses nothing: the answer to its next renewal, on any stream, reports every revoked grant.

use std::{collections::BTreeSet, pin::pin};

use futures::{Stream, StreamExt, stream::FuturesUnordered};
use openraft::async_runtime::WatchReceiver;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::patience::PATIENCE;
use crate::api::{
    Error,
    requests::{KeepAlive, KeepAliveEvent, KeepAliveEventKind as Kind},
};
use lockkeeper_machine::{Renewal, SessionId, Token, Ttl};
use lockkeeper_planted::Planted;
use lockkeeper_raft::{NoReply, Replica, types::LogId};
use lockkeeper_table::listeners::{Notice, Notices, SessionLoss};

/// Maximum number of renewals of one stream in the log. Each takes a few milliseconds there.
const IN_FLIGHT: usize = 2048;
/// Maximum number of sessions on one stream.
const SESSIONS: usize = 10_000;
/// Number of revocations that are read from the table at a time.
const REVOCATIONS: usize = 256;
/// Maximum number of events that wait for a client that does not read them.
const EVENTS: usize = 64;

type EventSender = mpsc::Sender<Result<KeepAliveEvent, Error>>;

/// Why a stream ends.
enum StreamEnd {
    /// The client is gone.
    Client,
    Error(Error),
}

impl From<Error> for StreamEnd {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Starts to serve a stream.
pub(super) fn start(
    replica: Replica,
    renewals: impl Stream<Item = Result<KeepAlive, Error>> + Send + 'static,
) -> ReceiverStream<Result<KeepAliveEvent, Error>> {
    let (events, stream) = mpsc::channel(EVENTS);
    tokio::spawn(async move {
        let mut sessions = BTreeSet::new();
        if let Err(StreamEnd::Error(error)) = serve(&replica, renewals, &events, &mut sessions).await {
            // If this fails, the client is gone.
            let _ = events.send(Err(error)).await;
        }

        replica.table().forget_listeners(sessions);
    });
    ReceiverStream::new(stream)
}

/// Serves a stream. Returns `Ok` when the client has no more to send.
async fn serve(
    replica: &Replica,
    renewals: impl Stream<Item = Result<KeepAlive, Error>>,
    events: &EventSender,
    sessions: &mut BTreeSet<SessionId>,
) -> Result<(), StreamEnd> {
    let mut renewals = pin!(renewals);
    let mut led = replica.led();
    let mut in_flight = FuturesUnordered::new();
    let (listener, mut notices) = Notices::new();
    let mut members = NamedMembers::default();

    loop {
        if led.borrow_and_update().is_none() {
            return Err(Error::no_leader().into());
        }

        tokio::select! {
            renewal = renewals.next(), if in_flight.len() < IN_FLIGHT => {
                let Some(renewal) = renewal else { return Ok(()) };
                let KeepAlive { session, sequence } = renewal?;

                // Listen before the renewal is proposed, so that no loss after the renewal is missed.

                if sessions.insert(session) {
                    if sessions.len() > SESSIONS {
                        return Err(too_many_sessions().into());
                    }
                    replica.table().listen(session, listener.clone());
                }

                in_flight.push(renew(replica, session, sequence));
            }
            Some(renewed) = in_flight.next() => {
                let RenewalOutcome { session, sequence, renewal } = renewed;
                if let Some(renewal) = renewal? {
                    let members = members.news(replica);
                    answer(replica, events, session, renewal, |ttl| Kind::Renewed { sequence, ttl, members }).await?;
                }
            }
            notice = notices.next() => {
                let Some(Notice { session, what }) = notice else { return Err(Error::stream_lags().into()) };
                send(events, session, lost(what)).await?;
            }
            changed = led.changed() => {
                if changed.is_err() {
                    return Err(Error::no_leader().into());
                }
            }
            () = events.closed() => return Ok(()),
        }
    }
}

fn too_many_sessions() -> Error {
    Error::invalid("session_id", format!("exceeds the limit of {SESSIONS} sessions on a stream: open another stream"))
}

/// The members that a stream has named to its client.
#[derive(Default)]
struct NamedMembers {
    /// The log entry with the membership that was named last.
    named: Option<LogId>,
}

impl NamedMembers {
    /// Returns the addresses at which clients reach the members, unless these were named already.
    fn news(&mut self, replica: &Replica) -> Vec<String> {
        let metrics = replica.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        let membership = &metrics.membership_config;
        if *membership.log_id() == self.named {
            return Vec::new();
        }

        self.named = *membership.log_id();
        membership.membership().nodes().map(|(_, node)| node.client_address.clone()).collect()
    }
}

/// The outcome of a renewal, if it is known. An unknown outcome is not acknowledged.
struct RenewalOutcome {
    session: SessionId,
    sequence: u64,
    renewal: Result<Option<Renewal>, Error>,
}

async fn renew(replica: &Replica, session: SessionId, sequence: u64) -> RenewalOutcome {
    let renewal = match replica.renew(session, PATIENCE).await {
        Ok(renewal) => Ok(Some(renewal)),
        // Without an acknowledgement, the client does not count on the renewal, and sends another one.
        Err(NoReply::Unknown | NoReply::Overloaded | NoReply::DiskSpaceLow(_)) => Ok(None),
        Err(no_reply) => Err(Error::no_reply(no_reply)),
    };
    RenewalOutcome { session, sequence, renewal }
}

/// Answers a renewal. Revoked grants are reported with every renewal until they are released, because an earlier report may have been lost
/// with another stream. They come before the acknowledgement, which does not extend them.
async fn answer(
    replica: &Replica,
    events: &EventSender,
    session: SessionId,
    renewal: Renewal,
    renewed: impl FnOnce(Ttl) -> Kind,
) -> Result<(), StreamEnd> {
    let (ttl, mut revoked, mut more) = match renewal {
        Renewal::Renewed { ttl, revoked, more } => (ttl, revoked, more),
        Renewal::Ended(end) => return send(events, session, Kind::Ended(end)).await,
    };
    let renewed = renewed(ttl);
    if Planted::RevokedAfterRenewed.is_on() {
        send(events, session, renewed.clone()).await?;
    }

    loop {
        let last = revoked.last().map_or(Token(0), |revocation| revocation.token);
        for revocation in revoked {
            send(events, session, Kind::Revoked(revocation)).await?;
        }
        if !more {
            return send(events, session, renewed).await;
        }

        // This node has applied the renewal, so its table has the rest of the list, without those that were released meanwhile.
        revoked = replica.table().read(|it| it.machine.revocations(session, last).take(REVOCATIONS).collect());
        more = revoked.len() == REVOCATIONS;
    }
}

fn lost(loss: SessionLoss) -> Kind {
    match loss {
        SessionLoss::Ended(end) => Kind::Ended(end),
        SessionLoss::Revoked(revocation) => Kind::Revoked(revocation),
    }
}

async fn send(events: &EventSender, session: SessionId, kind: Kind) -> Result<(), StreamEnd> {
    events.send(Ok(KeepAliveEvent { session, kind })).await.map_err(|_| StreamEnd::Client)
}
