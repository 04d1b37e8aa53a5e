//! Scripts and transactions take effect in one order, whatever they read, while leaders are killed: judged by the checker of histories.
//!
//! Each of them reads two registers and writes one of them, so what it must not miss is a write of the register that it only reads. The
//! scripts name that one as an argument, not as a key: units of the same keys take turns at the leader's node, which would hide a compare
//! that is missing. Values are put once, and the checker infers the order from them.
//!
//! `LOCKKEEPER_REDIS_KILLS` leaders are killed, by default one. With `LOCKKEEPER_PLANTED_BUG=read-keys-not-compared` the test fails.

use std::{
    env,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use lockkeeper::{
    chaos::{
        checker::{Property, Verdict, check},
        history::History,
    },
    local::Signal,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Connection, Reply, ok, three_nodes};
use crate::{
    support::{leader, until},
    turns,
};

const KILLS: &str = "LOCKKEEPER_REDIS_KILLS";
/// Clients at each node.
const CLIENTS: usize = 2;
const REGISTERS: u64 = 4;
/// Transactions that commit before a leader is killed, and after it.
const COMMITS: u64 = 60;

const READ_AND_WRITE: &str =
    "local v = {redis.call('get', ARGV[2]), redis.call('get', KEYS[1])}; redis.call('set', KEYS[1], ARGV[1]); return v";
const READ_ALL: &str =
    "local v = {}; for i = 0, 3 do v[i + 1] = redis.call('get', 'register-' .. i) or 'none' end; return v";

/// The lines of a history.
#[derive(Clone)]
struct Recorder {
    began: Instant,
    lines: Arc<Mutex<Vec<String>>>,
    commits: Arc<AtomicU64>,
    /// Values are numbers that are used once, also for names of processes and for what is chosen.
    last: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Recorder {
    fn new() -> Self {
        let meta = json!({"time_ns": 0, "process": "nemesis", "type": "info", "f": "meta", "value": {"format": 1}});
        let lines = Arc::new(Mutex::new(vec![meta.to_string()]));
        Self { began: Instant::now(), lines, commits: Arc::default(), last: Arc::default(), is_over: Arc::default() }
    }

    fn next(&self) -> u64 {
        self.last.fetch_add(1, Relaxed) + 1
    }

    fn add(&self, process: &str, kind: &str, value: &Value) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let time_ns = u64::try_from(self.began.elapsed().as_nanos()).expect("a test is short");
        let line = json!({"time_ns": time_ns, "process": process, "type": kind, "f": "txn", "value": value});
        lines.push(line.to_string());
    }

    fn history(&self) -> History {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).join("\n");
        History::read(lines.as_bytes()).expect("it is a history")
    }
}

/// What a client does, and how it says so.
struct Work {
    steps: Value,
    answer: Answer,
}

/// What is known of it afterwards.
enum Answer {
    Read(Vec<Option<String>>),
    /// Nothing was done.
    Nothing,
    /// The connection ended.
    Lost,
}

fn texts(reply: Reply) -> Answer {
    match reply {
        Reply::List(parts) => Answer::Read(
            parts
                .into_iter()
                .filter_map(|part| match part {
                    // A script's list ends at its first nil, so absence is a word there.
                    Reply::Text(text) => Some(Some(text).filter(|text| text != "none")),
                    Reply::Nil => Some(None),
                    Reply::Status(_) | Reply::Error(_) | Reply::Number(_) | Reply::List(_) => None,
                })
                .collect(),
        ),
        Reply::Status(_) | Reply::Error(_) | Reply::Number(_) | Reply::Text(_) | Reply::Nil => Answer::Nothing,
    }
}

/// One transaction over two registers, in one of the ways in which clients do that.
async fn transact(connection: &mut Connection, way: u64, [read, written]: [&str; 2], value: &str) -> Answer {
    let answer = async {
        Some(match way {
            0 => texts(connection.call(&["EVAL", READ_AND_WRITE, "1", written, value, read]).await?),
            1 => {
                for command in [&["MULTI"][..], &["GET", read], &["GET", written], &["SET", written, value]] {
                    connection.call(command).await?;
                }
                texts(connection.call(&["EXEC"]).await?)
            }
            _ => {
                if connection.call(&["WATCH", read]).await? != ok() {
                    return Some(Answer::Nothing);
                }
                // No register is ever absent here.
                let Reply::Text(first) = connection.call(&["GET", read]).await? else { return Some(Answer::Nothing) };
                for command in [&["MULTI"][..], &["GET", written], &["SET", written, value]] {
                    connection.call(command).await?;
                }
                let mut answer = texts(connection.call(&["EXEC"]).await?);
                if let Answer::Read(values) = &mut answer {
                    values.insert(0, Some(first));
                }
                answer
            }
        })
    };
    answer.await.unwrap_or(Answer::Lost)
}

