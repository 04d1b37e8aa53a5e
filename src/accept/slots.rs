//! Slots: which connections stay when there are more of them than the limit.
//!
//! Every connection is accepted at once, because in the operating system's queue it could wait for ever behind idle ones.
//! It begins as an *arrival*, and is *established* by its first call. Each of the two kinds has its own slots, so
//! connections that never call, however many, neither keep out nor displace connections that do.
//!
//! A port that can wait does not accept while all arrivals are so young that their first request may be on its way
//! ([`Slots::settle_arrivals`]): the clients of a node that has died come to the others all at once, and none of them is idle.
//!
//! When slots are short, another connection is closed:
//! * for an arrival: another arrival, of the address that has the most of them; those without a complete handshake first, then the
//!   oldest.
//! * for an arrival that makes its first call: the established connection that has been without an open call for the longest time;
//!   preferably of an address that has more than half of all slots. If all have open calls, that address loses its youngest
//!   connection to another address. Otherwise the new connection is refused, with an error; or, at a port whose calls are short and change
//!   nothing ([`Slots::refusing_nobody`]), the oldest connection of the address that has the most of them goes.
//!
//! Some connections from this machine ([`OPERATORS`]) may be established beyond the limit, for operators.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{LogThrottle, ReadState, Refusals};
use lockkeeper_planted::Planted;

/// Arrivals have 1 / `ARRIVALS_PART` of all slots, unless the port asks for another number.
const ARRIVALS_PART: usize = 8;
/// The number of connections from this machine that may be established beyond the limit.
const OPERATORS: usize = 8;
/// Time that the first request of an arrival may need, for [`Slots::settle_arrivals`].
const ARRIVAL_GRACE: Duration = Duration::from_millis(100);
/// For how long arrivals are waited for. Under a flood of connections that request nothing, further ones would otherwise wait in the
/// operating system's queue until it is full.
const WAVE: Duration = Duration::from_secs(2);
/// The time between the beginnings of two waits.
const WAVE_PERIOD: Duration = Duration::from_secs(10);

/// The slots of a port.
#[derive(Clone, Debug)]
pub struct Slots {
    shared: Arc<PortSlots>,
}

#[derive(Debug)]
struct PortSlots {
    arrivals_max: usize,
    established_max: usize,
    refuses: bool,
    began: Instant,
    registry: Mutex<SlotRegistry>,
    /// The slot of an arrival is free.
    arrival_left: Notify,
    failed_accepts: LogThrottle,
    gave_way: LogThrottle,
    refused: LogThrottle,
    refusals: Refusals,
}

#[derive(Debug, Default)]
struct SlotRegistry {
    /// Ids ascend in order of arrival.
    last_id: u64,
    /// When arrivals were waited for, after a pause.
    wave: Option<Instant>,
    arrivals: BTreeMap<u64, Arc<Slot>>,
    established: BTreeMap<u64, Arc<Slot>>,
}

/// What a connection's task has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskOrder {
    /// The connection stays.
    Stay,
    /// The task sends GOAWAY, answers the open calls, and ends.
    Finish,
    /// The task ends at once: another connection gets the slot, or the client reads nothing.
    GiveWay,
}

/// The slot of one connection.
#[derive(Debug)]
pub struct Slot {
    id: u64,
    origin: IpAddr,
    shared: Arc<PortSlots>,
    /// What the connection has read.
    pub read_state: Arc<ReadState>,
    is_established: AtomicU8,
    order: AtomicU8,
    ordered: Notify,
    open_calls: AtomicUsize,
    /// When the connection became idle, in milliseconds since the port was opened.
    idle_since_ms: AtomicU64,
}

/// Frees the slot on drop.
#[derive(Debug)]
pub struct SlotGuard(
    /// The slot.
    pub Arc<Slot>,
);

/// An open call.
#[derive(Debug)]
pub struct OpenCall(Arc<Slot>);

/// A connection is refused because all slots have connections in use.
#[derive(Clone, Copy, Debug)]
pub struct NoSlot {
    /// The number of slots for connections in use.
    pub established_max: usize,
}

impl Slots {
    /// Slots for this number of connections. An eighth of them is for arrivals.
    pub fn new(connections_max: usize, refusals: Refusals) -> Self {
        Self::with_arrivals(connections_max / ARRIVALS_PART, connections_max, refusals)
    }

