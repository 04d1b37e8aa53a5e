//! Small file systems for the data directories of a test's nodes.

use std::{
    env,
    fs::{self, File},
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::children;

const INNER: &str = "LOCKKEEPER_DISK_TEST_INNER";
/// Fails if the namespace or the mount is not permitted; otherwise runs its arguments.
const TRY: &str = r#"mount -t tmpfs -o size=1m lockkeeper-test "$0" || exit 77; exec "$@""#;
const NOT_PERMITTED: i32 = 77;

/// Whether the caller is inside a mount namespace of its own. If not, runs the calling test, `name`, again inside one, and judges it; or
/// skips it where the system permits none.
pub(crate) fn is_inside(name: &str) -> bool {
    if env::var_os(INNER).is_some() {
        return true;
    }
    let place = tempfile::tempdir().expect("a directory");
    let own = env::current_exe().expect("a program knows its name");
    // A user namespace of its own, so that no privilege is needed.
    let run = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", TRY])
        .arg(place.path())
        .arg(own)
        .args(children::arguments(name))
        .env(INNER, "1")
        .output();
    let Output { status, stdout, stderr } = match run {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => return skip(name, "there is no program `unshare`"),
        Err(error) => panic!("unshare: {error}"),
    };
    let stdout = String::from_utf8_lossy(&stdout);
    let stderr = String::from_utf8_lossy(&stderr);
    if status.code() == Some(NOT_PERMITTED) || stderr.starts_with("unshare:") {
        return skip(name, &stderr);
    }
    print!("{stdout}");
    assert!(status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed"), "the test did not run inside: {stdout}");
    false
}

fn skip(name: &str, why: &str) -> bool {
    crate::skipped::skipped(format_args!("{name}: no file system can be mounted here: {}", why.trim()));
    false
}

/// The directory of a cluster, each of whose nodes has a file system of its own for its data. Only [inside](is_inside).
pub(crate) struct Disks {
    directory: TempDir,
}

impl Disks {
    /// Disks of this size for the nodes 1 to `nodes`.
    pub(crate) fn mount(nodes: u64, mib: u64) -> Self {
        let disks = Self { directory: tempfile::tempdir().expect("a directory") };
        for node in 1..=nodes {
            fs::create_dir_all(disks.data(node)).expect("created");
            disks.run_mount(node, &format!("size={mib}m"));
        }
        disks
    }

    /// Changes the size of a node's disk.
    pub(crate) fn resize(&self, node: u64, mib: u64) {
        self.run_mount(node, &format!("remount,size={mib}m"));
    }

    fn run_mount(&self, node: u64, options: &str) {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", options, "lockkeeper-test"]).arg(self.data(node));
        let output = command.output().expect("mount runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// For `local::Options::directory`.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    /// The data directory of a node: the root of its file system.
    pub(crate) fn data(&self, node: u64) -> PathBuf {
        self.directory.path().join(format!("node{node}/data"))
    }

    fn foreign(&self, node: u64) -> PathBuf {
        self.data(node).join("core.dump")
    }

    /// Another program fills a node's disk to the last byte.
    pub(crate) fn fill(&self, node: u64) {
        self.fill_but(node, 0);
    }

    /// Another program fills a node's disk, and leaves this much.
    pub(crate) fn fill_but(&self, node: u64, mib: u64) {
        self.fill_but_kib(node, mib << 10);
    }

    /// The same, in KiB.
    pub(crate) fn fill_but_kib(&self, node: u64, kib: u64) {
        let mut file = File::options().create(true).append(true).open(self.foreign(node)).expect("created");
        let piece = vec![1; 64 << 10];
        while let Ok(()) = file.write_all(&piece) {}
        let length = file.metadata().expect("it exists").len();
        file.set_len(length.saturating_sub(kib << 10)).expect("made shorter");
    }

    /// The other program's file is deleted.
    pub(crate) fn free(&self, node: u64) {
        fs::remove_file(self.foreign(node)).expect("it was made");
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        // Otherwise the temporary directory cannot be removed. The end of the namespace would unmount them as well.
        for node in 1..=9 {
            let data = self.data(node);
            if data.exists() {
                let _ = Command::new("umount").arg("--lazy").arg(data).output();
            }
        }
    }
}

/// The bytes that the files below a directory take on the disk.
pub(crate) fn bytes_used(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => bytes_used(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        // Removed meanwhile.
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
