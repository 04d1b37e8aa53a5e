//! Clients of DynamoDB under faults, judged: `lockkeeper chaos run` with their programs beside its own clients.
//!
//! Short here, with faults that change the leader. `scripts/dynamodb-clients.sh` runs a minute of all faults.

use std::{env, path::Path};

use lockkeeper::chaos::{
    checker::{Property, Verdict, check},
    history::{Event, Function, History, What},
};

use super::{npm, packages, script};

/// For how long faults are injected.
const DURATION: &str = "LOCKKEEPER_DYNAMODB_CHAOS";
const FAULTS: &str = "LOCKKEEPER_DYNAMODB_FAULTS";
/// What each program must have done for its verdict to mean something: the beginning of its processes' names, and an operation.
const DONE: [(&str, Function); 4] = [
    ("python-lock", Function::Acquire),
    ("npm-lock", Function::Acquire),
    ("boto3", Function::Set),
    ("boto3", Function::Read),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_of_unmodified_clients_under_faults_is_judged() {
    let (python, modules) = match (packages::python().await, npm::modules().await) {
        (Ok(python), Ok(modules)) => (python, modules),
        (Err(problem), _) | (_, Err(problem)) => {
            eprintln!("!!! SKIPPED: packages cannot be installed: {problem}");
            return;
        }
    };
    let of = |name, usual: &str| env::var(name).unwrap_or_else(|_| usual.to_owned());
    let (duration, faults) = (of(DURATION, "8s"), of(FAULTS, "kill-leader,pause-leader,partition-leader"));
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("run").display().to_string();
    let of_python = format!("exec '{}' '{}'", python.display(), script("chaos_python.py"));
    let of_node = format!("NODE_PATH='{}' exec node '{}'", modules.display(), script("chaos_npm.cjs"));
    let arguments = [
        ["chaos", "run"],
        ["--duration", &duration],
        ["--faults", &faults],
        ["--program", &of_python],
        ["--program", &of_node],
        ["--out", &out],
    ];
    let run = packages::command(Path::new(env!("CARGO_BIN_EXE_lockkeeper")), &arguments.concat());
    // Also fails where a short run has not tested each property, which is no matter here.
    let text = packages::run(run).await.unwrap_or_else(|problem| problem);
    let file = std::fs::File::open(Path::new(&out).join("history.jsonl")).expect("there is a history");
    let history = History::read(std::io::BufReader::new(file)).expect("it is a history");
    assert!(!text.contains("TROUBLE"), "{text}");
    for finding in check(&history).expect("it is a history") {
        assert!(!matches!(finding.verdict, Verdict::Violated(_)), "{finding:?}\n{text}");
        let must_hold = matches!(finding.property, Property::MutualExclusion | Property::Linearizability);
        assert!(!must_hold || finding.verdict == Verdict::Holds, "{finding:?}\n{text}");
    }
    for (process, function) in DONE {
        let is_one = |event: &Event| {
            event.process.starts_with(process)
                && matches!(&event.what, What::Ok(answer) if answer.function() == function)
        };
        let count = history.events.iter().filter(|(_, event)| is_one(event)).count();
        assert!(count > 0, "{process} never did {function}\n{text}");
        println!("{process}: {function} {count} times");
    }
    println!("{}", text.lines().last().unwrap_or_default());
}
