//! Answers that are delayed in a socket while another leader is elected.
//!
//! The order of events that made a read stale. L is the leader, F and G are followers.
//! 1. L sends an append A to both. They accept it and answer; the answers are held.
//! 2. F and G elect G, which acknowledges a write W.
//! 3. A read begins at L, which does not know of G's term.
//! 4. G's answer to A arrives: A is committed at L, which sends F the commit index in a request without entries.
//! 5. F's answer to A arrives. openraft takes it for the answer to step 4's request, sent after the read began.

use std::{pin::pin, time::Duration};

use futures::poll;
use lockkeeper::{
    raft::{
        members::forming::FormingConfig,
        reads::read_index::{ReadIndexError, read_index},
        types::{Payload, TransferLeaderRequest},
    },
    table::MemberNode,
};
use openraft::raft::ReadPolicy;
use tokio::time::{sleep, timeout};

use super::cluster::*;

/// Bytes of append A. The timeout of an append grows with its size: this one allows seconds.
const LARGE: usize = 3 << 20;

/// Attempts at the order of events. If the machine stalls, the append times out before its answers arrive, and the order differs.
/// Whenever the order occurs, the result is the same.
const ATTEMPTS: usize = 10;
/// The id of the learner.
const LEARNER: u64 = 4;
/// Deadline of a step.
const STEP: Duration = Duration::from_secs(5);

/// Waits for a step of the order of events.
async fn until(what: &str, holds: impl FnMut() -> bool) -> Result<(), String> {
    if comes_true(STEP, holds).await { Ok(()) } else { Err(format!("timed out waiting for: {what}")) }
}

