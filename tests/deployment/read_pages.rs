//! The blocks of commands of the README and of the operators' pages, run as a reader runs them: in their order, in one directory, in one
//! shell. A block that is not run here is in the table with the reason; a block that is not in the table fails the test, and so does a line
//! of the table without its block.
//!
//! The directory has what the repository has, by links. `cargo` is a script: it builds nothing, and runs the program under test. The
//! addresses of the pages are replaced by others of this machine, since they may be in use.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    net::TcpListener,
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;
use tokio::{
    task::spawn_blocking,
    time::{Duration, timeout},
};

use crate::{
    pages::{Block, blocks},
    support::program,
};

/// Longer than a page takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// What is done with a block.
enum Plan {
    /// It is run, with these words replaced: where a reader looks and waits, where a command is to fail, where one would go on for ever.
    Run(&'static [(&'static str, &'static str)]),
    /// It is run if there is this program, and skipped otherwise.
    Needs(&'static str),
    /// It is not run, for this reason; this is run in its place.
    Instead(&'static str, &'static str),
    /// It is not run, for this reason.
    Not(&'static str),
}
use Plan::{Instead, Needs, Not, Run};

/// By the beginning of the block.
const README: &[(&str, Plan)] = &[
    ("cargo run -- dev -- lockkeeper lock tickets/A5", Run(&[])),
    ("cargo build --release && export PATH", Run(&[])),
    ("lockkeeper dev -- lockkeeper lock tickets/A5", Run(&[])),
    (
        "scripts/cluster.sh up",
        Run(&[
            ("sleep 60 &\n", "sleep 60 &\nshows 'held by 1, exclusive'\n"),
            ("echo mine\n", "echo mine && exit 1 || test $? = 10\n"),
        ]),
    ),
    (
        "lockkeeper lock tickets/A5 -- sh -c 'echo \"now mine",
        Run(&[("' &\n", "' &\nshows WAITER\n"), ("scripts/cluster.sh down", "wait\nscripts/cluster.sh down")]),
    ),
    ("lockkeeper certs init local", Run(&[])),
    ("lockkeeper dev -- sh -c 'echo \"open", Run(&[("sleep 600", "sleep 0")])),
    ("cargo build --release --examples", Not("an example, and not the program: tests/examples.rs")),
];

/// The pages of those who come from another service.
const ADAPTERS: &[(&str, &[(&str, Plan)])] = &[
    ("src/etcd/README.md", &[("lockkeeper dev --etcd", Needs("etcdctl"))]),
    (
        "src/dynamodb/README.md",
        &[
            ("export AWS_ACCESS_KEY_ID", Needs("curl")),
            ("aws dynamodb create-table", Not("the command line of AWS: tests/dynamodb")),
        ],
    ),
];

/// The operators' pages, in the order in which a reader goes through them.
const OPERATORS: &[(&str, &[(&str, Plan)])] = &[
    (
        "install.md",
        &[
            ("lockkeeper certs init prod --nodes 10.0.0.1,10.0.0.2", Run(&[])),
            ("systemctl enable --now lockkeeper", Instead("systemd starts no services here", START)),
            (
                "export LOCKKEEPER_ENDPOINTS=10.0.0.1:7101",
                Run(&[(
                    "lockkeeper status\n",
                    "lockkeeper status --wait healthy --within 60s >/dev/null\nlockkeeper status\n",
                )]),
            ),
            ("node=cluster-configs/kubernetes/node.sh", Not("a cluster of Kubernetes: tests/deployment/kubernetes.rs")),
            ("cluster-configs/kubernetes/node.sh replace", Not("the same: tests/deployment/kubernetes.rs")),
        ],
    ),
    (
        "security.md",
        &[
            ("lockkeeper certs node 4", Run(&[])),
            (
                "lockkeeper token new shop-1",
                // The nodes read the file within a second.
                Run(&[(
                    "LOCKKEEPER_BEARER_TOKEN_FILE=shop-1.token lockkeeper get seats/1\n",
                    "again LOCKKEEPER_BEARER_TOKEN_FILE=shop-1.token lockkeeper get seats/1\n",
                )]),
            ),
            ("lockkeeper policy check policy.toml", Run(&[("read '*'\n", "read '*' && exit 1 || test $? = 13\n")])),
            ("lockkeeper audit show", Not("audit files: tests/cluster/audit.rs")),
        ],
    ),
    (
        "day-2.md",
        &[
            ("lockkeeper member replace 2", Not("a node that is lost: tests/cluster/members.rs")),
            ("lockkeeper rolling-restart --dry-run", Not("hosts that ssh reaches: tests/cluster/rolling.rs")),
        ],
    ),
    ("monitoring.md", &[("OTEL_EXPORTER_OTLP_ENDPOINT", Not("a collector: tests/traces"))]),
    ("README.md", &[]),
    ("settings.md", &[]),
    ("when-it-hurts.md", &[]),
    (
        "disaster.md",
        &[
            ("lockkeeper snapshot save", Not("the whole procedure: tests/deployment/disaster.rs")),
            ("lockkeeper snapshot restore", Not("the whole procedure: tests/deployment/disaster.rs")),
            ("lockkeeper certs successor locks-2", Not("the whole procedure, twice: tests/deployment/disaster.rs")),
            (
                "lockkeeper recover --data-dir /var/lib/lockkeeper --inspect",
                Not("the whole procedure: tests/deployment/disaster.rs"),
            ),
            (
                "lockkeeper recover --data-dir /var/lib/lockkeeper --force-new-cluster",
                Not("the whole procedure: tests/deployment/disaster.rs"),
            ),
            (
                "lockkeeper recover --data-dir /var/lib/lockkeeper --through",
                Not("an entry that fails: tests/cluster/unapplied.rs"),
            ),
        ],
    ),
];

/// Starts the three hosts with the configuration of the page, as the unit does.
const START: &str = r#"
for node in 1 2 3; do
    mkdir -p host-$node
    cp certs/ca.pem host-$node/ca.pem
    cp certs/node-$node.pem host-$node/node.pem
    cp certs/node-$node-key.pem host-$node/node-key.pem
    sed "s|/etc/lockkeeper|$PWD/host-$node|; s|/var/lib/lockkeeper|$PWD/host-$node/data|" page.toml >host-$node/lockkeeper.toml
    LOCKKEEPER_NODE_ID=$node lockkeeper serve --config host-$node/lockkeeper.toml 2>host-$node/log &
done
"#;

/// The directory of a reader.
struct Reader {
    place: TempDir,
    /// In place of `10.0.0` and `127.0.0`.
    network: String,
}

impl Reader {
    fn new() -> Self {
        let reader = Self { place: tempfile::tempdir().expect("a directory"), network: free_network() };
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        symlink(root.join("scripts"), reader.at("scripts")).expect("made");
        fs::create_dir_all(reader.at("target/release")).expect("made");
        symlink(program(), reader.at("target/release/lockkeeper")).expect("made");
        fs::create_dir(reader.at("cluster-configs")).expect("made");
        for node in 1..=3 {
            let name = format!("cluster-configs/node{node}.toml");
            let text = fs::read_to_string(root.join(&name)).expect("readable");
            fs::write(reader.at(&name), reader.translated(&text)).expect("written");
        }

        fs::create_dir(reader.at("bin")).expect("made");
        let cargo = reader.at("bin/cargo");
        let text =
            "#!/bin/sh\ncase $1 in\nbuild) exit 0 ;;\nrun) while [ \"$1\" != -- ]; do shift; done; shift ;;\nesac\n";
        fs::write(&cargo, format!("{text}exec {} \"$@\"\n", program().display())).expect("written");
        fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("its owner may");
        reader
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn translated(&self, text: &str) -> String {
        text.replace("10.0.0.", &format!("{}.", self.network)).replace("127.0.0.", &format!("{}.", self.network))
    }

    /// The script of a page's blocks.
    fn script(&self, page: &str, plans: &[(&str, Plan)]) -> String {
        let mut script = String::new();
        let mut used = BTreeSet::new();
        for block in blocks(page).iter().filter(|block| ["sh", "console", "bash", ""].contains(&&*block.language)) {
            let Some(commands) = commands(block) else { continue };
            let known = plans.iter().enumerate().find(|(_, (beginning, _))| commands.starts_with(beginning));
            let (number, (_, plan)) = known.unwrap_or_else(|| {
                panic!("{page}:{}: this block is neither run nor listed with a reason:\n{commands}", block.line)
            });
            used.insert(number);

            let commands = match plan {
                Not(why) => format!("# It is not run: {why}\n"),
                Instead(why, stand_in) => format!("# It is not run: {why}\n{stand_in}"),
                Needs(needed) if !has(needed) => {
                    crate::skipped::skipped(format_args!("{page}:{}: there is no {needed}", block.line));
                    continue;
                }
                Needs(_) => commands,
                Run(changes) => changes.iter().fold(commands, |text, (from, to)| {
                    assert!(text.contains(from), "{page}:{}: there is no {from:?} in:\n{text}", block.line);
                    text.replacen(from, to, 1)
                }),
            };
            script += &format!("echo '== {page}:{}' >&2\n{}\n", block.line, self.translated(&commands));
        }
        let stale: Vec<_> = plans.iter().enumerate().filter(|(number, _)| !used.contains(number)).collect();
        let stale: Vec<_> = stale.into_iter().map(|(_, (beginning, _))| beginning).collect();
        assert!(stale.is_empty(), "{page} has no such blocks: {stale:?}");
        script
    }

    /// Runs it; what it said.
    async fn run(&self, script: &str) -> String {
        let file = self.at("page.sh");
        fs::write(&file, format!("{HELPERS}{script}")).expect("written");
        let said = self.at("said");
        let output = File::create(&said).expect("made");
        let mut shell = Command::new("bash");
        shell.arg(&file).current_dir(self.place.path()).stdin(Stdio::null()).process_group(0);
        shell.stdout(output.try_clone().expect("it is open")).stderr(output).env_clear();
        let path = format!("{}:{}", self.at("bin").display(), std::env::var("PATH").unwrap_or_default());
        shell.env("PATH", path).env("HOME", self.place.path());

        let mut child = shell.spawn().expect("bash runs");
        let group = Pid::from_child(&child);
        let ended = timeout(PATIENCE, spawn_blocking(move || child.wait())).await;
        // What it left running, and itself where it does not end. An error: nothing is left.
        let _ = kill_process_group(group, Signal::KILL);
        let said = fs::read_to_string(said).expect("text");
        let status = ended
            .unwrap_or_else(|_| panic!("no end after {PATIENCE:?}:\n{said}"))
            .expect("no panic")
            .expect("a status");
        assert!(status.success(), "{status}:\n{said}");
        said
    }
}

/// `shows WORDS`: waits until a look at the lock of the tour has these words. `again COMMAND`: repeats a command until it succeeds.
const HELPERS: &str = r#"set -euo pipefail
trap 'status=$?; kill $(jobs -p) 2>/dev/null || true; scripts/cluster.sh down >/dev/null 2>&1 || true; exit $status' EXIT
shows() { until lockkeeper get tickets/A5 2>/dev/null | grep -q -- "$1"; do sleep 0.1; done; }
again() { until env "$@"; do sleep 0.2; done; }
"#;

/// The commands of a block. `None`: it has none.
fn commands(block: &Block) -> Option<String> {
    if block.language != "console" {
        return (!block.language.is_empty()).then(|| block.text.clone());
    }
    let lines = block.text.lines().filter_map(|line| line.strip_prefix("$ "));
    Some(lines.map(|line| format!("{line}\n")).collect())
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Three numbers of addresses of this machine that nobody listens on: 127.X.Y.
fn free_network() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = process::id().wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed).wrapping_mul(7919));
        let network = format!("127.{}.{}", 1 + number / 254 % 254, 1 + number % 254);
        let ports = [7101, 7102, 7103, 7201, 7202, 7203];
        let is_free = |host: u8| ports.iter().all(|port| TcpListener::bind(format!("{network}.{host}:{port}")).is_ok());
        if (1..=4).all(is_free) {
            return network;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readme_can_be_followed() {
    let reader = Reader::new();
    let script = reader.script("README.md", README);
    let said = reader.run(&script).await;
    for words in [
        "seat A5, token 1",
        "open http://",
        "the cluster serves: export LOCKKEEPER_ENDPOINTS=http://",
        "was not acquired: held by",
        "is killed, pid",
        "held: ",
        "now mine, token 2",
        "the cluster serves: export LOCKKEEPER_ENDPOINTS=https://",
        "ops",
        "node 1 is down",
    ] {
        assert!(said.contains(words), "it does not say {words:?}:\n{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_for_other_clients_can_be_followed() {
    let reader = Reader::new();
    let mut script = "export PATH=$PWD/target/release:$PATH\n".to_owned();
    for (page, plans) in ADAPTERS {
        script += &reader.script(page, plans);
    }
    let said = reader.run(&script).await;
    assert!(!has("curl") || said.contains(r#"{"TableNames":[]}"#), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_pages_bring_three_hosts_up() {
    let reader = Reader::new();
    let configuration = |page: &str, section: &str| {
        let found = blocks(page).into_iter().find(|block| block.section == section && block.language == "toml");
        reader.translated(&found.unwrap_or_else(|| panic!("{page} has no configuration under {section:?}")).text)
    };
    // With a file of tokens, for the section on identities.
    let tokens = reader.at("tokens.toml");
    fs::write(&tokens, "").expect("written");
    let hosts = configuration("cluster-configs/install.md", "Three hosts from nothing");
    fs::write(reader.at("page.toml"), format!("{hosts}\n[auth]\ntokens = {tokens:?}\n")).expect("written");
    let policy = configuration("cluster-configs/security.md", "Who may do what");
    fs::write(reader.at("policy.toml"), policy).expect("written");

    // The pages have the program in `/usr/bin`.
    let mut script = "export PATH=$PWD/target/release:$PATH\n".to_owned();
    for (page, plans) in OPERATORS {
        script += &reader.script(&format!("cluster-configs/{page}"), plans);
    }
    let said = reader.run(&script).await;
    let healthy = said.lines().filter(|line| line.contains(":7101") && line.ends_with("ok")).count();
    assert_eq!(healthy, 3, "{said}");
    assert!(said.contains("token 1\n"), "{said}");
}

#[test]
fn every_operators_page_is_read() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster-configs");
    let names = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.into_string().expect("UTF-8")).filter(|name| name.ends_with(".md"));
    let read = OPERATORS.iter().map(|(page, _)| (*page).to_owned());
    assert_eq!(names.collect::<BTreeSet<_>>(), read.collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_of_the_local_cluster_knows_its_nodes_from_others() {
    let reader = Reader::new();
    let said = reader
        .run(
            r#"
export PATH=$PWD/target/release:$PATH
scripts/cluster.sh up
leader=$(lockkeeper status --endpoints "$(sed -n 's/^client_listen = "\(.*\)"/\1/p' cluster-configs/node?.toml | paste -sd,)" |
    awk '$3 == "leader" { print $1 }')
LOCKKEEPER_DATA=other scripts/cluster.sh up && exit 1
LOCKKEEPER_DATA=other scripts/cluster.sh down && exit 1
LOCKKEEPER_DATA=other scripts/cluster.sh kill 1 && exit 1
scripts/cluster.sh kill 7 && exit 1
echo "the leader is $leader"
scripts/cluster.sh kill leader
LOCKKEEPER_CERTS=missing scripts/cluster.sh status && exit 1
scripts/cluster.sh up
scripts/cluster.sh down
scripts/cluster.sh down
"#,
        )
        .await;
    let data = reader.at("data").canonicalize().expect("it is there");
    let leads = said.split("the leader is ").nth(1).and_then(|rest| rest.chars().next()).expect("a leader");
    for words in [
        format!("to stop it: LOCKKEEPER_DATA={} scripts/cluster.sh down", data.display()),
        "node 1 does not run in".to_owned(),
        "there is no node 7: name one of 1 2 3, or leader".to_owned(),
        format!("node {leads} is killed, pid"),
        "LOCKKEEPER_CERTS: there is no directory missing".to_owned(),
        "node 1 is down".to_owned(),
        "node 3 did not run in".to_owned(),
    ] {
        assert!(said.contains(&words), "it does not say {words:?}:\n{said}");
    }
}
