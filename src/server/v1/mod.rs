//! `lockkeeper.v1` over gRPC: an adapter. It translates, and decides nothing.
//!
//! [`Adapter`] serves the same two gRPC services on two ports, each with a [`Backend`]:
//!
//! * At the clients' port, [`Service`] routes. Each answer and each error names the leader in its metadata, so that a good client sends its
//!   next request there.
//! * At the peers' port, [`Local`] executes or refuses the requests that followers forward.
//!
//! Around the services, on both ports: `deadlines` answers a call before its `grpc-timeout` passes, `unreadable` explains messages that
//! cannot be decoded. At the clients' port, `identified` refuses callers that are not known before a message is read. At the peers' port,
//! `addressed` refuses calls for another node, and `forwarded` runs calls on the clients' runtime.
//! `request_sizes` limits messages. `pipeline` carries many requests on one stream.
//! `cluster` shows this node's condition, `maintenance` sends backups.

pub(crate) mod addressed;
pub(crate) mod cluster;
pub(crate) mod deadlines;
pub(crate) mod forwarded;
pub(crate) mod identified;
mod keyspace;
mod locks;
pub(crate) mod maintenance;
mod pipeline;
pub(crate) mod request_sizes;
mod sessions;
pub(crate) mod unreadable;

use futures::{
    Stream, StreamExt,
    future::ready,
    stream::{BoxStream, Map},
};
use http::{Extensions, HeaderMap};
use tonic::{Request, Response, Status, Streaming};

pub use self::pipeline::PipelineLimits;
use self::{pipeline::RequestMemory, unreadable::explained};
use super::{
    access::Access,
    api::{
        Caller, Error,
        requests::{EntriesWatched, KeepAlive, KeepAliveEvent, WatchEntries, WatchEvent, WatchLocks},
    },
    service::{Local, ReplyStream, Serve, Service, forward::named_caller},
    wire::{Encode, Form, ReplyMessage},
};
use lockkeeper_proto::LEADER_KEY;
use lockkeeper_transport::Remote;

/// Serves `lockkeeper.v1` on a backend.
#[derive(Clone, Debug)]
pub(crate) struct Adapter<B> {
    backend: B,
    /// Shared by all streams of the port.
    pipelines: RequestMemory,
}

/// What answers the requests of a port.
pub(crate) trait Backend: Send + Sync + 'static {
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
    ) -> impl Future<Output = Result<ReplyStream<KeepAliveEvent>, Error>> + Send;

    /// Serves a watch.
    fn watch(
        &self,
        caller: &Caller,
        request: Form<WatchLocks>,
    ) -> impl Future<Output = Result<ReplyStream<WatchEvent>, Error>> + Send;

    /// Serves a watch of the keyspace.
    fn watch_entries(
        &self,
        caller: &Caller,
        request: WatchEntries,
    ) -> impl Future<Output = Result<BoxStream<'static, Result<EntriesWatched, Error>>, Error>> + Send;

    /// The caller of a request, without its deadline. Fails if its token is unknown, or its identity has too many connections.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Error>;

    /// Refuses a caller that may not even see this node's condition.
    fn admit(&self, caller: &Caller) -> Result<(), Error>;

    /// What this node knows of callers.
    fn access(&self) -> &Access;

    /// The address at which clients reach the leader, if answers on this port are to name it.
    fn leader(&self) -> Option<String>;

    /// The service that answers the requests of a pipeline, if this port takes pipelines.
    fn for_pipelines(&self) -> Option<&Service>;
}

/// The clients' port.
impl Backend for Service {
    fn call<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> impl Future<Output = Result<Form<C::Reply>, Error>> + Send {
        self.call_while_known(caller, request)
    }

    fn keep_alive(
        &self,
        caller: &Caller,
        renewals: impl Stream<Item = Result<Form<KeepAlive>, Error>> + Send + 'static,
    ) -> impl Future<Output = Result<ReplyStream<KeepAliveEvent>, Error>> + Send {
        self.keep_alive(caller, renewals)
    }

    fn watch(
        &self,
        caller: &Caller,
        request: Form<WatchLocks>,
    ) -> impl Future<Output = Result<ReplyStream<WatchEvent>, Error>> + Send {
        self.watch(caller, request)
    }

    fn watch_entries(
        &self,
        caller: &Caller,
        request: WatchEntries,
    ) -> impl Future<Output = Result<BoxStream<'static, Result<EntriesWatched, Error>>, Error>> + Send {
        self.watch_entries(caller, request)
    }

    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Error> {
        // Mostly the layer around the services has looked, before the message was read.
        match request.extensions().get::<Caller>() {
            Some(caller) => Ok(caller.clone()),
            None => shown_caller(self, request.extensions(), request.metadata().as_ref()),
        }
    }

    fn admit(&self, caller: &Caller) -> Result<(), Error> {
        self.access().admit(caller)
    }

    fn access(&self) -> &Access {
        self.access()
    }

    fn leader(&self) -> Option<String> {
        self.leader()
    }

    fn for_pipelines(&self) -> Option<&Service> {
        Some(self)
    }
}

