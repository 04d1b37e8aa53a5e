//! A random walk of commands beside `redis-server` (Debian's 7.0.15): strings, structures, deadlines, pipelines, transactions, watched keys
//! and scripts of lock clients, in both versions of the protocol. The replies must be the same, as far as Redis itself determines them.
//!
//! `cargo test -p lockkeeper-lua --lib walk -- --ignored --nocapture` runs it, and says so if there is no `redis-server`.
//! LOCKKEEPER_REDIS_SEED and LOCKKEEPER_REDIS_STEPS choose the walk. It is here since the port knows no Lua, and this crate knows both.

mod client;
#[path = "../../../redis/tests/memory.rs"]
#[expect(dead_code, reason = "the tests of the port use the rest of it")]
mod memory;
mod programs;
#[path = "../../../../tests/skipped/mod.rs"]
mod skipped;

use std::{
    collections::BTreeMap,
    net::TcpStream,
    slice,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

// The store in memory finds the types of the port there.
use lockkeeper_redis as redis;
use lockkeeper_redis::{Redis, RedisOptions};
use tokio_util::sync::CancellationToken;

use super::oracle::RedisServer;
use crate::LuaInterpreter;
use client::{WalkClient, WireReply};
use memory::Memory;
use programs::{Programs, Step};

/// Number of steps, unless the environment says another number.
const STEPS: u64 = 20_000;
/// Number of differences after which a walk ends.
const DIFFERENCES_MAX: usize = 20;
/// Redis looks for keys whose time is over ten times a second, and a machine may be busy.
const AGREED_WITHIN: Duration = Duration::from_secs(5);

fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().expect("a number"))
}

fn wall_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(now.as_micros()).expect("before the year 586912")
}

