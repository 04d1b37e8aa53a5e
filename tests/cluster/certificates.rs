//! TLS between all, and what a stranger gets from either port.

use std::{fs, time::Duration};

use lockkeeper::{
    certs::{Authority, CERTIFICATE_DAYS, Files},
    client::{Client, Error, SessionOptions, Tls, TlsFiles},
    local::LocalCluster,
    proto::v1::{
        AddMemberRequest, CloseSessionRequest, ForceReleaseRequest, GetRequest, KeepAliveRequest, RemoveMemberRequest,
        StatusRequest, WatchRequest, cluster_client::ClusterClient, locks_client::LocksClient,
        sessions_client::SessionsClient,
    },
    raft::messages::{HelloRequest, peer_client::PeerClient},
    transport::{SPEAKS_TLS, TcpConnector, channel, tls::TlsConnector},
};
use tempfile::TempDir;
use tonic::{Code, Status, transport::Channel};

use crate::support::*;

async fn secure_cluster() -> LocalCluster {
    cluster_with(|options| options.tls = true).await
}

/// The authority of the cluster, for certificates that the test wants.
fn authority(cluster: &LocalCluster) -> Authority {
    Authority::open(&cluster.path().join("certs")).expect("the cluster has one")
}

fn tls(ca: &Authority, own: Option<Files>) -> Tls {
    let own = own.map(|Files { certificate, key }| (certificate, key));
    Tls::load(TlsFiles { ca: ca.certificate(), own }).expect("files in order")
}

/// An authority that the cluster does not know, for a cluster of the same name.
fn other_authority(cluster: &LocalCluster) -> (TempDir, Authority) {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(directory.path(), &cluster.node(1).config().cluster_id);
    (directory, authority.expect("an authority"))
}

fn hosts() -> [String; 1] {
    ["127.0.0.1".to_owned()]
}

/// How long a call is repeated that no node answers.
const UNANSWERED: Duration = Duration::from_secs(2);

/// A client of the cluster that shows these certificates, or none.
fn client_with(cluster: &LocalCluster, tls: Option<&Tls>, limit: Duration) -> Client {
    let endpoints = cluster.endpoints().join(",").replace("https://", "");
    let builder = Client::builder(&endpoints).call_limit(limit);
    tls.map_or(builder.clone(), |tls| builder.tls(tls)).build().expect("valid endpoints")
}

#[tokio::test]
async fn a_cluster_with_certificates_serves_fails_over_and_grows() {
    let mut cluster = secure_cluster().await;
    let client = client(&cluster);
    let session = long_session(&client).await;
    let first = session.acquire("a").await.expect("granted");
    let token = first.token();
    first.release().await.expect("released");
    for status in cluster.statuses().await.into_values() {
        let left = status.certificate_seconds_left.expect("each node has a certificate");
        assert!(left > i64::from(CERTIFICATE_DAYS - 1) * 86_400, "{left}");
    }

    // A waiting acquire is forwarded by followers, from node to node.
    let leading = leader(&cluster).await;
    cluster.node_mut(leading).kill().await;
    let second = session.acquire("a").wait_at_most(LONG).await.expect("granted by another leader");
    assert!(second.token() > token);
    second.release().await.expect("released");
    cluster.node_mut(leading).spawn().expect("it starts");
    cluster.ready(LONG).await.expect("all three serve");

    cluster.add(4).expect("its configuration").spawn().expect("it starts");
    until("a fourth voter", async || {
        let statuses = cluster.statuses().await;
        let voters =
            |status: &lockkeeper::proto::v1::StatusResponse| status.members.iter().filter(|it| it.voter).count();
        statuses.values().any(|status| voters(status) == 4).then_some(())
    })
    .await;
    session.close().await.expect("closed");
}