/// The peers' port.
impl Backend for Local {
    fn call<C: Serve>(
        &self,
        caller: &Caller,
        request: Form<C>,
    ) -> impl Future<Output = Result<Form<C::Reply>, Error>> + Send {
        self.call_forwarded(caller, request)
    }

    async fn keep_alive(
        &self,
        caller: &Caller,
        renewals: impl Stream<Item = Result<Form<KeepAlive>, Error>> + Send + 'static,
    ) -> Result<ReplyStream<KeepAliveEvent>, Error> {
        Ok(Box::pin(self.keep_alive(caller, renewals)))
    }

    async fn watch(&self, caller: &Caller, request: Form<WatchLocks>) -> Result<ReplyStream<WatchEvent>, Error> {
        Ok(Box::pin(self.watch(caller, request).await?))
    }

    async fn watch_entries(
        &self,
        caller: &Caller,
        request: WatchEntries,
    ) -> Result<BoxStream<'static, Result<EntriesWatched, Error>>, Error> {
        Ok(Box::pin(self.watch_entries(caller, request)?))
    }

    /// A peer is trusted with the name of its client: only members reach this port.
    fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Error> {
        Ok(Caller { origin: self.traces.origin(request.metadata().as_ref()), ..named_caller(request.metadata()) })
    }

    fn admit(&self, _caller: &Caller) -> Result<(), Error> {
        Ok(())
    }

    fn access(&self) -> &Access {
        &self.access
    }

    fn leader(&self) -> Option<String> {
        None
    }

    fn for_pipelines(&self) -> Option<&Service> {
        None
    }
}

/// A stream of replies, as messages.
type ReplyMessages<T> =
    Map<BoxStream<'static, Result<Form<T>, Error>>, fn(StreamItem<T>) -> Result<<T as Encode>::Message, Status>>;
type StreamItem<T> = Result<Form<T>, Error>;

impl<B: Backend> Adapter<B> {
    pub(crate) fn new(backend: B) -> Self {
        Self::with_limits(backend, PipelineLimits::REAL)
    }

    /// The same with other limits of pipelines.
    pub(crate) fn with_limits(backend: B, pipelines: PipelineLimits) -> Self {
        Self { backend, pipelines: RequestMemory::new(pipelines) }
    }

    async fn call<C: Serve>(&self, request: Request<C::Message>) -> Result<Response<ReplyMessage<C>>, Status> {
        let caller = caller(&self.backend, &request)?;
        let reply = self.backend.call::<C>(&caller, Form::Message(request.into_inner())).await;
        self.name_leader(reply.map(Form::message))
    }

    /// Makes an answer to a client, with the leader's address.
    fn name_leader<T>(&self, answer: Result<T, Error>) -> Result<Response<T>, Status> {
        let leader = self.backend.leader().and_then(|address| address.parse().ok());
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

fn caller<B: Backend, T>(backend: &B, request: &Request<T>) -> Result<Caller, Error> {
    Ok(Caller { deadline: deadlines::deadline(request), ..backend.caller(request)? })
}

/// The caller that a request of a client shows, from the extensions that its connection gave it and from its headers: by the token that it
/// sends, or else the name in the certificate of its connection. So a program in between can have a certificate of its own, and pass on the
/// tokens of its users. Fails if its token is unknown, or its identity has too many connections.
fn shown_caller(service: &Service, extensions: &Extensions, headers: &HeaderMap) -> Result<Caller, Error> {
    let remote = extensions.get::<Remote>();
    if remote.is_some_and(|remote| remote.node().is_some()) {
        return Ok(Caller { is_peer: true, ..Caller::default() });
    }

    let access = service.access();
    let origin = service.traces().origin(headers);
    let shown = match access.bearer(headers)? {
        Some((identity, token)) => Caller { identity: Some(identity), token: Some(token), ..Caller::default() },
        None => {
            let certificate = remote.and_then(|remote| remote.certificate.as_ref());
            let (identity, is_of_earlier) = access.certificate_identity(certificate)?;
            Caller { identity, certificate: certificate.cloned(), is_of_earlier, ..Caller::default() }
        }
    };

    if let (Some(who), Some(remote)) = (&shown.identity, remote) {
        access.count_connection(who, remote)?;
    }
    Ok(Caller { remote: remote.map(|remote| remote.address.into()), origin, ..shown })
}

/// The messages that a client sends on a stream. The stream ends with the client; a message that cannot be decoded is an error.
fn received<T: Encode>(messages: Streaming<T::Message>) -> impl Stream<Item = StreamItem<T>> + Send {
    messages.scan((), |(), message| {
        ready(match message {
            Ok(message) => Some(Ok(Form::Message(message))),
            Err(status) => explained(&status).map(Err),
        })
    })
}

fn messages<T: Encode>(events: ReplyStream<T>) -> ReplyMessages<T> {
    events.map(|item| item.map(Form::message).map_err(Status::from))
}
