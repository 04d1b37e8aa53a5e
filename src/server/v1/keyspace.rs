//! The gRPC service `lockkeeper.internal.v1.Keyspace`, at the peers' port alone: what followers forward for adapters of other protocols.

use tonic::{Request, Response, Status};

use super::{Adapter, Backend};
use crate::api::requests::{GetEntries, ListEntries};
use lockkeeper_machine::Txn;
use lockkeeper_raft::messages::{self as pb, keyspace_server::Keyspace};

#[tonic::async_trait]
impl<B: Backend> Keyspace for Adapter<B> {
    async fn commit(&self, request: Request<pb::Txn>) -> Result<Response<pb::Committed>, Status> {
        self.call::<Txn>(request).await
    }

    async fn get(&self, request: Request<pb::GetEntries>) -> Result<Response<pb::EntriesFound>, Status> {
        self.call::<GetEntries>(request).await
    }

    async fn list(&self, request: Request<pb::ListEntries>) -> Result<Response<pb::EntryPage>, Status> {
        self.call::<ListEntries>(request).await
    }
}
