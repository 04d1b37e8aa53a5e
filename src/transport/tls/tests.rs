use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
};

use lockkeeper_certs::{Authority, Files};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::{Duration, Instant, sleep},
};

use super::{rereading::FilesReread, *};

/// Connects to whatever was put in.
#[derive(Clone, Default)]
struct Wire(Arc<Mutex<Option<DuplexStream>>>);

impl Connector for Wire {
    type Stream = DuplexStream;

    async fn connect(&self, _: &str) -> io::Result<DuplexStream> {
        self.0.lock().expect("no panic").take().ok_or_else(|| io::ErrorKind::ConnectionRefused.into())
    }
}

/// The certificates of a cluster.
struct Cluster {
    _directory: TempDir,
    authority: Authority,
}

impl Cluster {
    fn new(id: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(directory.path(), id).expect("an authority");
        Self { _directory: directory, authority }
    }

    fn node(&self, id: u64) -> Tls {
        let files = self.authority.node(id, &["127.0.0.1".to_owned()], 1).expect("a certificate");
        load(&self.authority.certificate(), Some(files))
    }

    fn client(&self, name: &str) -> Tls {
        load(&self.authority.certificate(), Some(self.authority.client(name, 1).expect("a certificate")))
    }

    fn nobody(&self) -> Tls {
        load(&self.authority.certificate(), None)
    }
}

fn load(ca: &Path, own: Option<Files>) -> Tls {
    let own = own.map(|Files { certificate, key }| (certificate, key));
    Tls::load(TlsFiles { ca: ca.to_owned(), own }).expect("files in order")
}

const ADDRESS: &str = "127.0.0.1:7101";

/// A connection from `connect` to a port: whom the port saw, or the error of each end.
async fn meet(
    server: &Tls,
    port: Port,
    connect: impl FnOnce(Wire) -> TlsConnector<Wire>,
) -> Result<Option<Subject>, (String, String)> {
    let (near, far) = duplex(64 << 10);
    let connector = connect(Wire(Arc::new(Mutex::new(Some(near)))));
    let acceptor = Acceptor::new(server.clone(), port).expect("a node\'s certificate");
    let accepting = async {
        let (mut stream, shown) = acceptor.accept(far).await.map_err(|error| error.to_string())?;
        stream.write_all(b"hello").await.map_err(|error| error.to_string())?;
        stream.shutdown().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(shown.map(|shown| shown.subject().clone()))
    };
    let connecting = async {
        let mut stream = connector.connect(ADDRESS).await.map_err(|error| error.to_string())?;
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.map_err(|error| error.to_string())?;
        assert_eq!(heard, b"hello");
        Ok::<_, String>(())
    };
    match tokio::join!(accepting, connecting) {
        (Ok(subject), Ok(())) => Ok(subject),
        (accepted, connected) => Err((accepted.err().unwrap_or_default(), connected.err().unwrap_or_default())),
    }
}

fn node_of(tls: &Tls, expected: Option<u64>) -> impl FnOnce(Wire) -> TlsConnector<Wire> + use<> {
    let tls = tls.clone();
    move |wire| {
        let connector = TlsConnector::for_node(wire, Some(tls));
        expected.map_or(connector.clone(), |id| connector.to_node(id))
    }
}

fn client_of(tls: &Tls) -> impl FnOnce(Wire) -> TlsConnector<Wire> + use<> {
    let tls = tls.clone();
    move |wire| TlsConnector::for_client(wire, tls)
}

#[tokio::test]
async fn each_end_knows_the_other() {
    let cluster = Cluster::new("shop");
    let one = cluster.node(1);
    let two = cluster.node(2);
    let ann = cluster.client("ann");
    assert_eq!(meet(&one, Port::Peers, node_of(&two, Some(1))).await, Ok(two.subject()));
    assert_eq!(meet(&one, Port::Peers, node_of(&two, None)).await, Ok(two.subject()));
    assert_eq!(meet(&one, Port::Clients, client_of(&ann)).await, Ok(ann.subject()));
    assert_eq!(ann.subject(), Some(Subject::Client { cluster: "shop".into(), name: "ann".into() }));
}

