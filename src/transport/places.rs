//! Places: which connections stay when there are more of them than the limit.
//!
//! Every connection is accepted at once: in the operating system's queue it could wait for ever behind idle ones. It begins as an
//! *arrival*, and is *established* by its first call. Each of the two kinds has its own places, so connections that never call, however
//! many, neither keep out nor displace connections that do.
//!
//! When places are short, another connection is closed:
//! * for an arrival: another arrival, of the address that has the most of them; those without a complete handshake first, then the
//!   oldest.
//! * for an arrival that makes its first call: the established connection that has been without an open call for the longest time;
//!   preferably of an address that has more than half of all places. If all have open calls, such an address loses its youngest
//!   connection to another address. Otherwise the new connection is refused, with an error.
//!
//! Some connections from this machine ([`OPERATORS`]) may be established beyond the limit, for operators.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::{sync::Notify, time::Instant};

use super::{complaints::Complaints, connection::Watched};

/// Arrivals have this part of all places: 1 / `ARRIVALS_PART`.
const ARRIVALS_PART: usize = 8;
/// Established connections from this machine that are allowed beyond the limit.
const OPERATORS: usize = 8;

/// The places of a port.
#[derive(Clone, Debug)]
pub(super) struct Places {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    arrivals_max: usize,
    established_max: usize,
    began: Instant,
    books: Mutex<Books>,
    gave_way: Complaints,
    refused: Complaints,
}

#[derive(Debug, Default)]
struct Books {
    /// Ids ascend in order of arrival.
    last_id: u64,
    arrivals: BTreeMap<u64, Arc<Place>>,
    established: BTreeMap<u64, Arc<Place>>,
}

/// An order to a connection's task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    Stay,
    /// Send GOAWAY, answer the open calls, and end.
    Finish,
    /// End at once: another connection gets the place.
    GiveWay,
}

/// The place of one connection.
#[derive(Debug)]
pub(super) struct Place {
    id: u64,
    origin: IpAddr,
    shared: Arc<Shared>,
    pub(super) watched: Arc<Watched>,
    is_established: AtomicU8,
    order: AtomicU8,
    ordered: Notify,
    open_calls: AtomicUsize,
    /// Milliseconds since the port was opened.
    idle_since_ms: AtomicU64,
}

/// Frees the place when it is dropped.
#[derive(Debug)]
pub(super) struct Occupied(pub(super) Arc<Place>);

/// An open call.
#[derive(Debug)]
pub(super) struct Call(Arc<Place>);

/// The refusal of a connection: all places have connections in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Full {
    pub(super) established_max: usize,
}

