//! `lockkeeper top` in a real terminal, against a real cluster. `script` (util-linux) provides the terminal.

use std::process::Stdio;

use lockkeeper::{
    client::{Error, Guard, Session},
    local::LocalCluster,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, ChildStdin, ChildStdout, Command},
    task::JoinHandle,
    time::{Instant, timeout},
};

use crate::support::{
    LONG, client, cluster_with, leader, lockkeeper, long_session, output, program, steady_cluster, text, until,
};

/// What a terminal shows: enough of one for what the program sends.
struct Picture {
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    /// An escape sequence, or a character, that is not complete yet.
    pending: Vec<u8>,
    /// All output that was no escape sequence, also what was overwritten.
    said: String,
    is_alternate: bool,
}

/// Larger than any size of the tests.
const ROWS: usize = 60;
const COLUMNS: usize = 200;

impl Picture {
    fn new() -> Self {
        let cells = vec![vec![' '; COLUMNS]; ROWS];
        Self { cells, at: (0, 0), pending: Vec::new(), said: String::new(), is_alternate: false }
    }

    fn take(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.pending.push(byte);
            match self.pending.as_slice() {
                [0x1b] | [0x1b, b'['] => {}
                [0x1b, b'[', parameters @ .., end @ 0x40..=0x7e] => {
                    let parameters = String::from_utf8_lossy(parameters).into_owned();
                    let end = *end;
                    self.pending.clear();
                    self.command(&parameters, end);
                }
                [0x1b, b'[', ..] => {}
                [0x1b, ..] => self.pending.clear(),
                bytes => {
                    if let Ok(text) = std::str::from_utf8(bytes) {
                        let text = text.to_owned();
                        self.pending.clear();
                        text.chars().for_each(|c| self.put(c));
                    }
                }
            }
        }
    }

    fn command(&mut self, parameters: &str, end: u8) {
        match (parameters, end) {
            ("?1049", b'h') => self.is_alternate = true,
            ("?1049", b'l') => self.is_alternate = false,
            (to, b'H') => {
                let (row, column) = to.split_once(';').unwrap_or(("1", "1"));
                let place = |text: &str| text.parse::<usize>().unwrap_or(1) - 1;
                self.at = (place(row), place(column));
            }
            (_, b'J') => self.cells = vec![vec![' '; COLUMNS]; ROWS],
            _ => {}
        }
    }

    fn put(&mut self, c: char) {
        self.said.push(c);
        match c {
            '\r' => self.at.1 = 0,
            '\n' => self.at.0 += 1,
            c => {
                let (row, column) = self.at;
                if let Some(cell) = self.cells.get_mut(row).and_then(|row| row.get_mut(column)) {
                    *cell = c;
                }
                self.at.1 += 1;
            }
        }
    }

    fn row(&self, row: usize) -> String {
        self.cells[row].iter().collect::<String>().trim_end().to_owned()
    }

    fn text(&self) -> String {
        (0..ROWS).map(|row| self.row(row) + "\n").collect::<String>().trim_end().to_owned()
    }
}

struct Terminal {
    picture: Picture,
    output: ChildStdout,
    keyboard: ChildStdin,
    child: Child,
    /// The name of the terminal, such as /dev/pts/3.
    name: String,
    /// The process of `lockkeeper top`.
    pid: Pid,
}

