//! A budget of bytes that the requests in flight share: a limit for the client's address, and one for all clients.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The limits, and what is used of them.
#[derive(Debug)]
pub(crate) struct SharedBytes {
    all_max: usize,
    address_max: usize,
    used: Mutex<UsedBytes>,
}

#[derive(Debug, Default)]
struct UsedBytes {
    all: usize,
    addresses: BTreeMap<IpAddr, usize>,
}

/// The counted bytes of one request. They are free again when this is dropped.
#[derive(Debug)]
pub(crate) struct ByteShare {
    budget: Arc<SharedBytes>,
    origin: IpAddr,
    counted: usize,
}

/// There is no room for more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverBudget {
    /// Whose requests use it up, as a text for people: "from this address" or "of all clients".
    pub(crate) whose: &'static str,
    pub(crate) used: usize,
    pub(crate) more: usize,
    pub(crate) max: usize,
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

impl SharedBytes {
    pub(crate) fn new(all_max: usize, address_max: usize) -> Arc<Self> {
        Arc::new(Self { all_max, address_max, used: Mutex::default() })
    }

    pub(crate) fn share(self: &Arc<Self>, client: IpAddr) -> ByteShare {
        ByteShare { budget: Arc::clone(self), origin: origin(client), counted: 0 }
    }

    /// The bytes that are used, and the number of addresses that use them.
    #[cfg(test)]
    pub(crate) fn in_use(&self) -> (usize, usize) {
        let used = self.used();
        (used.all, used.addresses.len())
    }

    /// Locks. No code panics while it holds the lock.
    fn used(&self) -> MutexGuard<'_, UsedBytes> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ByteShare {
    pub(crate) fn counted(&self) -> usize {
        self.counted
    }

    /// Counts more bytes, unless they exceed a limit: then nothing is counted.
    pub(crate) fn add(&mut self, more: usize) -> Result<(), OverBudget> {
        if more == 0 {
            return Ok(());
        }

        let SharedBytes { all_max, address_max, .. } = *self.budget;
        let mut used = self.budget.used();
        let by_address = used.addresses.get(&self.origin).copied().unwrap_or(0);

        let over = |whose, used, max| Err(OverBudget { whose, used, more, max });
        if by_address + more > address_max {
            return over("from this address", by_address, address_max);
        } else if used.all + more > all_max {
            return over("of all clients", used.all, all_max);
        }

        used.all += more;
        used.addresses.insert(self.origin, by_address + more);
        self.counted += more;
        Ok(())
    }

    /// Gives bytes back that were counted.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }

        let mut used = self.budget.used();
        used.all -= bytes;
        self.counted -= bytes;

        let left = used.addresses.get(&self.origin).map_or(0, |used| used - bytes);
        if left == 0 {
            used.addresses.remove(&self.origin);
        } else {
            used.addresses.insert(self.origin, left);
        }
    }
}

impl Drop for ByteShare {
    fn drop(&mut self) {
        self.give_back(self.counted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_share_whichever_of_its_addresses_it_uses() {
        let text = |text: &str| origin(text.parse().expect("an address"));
        assert_eq!(text("2001:db8::1"), text("2001:db8::ffff:2"));
        assert_ne!(text("2001:db8::1"), text("2001:db8:0:1::1"));
        assert_eq!(text("::ffff:192.0.2.1"), IpAddr::from([192, 0, 2, 1]));
    }
}
