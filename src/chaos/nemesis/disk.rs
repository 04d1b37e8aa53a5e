//! Faults of a node's disks, by strace, which delays system calls of the node or lets them fail.
//!
//! The log, the snapshots and the audit files of a run lie on one disk. A fault of the disk of the audit files alone is one of the thread
//! that writes them: no other thread writes there, and it writes nowhere else. So strace attaches to this thread and to no other.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::Path,
    time::Duration,
};

use tokio::time::Instant;

use lockkeeper_local::LocalError;
use lockkeeper_storage::health::EXIT_FAILED;

use super::{
    inject::{BETWEEN_LOOKS, World},
    tools::Trace,
};
use crate::{history::Fact, parties::LIVENESS_BOUND};

/// System calls that make data durable.
const SYNCS: &str = "fsync,fdatasync,sync_file_range,msync";
/// System calls that need disk space.
const WRITES: &str = "write,writev,pwrite64,pwritev,fallocate,ftruncate";
/// System calls of the thread that writes the audit files.
const AUDIT_CALLS: &str = "write,fsync,fdatasync";
/// The name of this thread.
const AUDIT_THREAD: &str = "audit";
/// By how much a slow disk of the audit files delays each system call, in microseconds.
const SLOW_AUDIT_US: u64 = 300_000;
/// The same for a disk that hangs: longer than any node waits for it.
const HUNG_AUDIT_US: u64 = 600_000_000;
/// Time limit of the end of a node whose audit disk hangs: the 10 s after which it gives the disk up, and time for its end in order on a
/// busy machine.
const END_BOUND: Duration = Duration::from_secs(30);
/// The last line of this node's log then: all of the node has ended but the process.
const GIVEN_UP: &str = "the audit trail cannot be written: the disk of the audit files did not answer";

impl World {
    /// Executes [`Fault::SlowSync`](super::Fault::SlowSync).
    pub(super) async fn slow_syncs(&mut self, id: u64) -> io::Result<bool> {
        self.trace(id, SYNCS, "delay_enter=120000").await
    }

    /// Executes [`Fault::FailedSync`](super::Fault::FailedSync).
    pub(super) async fn fail_syncs(&mut self, id: u64) -> io::Result<bool> {
        self.trace(id, SYNCS, "error=EIO").await
    }

    /// Executes [`Fault::DiskFull`](super::Fault::DiskFull).
    pub(super) async fn fill_disk(&mut self, id: u64) -> io::Result<bool> {
        self.trace(id, WRITES, "error=ENOSPC").await
    }

    /// Executes [`Fault::SlowAudit`](super::Fault::SlowAudit). The node is not among those that may end.
    pub(super) async fn slow_audit_disk(&mut self, id: u64) -> io::Result<bool> {
        let trace = self.delay_audit(id, SLOW_AUDIT_US).await;
        let is_slow = trace.is_some();
        self.traces.extend(trace);
        Ok(is_slow)
    }

    /// Executes [`Fault::HungAudit`](super::Fault::HungAudit). Fails if the node does not end as it must, or the others do not serve
    /// without it.
    pub(super) async fn hang_audit_disk(&mut self, id: u64) -> io::Result<bool> {
        // A node whose disk hung before has said so in the same file.
        let said = fs::metadata(self.cluster.node(id).log_file())?.len();
        let Some(trace) = self.delay_audit(id, HUNG_AUDIT_US).await else { return Ok(false) };
        self.may_end.push(id);

        let by = Instant::now() + END_BOUND;
        while !self.has_given_up(id, said)? && self.goes_on(by) {
            self.rest_until(Instant::now() + BETWEEN_LOOKS).await;
        }
        // The kernel keeps the rest of a process until each of its system calls has returned, and so does strace.
        trace.detach().await;
        while self.has_given_up(id, said)? && self.cluster.node(id).is_running() && self.goes_on(by) {
            self.rest_until(Instant::now() + BETWEEN_LOOKS).await;
        }

        if self.stop.is_cancelled() {
            return Ok(true);
        }
        if self.cluster.node(id).is_running() {
            let bound = END_BOUND.as_secs();
            let error = format!("the audit disk of node {id} hung for {bound} s, and the node did not end by itself");
            return Err(io::Error::other(error));
        }

        self.recorder.fact(Fact::Killed { node: id });
        if self.operator.probe(Instant::now() + LIVENESS_BOUND).await {
            return Ok(true);
        }
        let bound = LIVENESS_BOUND.as_secs();
        Err(io::Error::other(format!("without node {id}, not all locks were served within {bound} s")))
    }

