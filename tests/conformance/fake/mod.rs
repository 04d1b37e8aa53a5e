//! A fake cluster: some loopback ports that are its nodes, one table behind them, and rules that spoil calls.
//!
//! * `statements`: what a scenario asks of it;
//! * `arrivals`: what arrived at the nodes;
//! * `table`: the machine of a real cluster, with a clock;
//! * `wire`: messages to commands, replies to messages;
//! * `faults`: the rules;
//! * `sockets`: connections that can be cut, and can freeze;
//! * `outbox`: the answers of a stream, which come twice or in another order;
//! * `node`: a port, and the calls that arrive there;
//! * `keeping`, `watching`: streams of renewals and of changes;
//! * `services`: the services of `lockkeeper.v1`.
//!
//! Left out: a log, disks and elections. A command takes effect when it arrives, and who leads is said by the scenario.

pub(crate) mod arrivals;
mod faults;
mod keeping;
mod node;
mod outbox;
mod services;
mod sockets;
pub(crate) mod statements;
mod table;
mod watching;
mod wire;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::watch, task::JoinHandle, time::sleep};

use self::{
    arrivals::Arrivals,
    faults::Faults,
    node::{Port, PortAddress},
    statements::{FakeStatement, Happening},
    table::Table,
};

/// How often the table looks at its clock.
const TICK: Duration = Duration::from_millis(10);

/// A running fake cluster. Ends when it is dropped.
pub(crate) struct FakeCluster {
    state: Arc<ClusterState>,
    ports: Vec<Port>,
    ticker: JoinHandle<()>,
}

/// What the nodes share.
pub(crate) struct ClusterState {
    table: Mutex<Table>,
    /// Counts the commands.
    applied: watch::Sender<u64>,
    faults: Faults,
    pub(crate) arrivals: Arrivals,
    leading: Mutex<Leading>,
    /// Rises when streams and waits must break off.
    term: watch::Sender<u64>,
    /// Rises when watches must break off.
    watches: watch::Sender<u64>,
    /// Each change is a message of its own.
    splits_watches: AtomicBool,
    /// The TTL that answers tell; 0: that of the table.
    told_ttl_ms: AtomicU32,
    addresses: Vec<String>,
    /// Numbers of streams.
    streams: AtomicU64,
}

/// Who leads, and what the others do.
#[derive(Clone, Copy, Debug)]
struct Leading {
    node: Option<usize>,
    followers_refuse: bool,
}

impl FakeCluster {
    /// Starts a cluster of so many nodes, led by the first.
    pub(crate) async fn start(nodes: usize) -> Result<Self, String> {
        let chosen: Result<Vec<_>, _> = (0..nodes).map(|_| PortAddress::choose()).collect();
        let chosen = chosen.map_err(|error| format!("no port: {error}"))?;
        let addresses = chosen.iter().map(PortAddress::to_string).collect();

        let state = Arc::new(ClusterState {
            table: Mutex::new(Table::new()),
            applied: watch::Sender::new(0),
            faults: Faults::default(),
            arrivals: Arrivals::default(),
            leading: Mutex::new(Leading { node: Some(1), followers_refuse: false }),
            term: watch::Sender::new(1),
            watches: watch::Sender::new(0),
            splits_watches: AtomicBool::new(false),
            told_ttl_ms: AtomicU32::new(0),
            addresses,
            streams: AtomicU64::new(0),
        });
        let ports = (1..).zip(chosen).map(|(number, address)| Port::open(number, address, &state));
        let ports = ports.collect::<Result<_, _>>()?;
        let ticking = Arc::clone(&state);
        let ticker = tokio::spawn(async move {
            loop {
                sleep(TICK).await;
                ticking.change(|table| drop(table.apply(lockkeeper_machine::Command::Tick)));
            }
        });
        Ok(Self { state, ports, ticker })
    }

    pub(crate) fn state(&self) -> &Arc<ClusterState> {
        &self.state
    }

    /// The address of a node, counted from 1.
    pub(crate) fn address(&self, node: usize) -> Option<&str> {
        self.state.addresses.get(node.checked_sub(1)?).map(String::as_str)
    }

