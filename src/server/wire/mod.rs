//! Requests and replies as messages of `lockkeeper.v1`, and errors as gRPC statuses.
//!
//! Two parts of a node speak `lockkeeper.v1`: the adapter that serves it to clients ([`super::v1`]), and the peers' port, over which a
//! follower forwards requests to the leader ([`super::service::forward`]). Both convert in this module only.
//!
//! # One conversion, and only where it is needed
//!
//! A request, a reply or an item of a stream has a [`Form`]: typed, or a message. Each part of a node accepts both forms, and
//! converts a value only if it needs the other form:
//!
//! ```text
//!                          request                                    reply
//! v1 client,   leader:     message → typed (checked, executed)        typed → message
//! v1 client,   follower:   message            (forwarded as it is)    message (passed back as it is)
//! other client, leader:    typed              (executed)              typed
//! other client, follower:  typed → message    (forwarded)             message → typed
//! ```
//!
//! * `sessions`, `locks`, `members` and `keyspace` have each request and each reply as its message, and the call that forwards a request.
//! * `convert` and `replies` have the values in requests and replies; `views` has the locks and sessions of the table, in both directions.
//! * `status` has errors as gRPC statuses, `sizes` the memory that requests take.

/// Implements [`Forward::call`]: calls the leader by this method of this client.
macro_rules! forwarded_by {
    ($client:ident, $method:ident) => {
        async fn call(
            channel: Channel,
            request: tonic::Request<Self::Message>,
        ) -> Result<Response<ReplyMessage<Self>>, Status> {
            $client::new(channel).max_encoding_message_size(MESSAGE_BYTES_MAX).$method(request).await
        }
    };
}

pub(crate) mod convert;
mod keyspace;
mod locks;
mod members;
mod replies;
mod sessions;
pub(crate) mod sizes;
pub(crate) mod status;
#[cfg(test)]
mod tests;
pub(crate) mod views;

use tonic::{Request, Response, Status, transport::Channel};

pub(crate) use self::locks::asks_to_wait;
use super::api::{ApiCall, Error, requests::ReleaseLocks};

/// Maximum number of bytes of one message. 64 locks with their names and data fit.
pub const MESSAGE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// A typed value that has a message.
pub(crate) trait Encode: Sized + Send + 'static {
    /// The message that stands for it.
    type Message: Send + 'static;

    /// The message for this value.
    fn encode(self) -> Self::Message;

    /// The value of a message. Fails with [`FailureReason::InvalidArgument`](super::api::FailureReason::InvalidArgument), which names the
    /// field, if the message has no valid value.
    fn decode(message: Self::Message) -> Result<Self, Error>;
}

/// A value, typed or as its message.
#[derive(Debug)]
pub(crate) enum Form<T: Encode> {
    /// The decoded value, for the service.
    Typed(T),
    /// The encoded value, which was not checked yet.
    Message(T::Message),
}

impl<T: Encode> Form<T> {
    /// The typed value. Fails as [`Encode::decode`] does.
    pub(crate) fn typed(self) -> Result<T, Error> {
        match self {
            Self::Typed(value) => Ok(value),
            Self::Message(message) => T::decode(message),
        }
    }

    /// The message.
    pub(crate) fn message(self) -> T::Message {
        match self {
            Self::Typed(value) => value.encode(),
            Self::Message(message) => message,
        }
    }
}

/// The message of a request's reply.
pub(crate) type ReplyMessage<C> = <<C as ApiCall>::Reply as Encode>::Message;

/// A request that a follower can forward to the leader.
pub(crate) trait Forward: ApiCall<Reply: Encode> + Encode {
    /// Whether it is a stale read, which any node may execute from its own table.
    fn is_stale(_request: &Form<Self>) -> bool {
        false
    }

    /// Whether its reply may be late because it waits for a lock.
    fn may_wait(_request: &Form<Self>) -> bool {
        false
    }

    /// What ends this wait for good, or gives back what it has got. `None` if the request has no id by which it could be named.
    fn abandonment(_request: &Form<Self>) -> Option<ReleaseLocks> {
        None
    }

    /// Calls the node at the other end of this channel.
    fn call(
        channel: Channel,
        request: Request<Self::Message>,
    ) -> impl Future<Output = Result<Response<ReplyMessage<Self>>, Status>> + Send;
}
