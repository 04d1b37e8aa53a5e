//! A node's process and its surroundings: terminal, log output, data directory and damaged files.

#![expect(clippy::disallowed_methods, reason = "stalls and measures threads in real time")]
#![expect(clippy::unwrap_used, reason = "a test fails by it, helpers included")]

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::support::{LONG, cluster_of, program};
use lockkeeper::{
    local::{LocalCluster, Signal},
    raft::{
        log::{LogOptions, LogStore},
        types::{CommittedLeaderId, EntryPayload, LogEntry, LogId, Payload, TypeConfig},
    },
};
use openraft::{
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt,
};
use rustix::process::{Pid, kill_process};

/// The directory of a cluster of one node, which has ended. A node can be started on it.
struct Place {
    cluster: LocalCluster,
}

impl Place {
    async fn new() -> Self {
        let mut cluster = cluster_of(1).await;
        cluster.stop().await;
        Self { cluster }
    }

    fn serve(&self) -> Command {
        let mut command = Command::new(program());
        command.args(["serve", "--config"]).arg(self.cluster.node(1).config_file()).stdin(Stdio::null());
        command
    }

    fn data(&self) -> PathBuf {
        self.cluster.node(1).config().data_dir.clone()
    }

    /// Starts a node with this stderr.
    fn start(&self, stderr: impl Into<Stdio>) -> Running {
        Running(self.serve().stderr(stderr).spawn().unwrap())
    }

    /// Waits until the node answers that it leads.
    fn answers(&self, node: &mut Running) {
        let begun = Instant::now();
        loop {
            let mut status = Command::new(program());
            status.args(["status", "--endpoints"]).arg(self.cluster.node(1).endpoint());
            if output(&mut status).status.success() {
                return;
            }
            assert_eq!(node.0.try_wait().unwrap(), None, "it ended");
            assert!(begun.elapsed() < LONG, "it does not answer in time");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap()
}

/// A running node, which is killed on drop.
struct Running(Child);

impl Running {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Stops it with SIGTERM.
    fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.0.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads until a line has these words.
fn read_until(lines: &mut BufReader<ChildStderr>, words: &str) -> String {
    let mut read = String::new();
    while !read.contains(words) {
        assert_ne!(lines.read_line(&mut read).unwrap(), 0, "it ended without {words:?}: {read}");
    }
    read
}

/// The partition of its log is full, or the reader of its pipe has ended.
#[tokio::test]
async fn a_node_outlives_its_log() {
    let place = Place::new().await;
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut node = place.start(full);
    place.answers(&mut node);
    assert_eq!(node.stop().code(), Some(0));

    let mut node = place.start(Stdio::piped());
    drop(node.0.stderr.take());
    place.answers(&mut node);
    assert_eq!(node.stop().code(), Some(0));
}

/// Operators send SIGHUP to a daemon to reload its configuration or reopen its log. Without a terminal, it is no reason to end.
#[tokio::test]
async fn a_hangup_ends_no_daemon() {
    // `cluster_of` ensures that no test starts its programs with the signal ignored.
    let place = Place::new().await;
    let mut node = place.start(Stdio::piped());
    let mut log = BufReader::new(node.0.stderr.take().unwrap());
    place.answers(&mut node);
    for _ in 0..2 {
        node.signal(Signal::HUP);
        read_until(&mut log, "SIGHUP received: nothing to reload");
    }
    place.answers(&mut node);
    assert_eq!(node.stop().code(), Some(0));
    read_until(&mut log, "SIGTERM received: stopping");
}

/// A second node changes nothing in the directory of a running node, not even a file that looks unfinished.
#[tokio::test]
async fn a_second_node_leaves_the_directory_alone() {
    let place = Place::new().await;
    let mut node = place.start(Stdio::null());
    place.answers(&mut node);
    let unfinished = place.data().join("snapshots/7.partial");
    fs::write(&unfinished, "half").unwrap();

    // Separate addresses; otherwise it would be refused for those.
    let mut second = place.serve();
    second.args(["--client-listen", "127.0.0.1:0", "--peer-listen", "127.0.0.1:0"]);
    let refused = output(&mut second);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(20), "{said}");
    assert!(said.contains("in use by another process"), "{said}");
    assert!(unfinished.exists(), "{said}");

    place.answers(&mut node);
    assert_eq!(node.stop().code(), Some(0));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target)
        } else {
            drop(fs::copy(entry.path(), target))
        }
    }
}

/// Starts a node, which stops at once if it can start. Returns its status and stderr.
fn try_to_serve(place: &Place, data: &Path) -> (ExitStatus, String) {
    let mut command = place.serve();
    command.arg("--until-stdin-closes").arg("--data-dir").arg(data).stderr(Stdio::piped());
    let mut node = Running(command.spawn().unwrap());
    let mut said = String::new();
    node.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (node.0.wait().unwrap(), said)
}

/// Replaces a node's log by one of several sled segments. It is valid until its entries are decoded.
async fn replace_log(log: &Path) {
    fs::remove_dir_all(log).unwrap();
    let options = || LogOptions { journal_bytes: 64 << 10, ..LogOptions::default() };
    for round in 0..4 {
        let mut store = LogStore::open(log, options()).unwrap();
        let leader_id = CommittedLeaderId::new(1);
        for first in (round * 400..(round + 1) * 400).step_by(100) {
            let entry = |index| LogEntry {
                log_id: LogId { leader_id, index },
                payload: EntryPayload::Normal(Payload(vec![index as u8; 4000].into())),
            };
            let (flushed, answer) = TypeConfig::oneshot();
            let entries: Vec<LogEntry> = (first..first + 100).map(entry).collect();
            store.append(entries, IOFlushed::<TypeConfig>::signal(flushed)).await.unwrap();
            answer.await.unwrap().unwrap();
        }
        store.close().await.unwrap();
    }
}

/// sled panics on some damaged files, in any thread. The node reports such a panic as damage, not as a bug.
#[tokio::test]
async fn a_panic_of_sled_is_told_as_damage() {
    const ATTEMPTS: usize = 24;
    let place = Place::new().await;
    replace_log(&place.data().join("log")).await;
    let database = fs::read(place.data().join("log/sled/db")).unwrap();
    let mut panics = 0;
    for attempt in 1..=ATTEMPTS {
        let directory = tempfile::tempdir().unwrap();
        copy(&place.data(), directory.path());
        let mut damaged = database.clone();
        match attempt % 2 {
            0 => damaged.truncate(database.len() * attempt / (ATTEMPTS + 1)),
            _ => damaged.iter_mut().step_by(10_000 * attempt).for_each(|byte| *byte ^= 1 << (attempt % 8)),
        }
        fs::write(directory.path().join("log/sled/db"), damaged).unwrap();
        let (ended, said) = try_to_serve(&place, directory.path());
        // It starts if only unused bytes are damaged. If sled recovers an empty log, the node refuses it as not its own.
        assert!(matches!(ended.code(), Some(0 | 20 | 25)), "attempt {attempt}: {ended}: {said}");
        let advised = ["replace this node", "put its own data back"].iter().any(|advice| said.contains(advice));
        assert!(ended.success() || advised, "attempt {attempt}: {said}");
        panics += usize::from(said.contains("sled panicked"));
    }
    println!("{panics} of {ATTEMPTS} made sled panic");
    assert!(panics > 0, "sled never panicked");
}
