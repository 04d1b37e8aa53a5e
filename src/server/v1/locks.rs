//! The gRPC service `lockkeeper.v1.Locks`.

use tonic::{Request, Response, Status, Streaming};

use super::{Adapter, Backend, ReplyMessages, caller, messages, pipeline};
use crate::{
    api::{Error, requests::*},
    wire::Form,
};
use lockkeeper_machine::ForceRelease;
use lockkeeper_proto::v1::{self, locks_server::Locks};

#[tonic::async_trait]
impl<B: Backend> Locks for Adapter<B> {
    type WatchStream = ReplyMessages<WatchEvent>;
    type PipelineStream = pipeline::Answers;

    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        self.call::<AcquireLocks>(request).await
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseResponse>, Status> {
        self.call::<ReleaseLocks>(request).await
    }

    async fn update(&self, request: Request<v1::UpdateRequest>) -> Result<Response<v1::UpdateResponse>, Status> {
        self.call::<UpdateData>(request).await
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        self.call::<CheckToken>(request).await
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        self.call::<GetLock>(request).await
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        self.call::<ListLocks>(request).await
    }

    async fn busiest(&self, request: Request<v1::BusiestRequest>) -> Result<Response<v1::BusiestResponse>, Status> {
        self.call::<ShowBusiest>(request).await
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let caller = caller(&self.backend, &request)?;
        let events = self.backend.watch(&caller, Form::Message(request.into_inner())).await;
        self.name_leader(events.map(messages))
    }

    async fn force_release(
        &self,
        request: Request<v1::ForceReleaseRequest>,
    ) -> Result<Response<v1::ForceReleaseResponse>, Status> {
        self.call::<ForceRelease>(request).await
    }

    async fn remove_waiter(
        &self,
        request: Request<v1::RemoveWaiterRequest>,
    ) -> Result<Response<v1::RemoveWaiterResponse>, Status> {
        self.call::<RemoveWaiter>(request).await
    }

    async fn lift_delay(
        &self,
        request: Request<v1::LiftDelayRequest>,
    ) -> Result<Response<v1::LiftDelayResponse>, Status> {
        self.call::<LiftDelay>(request).await
    }

    async fn drop_data(&self, request: Request<v1::DropDataRequest>) -> Result<Response<v1::DropDataResponse>, Status> {
        self.call::<DropData>(request).await
    }

    async fn resize(&self, request: Request<v1::ResizeRequest>) -> Result<Response<v1::ResizeResponse>, Status> {
        self.call::<ResizeSemaphore>(request).await
    }

    /// Stays at this node: it routes each request of the stream by itself, to the node that leads at that time.
    async fn pipeline(
        &self,
        request: Request<Streaming<v1::PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        let Some(service) = self.backend.for_pipelines() else {
            return Err(Status::unimplemented(
                "the peers' port takes no pipelines: a node forwards requests one by one",
            ));
        };

        if service.stopping().is_cancelled() {
            return Err(Error::shutting_down().into());
        }

        let caller = caller(&self.backend, &request)?;
        self.backend.admit(&caller)?;
        Ok(Response::new(pipeline::start(service.clone(), self.pipelines.clone(), request.into_inner(), caller)))
    }
}
