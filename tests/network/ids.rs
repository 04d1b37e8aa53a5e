//! The id of a member is given once, however far the leader's table is behind its log.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use lockkeeper::{
    environment::Environment,
    machine::{Command, Limits},
    raft::{
        Raft, Replica, ReplicaParts,
        apply::state_machine::StateMachine,
        members::{Greet, MemberError, Members},
        messages::HelloResponse,
        network::{Network, addresses::Addresses, versions::PeerVersions},
        proposals::proposer::ProposalLimits,
        snapshot::{SnapshotFile, SnapshotStore},
    },
    table::{Applied, Inspect, MemberNode, Table},
};
use openraft::async_runtime::watch::WatchReceiver;
use tokio::{
    task::block_in_place,
    time::{sleep, timeout},
};

use super::{
    cluster::{Disk, Lab, SOON, cluster_id, config, identity},
    log::MemoryLog,
};

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How long a mistake has time to show itself.
const SHOWS: Duration = Duration::from_secs(1);

/// Holds up the table while it is closed: an apply that takes long.
#[derive(Default, Debug)]
struct Gate {
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Default, Debug)]
struct GateState {
    is_closed: bool,
    is_reached: bool,
}

impl Gate {
    fn set(&self, is_closed: bool) {
        *self.state.lock().expect("no panic") = GateState { is_closed, is_reached: false };
        self.opened.notify_all();
    }

    fn is_reached(&self) -> bool {
        self.state.lock().expect("no panic").is_reached
    }

    fn wait(&self) {
        let mut state = self.state.lock().expect("no panic");
        while state.is_closed {
            state.is_reached = true;
            state = self.opened.wait(state).expect("no panic");
        }
    }
}

impl Inspect for Gate {
    fn look(&self, _applied: &Applied, _units: usize) {
        // The other tasks of this thread go on.
        block_in_place(|| self.wait());
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(LOOK).await;
        }
    };
    timeout(SOON, waiting).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// The only voter of a cluster, whose table waits at this gate.
async fn lead(disk: &Disk, gate: Arc<Gate>) -> Replica {
    let identity = identity(disk.directory.path(), 1);
    let versions = Arc::<PeerVersions>::default();
    let table = Arc::new(Table::new(Some(gate)).with_versions(Arc::clone(versions.applied())));
    let snapshots = SnapshotStore::open(&disk.directory.path().join("snapshots")).expect("no snapshots");
    let machine = StateMachine::open(Arc::clone(&table), snapshots, 1, u64::MAX).expect("it starts");
    let network = Network::<_, SnapshotFile>::new(Lab::default().wires.end(1), identity.clone());
    let acknowledgements = network.acknowledgements();
    let raft = Raft::new(1, config(), network, MemoryLog::new(), machine).await.expect("it starts");
    let own = MemberNode {
        incarnation: Some(identity.incarnation()),
        peer_address: "node1".to_owned(),
        ..MemberNode::default()
    };
    raft.initialize(BTreeMap::from([(1, own)])).await.expect("a new log");
    let environment = Environment::system();
    let parts = ReplicaParts {
        table,
        versions,
        acknowledgements,
        addresses: Addresses::default(),
        silence_max: SOON,
        proposals: ProposalLimits::REAL,
    };
    let replica = Replica::start(raft, parts, &environment, Limits::default());
    let mut led = replica.led();
    timeout(SOON, led.wait_for(Option::is_some)).await.expect("in time").expect("it runs");
    replica
}

/// Whoever asks, a node with the id 2 and this data directory answers at the address.
fn members(replica: &Replica, incarnation: [u8; 16]) -> Members {
    let greet: Greet = Arc::new(move |_address| {
        let cluster_id = cluster_id().to_string();
        let incarnation = incarnation.to_vec().into();
        let answer = HelloResponse { cluster_id, node_id: 2, incarnation, ..HelloResponse::default() };
        Box::pin(async move { Ok(answer) })
    });
    Members::new(replica.clone(), greet, cluster_id().as_str(), SOON)
}

async fn add(members: &Members) -> Result<(), MemberError> {
    let addresses = ("node2:peers".to_owned(), "node2:clients".to_owned());
    members.add(2, None, addresses, true).await
}

/// Until nothing else is under way.
async fn add_at_last(members: Members) -> Result<(), MemberError> {
    loop {
        match add(&members).await {
            Err(MemberError::UnderWay { .. }) => sleep(LOOK).await,
            added => return added,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn an_id_that_was_removed_is_not_given_again_while_the_table_is_behind() {
    let disk = Disk::new();
    let gate = Arc::new(Gate::default());
    let replica = lead(&disk, Arc::clone(&gate)).await;
    // Those of two leaders: each has its own knowledge of what is under way.
    let before = members(&replica, [7; 16]);
    let after = members(&replica, [8; 16]);
    let has = |node_id: u64| {
        let metrics = replica.raft().server_metrics();
        let membership = metrics.borrow_watched().membership_config.clone();
        membership.membership().get_node(&node_id).is_some()
    };
    timeout(SOON, add(&before)).await.expect("in time").expect("a new id");
    assert!(has(2));

    gate.set(true);
    let proposing = replica.clone();
    let applying = tokio::spawn(async move { proposing.propose(Command::Tick, SOON).await });
    until("the table is held up", || gate.is_reached()).await;
    let removing = tokio::spawn(async move { before.remove(2).await });
    until("the removal is in the log", || !has(2)).await;

    let mut adding = tokio::spawn(async move { add_at_last(after).await });
    let shown = async {
        while !has(2) {
            sleep(LOOK).await;
        }
    };
    let was_given_again = timeout(SHOWS, shown).await.is_ok();
    gate.set(false);
    let added = timeout(SOON, &mut adding).await.expect("in time").expect("no panic");
    assert_eq!((was_given_again, added), (false, Err(MemberError::IdUsedBefore { node_id: 2 })));
    timeout(SOON, removing).await.expect("in time").expect("no panic").expect("a member");
    timeout(SOON, applying).await.expect("in time").expect("no panic").expect("applied");
    replica.raft().shutdown().await.expect("it ends");
}
