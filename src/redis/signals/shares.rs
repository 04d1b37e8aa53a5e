//! How many of a node's places each client may have.
//!
//! The places of waiting clients and of channels with subscribers are renewed all the time, and each message is compared with all patterns,
//! so a node has a bounded number of both. **No client takes all**: whoever has proven an identity counts with all others that have proven
//! it, and any other client with all of its address. Each of these may have four fifths of what the others leave free (as buffers of
//! switches are shared: Choudhury and Hahne, "Dynamic queue length thresholds", 1998). So there is room for one more, always.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lockkeeper_accept::origin;

use super::leases::HELD_MAX;
use crate::{RedisStoreError, clients::ListedClient};

/// The places of a node.
const ALL: PlaceCounts = PlaceCounts { places: HELD_MAX, patterns: 1280, pattern_bytes: 40 << 10 };
/// The most that one owner may have of them: what it has if there are no others.
const OWN: PlaceCounts = PlaceCounts {
    places: share(ALL.places, 0),
    patterns: share(ALL.patterns, 0),
    pattern_bytes: share(ALL.pattern_bytes, 0),
};

/// What an owner may have of `all` while others have so many.
const fn share(all: usize, others: usize) -> usize {
    all.saturating_sub(others) * 4 / 5
}

/// Who has places: all clients with an identity, or all clients without one at an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PlaceOwner {
    Identity(Arc<str>),
    Address(IpAddr),
}

impl PlaceOwner {
    /// Whom this client counts for.
    pub(super) fn from_client(client: &ListedClient) -> Self {
        let address = || Self::Address(origin(client.address.ip()));
        client.identity().map_or_else(address, |name| Self::Identity(name.into()))
    }
}

/// Numbers of places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PlaceCounts {
    /// Places of clients that wait, for each of their keys, and channels and patterns with subscribers.
    pub(super) places: usize,
    /// The patterns among them.
    pub(super) patterns: usize,
    /// The bytes of these.
    pub(super) pattern_bytes: usize,
}

impl PlaceCounts {
    fn add(&mut self, more: Self) {
        self.places += more.places;
        self.patterns += more.patterns;
        self.pattern_bytes += more.pattern_bytes;
    }

    fn subtract(&mut self, fewer: Self) {
        self.places -= fewer.places;
        self.patterns -= fewer.patterns;
        self.pattern_bytes -= fewer.pattern_bytes;
    }
}

/// The places of a node, by their owners.
#[derive(Clone, Debug, Default)]
pub(super) struct PlaceShares(Arc<Mutex<CountedPlaces>>);

#[derive(Debug, Default)]
struct CountedPlaces {
    all: PlaceCounts,
    by_owner: BTreeMap<PlaceOwner, PlaceCounts>,
}

/// Places that an owner has. They are given back on drop.
#[derive(Debug)]
pub(super) struct PlaceShare {
    shares: PlaceShares,
    owner: PlaceOwner,
    counts: PlaceCounts,
}

impl PlaceShares {
    /// Takes places. Fails as [`RedisStoreError::TooLarge`] if that would be more than the owner's share.
    pub(super) fn take(&self, owner: &PlaceOwner, wanted: PlaceCounts) -> Result<PlaceShare, RedisStoreError> {
        let mut counted = self.counted();
        let own = counted.by_owner.get(owner).copied().unwrap_or_default();
        let mut others = counted.all;
        others.subtract(own);
        let has_room = |count: fn(PlaceCounts) -> usize| {
            count(wanted) == 0 || count(own) + count(wanted) <= share(count(ALL), count(others))
        };

        if !has_room(|counts| counts.places) {
            return Err(RedisStoreError::TooLarge(format!(
                "a node keeps {} places of waiting clients and channels with subscribers for one address or identity, which has {}, and \
                 fewer while others have many: use fewer, or another node",
                OWN.places, own.places
            )));
        }
        if !has_room(|counts| counts.patterns) || !has_room(|counts| counts.pattern_bytes) {
            return Err(RedisStoreError::TooLarge(format!(
                "a node keeps {} patterns with subscribers and {} bytes of them for one address or identity, which has {} and {}, and \
                 fewer while others have many: subscribe to channels, or at another node",
                OWN.patterns, OWN.pattern_bytes, own.patterns, own.pattern_bytes
            )));
        }

        counted.add(owner, wanted);
        drop(counted);
        Ok(PlaceShare { shares: self.clone(), owner: owner.clone(), counts: wanted })
    }

