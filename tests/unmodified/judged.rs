//! `lockkeeper chaos run` with programs of clients beside its own, and what the checker says of it.

use std::{fs::File, io::BufReader, path::Path};

use lockkeeper::chaos::{
    checker::{Property, Verdict, check},
    history::{Event, Function, History, What},
};

use super::packages;

/// Runs these programs under these faults. The history, and what the run says.
pub(crate) async fn history(duration: &str, faults: &str, programs: &[String]) -> (History, String) {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("run").display().to_string();
    let mut arguments = vec!["chaos", "run", "--duration", duration, "--faults", faults, "--out", &out];
    arguments.extend(programs.iter().flat_map(|program| ["--program", program.as_str()]));
    let run = packages::command(Path::new(env!("CARGO_BIN_EXE_lockkeeper")), &arguments);
    // Also fails where a short run has not tested each property, which is no matter here.
    let text = packages::run(run).await.unwrap_or_else(|problem| problem);
    let file = File::open(Path::new(&out).join("history.jsonl")).unwrap_or_else(|error| panic!("{error}\n{text}"));
    (History::read(BufReader::new(file)).expect("it is a history"), text)
}

/// Runs these programs under these faults. Fails if a property is violated, and if a process whose name begins so never did such an
/// operation: then the verdict would mean nothing.
pub(crate) async fn run(duration: &str, faults: &str, programs: &[String], done: &[(&str, Function)]) {
    let (history, text) = history(duration, faults, programs).await;
    assert!(!text.contains("TROUBLE"), "{text}");
    for finding in check(&history).expect("it is a history") {
        assert!(!matches!(finding.verdict, Verdict::Violated(_)), "{finding:?}\n{text}");
        let must_hold = matches!(finding.property, Property::MutualExclusion | Property::Linearizability);
        assert!(!must_hold || finding.verdict == Verdict::Holds, "{finding:?}\n{text}");
    }
    for (process, function) in done {
        let is_one = |event: &Event| {
            let answered = matches!(&event.what, What::Ok(answer) if answer.function() == *function);
            event.process.starts_with(process) && answered
        };
        assert!(history.events.iter().any(|(_, event)| is_one(event)), "{process} never did {function}\n{text}");
    }
}