impl Places {
    pub(super) fn new(connections_max: usize) -> Self {
        let arrivals_max = (connections_max / ARRIVALS_PART).max(1);
        let shared = Shared {
            arrivals_max,
            established_max: connections_max.saturating_sub(arrivals_max).max(1),
            began: Instant::now(),
            books: Mutex::default(),
            gave_way: Complaints::default(),
            refused: Complaints::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A place for a newly accepted connection.
    pub(super) fn admit(&self, remote: IpAddr, watched: Watched) -> Occupied {
        let mut books = self.shared.books();
        if books.arrivals.len() >= self.shared.arrivals_max {
            self.shared.one_arrival_gives_way(&mut books, Some(origin(remote)));
        }
        books.last_id += 1;
        let place = Arc::new(Place {
            id: books.last_id,
            origin: origin(remote),
            shared: Arc::clone(&self.shared),
            watched: Arc::new(watched),
            is_established: AtomicU8::new(NO),
            order: AtomicU8::new(Order::Stay as u8),
            ordered: Notify::new(),
            open_calls: AtomicUsize::new(0),
            idle_since_ms: AtomicU64::new(self.shared.now_ms()),
        });
        books.arrivals.insert(place.id, Arc::clone(&place));
        Occupied(place)
    }

    /// Ends one connection when file descriptors have run out: an arrival, or else the longest idle one, if there is one without an open
    /// call.
    pub(super) fn make_room(&self) {
        let mut books = self.shared.books();
        if self.shared.one_arrival_gives_way(&mut books, None) {
            return;
        }
        if let Some(id) = longest_idle(&books.established, None)
            && let Some(place) = books.established.remove(&id)
        {
            self.shared.gives_way(&place);
        }
    }
}

impl Shared {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no code panics with the lock held")
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn gives_way(&self, place: &Place) {
        place.tell(Order::GiveWay);
        if let Some(count) = self.gave_way.count() {
            let places = self.arrivals_max + self.established_max;
            let (remote, is_established) = (place.origin, place.is_established());
            tracing::warn!(count, %remote, is_established, places, "connections were closed to admit new ones: all places were taken");
        }
    }

    fn one_arrival_gives_way(&self, books: &mut Books, newcomer: Option<IpAddr>) -> bool {
        let mut of = counts(&books.arrivals);
        if let Some(newcomer) = newcomer {
            *of.entry(newcomer).or_default() += 1;
        }
        let candidates = books.arrivals.values();
        let rank =
            |place: &&Arc<Place>| (std::cmp::Reverse(of[&place.origin]), place.watched.has_shaken_hands(), place.id);
        let Some(id) = candidates.min_by_key(rank).map(|place| place.id) else { return false };
        if let Some(place) = books.arrivals.remove(&id) {
            self.gives_way(&place);
        }
        true
    }

    /// Makes room for an established connection of `newcomer`, if one can be closed.
    fn one_established_gives_way(&self, books: &mut Books, newcomer: IpAddr) -> bool {
        let heaviest = counts(&books.established).into_iter().max_by_key(|(_, count)| *count);
        let heaviest = heaviest.filter(|(_, count)| 2 * count > self.established_max).map(|(origin, _)| origin);
        let youngest_of = |origin| books.established.values().rev().find(|place| place.origin == origin);
        let goes = longest_idle(&books.established, heaviest)
            .or_else(|| longest_idle(&books.established, None))
            .or_else(|| heaviest.filter(|origin| *origin != newcomer).and_then(youngest_of).map(|place| place.id));
        let Some(place) = goes.and_then(|id| books.established.remove(&id)) else { return false };
        self.gives_way(&place);
        true
    }
}

fn counts(places: &BTreeMap<u64, Arc<Place>>) -> HashMap<IpAddr, usize> {
    let mut counts = HashMap::new();
    places.values().for_each(|place| *counts.entry(place.origin).or_default() += 1);
    counts
}

fn longest_idle(places: &BTreeMap<u64, Arc<Place>>, of: Option<IpAddr>) -> Option<u64> {
    let idle = places.values().filter(|place| of.is_none_or(|of| place.origin == of) && place.open_calls() == 0);
    idle.min_by_key(|place| (place.idle_since_ms.load(Relaxed), place.id)).map(|place| place.id)
}

/// The origin that an address is counted for: all 2^64 addresses of an IPv6 network are one.
fn origin(address: IpAddr) -> IpAddr {
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

impl Place {
    /// Begins a call; the first one establishes the connection.
    pub(super) fn call(self: &Arc<Self>) -> Result<Call, Full> {
        if self.is_established.load(Relaxed) != YES {
            self.establish()?;
        }
        self.open_calls.fetch_add(1, Relaxed);
        Ok(Call(Arc::clone(self)))
    }

    fn establish(&self) -> Result<(), Full> {
        let shared = &self.shared;
        let full = Full { established_max: shared.established_max };
        if self.is_established.load(Relaxed) == REFUSED {
            return Err(full);
        }
        let mut books = shared.books();
        // `None`: the connection was closed for another one meanwhile.
        let Some(place) = books.arrivals.remove(&self.id) else { return Ok(()) };
        let extra = if self.origin.is_loopback() { OPERATORS } else { 0 };
        let has_room = books.established.len() < shared.established_max
            || shared.one_established_gives_way(&mut books, self.origin)
            || books.established.len() < shared.established_max + extra;
        if !has_room {
            books.arrivals.insert(self.id, place);
            self.is_established.store(REFUSED, Relaxed);
            self.tell(Order::Finish);
            if let Some(count) = shared.refused.count() {
                let (remote, places) = (self.origin, shared.established_max);
                tracing::warn!(count, %remote, places, "connections were refused: all places have connections in use");
            }
            return Err(full);
        }
        self.is_established.store(YES, Relaxed);
        books.established.insert(self.id, place);
        Ok(())
    }

    pub(super) fn is_established(&self) -> bool {
        self.is_established.load(Relaxed) == YES
    }

    pub(super) fn open_calls(&self) -> usize {
        self.open_calls.load(Relaxed)
    }

    /// When the last call ended, or the connection arrived.
    pub(super) fn idle_since(&self) -> Instant {
        self.shared.began + std::time::Duration::from_millis(self.idle_since_ms.load(Relaxed))
    }

    fn tell(&self, order: Order) {
        self.order.store(order as u8, Relaxed);
        self.ordered.notify_one();
    }

    /// Waits for the next order. Only the latest one counts.
    pub(super) async fn ordered(&self) -> Order {
        self.ordered.notified().await;
        match self.order.load(Relaxed) {
            order if order == Order::GiveWay as u8 => Order::GiveWay,
            order if order == Order::Finish as u8 => Order::Finish,
            _ => Order::Stay,
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let place = &self.0;
        // Before the count, so that a reader who sees no open call also sees the time.
        place.idle_since_ms.store(place.shared.now_ms(), Relaxed);
        place.open_calls.fetch_sub(1, Relaxed);
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        let mut books = self.0.shared.books();
        books.arrivals.remove(&self.0.id);
        books.established.remove(&self.0.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use tokio::time::advance;

    use super::*;

    /// Two places for arrivals, 14 for established connections.
    const PLACES: usize = 16;
    const ESTABLISHED: usize = 14;

    fn come(places: &Places, last: u8) -> Occupied {
        places.admit(IpAddr::from([10, 0, 0, last]), Watched::new(1))
    }

    fn order(place: &Occupied) -> Order {
        place.0.ordered().now_or_never().unwrap_or(Order::Stay)
    }

    fn call(place: &Occupied) -> Call {
        place.0.call().expect("there is room")
    }

    fn established(places: &Places, last: u8) -> Occupied {
        let place = come(places, last);
        drop(call(&place));
        place
    }

    #[tokio::test(start_paused = true)]
    async fn arrivals_give_way_to_each_other_and_nobody_established_does() {
        let places = Places::new(PLACES);
        let established = established(&places, 1);
        let mut flood: Vec<_> = (0..100).map(|_| come(&places, 2)).collect();
        assert!(flood.iter().rev().skip(2).all(|place| order(place) == Order::GiveWay));
        assert!(flood.iter().rev().take(2).all(|place| order(place) == Order::Stay));
        // The connection of another address stays, whichever connections come later.
        let other = come(&places, 3);
        flood.extend((0..100).map(|_| come(&places, 2)));
        assert_eq!((order(&other), order(&established)), (Order::Stay, Order::Stay));
        let _call = call(&other);
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_gives_way_to_who_calls() {
        let places = Places::new(PLACES);
        let all = [(); ESTABLISHED].map(|()| established(&places, 1));
        let _busy: Vec<_> = all.iter().skip(2).map(call).collect();
        advance(Duration::from_secs(1)).await;
        drop(call(&all[0]));
        let newcomer = come(&places, 2);
        let _call = call(&newcomer);
        assert_eq!((order(&all[0]), order(&all[1])), (Order::Stay, Order::GiveWay));
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_that_uses_all_places_gives_way_to_another_and_refuses_itself() {
        let places = Places::new(PLACES);
        let all = [(); ESTABLISHED].map(|()| established(&places, 1));
        let _busy: Vec<_> = all.iter().map(call).collect();
        let same = come(&places, 1);
        assert!(same.0.call().is_err() && same.0.call().is_err(), "it is refused, however often it asks");
        assert_eq!(order(&same), Order::Finish);
        let other = come(&places, 2);
        let _call = call(&other);
        assert_eq!(order(&all[ESTABLISHED - 1]), Order::GiveWay);
        assert!(all.iter().take(ESTABLISHED - 1).all(|place| order(place) == Order::Stay));
    }

    #[tokio::test(start_paused = true)]
    async fn no_busy_one_gives_way_while_no_address_has_more_than_half() {
        let places = Places::new(PLACES);
        let mut address = 0;
        let all = [(); ESTABLISHED].map(|()| {
            address += 1;
            established(&places, address)
        });
        let _busy: Vec<_> = all.iter().map(call).collect();
        assert!(come(&places, 100).0.call().is_err());
        assert!(all.iter().all(|place| order(place) == Order::Stay));
        let operator = places.admit(IpAddr::from([127, 0, 0, 1]), Watched::new(1));
        let _call = call(&operator);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_free_again_once_its_connection_is_gone() {
        let places = Places::new(PLACES);
        for _ in 0..10 * PLACES {
            let place = come(&places, 1);
            drop(call(&place));
            assert_eq!(order(&place), Order::Stay);
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
