//! Free ports of 127.0.0.1.
//!
//! Port 0 would be simpler. But it gives ports of the ephemeral range, from which outgoing connections get their ports:
//! while a node is down, an outgoing connection may take its port, and a client that retries may even connect to
//! itself. So ports are drawn at random below that range and tested.
//!
//! A port also looks free while the node that it was given to is stopped. Therefore this process remembers the ports
//! that it gave, and gives none of them twice.

use std::{
    collections::VecDeque,
    io,
    net::TcpListener,
    sync::{Mutex, PoisonError},
};

use lockkeeper_config::ConfiguredMember;

use super::error::LocalError;

/// The range of ports: below the ephemeral range of Linux (32768) and of the BSDs (49152), above the usual ports of services.
const RANGE: std::ops::Range<u16> = 15_000..32_000;
/// The number of attempts to find one port.
const DRAWS_MAX: usize = 1_000;
/// How many given ports are remembered: a quarter of all. Most draws then find a port that is not among them.
const REMEMBERED_MAX: usize = 4_096;

/// The ports that were given last, the oldest first.
static GIVEN: Mutex<VecDeque<u16>> = Mutex::new(VecDeque::new());

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

/// Whether all of these addresses can be bound now.
pub(super) fn all_free<'a>(members: impl Iterator<Item = &'a ConfiguredMember>) -> bool {
    members
        .flat_map(|member| [&member.client_address, &member.peer_address])
        .all(|address| TcpListener::bind(address).is_ok())
}

/// A listener on a free port of the loopback address. Its port differs from the last thousands that this process was given, so that a
/// port which was closed a moment ago is not given to somebody else.
///
/// # Errors
///
/// The system has no free port.
pub fn any_free() -> io::Result<TcpListener> {
    let mut last = draw();
    for _ in 1..DRAWS_MAX {
        if last.is_ok() {
            break;
        }
        last = draw();
    }
    last
}

fn draw() -> io::Result<TcpListener> {
    #[expect(clippy::disallowed_methods, reason = "concurrent clusters on this machine must try different ports")]
    let port = rand::random_range(RANGE);

    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    if given.contains(&port) {
        return Err(io::Error::from(io::ErrorKind::AddrInUse));
    }

    let listener = TcpListener::bind(("127.0.0.1", port))?;
    if given.len() == REMEMBERED_MAX {
        given.pop_front();
    }
    given.push_back(port);

    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    #[test]
    fn one_that_is_listened_on_is_not_free() {
        let members = members(1..=1).unwrap();
        let _listener = TcpListener::bind(&members[0].peer_address).unwrap();
        assert!(!all_free(members.iter()));
    }
}
