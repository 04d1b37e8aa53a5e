//! The accounts of all connections, and which connections stand still.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak},
    time::Duration,
};

use lockkeeper_accept::origin;
use tokio::time::Instant;

use super::{
    UnreadAnswerLimits,
    budgets::{Account, ByteBudget},
};
use lockkeeper_transport::Remote;

/// The accounts of connections that have an open call or unread bytes.
#[derive(Default)]
pub(super) struct Accounts {
    connections: BTreeMap<SocketAddr, ConnectionAccount>,
    addresses: BTreeMap<IpAddr, Weak<ByteBudget>>,
}

struct ConnectionAccount {
    account: Weak<Account>,
    /// The connection, unless its port ends those that are not read by itself.
    remote: Option<Remote>,
    /// The reads until the last look at it, and since when there were no others.
    read: usize,
    since: Instant,
}

impl Accounts {
    /// The account of a connection.
    pub(super) fn account(
        &mut self,
        address: SocketAddr,
        remote: Option<&Remote>,
        limits: &UnreadAnswerLimits,
        node: &Arc<ByteBudget>,
    ) -> Arc<Account> {
        if let Some(known) = self.connections.get_mut(&address)
            && let Some(account) = known.account.upgrade()
        {
            // The client may have opened another connection from the same port, while chunks of the former are still here.
            if let (Some(before), Some(remote)) = (&mut known.remote, remote)
                && !before.is_same(remote)
            {
                *before = remote.clone();
            }
            return account;
        }

        // One host has all addresses of its IPv6 network, and would else have a budget for each of them.
        let origin = origin(address.ip());
        let host = self.addresses.get(&origin).and_then(Weak::upgrade);
        let host = host.unwrap_or_else(|| ByteBudget::new("of all connections from its address", limits.address));
        self.addresses.insert(origin, Arc::downgrade(&host));

        let connection = ByteBudget::new("of its connection", limits.connection);
        let account = Arc::new(Account::new(connection, host, Arc::clone(node)));
        let known = ConnectionAccount {
            account: Arc::downgrade(&account),
            remote: remote.cloned(),
            read: 0,
            since: Instant::now(),
        };
        self.connections.insert(address, known);
        account
    }

    /// Forgets the connections for which nothing waits and nothing is under way.
    pub(super) fn forget(&mut self) {
        self.connections.retain(|_, known| known.account.strong_count() > 0);
        self.addresses.retain(|_, budget| budget.strong_count() > 0);
    }

    /// The connections for which bytes wait of which none were read for this time, each once in this time.
    pub(super) fn standing_still(&mut self, now: Instant, patience: Duration) -> Vec<(SocketAddr, Option<Remote>)> {
        let mut still = Vec::new();
        for (address, known) in &mut self.connections {
            let Some(account) = known.account.upgrade() else { continue };
            let read = account.read();
            if account.is_empty() || read != known.read {
                known.read = read;
                known.since = now;
            } else if now.duration_since(known.since) >= patience {
                known.since = now;
                still.push((*address, known.remote.clone()));
            }
        }

        still
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_of_an_ipv6_network_have_one_budget() {
        let limits = UnreadAnswerLimits { address: 100 << 10, ..UnreadAnswerLimits::CLIENTS };
        let node = ByteBudget::new("of all clients", limits.node);
        let mut accounts = Accounts::default();
        let mut account = |host: u16| {
            let address = SocketAddr::from(([0x2001, 0xdb8, 0, 1, 0, 0, 0, host], 7));
            accounts.account(address, None, &limits, &node)
        };
        let first = account(1);
        let second = account(2);

        first.take(60 << 10, 1).expect("it fits");
        let budget = second.take(60 << 10, 1).expect_err("the network has its budget");
        assert!(budget.full().contains("of all connections from its address"), "{}", budget.full());
    }
}
