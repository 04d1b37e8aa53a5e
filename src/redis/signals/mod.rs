//! Clients that wait for something: for an item of a list or a sorted set, or for a message of a channel. Over all nodes.
//!
//! ```text
//! names       the port's own entries: waiting clients, subscriptions, messages
//! leases      entries that live as long as this node holds them
//! places      the clients of this node that wait for items
//! topics      the clients of this node that have subscribed
//! feed        the writes of the keyspace, as this node applies them, for both
//! publish     messages, and the number of their receivers
//! shares      how many places each client may have
//! masters     changes of the leader, as Sentinel tells them
//! steps       turns for others during long work
//! ```
//!
//! Everything that nodes must agree on is an entry of the keyspace, so it survives a change of leader by itself, and the only thing that a
//! node asks of the store beyond entries is a feed of the writes that it applies ([`RedisStore::watch`]).
//!
//! **Blocking pops.** A client that finds nothing gets an entry `redis/wait/LENGTH/KEY/ID` for each of its keys. The entries of a key stand
//! in the order of their creation, and that is the order of arrival over all nodes. An entry names the type of the values that its client
//! takes: whoever is the oldest of a type may pop. Its node hears by the feed that the key was written or that an older waiter has left,
//! looks whether its client is the first now, and then runs the plain command as a unit of its own. So a pop is one transaction, and no
//! element is taken for a client of another node. If the client goes away meanwhile, the element is put back. A client that comes while
//! others wait also waits behind them. The timeout is answered a little early, since clients of Redis give up at the same moment.
//!
//! **Channels.** A node that has subscribers of a channel has an entry `redis/channel/LENGTH/NAME/NODE` with their number
//! (`redis/pattern/…` for a pattern), and a subscription is acknowledged after that entry is committed. PUBLISH adds up the numbers, which
//! are those of all nodes. If there are any, it writes the message as an entry that ends at once; each node finds it in its feed. So all
//! subscribers get the messages in the order of the log, and a message that was published after an acknowledgement arrives, unless the
//! connection ends. A node that may miss messages ends the connections of its subscribers: all of them if it has lost its feed, and those
//! of a topic before its own entry for the topic can have ended, since then nobody publishes for them. So whoever is still connected has
//! missed nothing, and is still counted by all nodes: some libraries take a subscription for a lock.
//!
//! **Leases.** These entries end by themselves a few seconds after their node has stopped to renew them: waiters of a dead node hold up
//! the others for that long, and its subscribers are counted for that long. During an election cluster time stands still, and they stay.
//!
//! **Left out:** a plain LPOP takes an item before the clients that wait for it have heard of it (in Redis it cannot come between); an item
//! that is put back has the list's place, but a key that was gone with its last item comes back without its time to live; sharded channels
//! and keyspace notifications; BLMPOP and BZMPOP.

mod feed;
mod leases;
mod masters;
mod names;
mod places;
mod publish;
mod shares;
mod steps;
mod topics;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lockkeeper_planted::Planted;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{RedisCaller, RedisStore, RedisStoreError, clients::ListedClient, data::DatumKind};
use feed::{FeedNumber, WriteFeed};
use leases::{LeaseChanges, Leases, LeasesWritten};
pub(crate) use places::{LocalPlace, WaiterStanding};
pub(crate) use publish::{
    channels_with_receivers, count_receivers, count_subscribers, list_topics, message_write, publish,
};
pub(crate) use steps::WorkSteps;
pub(crate) use topics::{ChannelMessage, Inbox, Outbox, Topic};
use {
    places::LocalPlaces,
    shares::{PlaceCounts, PlaceOwner, PlaceShares},
    topics::Topics,
};

/// Time limit of a call of the store that the port makes for itself.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// The clients of a node that wait, and what is done for them.
pub(crate) struct NodeSignals<S> {
    store: S,
    /// The name of this node among the entries: of this process only.
    node: String,
    /// The names under which clients of Sentinel know the leader.
    master_names: Vec<String>,
    shared: Arc<SharedSignals>,
    /// What runs while the node runs, from the first client on that waits.
    tasks: Mutex<JoinSet<()>>,
}

/// What the tasks of a node share.
struct SharedSignals {
    feed: WriteFeed,
    leases: Leases,
    shares: PlaceShares,
    places: LocalPlaces,
    topics: Topics,
}

impl<S: RedisStore> NodeSignals<S> {
    pub(crate) fn new(store: S, seed: u64, master_names: Vec<String>) -> Self {
        let shares = PlaceShares::default();
        let shared = SharedSignals {
            feed: WriteFeed::default(),
            leases: Leases::default(),
            places: LocalPlaces::default(),
            topics: Topics::new(shares.clone()),
            shares,
        };
        let node = format!("{seed:016x}");
        Self { store, node, master_names, shared: Arc::new(shared), tasks: Mutex::default() }
    }

    /// Waits until this node hears of all writes that are made from now on.
    async fn listen(&self, deadline: Instant) -> Result<FeedNumber, RedisStoreError> {
        {
            let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
            if tasks.is_empty() {
                tasks.spawn(feed::follow(self.store.clone(), Arc::clone(&self.shared)));
                tasks.spawn(leases::keep(self.store.clone(), Arc::clone(&self.shared)));
                tasks.spawn(end_lapsed_subscriptions(Arc::clone(&self.shared)));
                let names = self.master_names.clone();
                tasks.spawn(masters::follow(self.store.clone(), Arc::clone(&self.shared), names));
            }
        }
        self.shared.feed.live(deadline).await
    }