    /// Slots for this number of connections, `arrivals_max` of which are for arrivals.
    pub fn with_arrivals(arrivals_max: usize, connections_max: usize, refusals: Refusals) -> Self {
        Self::with(arrivals_max, connections_max, true, refusals)
    }

    /// Like [`Self::with_arrivals`], for a port that refuses no connection: it also evicts a connection with an open call.
    pub fn refusing_nobody(arrivals_max: usize, connections_max: usize) -> Self {
        Self::with(arrivals_max, connections_max, false, Refusals::default())
    }

    fn with(arrivals_max: usize, connections_max: usize, refuses: bool, refusals: Refusals) -> Self {
        let arrivals_max = arrivals_max.max(1);
        let shared = PortSlots {
            arrivals_max,
            established_max: connections_max.saturating_sub(arrivals_max).max(1),
            refuses,
            failed_accepts: LogThrottle::default(),
            began: Instant::now(),
            registry: Mutex::default(),
            arrival_left: Notify::new(),
            gave_way: LogThrottle::default(),
            refused: LogThrottle::default(),
            refusals,
        };

        Self { shared: Arc::new(shared) }
    }

    /// A slot for a newly accepted connection.
    pub fn admit(&self, remote: IpAddr, read_state: ReadState) -> SlotGuard {
        let mut registry = self.shared.registry();
        if registry.arrivals.len() >= self.shared.arrivals_max {
            self.shared.evict_arrival(&mut registry, Some(origin(remote)));
        }

        registry.last_id += 1;
        let slot = Arc::new(Slot {
            id: registry.last_id,
            origin: origin(remote),
            shared: Arc::clone(&self.shared),
            read_state: Arc::new(read_state),
            is_established: AtomicU8::new(NO),
            order: AtomicU8::new(TaskOrder::Stay as u8),
            ordered: Notify::new(),
            open_calls: AtomicUsize::new(0),
            idle_since_ms: AtomicU64::new(self.shared.now_ms()),
        });

        registry.arrivals.insert(slot.id, Arc::clone(&slot));
        SlotGuard(slot)
    }

    /// Waits while all slots of arrivals are taken and the oldest of them is younger than [`ARRIVAL_GRACE`]: to admit another one would
    /// close one that is about to make its first call. It does so for [`WAVE`] of each [`WAVE_PERIOD`]. Dropping the future changes
    /// nothing.
    pub(crate) async fn settle_arrivals(&self) {
        loop {
            let mut left = pin!(self.shared.arrival_left.notified());
            left.as_mut().enable();

            let Some(until) = self.shared.arrivals_young_until() else { return };
            // After either, the loop checks again.
            let _ = timeout_at(until, left).await;
        }
    }

    pub(crate) fn failed_accepts(&self) -> &LogThrottle {
        &self.shared.failed_accepts
    }

    /// Ends one connection when file descriptors have run out: an arrival, or else the connection that has been idle the
    /// longest. Connections with an open call stay.
    pub fn make_room(&self) {
        let mut registry = self.shared.registry();
        if self.shared.evict_arrival(&mut registry, None) {
            return;
        }
        if let Some(id) = longest_idle(&registry.established, None)
            && let Some(slot) = registry.established.remove(&id)
        {
            self.shared.evict(&slot);
        }
    }
}

impl PortSlots {
    fn registry(&self) -> MutexGuard<'_, SlotRegistry> {
        self.registry.lock().expect("no code panics with the lock held")
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The time until which the oldest arrival is waited for. `None` if it is not young, if a slot is free, or if the port has waited long
    /// enough.
    fn arrivals_young_until(&self) -> Option<Instant> {
        let mut registry = self.registry();
        if registry.arrivals.len() < self.arrivals_max {
            return None;
        }

        let now = Instant::now();
        let (_, oldest) = registry.arrivals.first_key_value()?;
        let until = oldest.idle_since() + ARRIVAL_GRACE;
        if until <= now {
            return None;
        }

        let last_wave = registry.wave.filter(|began| now < *began + WAVE_PERIOD);
        let wave = *registry.wave.insert(last_wave.unwrap_or(now));
        let until = until.min(wave + WAVE);
        (now < until).then_some(until)
    }

    fn evict(&self, slot: &Slot) {
        slot.tell(TaskOrder::GiveWay);
        if let Some(count) = self.gave_way.count() {
            let slots = self.arrivals_max + self.established_max;
            let remote = slot.origin;
            let is_established = slot.is_established();
            tracing::warn!(count, %remote, is_established, slots, "connections were closed to admit new ones: all slots were taken");
        }
    }

