//! Open connections of each identity at this node.
//!
//! A connection counts for an identity from the first call that it makes as that identity, until the connection ends. So certificates
//! and tokens are counted alike, and a refusal is an answer with a reason. A program that passes on the tokens of its users over one
//! connection has it counted once for each of them. Before its first call, a connection counts for no identity: the port's own limits
//! hold, which give such connections few slots and little time.

use std::collections::{BTreeMap, HashMap};

use lockkeeper_machine::Identity;
use lockkeeper_transport::{ConnectionId, Remote};

/// The connections of identities with a limit. An identity has no more entries than its limit was.
#[derive(Debug, Default)]
pub(super) struct Connections(BTreeMap<Identity, HashMap<ConnectionId, Remote>>);

impl Connections {
    /// Whether a call of this identity on this connection is within the limit; if so, the connection is counted.
    pub(super) fn take(&mut self, who: &Identity, remote: &Remote, most: u64) -> bool {
        if !self.0.contains_key(who) {
            // New identities are rare; without this, those that are gone would stay.
            self.0.retain(|_, open| open.values().any(Remote::is_connected));
        }
        let open = self.0.entry(who.clone()).or_default();
        if open.contains_key(&remote.id()) {
            return true;
        }
        open.retain(|_, remote| remote.is_connected());
        let within = (open.len() as u64) < most;
        if within {
            open.insert(remote.id(), remote.clone());
        }
        within
    }
}
