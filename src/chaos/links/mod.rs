//! The network of a cluster on this machine, with fault injection.
//!
//! There is one [`Link`] for each ordered pair of nodes, one from the clients to each node, and one to each port at which a node serves
//! clients of other protocols, if the run has such clients. Each is a TCP proxy in this process, which needs neither root nor namespaces. A
//! link carries requests *forward* and answers *backward*. A real network loses
//! packets, so to stop node 1 from sending to node 2, both the forward direction from 1 to 2 and the backward direction of
//! the link from 2 to 1 are held: [`Links::silence`].
//!
//! A node that joins later needs links too, and the others must know them from their start on: so links to and from a number of *spare*
//! nodes exist from the beginning. The addresses of a spare node are held until it starts.
//!
//! Deliberately absent: loss and reordering of single packets, since TCP hides both and only delay remains; and a link
//! for each client, since a node announces *one* address for clients.

mod link;

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, TcpListener},
};

use lockkeeper_config::ConfiguredMember;
use lockkeeper_local::free_port;

pub use self::link::{Direction, Link};

/// All links of a cluster.
#[derive(Debug)]
pub struct Links {
    peers: BTreeMap<(u64, u64), Link>,
    clients: BTreeMap<u64, Link>,
    /// Links to the ports of other protocols.
    others: Vec<Link>,
    /// The listeners that hold the addresses of nodes which do not exist yet.
    held: BTreeMap<u64, Vec<TcpListener>>,
}

impl Links {
    /// Makes links to and between these nodes, at their listen addresses.
    pub fn new(members: &[ConfiguredMember], seed: u64) -> io::Result<Self> {
        Self::with_spares(members, &[], seed)
    }

    /// Makes links to and between these nodes and spare ones, which do not exist yet.
    pub fn with_spares(members: &[ConfiguredMember], spares: &[ConfiguredMember], seed: u64) -> io::Result<Self> {
        // Hold them until all links have ports: no link may take the port of a node that does not run at the moment.
        let addresses = members.iter().flat_map(|member| [&member.client_address, &member.peer_address]);
        let _held: Vec<_> = addresses.filter_map(|address| TcpListener::bind(address).ok()).collect();

        let hold = |spare: &ConfiguredMember| {
            let bind = |address: &String| {
                TcpListener::bind(address).map_err(|error| io::Error::new(error.kind(), format!("{address}: {error}")))
            };
            let addresses = [&spare.client_address, &spare.peer_address].into_iter();
            Ok((spare.node_id, addresses.map(bind).collect::<io::Result<_>>()?))
        };
        let held = spares.iter().map(hold).collect::<io::Result<_>>()?;

        let mut links = Self { peers: BTreeMap::new(), clients: BTreeMap::new(), others: Vec::new(), held };
        let all = || members.iter().chain(spares);
        for to in all() {
            links.clients.insert(to.node_id, link(&to.client_address, seed)?);
            for from in all().filter(|from| from.node_id != to.node_id) {
                links.peers.insert((from.node_id, to.node_id), link(&to.peer_address, seed)?);
            }
        }
        Ok(links)
    }

    /// The addresses at which `from` reaches `to`. A node reaches itself directly.
    pub fn member(&self, from: u64, to: &ConfiguredMember) -> ConfiguredMember {
        let address = |link: &Link| link.address().to_string();
        ConfiguredMember {
            node_id: to.node_id,
            client_address: self.clients.get(&to.node_id).map_or(to.client_address.clone(), address),
            peer_address: self.peers.get(&(from, to.node_id)).map_or(to.peer_address.clone(), address),
        }
    }

    /// Frees the addresses of a spare node, just before it starts.
    pub fn release(&mut self, spare: u64) {
        self.held.remove(&spare);
    }

    /// The address of a node for clients, host:port. Panics if the node does not exist.
    pub fn client_address(&self, node: u64) -> String {
        self.from_clients(node).address().to_string()
    }

    /// The link from the clients to a node. Panics if the node does not exist.
    pub fn from_clients(&self, node: u64) -> &Link {
        &self.clients[&node]
    }

