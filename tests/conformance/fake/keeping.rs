//! A stream of renewals.

use std::collections::BTreeSet;

use futures::{FutureExt as _, future::ready};
use lockkeeper_machine::SessionId;
use lockkeeper_proto::v1::{
    KeepAliveRequest, KeepAliveResponse, SessionEnded,
    keep_alive_response::{Renewed, What},
};
use tokio::sync::mpsc;
use tonic::{Code, Status, Streaming};

use super::{
    arrivals::{Arrival, Method},
    node::{Node, Played},
    outbox::{Delivery, Outbox, UNREAD_MAX},
    table::Notice,
    wire,
};

/// One stream: the sessions that it renews, and what it has told.
pub(crate) struct KeepAliveStream {
    node: Node,
    number: u64,
    outbox: Outbox<KeepAliveResponse>,
    sessions: BTreeSet<SessionId>,
    /// The next notice of the table.
    noticed: usize,
    members_told: bool,
}

/// The answers to one renewal: what it tells first, and the renewal itself.
type Renewal = Vec<KeepAliveResponse>;

impl KeepAliveStream {
    pub(crate) fn new(node: Node, number: u64, outbox: Outbox<KeepAliveResponse>) -> Self {
        let noticed = node.cluster.table().notices(0).len();
        Self { node, number, outbox, sessions: BTreeSet::new(), noticed, members_told: false }
    }

    /// Answers renewals, and tells what happens, until the client or the leader ends the stream.
    pub(crate) async fn serve(mut self, mut requests: Streaming<KeepAliveRequest>) {
        let (answered, mut answers) = mpsc::channel::<Played<Renewal>>(UNREAD_MAX);
        let mut applied = self.node.cluster.applied();
        let mut term = self.node.cluster.term.subscribe();
        loop {
            let is_open = tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => {
                        self.arrive(request, &answered);
                        true
                    }
                    Ok(None) | Err(_) => false,
                },
                Some(played) = answers.recv() => self.send(played).await,
                _ = applied.changed() => self.tell_notices().await,
                _ = term.changed() => {
                    self.outbox.fail(wire::refusal(Code::Unavailable, "NO_LEADER", "safe")).await;
                    false
                }
                () = self.outbox.closed() => false,
            };
            if !is_open {
                return;
            }
        }
    }

    /// Lets a renewal arrive. Its answer may come later than that of the next one.
    fn arrive(&mut self, request: KeepAliveRequest, answered: &mpsc::Sender<Played<Renewal>>) {
        if let Ok(session) = wire::session_id(&request.session_id) {
            self.sessions.insert(session);
        }
        let members = if self.members_told { Vec::new() } else { self.node.cluster.addresses.clone() };
        self.members_told = true;

        let arrival = Arrival::new(Method::KeepAlive, self.node.number).on(self.number);
        let arrival = arrival.with("session", &request.session_id).with("sequence", request.sequence);
        let node = self.node.clone();
        let answered = answered.clone();
        tokio::spawn(async move {
            let renewing = node.clone();
            let begin = move || ready(renewing.renewal(&request, members)).boxed();
            // An error means that the stream is over.
            let _ = answered.send(node.play(arrival, begin).await).await;
        });
    }

    /// Sends the answer to a renewal. Returns whether the stream is still open.
    async fn send(&mut self, played: Played<Renewal>) -> bool {
        match played.answer {
            Ok(messages) => {
                for message in messages {
                    if self.outbox.send(message, played.delivery).await.is_err() {
                        return false;
                    }
                }
                true
            }
            Err(mut why) => {
                self.node.name_leader(why.metadata_mut());
                self.outbox.fail(why).await;
                false
            }
        }
    }

    /// Tells what happened to the sessions of this stream.
    async fn tell_notices(&mut self) -> bool {
        let notices = self.node.cluster.table().notices(self.noticed).to_vec();
        self.noticed += notices.len();
        for notice in notices {
            let (session, what) = match notice {
                Notice::Ended(session, end) => {
                    (session, What::Ended(SessionEnded { why: wire::show_session_end(end).into() }))
                }
                Notice::Revoked(session, revocation) => (session, What::Revoked(wire::show_revocation(&revocation))),
            };
            if !self.sessions.contains(&session) {
                continue;
            }
            let message = KeepAliveResponse { session_id: session.to_string(), what: Some(what) };
            if self.outbox.send(message, Delivery::Once).await.is_err() {
                return false;
            }
        }
        true
    }
}

impl Node {
    /// Renews a session of a stream: its revoked grants, and then the renewal.
    fn renewal(&self, request: &KeepAliveRequest, members: Vec<String>) -> Result<Renewal, Status> {
        let response = |what| KeepAliveResponse { session_id: request.session_id.clone(), what: Some(what) };
        let renewed = match self.renew_now(&request.session_id) {
            Ok((_, renewed)) => renewed,
            Err(_) => {
                let session = wire::session_id(&request.session_id)?;
                let table = self.cluster.table();
                let unknown = lockkeeper_machine::SessionEnd::Unknown;
                let end = table.machine().session_end(session).filter(|_| !table.is_forgotten(session));
                let why = wire::show_session_end(end.unwrap_or(unknown)).into();
                return Ok(vec![response(What::Ended(SessionEnded { why }))]);
            }
        };
        let renewal = Renewed { sequence: request.sequence, ttl_ms: renewed.ttl_ms, members };
        let revoked = renewed.revoked.into_iter().map(|revocation| response(What::Revoked(revocation)));
        Ok(revoked.chain([response(What::Renewed(renewal))]).collect())
    }
}
