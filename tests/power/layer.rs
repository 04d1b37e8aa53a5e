//! Builds the layer, and runs the driver on it.

use std::{
    fmt, fs,
    io::{Read, Seek},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

use lockkeeper::raft::log::EXIT_FAILED;
use tempfile::TempDir;

use super::{driver, support::PATIENCE};

/// Duration of a sync in the layer, microseconds: long enough for other calls during it.
const SYNC_US: u32 = 200;

/// What the layer does to one call, counted from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The process ends just before the call.
    Kill(u64),
    /// The process ends during the call.
    Tear(u64),
    /// The call fails with this error, later calls do not.
    Error(u64, i32),
    /// The call and all later ones fail with this error.
    Errors(u64, i32),
    /// The call does not return.
    Hang(u64),
}

impl Fault {
    fn plan(self) -> String {
        match self {
            Self::Kill(at) => format!("kill {at}"),
            Self::Tear(at) => format!("tear {at}"),
            Self::Error(at, errno) => format!("error {at} {errno}"),
            Self::Errors(at, errno) => format!("errors {at} {errno}"),
            Self::Hang(at) => format!("hang {at}"),
        }
    }
}

/// Compiled once per test run. A static is never dropped: so the file lies in cargo's directory for tests, under a name that the
/// next run reuses.
static LAYER: LazyLock<PathBuf> = LazyLock::new(|| compile("layer.c", "layer.so", &["-shared", "-fPIC"]));

/// Compiles a C file of this directory.
pub(crate) fn compile(source: &str, target: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/power").join(source);
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("power");
    fs::create_dir_all(&place).expect("cargo's directory for tests is writable");
    // Concurrent runs must not see each other's half-written file.
    let building = TempDir::new_in(&place).expect("a temporary directory");
    let built = building.path().join(target);
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-o"]).arg(&built).args(options).arg(&source).args(["-lpthread"]);
    let done = compiler.output().unwrap_or_else(|error| panic!("these tests need a C compiler, `cc`: {error}"));
    assert!(done.status.success(), "cc {}: {}", source.display(), String::from_utf8_lossy(&done.stderr));
    fs::rename(&built, place.join(target)).expect("renamed");
    place.join(target)
}

/// How a driver ended.
pub(crate) struct Ended {
    status: ExitStatus,
    /// Its standard error.
    pub(crate) errors: String,
}

impl Ended {
    pub(crate) fn is_success(&self) -> bool {
        self.status.success()
    }

    /// The layer killed it.
    pub(crate) fn was_killed(&self) -> bool {
        self.status.signal() == Some(9)
    }

    /// It ended itself at once, as a node does if its log fails.
    pub(crate) fn has_failed(&self) -> bool {
        self.status.code() == Some(EXIT_FAILED.into())
    }

    /// The log did not open.
    pub(crate) fn has_refused(&self) -> bool {
        self.status.code() == Some(driver::REFUSED)
    }

    /// The log had failed without ending the process, and the driver stopped waiting.
    pub(crate) fn was_left_alone(&self) -> bool {
        self.status.code() == Some(driver::LEFT_ALONE)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it ended with {}: {}", self.status, self.errors)
    }
}

/// Runs the driver in a directory, on the layer, to its end.
pub(crate) fn run(root: &Path, trace: &Path, seed: u64, operations: u64, fault: Option<Fault>) -> Ended {
    run_command(driver::command(root, seed, operations), root, trace, fault)
}

/// The same without a fault, but the kernel's cache of these files differs from the disk.
pub(crate) fn run_behind_cache(root: &Path, trace: &Path, seed: u64, operations: u64, disk: &Path) -> Ended {
    let mut command = driver::command(root, seed, operations);
    command.env("LOCKKEEPER_LAYER_DISK", disk);
    run_command(command, root, trace, None)
}

fn run_command(mut command: Command, root: &Path, trace: &Path, fault: Option<Fault>) -> Ended {
    command
        .env("LD_PRELOAD", &*LAYER)
        .env("LOCKKEEPER_LAYER_ROOT", root)
        .env("LOCKKEEPER_LAYER_TRACE", trace)
        .env("LOCKKEEPER_LAYER_SYNC_US", SYNC_US.to_string());
    if let Some(fault) = fault {
        command.env("LOCKKEEPER_LAYER_FAULT", fault.plan());
    }
    let mut errors = tempfile::tempfile().expect("a temporary file");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors.try_clone().expect("a second handle"));
    let mut child = command.spawn().expect("the driver starts");
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().expect("it is our child") {
            Some(status) => break Some(status),
            None if begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(2)),
            None => break None,
        }
    };
    if status.is_none() {
        child.kill().expect("it is our child");
        child.wait().expect("it is our child");
    }
    let mut text = String::new();
    errors.rewind().and_then(|()| errors.read_to_string(&mut text)).expect("readable");
    Ended {
        status: status.unwrap_or_else(|| panic!("the driver did not end within {PATIENCE:?}: {text}")),
        errors: text,
    }
}
