//! Servers of PostgreSQL, each under its Patroni, and who watches them.

use std::{
    fs::{self, File},
    net::TcpListener,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Stdio,
};

use lockkeeper::local::LocalCluster;
use rustix::process::{Pid, Signal, geteuid, kill_process, test_kill_process};
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::postgres;
use crate::unmodified::packages::{PATIENCE, command, directory, is_installed, run, set_installed};

/// The name that all servers share: the leader key is `/service/SCOPE/leader`.
const SCOPE: &str = "demo";
/// The leader key.
pub(super) const KEY: &str = "/service/demo/leader";
/// Seconds: the lowest that Patroni accepts.
pub(super) const TTL: u64 = 20;
/// `nobody` and its group: PostgreSQL refuses to run as root.
const NOBODY: (u32, u32) = (65534, 65534);

/// What it needs of the machine.
pub(super) struct Programs {
    /// The directory of the Python that has Patroni.
    python: PathBuf,
    postgres: PathBuf,
    /// What a command for a server begins with.
    prefix: Vec<String>,
}

impl Programs {
    /// Why it cannot be had, otherwise.
    pub(super) async fn new() -> Result<Self, String> {
        let python = python().await?;
        let postgres = postgres::programs().await?;
        // They end with this thread, even when nothing else ends them.
        let mut prefixes = vec!["--pdeathsig TERM".to_owned()];
        if geteuid().is_root() {
            let (user, group) = NOBODY;
            let other = format!("--pdeathsig TERM --reuid {user} --regid {group} --clear-groups");
            // The second one reaches build directories below a home.
            prefixes = vec![other.clone(), format!("{other} --inh-caps +dac_override --ambient-caps +dac_override")];
        }
        let mut problem = String::new();
        for prefix in prefixes {
            let prefix: Vec<String> = prefix.split(' ').map(str::to_owned).collect();
            let programs = Self { python: python.clone(), postgres: postgres.clone(), prefix };
            match programs.probe().await {
                Ok(()) => return Ok(programs),
                Err(error) => problem = error,
            }
        }
        Err(problem)
    }

    /// Whether a server can start what Patroni starts: `setpriv` itself may start more.
    async fn probe(&self) -> Result<(), String> {
        let postgres = self.postgres.join("postgres").display().to_string();
        let starts = "import subprocess, sys; [subprocess.run(it.split(), check=True) for it in sys.argv[1:]]";
        let [python, import] = [self.python.join("python"), self.python.join("patronictl")];
        let import = format!("{} {} --help", python.display(), import.display());
        let arguments = ["-c", starts, &import, &format!("{postgres} --version")];
        run(self.as_server(&python, &arguments)).await.map(drop)
    }

    /// A command as the user of the servers.
    fn as_server(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut prefix: Vec<&str> = self.prefix.iter().map(String::as_str).collect();
        let program = program.display().to_string();
        prefix.push(&program);
        let mut command = command(Path::new("setpriv"), &[&prefix, arguments].concat());
        command.envs(postgres::libraries(&self.postgres).map(|path| ("LD_LIBRARY_PATH", path)));
        command.current_dir("/");
        command
    }
}

/// The directory of the programs of a Python that has Patroni.
async fn python() -> Result<PathBuf, String> {
    let wanted = include_str!("../clients/patroni-requirements.txt");
    let (directory, _lock) = directory("etcd-patroni").await.map_err(|error| error.to_string())?;
    let programs = directory.join("bin");
    if !is_installed(&directory, wanted) {
        run(command(Path::new("python3"), &["-m", "venv", "--clear", &directory.display().to_string()])).await?;
        let requirements = directory.join("requirements.txt");
        fs::write(&requirements, wanted).map_err(|error| error.to_string())?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
        let python = programs.join("python");
        run(command(&python, &[&pip[..], &[&requirements.display().to_string()]].concat())).await?;
        set_installed(&directory, wanted)?;
    }
    Ok(programs)
}

/// A server and its Patroni.
struct Server {
    name: String,
    port: u16,
    directory: PathBuf,
    config: PathBuf,
    patroni: Option<Child>,
}

impl Server {
    fn start(&mut self, programs: &Programs) {
        let log = File::options().create(true).append(true).open(self.directory.join("patroni.log")).expect("a log");
        let config = self.config.display().to_string();
        let mut command = programs.as_server(&programs.python.join("python"), &["-m", "patroni", &config]);
        command.stdout(log.try_clone().expect("a file")).stderr(log).process_group(0);
        self.patroni = Some(command.spawn().expect("setpriv starts"));
    }

