//! Promises of a replica, tested on an [`Alone`] one.

use std::time::Duration;

use futures::poll;
use lockkeeper::{
    machine::{Acquire, Command, LockName, Mode, Operation, Reply, SessionId, Target, Token, Wait, WaitEnd, Want},
    raft::NoReply,
};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use super::alone::{Alone, Disk, LONG, open, soon};

const ANN: SessionId = SessionId(1);
const BOB: SessionId = SessionId(2);
/// A TTL that is longer than any test, in ms.
const ENDLESS_MS: u32 = 86_400_000;
/// How long a test waits for an event that must not happen.
const MOMENT: Duration = Duration::from_secs(1);

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// The leader is idle for 2 s: its clock advances, without an entry in the log.
async fn idle(node: &Alone) {
    let leadership = node.leadership_after(0).await;
    for _ in 0..20 {
        node.hand.advance(Duration::from_millis(100));
        leadership.stamp();
    }
}

/// A leader that cannot commit may have been replaced: the session whose renewal it acknowledges may have expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_is_acknowledged_when_it_is_committed() {
    let directory = directory();
    let node = Alone::lead(directory.path()).await;
    node.propose(open(ANN, ENDLESS_MS)).await;
    node.disk.syncs.shut();
    let renewed = node.replica.renew(ANN, MOMENT).await;
    assert!(matches!(renewed, Err(NoReply::Unknown)), "acknowledged before it was committed: {renewed:?}");
    node.disk.syncs.open();
    assert!(node.replica.renew(ANN, LONG).await.is_ok());
    node.end().await;
}

/// A leader is idle for 2 s and is replaced. Its successor, whose clock does not have these 2 s, opens a session of 1 s. Then the first
/// node leads again: by its old clock, the session would expire at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_term_has_its_own_clock() {
    let directory = directory();
    let node = Alone::lead(directory.path()).await;
    idle(&node).await;
    let term = node.another_leads(node.now(), open(ANN, 1000)).await;
    let leadership = node.leadership_after(term).await;
    node.hand.advance(Duration::from_millis(300));
    node.propose(Command::Tick).await;
    assert!(node.is_alive(ANN), "a session of 1000 ms was ended after 300 ms, at {:?}", node.now());
    for _ in 0..2 {
        node.hand.advance(Duration::from_millis(350));
        leadership.stamp();
    }
    node.propose(Command::Tick).await;
    assert!(!node.is_alive(ANN), "it is over after 1000 ms");
    node.end().await;
}

/// As above, but the first leader has stamped a batch in its first term, and is blocked before the proposal until it leads again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_batch_belongs_to_the_term_of_its_stamp() {
    let directory = directory();
    let node = Alone::lead(directory.path()).await;
    idle(&node).await;
    let (stamped, go_on) = node.hand.stop_the_next();
    let replica = node.replica.clone();
    let late = tokio::spawn(async move { replica.propose(Command::Tick, LONG).await.map(|delivery| delivery.reply) });
    tokio::task::block_in_place(|| stamped.recv_timeout(LONG)).expect("a batch is stamped");
    let term = node.another_leads(node.now(), open(ANN, 1000)).await;
    node.leadership_after(term).await;
    go_on.send(()).expect("it waits");
    let late = soon(late).await.expect("it did not panic");
    assert!(node.is_alive(ANN), "a session of 1000 ms was ended at once, at {:?}; the batch: {late:?}", node.now());
    assert_eq!(late, Err(NoReply::NotLeader));
    node.end().await;
}

/// A client trusts its session for a TTL from the sending. With a stamp from before the sending, the session would expire earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_stamped_after_its_commands_were_sent() {
    let directory = directory();
    let node = Alone::lead(directory.path()).await;
    let mut sent = node.leadership_after(0).await.stamp();
    // The ticker reads the clock ten times a second. Five rounds, since it is unlikely to read it within each of them.
    for _ in 0..5 {
        node.hand.advance(Duration::from_millis(90));
        sent.0 += 90;
        node.propose(open(ANN, ENDLESS_MS)).await;
        assert!(node.now() >= sent, "stamped {:?}, which was before the sending at {sent:?}", node.now());
    }
    node.end().await;
}