    /// Does what a statement asks for.
    pub(crate) async fn obey(&mut self, statement: &FakeStatement) -> Result<(), String> {
        let state = Arc::clone(&self.state);
        match statement {
            FakeStatement::Fault(fault) => state.faults.add(fault.clone()),
            FakeStatement::Tell => state.faults.tell(),
            FakeStatement::Heal => state.faults.heal(),
            FakeStatement::Node { node, happens } => return self.happen(*node, *happens).await,
            FakeStatement::Leader { node, quietly } => {
                self.port(node.unwrap_or(1))?;
                state.leading().node = *node;
                if !quietly {
                    state.term.send_modify(|term| *term += 1);
                }
            }
            FakeStatement::FollowersRefuse(refuse) => state.leading().followers_refuse = *refuse,
            FakeStatement::Old(node) => self.port(*node)?.make_old(),
            FakeStatement::RivalAcquires { name, shared } => {
                return state.change(|table| table.rival_acquires(name, *shared));
            }
            FakeStatement::RivalReleases { name } => return state.change(|table| table.rival_releases(name)),
            FakeStatement::Revoke { name, reason, now } => {
                return state.change(|table| table.revoke(name, reason, *now));
            }
            FakeStatement::CloseSessions => state.change(Table::close_sessions),
            FakeStatement::ExpireSessions => state.change(Table::expire_sessions),
            FakeStatement::ForgetSessions => state.change(Table::forget_sessions),
            FakeStatement::CancelWaits { name } => state.change(|table| table.cancel_waits(name)),
            FakeStatement::TellTtl(ttl_ms) => state.told_ttl_ms.store(*ttl_ms, Ordering::Relaxed),
            FakeStatement::SplitWatches => state.splits_watches.store(true, Ordering::Relaxed),
            FakeStatement::BreakWatches { too_old } => {
                if *too_old {
                    state.change(Table::forget_changes);
                }
                state.watches.send_modify(|count| *count += 1);
            }
        }
        Ok(())
    }

    /// Ends all faults: every node is there, the first one leads.
    pub(crate) async fn heal(&mut self) -> Result<(), String> {
        self.state.faults.heal();
        *self.state.leading() = Leading { node: Some(1), followers_refuse: false };
        for port in &mut self.ports {
            port.thaw();
            port.listen()?;
        }
        Ok(())
    }

    async fn happen(&mut self, node: usize, happens: Happening) -> Result<(), String> {
        let port = self.port(node)?;
        match happens {
            Happening::Dies => port.close().await,
            Happening::Returns => return port.listen(),
            Happening::Freezes => port.freeze(),
            Happening::Thaws => port.thaw(),
            Happening::Cuts => port.cut(),
        }
        Ok(())
    }

    fn port(&mut self, node: usize) -> Result<&mut Port, String> {
        let place = node.checked_sub(1).ok_or("nodes are counted from 1")?;
        self.ports.get_mut(place).ok_or_else(|| format!("there is no node {node}"))
    }
}

impl Drop for FakeCluster {
    fn drop(&mut self) {
        self.ticker.abort();
    }
}

impl ClusterState {
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table, and wakes whoever waits for a change.
    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let changed = change(&mut self.table());
        self.applied.send_modify(|applied| *applied += 1);
        changed
    }

    /// Is told of each command.
    pub(crate) fn applied(&self) -> watch::Receiver<u64> {
        self.applied.subscribe()
    }

    fn leading(&self) -> MutexGuard<'_, Leading> {
        self.leading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address that answers name.
    fn leader_address(&self) -> Option<String> {
        let leader = self.leading().node?;
        self.addresses.get(leader - 1).cloned()
    }

    /// The TTL that an answer tells.
    fn told_ttl_ms(&self, ttl: lockkeeper_machine::Ttl) -> u32 {
        match self.told_ttl_ms.load(Ordering::Relaxed) {
            0 => ttl.as_millis(),
            told => told,
        }
    }

    fn new_stream(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }
}
