//! Open connections of each identity at this node.
//!
//! A connection counts for an identity from the first call that it makes as that identity, until the connection ends. So certificates
//! and tokens are counted alike, and a refusal is an answer with a reason. A program that passes on the tokens of its users over one
//! connection has it counted once for each of them. Before its first call, a connection counts for no identity: the port's own limits
//! hold, which give such connections few slots and little time.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Weak,
};

use lockkeeper_machine::Identity;
use lockkeeper_transport::{ConnectionId, Remote};

/// The connections of identities with a limit. An identity has no more entries than its limit was.
#[derive(Debug, Default)]
pub(super) struct Connections(BTreeMap<Identity, HashMap<ConnectionKey, OpenConnection>>);

/// A connection that is counted while it is open.
#[derive(Clone, Debug)]
pub(super) enum OpenConnection {
    /// A connection of a port for gRPC calls.
    Calls(Remote),
    /// A connection of another port. It is open while this pointer has an owner.
    Other(Weak<()>),
}

/// Tells connections apart for as long as their [`OpenConnection`] exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ConnectionKey {
    Calls(ConnectionId),
    Other(usize),
}

impl OpenConnection {
    fn key(&self) -> ConnectionKey {
        match self {
            Self::Calls(remote) => ConnectionKey::Calls(remote.id()),
            Self::Other(open) => ConnectionKey::Other(open.as_ptr().addr()),
        }
    }

    fn is_open(&self) -> bool {
        match self {
            Self::Calls(remote) => remote.is_connected(),
            Self::Other(open) => open.strong_count() > 0,
        }
    }
}

impl Connections {
    /// Whether this connection of the identity is within the limit; if so, it is counted.
    pub(super) fn take(&mut self, who: &Identity, connection: OpenConnection, most: u64) -> bool {
        if !self.0.contains_key(who) {
            // New identities are rare; without this, those that are gone would stay.
            self.0.retain(|_, all| all.values().any(OpenConnection::is_open));
        }

        let all = self.0.entry(who.clone()).or_default();
        if all.contains_key(&connection.key()) {
            return true;
        }

        // Nobody tells when a connection ends, so those that have ended make room now.
        all.retain(|_, connection| connection.is_open());
        let within = (all.len() as u64) < most;
        if within {
            all.insert(connection.key(), connection);
        }
        within
    }
}
