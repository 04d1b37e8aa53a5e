//! `lockkeeper chaos run`: short runs and their verdicts.
//!
//! The tests run in sequence, since each starts enough processes to load the machine.

use std::{
    collections::BTreeSet,
    fs::File,
    io::BufReader,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use lockkeeper::{
    chaos::{
        history::{Event, Fact, History, What},
        nemesis::{Fault, Faults},
    },
    machine::Versions,
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

use crate::turns;

/// Deadline: longer than any of these tests takes on a busy machine.
const LONG: Duration = Duration::from_secs(300);

fn chaos(out: &Path, arguments: &[&str]) -> Child {
    command(out, arguments).spawn().expect("the program runs")
}

fn command(out: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    command.args(["chaos", "run", "--out"]).arg(out).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn output(child: Child) -> (i32, String) {
    let Output { status, stdout, stderr } =
        timeout(LONG, child.wait_with_output()).await.expect("it ends").expect("it can be waited for");
    let text = format!("{}{}", String::from_utf8_lossy(&stderr), String::from_utf8_lossy(&stdout));
    (status.code().unwrap_or(-1), text)
}

fn history(out: &Path) -> History {
    let file = File::open(out.join("history.jsonl")).expect("there is a history");
    History::read(BufReader::new(file)).expect("it is a history")
}

fn facts(history: &History) -> impl Iterator<Item = &Fact> {
    history
        .events
        .iter()
        .filter_map(|(_, Event { what, .. })| if let What::Fact(fact) = what { Some(fact) } else { None })
}

/// Processes of this run, found by its directory on their command lines. After the run there must be none.
fn left_over(out: &Path) -> Vec<String> {
    let name = out.to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " ")).filter(|line| line.contains(&name)).collect()
}

/// Whether a fault is in the history, which is in parts during a run.
fn fault_has_begun(out: &Path) -> bool {
    let entries = std::fs::read_dir(out).into_iter().flatten().flatten();
    let parts = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("nemesis.jsonl")).ok());
    parts.into_iter().any(|part| part.contains("\"fault\""))
}

/// One fault of each kind that this machine supports, in turn. Asserts that all properties hold, and that the faults took place.
#[tokio::test]
#[ignore = "nightly: 75 s of faults"]
async fn all_holds_under_a_fault_of_each_kind() {
    let _turn = turns::whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    // One fault of each of the eight kinds takes 64 s by the plan of faults, and longer on a busy machine.
    let (code, text) = output(chaos(&out, &["--duration", "75s", "--seed", "5"])).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("linearizability") && text.contains("--seed 5"), "{text}");
    assert_eq!(left_over(&out), [] as [String; 0]);

    let history = history(&out);
    let names =
        facts(&history).filter_map(|fact| if let Fact::Fault { name, .. } = fact { Some(name.as_str()) } else { None });
    let names: BTreeSet<_> = names.collect();
    let groups: BTreeSet<_> =
        Fault::all().filter(|fault| names.contains(fault.name())).map(|fault| fault.group().name()).collect();
    let always = BTreeSet::from(["kill", "membership", "network", "operation", "partition", "pause"]);
    assert!(groups.is_superset(&always), "{groups:?}: {text}");
    assert!(facts(&history).any(|fact| matches!(fact, Fact::End)), "{text}");
    assert!(facts(&history).any(|fact| matches!(fact, Fact::Table { .. })), "{text}");
}

/// A voter is removed (a node joins before) or replaced, the leadership is handed over, and a leader is killed: with TLS between all.
#[tokio::test]
async fn all_holds_while_nodes_come_and_go() {
    let _turn = turns::whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let arguments = ["--duration", "25s", "--faults", "remove,replace,transfer,kill-leader", "--clients", "2", "--tls"];
    let (code, text) = output(chaos(&out, &arguments)).await;
    assert!(code == 0 || code == 31 && !text.contains("TROUBLE"), "{code}: {text}");
    assert_eq!(left_over(&out), [] as [String; 0]);
    let history = history(&out);
    let count = |wanted: fn(&Fact) -> bool| facts(&history).filter(|fact| wanted(fact)).count();
    assert!(count(|fact| matches!(fact, Fact::Joined { .. })) >= 1, "{text}");
    assert!(count(|fact| matches!(fact, Fact::Removed { .. })) >= 1, "{text}");
    assert!(count(|fact| matches!(fact, Fact::Transferred { .. })) >= 2, "{text}");
    assert!(text.contains("audit trail: ") && text.contains("sound on all nodes"), "{text}");
    let configuration =
        std::fs::read_to_string(out.join("nodes/node1/node.toml")).expect("also of a node that is gone");
    assert!(configuration.contains("[tls]"), "{configuration}");
    // All members were at one index at the end: a node that joined among them, unless it was removed again.
    let mut members = BTreeSet::from([1, 2, 3]);
    let mut tables = BTreeSet::new();
    for fact in facts(&history) {
        if let Fact::Joined { node } = fact {
            members.insert(*node);
        } else if let Fact::Removed { node } = fact {
            members.remove(node);
        } else if let Fact::Heal { .. } = fact {
            // Earlier comparisons are of the members that there were then.
            tables.clear();
        } else if let Fact::Table { node, .. } = fact {
            tables.insert(*node);
        }
    }
    assert_eq!(tables, members, "{text}");
}

