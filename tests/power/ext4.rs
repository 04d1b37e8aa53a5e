//! The closest approximation of a real power failure on one machine: ext4 on a loop device is shut down below the running driver
//! (`EXT4_IOC_SHUTDOWN`, which drops the kernel's cached data, including its journal), and mounted again.
//!
//! The test needs root and loop devices; without them it is skipped with a message. It runs in a child with its own mount namespace:
//! however the child ends, the kernel unmounts the file system and frees the loop device.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    disk::SAID,
    driver,
    history::History,
    layer::compile,
    support::{PATIENCE, number, scaled, seed, temporary},
    trial::{self, Outcome},
};
use crate::children;

const CUTS: &str = "LOCKKEEPER_EXT4_CUTS";
const IMAGE_MIB: &str = "64M";
/// More than a driver completes before the cut.
const OPERATIONS: u64 = 1_000_000;
/// The most reports of a driver before its power failure.
const LINES_MAX: usize = 300;

/// Runs a command. The error has its standard error.
fn run(command: &mut Command) -> Result<(), String> {
    let name = format!("{command:?}");
    let done = command.output().map_err(|error| format!("{name}: {error}"))?;
    if done.status.success() {
        Ok(())
    } else {
        Err(format!("{name}: {}: {}", done.status, String::from_utf8_lossy(&done.stderr).trim()))
    }
}

fn mount(image: &Path, at: &Path) -> Result<(), String> {
    run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(image).arg(at))
}

/// Retries, since sled keeps its files open after it was closed, until its last thread has ended.
fn unmount(at: &Path) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match run(Command::new("umount").arg(at)) {
            Err(why) if why.contains("busy") && begun.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
}

/// A command in its own mount namespace, which ends with it.
fn unshared() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command
}

/// Why the test cannot run here; `None`: it can.
fn obstacle(shutdown: &Path) -> Option<String> {
    let place = temporary();
    let image = place.path().join("image");
    let at = place.path().join("at");
    let made = make_image(&image, &at);
    let script = r#"mount -t ext4 -o loop "$0" "$1" && "$2" "$1"; done=$?; umount "$1"; exit $done"#;
    let tried = made.and_then(|()| run(unshared().args(["sh", "-c", script]).arg(&image).arg(&at).arg(shutdown)));
    tried.err()
}

fn make_image(image: &Path, at: &Path) -> Result<(), String> {
    fs::create_dir(at).map_err(|error| error.to_string())?;
    run(Command::new("truncate").args(["-s", IMAGE_MIB]).arg(image))?;
    run(Command::new("mkfs.ext4").arg("-q").arg(image))
}

#[test]
#[ignore = "nightly: root, and a file system of its own"]
fn a_real_power_failure_loses_nothing_that_was_acknowledged() {
    let shutdown = compile("shutdown.c", "shutdown", &[]);
    if let Some(why) = obstacle(&shutdown) {
        return crate::skipped::skipped(format_args!("no power is cut on a real file system: {why}"));
    }
    let program = env::current_exe().expect("a program knows its name");
    let child = unshared()
        .arg(program)
        .args(children::arguments(&children::full_name(module_path!(), "cut_again_and_again")))
        .env(CUTS, scaled(24).to_string())
        .output();
    let child = child.expect("unshare worked before");
    let output = [child.stdout, child.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(child.status.success(), "{output}");
    output.lines().filter(|line| line.contains("seed")).for_each(|line| println!("{line}"));
}

/// The child's main function.
#[test]
#[ignore = "the entry point of a child process"]
fn cut_again_and_again() {
    let Some(cuts) = number(CUTS) else { return };
    let shutdown = compile("shutdown.c", "shutdown", &[]);
    let place = temporary();
    let image = place.path().join("image");
    let at = place.path().join("at");
    make_image(&image, &at).expect("it could be made before");
    let mut random = StdRng::seed_from_u64(seed());
    let mut history = History::new();
    let mut heard = 0;
    let mut refused = 0;
    for cut in 0..cuts {
        let what = format!("seed {}, cut {cut}", seed());
        mount(&image, &at).expect("it could be mounted before");
        let root = begin_on(&at, place.path());
        cut_under_driver(&root, &at, &shutdown, random.random(), heard + random.random_range(1..=LINES_MAX));
        let said = driver::said(&root);
        said[heard..].iter().for_each(|said| history.hear(said).unwrap_or_else(|why| panic!("{what}: {why}")));
        heard = said.len();
        unmount(&at).expect("it is not in use");

        mount(&image, &at).expect("its journal is in order");
        match trial::open(&root, history.snapshot, |state| history.judge(state)) {
            Outcome::Whole(state) => history.recovered(&state).expect("it was judged"),
            Outcome::Refused(why) => {
                eprintln!("{what}: {why}");
                refused += 1;
            }
            Outcome::Lost(why) => panic!("{what}: {why}"),
        }
        unmount(&at).expect("it is not in use");
    }
    let acknowledged = history.acknowledgements;
    println!("seed {}: {cuts} cuts, {acknowledged} acknowledgements, {refused} refused", seed());
    assert!(refused == 0 && acknowledged > 10 * cuts, "{refused} refused, {acknowledged} acknowledgements");
}

/// The driver's directory on the file system. Its reports are kept elsewhere, since they must survive the cut.
fn begin_on(at: &Path, aside: &Path) -> PathBuf {
    let root = at.join("root");
    if !root.exists() {
        fs::create_dir(&root).expect("made");
        std::os::unix::fs::symlink(aside.join(SAID), root.join(SAID)).expect("linked");
        // The test's own names must survive the cut.
        for directory in [root.as_path(), at] {
            fs::File::open(directory).and_then(|directory| directory.sync_all()).expect("synced");
        }
    }
    root
}

/// Runs a driver until it has written `lines` reports, and then shuts its file system down. The driver is stopped first, as in a power
/// failure: afterwards, ext4 may report success for a sync in progress.
fn cut_under_driver(root: &Path, at: &Path, shutdown: &Path, seed: u64, lines: usize) {
    let mut command = driver::command(root, seed, OPERATIONS);
    let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the driver starts"));
    let begun = Instant::now();
    while driver::said(root).len() < lines {
        let ended = running.0.try_wait().expect("it is our child");
        assert!(ended.is_none(), "the driver ended by itself: {ended:?}");
        assert!(begun.elapsed() < PATIENCE, "the driver makes no progress");
        thread::sleep(Duration::from_millis(1));
    }
    run(Command::new(shutdown).arg(at).arg(running.0.id().to_string())).expect("it worked before");
}

/// A driver, which is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already, since it lost its disk.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