    /// Makes a link to the port at this address, where a node serves clients of another protocol. Returns the address for them, host:port.
    pub fn to_other(&mut self, address: &str, seed: u64) -> io::Result<String> {
        let link = link(address, seed)?;
        let address = link.address().to_string();
        self.others.push(link);
        Ok(address)
    }

    /// All links from clients of any protocol.
    pub fn to_clients(&self) -> impl Iterator<Item = &Link> {
        self.clients.values().chain(&self.others)
    }

    /// All links between nodes, and from clients of our own protocol.
    pub fn all(&self) -> impl Iterator<Item = &Link> {
        self.peers.values().chain(self.clients.values())
    }

    /// Holds all data from `from` to `to`. The other direction passes.
    pub fn silence(&self, from: u64, to: u64) {
        if let (Some(out), Some(back)) = (self.peers.get(&(from, to)), self.peers.get(&(to, from))) {
            out.set_forward(Direction::Held);
            back.set_backward(Direction::Held);
        }
    }

    /// Opens all links again.
    pub fn heal(&self) {
        self.all().chain(&self.others).for_each(Link::heal);
    }
}

fn link(target: &str, seed: u64) -> io::Result<Link> {
    let target: SocketAddr = target.parse().map_err(io::Error::other)?;
    let listener: TcpListener = free_port()?;
    Link::new(listener, target, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: u64) -> Vec<ConfiguredMember> {
        let address = |id: u64, service: u64| format!("127.0.0.1:{}", 40_000 + 10 * id + service);
        (1..=count)
            .map(|id| ConfiguredMember { node_id: id, client_address: address(id, 1), peer_address: address(id, 2) })
            .collect()
    }

    /// The pairs of nodes whose links are faulty.
    fn broken(links: &Links) -> Vec<(u64, u64)> {
        links.peers.iter().filter(|(_, link)| !link.is_whole()).map(|(pair, _)| *pair).collect()
    }

    #[tokio::test]
    async fn each_node_finds_each_other_by_a_way_of_its_own_and_itself_where_it_is() {
        let members = members(3);
        let links = Links::new(&members, 1).unwrap();
        let mut addresses: Vec<_> = (1..=3)
            .flat_map(|from| members.iter().map(move |to| (from, to)))
            .filter(|(from, to)| *from != to.node_id)
            .map(|(from, to)| links.member(from, to).peer_address)
            .collect();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), 6);
        assert_eq!(links.member(2, &members[1]).peer_address, members[1].peer_address);
        assert_eq!(links.member(1, &members[1]).client_address, links.member(3, &members[1]).client_address);
    }

    #[tokio::test]
    async fn the_addresses_of_a_spare_node_are_held_until_it_starts() {
        let spare = {
            let listener = [free_port().unwrap(), free_port().unwrap()];
            let [client_address, peer_address] = listener.map(|listener| listener.local_addr().unwrap().to_string());
            ConfiguredMember { node_id: 4, client_address, peer_address }
        };
        let mut links = Links::with_spares(&members(3), std::slice::from_ref(&spare), 1).unwrap();
        assert!(TcpListener::bind(&spare.peer_address).is_err() && TcpListener::bind(&spare.client_address).is_err());
        links.release(4);
        assert!(TcpListener::bind(&spare.peer_address).is_ok() && TcpListener::bind(&spare.client_address).is_ok());
        assert_ne!(links.member(1, &spare).peer_address, links.member(2, &spare).peer_address);
        links.silence(4, 2);
        assert_eq!(broken(&links), [(2, 4), (4, 2)]);
    }

    #[tokio::test]
    async fn silence_holds_one_direction_on_both_links_of_a_pair() {
        let links = Links::new(&members(3), 1).unwrap();
        links.silence(1, 2);
        assert_eq!(broken(&links), [(1, 2), (2, 1)]);
        assert!(links.clients.values().all(Link::is_whole));
        links.heal();
        assert_eq!(broken(&links), []);
    }
}