/// The disk of the audit files is slow, and hangs, while nodes run two versions of the program by turns; at the end all are upgraded.
#[tokio::test]
#[ignore = "nightly: 25 s of faults"]
async fn all_holds_while_audit_disks_hang_and_the_cluster_is_upgraded() {
    let _turn = turns::whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let faults = "slow-audit,hung-audit,kill-leader";
    let (code, text) =
        output(chaos(&out, &["--duration", "25s", "--faults", faults, "--clients", "2", "--earlier"])).await;
    assert!(code == 0 || code == 31 && !text.contains("TROUBLE"), "{code}: {text}");
    assert_eq!(left_over(&out), [] as [String; 0]);
    assert!(text.contains(&format!("the cluster version rose to {}", Versions::OWN.highest)), "{text}");

    let history = history(&out);
    let has = |wanted: &str| facts(&history).any(|fact| matches!(fact, Fact::Fault { name, .. } if name == wanted));
    assert!(has("upgrade"), "{text}");
    assert!(text.contains("skipped: hung-audit") || has("hung-audit") && has("slow-audit"), "{text}");
}

/// A library that fakes nothing: the run says so, and does not count the fault.
#[tokio::test]
#[ignore = "nightly: two runs with faults"]
async fn a_clock_that_does_not_jump_is_no_fault() {
    let _turn = turns::whole_machine().await;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.find('/').map(|at| line[at..].to_owned()));
    let libc = libc.into_iter().find(|path| path.contains("/libc.so")).expect("this test is linked with it");
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml").to_owned();
    let cases = [
        // The only fault: beside another one, a slow machine may not reach it.
        (libc, "clock", "without effect: clock-jump"),
        (other, "clock,kill-follower", "skipped: clock-jump: the nodes do not load"),
    ];
    for (library, faults, says) in cases {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        let mut command = command(&out, &["--duration", "8s", "--faults", faults, "--clients", "2"]);
        let child = command.env("LOCKKEEPER_LIBFAKETIME", &library).spawn().expect("the program runs");
        let (code, text) = output(child).await;
        assert!(code == 0 || code == 31, "{code}: {text}");
        assert!(text.contains(says), "{library}: {text}");
    }
}

#[tokio::test]
async fn ctrl_c_ends_it_early_and_there_is_a_history() {
    let _turn = turns::whole_machine().await;
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    // With two versions of the program: a smoke of what the nightly run does for longer.
    let child =
        chaos(&out, &["--duration", "1h", "--faults", "pause,kill", "--clients", "2", "--nodes", "3", "--earlier"]);
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())).expect("it runs");
    let deadline = Instant::now() + LONG;
    while !fault_has_begun(&out) {
        assert!(Instant::now() < deadline, "no fault began");
        sleep(Duration::from_millis(50)).await;
    }
    kill_process(pid, Signal::INT).unwrap();
    let (code, text) = output(child).await;
    assert!(code == 0 || code == 31, "{code}: {text}");
    assert_eq!(left_over(&out), [] as [String; 0]);
    assert!(facts(&history(&out)).any(|fact| matches!(fact, Fact::End)), "{text}");
    assert!(text.contains("two programs: ") && text.contains("without an upgrade at the end"), "{text}");
}

#[tokio::test]
async fn it_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("precious"), "x").unwrap();
    let (code, text) = output(chaos(folder.path(), &["--duration", "1s"])).await;
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("--out"), "{text}");
    let (code, text) = output(chaos(&folder.path().join("new"), &["--faults", "earthquake"])).await;
    assert_eq!(code, 2, "{text}");
    assert!("all".parse::<Faults>().is_ok());
    for (earlier, says) in [("/nonexistent", "No such file"), ("/bin/echo", "name a program `lockkeeper`")] {
        let out = folder.path().join("new");
        let (code, text) = output(chaos(&out, &[&format!("--earlier={earlier}")])).await;
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(&format!("the earlier program {earlier}: ")) && text.contains(says), "{text}");
        assert!(!out.exists(), "{text}");
    }
}
