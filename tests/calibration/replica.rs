//! What a replica promises, on one that is [`Alone`].

use std::time::Duration;

use futures::poll;
use lockkeeper::{
    machine::{Acquire, Command, LockName, Mode, Operation, Reply, SessionId, Target, Token, Wait, WaitEnd, Want},
    raft::NoReply,
};
use tempfile::TempDir;
use tokio::time::{sleep, timeout};

use crate::mutants::alone::{Alone, Disk, LONG, open, soon};

const ANN: SessionId = SessionId(1);
const BOB: SessionId = SessionId(2);
/// Sessions that live for ever, as far as a test goes.
const ENDLESS_MS: u32 = 86_400_000;
/// What must not happen is waited for no longer.
const MOMENT: Duration = Duration::from_secs(1);

fn directory() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// It leads, with nothing to do, for two seconds: its clock goes on, and the log has nothing of it.
async fn idle(node: &Alone) {
    let leadership = node.leadership_after(0).await;
    for _ in 0..20 {
        node.hand.advance(Duration::from_millis(100));
        leadership.stamp();
    }
}

/// The leader whose log does not answer may be the one that was replaced: the session that it says to have renewed may be over.
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

/// A leader idles for two seconds, and is replaced. Its successor, which knows nothing of these, opens a session that lives for one. Then the
/// first leads again: by the clock that it had, the session would be over at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_term_has_a_clock_of_its_own() {
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

/// As above. But here the first leader has stamped a batch in its first term, and gets no further before it leads again.
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

/// A client trusts its session for a TTL from the sending on. By a stamp that is older than that, the session ends earlier.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_stamped_after_what_is_in_it_was_sent() {
    let directory = directory();
    let node = Alone::lead(directory.path()).await;
    let mut sent = node.leadership_after(0).await.stamp();
    // The ticker looks at the clock ten times a second. That it does so just here, each time, is not to be expected.
    for _ in 0..5 {
        node.hand.advance(Duration::from_millis(90));
        sent.0 += 90;
        node.propose(open(ANN, ENDLESS_MS)).await;
        assert!(node.now() >= sent, "stamped {:?}, which was before the sending at {sent:?}", node.now());
    }
    node.end().await;
}

/// A node that starts has to apply what it has. Until then, it can lead and does not know what was answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_sees_all_that_was_answered_before() {
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

/// Somebody waits for a lock, and it is released by the next command of the same batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_in_its_own_batch_is_told_so() {
    let directory = directory();
    let node = Alone::lead(directory.path()).await;
    node.propose(open(ANN, ENDLESS_MS)).await;
    node.propose(open(BOB, ENDLESS_MS)).await;
    let ask = |session, operation| Command::Session { session, request: None, operation };
    assert!(matches!(node.propose(ask(ANN, acquire())).await, Reply::Acquired(_)));

    node.disk.syncs.shut();
    // As many batches as can be in flight: what comes then gathers.
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

    let call = soon(waits).await.expect("it leads").wait.expect("it has to wait");
    soon(release).await.expect("it leads");
    let end = timeout(MOMENT, call.end()).await;
    assert!(matches!(end, Ok(Some(WaitEnd::Granted(_)))), "the call was not told: {end:?}");
    for tick in before {
        soon(tick).await.expect("it did not panic").expect("it leads");
    }
    node.end().await;
}

/// A follower may apply an entry that others have, and that its own disk does not have yet. What a node notes of its log must not go beyond
/// that: it would not start after a power failure, since its log ends too early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_noted_of_the_log_is_on_the_disk() {
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
