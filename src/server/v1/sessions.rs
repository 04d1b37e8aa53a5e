//! The gRPC service `lockkeeper.v1.Sessions`.

use tonic::{Request, Response, Status, Streaming};

use super::{Adapter, Backend, ReplyMessages, caller, messages, received};
use crate::api::requests::*;
use lockkeeper_proto::v1::{self, sessions_server::Sessions};

#[tonic::async_trait]
impl<B: Backend> Sessions for Adapter<B> {
    type KeepAliveStream = ReplyMessages<KeepAliveEvent>;

    async fn open(
        &self,
        request: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        self.call::<OpenSession>(request).await
    }

    async fn renew(
        &self,
        request: Request<v1::RenewSessionRequest>,
    ) -> Result<Response<v1::RenewSessionResponse>, Status> {
        self.call::<RenewSession>(request).await
    }

    async fn keep_alive(
        &self,
        request: Request<Streaming<v1::KeepAliveRequest>>,
    ) -> Result<Response<Self::KeepAliveStream>, Status> {
        let caller = caller(&self.backend, &request)?;
        let events = self.backend.keep_alive(&caller, received(request.into_inner())).await;
        self.name_leader(events.map(messages))
    }

    async fn close_session(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        self.call::<CloseSession>(request).await
    }

    /// The same, under its former name.
    async fn close(
        &self,
        request: Request<v1::CloseSessionRequest>,
    ) -> Result<Response<v1::CloseSessionResponse>, Status> {
        self.call::<CloseSession>(request).await
    }

    async fn list(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Result<Response<v1::ListSessionsResponse>, Status> {
        self.call::<ListSessions>(request).await
    }
}
