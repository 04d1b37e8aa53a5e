//! The port: accepts connections and serves them.

use std::{fmt, sync::Arc, time::Duration};

use lockkeeper_accept::{ArrivingBytes, ReadState, Slots};
use tokio::{
    task::{JoinSet, yield_now},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::StoreFailure;
use crate::{
    ClientListener, Interpreter, Options, RedisStore, Requester,
    connection::{Budgets, ServedConnection},
    node::RedisNode,
    unit::{CommandUnit, UnitOutcome},
};

/// Time that connections have to end when the port stops.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(5);
/// Arrivals have half of all slots, and this many at the most.
const ARRIVALS_MAX: usize = 256;

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
    pub fn new(store: S, interpreter: Arc<dyn Interpreter>, options: Options) -> Self {
        Self(Arc::new(RedisNode::new(store, interpreter, options)))
    }

    /// Runs a unit that another node gave to this one ([`RedisStore::run_at_leader`]), and returns the bytes that are its answer. Never
    /// fails: a failure of the store is in the answer. It ends soon after the requester's deadline. Dropping the future abandons it: the
    /// unit may still take effect.
    pub async fn run_unit(&self, requester: &Requester, unit: &[u8]) -> Vec<u8> {
        let outcome = match CommandUnit::decode(unit) {
            Some(unit) => self.0.engine.run_here(requester, &unit).await,
            None => {
                let why = "the leader's node has another version, and cannot read the command".to_owned();
                UnitOutcome::Failed(StoreFailure::Unavailable(why))
            }
        };
        outcome.encode()
    }

    /// Serves connections until `stopping` is cancelled, and then the requests in flight for some seconds. Never fails: an error of one
    /// connection does not affect others. Dropping the future closes all connections.
    pub async fn serve<L: ClientListener>(&self, mut listener: L, stopping: CancellationToken) {
        let options = &self.0.options;
        let arrivals_max = (options.connections_max / 2).min(ARRIVALS_MAX);
        let slots = Slots::with_arrivals(arrivals_max, options.connections_max, listener.refusals());
        let budgets = Budgets {
            requests: ArrivingBytes::new(options.requests_bytes_max),
            replies: ArrivingBytes::new(options.replies_bytes_max),
        };

        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stopping.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            let (handshake, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    slots.note_failed_accept(&error).await;
                    continue;
                }
            };

            let slot_guard = slots.admit(client.ip(), ReadState::new(usize::MAX));
            let node = Arc::clone(&self.0);
            let budgets = budgets.clone();
            let stopping = stopping.clone();
            connections.spawn(async move {
                let slot = Arc::clone(&slot_guard.0);
                let handshake = tokio::select! {
                    handshake = timeout(node.options.arrival_timeout, handshake) => handshake,
                    () = slot.must_end() => return,
                };
                if let Ok(Ok(stream)) = handshake {
                    let identity = L::identity(&stream);
                    ServedConnection::new(stream, node, client, identity, &budgets).serve(slot, stopping).await;
                }
                drop(slot_guard);
            });
            // Each connection has a turn before the next one is accepted: a request that is there already is read before a flood of
            // arrivals can displace it.
            yield_now().await;
        }

        drop(listener);
        let _ = timeout(CLOSING_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
    }
}
