//! Forced releases: the holder learns of each, even if the first notice is lost.

use std::time::Duration;

use lockkeeper::client::{Client, Error, Loss, Session, SessionOptions};
use tokio::time::timeout;

use super::cable::Cable;
use crate::support::{LONG, client, cluster, cluster_of, leader, long_session, until};

fn dead() -> Loss {
    Loss::Revoked { reason: "dead".to_owned() }
}

/// Waits until renewals report no revocation any more: the client has acknowledged all of them.
async fn nothing_more_is_told(client: &Client, session: &Session) {
    let attached = client.attach(session.id());
    until("nothing that is taken and not released", async || {
        attached.renew().await.ok()?.revoked.is_empty().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_reports_a_forced_release_when_the_leader_dies() {
    let mut cluster = cluster().await;
    let cable = Cable::default();
    let operator = client(&cluster);
    let builder = Client::builder(&cluster.endpoints().join(",")).connect(cable.connect());
    let options = SessionOptions { ttl: Duration::from_secs(15), label: "holder".to_string() };
    let session = builder.build().expect("the endpoints are valid").open(options).await.expect("a session");
    let held = session.acquire("seat").await.expect("free");

    // The leader's immediate notice does not arrive, and is lost with the leader.
    cable.cut();
    let forced = operator.force_release("seat", "dead").now().await.expect("an operator may");
    assert_eq!(forced.len(), 1);
    let leading = leader(&cluster).await;
    cluster.node_mut(leading).kill().await;
    cable.mend();
    assert_eq!(timeout(LONG, held.lost()).await.expect("it is told"), dead());
    assert_eq!(session.loss(), None, "the session lives on");
    nothing_more_is_told(&operator, &session).await;
    let released = held.release().await;
    assert!(matches!(&released, Err(Error::Lost(loss)) if *loss == dead()), "{released:?}");
}

/// A keep-alive stream buffers 64 notices, and the next regular renewal is minutes away.
#[tokio::test(flavor = "multi_thread")]
async fn all_of_300_simultaneous_forced_releases_are_reported() {
    const PERMITS: u32 = 300;
    let cluster = cluster_of(1).await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let mut guards = Vec::new();
    for _ in 0..PERMITS {
        guards.push(session.acquire("pool").permits(PERMITS).await.expect("free"));
    }
    let forced = client.force_release("pool", "dead").now().await.expect("an operator may");
    assert_eq!(forced.len(), guards.len());
    for guard in &guards {
        assert_eq!(timeout(LONG, guard.lost()).await.expect("it is told"), dead());
    }
    nothing_more_is_told(&client, &session).await;
    assert_eq!(session.loss(), None, "the session lives on");
    let again = session.acquire("pool").permits(PERMITS).await.expect("free");
    assert!(guards.iter().all(|guard| guard.token() < again.token()));
}