    fn evict_arrival(&self, registry: &mut SlotRegistry, newcomer: Option<IpAddr>) -> bool {
        let mut per_origin = counts(&registry.arrivals);
        if let Some(newcomer) = newcomer {
            *per_origin.entry(newcomer).or_default() += 1;
        }

        let candidates = registry.arrivals.values();
        let rank = |slot: &&Arc<Slot>| {
            (std::cmp::Reverse(per_origin[&slot.origin]), slot.read_state.is_handshake_complete(), slot.id)
        };
        let Some(id) = candidates.min_by_key(rank).map(|slot| slot.id) else { return false };
        if let Some(slot) = registry.arrivals.remove(&id) {
            self.evict(&slot);
        }
        true
    }

    /// Makes room for an established connection of `newcomer`, if one can be closed.
    fn evict_established(&self, registry: &mut SlotRegistry, newcomer: IpAddr) -> bool {
        let most = counts(&registry.established).into_iter().max_by_key(|(_, count)| *count);
        let heaviest = most.filter(|(_, count)| 2 * count > self.established_max).map(|(origin, _)| origin);

        let oldest_from = |(origin, _)| registry.established.values().find(|slot| slot.origin == origin);
        let youngest_from = |origin| registry.established.values().rev().find(|slot| slot.origin == origin);

        let goes = longest_idle(&registry.established, heaviest)
            .or_else(|| longest_idle(&registry.established, None))
            .or_else(|| heaviest.filter(|origin| *origin != newcomer).and_then(youngest_from).map(|slot| slot.id))
            .or_else(|| most.filter(|_| !self.refuses).and_then(oldest_from).map(|slot| slot.id));

        let Some(slot) = goes.and_then(|id| registry.established.remove(&id)) else { return false };
        self.evict(&slot);
        true
    }
}

fn counts(slots: &BTreeMap<u64, Arc<Slot>>) -> HashMap<IpAddr, usize> {
    let mut counts = HashMap::new();
    slots.values().for_each(|slot| *counts.entry(slot.origin).or_default() += 1);
    counts
}

fn longest_idle(slots: &BTreeMap<u64, Arc<Slot>>, of: Option<IpAddr>) -> Option<u64> {
    let is_idle = |slot: &Slot| slot.open_calls() == 0 || Planted::BusyConnectionClosed.is_on();
    let idle = slots.values().filter(|slot| of.is_none_or(|of| slot.origin == of) && is_idle(slot));
    idle.min_by_key(|slot| (slot.idle_since_ms.load(Relaxed), slot.id)).map(|slot| slot.id)
}

/// The origin that an address is counted for. All 2^64 addresses of an IPv6 network are one.
pub fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & u128::MAX << 64))
        }
        address @ (IpAddr::V4(_) | IpAddr::V6(_)) => address,
    }
}

const NO: u8 = 0;
const YES: u8 = 1;
const REFUSED: u8 = 2;

impl Slot {
    /// Begins a call. The first call establishes the connection.
    pub fn call(self: &Arc<Self>) -> Result<OpenCall, NoSlot> {
        if self.is_established.load(Relaxed) != YES {
            self.establish()?;
        }
        self.open_calls.fetch_add(1, Relaxed);
        Ok(OpenCall(Arc::clone(self)))
    }

    fn establish(&self) -> Result<(), NoSlot> {
        let shared = &self.shared;
        let full = NoSlot { established_max: shared.established_max };
        if self.is_established.load(Relaxed) == REFUSED {
            return Err(full);
        }

        let mut registry = shared.registry();
        // The arrival is absent if the connection was evicted for another one in the meantime.
        let Some(slot) = registry.arrivals.remove(&self.id) else { return Ok(()) };

        let extra = if self.origin.is_loopback() { OPERATORS } else { 0 };
        let has_room = registry.established.len() < shared.established_max
            || shared.evict_established(&mut registry, self.origin)
            || registry.established.len() < shared.established_max + extra;

        if !has_room {
            // The refused connection stays an arrival, and must finish.
            registry.arrivals.insert(self.id, slot);
            self.is_established.store(REFUSED, Relaxed);
            self.tell(TaskOrder::Finish);
            shared.refusals.tell();
            if let Some(count) = shared.refused.count() {
                let remote = self.origin;
                let slots = shared.established_max;
                tracing::warn!(count, %remote, slots, "connections were refused: all slots have connections in use");
            }
            return Err(full);
        }

        self.is_established.store(YES, Relaxed);
        registry.established.insert(self.id, slot);
        drop(registry);
        shared.arrival_left.notify_waiters();
        Ok(())
    }

