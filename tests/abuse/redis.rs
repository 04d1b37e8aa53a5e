//! Redis' port: requests that break the protocol or do not end, replies that nobody reads, scripts that do not end, and commands that
//! concern very many keys. The bystander has a lock by Redis' protocol, too.

use std::{fs, net::SocketAddr, time::Duration};

use futures::future::join_all;
use lockkeeper::config::AuthConfig;
use lockkeeper_machine::Identity;
use lockkeeper_policy::BearerToken;
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
    redis::{Connection, Reply, ok, text_of},
    support::{LONG, leader, until},
};

/// More connections than the port has for those that have sent no whole request.
const SMALL_CROWD: usize = 400;
const FULL_CROWD: usize = 5_000;
/// Scripts that begin together: more than run at a time.
const SMALL_SCRIPTS: usize = 20;
const FULL_SCRIPTS: usize = 400;
/// The port's budgets for requests that are not answered and for replies that are not read, together.
const BUDGETS_MIB: u64 = 96;
/// How long pipelines are sent whose replies nobody reads: without a limit, they would take some hundred MiB by then.
const FLOOD: Duration = Duration::from_secs(4);
/// Keys that a scan passes.
const SMALL_KEYS: usize = 2_000;
const FULL_KEYS: usize = 200_000;

/// Redis' port of the leader.
pub(super) async fn redis_port(stage: &Stage) -> SocketAddr {
    let leader = usize::try_from(leader(&stage.cluster).await).expect("few nodes");
    address(&stage.cluster.redis_endpoints()[leader - 1])
}

pub(super) async fn connect(port: SocketAddr) -> Connection {
    Connection::open(&port.to_string()).await.expect("it listens")
}

/// A bystander that holds a lock.
pub(super) async fn bystander(port: SocketAddr, password: Option<&str>) -> Connection {
    until("the port serves", async || {
        let mut bystander = Connection::open(&port.to_string()).await?;
        if let Some(password) = password {
            bystander.call(&["AUTH", password]).await.filter(|reply| *reply == ok())?;
        }
        let set = bystander.call(&["SET", "kept", "mine", "PX", "600000"]).await?;
        (set == ok()).then_some(bystander)
    })
    .await
}

pub(super) async fn is_kept(bystander: &mut Connection) {
    assert_eq!(bystander.ask(&["GET", "kept"]).await, text_of("mine"));
    let left = bystander.ask(&["PTTL", "kept"]).await;
    assert!(matches!(left, Reply::Number(1..=600_000)), "{left:?}");
}

/// Sends bytes, and returns what is answered until the connection ends.
async fn answer(port: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(port).await.expect("it listens");
    // The port may end the connection before it has read everything.
    let _ = timeout(LONG, stream.write_all(bytes)).await.expect("it reads, or ends the connection");
    let mut answer = Vec::new();
    let _ = timeout(LONG, stream.read_to_end(&mut answer)).await.expect("the connection ends");
    String::from_utf8_lossy(&answer).into_owned()
}