    /// Has a client wait for values of a type in these keys, which are named as in the store. It has its place in the queue of each when
    /// this returns. Fails if too many clients of this node wait, or too many of its identity or address.
    pub(crate) async fn enter(
        &self,
        client: &ListedClient,
        keys: &[Vec<u8>],
        kind: DatumKind,
        deadline: Instant,
    ) -> Result<LocalPlace, RedisStoreError> {
        self.listen(deadline).await?;
        let owner = PlaceOwner::from_client(client);
        let wanted = PlaceCounts { places: keys.len(), ..PlaceCounts::default() };
        let (place, written) = {
            let _turn = self.shared.leases.take_turn();
            let share = self.shared.shares.take(&owner, wanted)?;
            self.shared.leases.ensure_room(keys.iter().cloned())?;
            LocalPlace::enter(&self.shared, &self.node, keys, kind, share)
        };

        written.by(deadline).await?;
        Ok(place)
    }

    /// Whether clients wait for values of this type in one of these keys already. Fails if too many wait for a key, whatever they take.
    pub(crate) async fn has_waiters(&self, keys: &[Vec<u8>], kind: DatumKind) -> Result<bool, RedisStoreError> {
        let mut has_some = false;
        for key in keys {
            let waiters = places::waiters(&self.store, key).await?;
            let count = waiters.len();
            if count >= places::WAITERS_MAX {
                return Err(RedisStoreError::TooLarge(format!(
                    "{count} clients wait for the same key, and no more may: have fewer wait, or use several keys"
                )));
            }
            has_some |= waiters.iter().any(|waiter| waiter.takes(kind));
        }
        Ok(has_some)
    }

    /// Which of its keys a waiting client may take from: those for which it is the first.
    pub(crate) async fn standing(&self, place: &LocalPlace) -> Result<WaiterStanding, RedisStoreError> {
        place.standing(&self.store).await
    }

    /// Adds a subscriber. Returns after all nodes can count it. Fails as [`RedisStoreError::TooLarge`] if there are too many; then nothing
    /// was done.
    pub(crate) async fn subscribe(
        &self,
        topics: &[Topic],
        outbox: &Outbox,
        deadline: Instant,
    ) -> Result<(), RedisStoreError> {
        let feed = self.listen(deadline).await?;
        let written = {
            let _turn = self.shared.leases.take_turn();
            self.shared.leases.ensure_room(topics.iter().map(|topic| names::receiver(topic, &self.node)))?;
            let counts = self.shared.topics.add(topics, outbox)?;
            self.note_counts(topics.iter().zip(counts))
        };
        written.by(deadline).await?;
        // If the feed ends later, it ends this connection.
        self.shared.feed.ensure_present(feed)
    }

    /// Removes a subscriber. Returns after no node counts it any more.
    pub(crate) async fn unsubscribe(
        &self,
        topics: &[Topic],
        client: u64,
        deadline: Instant,
    ) -> Result<(), RedisStoreError> {
        self.end_subscriptions(topics, client).by(deadline).await
    }
}

impl<S> NodeSignals<S> {
    /// Ends what runs for waiting clients, as the end of the process does.
    #[cfg(test)]
    pub(crate) fn stop(&self) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
    }

    /// Gives a message to the subscribers of this node, as its feed does.
    #[cfg(test)]
    pub(crate) async fn deliver(&self, channel: &[u8], message: &[u8]) {
        self.shared.topics.deliver(channel, message, &mut WorkSteps::default()).await;
    }

    /// Removes a subscriber, and has it no longer counted soon.
    pub(crate) fn drop_subscriptions(&self, topics: &[Topic], client: u64) {
        drop(self.end_subscriptions(topics, client));
    }

    fn end_subscriptions(&self, topics: &[Topic], client: u64) -> LeasesWritten {
        // Without the turn, the smaller number of subscribers could be noted after the greater one of a subscriber that comes now.
        let _turn = self.shared.leases.take_turn();
        let counts = topics.iter().map(|topic| (topic, self.shared.topics.remove(topic, client)));
        self.note_counts(counts)
    }

    /// Has the numbers of this node's subscribers written.
    fn note_counts<'a>(&self, counts: impl Iterator<Item = (&'a Topic, usize)>) -> LeasesWritten {
        let noted = |count: usize| (count > 0).then(|| count.to_string().into_bytes());
        let changes = counts.map(|(topic, count)| (names::receiver(topic, &self.node), noted(count)));
        self.shared.leases.change(changes.collect::<LeaseChanges>())
    }
}

/// Ends the connections of subscribers that others may not count any more. Never returns.
async fn end_lapsed_subscriptions(shared: Arc<SharedSignals>) {
    loop {
        let (lapsed, next) = shared.leases.take_lapsed(Instant::now());
        for topic in lapsed.iter().filter_map(|key| names::topic(key)) {
            if !Planted::RedisLapsedSubscriberKept.is_on() {
                shared.topics.disconnect(&topic, "this node could not have its subscription renewed in time");
            }
        }
        sleep_until(next).await;
    }
}

/// The port itself, as a caller of the store.
pub(crate) fn port() -> RedisCaller {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    RedisCaller { identity: None, address, deadline: Instant::now() + CALL_TIMEOUT, is_port: true }
}