    /// Whether a node has said that it ends because its audit disk hangs, after this many bytes of its log. Fails if it ended for another
    /// reason.
    fn has_given_up(&mut self, id: u64, said: u64) -> io::Result<bool> {
        let node = self.cluster.node_mut(id);
        let died = node.has_died();
        let has_said = says_given_up(node.log_file(), said)?;

        match died {
            None => Ok(has_said),
            Some(LocalError::Died { status, .. }) if status.code() == Some(EXIT_FAILED.into()) && has_said => Ok(true),
            Some(error) => {
                let error =
                    format!("the audit disk of node {id} hung, but it ended in another way than it should: {error}");
                Err(io::Error::other(error))
            }
        }
    }

    /// Delays each write and sync of a node's audit files, if the node writes any.
    async fn delay_audit(&mut self, id: u64, delay_us: u64) -> Option<Trace> {
        let thread = self.cluster.node(id).pid().and_then(audit_thread)?;
        let trace = format!("trace={AUDIT_CALLS}");
        let inject = format!("inject={AUDIT_CALLS}:delay_enter={delay_us}");
        Trace::attach_to_thread(&self.tools, thread, &["-e", &trace, "-e", &inject]).await.ok()
    }

    async fn trace(&mut self, id: u64, calls: &str, how: &str) -> io::Result<bool> {
        let Some(pid) = self.cluster.node(id).pid() else { return Ok(false) };
        if !how.starts_with("delay") {
            self.may_end.push(id);
        }

        let trace = format!("trace={calls}");
        let inject = format!("inject={calls}:{how}");
        match Trace::attach(&self.tools, pid, &["-e", &trace, "-e", &inject]).await {
            Ok(trace) => self.traces.push(trace),
            // The strace also exits when the node does.
            Err(_) => return Ok(!self.cluster.node_mut(id).is_alive()),
        }
        Ok(true)
    }
}

/// Whether a log says after this many bytes that its node has given the audit disk up.
fn says_given_up(log: &Path, after: u64) -> io::Result<bool> {
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(after))?;
    let mut said = Vec::new();
    file.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).contains(GIVEN_UP))
}

/// The id of the thread of a process that writes the audit files.
fn audit_thread(pid: u32) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let is_audit = |thread: &fs::DirEntry| {
        let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        name.trim_end() == AUDIT_THREAD
    };
    threads.flatten().find(is_audit)?.file_name().to_str()?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{process, sync::mpsc, thread};

    use super::*;

    #[test]
    fn what_a_node_said_of_an_earlier_disk_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("node.log");
        let line = format!("ERROR {GIVEN_UP} for 10s\n");
        fs::write(&log, &line).unwrap();
        let said = fs::metadata(&log).unwrap().len();
        assert!(!says_given_up(&log, said).unwrap());
        fs::write(&log, format!("{line}INFO stopping\n{line}")).unwrap();
        assert!(says_given_up(&log, said).unwrap());
    }

    #[test]
    fn the_thread_of_the_audit_files_is_found_by_its_name() {
        assert_eq!(audit_thread(process::id()), None);

        let (started, has_started) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let audit = thread::Builder::new().name(AUDIT_THREAD.to_owned()).spawn(move || {
            started.send(()).unwrap();
            // It ends with the test.
            let _ = ends.recv();
        });
        has_started.recv().unwrap();

        let found = audit_thread(process::id()).expect("it runs");
        assert_ne!(found, process::id());
        drop(end);
        audit.unwrap().join().unwrap();
    }
}
