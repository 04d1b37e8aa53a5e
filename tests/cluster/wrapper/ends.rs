//! Commands that end by themselves; exit codes, signals and streams that the wrapper passes on.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use lockkeeper::local::{LocalCluster, Signal};
use rustix::process::{Pid, geteuid};
use tokio::{process::Command, time::timeout};

use super::{
    one_node,
    work::{Work, Wrapper, lock, signal},
};
use crate::support::{LONG, client, program, until};

/// A user that has no rights.
const NOBODY: &str = "65534";

/// The arguments of `setpriv` before a command line of this user.
const AS_NOBODY: [&str; 5] = ["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"];

/// What begins a command line that runs in a mount namespace whose `/proc` hides the processes of other users.
const HIDDEN: [&str; 7] =
    ["unshare", "--mount", "--", "sh", "-c", "mount -t proc -o hidepid=2 proc /proc && exec \"$@\"", "sh"];

/// What a process of another user needs.
const NEEDED: &str = "this needs root, setpriv, and a temporary directory whose programs may change their user";

/// Runs a command. Returns its exit code, and the stderr of the command and the wrapper.
async fn run(endpoints: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let output = timeout(LONG, lock(endpoints, arguments).output()).await.expect("it ends").expect("its output");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_exit_code_is_passed_on() {
    let cluster = one_node().await;
    let endpoints = cluster.endpoints().join(",");
    for (command, code) in [
        (&["--", "sh", "-c", "exit 42"][..], 42),
        (&["--", "sh", "-c", "kill -KILL $$"], 137),
        (&["--", "no such command"], 127),
        (&["--", "/dev/null"], 126),
        (&["--", "/dev/null/nothing"], 126),
        // The command's options are not parsed as options of the wrapper.
        (&["--", "sh", "-c", "test \"$1\" = --group", "sh", "--group"], 0),
    ] {
        let (ended, said) = run(&endpoints, command).await;
        assert_eq!(ended, Some(code), "{command:?}: {said}");
    }
    let lock = client(&cluster).get("seat").await.expect("it serves").lock;
    assert_eq!(lock.holder_count, 0, "released each time");
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_are_passed_on() {
    let cluster = one_node().await;
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::USR1, "USR1")] {
        let script = format!("trap 'exit 42' {name}; sleep 1000 & wait");
        let work = Work::of(&script);
        let mut wrapper = Wrapper::start(&cluster, "600s", &work).await;
        wrapper.signal(signal);
        let (code, said) = wrapper.ended().await;
        assert_eq!(code, Some(42), "{name}: {said}");
        assert!(work.is_over(), "the lock was released while these processes ran: {:?}", work.pids());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_inherited_ignored_signal_is_ignored_by_wrapper_and_command() {
    let cluster = one_node().await;
    let script = r#"trap '' HUP; exec "$0" lock seat -- sh -c 'kill -HUP $PPID; kill -HUP $$'"#;
    let mut command = tokio::process::Command::new("sh");
    command.args(["-c", script]).arg(crate::support::program());
    let output = command.env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(",")).kill_on_drop(true).output();
    let output = timeout(LONG, output).await.expect("it ends").expect("its output");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn stdin_and_stdout_are_passed_through_to_the_command() {
    let cluster = one_node().await;
    let mut command = lock(&cluster.endpoints().join(","), &["--", "tr", "a-z", "A-Z"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().expect("the program runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"through all of them").await.expect("it reads");
    drop(stdin);
    let output = timeout(LONG, child.wait_with_output()).await.expect("it ends").expect("its output");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "THROUGH ALL OF THEM");
}

#[tokio::test(flavor = "multi_thread")]
async fn leftover_processes_of_a_command_are_dead_before_the_lock_is_released() {
    let cluster = one_node().await;
    for ignored in ["", "trap '' TERM;"] {
        let script = format!("{ignored} sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; exit 3");
        let work = Work::of(&script);
        let (code, said) =
            run(&cluster.endpoints().join(","), &["--ttl", "600s", "--", "sh", "-c", work.script()]).await;
        assert_eq!(code, Some(3), "{said}");
        assert!(work.is_over(), "it was left behind");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leftover_processes_of_a_command_get_sigterm() {
    let cluster = one_node().await;
    // The command ends once its child has installed the trap.
    let left = r#"trap "echo told >> told; exit" TERM; echo $$ >> pids; while :; do sleep 0.05; done"#;
    let work = Work::of(&format!("setsid sh -c '{left}' & until test $(wc -l < pids) = 2; do sleep 0.01; done"));
    let (code, said) = run(&cluster.endpoints().join(","), &["--ttl", "600s", "--", "sh", "-c", work.script()]).await;
    assert_eq!(code, Some(0), "{said}");
    assert!(work.is_over(), "it was left behind");
    assert_eq!(work.file("told"), "told\n");
}

/// A program by which a process of [`NOBODY`] becomes one of root, as by `sudo`. None: this is not root, or the machine lacks `setpriv`, or
/// it does not work here: the directory may be mounted `nosuid`, or this process and its children may not get new privileges.
fn becomes_root(place: &Path) -> Option<PathBuf> {
    if !geteuid().is_root() {
        return None;
    }

    let path = std::env::var_os("PATH")?;
    let setpriv = std::env::split_paths(&path).map(|folder| folder.join("setpriv")).find(|file| file.is_file())?;
    let program = place.join("setpriv");
    fs::copy(setpriv, &program).ok()?;
    fs::set_permissions(place, Permissions::from_mode(0o755)).ok()?;
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).ok()?;

    let mut once = std::process::Command::new("setpriv");
    once.args(AS_NOBODY).arg(&program).args(["--reuid", "0", "true"]);
    succeeds(&mut once).then_some(program)
}

/// Whether `/proc` can be hidden here.
fn can_hide() -> bool {
    let mut once = std::process::Command::new("env");
    succeeds(once.args(HIDDEN).arg("setpriv").args(AS_NOBODY).args(["sh", "-c", "test ! -e /proc/1"]))
}

fn succeeds(command: &mut std::process::Command) -> bool {
    command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Runs a wrapper of [`NOBODY`] whose command leaves a process of root behind. Returns that process, and what the wrapper said. `around`
/// begins its command line.
async fn leave_root_behind(
    cluster: &LocalCluster,
    place: &Path,
    becomes_root: &Path,
    around: &[&str],
) -> (String, String) {
    // It may be signalled until it is a process of root, and says so.
    let is_root = place.join("is-root");
    let is_root = is_root.display();
    let becomes_root = becomes_root.display();
    let left = format!("{becomes_root} --reuid 0 sh -c 'echo > {is_root}; exec sleep 1000' >&- 2>&- & echo $!");
    let script = format!("{left}; until test -e {is_root}; do sleep 0.01; done; exit 3");

    let mut wrapper = Command::new("env");
    wrapper.args(around).arg("setpriv").args(AS_NOBODY).arg(program());
    wrapper.args(["lock", "seat", "--ttl", "5s", "--", "sh", "-c", &script]);
    // Nobody may look for a profile in root's home.
    wrapper.env("HOME", place).env_remove("XDG_CONFIG_HOME");
    wrapper.env("LOCKKEEPER_ENDPOINTS", cluster.endpoints().join(",")).kill_on_drop(true);
    wrapper.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());

    let output = timeout(LONG, wrapper.output()).await.expect("it ends").expect("its output");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    (String::from_utf8_lossy(&output.stdout).trim().to_owned(), said)
}

/// The lock was not given back by the wrapper that said this: it opens when the session expires. Then ends the process that was left.
async fn opens_by_itself(cluster: &LocalCluster, left: &str, said: &str) {
    assert!(said.contains("the lock is not released"), "{said}");
    let client = client(cluster);
    assert_eq!(client.get("seat").await.expect("it serves").lock.holder_count, 1, "it was given back");
    until("the end of the session", async || {
        let lock = client.get("seat").await.ok()?.lock;
        (lock.holder_count == 0).then_some(())
    })
    .await;
    signal(left.parse().ok().and_then(Pid::from_raw).expect("a process id"), Signal::KILL);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: root, to have processes of two users"]
async fn a_leftover_process_that_cannot_be_killed_is_named_and_does_not_hold_the_lock_for_ever() {
    let place = tempfile::tempdir().expect("a directory");
    let Some(becomes_root) = becomes_root(place.path()) else {
        return crate::skipped::skipped(format!("no process of another user is left behind: {NEEDED}"));
    };
    let cluster = one_node().await;
    let (left, said) = leave_root_behind(&cluster, place.path(), &becomes_root, &[]).await;
    assert!(said.contains(&format!("could not be killed, and may outlive the lock: {left}")), "{said}");
    opens_by_itself(&cluster, &left, &said).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: root, to have processes of two users"]
async fn a_leftover_process_that_cannot_be_seen_does_not_let_the_lock_be_given_back() {
    let place = tempfile::tempdir().expect("a directory");
    let Some(becomes_root) = becomes_root(place.path()) else {
        return crate::skipped::skipped(format!("no process of another user is left behind: {NEEDED}"));
    };
    if !can_hide() {
        return crate::skipped::skipped("no process is hidden: this needs unshare, and the right to mount /proc anew");
    }
    let cluster = one_node().await;
    let (left, said) = leave_root_behind(&cluster, place.path(), &becomes_root, &HIDDEN).await;
    assert!(said.contains("a process of the command that cannot be named could not be killed"), "{said}");
    opens_by_itself(&cluster, &left, &said).await;
}