impl Terminal {
    /// Runs `lockkeeper top` in a terminal of this size. `None`, with a message, if a tool is missing here.
    async fn open(cluster: &LocalCluster, rows: u16, columns: u16) -> Option<Self> {
        for needed in [&["script", "--version"][..], &["stty", "--version"], &["env", "--default-signal", "true"]] {
            if !Command::new(needed[0]).args(&needed[1..]).output().await.is_ok_and(|output| output.status.success()) {
                crate::skipped::skipped(format_args!("this does not work here: {}", needed.join(" ")));
                return None;
            }
        }
        // Its end, and the state in which it leaves the terminal, are printed after it.
        let script = format!(
            "stty rows {rows} cols {columns}; echo \"tty=$(tty) \"; sh -c 'echo \"pid=$$ \"; exec $LOCKKEEPER top --interval 200ms'; \
             echo \"exit=$? \"; stty -a | tr ' ' '\\n' | grep -x -e icanon -e -icanon; echo over"
        );
        let mut command = Command::new("env");
        command.args(["--default-signal", "script", "--quiet", "--return", "--command", &script, "/dev/null"]);
        command.env("SHELL", "/bin/sh").env("TERM", "xterm").env("LOCKKEEPER", program()).env_remove("NO_COLOR");
        command.env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(","));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("`env` ran before");
        let output = child.stdout.take().expect("a pipe");
        let keyboard = child.stdin.take().expect("a pipe");
        let picture = Picture::new();
        let name = String::new();
        let pid = Pid::INIT;
        let mut terminal = Self { picture, output, keyboard, child, name, pid };
        terminal.name = terminal.value("tty=").await;
        terminal.pid = Pid::from_raw(terminal.value("pid=").await.parse().expect("a number")).expect("a process");
        Some(terminal)
    }

    /// What is printed after this, up to a blank.
    async fn value(&mut self, name: &str) -> String {
        self.shows(name, |picture| {
            let (_, value) = picture.said.split_once(name)?;
            value.split_once(' ').map(|(value, _)| value.to_owned())
        })
        .await
    }

    /// Waits until the picture is as wanted.
    async fn shows<T>(&mut self, what: &str, mut wanted: impl FnMut(&Picture) -> Option<T>) -> T {
        let deadline = Instant::now() + LONG;
        let mut bytes = [0; 4_096];
        loop {
            if let Some(found) = wanted(&self.picture) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match timeout(left, self.output.read(&mut bytes)).await {
                Ok(Ok(read @ 1..)) => self.picture.take(&bytes[..read]),
                other => panic!("waited in vain ({other:?}) for {what}:\n{}", self.picture.text()),
            }
        }
    }

    async fn shows_text(&mut self, text: &str) {
        self.shows(text, |picture| picture.text().contains(text).then_some(())).await;
    }

    async fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).await.expect("it reads");
    }

    async fn resize(&mut self, rows: u16, columns: u16) {
        let rows = rows.to_string();
        let columns = columns.to_string();
        let stty = Command::new("stty").args(["-F", &self.name, "rows", &rows, "cols", &columns]).status().await;
        assert!(stty.expect("it ran before").success());
    }

    /// It has ended with this exit code, and has given the terminal back as it was.
    async fn ends_with(mut self, exit: &str) {
        assert_eq!(self.value("exit=").await, exit, "{}", self.picture.text());
        self.shows("over", |picture| picture.said.contains("over").then_some(())).await;
        assert!(!self.picture.is_alternate, "it left the alternate screen");
        assert!(self.picture.said.contains("\nicanon"), "the terminal reads lines again: {:?}", self.picture.said);
        timeout(LONG, self.child.wait()).await.expect("it ends").expect("its status");
    }
}

/// A lock with a holder and a waiter.
async fn contended(cluster: &LocalCluster) -> Contended {
    let client = client(cluster);
    let holder = long_session(&client).await;
    let waiter = long_session(&client).await;
    let guard = holder.acquire("jobs/1").await.expect("it is free");
    let waiting = tokio::spawn(waiter.acquire("jobs/1").into_future());
    until("a waiter", async || (client.get("jobs/1").await.ok()?.lock.queue_length == 1).then_some(())).await;
    Contended { _guard: guard, _waiting: waiting, _sessions: [holder, waiter] }
}

struct Contended {
    _guard: Guard,
    _waiting: JoinHandle<Result<Guard, Error>>,
    _sessions: [Session; 2],
}

