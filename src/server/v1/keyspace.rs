//! The gRPC service `lockkeeper.internal.v1.Keyspace`, at the peers' port alone: what followers forward for adapters of other protocols,
//! and a node's own events.

use futures::StreamExt;
use tonic::{Request, Response, Status};

use super::{Adapter, Backend, ReplyMessages, caller, messages};
use crate::{
    api::requests::{
        AttachSession, CommitEach, CompactEntries, EntriesWatched, GetEntries, ListEntries, RunUnit, SelectEntries,
        SetSessionOwner, WatchEntries,
    },
    wire::{Encode, Form},
};
use lockkeeper_machine::Txn;
use lockkeeper_raft::messages::keyspace_server::Keyspace;
use lockkeeper_table::messages as pb;

#[tonic::async_trait]
impl<B: Backend> Keyspace for Adapter<B> {
    async fn commit(&self, request: Request<pb::Txn>) -> Result<Response<pb::Committed>, Status> {
        self.call::<Txn>(request).await
    }

    async fn commit_each(&self, request: Request<pb::Txns>) -> Result<Response<pb::EachCommitted>, Status> {
        self.call::<CommitEach>(request).await
    }

    async fn get(&self, request: Request<pb::GetEntries>) -> Result<Response<pb::EntriesFound>, Status> {
        self.call::<GetEntries>(request).await
    }

    async fn list(&self, request: Request<pb::ListEntries>) -> Result<Response<pb::EntryPage>, Status> {
        self.call::<ListEntries>(request).await
    }

    async fn select(&self, request: Request<pb::SelectEntries>) -> Result<Response<pb::EntriesSelected>, Status> {
        self.call::<SelectEntries>(request).await
    }

    async fn compact(&self, request: Request<pb::Compaction>) -> Result<Response<pb::Compacted>, Status> {
        self.call::<CompactEntries>(request).await
    }

    async fn run(&self, request: Request<pb::Unit>) -> Result<Response<pb::UnitDone>, Status> {
        self.call::<RunUnit>(request).await
    }

    async fn attach(&self, request: Request<pb::AttachSession>) -> Result<Response<pb::SessionAttached>, Status> {
        self.call::<AttachSession>(request).await
    }

    async fn set_owner(&self, request: Request<pb::SetSessionOwner>) -> Result<Response<pb::SessionOwnerSet>, Status> {
        self.call::<SetSessionOwner>(request).await
    }

    type WatchStream = ReplyMessages<EntriesWatched>;

    async fn watch(&self, request: Request<pb::WatchEntries>) -> Result<Response<Self::WatchStream>, Status> {
        let caller = caller(&self.backend, &request)?;
        let request = WatchEntries::decode(request.into_inner())?;
        let events = self.backend.watch_entries(&caller, request).await;
        self.name_leader(events.map(|events| messages(events.map(|event| event.map(Form::Typed)).boxed())))
    }
}