    /// The process of PostgreSQL itself, if it has one.
    fn postmaster(&self) -> Option<Pid> {
        let file = fs::read_to_string(self.directory.join("data/postmaster.pid")).ok()?;
        let pid = Pid::from_raw(file.lines().next()?.trim().parse().ok()?)?;
        test_kill_process(pid).is_ok().then_some(pid)
    }

    /// Kills both, without a chance to clean up. The processes of PostgreSQL end when the first one does.
    fn kill(&mut self) {
        // First the one that could start the other one.
        if let Some(patroni) = &mut self.patroni {
            let _ = patroni.start_kill();
        }
        if let Some(postmaster) = self.postmaster() {
            let _ = kill_process(postmaster, Signal::KILL);
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = self.patroni.as_ref().and_then(Child::id).and_then(|id| Pid::from_raw(id.cast_signed()));
        let _ = pid.map(|pid| kill_process(pid, signal));
    }

    /// The last lines of its log.
    fn log(&self) -> String {
        let text = fs::read_to_string(self.directory.join("patroni.log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What is seen of all servers: see `clients/patroni_watch.py`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
pub(super) struct Seen {
    pub(super) primaries: Vec<String>,
    pub(super) replicas: Vec<String>,
    /// The replicas to which the primary streams.
    pub(super) streaming: usize,
    /// Whose the leader key is, and its create revision.
    pub(super) owner: Option<String>,
    pub(super) token: Option<u64>,
    /// Whose it was, one after the other.
    pub(super) owners: Vec<String>,
    /// The servers that were primaries, one after the other.
    pub(super) promoted: Vec<String>,
    troubles: Vec<String>,
}

impl Seen {
    /// The primary, if there is one and all others are its replicas.
    pub(super) fn settled(&self) -> Option<&str> {
        let [primary] = &self.primaries[..] else { return None };
        let follow = self.replicas.len() == 2 && self.streaming == 2;
        (follow && self.owner.as_ref() == Some(primary)).then_some(primary)
    }
}

/// Three servers.
pub(super) struct Stage {
    programs: Programs,
    servers: Vec<Server>,
    seen: watch::Receiver<Seen>,
    _watching: Child,
    // Removed when the servers are dead.
    _directory: TempDir,
}

impl Stage {
    /// Starts them with nothing but a new cluster.
    pub(super) fn new(programs: Programs, cluster: &LocalCluster) -> Self {
        let directory = tempfile::Builder::new().prefix("lockkeeper-patroni-").tempdir().expect("a directory");
        let endpoints = cluster.etcd_endpoints();
        let listeners: Vec<_> = (0..6).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
        let ports: Vec<u16> = listeners.iter().map(|it| it.local_addr().expect("bound").port()).collect();
        own(directory.path());
        let mut servers: Vec<_> = ports
            .chunks(2)
            .zip(1..)
            .map(|(ports, number)| {
                let name = format!("pg{number}");
                let directory = directory.path().join(&name);
                fs::create_dir(&directory).expect("a directory");
                let config = directory.join("patroni.json");
                // JSON is YAML.
                fs::write(&config, configuration(&programs, &name, &directory, ports, &endpoints)).expect("written");
                own(&directory);
                Server { name, port: ports[0], directory, config, patroni: None }
            })
            .collect();
        drop(listeners);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd/clients/patroni_watch.py");
        let mut watching =
            command(&programs.python.join("python"), &[&script.display().to_string(), &endpoints.join(","), KEY]);
        watching.args(servers.iter().map(|server| format!("{}={}", server.name, server.port))).stderr(Stdio::inherit());
        let mut watching = watching.spawn().expect("Python starts");
        let mut lines = BufReader::new(watching.stdout.take().expect("it is piped")).lines();
        let (tell, seen) = watch::channel(Seen::default());
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                tell.send_replace(serde_json::from_str(&line).expect("its JSON"));
            }
        });
        servers.iter_mut().for_each(|server| server.start(&programs));
        Self { programs, servers, seen, _watching: watching, _directory: directory }
    }

    fn server(&self, name: &str) -> &Server {
        self.servers.iter().find(|server| server.name == name).expect("one of its names")
    }

    /// What is seen now.
    pub(super) fn seen(&self) -> Seen {
        let seen = self.seen.borrow().clone();
        assert_eq!(seen.troubles, [""; 0], "{seen:?}");
        seen
    }

    /// What is seen as soon as it is so.
    pub(super) async fn until(&self, what: &str, is_so: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = self.seen.clone();
        let waited = timeout(PATIENCE / 3, seen.wait_for(|seen| !seen.troubles.is_empty() || is_so(seen))).await;
        let waited = waited.map(|seen| seen.expect("it watches").clone());
        let now = self.seen();
        waited.unwrap_or_else(|_| {
            let logs: Vec<_> =
                self.servers.iter().map(|server| format!("{}:\n{}", server.name, server.log())).collect();
            panic!("not seen in time: {what}\n{now:?}\n{}", logs.join("\n"))
        })
    }

    /// Waits until one is the primary and the others follow it. Its name.
    pub(super) async fn settled(&self, what: &str) -> String {
        let seen = self.until(what, |seen| seen.settled().is_some()).await;
        seen.settled().expect("just seen").to_owned()
    }

    /// Asks a server.
    pub(super) async fn ask(&self, name: &str, statement: &str) -> Result<String, String> {
        let port = self.server(name).port.to_string();
        let arguments =
            ["-X", "-A", "-t", "-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", "postgres", "-c", statement];
        let mut psql = command(&self.programs.postgres.join("psql"), &arguments);
        psql.envs(postgres::libraries(&self.programs.postgres).map(|path| ("LD_LIBRARY_PATH", path)));
        run(psql).await.map(|text| text.trim().to_owned())
    }

    /// Waits until a server gives this answer.
    pub(super) async fn until_answer(&self, name: &str, statement: &str, wanted: &str) {
        let deadline = Instant::now() + PATIENCE / 3;
        loop {
            let answer = self.ask(name, statement).await;
            if answer.as_deref() == Ok(wanted) {
                return;
            }
            assert!(Instant::now() < deadline, "{name}: {statement}: {answer:?} is not {wanted}");
            sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Patroni's own tool. What it says.
    pub(super) async fn ctl(&self, arguments: &[&str]) -> String {
        let config = self.servers[0].config.display().to_string();
        let ctl = command(&self.programs.python.join("patronictl"), &[&["-c", &config], arguments].concat());
        run(ctl).await.unwrap_or_else(|problem| panic!("{problem}"))
    }

    /// Kills a server and its Patroni.
    pub(super) fn kill(&mut self, name: &str) {
        self.servers.iter_mut().find(|server| server.name == name).expect("one of its names").kill();
    }

    /// Starts one that was killed.
    pub(super) async fn restart(&mut self, name: &str) {
        let server = self.servers.iter_mut().find(|server| server.name == name).expect("one of its names");
        if let Some(mut patroni) = server.patroni.take() {
            patroni.wait().await.expect("it ends");
        }
        server.start(&self.programs);
    }

    /// Has all Patronis stop their servers.
    pub(super) async fn stop(mut self) {
        self.servers.iter().for_each(|server| server.signal(Signal::TERM));
        let deadline = Instant::now() + PATIENCE / 3;
        for server in &mut self.servers {
            let mut patroni = server.patroni.take().expect("it runs");
            let ended = timeout_at(deadline, patroni.wait()).await;
            assert!(
                matches!(ended, Ok(Ok(status)) if status.success()),
                "{}: {ended:?}\n{}",
                server.name,
                server.log()
            );
            assert_eq!(server.postmaster(), None, "{}", server.name);
        }
    }
}

/// Gives a directory to the user of the servers.
fn own(path: &Path) {
    if geteuid().is_root() {
        let (user, group) = NOBODY;
        chown(path, Some(user), Some(group)).expect("root may");
    }
}

fn configuration(programs: &Programs, name: &str, directory: &Path, ports: &[u16], endpoints: &[String]) -> String {
    let server = format!("127.0.0.1:{}", ports[0]);
    let rest = format!("127.0.0.1:{}", ports[1]);
    let parameters = json!({ "fsync": "off", "jit": "off", "max_connections": 30, "shared_buffers": "8MB" });
    let user = |name: &str| json!({ "username": name, "password": name });
    // A server that was killed may have more than the new primary.
    let postgresql = json!({ "use_pg_rewind": true, "parameters": parameters });
    let dcs = json!({ "ttl": TTL, "loop_wait": 1, "retry_timeout": 9, "postgresql": postgresql });
    json!({
        "scope": SCOPE,
        "name": name,
        "restapi": { "listen": rest, "connect_address": rest },
        "etcd3": { "hosts": endpoints },
        "bootstrap": { "dcs": dcs, "initdb": [{ "encoding": "UTF8" }, { "locale": "C" }, "no-sync"] },
        "postgresql": {
            "listen": server,
            "connect_address": server,
            "data_dir": directory.join("data"),
            "bin_dir": programs.postgres,
            "pgpass": directory.join("pgpass"),
            "authentication": {
                "superuser": user("postgres"), "replication": user("replicator"), "rewind": user("rewinder"),
            },
            "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust", "local all all trust"],
            "basebackup": [{ "checkpoint": "fast" }, "no-sync"],
            "parameters": { "unix_socket_directories": directory },
        },
    })
    .to_string()
}
