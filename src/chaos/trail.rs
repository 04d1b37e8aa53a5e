//! The audit trail of a run. Each node writes its files; when all have ended, the program verifies them, as an operator does.
//!
//! The files of each node must be sound by themselves. Those of all nodes together must be one chain without a gap, which goes as far as
//! the nodes said before they ended. A node alone may lack lines: what it learned by a snapshot, others have written.
//!
//! What this cannot see: a line that no node made.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::time::timeout;

use lockkeeper_local::NodeProgram;
use lockkeeper_proto::v1 as pb;

const DIRECTORY: &str = "audit";
/// How the names of the files begin.
const FILE_PREFIX: &str = "audit-";
/// More than the first line of a file has.
const FIRST_LINE_BYTES_MAX: u64 = 8 * 1024;
/// Time limit of one verification.
const BOUND: Duration = Duration::from_secs(120);

/// The audit files of a run.
#[derive(Debug)]
pub(crate) struct TrailFiles {
    directory: PathBuf,
    /// The directories of clusters that were lost.
    lost: Vec<PathBuf>,
}

/// The end of the trail, as a node told it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TrailEnd {
    lines: u64,
    head: String,
}

/// What the program reports about files that are sound.
#[derive(Clone, PartialEq, Eq, Debug, serde::Deserialize)]
struct VerifiedFiles {
    last_line: u64,
    head: String,
    gaps: Vec<TrailGap>,
}

/// Lines that no file has.
#[derive(Clone, PartialEq, Eq, Debug, serde::Deserialize)]
struct TrailGap {
    from: u64,
    to: u64,
}

impl TrailEnd {
    /// The end as the node told it that has applied the most.
    pub(crate) fn from_statuses<'a>(statuses: impl Iterator<Item = &'a pb::StatusResponse>) -> Option<Self> {
        let last = statuses.max_by_key(|status| status.audit_lines)?;
        Some(Self { lines: last.audit_lines, head: last.audit_head.clone() })
    }
}

impl TrailFiles {
    /// The files of a run in this directory, which must exist.
    pub(crate) fn below(run: &Path) -> io::Result<Self> {
        // The nodes' configurations contain the path.
        Ok(Self { directory: run.canonicalize()?.join(DIRECTORY), lost: Vec::new() })
    }

