//! Free ports of 127.0.0.1.
//!
//! Port 0 would be simpler. But it gives ports of the ephemeral range, from which outgoing connections get their ports:
//! while a node is down, an outgoing connection may take its port, and a client that retries may even connect to
//! itself. So ports are drawn at random below that range and tested.
//!
//! A port also looks free while the node that it was given to is stopped. Another process that takes it then answers in the node's place,
//! and the node cannot start again. Therefore the range is divided into blocks, and a process gives only ports of blocks that it has
//! reserved: it listens on the first port of each. The system ends a reservation with its process, however that ends, and shows it to
//! whoever shares the ports with it: processes of other users too, but not those of another network namespace.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::TcpListener,
    ops::Range,
    sync::{Mutex, PoisonError},
};

use lockkeeper_config::ConfiguredMember;

use super::error::LocalError;

/// The range of ports: below the ephemeral range of Linux (32768) and of the BSDs (49152), above the usual ports of services.
const RANGE: Range<u16> = 15_000..32_000;
/// Ports a block: enough for most clusters.
const BLOCK_PORTS: u16 = 64;
const BLOCKS: u16 = (RANGE.end - RANGE.start) / BLOCK_PORTS;
/// How many blocks one process reserves at most: a quarter of all. A process that needs more ports gives those again that it gave first.
const BLOCKS_MAX: usize = BLOCKS as usize / 4;

/// The ports that this process gives.
static OWN: Mutex<Reservations> = Mutex::new(Reservations::none());

/// Members with these ids on free ports.
pub(super) fn members(ids: impl Iterator<Item = u64>) -> Result<Vec<ConfiguredMember>, LocalError> {
    // Each port is held until all are chosen. Otherwise one could be chosen twice.
    let mut held = Vec::new();
    let mut address = || -> Result<String, LocalError> {
        let listener = any_free().map_err(LocalError::NoPorts)?;
        let address = listener.local_addr().map_err(LocalError::NoPorts)?.to_string();
        held.push(listener);
        Ok(address)
    };
    ids.map(|node_id| Ok(ConfiguredMember { node_id, client_address: address()?, peer_address: address()? })).collect()
}

/// A free address.
pub(super) fn address() -> Result<String, LocalError> {
    let listener = any_free().map_err(LocalError::NoPorts)?;
    Ok(listener.local_addr().map_err(LocalError::NoPorts)?.to_string())
}

/// Whether this process can give all of these addresses: nobody listens there, and no other process has reserved them. Those that can be
/// reserved are.
pub(super) fn all_free<'a>(members: impl Iterator<Item = &'a ConfiguredMember>) -> bool {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    members
        .flat_map(|member| [&member.client_address, &member.peer_address])
        .all(|address| own.claim(address) && TcpListener::bind(address).is_ok())
}

/// A listener on a free port of the loopback address. No other process gives that port while this one lives, and this one gives some
/// thousands of others before it gives it again: a port which was closed a moment ago does not go to somebody else.
///
/// # Errors
///
/// The system has no free port, or other processes have reserved all of them.
pub fn any_free() -> io::Result<TcpListener> {
    OWN.lock().unwrap_or_else(PoisonError::into_inner).give()
}

/// The blocks of ports that one process has reserved.
struct Reservations {
    /// A listener on the first port of each, by the number of the block.
    blocks: BTreeMap<u16, TcpListener>,
    /// Ports of the newest block that were not given yet.
    fresh: Range<u16>,
    /// The ports that were given, the oldest first.
    given: VecDeque<u16>,
}

impl Reservations {
    const fn none() -> Self {
        Self { blocks: BTreeMap::new(), fresh: 0..0, given: VecDeque::new() }
    }

    fn give(&mut self) -> io::Result<TcpListener> {
        loop {
            for port in self.fresh.by_ref() {
                // A process that reserves nothing may listen there.
                if let Ok(listener) = listen(port) {
                    self.given.push_back(port);
                    return Ok(listener);
                }
            }
            if self.blocks.len() >= BLOCKS_MAX || !self.reserve_any() {
                return self.give_again();
            }
        }
    }

    /// The port that was given first of those on which nobody listens now.
    fn give_again(&mut self) -> io::Result<TcpListener> {
        for _ in 0..self.given.len() {
            let Some(port) = self.given.pop_front() else { break };
            self.given.push_back(port);
            if let Ok(listener) = listen(port) {
                return Ok(listener);
            }
        }
        Err(io::Error::from(io::ErrorKind::AddrInUse))
    }

