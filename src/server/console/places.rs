//! The places of feeds: a node serves a bounded number at a time, and no client keeps the others out.
//!
//! A client alone may have all places. Once they are taken, a further feed gets the place of the client that has the most of them, if that
//! one has more than the newcomer's client would have then; its oldest feed ends, and says why. Otherwise the further feed is refused. So
//! those who want feeds come to have as many each, and nobody who has no more than his share loses one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio_util::sync::CancellationToken;

/// The places of a node.
#[derive(Debug)]
pub(super) struct FeedPlaces {
    places_max: usize,
    taken: Mutex<TakenPlaces>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    /// Numbers ascend: the oldest feed has the lowest one.
    last_number: u64,
    feeds: BTreeMap<u64, OpenFeed>,
}

#[derive(Debug)]
struct OpenFeed {
    owner: String,
    gives_way: CancellationToken,
}

/// The place of one feed, which is free again once this is dropped.
#[derive(Debug)]
pub(super) struct FeedPlace {
    places: Arc<FeedPlaces>,
    number: u64,
    gives_way: CancellationToken,
}

impl FeedPlaces {
    pub(super) fn new(places_max: usize) -> Self {
        Self { places_max, taken: Mutex::default() }
    }

    /// A place for a feed of this client. Returns `None` if it may have no further one.
    pub(super) fn take(self: &Arc<Self>, owner: String) -> Option<FeedPlace> {
        let mut taken = self.taken();
        if taken.feeds.len() >= self.places_max {
            let oldest = taken.oldest_of_heaviest(&owner)?;
            if let Some(feed) = taken.feeds.remove(&oldest) {
                feed.gives_way.cancel();
            }
        }

        taken.last_number += 1;
        let number = taken.last_number;
        let gives_way = CancellationToken::new();
        taken.feeds.insert(number, OpenFeed { owner, gives_way: gives_way.clone() });
        Some(FeedPlace { places: Arc::clone(self), number, gives_way })
    }

    /// No code panics while it holds this lock.
    fn taken(&self) -> MutexGuard<'_, TakenPlaces> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TakenPlaces {
    /// The oldest feed of the client with the most of them, unless a further feed of `newcomer` would make that one the heaviest.
    fn oldest_of_heaviest(&self, newcomer: &str) -> Option<u64> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for feed in self.feeds.values() {
            *counts.entry(&feed.owner).or_default() += 1;
        }

        let has = counts.get(newcomer).copied().unwrap_or_default();
        let (heaviest, most) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        if most <= has + 1 {
            return None;
        }
        self.feeds.iter().find(|(_, feed)| feed.owner == heaviest).map(|(number, _)| *number)
    }
}

impl FeedPlace {
    /// Returns once another client's feed has this place.
    pub(super) async fn taken_away(&self) {
        self.gives_way.cancelled().await;
    }
}

impl Drop for FeedPlace {
    fn drop(&mut self) {
        self.places.taken().feeds.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has_given_way(place: &FeedPlace) -> bool {
        place.gives_way.is_cancelled()
    }

    #[test]
    fn one_client_has_all_places_until_others_want_some() {
        let places = Arc::new(FeedPlaces::new(4));
        let take = |owner: &str| places.take(owner.to_owned());
        let ann: Vec<_> = (0..4).map(|_| take("ann").expect("a place")).collect();
        assert!(take("ann").is_none(), "all are its own");

        let _bob = [take("bob").expect("a place"), take("bob").expect("a place")];
        assert_eq!(ann.iter().map(has_given_way).collect::<Vec<_>>(), [true, true, false, false]);
        assert!(take("bob").is_none() && take("ann").is_none(), "both have as many");
        let eve = take("eve").expect("a place");
        assert!(take("eve").is_none(), "nobody has more than it would have");

        // Those whose place was taken away free none when they end.
        drop(ann);
        let _three = [take("eve"), take("eve")].map(|place| place.expect("it is free"));
        assert!(!has_given_way(&eve));
    }

    #[test]
    fn a_feed_that_ends_makes_room() {
        let places = Arc::new(FeedPlaces::new(1));
        let first = places.take("ann".to_owned()).expect("a place");
        assert!(places.take("bob".to_owned()).is_none(), "one each is as many");
        drop(first);
        assert!(places.take("bob".to_owned()).is_some());
    }
}
