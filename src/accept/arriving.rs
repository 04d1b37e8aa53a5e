//! How many bytes of requests may wait in memory for the rest of them, or for their answers.
//!
//! A client can send most of a large request and stop, on as many connections and calls as it likes. The bytes that have arrived take
//! memory of this process. Therefore they count against a limit of the port. One address, or one IPv6 network, may use half of the bytes
//! that the others leave free. The first [`FREE_BYTES`] of each request do not count: a small request is served whatever the large ones
//! take.

use std::{
    collections::HashMap,
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::slots::origin;

/// The bytes of a request that do not count.
pub const FREE_BYTES: usize = 4 << 10;

/// The limit of a port for the bytes of requests that are not answered yet.
#[derive(Clone, Debug)]
pub struct ArrivingBytes {
    shared: Arc<PortBytes>,
}

#[derive(Debug)]
struct PortBytes {
    limit: usize,
    counts: Mutex<WaitingBytes>,
}

#[derive(Debug, Default)]
struct WaitingBytes {
    all: usize,
    by_origin: HashMap<IpAddr, usize>,
}

/// The bytes of one request. They are given back on drop.
#[derive(Debug)]
pub struct ArrivingRequest {
    shared: Arc<PortBytes>,
    origin: IpAddr,
    counted: usize,
}

/// Further bytes of a request are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyBytes {
    /// The bytes that wait, of all addresses together.
    pub waiting: usize,
    /// The limit of the port.
    pub limit: usize,
}

impl fmt::Display for TooManyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { waiting, limit } = self;
        write!(
            f,
            "{waiting} bytes of requests that are not answered take the memory for them: the limit is {limit}, of which one address may \
             have half of what others leave; send again later, or send smaller requests"
        )
    }
}

impl std::error::Error for TooManyBytes {}

impl ArrivingBytes {
    /// A limit for all addresses together, in bytes.
    pub fn new(limit: usize) -> Self {
        Self { shared: Arc::new(PortBytes { limit, counts: Mutex::default() }) }
    }

    /// Begins a request from this address. It counts for the [`origin`] of the address.
    pub fn request(&self, address: IpAddr) -> ArrivingRequest {
        ArrivingRequest { shared: Arc::clone(&self.shared), origin: origin(address), counted: 0 }
    }
}

impl ArrivingRequest {
    /// Counts that this number of bytes of the request is in memory now. If that is too much, it fails and counts nothing. Fewer bytes than
    /// before are never too much.
    pub fn hold(&mut self, bytes: usize) -> Result<(), TooManyBytes> {
        self.grow(bytes).inspect_err(|_| self.release())
    }

    /// The same, for what stays in memory if it may not grow: if it fails, what was counted before is still counted.
    pub fn grow(&mut self, bytes: usize) -> Result<(), TooManyBytes> {
        let wanted = bytes.saturating_sub(FREE_BYTES);
        if wanted == self.counted {
            return Ok(());
        }

        // Others may have come meanwhile, so that this address has more than its share by now: it may give back a part all the same.
        if wanted < self.counted {
            self.give_back(self.counted - wanted);
            return Ok(());
        }

        let more = wanted - self.counted;
        let limit = self.shared.limit;
        let mut counts = self.shared.counts();
        let of_origin = counts.by_origin.get(&self.origin).copied().unwrap_or_default();
        let of_others = counts.all - of_origin;
        if of_origin.saturating_add(more) > limit.saturating_sub(of_others) / 2 {
            return Err(TooManyBytes { waiting: counts.all, limit });
        }

        counts.all += more;
        *counts.by_origin.entry(self.origin).or_default() += more;
        drop(counts);
        self.counted = wanted;
        Ok(())
    }

    /// Gives all bytes back.
    pub fn release(&mut self) {
        if self.counted > 0 {
            self.give_back(self.counted);
        }
    }