#[tokio::test]
async fn strangers_get_nothing_at_the_port_of_clients() {
    let cluster = secure_cluster().await;
    let (_directory, other) = other_authority(&cluster);
    let own = authority(&cluster);
    let theirs = other.client("ann", 1).expect("a certificate");
    // It trusts the cluster, which does not trust it.
    let stranger = TlsFiles { ca: own.certificate(), own: Some((theirs.certificate, theirs.key)) };
    let stranger = Tls::load(stranger).expect("files in order");
    let another = authority(&cluster).for_cluster("another").client("ann", 1).expect("a certificate");
    let cases = [
        ("plain text", None),
        ("another authority", Some(stranger)),
        ("another cluster", Some(tls(&own, Some(another)))),
    ];
    for (what, tls) in cases {
        let client = client_with(&cluster, tls.as_ref(), UNANSWERED);
        let answer = client.get("a").await;
        assert!(matches!(answer, Err(Error::NoCluster { .. })), "{what}: {answer:?}");
    }

    match client_with(&cluster, Some(&tls(&own, None)), LONG).get("a").await {
        Err(Error::Refused(refused)) => assert!(refused.message.contains("no anonymous callers"), "{refused:?}"),
        other => panic!("it showed nothing: {other:?}"),
    }
    let node = own.node(9, &hosts(), 1).expect("a certificate");
    let as_node = client_with(&cluster, Some(&tls(&own, Some(node))), LONG);
    match as_node.get("a").await {
        Err(Error::Refused(refused)) => assert!(refused.message.contains("node 9's: use a client's"), "{refused:?}"),
        other => panic!("a node is no client: {other:?}"),
    }
    let ann = own.client("ann", 1).expect("a certificate");
    client_with(&cluster, Some(&tls(&own, Some(ann))), LONG).get("a").await.expect("it serves as before");
}

/// Each end that finds the other one without TLS says so, and what to do.
#[tokio::test]
async fn plain_text_and_tls_do_not_meet_and_say_why() {
    let secure = secure_cluster().await;
    let endpoints = secure.endpoints().join(",").replace("https://", "");
    let get = ["get", "a", "--timeout", "3s", "--endpoints"];
    let (code, _, err) = text(&output(&mut lockkeeper(&[&get[..], &[&endpoints]].concat())).await);
    assert!(code != 0 && err.contains(SPEAKS_TLS), "{code} {err}");
    let session =
        client_with(&secure, None, UNANSWERED).open(SessionOptions::default()).await.map(drop).expect_err("plain text");
    assert!(session.to_string().contains(SPEAKS_TLS), "{session}");
    let peers = channel(TcpConnector, &secure.node(1).config().peer_listen);
    let status = hello(peers, &secure, 2).await.expect_err("plain text");
    assert!(format!("{status:?}").contains(SPEAKS_TLS), "{status:?}");

    let plain = cluster_with(|options| options.nodes = Some(1)).await;
    let trusting = tls(&authority(&secure), None);
    let endpoint = plain.node(1).config().client_listen.clone();
    let builder = Client::builder(&endpoint).call_limit(Duration::from_secs(2)).tls(&trusting);
    let error = builder.build().expect("a valid endpoint").get("a").await.expect_err("no TLS there");
    assert!(error.to_string().contains("the other end does not speak TLS"), "{error}");
    let at_peers = TlsConnector::for_client(TcpConnector, trusting);
    let status = hello(channel(at_peers, &plain.node(1).config().peer_listen), &plain, 2).await.expect_err("no TLS");
    assert!(format!("{status:?}").contains("the other end does not speak TLS"), "{status:?}");
}

/// The answer of node 1, at the port of peers, to who says that it is this node.
async fn hello(channel: Channel, cluster: &LocalCluster, node_id: u64) -> Result<u64, Status> {
    let cluster_id = cluster.node(1).config().cluster_id.clone();
    let request = HelloRequest { cluster_id, node_id, incarnation: vec![7; 16].into(), members: Vec::new() };
    Ok(PeerClient::new(channel).hello(request).await?.into_inner().node_id)
}

