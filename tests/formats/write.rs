//! Writes a set of fixtures: `scripts/fixtures.sh`.

use std::{env, fs};

use lockkeeper::proto::v1;
use tokio::time::{Duration, sleep};

use super::{
    archive, content, fixtures,
    node::{self, SNAPSHOT_ENTRIES, locks},
    samples::samples,
};

/// The name of the new set.
const SET: &str = "LOCKKEEPER_FIXTURES";

#[test]
#[ignore = "writes a new set: run it by scripts/fixtures.sh"]
fn write_a_set() {
    let name = env::var(SET).unwrap_or_else(|_| panic!("{SET} names the set, for example v2"));
    let set = fixtures().join(&name);
    assert!(!set.exists(), "{} exists: a set is never changed", set.display());
    let directory = tempfile::tempdir().expect("a place for temporary files");
    node::run(directory.path(), async |url| fill(&url).await);
    archive::pack(directory.path(), &set.join("data"));
    // Read from what was packed, as the test does.
    let unpacked = tempfile::tempdir().expect("a place for temporary files");
    archive::unpack(&set.join("data"), unpacked.path());
    fs::write(set.join("content.txt"), content::of(unpacked.path())).expect("written");
    let lines = samples().into_iter().map(|sample| format!("{} {}\n", sample.name, archive::hex(&sample.bytes)));
    fs::write(set.join("messages.txt"), lines.collect::<String>()).expect("written");
}

/// Leaves something of each kind in the table: in the snapshot, and in the log after it.
async fn fill(url: &str) {
    let ann = node::open_session(url, 0xa).await;
    let bob = node::open_session(url, 0xb).await;
    node::acquire(url, &ann, "jobs/nightly").await;
    let permit = |limit| v1::Mode { kind: Some(v1::mode::Kind::Permit(v1::mode::Permit { limit })) };
    let shared = || v1::Mode { kind: Some(v1::mode::Kind::Shared(v1::mode::Shared {})) };
    for session in [&ann, &bob] {
        let want = |name: &str, mode| v1::Want {
            name: name.to_owned(),
            mode: Some(mode),
            data: Some(b"kept\0".to_vec()),
            keep_data: true,
            ..Default::default()
        };
        let request = v1::AcquireRequest {
            session_id: session.clone(),
            request: Some(v1::RequestId { id: 5, lowest: 5, ..Default::default() }),
            locks: vec![want("pool", permit(3)), want("readers", shared())],
            lock_delay_ms: 250,
            ..Default::default()
        };
        locks(url).await.acquire(request).await.expect("answered");
    }
    let resize = v1::ResizeRequest { name: "pool".to_owned(), permits: 5 };
    locks(url).await.resize(resize).await.expect("a semaphore in use");
    let force = v1::ForceReleaseRequest {
        name: "readers".to_owned(),
        reason: "for the fixture".to_owned(),
        ..Default::default()
    };
    locks(url).await.force_release(force).await.expect("held");
    // A request with an id, so that its place stays when the node ends.
    let waiting = v1::AcquireRequest {
        session_id: bob.clone(),
        request: Some(v1::RequestId { id: 6, lowest: 5, ..Default::default() }),
        locks: vec![v1::Want { name: "jobs/nightly".to_owned(), ..Default::default() }],
        wait: Some(v1::acquire_request::Wait::WaitForever(true)),
        ..Default::default()
    };
    let mut stub = locks(url).await;
    tokio::spawn(async move { stub.acquire(waiting).await });
    // Enough entries that a snapshot is written, and some after it.
    for number in 0..2 * SNAPSHOT_ENTRIES {
        node::acquire(url, &ann, &format!("many/{number}")).await;
    }
    // A snapshot is written beside the entries.
    sleep(Duration::from_secs(1)).await;
    node::acquire(url, &bob, "after/the/snapshot").await;
}