    /// Reserves a block that nobody has. Returns whether there is one.
    fn reserve_any(&mut self) -> bool {
        #[expect(clippy::disallowed_methods, reason = "processes that start together must not try the same blocks")]
        let start = rand::random_range(0..BLOCKS);
        let reserved = (start..BLOCKS).chain(0..start).find(|block| self.reserve(*block));

        if let Some(block) = reserved {
            let first = first_port(block);
            self.fresh = first + 1..first + BLOCK_PORTS;
        }
        reserved.is_some()
    }

    /// Reserves a block. Returns whether this process has it now: another process may have reserved it.
    fn reserve(&mut self, block: u16) -> bool {
        let listener = listen(first_port(block));
        listener.map(|listener| self.blocks.insert(block, listener)).is_ok()
    }

    /// Reserves the port of an address that was given in the past. Returns whether this process has it now: no other process reserved it.
    fn claim(&mut self, address: &str) -> bool {
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0_u16);
        let block = port.checked_sub(RANGE.start).map(|offset| offset / BLOCK_PORTS);
        // Ports outside the blocks are never reserved, so there is nothing to claim.
        let Some(block) = block.filter(|block| *block < BLOCKS) else { return true };

        if self.fresh.contains(&port) {
            self.given.extend(self.fresh.start..=port);
            self.fresh.start = port + 1;
        }
        self.blocks.contains_key(&block) || self.reserve(block)
    }
}

/// The port of a block that its owner listens on, and does not give.
fn first_port(block: u16) -> u16 {
    RANGE.start + block * BLOCK_PORTS
}

fn listen(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind(("127.0.0.1", port))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, iter};

    use super::*;

    #[test]
    fn no_address_comes_twice_and_all_are_free() {
        let members = members(1..=7).unwrap();
        let addresses: BTreeSet<_> = members.iter().flat_map(|m| [&m.client_address, &m.peer_address]).collect();
        assert_eq!(addresses.len(), 14);
        assert!(all_free(members.iter()));
    }

    #[test]
    fn a_port_is_not_given_again_while_nobody_listens_on_it() {
        let mut given: Vec<_> = (0..2_000).map(|_| any_free().unwrap().local_addr().unwrap().port()).collect();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), 2_000);
    }

    /// Two processes differ from two values here in nothing: the system knows who listens, and no more.
    #[test]
    fn no_two_processes_give_the_same_port() {
        let mut processes = [Reservations::none(), Reservations::none()];
        let mut given = BTreeSet::new();
        for _ in 0..BLOCK_PORTS * 3 {
            for process in &mut processes {
                assert!(given.insert(process.give().unwrap().local_addr().unwrap().port()));
            }
        }

        let [first, second] = &mut processes;
        let address = first.give().unwrap().local_addr().unwrap().to_string();
        assert!(first.claim(&address) && !second.claim(&address));

        *first = Reservations::none();
        assert!(second.claim(&address), "a reservation ends with its process");
    }

    #[test]
    fn a_port_that_was_claimed_is_given_to_nobody_else() {
        let mut process = Reservations::none();
        let given = process.give().unwrap().local_addr().unwrap().port();
        assert!(process.claim(&format!("127.0.0.1:{}", given + 2)));

        let next: Vec<_> = (0..3).map(|_| process.give().unwrap().local_addr().unwrap().port()).collect();
        assert!(!next.contains(&(given + 2)), "{next:?}");
    }

    #[test]
    fn who_has_as_much_as_a_process_may_reserve_gives_the_oldest_again() {
        let mut process = Reservations::none();
        let held = process.give().unwrap();
        let oldest = process.give().unwrap().local_addr().unwrap().port();

        let mut given = BTreeSet::from([held.local_addr().unwrap().port(), oldest]);
        let mut next = || process.give().unwrap().local_addr().unwrap().port();
        let again = iter::repeat_with(&mut next).find(|port| !given.insert(*port));
        assert_eq!(again, Some(oldest));
        assert_eq!(process.blocks.len(), BLOCKS_MAX);
    }

    #[test]
    fn one_that_is_listened_on_is_not_free() {
        let members = members(1..=1).unwrap();
        let _listener = TcpListener::bind(&members[0].peer_address).unwrap();
        assert!(!all_free(members.iter()));
    }
}