#[tokio::test]
async fn strangers_learn_nothing_at_the_port_of_peers() {
    let cluster = secure_cluster().await;
    let (_directory, other) = other_authority(&cluster);
    let own = authority(&cluster);
    let address = cluster.node(1).config().peer_listen.clone();
    let at = |tls: Tls| channel(TlsConnector::for_client(TcpConnector, tls), &address);
    let theirs = other.node(2, &hosts(), 1).expect("a certificate");
    let stranger = TlsFiles { ca: own.certificate(), own: Some((theirs.certificate, theirs.key)) };
    let another = authority(&cluster).for_cluster("another").node(2, &hosts(), 1).expect("a certificate");
    let client = own.client("ann", 1).expect("a certificate");
    let cases = [
        ("plain text", channel(TcpConnector, &address)),
        ("no certificate", at(tls(&own, None))),
        ("another authority", at(Tls::load(stranger).expect("files in order"))),
        ("another cluster", at(tls(&own, Some(another)))),
        ("a client", at(tls(&own, Some(client)))),
    ];
    for (what, channel) in cases {
        // The connection ends before there is an answer, so the status is of this end.
        let status = hello(channel, &cluster, 2).await.expect_err(what);
        assert_ne!(status.code(), Code::PermissionDenied, "{what}: {status:?}");
    }

    // The certificate of node 9 is good, and for node 9 alone.
    let nine = || at(tls(&own, Some(own.node(9, &hosts(), 1).expect("a certificate"))));
    let status = hello(nine(), &cluster, 2).await.expect_err("it is not node 2");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert_eq!(hello(nine(), &cluster, 9).await.expect("it is node 9"), 1);
}

/// The certificate of a node that was removed is valid for a year more.
#[tokio::test]
async fn a_node_that_was_removed_forwards_nothing_any_more() {
    let mut cluster = secure_cluster().await;
    let leading = leader(&cluster).await;
    let gone = leading % 3 + 1;
    let own = authority(&cluster);
    let three = tls(&own, Some(own.node(gone, &hosts(), 1).expect("a certificate")));
    let address = cluster.node(leading).config().peer_listen.clone();
    let at_peers = || channel(TlsConnector::for_client(TcpConnector, three.clone()), &address);
    let get = async || {
        let request = GetRequest { name: "a".to_owned(), ..GetRequest::default() };
        LocksClient::new(at_peers()).get(request).await
    };
    until("an answer: a member is believed", async || get().await.ok()).await;
    client(&cluster).remove_member(gone).await.expect("it may be removed");
    cluster.next_death().await;
    // Nothing can be said by a node that has just lost the leadership.
    let status = until("a refusal", async || {
        let status = get().await.expect_err("it was removed");
        (status.code() != Code::Unavailable).then_some(status)
    })
    .await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert!(status.message().contains("was removed from this cluster"), "{status:?}");
}

/// What it forwards for its clients would go on for as long as they like.
#[tokio::test]
async fn the_streams_of_a_node_end_when_it_is_removed() {
    // A leader also ends them when it loses the leadership.
    let ends = until("a leader that stays", async || {
        let ends = ends_of_streams_at_removal().await.unwrap_or_else(|status| [status.clone(), status]);
        ends.iter().all(|end| end.code() != Code::Unavailable).then_some(ends)
    })
    .await;
    for (what, end) in ["watch", "renewals"].into_iter().zip(ends) {
        assert_eq!(end.code(), Code::PermissionDenied, "{what}: {end:?}");
    }
}

/// How the watch and the renewals of a node end, which are open when it is removed. Or why they cannot be opened.
async fn ends_of_streams_at_removal() -> Result<[Status; 2], Status> {
    let mut cluster = secure_cluster().await;
    let leading = leader(&cluster).await;
    let gone = leading % 3 + 1;
    let own = authority(&cluster);
    let certificate = tls(&own, Some(own.node(gone, &hosts(), 1).expect("a certificate")));
    let address = cluster.node(leading).config().peer_listen.clone();
    let at_peers = channel(TlsConnector::for_client(TcpConnector, certificate), &address);
    let all = WatchRequest::default();
    let mut watch = LocksClient::new(at_peers.clone()).watch(all).await?.into_inner();
    // Kept open by this end.
    let session = long_session(&client(&cluster)).await;
    let renewal = KeepAliveRequest { session_id: session.id().to_string(), ..KeepAliveRequest::default() };
    let renewals = tokio_stream::StreamExt::chain(tokio_stream::iter([renewal]), tokio_stream::pending());
    let mut kept = SessionsClient::new(at_peers).keep_alive(renewals).await?.into_inner();

    client(&cluster).remove_member(gone).await.expect("it may be removed");
    cluster.next_death().await;
    Ok([end_of(&mut watch).await, end_of(&mut kept).await])
}

