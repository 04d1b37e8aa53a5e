//! The acquires that wait at this node for clients of other nodes, by client.
//!
//! A follower limits how many it passes on, and a connection between nodes how many calls are open on it. One client could take all of
//! these places, through one follower after the other. A client that waits at the leader itself has the limits of its connection.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::api::{Caller, Error};
use lockkeeper_accept::origin;
use lockkeeper_machine::Identity;
use lockkeeper_planted::NodeLimit;

/// Maximum number of them for one identity or, without one, one host: those that two followers pass on.
pub(super) const FOR_ONE_MAX: usize = 8192;

/// The numbers of waits by client.
#[derive(Debug)]
pub(crate) struct ForwardedWaits {
    for_one_max: usize,
    counts: Mutex<HashMap<WaitOwner, usize>>,
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
pub(crate) struct ForwardedWait {
    waits: Arc<ForwardedWaits>,
    owner: WaitOwner,
}

impl ForwardedWaits {
    /// No waits yet, and up to this number of them for one client.
    pub(crate) fn new(for_one_max: usize) -> Self {
        Self { for_one_max, counts: Mutex::default() }
    }

    /// Counts a wait of this caller. Fails if too many count already.
    pub(crate) fn begin(self: &Arc<Self>, caller: &Caller) -> Result<ForwardedWait, Error> {
        let owner = WaitOwner::from(caller);
        let mut counts = self.counts();
        let count = counts.entry(owner.clone()).or_default();
        if *count >= self.for_one_max {
            NodeLimit::ForwardedWaits.note();
            return Err(Error::too_many_forwarded_waits(self.for_one_max));
        }
        *count += 1;
        Ok(ForwardedWait { waits: Arc::clone(self), owner })
    }

    /// No code panics while it holds the lock.
    fn counts(&self) -> MutexGuard<'_, HashMap<WaitOwner, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ForwardedWait {
    fn drop(&mut self) {
        let mut counts = self.waits.counts();
        if let Some(count) = counts.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{FailureReason, Retry};

    fn at(address: &str) -> Caller {
        Caller { remote: address.parse().ok(), ..Caller::default() }
    }

    #[test]
    fn one_client_has_its_share_of_the_places_however_it_connects() {
        let waits = Arc::new(ForwardedWaits::new(FOR_ONE_MAX));
        let ports = (1..).take(FOR_ONE_MAX).map(|port: u16| at(&format!("10.0.0.7:{port}")));
        let mut begun: Vec<_> = ports.filter_map(|caller| waits.begin(&caller).ok()).collect();
        assert_eq!(begun.len(), FOR_ONE_MAX);
        let refused = waits.begin(&at("10.0.0.7:9999")).expect_err("it has its share");
        assert_eq!((refused.reason, refused.retry), (FailureReason::Overloaded, Retry::Safe));

        let ann = Caller { identity: Identity::new("ann").ok(), ..at("10.0.0.7:1") };
        let others = [at("10.0.0.8:1"), ann, Caller::default()].map(|caller| waits.begin(&caller).expect("another"));
        begun.pop();
        begun.push(waits.begin(&at("10.0.0.7:1")).expect("one has ended"));
        drop((begun, others));
        assert!(waits.counts().is_empty());
    }
}
