//! Calls to a wrong node, or with a wrong sender.

use lockkeeper::{
    raft::{
        identity::Stage,
        messages::{LogId, Vote, VoteRequest, peer_client::PeerClient},
        network::hello,
    },
    transport::{TcpConnector, channel},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::{Code, Request, Status};

use super::cluster::*;

/// Sender and receiver in the metadata of a call.
#[derive(Clone)]
struct Ends {
    cluster: String,
    from: u64,
    from_incarnation: String,
    to: u64,
    to_incarnation: String,
}

impl Ends {
    fn new(from: &TestNode, to: &TestNode) -> Self {
        Self {
            cluster: cluster_id().to_string(),
            from: from.id,
            from_incarnation: from.identity.incarnation().to_string(),
            to: to.id,
            to_incarnation: to.identity.incarnation().to_string(),
        }
    }
}

/// Sends a pre-vote to `to`, which changes no state.
async fn pre_vote(to: &TestNode, ends: Ends, vote_of: u64) -> Result<(), Status> {
    let vote = Vote { term: 1, node_id: vote_of, committed: false };
    ask(to, ends, VoteRequest { vote: Some(vote), last_log_id: None, leadership_transfer: false }).await
}

/// Sends this pre-vote to `to`.
async fn ask(to: &TestNode, ends: Ends, request: VoteRequest) -> Result<(), Status> {
    let mut request = Request::new(request);
    let metadata = request.metadata_mut();
    metadata.insert("lockkeeper-cluster", ends.cluster.parse().expect("ASCII"));
    metadata.insert("lockkeeper-from", ends.from.into());
    metadata.insert("lockkeeper-from-incarnation", ends.from_incarnation.parse().expect("ASCII"));
    metadata.insert("lockkeeper-to", ends.to.into());
    metadata.insert("lockkeeper-to-incarnation", ends.to_incarnation.parse().expect("ASCII"));
    let mut client = PeerClient::new(channel(TcpConnector, &to.address.to_string()));
    client.pre_vote(request).await.map(drop)
}

async fn refusal(to: &TestNode, ends: Ends) -> (Code, String) {
    let status = pre_vote(to, ends, 2).await.expect_err("it is refused");
    (status.code(), status.message().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_with_a_wrong_cluster_node_or_incarnation_is_refused() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(3).await;
    let to = &nodes[0];
    let right = Ends::new(&nodes[1], to);
    pre_vote(to, right.clone(), 2).await.expect("the metadata are correct");

    let (code, text) = refusal(to, Ends { cluster: "other".into(), ..right.clone() }).await;
    assert_eq!((code, text.as_str()), (Code::FailedPrecondition, "this node belongs to cluster test, not other"));
    let (code, text) = refusal(to, Ends { to: 3, ..right.clone() }).await;
    assert_eq!(code, Code::FailedPrecondition);
    assert!(text.starts_with("this is node 1, not 3: the address for node 3 leads to node 1"), "{text}");

    let other = "0123456789abcdef0123456789abcdef".to_owned();
    let (code, text) = refusal(to, Ends { from_incarnation: other.clone(), ..right.clone() }).await;
    assert_eq!(code, Code::FailedPrecondition);
    assert!(
        text.contains(
            "its data is gone; put its own data directory back, or replace it with `lockkeeper member replace 2`"
        ),
        "{text}"
    );
    let (code, text) = refusal(to, Ends { to_incarnation: other, ..right.clone() }).await;
    assert_eq!(code, Code::FailedPrecondition);
    assert!(
        text.contains(
            "its data is gone; put its own data directory back, or replace it with `lockkeeper member replace 1`"
        ),
        "{text}"
    );

    let (code, _) = refusal(to, Ends { from_incarnation: "x".into(), ..right.clone() }).await;
    assert_eq!(code, Code::InvalidArgument);
    let status = pre_vote(to, right, 3).await.expect_err("the candidate is not the sender");
    assert_eq!(status.code(), Code::InvalidArgument);
    end_all(nodes).await;
}

/// Hello tells everybody what a call needs. Nothing in it is kept for each id that is made up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_under_made_up_ids_are_not_remembered() {
    const MADE_UP: std::ops::Range<u64> = 1_000..1_100;
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(3).await;
    nodes[0].leader_other_than(None).await;
    let to = &nodes[0];
    pre_vote(to, Ends::new(&nodes[1], to), 2).await.expect("it is a member");
    for from in MADE_UP {
        pre_vote(to, Ends { from, ..Ends::new(&nodes[1], to) }, from).await.expect("it may be a new member");
    }
    let remembered = MADE_UP.filter(|id| to.liveness.silence(*id).is_some()).count();
    assert!(remembered <= 16, "{remembered} of {}", MADE_UP.count());
    assert!(to.liveness.silence(nodes[1].id).is_some(), "a member is known in any case");
    end_all(nodes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_node_is_joined_by_its_incarnation_alone() {
    let lab = Lab::default();
    let disks = [Disk::new(), Disk::new()];
    let plan = forming_plan();
    let one = lab.start(1, &disks[0], plan.clone()).await;
    let two = lab.start(2, &disks[1], plan).await;

    let ends = Ends { to_incarnation: "0".repeat(32), ..Ends::new(&two, &one) };
    assert_eq!(refusal(&one, ends).await.0, Code::FailedPrecondition);
    assert_eq!(one.identity.stage(), Stage::New);
    pre_vote(&one, Ends::new(&two, &one), 2).await.expect("the incarnation is correct");
    assert_eq!(one.identity.stage(), Stage::Member);
    end_all(vec![one, two]).await;
}

fn forming_plan() -> lockkeeper::raft::members::forming::FormingConfig {
    lockkeeper::raft::members::forming::FormingConfig { bootstrap: true, members: members([1, 2]) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_on_the_port_does_no_harm() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(3).await;
    let leader = split(&nodes, nodes[0].leader_other_than(None).await).0;

    let frame_of_16_mib = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x00\x00\x00\x00\x00\x01".to_vec();
    for noise in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 100_000], frame_of_16_mib, Vec::new()] {
        let mut stream = TcpStream::connect(leader.address).await.expect("it listens");
        // The node may close the connection during the write.
        let _ = stream.write_all(&noise).await;
        let _ = stream.shutdown().await;
        let heard = timeout(SOON, stream.read_to_end(&mut Vec::new())).await;
        let _ = heard.expect("the node closes the connection");
    }

    leader.write(b"still here".to_vec()).await;
    let answer = hello(&TcpConnector, &leader.address.to_string(), &nodes[0].identity, Vec::new()).await;
    assert_eq!(answer.expect("it serves").node_id, leader.id);
    end_all(nodes).await;
}

#[tokio::test]
async fn the_error_names_the_address_of_an_unreachable_peer() {
    let disk = Disk::new();
    // It is not given to anybody else once it is closed.
    let closed = lockkeeper::local::free_port().expect("a free port");
    let address = closed.local_addr().expect("it is bound").to_string();
    drop(closed);
    let status = hello(&TcpConnector, &address, &identity(disk.directory.path(), 1), Vec::new()).await;
    let status = status.expect_err("the port is closed");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains(&format!("cannot connect to {address}: ")), "{status:?}");
}

/// Such a vote would leave no terms for elections, and such an entry no room for others: for good, since both are kept on the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terms_and_entries_far_beyond_the_log_are_refused_even_from_a_member() {
    let lab = Lab::default();
    let disks = [Disk::new(), Disk::new()];
    let plan = forming_plan();
    let one = lab.start(1, &disks[0], plan.clone()).await;
    let two = lab.start(2, &disks[1], plan).await;
    let vote = |term| Some(Vote { term, node_id: 2, committed: false });
    let entry = |index| Some(LogId { term: 1, index });
    for (term, index, what) in [(u64::MAX, 1, "is in term"), (1 << 60, 1, "is in term"), (2, u64::MAX, "has entry")] {
        let request = VoteRequest { vote: vote(term), last_log_id: entry(index), leadership_transfer: false };
        let status = ask(&one, Ends::new(&two, &one), request).await.expect_err("it is refused");
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(what) && status.message().contains("far beyond"), "{status:?}");
    }
    let request = VoteRequest { vote: vote(1 << 20), last_log_id: entry(1 << 20), leadership_transfer: false };
    ask(&one, Ends::new(&two, &one), request).await.expect("a node may be far behind");
    end_all(vec![one, two]).await;
}

/// The host of node 2 runs node 3's data, and the other way round: what is sent to the one reaches the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_says_why_a_member_behind_another_address_does_not_catch_up() {
    let lab = Lab::default();
    let (nodes, _disks) = lab.cluster(3).await;
    let first = nodes[0].leader_other_than(None).await;
    let (leader, others) = split(&nodes, first);
    let swapped = others[0].id;
    leader.write(b"one".to_vec()).await;
    assert_eq!(leader.acknowledgements.why_refused(swapped), None);

    lab.wires.isolate(swapped);
    lab.wires.plug(swapped, leader.address);
    lab.wires.heal(swapped);
    let refused = async {
        loop {
            let why = nodes.iter().find_map(|node| node.acknowledgements.why_refused(swapped));
            if let Some(why) = why.filter(|why| why.contains(&format!("this is node {first}, not {swapped}"))) {
                break why;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let why = tokio::time::timeout(SOON, refused).await.expect("in time");
    assert!(why.contains("if the data directories or ids of two nodes are swapped"), "{why}");
    end_all(nodes).await;
}