/// What an attacker may have: nothing, another authority\'s certificate, that of another cluster, one for the other port, that of another
/// node.
#[tokio::test]
async fn strangers_are_refused_at_both_ports() {
    let shop = Cluster::new("shop");
    let other = Cluster::new("shop");
    let one = shop.node(1);
    let two = shop.node(2);
    let stranger = {
        let Cluster { authority, .. } = &other;
        let files = authority.node(2, &["127.0.0.1".to_owned()], 1).expect("a certificate");
        load(&shop.authority.certificate(), Some(files))
    };
    let (at_port, _) = meet(&one, Port::Peers, client_of(&shop.nobody())).await.expect_err("nobody");
    assert!(at_port.contains("peer sent no certificates"), "{at_port}");
    assert_eq!(meet(&one, Port::Clients, client_of(&shop.nobody())).await, Ok(None));
    for port in [Port::Peers, Port::Clients] {
        let (at_port, told) = meet(&one, port, node_of(&stranger, Some(1))).await.expect_err("a stranger");
        assert!(at_port.contains("UnknownIssuer"), "{at_port}");
        assert!(told.contains("does not trust the authority"), "{told}");
    }
    let (at_port, told) = meet(&one, Port::Peers, client_of(&shop.client("ann"))).await.expect_err("a client");
    assert!(at_port.contains("accepts certificates of nodes only"), "{at_port}");
    assert!(told.contains("refuses this certificate"), "{told}");
    let (_, told) = meet(&one, Port::Peers, node_of(&two, Some(3))).await.expect_err("node 1, not 3");
    assert!(told.contains("is not node 3"), "{told}");
}

/// One authority for several clusters: their certificates count in their own.
#[tokio::test]
async fn a_certificate_counts_in_its_own_cluster() {
    let shop = Cluster::new("shop");
    let directory = tempfile::tempdir().expect("a directory");
    // The same authority under another name, as an organization\'s own authority would sign for several clusters.
    let key = shop.authority.certificate().with_file_name("ca-key.pem");
    std::fs::copy(key, directory.path().join("ca-key.pem")).expect("copied");
    std::fs::copy(shop.authority.certificate(), directory.path().join("ca.pem")).expect("copied");
    let bank = Authority::open(directory.path()).expect("it opens").for_cluster("bank");
    let theirs = |files: Files| load(&bank.certificate(), Some(files));
    let node = theirs(bank.node(2, &["127.0.0.1".to_owned()], 1).expect("a certificate"));
    let client = theirs(bank.client("ann", 1).expect("a certificate"));
    for (port, connect) in [(Port::Peers, &node), (Port::Clients, &client)] {
        let connect = connect.clone();
        // Without the check at the connecting end: an attacker has none.
        let blind = move |wire| {
            let mut connector = TlsConnector::for_client(wire, connect);
            connector.expected = Expected::Blind;
            connector
        };
        let (at_port, _) = meet(&shop.node(1), port, blind).await.expect_err("another cluster");
        assert!(at_port.contains("not of cluster shop"), "{at_port}");
    }
    let (_, told) = meet(&shop.node(1), Port::Clients, client_of(&client)).await.expect_err("another cluster");
    assert!(told.contains("not of cluster bank"), "{told}");
}