    /// The counts. No code panics while it holds the lock.
    fn counted(&self) -> MutexGuard<'_, CountedPlaces> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CountedPlaces {
    fn add(&mut self, owner: &PlaceOwner, more: PlaceCounts) {
        self.all.add(more);
        self.by_owner.entry(owner.clone()).or_default().add(more);
    }

    fn subtract(&mut self, owner: &PlaceOwner, fewer: PlaceCounts) {
        let Some(own) = self.by_owner.get_mut(owner) else { return };
        own.subtract(fewer);
        if *own == PlaceCounts::default() {
            self.by_owner.remove(owner);
        }
        self.all.subtract(fewer);
    }
}

impl PlaceShare {
    /// From now on the places are another owner's, however many that one has: they are there already.
    pub(super) fn move_to(&mut self, owner: &PlaceOwner) {
        let mut counted = self.shares.counted();
        counted.subtract(&self.owner, self.counts);
        counted.add(owner, self.counts);
        drop(counted);
        self.owner = owner.clone();
    }
}

impl Drop for PlaceShare {
    fn drop(&mut self) {
        self.shares.counted().subtract(&self.owner, self.counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(places: usize) -> PlaceCounts {
        PlaceCounts { places, ..PlaceCounts::default() }
    }

    fn at(last: u8) -> PlaceOwner {
        PlaceOwner::Address([10, 0, 0, last].into())
    }

    #[test]
    fn an_owner_has_a_part_of_what_others_leave_and_there_is_room_for_one_more() {
        let shares = PlaceShares::default();
        let mut left = ALL.places;
        let mut taken = Vec::new();
        for last in 1..=5 {
            let most = share(left, 0);
            assert!(matches!(shares.take(&at(last), places(most + 1)), Err(RedisStoreError::TooLarge(_))), "{last}");
            taken.push(shares.take(&at(last), places(most)).expect("its share"));
            assert!(shares.take(&at(last), places(1)).is_err(), "{last} has all that it may have");
            left -= most;
        }
        assert_eq!(taken[0].counts.places, OWN.places);
        let name = PlaceOwner::Identity("ann".into());
        let one_more = shares.take(&name, places(1)).expect("room for one more");

        drop((taken, one_more));
        let counted = shares.counted();
        assert!(counted.all == PlaceCounts::default() && counted.by_owner.is_empty());
    }

    #[test]
    fn patterns_count_by_number_and_by_bytes() {
        let shares = PlaceShares::default();
        let take = |owner, patterns, pattern_bytes| {
            shares
                .take(&owner, PlaceCounts { places: patterns, patterns, pattern_bytes })
                .map_err(|error| error.to_string())
        };
        let long = take(at(1), 2, OWN.pattern_bytes).expect("its share");
        let refused = take(at(1), 1, 1).expect_err("its bytes are used up");
        assert!(refused.contains("which has 2 and 32768"), "{refused}");
        shares.take(&at(1), places(1)).expect("other places are not concerned");
        take(at(2), 100, 6000).expect("the share of another");
        drop(long);
        take(at(1), OWN.patterns + 1, 1).expect_err("too many");
    }

    #[test]
    fn places_that_are_moved_count_for_their_new_owner() {
        let shares = PlaceShares::default();
        let mut moved = shares.take(&at(1), places(OWN.places)).expect("its share");
        moved.move_to(&at(2));
        shares.take(&at(2), places(1)).expect_err("it has all that it may have");
        drop(shares.take(&at(1), places(1)).expect("it has none"));
        drop(moved);
        assert!(shares.counted().by_owner.is_empty());
    }
}
