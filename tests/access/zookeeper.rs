//! ZooKeeper's port on a cluster with a policy: the narrowest policy that serves, who a client is, and what ends with a token.

use std::{fs, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{client::TlsStream, rustls::ClientConfig};

use lockkeeper::{machine::Versions, proto::v1::ListSessionsRequest};

use super::stage::{Stage, from, narrowest_policy, token, tokens};
use crate::{
    encrypted::{encrypted, replace_authority, with_and_without_certificate},
    support::{LONG, until},
    zookeeper::{JuteAcl, JuteAnswer, JuteConnection, JuteRequest, JuteSession, JuteWire},
};

/// What the keys of the shop's nodes begin with.
const PREFIX: &str = "zookeeper/seats";
const TIMEOUT_MS: i32 = 40_000;
const PERSISTENT: i32 = 0;
const EPHEMERAL: i32 = 1;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const NO_AUTH: i32 = -102;
const NODE_EXISTS: i32 = -110;

/// A cluster with the policy, whose nodes serve the protocol, and with the nodes below which locks are.
async fn stage() -> Stage {
    let stage = Stage::with(Some(&narrowest_policy(PREFIX)), |options| options.zookeeper = true).await;
    for address in stage.cluster.zookeeper_endpoints() {
        until("the port serves", async || {
            let mut ops = connect(&address, "ops").await?;
            let made = ops.call(&JuteRequest::create("/seats", b"", PERSISTENT)).await?.answer;
            assert!(made.is_ok() || made == Err(NODE_EXISTS), "{made:?}");
            let made = ops.call(&JuteRequest::create("/seats/lock", b"", PERSISTENT)).await?.answer;
            (made.is_ok() || made == Err(NODE_EXISTS)).then_some(())
        })
        .await;
    }
    stage
}

/// A session of a stranger.
async fn stranger(address: &str) -> Option<JuteConnection> {
    JuteConnection::connect(address, &JuteSession::fresh(TIMEOUT_MS)).await.ok().flatten()
}

/// A session of a client that has proven an identity.
async fn connect(address: &str, identity: &str) -> Option<JuteConnection> {
    let mut connection = stranger(address).await?;
    authenticate(&mut connection, identity).await.then_some(connection)
}

/// Proves an identity by the user and the password that are its name and its token. Returns whether the connection stays.
async fn authenticate<S: AsyncRead + AsyncWrite + Unpin>(connection: &mut JuteConnection<S>, identity: &str) -> bool {
    let credentials = format!("{identity}:{}", token(identity).reveal()).into_bytes();
    let request = JuteRequest::Auth { scheme: "digest".to_owned(), credentials };
    connection.call(&request).await.is_some_and(|reply| reply.answer == Ok(JuteAnswer::Nothing))
}

async fn made<S: AsyncRead + AsyncWrite + Unpin>(connection: &mut JuteConnection<S>, path: &str, flags: i32) -> String {
    match connection.ask(&JuteRequest::create(path, b"mine", flags)).await {
        Ok(JuteAnswer::Path(path)) => path,
        other => panic!("{path}: {other:?}"),
    }
}

fn get(path: &str) -> JuteRequest {
    JuteRequest::GetData { path: path.to_owned(), watch: true }
}

fn children(path: &str) -> JuteRequest {
    JuteRequest::GetChildren { path: path.to_owned(), watch: true }
}

fn exists(path: &str) -> JuteRequest {
    JuteRequest::Exists { path: path.to_owned(), watch: true }
}

fn set(path: &str) -> JuteRequest {
    JuteRequest::SetData { path: path.to_owned(), data: None, version: -1 }
}

/// The policy refuses each of these.
async fn are_denied<S: AsyncRead + AsyncWrite + Unpin>(connection: &mut JuteConnection<S>, requests: &[JuteRequest]) {
    for request in requests {
        let answer = connection.ask(request).await;
        let is_denied = match &answer {
            Err(code) => *code == NO_AUTH,
            Ok(JuteAnswer::Parts(parts)) => parts.contains(&Err(NO_AUTH)),
            Ok(_) => false,
        };
        assert!(is_denied, "{request:?}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_for_the_nodes_is_enough_and_half_of_it_is_not() {
    let stage = stage().await;
    for address in stage.cluster.zookeeper_endpoints() {
        // The recipes: a place in a queue, a node that is the lock, what is written beside it, a multi, and the ends of all.
        let mut shop = connect(&address, "shop-1").await.expect("it serves");
        let place = made(&mut shop, "/seats/lock/n-", EPHEMERAL_SEQUENTIAL).await;
        let held = made(&mut shop, "/seats/A5", EPHEMERAL).await;
        for request in [children("/seats/lock"), get(&place), exists(&held), exists("/seats/none"), set(&held)] {
            let answer = shop.ask(&request).await;
            assert!(answer.is_ok() || answer == Err(-101), "{request:?}: {answer:?}");
        }
        let parts = vec![
            JuteRequest::Check { path: held.clone(), version: 1 },
            JuteRequest::create("/seats/note", b"", PERSISTENT),
            set("/seats/note"),
            JuteRequest::delete("/seats/note"),
        ];
        let Ok(JuteAnswer::Parts(results)) = shop.ask(&JuteRequest::Multi(parts)).await else { panic!("a multi") };
        assert!(results.iter().all(Result::is_ok), "{results:?}");

        // What the rule does not name: other nodes, also beside some of its own, and all nodes.
        let create = |path: &str, flags| JuteRequest::create(path, b"", flags);
        are_denied(
            &mut shop,
            &[
                create("/other", PERSISTENT),
                create("/other", EPHEMERAL),
                exists("/other"),
                get("/zookeeper"),
                children("/"),
                JuteRequest::GetAllChildrenNumber { path: "/".to_owned() },
                JuteRequest::AddWatch { path: "/".to_owned(), mode: 1 },
                JuteRequest::Multi(vec![set(&held), create("/other", PERSISTENT)]),
                JuteRequest::MultiRead(vec![get("/other")]),
            ],
        )
        .await;

        // Clients do not look at the answer, so a watch that this one may not have fires.
        shop.take_events();
        let again =
            JuteRequest::SetWatches { since: 0, lists: vec![Vec::new(), vec!["/other".to_owned()], Vec::new()] };
        assert_eq!(shop.ask(&again).await, Ok(JuteAnswer::Nothing));
        let events = shop.take_events();
        assert!(events.iter().any(|event| event.path == "/other"), "{events:?}");

        let mut reader = connect(&address, "shop-2").await.expect("it serves");
        assert!(reader.ask(&get(&held)).await.is_ok() && reader.ask(&children("/seats/lock")).await.is_ok());
        are_denied(
            &mut reader,
            &[
                create("/seats/lock/n-", EPHEMERAL_SEQUENTIAL),
                create("/seats/B5", EPHEMERAL),
                set(&held),
                JuteRequest::delete(&held),
                JuteRequest::SetAcl { path: held.clone(), acl: JuteAcl::open(), version: -1 },
            ],
        )
        .await;

        // Each write names the state that it is for, so it needs the right to read.
        let mut writer = connect(&address, "shop-limited").await.expect("it serves");
        let blind = [
            get(&held),
            create("/seats/lock/n-", EPHEMERAL_SEQUENTIAL),
            create("/seats/B5", EPHEMERAL),
            set(&held),
            JuteRequest::delete(&held),
        ];
        are_denied(&mut writer, &blind).await;
        drop(writer);

        let mut nobody = stranger(&address).await.expect("a session is no right");
        are_denied(&mut nobody, &[get(&held), create("/seats/B5", EPHEMERAL), JuteRequest::delete(&held)]).await;
        // A user of its own is one for access lists alone.
        let own = JuteRequest::Auth { scheme: "digest".to_owned(), credentials: b"shop-1:guessed".to_vec() };
        assert_eq!(nobody.ask(&own).await, Ok(JuteAnswer::Nothing));
        are_denied(&mut nobody, &[get(&held), JuteRequest::delete(&held)]).await;

        assert!(shop.ask(&JuteRequest::delete(&held)).await.is_ok());
        assert!(shop.call(&JuteRequest::Close).await.is_some());
    }
}

/// Who has no right without an identity may open a session all the same: clients prove who they are after that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_proves_itself_is_served_where_others_may_only_read() {
    let anonymous = "\n[[rule]]\nwho = [\"anonymous\"]\nmay = [\"read\"]\nprefix = \"zookeeper/seats\"\n";
    let policy = narrowest_policy(PREFIX) + anonymous;
    let stage = Stage::with(Some(&policy), |options| options.zookeeper = true).await;
    let address = stage.cluster.zookeeper_endpoints().remove(0);
    let mut ops = until("the port serves", async || connect(&address, "ops").await).await;
    made(&mut ops, "/seats", PERSISTENT).await;
    let mut client = stranger(&address).await.expect("a session is no right");
    assert!(client.ask(&get("/seats")).await.is_ok());
    are_denied(&mut client, &[JuteRequest::create("/seats/A5", b"", EPHEMERAL)]).await;
    assert!(authenticate(&mut client, "shop-1").await);
    made(&mut client, "/seats/A5", EPHEMERAL).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_end_when_their_token_is_withdrawn() {
    let stage = stage().await;
    let mut concerned = Vec::new();
    let mut others = Vec::new();
    for address in stage.cluster.zookeeper_endpoints() {
        let mut shop = connect(&address, "shop-1").await.expect("it serves");
        assert!(shop.ask(&children("/seats/lock")).await.is_ok());
        concerned.push(shop);
        others.push(connect(&address, "shop-2").await.expect("it serves"));
    }

    let hash = tokens().split('"').nth(3).expect("a hash").to_owned();
    fs::write(stage.tokens_file(), tokens().replacen(&hash, &"0".repeat(64), 1)).expect("written");
    for connection in &mut concerned {
        assert_eq!(connection.receive().await, None, "it ends, though it only listens");
    }
    for other in &mut others {
        assert!(other.ask(&get("/seats")).await.is_ok(), "another token is not concerned");
    }
    let address = &stage.cluster.zookeeper_endpoints()[0];
    let mut again =
        JuteConnection::connect(address, &concerned[0].session).await.expect("it listens").expect("it lives");
    assert!(authenticate(&mut again, "shop-1").await, "it is a user of its own now");
    are_denied(&mut again, &[get("/seats")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_counted_for_their_identity() {
    let stage = stage().await;
    let address = stage.cluster.zookeeper_endpoints().remove(0);
    let first = connect(&address, "shop-limited").await.expect("it serves");
    assert!(connect(&address, "shop-limited").await.is_none(), "a second one is closed");
    drop(first);
    until("the end of the first one", async || connect(&address, "shop-limited").await).await;
    connect(&address, "shop-1").await.expect("another identity is not concerned");
}

/// The owners of the sessions of a cluster, without those that have none.
async fn owners(stage: &Stage) -> Vec<String> {
    let request = from(Some("ops"), ListSessionsRequest::default());
    let listed = stage.sessions(1).await.list(request).await.expect("a list").into_inner();
    listed.sessions.into_iter().map(|session| session.owner).filter(|owner| !owner.is_empty()).collect()
}

async fn newest_version(stage: &Stage) {
    until("the newest cluster version", async || {
        let statuses = stage.cluster.statuses().await;
        let newest = Versions::OWN.highest.0;
        (statuses.len() == 3 && statuses.values().all(|status| status.cluster_version == newest)).then_some(())
    })
    .await;
}

/// Also at the node where it goes on, and though its client has shown itself only after the session was open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_belongs_to_the_identity_that_its_client_has_proven() {
    let policy = narrowest_policy(PREFIX) + "\n[limits.shop-1]\nsessions = 1\n";
    let stage = Stage::with(Some(&policy), |options| options.zookeeper = true).await;
    newest_version(&stage).await;
    let [first, second, third] = stage.cluster.zookeeper_endpoints().try_into().expect("three nodes");
    let mut ops = until("the port serves", async || connect(&first, "ops").await).await;
    made(&mut ops, "/seats", PERSISTENT).await;
    assert_eq!(ops.ask(&JuteRequest::Close).await, Ok(JuteAnswer::Nothing));

    let mut shop = connect(&first, "shop-1").await.expect("it serves");
    let held = made(&mut shop, "/seats/A5", EPHEMERAL).await;
    assert_eq!(owners(&stage).await, ["shop-1"]);
    for address in [&second, &third] {
        assert!(connect(address, "shop-1").await.is_none(), "a session too many");
    }

    // It goes on, and may do nothing until its client proves itself again, as the same.
    let moved = JuteConnection::connect(&second, &shop.session).await.expect("it listens");
    let mut moved = moved.expect("it lives");
    are_denied(&mut moved, &[JuteRequest::delete(&held)]).await;
    assert!(authenticate(&mut moved, "shop-1").await, "it is no further session");
    made(&mut moved, "/seats/A6", EPHEMERAL).await;
    let other = JuteConnection::connect(&third, &moved.session).await.expect("it listens");
    let mut other = other.expect("it lives");
    assert!(authenticate(&mut other, "ops").await);
    are_denied(&mut other, &[JuteRequest::create("/seats/B5", b"", EPHEMERAL)]).await;
    made(&mut other, "/seats/note", PERSISTENT).await;
    assert_eq!(owners(&stage).await, ["shop-1"]);

    // Its end makes room for the next one.
    assert_eq!(other.ask(&JuteRequest::Close).await, Ok(JuteAnswer::Nothing));
    until("a session of the same identity", async || connect(&first, "shop-1").await).await;
}

async fn connect_encrypted(address: &str, config: &Arc<ClientConfig>) -> Option<JuteConnection<TlsStream<TcpStream>>> {
    let stream = encrypted(address, config).await?;
    JuteConnection::over(JuteWire(stream), &JuteSession::fresh(TIMEOUT_MS)).await.ok().flatten()
}

/// With TLS: a certificate is an identity, for the policy and for access lists, and a token is one for a client without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tls_a_certificate_or_a_token_proves_who_it_is() {
    let stage = Stage::with(Some(&narrowest_policy(PREFIX)), |options| {
        options.tls = true;
        options.zookeeper = true;
    })
    .await;
    let (own, none) = with_and_without_certificate(&stage.cluster);

    for (number, address) in stage.cluster.zookeeper_endpoints().iter().enumerate() {
        let mut certified = until("the port serves", async || connect_encrypted(address, &own).await).await;
        let Ok(JuteAnswer::Identities(known)) = certified.ask(&JuteRequest::WhoAmI).await else { panic!("identities") };
        assert!(known.contains(&("x509".to_owned(), "local".to_owned())), "{known:?}");
        if number == 0 {
            made(&mut certified, "/seats", PERSISTENT).await;
        }

        // A list for the certificate: what the policy allows to all of shop's, this node keeps to its owner.
        let private = format!("/seats/private-{number}");
        let acl = vec![JuteAcl::new(31, "x509", "local")];
        let create = JuteRequest::Create { op: 1, path: private.clone(), data: None, acl, flags: EPHEMERAL, ttl_ms: 0 };
        assert!(certified.ask(&create).await.is_ok());
        assert!(certified.ask(&get(&private)).await.is_ok());

        let mut stranger = connect_encrypted(address, &none).await.expect("it listens");
        are_denied(&mut stranger, &[get("/seats")]).await;
        assert!(authenticate(&mut stranger, "shop-1").await);
        are_denied(&mut stranger, &[get("/"), get(&private)]).await;
        made(&mut stranger, &format!("/seats/{number}"), EPHEMERAL).await;

        // Plain text is no handshake: the connection ends, and nothing of ZooKeeper's is answered.
        let mut plain = TcpStream::connect(address).await.expect("it listens");
        plain.write_all(b"ruok").await.expect("it is open");
        let mut answer = Vec::new();
        let _ = timeout(LONG, plain.read_to_end(&mut answer)).await.expect("it ends");
        assert!(!answer.starts_with(b"imok"), "{answer:?}");
    }
}

/// The certificate is no further asked for, but what it proves ends with its authority: also a connection that only listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_end_when_the_authority_of_their_certificate_is_gone() {
    let stage = Stage::with(Some(&narrowest_policy(PREFIX)), |options| {
        options.tls = true;
        options.zookeeper = true;
    })
    .await;
    let (own, none) = with_and_without_certificate(&stage.cluster);
    let mut concerned = Vec::new();
    let mut others = Vec::new();
    for address in &stage.cluster.zookeeper_endpoints() {
        concerned.push(until("the port serves", async || connect_encrypted(address, &own).await).await);
        let mut other = connect_encrypted(address, &none).await.expect("it listens");
        assert!(authenticate(&mut other, "shop-1").await);
        others.push(other);
    }

    replace_authority(&stage.cluster);
    for connection in &mut concerned {
        assert_eq!(connection.receive().await, None, "it ends, though it only listens");
    }
    for other in &mut others {
        assert!(other.ask(&JuteRequest::WhoAmI).await.is_ok(), "a token is not concerned");
    }
}

/// A session is no right: who may only read gets one, which belongs to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_may_only_read_has_a_session() {
    let policy = narrowest_policy(PREFIX)
        .replace(r#"["shop-2"]"#, r#"["shop-2", "local"]"#)
        .replace(r#"["ops", "local"]"#, r#"["ops"]"#)
        + "\n[limits.local]\nsessions = 1\n";
    let stage = Stage::with(Some(&policy), |options| {
        options.tls = true;
        options.zookeeper = true;
    })
    .await;
    newest_version(&stage).await;
    let (own, none) = with_and_without_certificate(&stage.cluster);
    let address = &stage.cluster.zookeeper_endpoints()[0];
    let mut ops = until("the port serves", async || connect_encrypted(address, &none).await).await;
    assert!(authenticate(&mut ops, "ops").await);
    made(&mut ops, "/seats", PERSISTENT).await;

    let mut reader = connect_encrypted(address, &own).await.expect("a session");
    assert!(reader.ask(&get("/seats")).await.is_ok());
    are_denied(&mut reader, &[set("/seats"), JuteRequest::create("/seats/A5", b"", EPHEMERAL)]).await;
    assert!(owners(&stage).await.contains(&"local".to_owned()));

    // The limits of its identity hold, and a session too many is gone at once.
    assert!(connect_encrypted(address, &own).await.is_none(), "a session too many");
    assert_eq!(reader.ask(&JuteRequest::Close).await, Ok(JuteAnswer::Nothing));
    until("its own session is over", async || connect_encrypted(address, &own).await).await;
}
