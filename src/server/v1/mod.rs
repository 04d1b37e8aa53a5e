//! `lockkeeper.v1` over gRPC: an adapter. It translates, and decides nothing.
//!
//! [`Adapter`] serves the same two gRPC services at two doors:
//!
//! * clients: on [`Service`], which routes. Each answer and each error names the leader in its metadata, so that a good client sends its next
//!   request there;
//! * peers: on [`Local`], for requests that a follower forwards. They are executed here or refused.
//!
//! Around the services, for both doors: `deadlines` answers a call before its `grpc-timeout` passes, `unreadable` explains messages that
//! cannot be decoded. At the peers' port, `forwarded` runs calls on the clients' runtime. `pipeline` carries many requests on one stream. `cluster` shows this node's condition.

mod cluster;
pub(crate) mod deadlines;
pub(crate) mod forwarded;
mod locks;
mod pipeline;
mod sessions;
pub(crate) mod unreadable;

use futures::{
    Stream, StreamExt,
    future::ready,
    stream::{BoxStream, Map},
};
use tonic::{Request, Response, Status, Streaming};

use self::unreadable::explained;
use super::{
    api::{
        Caller, Error,
        requests::{KeepAlive, KeepAliveEvent, WatchEvent, WatchLocks},
    },
    service::{Events, Local, Serve, Service, forward::named_caller},
    wire::{Encode, Form, ReplyMessage},
};
use crate::{machine::Address, proto::LEADER_KEY, transport::Remote};

/// Serves `lockkeeper.v1` at a door.
#[derive(Clone, Debug)]
pub(crate) struct Adapter<D> {
    door: D,
}

/// Where requests come in, and so what answers them.
pub(crate) trait Door: Send + Sync + 'static {
    /// Answers a request.
    fn call<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> impl Future<Output = Result<Form<C::Reply>, Error>> + Send;

    /// Serves a stream of renewals.
    fn keep_alive(
        &self,
        caller: &Caller,
        renewals: impl Stream<Item = Result<Form<KeepAlive>, Error>> + Send + 'static,
    ) -> impl Future<Output = Result<Events<KeepAliveEvent>, Error>> + Send;

    /// Serves a watch.
    fn watch(
        &self,
        caller: &Caller,
        request: Form<WatchLocks>,
    ) -> impl Future<Output = Result<Events<WatchEvent>, Error>> + Send;

    /// The client's address.
    fn remote<T>(request: &Request<T>) -> Option<Address>;

    /// Where clients reach the leader: what answers at this door are to name.
    fn leader(&self) -> Option<String>;

    /// What answers the requests of a pipeline. `None`: this door takes no pipelines.
    fn of_pipelines(&self) -> Option<&Service>;
}

/// The clients' port.
impl Door for Service {
    fn call<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> impl Future<Output = Result<Form<C::Reply>, Error>> + Send {
        self.call(caller, request)
    }

    fn keep_alive(
        &self,
        caller: &Caller,
        renewals: impl Stream<Item = Result<Form<KeepAlive>, Error>> + Send + 'static,
    ) -> impl Future<Output = Result<Events<KeepAliveEvent>, Error>> + Send {
        self.keep_alive(caller, renewals)
    }

    fn watch(
        &self,
        caller: &Caller,
        request: Form<WatchLocks>,
    ) -> impl Future<Output = Result<Events<WatchEvent>, Error>> + Send {
        self.watch(caller, request)
    }

    fn remote<T>(request: &Request<T>) -> Option<Address> {
        request.extensions().get::<Remote>().map(|remote| remote.address.into())
    }

    fn leader(&self) -> Option<String> {
        self.leader()
    }

    fn of_pipelines(&self) -> Option<&Service> {
        Some(self)
    }
}

/// The peers' port.
impl Door for Local {
    fn call<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> impl Future<Output = Result<Form<C::Reply>, Error>> + Send {
        self.call(caller, request)
    }

    async fn keep_alive(
        &self,
        caller: &Caller,
        renewals: impl Stream<Item = Result<Form<KeepAlive>, Error>> + Send + 'static,
    ) -> Result<Events<KeepAliveEvent>, Error> {
        Ok(Box::pin(self.keep_alive(caller, renewals)))
    }

    async fn watch(&self, caller: &Caller, request: Form<WatchLocks>) -> Result<Events<WatchEvent>, Error> {
        Ok(Box::pin(self.watch(caller, request).await?))
    }

    fn remote<T>(request: &Request<T>) -> Option<Address> {
        named_caller(request.metadata())
    }

    fn leader(&self) -> Option<String> {
        None
    }

    fn of_pipelines(&self) -> Option<&Service> {
        None
    }
}

/// A stream of replies, as messages.
type Messages<T> =
    Map<BoxStream<'static, Result<Form<T>, Error>>, fn(Item<T>) -> Result<<T as Encode>::Message, Status>>;
type Item<T> = Result<Form<T>, Error>;

impl<D: Door> Adapter<D> {
    pub(crate) fn new(door: D) -> Self {
        Self { door }
    }

    async fn call<C: Serve>(&self, request: Request<C::Message>) -> Result<Response<ReplyMessage<C>>, Status> {
        let caller = caller::<D, _>(&request);
        let reply = self.door.call::<C>(&caller, Form::Message(request.into_inner())).await;
        self.name_leader(reply.map(Form::message))
    }

    /// An answer to a client, with the leader's name.
    fn name_leader<T>(&self, answer: Result<T, Error>) -> Result<Response<T>, Status> {
        let leader = self.door.leader().and_then(|address| address.parse().ok());
        let mut answer = answer.map(Response::new).map_err(Status::from);
        if let Some(leader) = leader {
            let metadata = match &mut answer {
                Ok(response) => response.metadata_mut(),
                Err(status) => status.metadata_mut(),
            };
            metadata.insert(LEADER_KEY, leader);
        }
        answer
    }
}

fn caller<D: Door, T>(request: &Request<T>) -> Caller {
    Caller { remote: D::remote(request), deadline: deadlines::of(request) }
}

/// What a client sends on a stream. The stream ends with the client; a message that cannot be decoded is an error.
fn received<T: Encode>(messages: Streaming<T::Message>) -> impl Stream<Item = Item<T>> + Send {
    messages.scan((), |(), message| {
        ready(match message {
            Ok(message) => Some(Ok(Form::Message(message))),
            Err(status) => explained(&status).map(Err),
        })
    })
}

fn messages<T: Encode>(events: Events<T>) -> Messages<T> {
    events.map(|item| item.map(Form::message).map_err(Status::from))
}
