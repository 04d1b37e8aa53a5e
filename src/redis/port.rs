//! The port: accepts connections and serves them.

use std::{fmt, sync::Arc};

use lockkeeper_accept::{AcceptLimits, AcceptedConnection, ArrivingBytes, serve_connections};
use tokio_util::sync::CancellationToken;

use crate::RedisStoreError;
use crate::{
    Interpreter, LibraryUse, RedisCaller, RedisListener, RedisOptions, RedisStore,
    connection::{Budgets, ServedConnection},
    node::RedisNode,
    unit::{CommandUnit, UnitOutcome},
};

/// Redis' protocol over a store.
pub struct Redis<S>(Arc<RedisNode<S>>);

impl<S> Clone for Redis<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Redis<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").finish_non_exhaustive()
    }
}

impl<S: RedisStore> Redis<S> {
    /// Makes the state of a node: its scripts, its connections, its turns.
    pub fn new(store: S, interpreter: Arc<dyn Interpreter>, options: RedisOptions) -> Self {
        Self(Arc::new(RedisNode::new(store, interpreter, options)))
    }

    /// What clients have done at this node, by the library that they are written with: those that it has seen.
    pub fn libraries(&self) -> Vec<LibraryUse> {
        self.0.clients.libraries()
    }

    /// Runs a unit that another node gave to this one ([`RedisStore::run_at_leader`]), and returns the bytes that are its answer. Never
    /// fails: a failure of the store is in the answer. It ends soon after the caller's deadline. Dropping the future abandons it: the
    /// unit may still take effect.
    pub async fn run_unit(&self, caller: &RedisCaller, unit: &[u8]) -> Vec<u8> {
        let outcome = match CommandUnit::decode(unit) {
            Some(unit) => self.0.engine.run_here(caller, &unit).await,
            None => {
                let why = "the leader's node has another version, and cannot read the command".to_owned();
                UnitOutcome::Failed(RedisStoreError::Unavailable(why))
            }
        };
        outcome.encode()
    }

    /// Serves connections until `stopping` is cancelled, and then the requests in flight for some seconds. Never fails: an error of one
    /// connection does not affect others. Dropping the future closes all connections.
    pub async fn serve<L: RedisListener>(&self, listener: L, stopping: CancellationToken) {
        let options = &self.0.options;
        let budgets =
            Budgets { requests: ArrivingBytes::new(options.requests_bytes_max), replies: self.0.replies.clone() };
        let limits = AcceptLimits {
            connections_max: options.connections_max,
            handshake_timeout: options.arrival_timeout,
            refuses: true,
            settles_arrivals: true,
        };

        let node = Arc::clone(&self.0);
        let serve = move |accepted: AcceptedConnection<L::Stream>| {
            let AcceptedConnection { stream, client, slot, stopping } = accepted;
            let identity = L::identity(&stream);
            ServedConnection::new(stream, Arc::clone(&node), client, identity, &budgets).serve(slot, stopping)
        };
        serve_connections(listener, limits, stopping, serve).await;
    }
}