/// Whether the condition becomes true within `time`.
async fn comes_true(time: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let waits = async {
        while !holds() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(time, waits).await.is_ok()
}

/// Runs steps 1 and 2, with a learner that only L reaches, if there is one. Returns the nodes, and the ids of L, F and G. The error says
/// which step did not come, as on a machine that stalls: L has lost its leadership before, or learns of the election.
async fn two_leaders(lab: &Lab, learner: Option<&TestNode>) -> Result<(Vec<TestNode>, [u64; 3]), String> {
    let (nodes, _disks) = lab.cluster(3).await;
    // A leader that was deposed before waits for itself in vain.
    let elected = timeout(STEP * 3, elect_second_leader(lab, &nodes, learner)).await;
    match elected.unwrap_or_else(|_| Err("the two leaders took too long".to_owned())) {
        Ok(ids) => Ok((nodes, ids)),
        Err(what) => {
            end_all(nodes).await;
            Err(what)
        }
    }
}

async fn elect_second_leader(lab: &Lab, nodes: &[TestNode], learner: Option<&TestNode>) -> Result<[u64; 3], String> {
    let (l, others) = split(nodes, nodes[0].leader_other_than(None).await);
    let [f, g] = others[..] else { panic!("three nodes") };
    l.write(b"before".to_vec()).await;
    for other in [f, g] {
        other.catch_up_with(l).await;
    }
    if let Some(learner) = learner {
        let node = members([LEARNER]).remove(&LEARNER).expect("it is there");
        let node = MemberNode { incarnation: Some(learner.identity.incarnation()), ..node };
        l.raft.add_learner(LEARNER, node, true).await.map_err(|error| format!("the learner is not added: {error}"))?;
        learner.catch_up_with(l).await;
        for other in [f, g] {
            other.catch_up_with(l).await;
            lab.wires.hold_requests(other.id, LEARNER, true);
        }
    }
    for other in [f, g] {
        lab.wires.hold_answers(l.id, other.id, true);
    }
    let raft = l.raft.clone();
    tokio::spawn(async move { raft.client_write(Payload(vec![b'a'; LARGE].into())).await });
    // A follower answers when A is on its disk. One that learns of a later term before that never answers.
    let flushed = |node: &TestNode| node.raft.watch_log_progress().get().and_then(|point| point.last_log_id);
    until("A on the disks of F and G", || {
        let last = l.metrics().last_log_index;
        last > f.metrics().last_applied.map(|id| id.index)
            && [f, g].iter().all(|other| flushed(other).map(|id| id.index) == last)
    })
    .await?;
    for other in [f, g] {
        lab.wires.hold_requests(l.id, other.id, true);
        lab.wires.hold_requests(other.id, l.id, true);
    }

    // F and G skip L's lease, so that the answers reach L before the append times out.
    let vote = l.metrics().vote;
    for other in [f, g] {
        let handed_over = TransferLeaderRequest::new(vote, l.id, None);
        other.raft.handle_transfer_leader(handed_over).await.expect("it runs").expect("it follows L");
    }
    g.raft.trigger().elect(true).await.expect("it runs");
    // F skips the lease too, and on a busy machine its own election timeout may end first. Whichever leads is G.
    let leads = |node: &TestNode| node.metrics().current_leader == Some(node.id);
    until("F or G leads", || leads(f) || leads(g)).await?;
    let [f, g] = if leads(f) { [g, f] } else { [f, g] };
    g.write(b"W".to_vec()).await;
    Ok([l.id, f.id, g.id])
}

/// Starts `read` at L, then delivers the answers (steps 4 and 5), then all else. The error says what came too late for that order.
async fn deliver<T>(
    lab: &Lab,
    nodes: &[TestNode],
    [l, f, g]: [u64; 3],
    read: impl Future<Output = T>,
) -> Result<T, String> {
    let leader = split(nodes, l).0;
    // A candidate may have reached L before its requests were held.
    if leader.metrics().current_leader != Some(l) {
        return Err(format!("L knew of the election: {:?}", leader.metrics()));
    }
    let mut read = pin!(read);
    assert!(poll!(&mut read).is_pending(), "no answer has confirmed it");
    // Raft's core handles requests in order: after this one, it has received the read.
    leader.raft.with_raft_state(|_| ()).await.expect("it runs");

    let matched = |peer: u64| leader.metrics().replication.and_then(|all| all.get(&peer).copied().flatten());
    let a = leader.metrics().last_log_index.expect("A");
    lab.wires.hold_answers(l, g, false);
    let is_committed = || leader.metrics().last_applied.is_some_and(|id| id.index == a);
    if !comes_true(STEP, is_committed).await {
        return Err(format!(
            "G's answer did not commit A at L: {:?}; G: {:?}",
            leader.metrics(),
            split(nodes, g).0.raft.watch_log_progress().get()
        ));
    }
    if !comes_true(STEP, || lab.wires.holds_something_after_a_large_request(l, f)).await {
        return Err(format!("L sent F nothing after A: {:?}", leader.metrics()));
    }
    lab.wires.hold_answers(l, f, false);
    if !comes_true(STEP, || matched(f).is_some_and(|id| id.index == a)).await {
        return Err(format!("F's answer was not taken: {:?}", leader.metrics()));
    }
    for other in [f, g] {
        lab.wires.hold_requests(l, other, false);
        lab.wires.hold_requests(other, l, false);
    }
    Ok(timeout(SOON, read).await.expect("in time"))
}

fn shows_w(node: &TestNode) -> bool {
    node.table.lines().ends_with(b"W")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_confirms_no_read() {
    let mut late = Vec::new();
    for _ in 0..ATTEMPTS {
        let lab = Lab::default();
        let (nodes, ids) = match two_leaders(&lab, None).await {
            Ok(begun) => begun,
            Err(what) => {
                late.push(what);
                continue;
            }
        };
        let leader = split(&nodes, ids[0]).0;
        let read = read_index(&leader.raft, &leader.acknowledgements);
        let answer = deliver(&lab, &nodes, ids, async {
            // The read may be confirmed later, when L leads again; then it returns W.
            let answer = read.await;
            answer.map(|()| shows_w(leader))
        })
        .await;
        end_all(nodes).await;
        match answer {
            Ok(answer) => {
                assert!(matches!(answer, Ok(true) | Err(ReadIndexError::Deposed { .. })), "a stale read: {answer:?}");
                return;
            }
            Err(what) => late.push(what),
        }
    }
    panic!("the answers came too late, {ATTEMPTS} times: {late:#?}");
}

/// The same with a learner that hears L alone, and so confirms whatever L sends: it must not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "seldom comes to its order of events beside other tests; the calibration runs it alone, with its bug and without"]
async fn a_learners_answers_confirm_no_read() {
    let mut late = Vec::new();
    for _ in 0..ATTEMPTS {
        let lab = Lab::default();
        let disk = Disk::new();
        let plan = FormingConfig { bootstrap: false, members: members(1..=LEARNER) };
        let learner = lab.start(LEARNER, &disk, plan).await;
        let (nodes, ids) = match two_leaders(&lab, Some(&learner)).await {
            Ok(begun) => begun,
            Err(what) => {
                learner.end().await;
                late.push(what);
                continue;
            }
        };
        let leader = split(&nodes, ids[0]).0;
        let read = read_index(&leader.raft, &leader.acknowledgements);
        let answer = deliver(&lab, &nodes, ids, async {
            let answer = read.await;
            answer.map(|()| shows_w(leader))
        })
        .await;
        learner.end().await;
        end_all(nodes).await;
        match answer {
            Ok(answer) => {
                let is_right = matches!(answer, Ok(true) | Err(ReadIndexError::Deposed { .. }));
                assert!(is_right, "a stale read, confirmed by a learner: {answer:?}");
                return;
            }
            Err(what) => late.push(what),
        }
    }
    panic!("the answers came too late, {ATTEMPTS} times: {late:#?}");
}

/// The control for the first test above: in this order of events, openraft's own read index confirms a stale read. If this test fails,
/// openraft has fixed the bug.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openraft_alone_confirms_a_stale_read() {
    let mut late = Vec::new();
    for _ in 0..ATTEMPTS {
        let lab = Lab::default();
        let (nodes, ids) = match two_leaders(&lab, None).await {
            Ok(begun) => begun,
            Err(what) => {
                late.push(what);
                continue;
            }
        };
        let leader = split(&nodes, ids[0]).0;
        let confirmed = deliver(&lab, &nodes, ids, async {
            let linearizer = leader.raft.get_read_linearizer(ReadPolicy::ReadIndex).await;
            linearizer.is_ok().then(|| shows_w(leader))
        })
        .await;
        end_all(nodes).await;
        match confirmed {
            Ok(confirmed) => {
                assert_eq!(
                    confirmed,
                    Some(false),
                    "openraft no longer confirms a read that misses an acknowledged write"
                );
                return;
            }
            Err(what) => late.push(what),
        }
    }
    panic!("the answers came too late, {ATTEMPTS} times: {late:#?}");
}
