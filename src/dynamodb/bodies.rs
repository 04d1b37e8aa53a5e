//! Limits the memory of request bodies in flight.
//!
//! The first [`SMALL_BYTES`] of each body do not count, because the number of connections bounds them. All requests of lock clients fit
//! into them, so no other client can keep a heartbeat or a release out. Further bytes count against two limits: that of the client's
//! address, and that of all clients.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::error::{Error, ErrorType, Result};

/// Number of bytes of a body that always have room.
pub(crate) const SMALL_BYTES: usize = 16 << 10;

/// The bodies of all requests in flight.
#[derive(Debug)]
pub(crate) struct Bodies {
    all_max: usize,
    address_max: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    all: usize,
    addresses: BTreeMap<IpAddr, usize>,
}

/// The counted bytes of one body. They are free again when this is dropped.
#[derive(Debug)]
pub(crate) struct BodyShare {
    bodies: Arc<Bodies>,
    origin: IpAddr,
    counted: usize,
}

/// The owner of a share: an address or, of IPv6, a network of 64 bits, because one host has all of its addresses.
pub(crate) fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & u128::MAX << 64))
        }
        address @ (IpAddr::V4(_) | IpAddr::V6(_)) => address,
    }
}

impl Bodies {
    pub(crate) fn new(all_max: usize, address_max: usize) -> Arc<Self> {
        Arc::new(Self { all_max, address_max, used: Mutex::default() })
    }

    pub(crate) fn share(self: &Arc<Self>, client: IpAddr) -> BodyShare {
        BodyShare { bodies: Arc::clone(self), origin: origin(client), counted: 0 }
    }

    /// Locks. No code panics while it holds the lock.
    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BodyShare {
    /// Notes that the body has this number of bytes by now. Fails if that exceeds a limit.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<()> {
        let more = bytes.saturating_sub(SMALL_BYTES).saturating_sub(self.counted);
        if more == 0 {
            return Ok(());
        }

        let Bodies { all_max, address_max, .. } = *self.bodies;
        let mut used = self.bodies.used();
        let by_address = used.addresses.get(&self.origin).copied().unwrap_or(0);

        let (whose, used_bytes, bytes_max) = if by_address + more > address_max {
            ("from this address", by_address, address_max)
        } else if used.all + more > all_max {
            ("of all clients", used.all, all_max)
        } else {
            used.all += more;
            used.addresses.insert(self.origin, by_address + more);
            self.counted += more;
            return Ok(());
        };

        Err(Error::new(
            ErrorType::Throttled,
            format!(
                "the bodies of other requests {whose} have {used_bytes} bytes, and {more} more exceed the limit of {bytes_max}: try again, \
                 or send bodies of {SMALL_BYTES} bytes or less, which are always taken"
            ),
        ))
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        if self.counted == 0 {
            return;
        }

        let mut used = self.bodies.used();
        used.all -= self.counted;

        let left = used.addresses.get(&self.origin).map_or(0, |used| used - self.counted);
        if left == 0 {
            used.addresses.remove(&self.origin);
        } else {
            used.addresses.insert(self.origin, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn one_address_leaves_room_for_others_and_small_bodies_need_none() {
        let bodies = Bodies::new(3000, 2000);
        let mut greedy = bodies.share(address(1));
        greedy.grow_to(SMALL_BYTES + 2000).expect("its whole share");
        let mut more = bodies.share(address(1));
        let error = more.grow_to(SMALL_BYTES + 1).expect_err("nothing is left of it");
        assert!(error.kind == ErrorType::Throttled && error.message.contains("from this address"), "{error:?}");
        more.grow_to(SMALL_BYTES).expect("a small body");

        let mut other = bodies.share(address(2));
        other.grow_to(SMALL_BYTES + 1000).expect("another address");
        let error = other.grow_to(SMALL_BYTES + 1001).expect_err("all is used");
        assert!(error.message.contains("of all clients"), "{error:?}");
        bodies.share(address(3)).grow_to(SMALL_BYTES).expect("a small body of a third");

        drop(greedy);
        more.grow_to(SMALL_BYTES + 2000).expect("it is free again");
        drop((more, other));
        let used = bodies.used();
        assert_eq!((used.all, used.addresses.len()), (0, 0));
    }

    #[test]
    fn a_host_has_one_share_whichever_of_its_addresses_it_uses() {
        let text = |text: &str| origin(text.parse().expect("an address"));
        assert_eq!(text("2001:db8::1"), text("2001:db8::ffff:2"));
        assert_ne!(text("2001:db8::1"), text("2001:db8:0:1::1"));
        assert_eq!(text("::ffff:192.0.2.1"), address(1));
    }
}
