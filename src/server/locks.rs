//! Locks, on the leader.

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

use super::{
    PATIENCE, convert,
    convert::page_size,
    errors::{
        invalid, invalid_value, no_reply, session_ended, unexpected, wait_abandoned, wait_cancelled, wait_removed,
    },
    origin,
    pages::{PageLimit, page_of_locks},
    waiting, watch,
};
use crate::{
    machine::{Busy, Command, LockName, Machine, NAME_BYTES_MAX, Page, Permits, Reply, Ticket, Token, WaitEnd},
    proto::v1::{self, acquire_response, locks_server},
    raft::{Replica, table::Applied, types::Delivery},
};

/// Locks in one page of a list, holders and waiters in one page of a lock, at the most.
const PAGE_MAX: usize = 1000;
/// Bytes after which a page of a list is closed.
const PAGE_BYTES: usize = 256 * 1024;

/// Answers from the replica of this node; a node that does not lead says so.
#[derive(Clone, Debug)]
pub(super) struct Locks {
    pub(super) replica: Replica,
}

#[tonic::async_trait]
impl locks_server::Locks for Locks {
    type WatchStream = BoxStream<v1::WatchResponse>;
    type PipelineStream = ReceiverStream<Result<v1::PipelineResponse, Status>>;

    async fn acquire(&self, request: Request<v1::AcquireRequest>) -> Result<Response<v1::AcquireResponse>, Status> {
        let message = request.into_inner();
        let repeatable = message.request.is_some();
        let Delivery { reply, wait } = self.propose(convert::acquire(message)?).await?;
        let outcome = match (reply, wait) {
            (Reply::Acquired(end), _) => outcome(end)?,
            (Reply::Busy(busy), _) => acquire_response::Outcome::Busy(convert::show_busy(busy)),
            (Reply::Queued(_), Some(call)) => outcome(waiting::end_of_wait(&self.replica, call, repeatable).await?)?,
            (other, _) => return Err(unexpected(other)),
        };
        Ok(Response::new(v1::AcquireResponse { outcome: Some(outcome) }))
    }

    async fn release(&self, request: Request<v1::ReleaseRequest>) -> Result<Response<v1::ReleaseResponse>, Status> {
        use crate::machine::Released;
        let reply = self.propose(convert::release(request.into_inner())?).await?.reply;
        let Reply::Released(found) = reply else { return Err(unexpected(reply)) };
        let released = match found {
            Released::Grant => v1::Released::Grant,
            Released::Wait => v1::Released::Wait,
            Released::Nothing => v1::Released::Nothing,
        };
        Ok(Response::new(v1::ReleaseResponse { released: released.into() }))
    }

    async fn update(&self, request: Request<v1::UpdateRequest>) -> Result<Response<v1::UpdateResponse>, Status> {
        let reply = self.propose(convert::update(request.into_inner())?).await?.reply;
        let Reply::Updated = reply else { return Err(unexpected(reply)) };
        Ok(Response::new(v1::UpdateResponse {}))
    }

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<v1::CheckResponse>, Status> {
        let message = request.into_inner();
        let name = convert::lock_name("name", &message.name)?;
        let token = convert::token(message.token)?;
        let look = |applied: &Applied| {
            let holder = applied.machine.holder(&name, token);
            v1::CheckResponse {
                held: holder.is_some(),
                holder: holder.map(convert::show_holder),
                last_token: applied.machine.last_token().0,
                index: applied.index(),
            }
        };
        Ok(Response::new(self.read(false, look).await?))
    }

    async fn get(&self, request: Request<v1::GetRequest>) -> Result<Response<v1::GetResponse>, Status> {
        let message = request.into_inner();
        let name = convert::lock_name("name", &message.name)?;
        let page = Page {
            size: page_size(message.page_size, PAGE_MAX),
            holders_after: Token(message.holders_after),
            waiters_after: Ticket(message.waiters_after),
        };
        let (machine, index) = self.frozen(message.stale).await?;
        let lock = Some(convert::show_lock(machine.lock(&name, page)));
        Ok(Response::new(v1::GetResponse { lock, index }))
    }

    async fn list(&self, request: Request<v1::ListRequest>) -> Result<Response<v1::ListResponse>, Status> {
        let message = request.into_inner();
        let after = match message.page_token.as_str() {
            "" => None,
            token => Some(LockName::new(token).map_err(|_| invalid("page_token", "is not the one of a page before"))?),
        };
        let limit = PageLimit { locks: page_size(message.page_size, PAGE_MAX), bytes: PAGE_BYTES };
        let (machine, index) = self.frozen(message.stale).await?;
        let (locks, next_page_token) = page_of_locks(&machine, &message.prefix, after.as_ref(), limit);
        Ok(Response::new(v1::ListResponse { locks, next_page_token, index }))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let v1::WatchRequest { prefix, after_index } = request.into_inner();
        let stream = watch::start(self.replica.clone(), prefix, after_index).await?;
        Ok(Response::new(Box::pin(stream)))
    }

    async fn force_release(
        &self,
        request: Request<v1::ForceReleaseRequest>,
    ) -> Result<Response<v1::ForceReleaseResponse>, Status> {
        let from = origin::show(origin::of(&request));
        let message = request.into_inner();
        let v1::ForceReleaseRequest { name, reason, now, .. } = message.clone();
        let reply = self.propose(convert::force_release(message)?).await?.reply;
        let Reply::Forced { grants, more_up_to } = reply else { return Err(unexpected(reply)) };
        if let (Some(first), Some(last)) = (grants.first(), grants.last()) {
            let (first, last, count) = (first.token.0, last.token.0, grants.len());
            tracing::info!(lock = name, %from, reason, now, count, first, last, "an operator took grants back");
        }
        let forced = grants.into_iter().map(convert::show_forced).collect();
        Ok(Response::new(v1::ForceReleaseResponse { forced, more_up_to_token: more_up_to.map_or(0, |token| token.0) }))
    }

