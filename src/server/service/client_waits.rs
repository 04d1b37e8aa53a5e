//! The acquires that wait at this node, by client.
//!
//! Beside its place in the table, each takes some kilobytes at the leader: its call, and what its connection keeps for it. So a node limits
//! all of them, and leaves room for other clients.
//!
//! Those that come by other nodes have a limit of their own as well: a follower limits how many it passes on, and a connection between
//! nodes how many calls are open on it. One client could take all of these places, through one follower after the other.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::api::{Caller, Error};
use lockkeeper_accept::origin;
use lockkeeper_machine::Identity;
use lockkeeper_planted::NodeLimit;

/// Waiting acquires by client: an identity or, without one, a host.
#[derive(Debug)]
pub(crate) struct ClientWaits {
    limit: ClientWaitLimit,
    counts: Mutex<WaitCounts>,
}

/// How many there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientWaitLimit {
    /// This number at the node, of which one client may have half of what others leave.
    AtNode(usize),
    /// This number for each client, of those that other nodes pass on.
    PassedOn(usize),
}

#[derive(Debug, Default)]
struct WaitCounts {
    all: usize,
    by_owner: HashMap<WaitOwner, usize>,
}

/// The client for which a wait counts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum WaitOwner {
    Identity(Identity),
    Host(IpAddr),
    /// A follower of an earlier version has not named it.
    Unnamed,
}

impl From<&Caller> for WaitOwner {
    fn from(caller: &Caller) -> Self {
        match (&caller.identity, caller.remote) {
            (Some(identity), _) => Self::Identity(identity.clone()),
            (None, Some(remote)) => Self::Host(origin(remote.ip())),
            (None, None) => Self::Unnamed,
        }
    }
}

/// A wait that counts. It is given back on drop.
#[derive(Debug)]
pub(crate) struct CountedWait {
    waits: Arc<ClientWaits>,
    owner: WaitOwner,
}

impl ClientWaits {
    /// No waits yet.
    pub(crate) fn new(limit: ClientWaitLimit) -> Self {
        Self { limit, counts: Mutex::default() }
    }

    /// Counts a wait of this caller. Fails if too many count already.
    pub(crate) fn begin(self: &Arc<Self>, caller: &Caller) -> Result<CountedWait, Error> {
        let owner = WaitOwner::from(caller);
        let mut counts = self.counts();
        let of_owner = counts.by_owner.get(&owner).copied().unwrap_or_default();
        let of_others = counts.all - of_owner;
        if of_owner >= self.limit.share(of_others) {
            return Err(self.limit.reached());
        }
        counts.all += 1;
        *counts.by_owner.entry(owner.clone()).or_default() += 1;
        Ok(CountedWait { waits: Arc::clone(self), owner })
    }

    /// No code panics while it holds the lock.
    fn counts(&self) -> MutexGuard<'_, WaitCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientWaitLimit {
    /// How many one client may have, while others have this number.
    fn share(self, of_others: usize) -> usize {
        match self {
            Self::AtNode(most) => most.saturating_sub(of_others) / 2,
            Self::PassedOn(most) => most,
        }
    }

    fn reached(self) -> Error {
        match self {
            Self::AtNode(most) => {
                NodeLimit::WaitsAtNode.note();
                Error::too_many_waits_at_node(most)
            }
            Self::PassedOn(most) => {
                NodeLimit::ForwardedWaits.note();
                Error::too_many_forwarded_waits(most)
            }
        }
    }
}

impl Drop for CountedWait {
    fn drop(&mut self) {
        let mut counts = self.waits.counts();
        counts.all -= 1;
        if let Some(count) = counts.by_owner.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                counts.by_owner.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        api::{FailureReason, Retry},
        service::WaitLimits,
    };

    const FOR_ONE: usize = WaitLimits::REAL.passed_on_for_one;

    fn at(address: &str) -> Caller {
        Caller { remote: address.parse().ok(), ..Caller::default() }
    }

    fn identified(name: &str, address: &str) -> Caller {
        Caller { identity: Identity::new(name).ok(), ..at(address) }
    }

    /// Begins as many as the caller may.
    fn fill(waits: &Arc<ClientWaits>, caller: &Caller) -> Vec<CountedWait> {
        std::iter::from_fn(|| waits.begin(caller).ok()).collect()
    }

    #[test]
    fn one_client_has_its_share_of_the_places_however_it_connects() {
        let waits = Arc::new(ClientWaits::new(ClientWaitLimit::PassedOn(FOR_ONE)));
        let ports = (1..).take(FOR_ONE).map(|port: u16| at(&format!("10.0.0.7:{port}")));
        let mut begun: Vec<_> = ports.filter_map(|caller| waits.begin(&caller).ok()).collect();
        assert_eq!(begun.len(), FOR_ONE);
        let refused = waits.begin(&at("10.0.0.7:9999")).expect_err("it has its share");
        assert_eq!((refused.reason, refused.retry), (FailureReason::Overloaded, Retry::Safe));

        let ann = identified("ann", "10.0.0.7:1");
        let others = [at("10.0.0.8:1"), ann, Caller::default()].map(|caller| waits.begin(&caller).expect("another"));
        begun.pop();
        begun.push(waits.begin(&at("10.0.0.7:1")).expect("one has ended"));
        drop((begun, others));
        assert!(waits.counts().by_owner.is_empty());
        assert_eq!(waits.counts().all, 0);
    }

    #[test]
    fn all_clients_together_have_the_places_of_the_node_and_each_leaves_some() {
        let waits = Arc::new(ClientWaits::new(ClientWaitLimit::AtNode(96)));
        let first = fill(&waits, &at("10.0.0.7:1"));
        let second = fill(&waits, &identified("ann", "10.0.0.7:2"));
        let third = fill(&waits, &at("10.0.0.8:1"));
        assert_eq!([&first, &second, &third].map(Vec::len), [48, 24, 12]);
        let refused = waits.begin(&at("10.0.0.7:3")).expect_err("it has half");
        assert_eq!(refused.about("limit"), Some("waits_at_node"));
        assert_eq!((refused.reason, refused.retry), (FailureReason::Overloaded, Retry::Safe));

        // What one gives back, another may have.
        drop(second);
        assert_eq!(fill(&waits, &at("10.0.0.8:2")).len(), 12);
        drop((first, third));
        assert_eq!(waits.counts().all, 0);
    }
}
