//! The client processes of a run.

use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::rngs::StdRng;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{Instant, timeout_at},
};

use crate::{
    dial::Dial,
    history::Fact,
    record::{HistoryClock, Recorder},
};

/// The settings common to all client processes of a run.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) program: PathBuf,
    pub(crate) endpoints: String,
    pub(crate) dial: Dial,
    pub(crate) socket: PathBuf,
    /// The directory of their parts of the history.
    pub(crate) parts: PathBuf,
    /// The file for their stderr.
    pub(crate) log: PathBuf,
    pub(crate) timeline: HistoryClock,
    pub(crate) seed: u64,
}

/// The client processes. Their number is constant: a killed client is replaced.
#[derive(Debug)]
pub(crate) struct Clients {
    setting: Setting,
    running: Vec<Client>,
    recorder: Recorder,
    totals: OperationTotals,
}

/// Operations and grants of all client processes so far, including those that were killed.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperationTotals(Arc<(AtomicU64, AtomicU64)>);

impl OperationTotals {
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.0.0.load(Ordering::Relaxed), self.0.1.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct Client {
    number: usize,
    generation: u32,
    child: Child,
    /// Closing this tells the process to finish.
    stdin: Option<ChildStdin>,
}

impl Clients {
    pub(crate) fn start(setting: Setting, count: usize, recorder: Recorder) -> io::Result<Self> {
        let mut clients = Self { setting, running: Vec::new(), recorder, totals: OperationTotals::default() };
        for number in 1..=count {
            let client = clients.spawn(number, 1, count)?;
            clients.running.push(client);
        }
        Ok(clients)
    }

    fn spawn(&self, number: usize, generation: u32, count: usize) -> io::Result<Client> {
        let Setting { program, endpoints, dial, socket, parts, log, timeline, seed } = &self.setting;
        let name = name(number, generation);

        let seed = seed.wrapping_add((number as u64) << 32).wrapping_add(u64::from(generation) << 16);
        let arguments: [(&str, OsString); 7] = [
            ("--name", name.clone().into()),
            ("--endpoints", endpoints.into()),
            ("--resource", socket.into()),
            ("--out", part(parts, &name).into()),
            ("--base-ns", timeline.base_ns().to_string().into()),
            ("--seed", seed.to_string().into()),
            ("--processes", count.to_string().into()),
        ];

        let log: File = OpenOptions::new().create(true).append(true).open(log)?;

        let mut command = Command::new(program);
        command
            .args(["chaos", "client"])
            .args(arguments.iter().flat_map(|(flag, value)| [OsString::from(flag), value.clone()]))
            .args(dial.arguments());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);

        // In its own process group, the client gets no Ctrl-C. If this process dies while the client is stopped, the kernel ends the
        // orphaned group.
        command.process_group(0);

        let mut child = command.spawn()?;
        if let Some(stdout) = child.stdout.take() {
            // This task ends with the process.
            tokio::spawn(listen(stdout, self.totals.clone()));
        }
        let stdin = child.stdin.take();
        Ok(Client { number, generation, child, stdin })
    }

    /// Sets the addresses of the nodes for clients that start from now on.
    pub(crate) fn set_endpoints(&mut self, endpoints: String) {
        self.setting.endpoints = endpoints;
    }

    pub(crate) fn totals(&self) -> OperationTotals {
        self.totals.clone()
    }

    /// Kills a client at any point of its work, and starts another in its place.
    pub(crate) async fn replace(&mut self, place: usize) -> io::Result<()> {
        let count = self.running.len();
        let client = &mut self.running[place];
        client.child.start_kill()?;
        client.child.wait().await?;
        self.recorder.fact(Fact::Died { process: client.name() });

        let number = client.number;
        let generation = client.generation + 1;
        self.running[place] = self.spawn(number, generation, count)?;
        Ok(())
    }

    /// Draws the places of `count` clients.
    pub(crate) fn some(&self, count: usize, random: &mut StdRng) -> Vec<usize> {
        rand::seq::index::sample(random, self.running.len(), count.min(self.running.len())).into_vec()
    }

    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn name(&self, place: usize) -> String {
        self.running[place].name()
    }

    /// Signals a client. Returns whether the process exists.
    pub(crate) fn signal(&self, place: usize, signal: Signal) -> bool {
        self.running[place].signal(signal)
    }

    pub(crate) fn signal_all(&self, signal: Signal) {
        for client in &self.running {
            client.signal(signal);
        }
    }

    /// Returns a client that exited by itself, which is an error.
    pub(crate) fn exited_client(&mut self) -> Option<String> {
        self.running.iter_mut().find_map(|client| match client.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(format!("client {} exited by itself: {status}", client.name())),
            Err(error) => Some(format!("client {} cannot be waited for: {error}", client.name())),
        })
    }

    /// Tells all clients to finish, and waits for them. Returns the errors of those that did not.
    pub(crate) async fn finish(&mut self, by: Instant) -> Vec<String> {
        self.running.iter_mut().for_each(|client| client.stdin = None);
        let mut troubles = Vec::new();

        for client in &mut self.running {
            match timeout_at(by, client.child.wait()).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(Ok(status)) if status.signal().is_some() => {
                    troubles.push(format!("client {} exited by itself: {status}", client.name()));
                }
                Ok(Ok(status)) => troubles.push(format!("client {} failed: {status}; see clients.log", client.name())),
                Ok(Err(error)) => troubles.push(format!("client {} cannot be waited for: {error}", client.name())),
                Err(_) => {
                    troubles.push(format!("client {} did not finish in time", client.name()));
                    let _ = client.child.kill().await;
                }
            }
        }

        self.running.clear();
        troubles
    }
}

impl Client {
    fn name(&self) -> String {
        name(self.number, self.generation)
    }

    fn signal(&self, signal: Signal) -> bool {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }
}

/// A replaced client has a new name, since a process that died does not return under its name.
fn name(number: usize, generation: u32) -> String {
    match generation {
        1 => format!("c{number}"),
        _ => format!("c{number}.{generation}"),
    }
}

/// The file with a process's part of the history.
pub(crate) fn part(parts: &Path, name: &str) -> PathBuf {
    parts.join(format!("{name}.jsonl"))
}

/// Reads the process's counters, which it writes on one line each time.
async fn listen(stdout: ChildStdout, totals: OperationTotals) {
    let mut lines = BufReader::new(stdout).lines();
    let mut operations = 0;
    let mut grants = 0;

    while let Ok(Some(line)) = lines.next_line().await {
        let mut numbers = line.split(' ').map_while(|number| number.parse::<u64>().ok());
        if let (Some(more), Some(granted)) = (numbers.next(), numbers.next()) {
            totals.0.0.fetch_add(more.saturating_sub(operations), Ordering::Relaxed);
            totals.0.1.fetch_add(granted.saturating_sub(grants), Ordering::Relaxed);
            operations = more;
            grants = granted;
        }
    }
}

/// Time limit for clients to finish: a call with its retries, plus a margin.
pub(crate) const FINISH: Duration = Duration::from_secs(30);
