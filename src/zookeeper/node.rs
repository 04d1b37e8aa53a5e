//! What all connections of a node share.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use lockkeeper_accept::ArrivingBytes;
use tokio::{
    sync::{Mutex as AsyncMutex, OnceCell},
    task::JoinSet,
    time::{Duration, Instant, sleep},
};

use crate::{
    NumberedSession, ZookeeperCaller, ZookeeperOptions, ZookeeperStats, ZookeeperStore, ZookeeperStoreError,
    password::PasswordKey,
    stats::StatCounters,
    watches::{WatchHub, WatchLimits},
};

/// Pause before another feed is asked for.
const FEED_PAUSE: Duration = Duration::from_millis(100);
/// How often sessions are looked at: whether this node may still answer for them, and whether those without a connection must end.
const SWEEP_PAUSE: Duration = Duration::from_millis(100);
/// Time limit of a call of the store that the port makes for itself.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// Sessions that are ended at a time after their grace.
const ENDED_AT_ONCE: usize = 64;

/// A session whose connection was closed, and which ends soon.
#[derive(Debug)]
struct AbandonedSession {
    due: Instant,
    /// When it ends by itself.
    until: Instant,
    attached: NumberedSession,
    address: SocketAddr,
}

/// The state that all connections of a node share.
pub(crate) struct ZookeeperNode<S> {
    pub(crate) store: S,
    pub(crate) options: ZookeeperOptions,
    pub(crate) hub: WatchHub,
    /// The budget for events that are not read.
    pub(crate) events: ArrivingBytes,
    pub(crate) stats: StatCounters,
    key: OnceCell<PasswordKey>,
    abandoned: Mutex<Vec<AbandonedSession>>,
    /// What the nodes were counted last. Its lock is held while they are counted: once at a time.
    pub(crate) counted: AsyncMutex<Option<CountedZnodes>>,
}

/// The number of nodes in a state of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedZnodes {
    /// The revision of the state.
    pub(crate) revision: u64,
    /// The time until which the count is also used for later states.
    pub(crate) until: Instant,
    /// The number of all nodes.
    pub(crate) nodes: u64,
    /// The number of ephemeral nodes, which end with their session.
    pub(crate) ephemerals: u64,
}

impl<S: ZookeeperStore> ZookeeperNode<S> {
    /// Makes the state of a node.
    pub(crate) fn new(store: S, options: ZookeeperOptions) -> Self {
        let limits = WatchLimits { per_connection: options.connection_watches_max, bytes: options.watches_bytes_max };
        Self {
            store,
            hub: WatchHub::new(limits),
            events: ArrivingBytes::new(options.events_bytes_max),
            stats: StatCounters::default(),
            key: OnceCell::new(),
            abandoned: Mutex::default(),
            counted: AsyncMutex::default(),
            options,
        }
    }

    /// What passwords are made with.
    pub(crate) async fn password_key(&self) -> Result<&PasswordKey, ZookeeperStoreError> {
        self.key.get_or_try_init(|| async { self.store.secret().await.map(PasswordKey::new) }).await
    }

    /// The counters of this node.
    pub(crate) fn stats(&self) -> ZookeeperStats {
        let sessions = self.hub.sessions();
        let mut distinct: Vec<_> = sessions.iter().map(|attached| attached.session).collect();
        distinct.dedup();
        let watches = self.hub.with_watches(|watches| watches.counts().0);

        ZookeeperStats {
            connections: sessions.len() as u64,
            sessions: distinct.len() as u64,
            watches: watches as u64,
            ..self.stats.snapshot()
        }
    }

    /// Notes that the connection of a session was closed without an end of the session, which ends after this grace.
    pub(crate) fn note_abandoned(
        &self,
        attached: NumberedSession,
        address: SocketAddr,
        ttl: Duration,
        grace: Duration,
    ) {
        let now = Instant::now();
        let abandoned = AbandonedSession { due: now + grace, until: now + ttl, attached, address };
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner).push(abandoned);
    }

    /// Follows the feed of the store for as long as the port is open.
    pub(crate) async fn follow_feed(self: Arc<Self>) {
        loop {
            match self.store.feed().await {
                Ok(mut feed) => {
                    self.hub.begin(feed.after);
                    while let Some(step) = feed.steps.recv().await {
                        self.hub.tell(&step, &|caller, key| self.store.may_read(caller, key));
                    }
                    tracing::debug!("the feed of applied changes has ended: the connections of this node are closed");
                    self.hub.end();
                }
                Err(failure) => tracing::debug!(%failure, "cannot follow the changes that this node applies"),
            }

            // Without a feed this node serves no client: connects wait for it until they time out.
            sleep(FEED_PAUSE).await;
        }
    }

    /// Removes the watches of ended connections for as long as the port is open.
    pub(crate) async fn clear_watches(self: Arc<Self>) {
        self.hub.clear_leaving().await;
    }

    /// Looks at all sessions again and again: one timer for all of them, however many are idle.
    pub(crate) async fn sweep_sessions(self: Arc<Self>) {
        let mut ending = JoinSet::new();
        loop {
            sleep(SWEEP_PAUSE).await;
            self.hub.end_unvouched(|attached| self.store.vouches_for(attached));
            while ending.try_join_next().is_some() {}

            for abandoned in self.take_abandoned(ENDED_AT_ONCE.saturating_sub(ending.len())) {
                let node = Arc::clone(&self);
                ending.spawn(async move {
                    let AbandonedSession { attached, address, .. } = abandoned;
                    let caller = ZookeeperCaller { address, ..port() };
                    // A session that was attached again meanwhile has another number, and stays.
                    if let Err(failure) = node.store.close(&caller, attached).await {
                        tracing::debug!(%failure, "a session without a connection ends by its timeout");
                    }
                });
            }
        }
    }

    fn take_abandoned(&self, count: usize) -> Vec<AbandonedSession> {
        let mut abandoned = self.abandoned.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        abandoned.retain(|session| now < session.until);
        let mut room = count;
        let is_taken = |session: &mut AbandonedSession| {
            let is_taken = session.due <= now && room > 0;
            room -= usize::from(is_taken);
            is_taken
        };
        abandoned.extract_if(.., is_taken).collect()
    }
}

/// The port itself, as a caller of the store.
pub(crate) fn port() -> ZookeeperCaller {
    let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
    ZookeeperCaller { identity: None, address, deadline: Instant::now() + CALL_TIMEOUT, is_port: true }
}