    /// The address that the connection counts for. All addresses of an IPv6 network are one.
    pub fn origin(&self) -> IpAddr {
        self.origin
    }

    /// Whether the connection has made a call.
    pub fn is_established(&self) -> bool {
        self.is_established.load(Relaxed) == YES
    }

    /// The calls that are under way.
    pub fn open_calls(&self) -> usize {
        self.open_calls.load(Relaxed)
    }

    /// When the last call ended, or the connection arrived.
    pub fn idle_since(&self) -> Instant {
        self.shared.began + Duration::from_millis(self.idle_since_ms.load(Relaxed))
    }

    /// The connection is to end once its open calls have.
    pub fn finish(&self) {
        // An order to end at once stands.
        if self.order.load(Relaxed) == TaskOrder::Stay as u8 {
            self.tell(TaskOrder::Finish);
        }
    }

    /// The connection is to end at once, with its open calls.
    pub fn close(&self) {
        self.tell(TaskOrder::GiveWay);
    }

    fn tell(&self, order: TaskOrder) {
        self.order.store(order as u8, Relaxed);
        self.ordered.notify_one();
    }

    /// Waits for the next order. Only the latest one counts.
    pub async fn ordered(&self) -> TaskOrder {
        self.ordered.notified().await;
        match self.order.load(Relaxed) {
            order if order == TaskOrder::GiveWay as u8 => TaskOrder::GiveWay,
            order if order == TaskOrder::Finish as u8 => TaskOrder::Finish,
            _ => TaskOrder::Stay,
        }
    }