/// The number after this word.
fn number_after(line: &str, word: &str) -> Option<u64> {
    line.split_once(word)?.1.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_view_follows_the_cluster_and_the_terminal() {
    // Its elections are those that the test causes.
    let mut cluster = cluster_with(|options| {
        options.raft.election_timeout_ms_min = 1_500;
        options.raft.election_timeout_ms_max = 3_000;
    })
    .await;
    let _contended = contended(&cluster).await;
    let Some(mut terminal) = Terminal::open(&cluster, 24, 100).await else { return };
    terminal.shows_text("jobs/1").await;
    let leading = leader(&cluster).await;
    terminal.shows("the leader", |picture| (number_after(&picture.row(0), "leader ")? == leading).then_some(())).await;
    terminal.shows("the keys", |picture| picture.row(23).starts_with("q quit").then_some(())).await;

    terminal.resize(12, 40).await;
    terminal
        .shows("a smaller picture", |picture| {
            let fits =
                picture.row(11).starts_with("q quit") && (0..ROWS).all(|row| picture.row(row).chars().count() <= 40);
            (fits && picture.text().contains("jobs/1") && picture.row(12).is_empty()).then_some(())
        })
        .await;
    terminal.resize(24, 100).await;
    terminal.shows("a larger picture", |picture| picture.row(23).starts_with("q quit").then_some(())).await;

    cluster.node_mut(leading).kill().await;
    terminal.shows_text(&format!("down: node {leading}")).await;
    let next = terminal
        .shows("another leader", |picture| number_after(&picture.row(0), "leader ").filter(|next| *next != leading))
        .await;
    assert_eq!(next, leader(&cluster).await);
    terminal.shows_text("jobs/1").await;

    for id in 1..=3 {
        cluster.node_mut(id).kill().await;
    }
    terminal.shows_text("no node answers").await;
    for id in 1..=3 {
        cluster.node_mut(id).spawn().expect("it starts again");
    }
    terminal
        .shows("the cluster again", |picture| {
            (!picture.text().contains("no node answers") && number_after(&picture.row(0), "leader ").is_some())
                .then_some(())
        })
        .await;

    terminal.types("/nothing\r").await;
    terminal.shows_text("only locks under nothing").await;
    terminal.shows("no lock", |picture| (!picture.text().contains("jobs/1")).then_some(())).await;
    terminal.types("q").await;
    terminal.ends_with("0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_and_ctrl_c_give_the_terminal_back() {
    let cluster = crate::support::cluster_of(1).await;
    let Some(mut terminal) = Terminal::open(&cluster, 24, 80).await else { return };
    terminal.shows_text("leader 1").await;
    kill_process(terminal.pid, Signal::TERM).expect("it runs");
    terminal.ends_with("143").await;

    let Some(mut terminal) = Terminal::open(&cluster, 24, 80).await else { return };
    terminal.shows_text("leader 1").await;
    terminal.types("\x03").await;
    terminal.ends_with("0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_it_prints_once() {
    let cluster = steady_cluster().await;
    let _contended = contended(&cluster).await;
    let endpoints = cluster.endpoints().join(",");
    let top = ["top", "--endpoints", &endpoints, "--interval", "100ms"];
    let (code, stdout, stderr) = text(&output(&mut lockkeeper(&top)).await);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let lines: Vec<Vec<&str>> = stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines.iter().any(|cells| cells.starts_with(&["jobs/1", "1"])), "{stdout}");
    assert!(lines.iter().any(|cells| cells.get(2) == Some(&"leader")), "{stdout}");

    let top = [&top[..], &["-o", "json", "--prefix", "jobs/"]].concat();
    let (code, stdout, _) = text(&output(&mut lockkeeper(&top)).await);
    let document: Value = serde_json::from_str(&stdout).expect("a document");
    assert_eq!(code, 0);
    let lock = &document["busiest_locks"][0];
    let wait = &document["longest_waits"][0];
    assert_eq!((&lock["name"], &lock["queue_length"]), (&"jobs/1".into(), &1.into()), "{stdout}");
    assert_eq!(
        (&wait["name"], &wait["label"], &wait["holder"]["label"]),
        (&"jobs/1".into(), &"test".into(), &"test".into())
    );
    assert_eq!(
        (document["waiters"].as_u64(), document["grants_per_second"].as_f64()),
        (Some(1), Some(0.0)),
        "{stdout}"
    );

    let nobody = ["top", "--endpoints", "127.0.0.1:1", "--interval", "100ms"];
    let (code, stdout, _) = text(&output(&mut lockkeeper(&nobody)).await);
    assert_eq!(code, 12);
    assert!(stdout.starts_with("no node answers, of 127.0.0.1:1"), "{stdout}");
}
