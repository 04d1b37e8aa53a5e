//! A node: the gRPC services on top of a replica.

pub mod config;

use std::{future::Future, io};

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::proto::v1 as pb;
use config::Config;

/// Why a node did not start, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nothing was started.
    #[error("cannot listen on {address} ({key}): {source}")]
    Listen {
        /// In the configuration.
        key: &'static str,
        /// Its value.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The listener broke.
    #[error("cannot go on serving: {0}")]
    Broken(#[from] tonic::transport::Error),
}

/// Runs a node until `shutdown` ends, and then until what is in flight is answered.
pub async fn serve(config: Config, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<(), ServeError> {
    let clients = listen("client_listen", &config.client_listen).await?;
    let _peers = listen("peer_listen", &config.peer_listen).await?;
    tonic::transport::Server::builder()
        .add_service(pb::cluster_server::ClusterServer::new(Node { config }))
        .serve_with_incoming_shutdown(TcpListenerStream::new(clients), shutdown)
        .await?;
    Ok(())
}

async fn listen(key: &'static str, address: &str) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Listen { key, address: address.to_owned(), source })
}

struct Node {
    config: Config,
}

#[tonic::async_trait]
impl pb::cluster_server::Cluster for Node {
    async fn status(&self, _: Request<pb::StatusRequest>) -> Result<Response<pb::StatusResponse>, Status> {
        let leader_id = self.config.members.iter().map(|member| member.node_id).min().unwrap_or_default();
        let role = if leader_id == self.config.node_id { pb::Role::Leader } else { pb::Role::Follower };
        Ok(Response::new(pb::StatusResponse {
            cluster_id: self.config.cluster_id.clone(),
            node_id: self.config.node_id,
            role: role.into(),
            leader_id,
            serving: true,
            ..Default::default()
        }))
    }
}
