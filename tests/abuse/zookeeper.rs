//! ZooKeeper's port: frames that cannot be or do not end, sessions of others, replies that nobody reads, requests with very many parts,
//! watches by the hundred thousand, and very many sessions. The bystander has a node by ZooKeeper's protocol, too.

use std::{net::SocketAddr, time::Duration};

use futures::{StreamExt as _, future::join_all, stream};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    arrivals::say,
    sized,
    stage::{Descriptors, MEMORY_SLACK_MIB, Stage, address, memory_mib},
};
use crate::{
    support::{LONG, leader, until},
    zookeeper::{JuteAnswer, JuteConnection, JuteRequest, JuteSession, JuteWire, JuteWriter},
};

/// More connections than the port has for those that have sent no whole frame.
const SMALL_CROWD: usize = 400;
const FULL_CROWD: usize = 5_000;
/// Sessions that are opened, one after the other, by clients that do not come back.
const SMALL_SESSIONS: usize = 600;
const FULL_SESSIONS: usize = 100_000;
/// Connections with a session at one time. The port has 10,500 places where descriptors allow them.
const SMALL_STAY: usize = 300;
const FULL_STAY: usize = 12_000;
/// The port's budgets for requests that are not answered and for replies that are not read, together.
const BUDGETS_MIB: u64 = 96;
/// The longest and the shortest timeout that are granted.
pub(super) const LONGEST_MS: i32 = 40_000;
const SHORTEST_MS: i32 = 4_000;
/// Paths of one frame.
const PATHS: usize = 10_000;
/// Watches that a connection may have.
const WATCHES_MAX: usize = 131_072;

const BAD_ARGUMENTS: i32 = -8;
const MARSHALLING: i32 = -5;
const NO_NODE: i32 = -101;
const QUOTA_EXCEEDED: i32 = -125;

async fn stage() -> Stage {
    Stage::open_with(Descriptors::AsTheyAre, |options| options.zookeeper = true).await
}

/// ZooKeeper's port of the leader.
pub(super) async fn port(stage: &Stage) -> SocketAddr {
    let leader = usize::try_from(leader(&stage.cluster).await).expect("few nodes");
    address(&stage.cluster.zookeeper_endpoints()[leader - 1])
}

pub(super) async fn connect(port: SocketAddr, timeout_ms: i32) -> JuteConnection {
    JuteConnection::open(&port.to_string(), timeout_ms).await
}

/// A bystander that has a node.
pub(super) async fn bystander(port: SocketAddr) -> JuteConnection {
    let fresh = JuteSession::fresh(LONGEST_MS);
    let connected =
        until("the port serves", async || JuteConnection::connect(&port.to_string(), &fresh).await.ok().flatten());
    let mut bystander = connected.await;
    let made = bystander.ask(&JuteRequest::create("/kept", b"mine", 1)).await;
    assert!(made.is_ok(), "{made:?}");
    bystander
}

pub(super) async fn is_kept(bystander: &mut JuteConnection) {
    let read = JuteRequest::GetData { path: "/kept".to_owned(), watch: false };
    let Ok(JuteAnswer::Data(data, stat)) = bystander.ask(&read).await else { panic!("the node is gone") };
    assert_eq!((data.as_deref(), stat.owner), (Some(&b"mine"[..]), bystander.session.id));
    let synced = bystander.ask(&JuteRequest::Sync { path: "/kept".to_owned() }).await;
    assert!(synced.is_ok(), "{synced:?}");
}

/// Sends bytes, and returns what is answered until the connection ends.
async fn answer(port: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(port).await.expect("it listens");
    // The port may end the connection before it has read everything.
    let _ = timeout(LONG, stream.write_all(bytes)).await.expect("it reads, or ends the connection");
    let mut answer = Vec::new();
    let _ = timeout(LONG, stream.read_to_end(&mut answer)).await.expect("the connection ends");
    answer
}

pub(super) fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = JuteWriter::default();
    frame.buffer(Some(payload));
    frame.0
}