    async fn remove_waiter(
        &self,
        request: Request<v1::RemoveWaiterRequest>,
    ) -> Result<Response<v1::RemoveWaiterResponse>, Status> {
        let from = origin::show(origin::of(&request));
        let message = request.into_inner();
        let name = convert::lock_name("name", &message.name)?;
        let command = Command::RemoveWaiter { name: name.clone(), ticket: Ticket(message.ticket) };
        let reply = self.propose(command).await?.reply;
        let Reply::WaiterRemoved(removed) = reply else { return Err(unexpected(reply)) };
        if let Some(waiter) = &removed {
            let (ticket, session, label) = (waiter.ticket.0, waiter.session, waiter.label.as_str());
            tracing::info!(lock = %name, %from, ticket, %session, label, "an operator removed a waiter");
        }
        Ok(Response::new(v1::RemoveWaiterResponse { removed: removed.map(convert::show_waiter) }))
    }

    async fn lift_delay(
        &self,
        request: Request<v1::LiftDelayRequest>,
    ) -> Result<Response<v1::LiftDelayResponse>, Status> {
        let from = origin::show(origin::of(&request));
        let name = convert::lock_name("name", &request.into_inner().name)?;
        let reply = self.propose(Command::LiftDelay { name: name.clone() }).await?.reply;
        let Reply::DelayLifted(lifted_ms) = reply else { return Err(unexpected(reply)) };
        if let Some(lifted_ms) = lifted_ms {
            tracing::info!(lock = %name, %from, lifted_ms, "an operator lifted a lock-delay");
        }
        Ok(Response::new(v1::LiftDelayResponse { lifted_ms }))
    }

    async fn drop_data(&self, request: Request<v1::DropDataRequest>) -> Result<Response<v1::DropDataResponse>, Status> {
        let from = origin::show(origin::of(&request));
        let v1::DropDataRequest { prefix, after } = request.into_inner();
        if prefix.len() > NAME_BYTES_MAX {
            return Err(invalid("prefix", "is longer than the 512 bytes that a name may have: shorten it"));
        }
        let after = match after.as_str() {
            "" => None,
            name => Some(convert::lock_name("after", name)?),
        };
        let reply = self.propose(Command::DropData { prefix: prefix.clone(), after }).await?.reply;
        let Reply::DataDropped { dropped, more_after } = reply else { return Err(unexpected(reply)) };
        if dropped > 0 {
            tracing::info!(prefix, %from, dropped, "an operator dropped the data of locks that nobody holds");
        }
        let more_after = more_after.map_or_else(String::new, |name| name.to_string());
        Ok(Response::new(v1::DropDataResponse { dropped, more_after }))
    }

    async fn resize(&self, request: Request<v1::ResizeRequest>) -> Result<Response<v1::ResizeResponse>, Status> {
        let from = origin::show(origin::of(&request));
        let message = request.into_inner();
        let name = convert::lock_name("name", &message.name)?;
        let permits = Permits::new(message.permits).map_err(invalid_value("permits"))?;
        let reply = self.propose(Command::Resize { name: name.clone(), permits }).await?.reply;
        let Reply::Resized { before, holders, waiters } = reply else { return Err(unexpected(reply)) };
        let (permits, before) = (permits.get(), before.get());
        tracing::info!(lock = %name, %from, permits, before, holders, waiters, "an operator resized a semaphore");
        Ok(Response::new(v1::ResizeResponse { permits_before: before, holder_count: holders, queue_length: waiters }))
    }

    async fn pipeline(
        &self,
        _request: Request<Streaming<v1::PipelineRequest>>,
    ) -> Result<Response<Self::PipelineStream>, Status> {
        Err(Status::unimplemented("a peer passes requests on one by one"))
    }
}

impl Locks {
    async fn propose(&self, command: Command) -> Result<Delivery, Status> {
        self.replica.propose(command, PATIENCE).await.map_err(no_reply)
    }

    async fn read<T>(&self, stale: bool, look: impl FnOnce(&Applied) -> T) -> Result<T, Status> {
        match stale {
            true => Ok(self.replica.table().read(look)),
            false => self.replica.read(PATIENCE, look).await.map_err(no_reply),
        }
    }

    /// The machine as it is now, and the last entry in it: a clone, which costs next to nothing. To show a thousand locks, or the crowd behind
    /// one, takes so long that nothing should wait to be applied meanwhile.
    async fn frozen(&self, stale: bool) -> Result<(Machine, u64), Status> {
        self.read(stale, |applied| (applied.machine.clone(), applied.index())).await
    }
}

fn outcome(end: WaitEnd) -> Result<acquire_response::Outcome, Status> {
    let timed_out = |busy: Busy| acquire_response::Outcome::TimedOut(convert::show_busy(busy));
    match end {
        WaitEnd::Granted(grant) => Ok(acquire_response::Outcome::Granted(convert::show_grant(&grant))),
        WaitEnd::TimedOut(busy) => Ok(timed_out(busy)),
        WaitEnd::Cancelled => Err(wait_cancelled()),
        WaitEnd::Abandoned => Err(wait_abandoned()),
        WaitEnd::Removed => Err(wait_removed()),
        WaitEnd::SessionEnded(end) => Err(session_ended(end)),
    }
}