/// A node that starts must apply its log first. Before that, it can lead without the state of acknowledged commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_sees_all_acknowledged_commands() {
    let directory = directory();
    let node = Alone::lead(directory.path()).await;
    node.propose(open(ANN, ENDLESS_MS)).await;
    node.end().await;

    let disk = Disk::default();
    disk.reads.shut();
    let node = Alone::start(directory.path(), disk).await;
    node.is_elected().await;
    let look = async |patience| node.replica.read(patience, |applied| applied.machine.session(ANN).is_some()).await;
    let early = look(MOMENT).await;
    assert!(early.is_err(), "it was answered from a table that had not come so far: {early:?}");
    node.disk.reads.open();
    assert_eq!(look(LONG).await, Ok(true));
    node.end().await;
}

/// A wait for a lock begins, and the next command of the same batch releases the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_in_its_own_batch_is_answered() {
    let directory = directory();
    let node = Alone::lead(directory.path()).await;
    node.propose(open(ANN, ENDLESS_MS)).await;
    node.propose(open(BOB, ENDLESS_MS)).await;
    let ask = |session, operation| Command::Session { session, request: None, operation };
    assert!(matches!(node.propose(ask(ANN, acquire())).await, Reply::Acquired(_)));

    node.disk.syncs.shut();
    // The maximum of batches in flight: further commands gather in one batch.
    let mut before = Vec::new();
    for _ in 0..2 {
        let appended = node.last_index();
        let replica = node.replica.clone();
        before.push(tokio::spawn(async move { replica.propose(Command::Tick, LONG).await.map(drop) }));
        node.has_appended(appended + 1).await;
    }
    let mut waits = Box::pin(node.replica.propose(ask(BOB, acquire()), LONG));
    assert!(poll!(&mut waits).is_pending());
    let mut release = Box::pin(node.replica.propose(ask(ANN, Operation::Release(Target::Grant(Token(1)))), LONG));
    assert!(poll!(&mut release).is_pending());
    node.disk.syncs.open();

    let mut call = soon(waits).await.expect("it leads").wait.expect("it has to wait");
    soon(release).await.expect("it leads");
    let end = timeout(MOMENT, call.end()).await;
    assert!(matches!(end, Ok(Some(WaitEnd::Granted(_)))), "the call was not told: {end:?}");
    for tick in before {
        soon(tick).await.expect("it did not panic").expect("it leads");
    }
    node.end().await;
}

/// A follower may apply a committed entry that is not on its own disk yet. The index that it notes outside of its log must not exceed its
/// durable entries: after a power failure the log would end before that index, and the node would refuse to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_notes_only_durable_entries_of_its_log() {
    let directory = directory();
    let node = Alone::lead(directory.path()).await;
    node.propose(open(ANN, ENDLESS_MS)).await;
    node.disk.syncs.shut();
    let (answer, entry) = node.hears(node.now(), open(BOB, ENDLESS_MS));
    node.has_applied(entry.index).await;
    let noted = node.replica.applied_and_durable();
    assert!(noted < entry.index, "{noted} is noted before it is on the disk");
    node.disk.syncs.open();
    assert_eq!(soon(answer).await.expect("it did not panic"), Ok(()));
    soon(async {
        while node.replica.applied_and_durable() < entry.index {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    node.end().await;
}

fn acquire() -> Operation {
    let name = LockName::new("jobs").expect("a name");
    let want = Want { name, mode: Mode::Exclusive, data: None, keep_data: false, must_exist: false };
    Operation::Acquire(Acquire::new(vec![want], Wait::Forever, 0).expect("an acquire"))
}