/// The two sides of a walk: the server, and the port.
struct Sides {
    clients: Vec<[WalkClient; 2]>,
    differences: BTreeMap<String, String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs redis-server, and takes a minute"]
async fn a_random_walk_has_the_replies_of_redis_server() {
    let Some(server) = RedisServer::start() else {
        return skipped::skipped("no redis-server here: install Debian's package of that name");
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let stopping = CancellationToken::new();
    let port = Redis::new(Memory::default(), Arc::new(LuaInterpreter::default()), RedisOptions::new(wall_us, 1));
    let stopped = stopping.clone();
    let served = tokio::spawn(async move { port.serve(listener, stopped).await });

    let seed = number_from("LOCKKEEPER_REDIS_SEED", 1);
    let steps = number_from("LOCKKEEPER_REDIS_STEPS", STEPS);
    let walked = tokio::task::spawn_blocking(move || {
        let clients = (0..3).map(|_| {
            let ours = TcpStream::connect(address).expect("the port accepts");
            ours.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket has deadlines");
            [WalkClient::new(server.stream()), WalkClient::new(ours)]
        });
        let mut sides = Sides { clients: clients.collect(), differences: BTreeMap::new() };
        sides.walk(seed, steps);
        sides.differences
    });
    let differences = walked.await.expect("the walk ends");
    stopping.cancel();
    served.await.expect("the port ends");
    let shown: Vec<_> = differences.values().cloned().collect();
    assert!(shown.is_empty(), "seed {seed}: {} differences:\n{}", shown.len(), shown.join("\n"));
}

impl Sides {
    fn walk(&mut self, seed: u64, steps: u64) {
        let mut programs = Programs::new(seed);
        for step in 0..steps {
            // Now and then everything begins anew, in one version of the protocol or the other.
            if step % 500 == 0 {
                self.begin_anew(if (step / 500) % 2 == 0 { "2" } else { "3" });
            }
            let known = self.differences.len();
            match programs.next() {
                Step::Wait(ms) => std::thread::sleep(Duration::from_millis(ms)),
                Step::Send(who, requests) => {
                    self.compare(step, who, &requests);
                    self.compare_keys(step, &requests);
                }
            }
            if self.differences.len() >= DIFFERENCES_MAX {
                return;
            }
            // One difference would be the cause of others.
            if self.differences.len() > known {
                self.begin_anew("2");
            }
        }
    }

    fn begin_anew(&mut self, version: &str) {
        for client in self.clients.iter_mut().flatten() {
            for words in [vec!["RESET"], vec!["HELLO", version], vec!["SELECT", "0"], vec!["FLUSHALL"]] {
                client.pipeline(&[words.into_iter().map(|word| word.as_bytes().to_vec()).collect()]);
            }
        }
    }

    /// Compares the values of all keys after a step, so that the step is shown that made them differ.
    fn compare_keys(&mut self, step: u64, requests: &[Vec<Vec<u8>>]) {
        let states = self.clients[2].each_mut().map(|client| {
            let types = client.pipeline(&KEYS.map(|key| vec![b"TYPE".to_vec(), key.into()]));
            let reads = KEYS.iter().zip(&types).map(|(key, kind)| read_whole(key, &kind.to_string()));
            let reads: Vec<_> = reads.collect();
            (types, client.pipeline(&reads).iter().map(WireReply::sorted).collect::<Vec<_>>())
        });
        let is_like = |(one, other): (&WireReply, &WireReply)| one.is_like(other);
        let is_same = states[0].0 == states[1].0 && states[0].1.iter().zip(&states[1].1).all(is_like);
        if !is_same {
            let shown = requests.iter().map(|request| shown(request)).collect::<Vec<_>>().join("; ");
            let show = |replies: &[WireReply]| replies.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            let text = format!(
                "step {step}: keys differ after {shown}\n  redis: {}\n  ours:  {}",
                show(&states[0].1),
                show(&states[1].1)
            );
            self.differences.entry(format!("keys {step}")).or_insert(text);
        }
    }

    /// Sends the same requests to both, and compares their replies.
    fn compare(&mut self, step: u64, who: usize, requests: &[Vec<Vec<u8>>]) {
        let [theirs, ours] = &mut self.clients[who];
        let expected = theirs.pipeline(requests);
        let actual = ours.pipeline(requests);
        for ((request, expected), actual) in requests.iter().zip(&expected).zip(&actual) {
            let name = String::from_utf8_lossy(&request[0]).to_ascii_uppercase();
            if !is_same(&name, expected, actual) {
                if name == "DBSIZE" && agree_soon(theirs, ours, slice::from_ref(request)) {
                    continue;
                }
                let line = shown(request);
                let text = format!("step {step}, client {who}: {line}\n  redis: {expected}\n  ours:  {actual}");
                self.differences.entry(format!("{name} {}", first_word(expected))).or_insert(text);
            }
        }
    }
}

/// Asks both until they agree on a number of keys: Redis counts those whose time is over until it comes across them.
fn agree_soon(theirs: &mut WalkClient, ours: &mut WalkClient, request: &[Vec<Vec<u8>>]) -> bool {
    let until = Instant::now() + AGREED_WITHIN;
    loop {
        if theirs.pipeline(request) == ours.pipeline(request) {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The keys of a walk.
const KEYS: [&str; 5] = ["a", "b", "k1", "k2", "k3"];

/// The command that reads the whole value of a key.
fn read_whole(key: &str, kind: &str) -> Vec<Vec<u8>> {
    let words: &[&str] = match kind {
        "+list" => &["LRANGE", key, "0", "-1"],
        "+hash" => &["HGETALL", key],
        "+set" => &["SMEMBERS", key],
        "+zset" => &["ZRANGE", key, "0", "-1", "WITHSCORES"],
        _ => &["GET", key],
    };
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn shown(request: &[Vec<u8>]) -> String {
    request.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

/// The begin of an error, so that one cause is shown once.
fn first_word(reply: &WireReply) -> String {
    let WireReply::Error(text) = reply else { return String::new() };
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Whether both replies say the same. Times may differ by what passes between two requests, and members without an order may come in any.
fn is_same(name: &str, expected: &WireReply, actual: &WireReply) -> bool {
    const TOLERANCE: i64 = 1500;
    match name {
        "PTTL" | "TTL" | "PEXPIRETIME" | "EXPIRETIME" => match (expected, actual) {
            (WireReply::Integer(expected), WireReply::Integer(actual)) if *expected > 0 => {
                (expected - actual).abs() <= TOLERANCE
            }
            _ => expected == actual,
        },
        "TIME" => true,
        // Each server counts its connections.
        "HELLO" if matches!((expected, actual), (WireReply::Items(..), WireReply::Items(..))) => true,
        "SMEMBERS" | "KEYS" | "SPOP" | "SCAN" | "SSCAN" => expected.sorted() == actual.sorted(),
        // Replies of a transaction are compared one by one, without knowing of which commands.
        "EXEC" | "EVAL" | "EVALSHA" => expected.is_like(actual) || expected.sorted().is_like(&actual.sorted()),
        _ => expected.is_like(actual),
    }
}
