//! A limit of the size of files (`ulimit -f`): the node ends with an error that says so, and goes on once the limit is raised.

use lockkeeper::raft::log::EXIT_FAILED;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tokio::time::timeout;

use crate::support::{LONG, client, cluster_of, long_session, until};

/// More than the text log of a node, and less than its write-ahead journal.
const FILE_BYTES: u64 = 256 << 10;
const DATA: [u8; 16 << 10] = [7; 16 << 10];

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_may_not_make_a_file_larger_says_so_and_loses_nothing() {
    let mut cluster = cluster_of(1).await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("before").await.expect("free");
    let name = "before";
    let token = held.token();
    let pid = cluster.node(1).pid().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
    let limit = Rlimit { current: Some(FILE_BYTES), maximum: None };
    prlimit(Some(pid), Resource::Fsize, limit).expect("its limit may be lowered");

    let filling = tokio::spawn(async move {
        for number in 0.. {
            // An error leaves the outcome open.
            if let Ok(guard) = session.acquire(&format!("fill/{number}")).data(&DATA).no_wait().await {
                std::mem::forget(guard);
            }
        }
    });
    let (_, status) = timeout(LONG, cluster.next_death()).await.expect("it cannot write its journal");
    let tail = cluster.node(1).log_tail();
    assert_eq!(status.code(), Some(EXIT_FAILED.into()), "{status:?}: {tail}");
    for part in ["a file is as large as this process may make it", "ulimit -f", "node1/data"] {
        assert!(tail.contains(part), "its last lines do not say {part}: {tail}");
    }
    filling.abort();

    cluster.node_mut(1).spawn().expect("it starts");
    cluster.ready(LONG).await.expect("without the limit it serves");
    let answer = until("an answer", async || client.check(name, token).await.ok()).await;
    assert!(answer.held, "what was acknowledged is there");
}
