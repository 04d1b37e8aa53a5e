//! Unmodified lock clients of DynamoDB on a real cluster.
//!
//! The endpoint by itself, with a store in memory, is tested in its own crate (`src/dynamodb/tests`); here are the parts between it and
//! the cluster: leases that are sessions, tokens that are revisions, and a leader that dies meanwhile. The programs in `clients` use one
//! client each, all at the same time: each contends for a lock with two processes, while the leader is killed, and then renews, releases,
//! lists and dies, as far as its client can (`README.md` beside this file). The packages are installed once into the build directory, in
//! versions that do not change. Where that is not possible, their clients are skipped, and the test says so.

mod chaos;
mod judged;
mod npm;
mod operators;
mod packages;

use std::{env, path::Path, process::Stdio, time::Duration};

use lockkeeper::local::{LocalCluster, Options, Signal};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use packages::{PATIENCE, command};

/// A bound on failures.
const LONG: Duration = Duration::from_secs(60);
/// For how long clients contend after the leader has died, seconds.
const SECONDS: &str = "LOCKKEEPER_DYNAMODB_SECONDS";
/// The program of `clients/rust`, which `scripts/dynamodb-clients.sh` builds.
const RUST: &str = "LOCKKEEPER_DYNAMODB_RUST";

const OF_PYPI: [&str; 4] = ["pypi_python_dynamodb_lock", "pypi_powertools", "pypi_deltalake", "pypi_boto3"];
const OF_NPM: [&str; 2] = ["npm_dynamodb_lock_client", "npm_deliveryhero"];

fn script(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dynamodb/clients").join(name).display().to_string()
}

/// The programs of all clients that can be had here, without their arguments; and why others cannot.
async fn programs() -> (Vec<(&'static str, Command)>, Vec<String>) {
    let (mut programs, mut problems) = (Vec::new(), Vec::new());
    match packages::python().await {
        Ok(python) => {
            programs.extend(OF_PYPI.map(|name| (name, command(&python, &[&script(&format!("{name}.py"))]))));
        }
        Err(problem) => problems.push(format!("the Python packages cannot be installed: {problem}")),
    }
    match npm::modules().await {
        Ok(modules) => {
            programs.extend(OF_NPM.map(|name| {
                let mut node = command(Path::new("node"), &[&script(&format!("{name}.cjs"))]);
                node.env("NODE_PATH", &modules).env("NODE_NO_WARNINGS", "1");
                (name, node)
            }));
        }
        Err(problem) => problems.push(format!("the packages from npm cannot be installed: {problem}")),
    }
    if let Some(rust) = env::var_os(RUST) {
        programs.push(("rust", command(Path::new(&rust), &[])));
    }
    (programs, problems)
}

/// A client's program that runs.
struct Client {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    errors: JoinHandle<String>,
    said: Vec<String>,
}

impl Client {
    fn start(name: &'static str, mut program: Command, arguments: &[&str]) -> Self {
        program.args(arguments).stdin(Stdio::piped());
        let mut child = program.spawn().unwrap_or_else(|error| panic!("{name}: {error}"));
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let errors = tokio::spawn(read(child.stderr.take().expect("it is piped")));
        Self { name, child, input, output, errors, said: Vec::new() }
    }

    /// Reads what it says, up to this line or to its end.
    async fn until(&mut self, wanted: Option<&str>) {
        let reading = async {
            while let Some(line) = self.output.next_line().await.expect("text") {
                if wanted == Some(&*line) {
                    return true;
                }
                self.said.push(line);
            }
            false
        };
        let found = timeout(PATIENCE, reading).await.unwrap_or(false);
        if found != wanted.is_some() {
            let _ = self.child.start_kill();
            self.end().await;
        }
    }

    /// Lets it go on.
    async fn go_on(&mut self) {
        let mut input = self.input.take().expect("it goes on once");
        input.write_all(b"\n").await.unwrap_or_else(|error| panic!("{}: {error}", self.name));
    }

    /// Waits for its end, which must be a good one. What it said.
    async fn end(&mut self) -> String {
        let ended = timeout(PATIENCE, self.child.wait()).await;
        let errors = (&mut self.errors).await.unwrap_or_default();
        let said: String = self.said.iter().map(|line| format!("  {line}\n")).collect();
        assert!(matches!(ended, Ok(Ok(status)) if status.success()), "{}: {ended:?}\n{said}{errors}", self.name);
        let troubles = errors.lines().count();
        format!("{}\n{said}  ({troubles} lines of errors that it dealt with)\n", self.name)
    }
}

async fn read(mut errors: ChildStderr) -> String {
    let mut bytes = Vec::new();
    let _ = errors.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn leader(cluster: &LocalCluster) -> u64 {
    let deadline = Instant::now() + LONG;
    loop {
        let statuses = cluster.statuses().await;
        if let Some(leader) =
            statuses.values().filter(|status| status.serving).map(|status| status.leader_id).find(|id| *id != 0)
        {
            return leader;
        }
        assert!(Instant::now() < deadline, "no leader: {statuses:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// All clients at the same time: the leader is killed when all of them contend.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unmodified_clients_work_while_a_leader_dies() {
    let (programs, problems) = programs().await;
    for problem in problems {
        eprintln!("!!! SKIPPED: {problem}");
    }
    if programs.is_empty() {
        return;
    }
    let options = Options { dynamodb: true, timeout: LONG, ..Options::new(env!("CARGO_BIN_EXE_lockkeeper")) };
    let mut cluster = LocalCluster::start(options).await.expect("a cluster");
    let leads = leader(&cluster).await;
    let other = (1..=3).find(|node| *node != leads).expect("three nodes");
    // A follower's endpoint: its requests are forwarded, and it outlives the leader.
    let endpoint = cluster.node(other).dynamodb_endpoint().expect("it is on");
    let seconds = env::var(SECONDS).unwrap_or_else(|_| "3".to_owned());
    let mut clients: Vec<_> =
        programs.into_iter().map(|(name, program)| Client::start(name, program, &[&endpoint, &seconds])).collect();
    for client in &mut clients {
        client.until(Some("contending")).await;
    }
    cluster.node(leads).signal(Signal::KILL);
    for client in &mut clients {
        client.go_on().await;
    }
    for client in &mut clients {
        client.until(None).await;
        println!("{}", client.end().await);
    }
    assert_ne!(leader(&cluster).await, leads, "the leader was to die");
    cluster.stop().await;
}

/// The same programs on moto, one after the other: what a dead holder costs without a lease. Figures, run by
/// `scripts/dynamodb-clients.sh`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "shows figures of moto; of the endpoint it proves nothing"]
async fn the_same_clients_on_moto() {
    let Ok(python) = packages::python().await else { return };
    for (name, program) in programs().await.0 {
        let mut moto = Client::start("moto", command(&python, &[&script("moto_server.py")]), &[]);
        let endpoint = moto.output.next_line().await.expect("text").expect("an endpoint");
        let seconds = env::var(SECONDS).unwrap_or_else(|_| "3".to_owned());
        let mut client = Client::start(name, program, &[&endpoint, &seconds, "plain"]);
        client.until(Some("contending")).await;
        client.go_on().await;
        client.until(None).await;
        println!("{}", client.end().await);
        drop(moto.input.take());
        moto.until(None).await;
        moto.end().await;
    }
}