/// The reply is an error with this part.
pub(super) fn is_refused(reply: &Reply, part: &str) {
    assert!(matches!(reply, Reply::Error(text) if text.contains(part)), "{part} is not in {reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_none_or_do_not_end_harm_no_other_client() {
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, |options| options.redis = true).await;
    let abuse = async |stage: &Stage| {
        let port = redis_port(stage).await;
        let mut bystander = bystander(port, None).await;
        let before = memory_mib(stage.cluster.node(leader(&stage.cluster).await));
        let crowd = say(port, sized(SMALL_CROWD, FULL_CROWD), b"*3\r\n$3\r\nSET\r\n$1000000\r\nhalf").await;

        let long_line = "a".repeat(1 << 20);
        for (bytes, error) in [
            (&b"*9223372036854775807\r\n$4\r\nPING\r\n"[..], "-ERR Protocol error: invalid multibulk length\r\n"),
            (b"*1\r\n$9223372036854775807\r\nPING\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
            (b"*1\r\n$9223372036854775808\r\nPING\r\n", "-ERR Protocol error: invalid bulk length\r\n"),
            (b"*1000000\r\n$1\r\na\r\n", "-ERR Protocol error: invalid multibulk length\r\n"),
            (b"*2\r\n$3\r\nGET\r\n:1\r\n", "-ERR Protocol error: expected '$', got ':'\r\n"),
            (long_line.as_bytes(), "-ERR Protocol error: too big inline request\r\n"),
        ] {
            // What was not read may take the error away with it.
            let told = answer(port, bytes).await;
            assert!(told == error || told.is_empty() && bytes.len() > 1000, "{told}");
            is_kept(&mut bystander).await;
        }

        // Pipelines whose replies nobody reads: the port stops to read them.
        let echo = format!("*2\r\n$4\r\nECHO\r\n$1000\r\n{}\r\n", "x".repeat(1000)).repeat(2_000);
        let silent = join_all((0..sized(16, 200)).map(async |_| {
            let mut stream = TcpStream::connect(port).await.expect("it listens");
            let flood = async { while stream.write_all(echo.as_bytes()).await.is_ok() {} };
            let _ = timeout(FLOOD, flood).await;
            stream
        }));
        let silent = silent.await;
        is_kept(&mut bystander).await;
        let leads = stage.cluster.node(leader(&stage.cluster).await);
        let while_unread = memory_mib(leads);
        println!("{} half requests, {} unread pipelines: {while_unread} MiB", crowd.len(), silent.len());
        // Of each connection a MiB of replies waits, and as much of requests may.
        let counted = BUDGETS_MIB.min(2 * silent.len() as u64);
        let allowed = before + counted + MEMORY_SLACK_MIB;
        assert!(while_unread <= allowed, "{before} MiB before, {while_unread} MiB while nobody reads");
        drop((silent, crowd));
    };
    stage.survives("broken, half and unread requests at Redis' port", abuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_do_not_end_and_commands_of_many_keys_harm_no_other_client() {
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, |options| options.redis = true).await;
    let abuse = async |stage: &Stage| {
        let port = redis_port(stage).await;
        let mut bystander = bystander(port, None).await;

        // Each costs its caller an error, and the bystander is served meanwhile.
        let scripts = [
            "while true do end",
            "local function f() return f() + 1 end return f()",
            "local t = {} while true do t[#t + 1] = string.rep('x', 100000) end",
            "while true do pcall(function() while true do end end) end",
            "return string.rep('x', 1000000000)",
            "return string.find(string.rep('a', 100000), string.rep('a?', 5000) .. string.rep('a', 5000))",
        ];
        let runs = (0..sized(SMALL_SCRIPTS, FULL_SCRIPTS)).map(async |number| {
            let script = scripts[number % scripts.len()];
            let mut caller = connect(port).await;
            let reply = caller.ask(&["EVAL", script, "1", &format!("of-{number}")]).await;
            assert!(matches!(reply, Reply::Error(_)), "{script}: {reply:?}");
        });
        let others = async {
            for _ in 0..20 {
                is_kept(&mut bystander).await;
            }
        };
        tokio::join!(join_all(runs), others);

        // More subscriptions than a connection may have.
        let mut listener = connect(port).await;
        let channels: Vec<String> = (0..10_000).map(|number| format!("channel-{number}")).collect();
        let subscribe: Vec<&str> = ["SUBSCRIBE"].into_iter().chain(channels.iter().map(String::as_str)).collect();
        is_refused(&listener.ask(&subscribe).await, "1024");

        // More keys than a transaction compares, or a request has.
        let mut watcher = connect(port).await;
        let keys: Vec<String> = (0..60_000).map(|number| number.to_string()).collect();
        let watch: Vec<&str> = ["WATCH"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        is_refused(&watcher.ask(&watch).await, "at most 256 keys");
        let told = answer(port, &[&b"*100001\r\n$5\r\nWATCH\r\n"[..], &b"$1\r\na\r\n".repeat(1000)].concat()).await;
        assert!(told.is_empty() || told.contains("invalid multibulk length"), "{told}");
        is_kept(&mut bystander).await;

        let keys = sized(SMALL_KEYS, FULL_KEYS);
        for first in (0..keys).step_by(200) {
            let pairs: Vec<String> = (first..first + 200).map(|number| format!("many-{number}")).collect();
            let set: Vec<&str> = ["MSET"].into_iter().chain(pairs.iter().flat_map(|key| [key.as_str(), "v"])).collect();
            assert_eq!(bystander.ask(&set).await, ok());
        }
        let scans = join_all((0..sized(8, 64)).map(async |_| {
            let mut scanner = connect(port).await;
            let mut cursor = "0".to_owned();
            let mut found = 0;
            loop {
                let page = scanner.ask(&["SCAN", &cursor, "MATCH", "many-*", "COUNT", "1000"]).await;
                let Reply::List(parts) = &page else { panic!("{page:?}") };
                let [Reply::Text(next), Reply::List(names)] = &parts[..] else { panic!("{parts:?}") };
                found += names.len();
                if next == "0" {
                    return found;
                }
                next.clone_into(&mut cursor);
            }
        }));
        let listed = async { connect(port).await.ask(&["KEYS", "*"]).await };
        let (scans, listed) = tokio::join!(scans, listed);
        assert!(scans.iter().all(|found| *found >= keys), "{scans:?}");
        assert!(matches!(listed, Reply::List(_) | Reply::Error(_)), "{listed:?}");
        is_kept(&mut bystander).await;
    };
    stage.survives("endless scripts and commands of many keys at Redis' port", abuse).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_before_auth_keep_nobody_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let token = BearerToken::from_random([7; 32]);
    let tokens = directory.path().join("tokens.toml");
    fs::write(&tokens, token.entry(&Identity::new("ann").expect("valid"))).expect("written");
    let policy = directory.path().join("policy.toml");
    let rule = "[[rule]]\nwho = [\"ann\"]\nmay = [\"acquire\", \"read\"]\nprefix = \"redis/0/\"\n\n";
    // The stage's own bystander has no token.
    let anonymous = "[[rule]]\nwho = [\"anonymous\"]\nmay = [\"acquire\", \"read\", \"watch\"]\nprefix = \"\"\n";
    fs::write(&policy, format!("{rule}{anonymous}")).expect("written");
    let auth = AuthConfig { tokens, policy, ..AuthConfig::default() };
    let mut stage = Stage::open_with(Descriptors::AsTheyAre, |options| {
        options.redis = true;
        options.auth = auth;
    })
    .await;
    let abuse = async |stage: &Stage| {
        let port = redis_port(stage).await;
        let mut known = bystander(port, Some(token.reveal())).await;
        // Passwords that are wrong, as fast as they are answered; and connections that say one and stay.
        let guesses = b"*2\r\n$4\r\nAUTH\r\n$5\r\nwrong\r\n".repeat(sized(2_000, 100_000));
        let guessing = join_all((0..8).map(async |_| {
            let mut stream = TcpStream::connect(port).await.expect("it listens");
            let (mut reader, mut writer) = stream.split();
            let answers = async {
                let mut answers = [0; 4096];
                while reader.read(&mut answers).await.is_ok_and(|bytes| bytes > 0) {}
            };
            let guesses = async {
                let _ = writer.write_all(&guesses).await;
                let _ = writer.shutdown().await;
            };
            timeout(LONG, async { tokio::join!(guesses, answers) }).await.expect("they are answered");
        }));
        // Fewer than the port has places for clients that were served: beyond them, who has been idle the longest goes.
        let crowd = say(port, sized(SMALL_CROWD, 600), b"*2\r\n$4\r\nAUTH\r\n$5\r\nwrong\r\n");
        let (_, crowd) = tokio::join!(guessing, crowd);
        for _ in 0..10 {
            is_kept(&mut known).await;
            // A newcomer comes in, however many strangers there are.
            let mut newcomer = connect(port).await;
            assert_eq!(newcomer.ask(&["AUTH", token.reveal()]).await, ok());
            assert_eq!(newcomer.ask(&["GET", "kept"]).await, text_of("mine"));
        }
        drop(crowd);
    };
    stage.survives("wrong passwords at Redis' port", abuse).await;
}