    /// Gives some of the bytes back that are counted.
    fn give_back(&mut self, bytes: usize) {
        self.counted -= bytes;
        let mut counts = self.shared.counts();
        counts.all -= bytes;
        let is_last = counts.by_origin.get_mut(&self.origin).is_none_or(|of_origin| {
            *of_origin -= bytes;
            *of_origin == 0
        });

        if is_last {
            counts.by_origin.remove(&self.origin);
        }
    }
}

impl Drop for ArrivingRequest {
    fn drop(&mut self) {
        self.release();
    }
}

impl PortBytes {
    /// The counts. No code panics while it holds the lock.
    fn counts(&self) -> MutexGuard<'_, WaitingBytes> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 100;

    fn at(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn one_address_has_half_of_what_others_leave_and_small_requests_are_free() {
        let port = ArrivingBytes::new(LIMIT);
        let [mut first, mut again, mut other] = [1, 1, 2].map(|last| port.request(at(last)));
        first.hold(FREE_BYTES + 50).expect("half");
        let refused = again.hold(FREE_BYTES + 1).expect_err("the address has its half");
        assert_eq!(refused, TooManyBytes { waiting: 50, limit: LIMIT });
        again.hold(FREE_BYTES).expect("a small one");
        other.hold(FREE_BYTES + 26).expect_err("half of the other half");
        other.hold(FREE_BYTES + 25).expect("half of the other half");
    }

    /// A host has 2^64 addresses of its network, and would else have half of the rest again for each of them.
    #[test]
    fn all_addresses_of_an_ipv6_network_have_one_share() {
        let port = ArrivingBytes::new(LIMIT);
        let network = |host: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, host]);
        let [mut first, mut again] = [1, 2].map(|host| port.request(network(host)));
        first.hold(FREE_BYTES + 50).expect("half");
        again.hold(FREE_BYTES + 1).expect_err("the network has its half");

        let mut mapped = port.request(std::net::Ipv4Addr::from([10, 0, 0, 1]).to_ipv6_mapped().into());
        let mut plain = port.request(at(1));
        mapped.hold(FREE_BYTES + 25).expect("half of the other half");
        plain.hold(FREE_BYTES + 1).expect_err("they are one address");
    }

    /// An address that was alone has half of all bytes, which is more than its share once another one has come.
    #[test]
    fn to_give_back_a_part_never_fails_however_many_others_have_come() {
        let port = ArrivingBytes::new(LIMIT);
        let [mut first, mut other] = [1, 2].map(|last| port.request(at(last)));
        first.hold(FREE_BYTES + 50).expect("half");
        other.hold(FREE_BYTES + 25).expect("half of the other half");

        first.hold(FREE_BYTES + 49).expect("the share is 37 by now, and it is less than before");
        assert_eq!(port.shared.counts().all, 74);
        first.hold(FREE_BYTES + 50).expect_err("more than the share");
        assert_eq!(port.shared.counts().all, 25, "a request that is refused counts nothing");
    }

    #[test]
    fn what_may_not_grow_is_counted_as_it_was() {
        let port = ArrivingBytes::new(LIMIT);
        let [mut first, mut other] = [1, 2].map(|last| port.request(at(last)));
        first.grow(FREE_BYTES + 50).expect("half");
        other.grow(FREE_BYTES + 25).expect("half of the other half");
        first.grow(FREE_BYTES + 51).expect_err("the share is 37 by now");
        assert_eq!(port.shared.counts().all, 75, "what it had is still in memory");
    }

    #[test]
    fn what_is_released_is_free_again() {
        let port = ArrivingBytes::new(LIMIT);
        let mut request = port.request(at(1));
        for bytes in [10, 30, 50, 20, 0] {
            request.hold(FREE_BYTES + bytes).expect("it fits");
            assert_eq!(port.shared.counts().all, bytes);
        }
        request.hold(FREE_BYTES + 50).expect("it fits");
        drop(request);
        let counts = port.shared.counts();
        assert!(counts.all == 0 && counts.by_origin.is_empty());
    }
}
