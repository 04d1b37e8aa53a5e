//! What anyone may send to a port that speaks TLS: garbage, half handshakes that stay open, whole handshakes without a certificate, and
//! then frames as without TLS.

use std::net::SocketAddr;

use futures::future::join_all;
use lockkeeper::{
    certs::Authority,
    client::{Tls, TlsFiles},
    transport::{Connector as _, TcpConnector, tls::TlsConnector},
};
use tokio::{io::AsyncReadExt as _, io::AsyncWriteExt as _, net::TcpStream, time::timeout};

use super::{
    arrivals::say,
    frames::{EMPTY_SETTINGS, PREFACE},
    resets::{ENHANCE_YOUR_CALM, reset_a_few},
    sized,
    stage::{Descriptors, Stage, address},
};
use crate::support::{LONG, client};

/// The head of a record of TLS that holds a ClientHello of 512 bytes, which does not come.
const HALF_A_HANDSHAKE: &[u8] = b"\x16\x03\x01\x02\x00\x01";
/// More than the port of peers has slots for, and than that of clients has for connections without a call.
const HALF_HANDSHAKES: usize = 1_500;
const GARBAGE_CONNECTIONS: usize = 300;
/// Whole handshakes at each port of the leader.
const SMALL_HANDSHAKES: usize = 500;
const FULL_HANDSHAKES: usize = 20_000;

async fn secure_stage() -> Stage {
    Stage::open_with(Descriptors::AsTheyAre, |options| options.tls = true).await
}

/// Both ports of the leader.
async fn ports(stage: &Stage) -> [SocketAddr; 2] {
    let node = stage.cluster.node(crate::support::leader(&stage.cluster).await);
    [&node.config().client_listen, &node.config().peer_listen].map(|listen| address(listen))
}

/// Trusts the cluster, and has no certificate.
fn nobody(stage: &Stage) -> TlsConnector<TcpConnector> {
    let authority = Authority::open(&stage.cluster.path().join("certs")).expect("the cluster has one");
    let tls = Tls::load(TlsFiles { ca: authority.certificate(), own: None }).expect("files in order");
    TlsConnector::for_client(TcpConnector, tls)
}

/// Sends garbage on one connection after the other. Each is closed by the node. Returns their number.
async fn garbage(address: SocketAddr) -> usize {
    const AT_ONCE: usize = 20;
    let one = async |number: usize| {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let first = u8::try_from(number % 256).expect("below 256");
        let bytes: Vec<_> = (0..4096_u32).map(|at| first.wrapping_add((at.wrapping_mul(at) % 251) as u8)).collect();
        // The node may close before all of it is written.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = timeout(LONG, stream.read_to_end(&mut answer)).await.expect("the node closes it");
        Some(())
    };
    let mut closed = 0;
    for round in 0..GARBAGE_CONNECTIONS / AT_ONCE {
        let some = join_all((0..AT_ONCE).map(|number| one(round * AT_ONCE + number))).await;
        closed += some.into_iter().flatten().count();
    }
    closed
}

/// Handshakes without a certificate, as many at once as a small machine can send. Returns the number that this end completed.
async fn handshakes(connector: &TlsConnector<TcpConnector>, address: SocketAddr, count: usize) -> usize {
    const AT_ONCE: usize = 32;
    let address = address.to_string();
    let mut complete = 0;
    for _ in 0..count.div_ceil(AT_ONCE) {
        let some = join_all((0..AT_ONCE).map(|_| timeout(LONG, connector.connect(&address)))).await;
        complete += some.into_iter().filter(|stream| matches!(stream, Ok(Ok(_)))).count();
    }
    complete
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_half_handshakes_harm_no_client_of_a_port_with_tls() {
    let mut stage = secure_stage().await;
    let thrown = async |stage: &Stage| {
        let [clients, peers] = ports(stage).await;
        garbage(clients).await + garbage(peers).await
    };
    let closed = stage.survives("garbage before TLS", thrown).await;
    assert_eq!(closed, 2 * GARBAGE_CONNECTIONS, "nothing was shown");

    let halves = async |stage: &Stage| {
        let [clients, peers] = ports(stage).await;
        let held = [
            say(clients, HALF_HANDSHAKES, HALF_A_HANDSHAKE).await,
            say(peers, HALF_HANDSHAKES, HALF_A_HANDSHAKE).await,
        ];
        // A client that comes now is served.
        client(&stage.cluster).get("newcomer's").await.expect("it serves");
        held.map(|held| held.len())
    };
    let came = stage.survives("half handshakes", halves).await;
    assert_eq!(came, [HALF_HANDSHAKES; 2], "nothing was shown");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_handshakes_without_a_certificate_causes_no_election() {
    let mut stage = secure_stage().await;
    let count = sized(SMALL_HANDSHAKES, FULL_HANDSHAKES);
    let flood = async |stage: &Stage| {
        let ([clients, peers], connector) = (ports(stage).await, nobody(stage));
        tokio::join!(handshakes(&connector, clients, count), handshakes(&connector, peers, count))
    };
    let (at_clients, at_peers) = stage.survives("handshakes without a certificate", flood).await;
    println!("{at_clients} and {at_peers} of {count} handshakes were completed");
    assert!(at_clients >= count / 2 && at_peers >= count / 2, "{at_clients} and {at_peers}: nothing was shown");
}

/// The limits of HTTP/2 hold inside TLS as well.
#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_inside_tls_close_their_connection() {
    let mut stage = secure_stage().await;
    let resets = async |stage: &Stage| {
        let [clients, _] = ports(stage).await;
        let mut stream = nobody(stage).connect(&clients.to_string()).await.expect("the port takes it");
        stream.write_all(&[PREFACE, EMPTY_SETTINGS].concat()).await.expect("it reads");
        reset_a_few(&mut stream).await
    };
    let told = stage.survives("a few resets inside TLS", resets).await;
    assert_eq!(told, Some((ENHANCE_YOUR_CALM, "too_many_resets".to_owned())));
}
