//! Sessions, on the leader.

use std::sync::Arc;

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    PATIENCE, convert,
    convert::page_size,
    errors::{invalid, invalid_value, no_reply, session_ended, unexpected},
    keep_alive, origin,
};
use crate::{
    environment::Random,
    machine::{Command, Label, Reason, Renewal, Reply, SessionId, Ttl},
    proto::v1::{self, sessions_server},
    raft::Replica,
};

/// Sessions in one page of a list, at the most.
const PAGE_MAX: usize = 1000;

/// Answers from the replica of this node; a node that does not lead says so.
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    pub(super) replica: Replica,
    pub(super) random: Arc<dyn Random>,
}

#[tonic::async_trait]
impl sessions_server::Sessions for Sessions {
    type KeepAliveStream = ReceiverStream<Result<v1::KeepAliveResponse, Status>>;

    async fn open(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let address = origin::of(&request);
        let message = request.into_inner();
        let session = match message.session_id.as_str() {
            "" => SessionId(self.random.bits()),
            chosen => convert::session_id(chosen)?,
        };
        let ttl = Ttl::from_millis(message.ttl_ms).map_err(invalid_value("ttl_ms"))?;
        let label = Label::new(&message.label).map_err(invalid_value("label"))?;
        let reply = self.propose(Command::Open { session, ttl, label, address }).await?;
        let Reply::Opened(ttl) = reply else { return Err(unexpected(reply)) };
        Ok(Response::new(v1::OpenSessionResponse { session_id: session.to_string(), ttl_ms: ttl.as_millis() }))
    }

    async fn renew(
        &self,
        request: Request<v1::RenewSessionRequest>,
    ) -> Result<Response<v1::RenewSessionResponse>, Status> {
        let session = convert::session_id(&request.into_inner().session_id)?;
        match self.replica.renew(session, PATIENCE).await.map_err(no_reply)? {
            Renewal::Renewed { ttl, revoked, more } => Ok(Response::new(v1::RenewSessionResponse {
                ttl_ms: ttl.as_millis(),
                revoked: revoked.into_iter().map(convert::show_revocation).collect(),
                more_revoked: more,
            })),
            Renewal::Ended(end) => Err(session_ended(end)),
        }
    }

    async fn keep_alive(
        &self,
        request: Request<Streaming<v1::KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        Ok(Response::new(keep_alive::start(self.replica.clone(), request.into_inner())))
    }

    async fn close(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        let from = origin::of(&request);
        let v1::CloseSessionRequest { session_id, reason } = request.into_inner();
        let session = convert::session_id(&session_id)?;
        let reason = match reason.as_str() {
            "" => None,
            reason => Some(Reason::new(reason).map_err(invalid_value("reason"))?),
        };
        let reply = self.propose(Command::Close { session }).await?;
        let Reply::Closed = reply else { return Err(unexpected(reply)) };
        if let Some(reason) = reason {
            let (from, reason) = (origin::show(from), reason.as_str());
            tracing::info!(%session, %from, reason, "an operator closed a session");
        }
        Ok(Response::new(v1::CloseSessionResponse {}))
    }

    async fn list(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        let message = request.into_inner();
        let after = match message.page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| invalid("page_token", "is not the one of a page before"))?),
        };
        let size = page_size(message.page_size, PAGE_MAX);
        let look = |applied: &crate::raft::table::Applied| {
            let sessions: Vec<_> = applied.machine.sessions(after).take(size).collect();
            let next_page_token = match sessions.last() {
                Some(last) if sessions.len() == size => last.session.to_string(),
                _ => String::new(),
            };
            let sessions = sessions.into_iter().map(convert::show_session).collect();
            v1::ListSessionsResponse { sessions, next_page_token, index: applied.index() }
        };
        let page = match message.stale {
            true => self.replica.table().read(look),
            false => self.replica.read(PATIENCE, look).await.map_err(no_reply)?,
        };
        Ok(Response::new(page))
    }
}

impl Sessions {
    async fn propose(&self, command: Command) -> Result<Reply, Status> {
        Ok(self.replica.propose(command, PATIENCE).await.map_err(no_reply)?.reply)
    }
}