/// How a stream ends.
async fn end_of<T>(stream: &mut tonic::Streaming<T>) -> Status {
    let end = async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => break Status::ok("it ended in order"),
                Err(status) => break status,
            }
        }
    };
    tokio::time::timeout(LONG, end).await.expect("it ends")
}

/// The file of authorities that all nodes of a cluster on this machine read.
fn write_authorities(cluster: &LocalCluster, authorities: &[&[u8]]) {
    let file = cluster.path().join("certs").join("ca.pem");
    let beside = file.with_extension("new");
    fs::write(&beside, authorities.concat()).expect("written");
    fs::rename(beside, file).expect("renamed");
}

/// A channel to a node's port of clients with this certificate.
fn channel_with(cluster: &LocalCluster, node: u64, tls: &Tls) -> Channel {
    channel(TlsConnector::for_client(TcpConnector, tls.clone()), &cluster.node(node).config().client_listen)
}

/// The way that the documentation shows, as it meets the one client that has got no new certificate.
#[tokio::test]
async fn what_an_authority_has_signed_ends_with_it_also_on_open_connections() {
    let cluster = cluster_with(|options| (options.tls, options.nodes) = (true, Some(1))).await;
    let (_directory, new) = other_authority(&cluster);
    let old = authority(&cluster);
    let [before, after] = [&old, &new].map(|authority| fs::read(authority.certificate()).expect("it is there"));
    let ann = tls(&old, Some(old.client("ann", 1).expect("a certificate")));
    let bob = new.client("bob", 1).expect("a certificate");
    let bob = TlsFiles { ca: old.certificate(), own: Some((bob.certificate, bob.key)) };
    let bob = Tls::load(bob).expect("files in order");

    let watch = async |channel: &Channel| LocksClient::new(channel.clone()).watch(WatchRequest::default()).await;
    let get = async |channel: &Channel| {
        let request = GetRequest { name: "a".to_owned(), ..GetRequest::default() };
        LocksClient::new(channel.clone()).get(request).await
    };
    let at_ann = channel_with(&cluster, 1, &ann);
    let mut of_ann = watch(&at_ann).await.expect("its authority is trusted").into_inner();
    write_authorities(&cluster, &[&before, &after]);
    let (at_bob, mut of_bob) = until("the new authority is trusted, too", async || {
        let channel = channel_with(&cluster, 1, &bob);
        let watch = watch(&channel).await.ok()?.into_inner();
        Some((channel, watch))
    })
    .await;
    for _ in 0..3 {
        of_ann.message().await.expect("it goes on").expect("it goes on");
    }
    get(&at_ann).await.expect("it goes on");

    write_authorities(&cluster, &[&after]);
    let end = end_of(&mut of_ann).await;
    assert_eq!(end.code(), Code::Unavailable, "{end:?}");
    assert!(end.message().contains("by no authority that this node still trusts: connect again"), "{end:?}");
    get(&at_ann).await.expect_err("neither on this connection nor on a new one");
    get(&at_bob).await.expect("the other one is not concerned");
    for _ in 0..3 {
        of_bob.message().await.expect("it goes on").expect("it goes on");
    }
}