/// The first frame of a client without a session.
pub(super) fn first_frame() -> Vec<u8> {
    frame(&connect_payload(0, &[0; 16]))
}

/// The payload of a connect.
fn connect_payload(session: i64, password: &[u8]) -> Vec<u8> {
    let mut connect = JuteWriter::default();
    connect.int(0).long(0).int(LONGEST_MS).long(session).buffer(Some(password)).boolean(false);
    connect.0
}

/// Sends a request as a session's first, with this body, and returns the error that it is answered; `None` if the connection ends.
async fn error_of(port: SocketAddr, op: i32, body: &[u8]) -> Option<i32> {
    let mut wire = JuteWire::open(&port.to_string()).await.expect("it listens");
    wire.send(&connect_payload(0, &[0; 16])).await.expect("it reads");
    wire.receive().await.expect("a session");
    let mut request = JuteWriter::default();
    request.int(1).int(op);
    request.0.extend(body);
    // The port may end the connection before it has read everything.
    let _ = wire.send(&request.0).await;
    let reply = wire.receive().await?;
    let error = reply.get(12..16).and_then(|error| error.try_into().ok());
    Some(i32::from_be_bytes(error.expect("a header")))
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_and_sessions_that_cannot_be_harm_no_other_client() {
    let mut stage = stage().await;
    let abuse = async |stage: &Stage| {
        let port = port(stage).await;
        let mut bystander = bystander(port).await;
        let half = frame(&connect_payload(0, &[0; 16]));
        let crowd = say(port, sized(SMALL_CROWD, FULL_CROWD), &half[..half.len() - 1]).await;

        // First frames: lengths of 2^31 - 1, of -1 and of -2^31, one that is too long for a connect, none, and one that is no connect.
        for bytes in [
            &i32::MAX.to_be_bytes()[..],
            &(-1_i32).to_be_bytes(),
            &i32::MIN.to_be_bytes(),
            &[0, 0, 0x20, 0],
            &[0; 4],
            &frame(&[7; 9]),
        ] {
            assert_eq!(answer(port, bytes).await, b"", "{bytes:?}");
        }
        is_kept(&mut bystander).await;

        // Later ones, behind a ping: the ping is answered, and the connection ends.
        for length in [i32::MAX, -1, i32::MIN, 1 << 20] {
            let ping = [-2_i32, 11].map(i32::to_be_bytes).concat();
            let bytes = [&half[..], &frame(&ping), &length.to_be_bytes(), b"and so on"].concat();
            assert_eq!(answer(port, &bytes).await.len(), 4 + 37 + 4 + 16, "{length}");
        }

        // Whole frames whose parts claim more than there is: a text, a list, operations without an end.
        let text = [i32::MAX.to_be_bytes(), *b"/abc"].concat();
        let list = [&8_i64.to_be_bytes()[..], &i32::MAX.to_be_bytes()].concat();
        let mut endless = JuteWriter::default();
        for _ in 0..10_001 {
            endless.int(2).boolean(false).int(-1).text("/kept").int(-1);
        }
        for (op, body) in [(3, &text), (101, &list), (14, &endless.0)] {
            assert_eq!(error_of(port, op, body).await, Some(MARSHALLING), "{op}");
        }
        is_kept(&mut bystander).await;
        drop(crowd);

        steal(port, &mut bystander).await;
    };
    stage.survives("broken and half frames, and stolen sessions, at ZooKeeper's port", abuse).await;
}

/// Asks for a session of somebody else: with passwords that are wrong, with its own, and for one that is over.
async fn steal(port: SocketAddr, bystander: &mut JuteConnection) {
    let over = |answer: &[u8]| answer.len() == 4 + 37 && answer[8..20].iter().all(|byte| *byte == 0);
    let id = bystander.session.id;
    let own = connect(port, SHORTEST_MS).await;
    let mut password = bystander.session.password.clone();
    password[15] ^= 1;
    for (session, password) in [
        (id, &password[..]),
        (id, &own.session.password),
        (id, b""),
        (id, &password[..15]),
        (i64::MIN, &own.session.password),
        (-id, &bystander.session.password),
        (id ^ 1, &bystander.session.password),
    ] {
        let told = answer(port, &frame(&connect_payload(session, password))).await;
        assert!(over(&told), "{session}: {told:?}");
    }
    is_kept(bystander).await;

    let guesses = sized(500, 20_000);
    let guess = frame(&connect_payload(id, &[9; 16]));
    let told = stream::iter(0..guesses).map(|_| answer(port, &guess)).buffer_unordered(32).collect::<Vec<_>>().await;
    assert!(told.iter().all(|told| over(told)));
    is_kept(bystander).await;

    // One that is over stays so, however often its client's connect is sent again.
    let mut ended = connect(port, SHORTEST_MS).await;
    let replayed = frame(&connect_payload(ended.session.id, &ended.session.password));
    assert!(ended.call(&JuteRequest::Close).await.is_some());
    for _ in 0..20 {
        assert!(over(&answer(port, &replayed).await));
    }
    is_kept(bystander).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_requests_and_what_nobody_reads_harm_no_other_client() {
    let mut stage = stage().await;
    let abuse = async |stage: &Stage| {
        let port = port(stage).await;
        let mut bystander = bystander(port).await;

        // As many watches as a connection may have, and one more.
        let mut greedy = connect(port, LONGEST_MS).await;
        let watch = |from: usize, to: usize| {
            let paths = (from..to).map(|number| format!("/w{number}")).collect();
            JuteRequest::SetWatches { since: 0, lists: vec![Vec::new(), paths, Vec::new()] }
        };
        for from in (0..WATCHES_MAX).step_by(PATHS) {
            let set = greedy.ask(&watch(from, WATCHES_MAX.min(from + PATHS))).await;
            assert!(set.is_ok(), "{from}: {set:?}");
        }
        assert_eq!(greedy.ask(&watch(WATCHES_MAX, WATCHES_MAX + 1)).await, Err(QUOTA_EXCEEDED));
        is_kept(&mut bystander).await;
        let made = bystander.ask(&JuteRequest::create("/w7", b"", 1)).await;
        assert!(made.is_ok(), "{made:?}");
        assert_eq!(greedy.ask(&JuteRequest::Exists { path: "/w8".to_owned(), watch: true }).await, Err(NO_NODE));
        assert_eq!(greedy.take_events().len(), 1, "the one of its watches that fired");

        // More writes than a transaction has, and as many as a request may name.
        for parts in [1_025, 10_000] {
            let delete = JuteRequest::Multi(vec![JuteRequest::delete("/kept"); parts - 1]);
            let JuteRequest::Multi(mut all) = delete else { unreachable!("it is one") };
            all.insert(0, JuteRequest::create("/many", b"", 0));
            let Ok(JuteAnswer::Parts(results)) = greedy.ask(&JuteRequest::Multi(all)).await else { panic!("{parts}") };
            assert_eq!(results.len(), parts);
            assert!(results.iter().all(Result::is_err), "nothing is done");
        }
        let creates = (0..1_025).map(|number| JuteRequest::create(&format!("/many-{number}"), b"", 0)).collect();
        let refused = greedy.ask(&JuteRequest::Multi(creates)).await;
        let Ok(JuteAnswer::Parts(results)) = &refused else { panic!("{refused:?}") };
        assert_eq!(results.first(), Some(&Err(BAD_ARGUMENTS)));
        is_kept(&mut bystander).await;

        unread(stage, port, &mut bystander).await;
    };
    stage.survives("large requests and unread replies at ZooKeeper's port", abuse).await;
}

/// Clients that ask for large nodes again and again, and others that watch what changes all the time, and read nothing.
async fn unread(stage: &Stage, port: SocketAddr, bystander: &mut JuteConnection) {
    let made = bystander.ask(&JuteRequest::create("/large", &[7; 300_000], 0)).await;
    assert!(made.is_ok(), "{made:?}");
    let leads = stage.cluster.node(leader(&stage.cluster).await);
    let before = memory_mib(leads);

    let mut get = JuteWriter::default();
    get.int(1).int(4).text("/large").boolean(false);
    let mut watch = JuteWriter::default();
    watch.int(1).int(106).text("/").int(1);
    let flood = frame(&get.0).repeat(2_000);
    let silent = join_all((0..sized(16, 200)).map(async |_| {
        let mut stream = TcpStream::connect(port).await.expect("it listens");
        let all = [&frame(&connect_payload(0, &[0; 16]))[..], &frame(&watch.0), &flood].concat();
        let _ = timeout(Duration::from_secs(1), stream.write_all(&all)).await;
        stream
    }));
    let silent = silent.await;
    for _ in 0..sized(20, 2_000) {
        let set = JuteRequest::SetData { path: "/large".to_owned(), data: Some(vec![8; 300]), version: -1 };
        let set = bystander.ask(&set).await;
        assert!(set.is_ok(), "{set:?}");
    }
    is_kept(bystander).await;

    let while_unread = memory_mib(leads);
    println!("{} connections read nothing: {while_unread} MiB", silent.len());
    let allowed = before + BUDGETS_MIB + MEMORY_SLACK_MIB;
    assert!(while_unread <= allowed, "{before} MiB before, {while_unread} MiB while nobody reads");
}

#[tokio::test(flavor = "multi_thread")]
async fn very_many_sessions_harm_no_other_client() {
    let mut stage = stage().await;
    let abuse = async |stage: &Stage| {
        let port = port(stage).await;
        let mut bystander = bystander(port).await;

        // Clients that go without a word, each with a node. Their sessions end by themselves.
        let come_and_go = |number: usize| async move {
            let fresh = JuteSession::fresh(SHORTEST_MS);
            let connected = JuteConnection::connect(&port.to_string(), &fresh).await;
            let Ok(Some(mut client)) = connected else { return 0 };
            usize::from(client.call(&JuteRequest::create(&format!("/s{number}"), b"", 1)).await.is_some())
        };
        let sessions = sized(SMALL_SESSIONS, FULL_SESSIONS);
        let mut served = 0;
        for from in (0..sessions).step_by(200) {
            let some = stream::iter(from..sessions.min(from + 200)).map(come_and_go).buffer_unordered(50);
            served += some.collect::<Vec<_>>().await.iter().sum::<usize>();
            is_kept(&mut bystander).await;
        }
        assert!(served > sessions * 9 / 10, "only {served} of {sessions} were served");

        // Clients that stay: more than the port has places for, in the large form.
        let open = |_| async move {
            let fresh = JuteSession::fresh(LONGEST_MS);
            JuteConnection::connect(&port.to_string(), &fresh).await.ok().flatten()
        };
        let stay = stream::iter(0..sized(SMALL_STAY, FULL_STAY)).map(open).buffer_unordered(50).collect::<Vec<_>>();
        let stay = stay.await;
        println!("{served} sessions came and went, {} stay", stay.iter().flatten().count());

        // The bystander may have lost its place to them, and then comes back.
        let kept = until("the bystander", async || {
            let mut again = JuteConnection::connect(&port.to_string(), &bystander.session).await.ok()??;
            again.call(&JuteRequest::Sync { path: "/kept".to_owned() }).await.map(|_| again)
        });
        let mut bystander = kept.await;
        is_kept(&mut bystander).await;
        drop(stay);

        until("their nodes go", async || {
            is_kept(&mut bystander).await;
            let children = bystander.ask(&JuteRequest::GetChildren { path: "/".to_owned(), watch: false }).await;
            let Ok(JuteAnswer::Names(names)) = children else { panic!("{children:?}") };
            (names.len() == 2).then_some(())
        })
        .await;
    };
    stage.survives("very many sessions at ZooKeeper's port", abuse).await;
}