    /// The directory in which each node has one for its files.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Moves the files of a cluster that is lost. No node may run.
    pub(crate) fn set_aside(&mut self) -> io::Result<()> {
        let aside = self.directory.with_file_name(format!("{DIRECTORY}-of-lost-cluster-{}", self.lost.len() + 1));
        match fs::rename(&self.directory, &aside) {
            Ok(()) => self.lost.push(aside),
            // No node had begun a file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Verifies all files. Returns the number of the last line of the present cluster, or 0 if it has written none. No node may run.
    pub(crate) async fn verify(&self, program: &NodeProgram, end: Option<&TrailEnd>) -> Result<u64, String> {
        for lost in &self.lost {
            verify_cluster(program, lost, None).await?;
        }
        verify_cluster(program, &self.directory, end).await
    }
}

/// Verifies the files of all nodes of one cluster.
async fn verify_cluster(program: &NodeProgram, directory: &Path, end: Option<&TrailEnd>) -> Result<u64, String> {
    let of_nodes = files_of_nodes(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    for files in &of_nodes {
        audit_verify(program, files).await?;
    }

    let all = of_nodes.concat();
    if all.is_empty() {
        return Ok(0);
    }

    let verified = audit_verify(program, &all).await?;
    check_complete(&verified, end)?;
    Ok(verified.last_line)
}

/// Fails if lines are missing that nodes have acknowledged.
fn check_complete(verified: &VerifiedFiles, end: Option<&TrailEnd>) -> Result<(), String> {
    let VerifiedFiles { last_line, head, gaps } = verified;
    if let Some(TrailGap { from, to }) = gaps.first() {
        return Err(format!("lines {from} to {to} are in the files of no node"));
    }

    let Some(end) = end else { return Ok(()) };
    if *last_line < end.lines {
        return Err(format!("the files end with line {last_line}, and a node has applied line {}", end.lines));
    }
    // A session that ended after the nodes were asked gives a further line. Then only the chain itself says that the line is in it.
    if *last_line == end.lines && *head != end.head {
        return Err(format!("line {last_line} has the hash {head} in the files, and {} in a node's table", end.head));
    }
    Ok(())
}

/// Runs `audit verify`.
async fn audit_verify(program: &NodeProgram, files: &[PathBuf]) -> Result<VerifiedFiles, String> {
    let mut command = program.command();
    command.args(["audit", "verify", "-o", "json"]).args(files).stdin(Stdio::null()).kill_on_drop(true);

    let output = timeout(BOUND, command.output()).await.map_err(|_| "audit verify did not end in time".to_owned())?;
    let output = output.map_err(|error| format!("{}: {error}", program.path.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("audit verify: {error}"))
}

/// The files of each node that has any, in the order of the names.
fn files_of_nodes(directory: &Path) -> io::Result<Vec<Vec<PathBuf>>> {
    let mut nodes = entries(directory)?;
    nodes.sort();

    let mut of_nodes = Vec::new();
    for node in nodes {
        let mut files = entries(&node)?;
        files.retain(|file| is_begun(file));
        files.sort();
        if !files.is_empty() {
            of_nodes.push(files);
        }
    }
    Ok(of_nodes)
}

/// What is in this directory: nothing if it does not exist.
fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        Ok(found) => found.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Whether it is an audit file with a complete first line. A node that is killed while it begins a file leaves another one, and removes it
/// at its next start.
fn is_begun(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut first = Vec::new();
    let read = File::open(file).and_then(|file| file.take(FIRST_LINE_BYTES_MAX).read_to_end(&mut first));
    // What cannot be read is for the program to report.
    name.starts_with(FILE_PREFIX) && (read.is_err() || first.contains(&b'\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verified(last_line: u64, head: &str, gaps: &[(u64, u64)]) -> VerifiedFiles {
        let gaps = gaps.iter().map(|(from, to)| TrailGap { from: *from, to: *to }).collect();
        VerifiedFiles { last_line, head: head.to_owned(), gaps }
    }

    #[test]
    fn lines_that_a_node_has_applied_must_be_in_the_files() {
        let end = TrailEnd { lines: 7, head: "abc".to_owned() };
        let judge = |files: VerifiedFiles| check_complete(&files, Some(&end));
        assert_eq!(judge(verified(7, "abc", &[])), Ok(()));
        assert_eq!(judge(verified(8, "other", &[])), Ok(()));
        assert!(judge(verified(7, "other", &[])).unwrap_err().contains("hash other in the files"));
        assert!(judge(verified(6, "abc", &[])).unwrap_err().contains("end with line 6"));
        assert!(judge(verified(7, "abc", &[(3, 4)])).unwrap_err().contains("lines 3 to 4"));
        assert!(check_complete(&verified(6, "abc", &[(3, 4)]), None).is_err());
    }

    #[test]
    fn a_file_that_was_not_begun_completely_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let node = directory.path().join("node-1");
        fs::create_dir_all(directory.path().join("node-2")).unwrap();
        fs::create_dir(&node).unwrap();
        let begun = node.join("audit-00000000000000000001.jsonl");
        fs::write(&begun, "{}\n").unwrap();
        fs::write(node.join("audit-00000000000000000009.jsonl"), "{\"lockkeeper_audit\"").unwrap();
        fs::write(node.join("other"), "{}\n").unwrap();
        assert_eq!(files_of_nodes(directory.path()).unwrap(), [vec![begun]]);
        assert!(files_of_nodes(&directory.path().join("absent")).unwrap().is_empty());
    }

    #[test]
    fn the_files_of_a_lost_cluster_are_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        let mut trail = TrailFiles::below(directory.path()).unwrap();
        trail.set_aside().unwrap();
        assert!(trail.lost.is_empty(), "there was no file");
        for number in 1..=2 {
            fs::create_dir_all(trail.directory().join("node-1")).unwrap();
            trail.set_aside().unwrap();
            assert_eq!(trail.lost.len(), number);
            assert!(trail.lost[number - 1].join("node-1").is_dir() && !trail.directory().exists());
        }
    }
}