/// Nodes read the files while they hold connections of the old authority: these end, and others take their place.
#[tokio::test]
async fn a_cluster_serves_while_its_authority_is_replaced_and_then_knows_no_node_of_the_old_one() {
    let cluster = secure_cluster().await;
    let (_directory, new) = other_authority(&cluster);
    let old = authority(&cluster);
    let [before, after] = [&old, &new].map(|authority| fs::read(authority.certificate()).expect("it is there"));
    let leading = leader(&cluster).await;

    // A stream that was opened by who has the old key of a member, and trusts whatever the nodes show later.
    let both = cluster.path().join("both.pem");
    fs::write(&both, [&before[..], &after].concat()).expect("written");
    let Files { certificate, key } = old.node(leading % 3 + 1, &hosts(), 1).expect("a certificate");
    // Who has these does not get the renewed ones, which a client reads when it connects again.
    let [certificate, key] = [certificate, key].map(|file| {
        let stolen = file.with_extension("stolen");
        fs::copy(&file, &stolen).expect("copied");
        stolen
    });
    let stolen = Tls::load(TlsFiles { ca: both, own: Some((certificate, key)) }).expect("files in order");
    let address = cluster.node(leading).config().peer_listen.clone();
    let at_peers = channel(TlsConnector::for_client(TcpConnector, stolen), &address);
    let mut of_member =
        until("a watch", async || LocksClient::new(at_peers.clone()).watch(WatchRequest::default()).await.ok())
            .await
            .into_inner();

    write_authorities(&cluster, &[&before, &after]);
    let made: Vec<_> = (1..=3).map(|node| new.node(node, &hosts(), 30).expect("a certificate")).collect();
    for files in made.into_iter().chain([new.client("local", 30).expect("a certificate")]) {
        for file in [files.key, files.certificate] {
            let name = file.file_name().expect("a name").to_owned();
            fs::copy(&file, cluster.path().join("certs").join(name)).expect("copied");
        }
    }
    until("the new certificates of all nodes", async || {
        let statuses = cluster.statuses().await;
        let is_new = |left: Option<i64>| left.is_some_and(|left| left < 31 * 86_400);
        (statuses.len() == 3 && statuses.values().all(|status| is_new(status.certificate_seconds_left))).then_some(())
    })
    .await;

    let client = client(&cluster);
    let session = long_session(&client).await;
    let held = session.acquire("held").await.expect("free");

    write_authorities(&cluster, &[&after]);
    let end = end_of(&mut of_member).await;
    assert_eq!(end.code(), Code::Unavailable, "{end:?}");
    let request = GetRequest { name: "a".to_owned(), ..GetRequest::default() };
    LocksClient::new(at_peers).get(request).await.expect_err("nor on a new connection");

    until("grants by nodes that have met anew", async || {
        session.acquire("turn").wait_at_most(Duration::from_secs(5)).await.ok()?.release().await.ok()
    })
    .await;
    assert!(client.check("held", held.token()).await.expect("it serves").held, "nobody lost anything");
}

