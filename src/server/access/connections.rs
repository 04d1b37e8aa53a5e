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

#[cfg(test)]
mod tests {
    use lockkeeper_transport::Connection;

    use super::*;

    #[test]
    fn a_connection_counts_once_for_each_identity_until_it_ends() {
        let mut connections = Connections::default();
        let (ann, bob) = (Identity::new("ann").expect("valid"), Identity::new("bob").expect("valid"));
        let [first, second, third] = [(); 3].map(Connection::for_test);
        for _ in 0..3 {
            assert!(connections.take(&ann, &first.remote(), 2));
            assert!(connections.take(&ann, &second.remote(), 2));
        }
        assert!(!connections.take(&ann, &third.remote(), 2));
        assert!(connections.take(&bob, &third.remote(), 1), "another identity is not concerned");
        assert!(connections.take(&bob, &third.remote(), 0), "a lower limit ends no connection");
        drop(first);
        assert!(connections.take(&ann, &third.remote(), 2), "a connection that ended makes room");
        drop((second, third));
        assert!(connections.take(&Identity::new("eve").expect("valid"), &Connection::for_test(()).remote(), 1));
        assert_eq!(connections.0.len(), 1, "identities without a connection are forgotten");
    }
}