/// Works at one node until the run is over. A client that does not know what became of its transaction goes on under another name.
async fn work(address: String, recorder: Recorder) {
    while !recorder.is_over.load(Relaxed) {
        let process = format!("client-{}", recorder.next());
        let Some(mut connection) = Connection::open(&address).await else {
            tokio::task::yield_now().await;
            continue;
        };
        while !recorder.is_over.load(Relaxed) {
            let number = recorder.next();
            // Neighbours by a number that is not even: all pairs occur, in both directions.
            let read = format!("register-{}", number % REGISTERS);
            let written = format!("register-{}", (number + 1 + number / REGISTERS % (REGISTERS - 1)) % REGISTERS);
            let value = number.to_string();
            let is_reader = number.is_multiple_of(7);
            let all = (0..REGISTERS).map(|register| json!({"get": {"key": format!("register-{register}")}}));
            let steps = if is_reader {
                Value::Array(all.collect())
            } else {
                json!([{"get": {"key": read}}, {"get": {"key": written}}, {"put": {"key": written, "value": value}}])
            };

            recorder.add(&process, "invoke", &json!({"then": steps}));
            let answer = if is_reader {
                match connection.call(&["EVAL", READ_ALL, "0"]).await {
                    Some(reply) => texts(reply),
                    None => Answer::Lost,
                }
            } else {
                transact(&mut connection, number % 3, [&read, &written], &value).await
            };
            let work = Work { steps, answer };
            if !note(&recorder, &process, work) {
                break;
            }
        }
    }
}

/// Notes what is known. Returns whether the connection goes on.
fn note(recorder: &Recorder, process: &str, Work { steps, answer }: Work) -> bool {
    match answer {
        Answer::Read(values) => {
            let got = |value: &Option<String>| value.as_ref().map_or(Value::Null, |value| json!({"value": value}));
            let mut results: Vec<_> = values.iter().map(|value| json!({"got": got(value)})).collect();
            results.extend((results.len()..steps.as_array().map_or(0, Vec::len)).map(|_| json!({"put": {}})));
            recorder.add(process, "ok", &json!({"results": results}));
            recorder.commits.fetch_add(1, Relaxed);
            true
        }
        Answer::Nothing => {
            recorder.add(process, "fail", &json!({"reason": "refused"}));
            true
        }
        Answer::Lost => {
            recorder.add(process, "info", &json!({"reason": "unknown"}));
            false
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_and_transactions_have_one_order_while_leaders_die() {
    // It waits for commits through a change of leader: beside other clusters that takes as long as they like.
    let _turn = turns::whole_machine().await;
    let mut cluster = three_nodes().await;
    let recorder = Recorder::new();
    let mut setup = Connection::open(&cluster.redis_endpoints()[0]).await.expect("it listens");
    // No register is absent, so a script's list has no end before its time.
    let first = ["MSET", "register-0", "a", "register-1", "b", "register-2", "c", "register-3", "d"];
    let puts = ["a", "b", "c", "d"].iter().enumerate();
    let puts: Vec<_> =
        puts.map(|(number, value)| json!({"put": {"key": format!("register-{number}"), "value": value}})).collect();
    recorder.add("setup", "invoke", &json!({"then": puts}));
    assert_eq!(setup.ask(&first).await, ok());
    recorder.add("setup", "ok", &json!({"results": vec![json!({"put": {}}); puts.len()]}));

    let addresses = cluster.redis_endpoints();
    let clients = addresses.iter().flat_map(|address| vec![address.clone(); CLIENTS]);
    let clients: Vec<_> = clients.map(|address| tokio::spawn(work(address, recorder.clone()))).collect();
    let committed = async |more: u64| {
        let wanted = recorder.commits.load(Relaxed) + more;
        until("commits", async || (recorder.commits.load(Relaxed) >= wanted).then_some(())).await;
    };
    let kills = env::var(KILLS).map_or(1, |kills| kills.parse::<u32>().expect("a number"));
    for _ in 0..kills {
        committed(COMMITS).await;
        let leads = leader(&cluster).await;
        cluster.node(leads).signal(Signal::KILL);
        committed(COMMITS).await;
        cluster.node_mut(leads).kill().await;
        cluster.node_mut(leads).spawn().expect("it starts");
    }
    recorder.is_over.store(true, Relaxed);
    for client in clients {
        client.await.expect("no client panics");
    }

    let findings = check(&recorder.history()).expect("it is a history");
    let finding = findings.iter().find(|finding| finding.property == Property::Serializability);
    assert_eq!(finding.map(|finding| &finding.verdict), Some(&Verdict::Holds), "{finding:?}");
}
