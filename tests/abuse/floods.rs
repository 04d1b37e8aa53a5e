//! Floods of valid calls of each kind, [`AT_ONCE`] at one time.

use std::{future::ready, time::Duration};

use futures::{StreamExt as _, stream};
use lockkeeper::{
    client::{Client, Error, NewData, Session, SessionOptions},
    machine::{Data, LockName, Mode, Want},
};
use tokio::time::timeout;

use super::{
    sized,
    stage::{Descriptors, Stage},
};
use crate::support::{LONG, client, leader, long_session};

/// Concurrent calls of a flood.
const AT_ONCE: usize = 64;
/// The largest data of a lock, bytes.
const DATA: [u8; 16 * 1024] = [7; 16 * 1024];

/// Makes `calls` calls and requires an answer in time for each; a refusal is an answer. Returns the number that were not refused.
async fn flood<T>(calls: usize, call: impl AsyncFn(usize) -> Result<T, Error>) -> usize {
    let answers = stream::iter(0..calls).map(async |number| {
        let answer = timeout(LONG, call(number)).await.expect("each call is answered in time");
        assert!(!matches!(answer, Err(Error::NoCluster { .. })), "the cluster serves");
        answer.is_ok()
    });
    answers.buffer_unordered(AT_ONCE).filter(|done| ready(*done)).count().await
}

/// The largest acquire: 64 locks with names of up to 512 bytes and 16 KiB of data each, slightly more than the maximum of a message.
fn largest(number: usize) -> Vec<Want> {
    let want = |lock: usize| Want {
        name: LockName::new(&format!("{number}/{lock}/{}", "n".repeat(500))).expect("512 bytes at most"),
        mode: Mode::Exclusive,
        data: Some(Data::new(&DATA).expect("16 KiB")),
        keep_data: false,
        must_exist: false,
    };
    (0..64).map(want).collect()
}

async fn sessions(client: &Client, count: usize) -> Vec<Session> {
    let open = async |_| {
        let options = SessionOptions { ttl: Duration::from_secs(60), label: "flood".to_owned() };
        client.open(options).await
    };
    stream::iter(0..count)
        .map(open)
        .buffer_unordered(AT_ONCE)
        .map(|session| session.expect("a session"))
        .collect()
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_each_call_harms_no_other_client() {
    let mut stage = Stage::open(Descriptors::AsTheyAre).await;
    let calls = sized(1_000, 50_000);
    let other = client(&stage.cluster);
    let session = long_session(&other).await;
    let held = session.acquire("flooded").await.expect("free");
    let bob = long_session(&other).await;

    stage
        .survives("gets", async |_: &Stage| assert_eq!(flood(calls, async |_| other.get("flooded").await).await, calls))
        .await;
    stage
        .survives("checks", async |_: &Stage| {
            assert_eq!(flood(calls, async |_| other.check("flooded", held.token()).await).await, calls);
        })
        .await;
    stage.survives("lists", async |_: &Stage| _ = flood(calls, async |_| other.list("", "").await).await).await;
    let update = async |_| held.update("flooded", NewData::Held(&DATA)).await;
    // Fill the log's caches before the baseline of memory is taken.
    flood(4_000, update).await;
    stage.remember_memory();
    stage.survives("updates", async |_: &Stage| _ = flood(calls, update).await).await;
    stage
        .survives("acquires that find it busy", async |_: &Stage| {
            assert_eq!(flood(calls, async |_| bob.acquire("flooded").no_wait().await).await, 0);
        })
        .await;
    stage
        .survives("acquires that wait and are given up", async |_: &Stage| {
            let moment = Duration::from_millis(5);
            let wait = async |_| _ = timeout(moment, bob.acquire("flooded").wait_forever().into_future()).await;
            stream::iter(0..calls / 4).map(wait).buffer_unordered(AT_ONCE).collect::<()>().await;
        })
        .await;
    stage
        .survives("the largest acquires", async |_: &Stage| {
            let acquire = async |number| match bob.acquire_wants(largest(number)).await {
                Ok(held) => held.release().await,
                Err(error) => Err(error),
            };
            assert!(flood(calls / 100, acquire).await > 0);
        })
        .await;
    stage
        .survives("sessions", async |_: &Stage| {
            let sessions = sessions(&other, sized(500, 10_000)).await;
            let close = async |session: Session| session.close().await.expect("it was alive");
            stream::iter(sessions).map(close).buffer_unordered(AT_ONCE).collect::<()>().await;
        })
        .await;
}

/// A flood of several kinds of calls during an election.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_during_an_election_is_answered() {
    let mut stage = Stage::open(Descriptors::AsTheyAre).await;
    let first = leader(&stage.cluster).await;
    stage.cluster.node_mut(first).kill().await;
    let flooded = async |stage: &Stage| {
        let (other, calls) = (client(&stage.cluster), sized(300, 5_000));
        let open = async |number: usize| {
            let session = long_session(&other).await;
            let held = session.acquire(&format!("flooded/{number}")).await?;
            held.update(&format!("flooded/{number}"), NewData::Held(&DATA[..256])).await?;
            other.list("flooded/", "").await?;
            held.release().await?;
            session.close().await
        };
        assert_eq!(flood(calls, open).await, calls);
    };
    stage.suffers("a flood during an election", flooded).await;
}