#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let cluster = Cluster::new("shop");
    let expired =
        load(&cluster.authority.certificate(), Some(cluster.authority.client("old", 0).expect("a certificate")));
    let node = cluster.node(1);
    // It expires within the second in which it was made, which counts in whole.
    let deadline = Instant::now() + Duration::from_secs(30);
    let (at_port, told) = loop {
        match meet(&node, Port::Clients, client_of(&expired)).await {
            Err(refused) => break refused,
            Ok(_) => assert!(Instant::now() < deadline, "it does not expire"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert!(at_port.contains("expired"), "{at_port}");
    assert!(told.contains("has expired"), "{told}");
}

/// One handshake after the other by the same client, which keeps what it needs to resume a session.
async fn meet_again(node: &Tls, port: Port, client: &Arc<ClientConfig>) -> Result<Option<Subject>, String> {
    let (near, far) = duplex(64 << 10);
    let acceptor = Acceptor::new(node.clone(), port).expect("a node\'s certificate");
    let accepting = async {
        let (mut stream, shown) = acceptor.accept(far).await.map_err(|error| error.to_string())?;
        stream.write_all(b"hello").await.map_err(|error| error.to_string())?;
        stream.shutdown().await.map_err(|error| error.to_string())?;
        Ok::<_, String>(shown.map(|shown| shown.subject().clone()))
    };
    let connecting = async {
        let connector = tokio_rustls::TlsConnector::from(Arc::clone(client));
        let name = server_name(ADDRESS).expect("a name");
        // It reads to the end, and so the tickets, if there are some.
        if let Ok(mut stream) = connector.connect(name, near).await {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    };
    tokio::join!(accepting, connecting).0
}

#[tokio::test]
async fn a_client_that_was_known_is_refused_once_its_certificate_has_expired() {
    let cluster = Cluster::new("shop");
    let node = cluster.node(1);
    for port in [Port::Clients, Port::EitherHttp, Port::Console] {
        let deadline = Instant::now() + Duration::from_secs(30);

        // A certificate for no day expires within the second in which it was made: another one is made until it comes in time.
        let known = loop {
            let files = cluster.authority.client("old", 0).expect("a certificate");
            let old = load(&cluster.authority.certificate(), Some(files));
            let mut config = old.current().client(Expected::Host).expect("a configuration");
            config.alpn_protocols.clear();
            let config = Arc::new(config);
            match meet_again(&node, port, &config).await {
                Ok(subject) => {
                    assert_eq!(subject, old.subject());
                    break config;
                }
                Err(_) => assert!(Instant::now() < deadline, "{port:?}: it never comes in time"),
            }
        };

        let refused = loop {
            match meet_again(&node, port, &known).await {
                Err(refused) => break refused,
                Ok(_) => assert!(Instant::now() < deadline, "{port:?}: it is let in for ever"),
            }
            sleep(Duration::from_millis(50)).await;
        };
        assert!(refused.contains("expired"), "{port:?}: {refused}");
    }
}

/// What a port knows of a connection that it has accepted.
async fn shown(node: &Tls, port: Port, connector: impl FnOnce(Wire) -> TlsConnector<Wire>) -> Option<ShownCertificate> {
    let (near, far) = duplex(64 << 10);
    let mut connector = connector(Wire(Arc::new(Mutex::new(Some(near)))));
    connector.expected = Expected::Blind;
    let acceptor = Acceptor::new(node.clone(), port).expect("a node\'s certificate");
    let (accepted, _connected) = tokio::join!(acceptor.accept(far), connector.connect(ADDRESS));
    accepted.ok()?.1
}

/// The file of authorities with the certificates of these ones.
fn write_authorities(file: &Path, authorities: &[&[u8]]) {
    std::fs::write(file, authorities.concat()).expect("written");
}

#[tokio::test]
async fn a_certificate_counts_for_as_long_as_its_authority_does() {
    let cluster = Cluster::new("shop");
    let other = Cluster::new("shop");
    let ca = cluster.authority.certificate();
    let [before, after] = [&ca, &other.authority.certificate()].map(|file| std::fs::read(file).expect("it is there"));
    let one = cluster.node(1);
    let two = cluster.node(2);
    let ann = shown(&one, Port::Clients, client_of(&cluster.client("ann"))).await.expect("a certificate");
    let peer = shown(&one, Port::Peers, node_of(&two, Some(1))).await.expect("a certificate");
    let withdrawals = [&ann, &peer].map(|shown| {
        let shown = shown.clone();
        tokio::spawn(async move { shown.withdrawn().await })
    });

    // The own certificate made anew, or a further authority, changes nothing for those who are connected.
    cluster.authority.node(1, &["127.0.0.1".to_owned()], 2).expect("a certificate");
    assert!(one.reload().expect("in order"));
    write_authorities(&ca, &[&before, &after]);
    assert!(one.reload().expect("in order"));
    for shown in [&ann, &peer] {
        assert_eq!(shown.check(), Ok(()));
    }
    assert!(withdrawals.iter().all(|withdrawal| !withdrawal.is_finished()));

    write_authorities(&ca, &[&after]);
    assert!(one.reload().expect("in order"));
    for (shown, withdrawal) in [&ann, &peer].into_iter().zip(withdrawals) {
        let refused = shown.check().expect_err("nobody vouches for it");
        assert!(refused.to_string().contains("by no authority that this node still trusts"), "{refused}");
        assert_eq!(withdrawal.await.expect("no panic"), refused);
    }
    write_authorities(&ca, &[&before]);
    assert!(one.reload().expect("in order"));
    assert_eq!(ann.check(), Ok(()));
}

#[tokio::test]
async fn a_connection_does_not_outlive_the_certificate_of_its_client() {
    let cluster = Cluster::new("shop");
    let node = cluster.node(1);
    let deadline = Instant::now() + Duration::from_secs(30);
    let own = |files: Files| load(&cluster.authority.certificate(), Some(files));
    let (client, peer) = loop {
        let ann = own(cluster.authority.client("ann", 0).expect("a certificate"));
        let two = own(cluster.authority.node(2, &["127.0.0.1".to_owned()], 0).expect("a certificate"));
        let client = shown(&node, Port::Clients, client_of(&ann)).await;
        let peer = shown(&node, Port::Peers, node_of(&two, None)).await;
        // They expire within the second in which they were made.
        if let Some(both) = client.zip(peer) {
            break both;
        }
        assert!(Instant::now() < deadline, "they never come in time");
    };

    let withdrawn = tokio::time::timeout(Duration::from_secs(10), client.withdrawn()).await.expect("it expires");
    assert!(withdrawn.to_string().ends_with("lockkeeper://shop/client/ann, has expired"), "{withdrawn}");
    assert_eq!(client.check(), Err(withdrawn));
    // The nodes of a cluster would lose each other all at once.
    assert_eq!(peer.check(), Ok(()));
}

/// A further authority is added to the file while the certificates of nodes have expired, and all that the cluster has is its connections.
#[tokio::test]
async fn a_peer_whose_certificate_has_expired_stays_for_as_long_as_its_authority_does() {
    let cluster = Cluster::new("shop");
    let other = Cluster::new("shop");
    let ca = cluster.authority.certificate();
    let [before, after] = [&ca, &other.authority.certificate()].map(|file| std::fs::read(file).expect("it is there"));
    let one = cluster.node(1);
    let deadline = Instant::now() + Duration::from_secs(30);

    let (two, peer) = loop {
        let files = cluster.authority.node(2, &["127.0.0.1".to_owned()], 0).expect("a certificate");
        let two = load(&ca, Some(files));
        // It expires within the second in which it was made.
        if let Some(peer) = shown(&one, Port::Peers, node_of(&two, None)).await {
            break (two, peer);
        }
        assert!(Instant::now() < deadline, "it never comes in time");
    };
    while shown(&one, Port::Peers, node_of(&two, None)).await.is_some() {
        assert!(Instant::now() < deadline, "it does not expire");
        sleep(Duration::from_millis(50)).await;
    }

    write_authorities(&ca, &[&before, &after]);
    assert!(one.reload().expect("in order"));
    assert_eq!(peer.check(), Ok(()), "its authority is there");
    write_authorities(&ca, &[&after]);
    assert!(one.reload().expect("in order"));
    let refused = peer.check().expect_err("nobody vouches for it");
    assert!(refused.to_string().contains("by no authority that this node still trusts"), "{refused}");
}

#[tokio::test]
async fn a_client_goes_to_the_host_that_it_meant() {
    let cluster = Cluster::new("shop");
    let files = cluster.authority.node(1, &["10.0.0.1".to_owned()], 1).expect("a certificate");
    let elsewhere = load(&cluster.authority.certificate(), Some(files));
    let ann = cluster.client("ann");
    let (_, told) = meet(&elsewhere, Port::Clients, client_of(&ann)).await.expect_err("another host");
    assert!(told.contains("not valid for name \"127.0.0.1\""), "{told}");
    // A client that listens is no node.
    assert!(Acceptor::new(ann, Port::Clients).expect_err("no node").to_string().contains("accepts no connections"));
}

#[tokio::test]
async fn changed_files_are_used_by_new_connections_and_bad_ones_are_not() {
    let cluster = Cluster::new("shop");
    let one = cluster.node(1);
    let before = one.expires().expect("it has a certificate");
    assert!(!one.reload().expect("nothing changed"));
    cluster.authority.node(1, &["127.0.0.1".to_owned()], 2).expect("a certificate");
    assert!(one.reload().expect("in order"));
    assert!(one.expires().expect("it has a certificate") > before);

    let file = one.shared.files.own.clone().expect("it has a certificate").0;
    std::fs::write(&file, "nonsense").expect("written");
    assert!(one.reload().expect_err("no certificate").to_string().contains("has no certificate in PEM"));
    let two = cluster.authority.node(2, &["127.0.0.1".to_owned()], 1).expect("a certificate");
    std::fs::copy(two.certificate, &file).expect("copied");
    let error = one.reload().expect_err("the key is another");
    assert!(error.to_string().contains("is not the key of"), "{error}");
    assert_eq!(
        meet(&one, Port::Clients, client_of(&cluster.client("ann"))).await.ok().flatten(),
        cluster.client("ann").subject()
    );
}

/// `cat new.pem old.pem > ca.pem` writes twice: what is there in between would withdraw all certificates of the old authority.
#[test]
fn changed_files_are_used_once_they_read_the_same_twice() {
    let cluster = Cluster::new("shop");
    let other = Cluster::new("shop");
    let ca = cluster.authority.certificate();
    let [old, new] = [&ca, &other.authority.certificate()].map(|file| std::fs::read(file).expect("it is there"));
    let one = cluster.node(1);
    let mut looks = FileLooks::default();
    let mut refresh = || one.refresh(&mut looks);
    assert_eq!(refresh(), Ok(FilesReread::Same));

    let parts: [&[&[u8]]; 3] = [&[&new], &[&new, &old[..20]], &[&new, &old]];
    for part in parts {
        write_authorities(&ca, part);
        assert_eq!(refresh(), Ok(FilesReread::Unsettled));
        assert_eq!(one.current().generation, 0, "a part is not used");
    }
    assert_eq!(refresh(), Ok(FilesReread::Changed));
    assert_eq!((one.current().generation, one.current().roots.len()), (1, 2));
    assert_eq!(refresh(), Ok(FilesReread::Same));

    // What cannot be used changes nothing, however often it is read.
    std::fs::write(&ca, "nonsense").expect("written");
    assert_eq!(refresh(), Ok(FilesReread::Unsettled));
    for _ in 0..2 {
        assert!(refresh().expect_err("nothing is in it").to_string().contains("has no certificate in PEM"));
    }
    write_authorities(&ca, &[&new, &old]);
    assert_eq!(refresh(), Ok(FilesReread::Same));
}

/// As if the client had looked at its files long ago.
fn forget_last_look(tls: &Tls) {
    *tls.shared.looked.lock().expect("no panic") -= Duration::from_secs(3);
}

/// It reads its files and is known by them. On a busy machine a connection does not wait for the files, and the next one has them.
async fn connects_anew_as(client: &Tls, node: &Tls, subject: Option<Subject>) {
    let deadline = Instant::now() + Duration::from_secs(30);
    let expected = Ok(subject);
    loop {
        forget_last_look(client);
        let met = meet(node, Port::Clients, client_of(client)).await;
        if met == expected {
            return;
        }
        assert!(Instant::now() < deadline, "{met:?} is not {expected:?}");
    }
}

/// Nodes end the connections of a client when its certificate expires. Its operator has renewed it in time.
#[tokio::test]
async fn a_client_connects_with_the_renewed_certificate_of_its_files() {
    let cluster = Cluster::new("shop");
    let node = cluster.node(1);
    let files = cluster.authority.client("ann", 0).expect("a certificate");
    let certificate = files.certificate.clone();
    let ann = load(&cluster.authority.certificate(), Some(files));
    let deadline = Instant::now() + Duration::from_secs(30);
    while meet(&node, Port::Clients, client_of(&ann)).await.is_ok() {
        assert!(Instant::now() < deadline, "it does not expire");
        sleep(Duration::from_millis(50)).await;
    }

    cluster.authority.client("ann", 1).expect("a certificate");
    connects_anew_as(&ann, &node, ann.subject()).await;

    // Files that cannot be used change nothing.
    std::fs::write(&certificate, "nonsense").expect("written");
    forget_last_look(&ann);
    assert_eq!(meet(&node, Port::Clients, client_of(&ann)).await, Ok(ann.subject()));
}

/// Whatever comes instead of a handshake ends the connection, and no more.
#[tokio::test]
async fn garbage_is_refused() {
    let cluster = Cluster::new("shop");
    let _: SocketAddr = ADDRESS.parse().expect("an address");
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0x16, 3, 1, 0xff, 0xff], &[0xff; 4096]]
    {
        let (mut near, far) = duplex(64 << 10);
        near.write_all(garbage).await.expect("there is room");
        near.shutdown().await.expect("it ends");
        let acceptor = Acceptor::new(cluster.node(1), Port::Peers).expect("a certificate");
        assert!(acceptor.accept(far).await.is_err());
    }
}

/// A cluster that was restored from another one, with the same authority.
struct Restored {
    _directory: TempDir,
    old: Cluster,
    new: Authority,
}

impl Restored {
    fn new() -> Self {
        let old = Cluster::new("shop");
        let directory = tempfile::tempdir().expect("a directory");
        let new = old.authority.succeed("shop-2", directory.path()).expect("an authority");
        Self { _directory: directory, old, new }
    }

    /// A node of the new cluster. `accepts`: the cluster whose clients it takes.
    fn node(&self, id: u64, accepts: Option<&str>) -> Tls {
        let files = self.new.node(id, &["127.0.0.1".to_owned()], 1).expect("a certificate");
        let files = TlsFiles { ca: self.new.certificate(), own: Some((files.certificate, files.key)) };
        Tls::load_accepting(files, accepts.map(str::to_owned)).expect("files in order")
    }
}

#[tokio::test]
async fn clients_of_an_earlier_cluster_go_on_with_the_new_one_if_it_takes_them() {
    let shop = Restored::new();
    let ann = shop.old.client("ann");
    let accepting = shop.node(1, Some("shop"));
    for port in [Port::Clients, Port::EitherHttp, Port::Console] {
        // At the two ports of HTTP a client of ours has no protocol in common.
        let met = meet(&accepting, port, client_of(&ann)).await;
        assert!(met == Ok(ann.subject()) || port == Port::Console, "{port:?}: {met:?}");
    }
    let (at_port, told) = meet(&shop.node(1, None), Port::Clients, client_of(&ann)).await.expect_err("not configured");
    assert!(at_port.contains("not of cluster shop-2"), "{at_port}");
    assert!(told.contains("such as the one before a restore"), "{told}");
    let (at_port, _) =
        meet(&shop.node(1, Some("other")), Port::Clients, client_of(&ann)).await.expect_err("another one");
    assert!(at_port.contains("not of cluster shop-2"), "{at_port}");

    // From the first meeting on, its own old cluster is over for it, though not for a process that met the old one only.
    let (_, told) = meet(&shop.old.node(2), Port::Clients, client_of(&ann)).await.expect_err("an old node that runs");
    assert!(told.contains("shop-2 has taken the place of cluster shop: stop that node for good"), "{told}");
    let fresh = shop.old.client("ann");
    assert_eq!(meet(&shop.old.node(2), Port::Clients, client_of(&fresh)).await, Ok(fresh.subject()));

    // A certificate without the URI, such as one of a cluster that continues another one, is none of a successor.
    let unrelated = Authority::open(shop.new.directory()).expect("it opens").for_cluster("bank");
    let files = unrelated.node(1, &["127.0.0.1".to_owned()], 1).expect("a certificate");
    let bank = load(&unrelated.certificate(), Some(files));
    let (_, told) = meet(&bank, Port::Clients, client_of(&shop.old.client("ann"))).await.expect_err("a stranger");
    assert!(told.contains("not of cluster shop"), "{told}");
}

/// The names of a client in two clusters are of one client only if it has met the one in the place of the other.
#[tokio::test]
async fn a_client_takes_a_certificate_of_the_cluster_that_has_taken_the_place_of_its_own() {
    let shop = Restored::new();
    let node = shop.node(1, Some("shop"));
    let ann = shop.old.client("ann");
    let old = ann.subject();
    let (certificate, key) = ann.shared.files.own.clone().expect("it has a certificate");
    let put = |name: &str| {
        let files = shop.new.client(name, 1).expect("a certificate");
        std::fs::copy(&files.key, &key).expect("copied");
        std::fs::copy(&files.certificate, &certificate).expect("copied");
        forget_last_look(&ann);
    };

    put("ann");
    assert_eq!(meet(&node, Port::Clients, client_of(&ann)).await, Ok(old), "it has not met the new cluster yet");
    let new = Some(Subject::Client { cluster: "shop-2".into(), name: "ann".into() });
    connects_anew_as(&ann, &node, new.clone()).await;

    // It is of the new cluster from then on, and nobody else.
    let (_, told) = meet(&shop.old.node(2), Port::Clients, client_of(&ann)).await.expect_err("an old node that runs");
    assert!(told.contains("not of cluster shop-2"), "{told}");
    put("bob");
    assert_eq!(meet(&node, Port::Clients, client_of(&ann)).await, Ok(new));
}

#[tokio::test]
async fn nodes_of_an_earlier_cluster_stay_strangers_both_ways() {
    let shop = Restored::new();
    let old = shop.old.node(2);
    let new = shop.node(1, Some("shop"));
    let blind = |tls: &Tls| {
        let tls = tls.clone();
        move |wire| {
            let mut connector = TlsConnector::for_client(wire, tls);
            connector.expected = Expected::Blind;
            connector
        }
    };
    for port in [Port::Peers, Port::Clients] {
        let (at_port, _) = meet(&new, port, blind(&old)).await.expect_err("an old node");
        assert!(at_port.contains("none of its nodes; stop that node for good"), "{port:?}: {at_port}");
    }
    // Whether it knows the id of the other one, or asks to join.
    for expected in [Some(1), None] {
        let (_, told) = meet(&new, Port::Peers, node_of(&old, expected)).await.expect_err("the new cluster's node");
        assert!(told.contains("not of cluster shop"), "{told}");
        let (_, told) = meet(&old, Port::Peers, node_of(&new, expected.map(|_| 2))).await.expect_err("the old one's");
        assert!(told.contains("not of cluster shop-2"), "{told}");
    }
    let (_, told) = meet(&new, Port::Clients, client_of(&old)).await.expect_err("it asks as a client");
    assert!(told.contains("not of cluster shop"), "{told}");
    let (at_port, _) = meet(&new, Port::Peers, client_of(&shop.old.client("ann"))).await.expect_err("a client");
    assert!(at_port.contains("accepts certificates of nodes only"), "{at_port}");
}