    /// Returns once the connection must end.
    pub async fn must_end(&self) {
        while self.ordered().await == TaskOrder::Stay {}
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let slot = &self.0;
        // The time comes before the count. A reader who sees no open call also sees the time.
        slot.idle_since_ms.store(slot.shared.now_ms(), Relaxed);
        slot.open_calls.fetch_sub(1, Relaxed);
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let mut registry = self.0.shared.registry();
        registry.arrivals.remove(&self.0.id);
        registry.established.remove(&self.0.id);
        drop(registry);
        self.0.shared.arrival_left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::time::advance;

    use super::*;

    /// Two slots for arrivals, 14 for established connections.
    const SLOTS: usize = 16;
    const ESTABLISHED: usize = 14;

    fn come(slots: &Slots, last: u8) -> SlotGuard {
        slots.admit(IpAddr::from([10, 0, 0, last]), ReadState::new(1))
    }

    fn order(slot: &SlotGuard) -> TaskOrder {
        slot.0.ordered().now_or_never().unwrap_or(TaskOrder::Stay)
    }

    fn call(slot: &SlotGuard) -> OpenCall {
        slot.0.call().expect("there is room")
    }

    fn established(slots: &Slots, last: u8) -> SlotGuard {
        let slot = come(slots, last);
        drop(call(&slot));
        slot
    }

    #[tokio::test(start_paused = true)]
    async fn arrivals_displace_each_other_but_no_established_connection() {
        let slots = Slots::new(SLOTS, Refusals::default());
        let established = established(&slots, 1);
        let mut flood: Vec<_> = (0..100).map(|_| come(&slots, 2)).collect();
        assert!(flood.iter().rev().skip(2).all(|slot| order(slot) == TaskOrder::GiveWay));
        assert!(flood.iter().rev().take(2).all(|slot| order(slot) == TaskOrder::Stay));
        // The connection of another address stays, whichever connections come later.
        let other = come(&slots, 3);
        flood.extend((0..100).map(|_| come(&slots, 2)));
        assert_eq!((order(&other), order(&established)), (TaskOrder::Stay, TaskOrder::Stay));
        let _call = call(&other);
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_waits_while_all_arrivals_are_young() {
        let slots = Slots::new(SLOTS, Refusals::default());
        let first = come(&slots, 1);
        assert!(slots.settle_arrivals().now_or_never().is_some(), "a slot is free");
        let _second = come(&slots, 1);
        let mut settled = pin!(slots.settle_arrivals());
        assert!(futures::poll!(settled.as_mut()).is_pending());
        let _call = call(&first);
        assert!(settled.now_or_never().is_some(), "the first has made its call");

        // Idle connections hold nobody up.
        let _third = come(&slots, 1);
        let began = Instant::now();
        slots.settle_arrivals().await;
        assert!(began.elapsed().abs_diff(ARRIVAL_GRACE) <= Duration::from_millis(1), "{:?}", began.elapsed());
        assert!(slots.settle_arrivals().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_arrivals_is_waited_for_a_part_of_the_time() {
        let slots = Slots::new(SLOTS, Refusals::default());
        let mut waited = Duration::ZERO;
        let began = Instant::now();
        let mut flood = Vec::new();
        while began.elapsed() < 3 * WAVE_PERIOD {
            let now = Instant::now();
            slots.settle_arrivals().await;
            waited += now.elapsed();
            flood.push(come(&slots, 1));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!((2 * WAVE..=3 * WAVE).contains(&waited), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_connection_is_closed_for_a_new_one() {
        let slots = Slots::new(SLOTS, Refusals::default());
        let all = [(); ESTABLISHED].map(|()| established(&slots, 1));
        let _busy: Vec<_> = all.iter().skip(2).map(call).collect();
        advance(Duration::from_secs(1)).await;
        drop(call(&all[0]));
        let newcomer = come(&slots, 2);
        let _call = call(&newcomer);
        assert_eq!((order(&all[0]), order(&all[1])), (TaskOrder::Stay, TaskOrder::GiveWay));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_with_all_slots_yields_to_another_and_is_refused_more() {
        let refused = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&refused);
        let told = Arc::new(move || {
            counts.fetch_add(1, Relaxed);
        });
        let slots = Slots::new(SLOTS, Refusals::told_to(told));
        let all = [(); ESTABLISHED].map(|()| established(&slots, 1));
        let _busy: Vec<_> = all.iter().map(call).collect();
        let same = come(&slots, 1);
        assert!(same.0.call().is_err() && same.0.call().is_err(), "it is refused, however often it asks");
        assert_eq!(refused.load(Relaxed), 1, "one connection, though it asked twice");
        assert_eq!(order(&same), TaskOrder::Finish);
        let other = come(&slots, 2);
        let _call = call(&other);
        assert_eq!(order(&all[ESTABLISHED - 1]), TaskOrder::GiveWay);
        assert!(all.iter().take(ESTABLISHED - 1).all(|slot| order(slot) == TaskOrder::Stay));
    }

    #[tokio::test(start_paused = true)]
    async fn no_busy_connection_is_closed_while_no_address_has_more_than_half() {
        let slots = Slots::new(SLOTS, Refusals::default());
        let mut address = 0;
        let all = [(); ESTABLISHED].map(|()| {
            address += 1;
            established(&slots, address)
        });
        let _busy: Vec<_> = all.iter().map(call).collect();
        assert!(come(&slots, 100).0.call().is_err());
        assert!(all.iter().all(|slot| order(slot) == TaskOrder::Stay));
        let operator = slots.admit(IpAddr::from([127, 0, 0, 1]), ReadState::new(1));
        let _call = call(&operator);
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_refuses_nobody_closes_the_oldest_of_the_address_with_the_most() {
        let slots = Slots::refusing_nobody(2, SLOTS);
        let other = established(&slots, 2);
        let all = [(); ESTABLISHED - 1].map(|()| established(&slots, 1));
        let _busy: Vec<_> = all.iter().chain([&other]).map(call).collect();
        let newcomer = come(&slots, 1);
        let _call = call(&newcomer);
        assert_eq!(
            (order(&all[0]), order(&other), order(&newcomer)),
            (TaskOrder::GiveWay, TaskOrder::Stay, TaskOrder::Stay)
        );
        assert!(all.iter().skip(1).all(|slot| order(slot) == TaskOrder::Stay));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_free_again_once_its_connection_is_gone() {
        let slots = Slots::new(SLOTS, Refusals::default());
        for _ in 0..10 * SLOTS {
            let slot = come(&slots, 1);
            drop(call(&slot));
            assert_eq!(order(&slot), TaskOrder::Stay);
        }
    }

    #[test]
    fn all_addresses_of_an_ipv6_network_are_one_origin() {
        let of = |text: &str| origin(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert!(of("::1").is_loopback());
    }
}