/// A certificate of the authority for a node that was never added, or is not yet.
#[tokio::test]
async fn a_node_that_is_no_member_forwards_nothing_and_adds_only_itself() {
    let cluster = secure_cluster().await;
    let leading = leader(&cluster).await;
    let own = authority(&cluster);
    let nine = tls(&own, Some(own.node(9, &hosts(), 1).expect("a certificate")));
    let config = cluster.node(leading).config();
    let at = |address: &str| channel(TlsConnector::for_client(TcpConnector, nine.clone()), address);
    let at_peers = at(&config.peer_listen);
    let at_clients = at(&config.client_listen);

    let held = client(&cluster).open(SessionOptions::default()).await.expect("a session");
    let guard = held.acquire("held").await.expect("free");
    let mut locks = LocksClient::new(at_peers.clone());
    let force = ForceReleaseRequest { name: "held".to_owned(), reason: "it can".to_owned(), ..Default::default() };
    let close = CloseSessionRequest { session_id: held.id().to_string(), ..Default::default() };
    let refused = [
        ("get", locks.get(GetRequest { name: "held".to_owned(), ..Default::default() }).await.map(drop)),
        ("force", locks.force_release(force).await.map(drop)),
        ("close", SessionsClient::new(at_peers.clone()).close_session(close).await.map(drop)),
        (
            "remove",
            ClusterClient::new(at_peers.clone())
                .remove_member(RemoveMemberRequest { node_id: leading })
                .await
                .map(drop),
        ),
    ];
    for (what, answer) in refused {
        let status = answer.expect_err(what);
        assert_eq!(status.code(), Code::PermissionDenied, "{what}: {status:?}");
        assert!(status.message().contains("node 9 is not a member"), "{what}: {status:?}");
    }
    assert!(client(&cluster).check("held", guard.token()).await.expect("it serves").held);

    for (port, channel) in [("peers", at_peers), ("clients", at_clients)] {
        let mut asks = ClusterClient::new(channel);
        asks.status(StatusRequest::default()).await.unwrap_or_else(|status| panic!("{port}: {status:?}"));
        let another = AddMemberRequest {
            node_id: leading % 3 + 1,
            client_address: "127.0.0.1:1".to_owned(),
            peer_address: "127.0.0.1:1".to_owned(),
            ..Default::default()
        };
        let status = asks.add_member(another).await.expect_err("it is another node's place");
        assert_eq!(status.code(), Code::PermissionDenied, "{port}: {status:?}");
        assert!(status.message().contains("may ask to be added itself"), "{port}: {status:?}");
    }
}

/// A certificate is made anew while the cluster runs, by the command that an operator uses.
#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart() {
    let cluster = cluster_with(|options| (options.tls, options.nodes) = (true, Some(1))).await;
    let seconds_left = async || cluster.node(1).status().await.ok()?.certificate_seconds_left;
    let before = until("its status", seconds_left).await;
    let directory = cluster.path().join("certs");
    let directory = directory.to_str().expect("UTF-8");
    let arguments = ["certs", "node", "1", "--hosts", "127.0.0.1", "--days", "800", "--dir", directory];
    let (code, _, err) = text(&output(&mut lockkeeper(&arguments)).await);
    assert_eq!(code, 0, "{err}");
    until("the new certificate", async || seconds_left().await.filter(|left| *left > before + 400 * 86_400)).await;
    client(&cluster).get("a").await.expect("it serves");
}

/// A directory that is older than the rule for its names. After the loss of the cluster it is the one that there is.
#[tokio::test]
async fn a_successor_is_made_also_where_two_clients_have_a_file_in_common() {
    let directory = tempfile::tempdir().expect("a directory");
    let certs = directory.path().join("certs");
    let authority = Authority::create(&certs, "shop").expect("an authority");
    authority.node(1, &hosts(), 1).expect("a certificate");
    let b = authority.client("b", 1).expect("a certificate");
    // The key of b has the name of the certificate of b-key, and this is the name of that one's key.
    let common = certs.join("client-b-key-key.pem");
    fs::copy(&b.key, &common).expect("copied");
    assert_eq!(authority.clients().expect("readable"), ["b", "b-key"]);

    let into = directory.path().join("certs-2");
    let [dir, made] = [&certs, &into].map(|path| path.to_str().expect("UTF-8"));
    let arguments = ["certs", "successor", "shop-2", "--dir", dir, "--into", made];
    let (code, out, err) = text(&output(&mut lockkeeper(&arguments)).await);
    assert_eq!(code, 0, "{err}");
    let file = common.to_str().expect("UTF-8");
    assert!(err.contains("client b-key is left out") && err.contains(file), "{err}");
    assert!(out.contains("client b  ") && !out.contains("client b-key"), "{out}");
    let after = Authority::open(&into).expect("it was made");
    assert_eq!((after.cluster(), after.clients().expect("readable")), ("shop-2", vec!["b".to_owned()]));
}

/// A request that a client refuses by itself names what is missing.
#[tokio::test]
async fn https_without_authorities_is_refused_before_anything_is_sent() {
    assert!(matches!(Client::new("https://127.0.0.1:1"), Err(Error::NoAuthorities(_))));
}
