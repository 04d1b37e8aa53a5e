//! `lockkeeper chaos check`: its output and its exit codes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use lockkeeper::chaos::{
    checker::{Verdict, check},
    history::{History, Writer},
};

use super::reference;

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checker/histories");
    let program = env!("CARGO_BIN_EXE_lockkeeper");
    let output =
        Command::new(program).args(["chaos", "check"]).args(arguments).current_dir(folder).output().expect("it runs");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The golden file is a recorded and reviewed output. To record it again, run with `UPDATE_GOLDEN=1`.
#[test]
fn a_violation_is_printed_with_the_lines_that_prove_it() {
    let (code, printed, complaint) = run(&["passed_on_early.jsonl"]);
    assert_eq!((code, complaint.as_str()), (Some(30), ""));
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/checker/passed_on_early.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&golden, &printed).expect("the golden file");
    }
    assert_eq!(printed, fs::read_to_string(golden).expect("the golden file"));
}

/// As in `lockkeeper chaos check HISTORY | head -3`: by then the reader may be gone.
#[test]
fn the_verdict_is_in_the_exit_code_also_if_nobody_reads_it() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checker/histories");
    for format in ["text", "json"] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(["chaos", "check", "good_calm.jsonl", "passed_on_early.jsonl", "-o", format]);
        let output = command.current_dir(&folder).stdout(writer).output().expect("it runs");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*complaint), (Some(30), ""), "{format}");
    }
}

#[test]
fn json_output_has_a_document_for_each_history() {
    let (code, printed, _) = run(&["good_calm.jsonl", "tables_differ.jsonl", "-o", "json"]);
    assert_eq!(code, Some(30));
    let documents: serde_json::Value = serde_json::from_str(&printed).expect("a document");
    assert_eq!(documents[0]["history"], "good_calm.jsonl");
    let agreement = |at: usize| {
        let findings = documents[at]["findings"].as_array().expect("a list");
        findings.iter().find(|finding| finding["property"] == "agreement").expect("all are there").clone()
    };
    assert_eq!(agreement(0)["verdict"], "vacuous");
    assert_eq!(agreement(1)["verdict"], "violated");
    assert_eq!(agreement(1)["violations"][0]["lines"], serde_json::json!([4, 6]));
}

#[test]
fn exit_codes_differ_for_properties_that_hold_and_properties_without_evidence() {
    assert_eq!(run(&["good_calm.jsonl"]).0, Some(31), "it has no dead holder");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("whole.jsonl");
    let whole = (0..)
        .map(|seed| History::from_events(reference::history(seed)).expect("a history"))
        .find(|history| check(history).expect("it was read").iter().all(|finding| finding.verdict == Verdict::Holds));
    let mut writer = Writer::new(Vec::new());
    whole
        .expect("some seed has evidence for all properties")
        .events
        .iter()
        .for_each(|(_, event)| writer.write(event).expect("memory"));
    fs::write(&path, writer.into_inner()).expect("a file");
    let (code, printed, _) = run(&[path.to_str().expect("a name")]);
    assert_eq!(code, Some(0), "{printed}");
}

#[test]
fn a_malformed_history_is_refused_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("broken.jsonl");
    let meta = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}"#;
    for (line, what) in [
        (r#"{"time_ns":1,"process":"ann","type":"invoke","f":"aquire"}"#, r#"line 2: operation "aquire" is unknown"#),
        (r#"{"time_ns":1,"process":"ann","type":"invoke","f":"open"}"#, "line 2: in value: missing field `session`"),
        (r#"{"time_ns":1,"process":"ann","type":"ok","f":"close"}"#, "line 2: ann ends close without a begin"),
        (r#"{"time_ns":1,"process":"#, "line 2: EOF while parsing"),
        (meta, "line 2: a second meta"),
    ] {
        fs::write(&path, format!("{meta}\n{line}\n")).expect("a file");
        let (code, printed, complaint) = run(&[path.to_str().expect("a name")]);
        assert_eq!((code, printed.as_str()), (Some(2), ""));
        assert!(complaint.contains(what), "{complaint}");
    }
    assert_eq!(run(&["no_such.jsonl"]).0, Some(2));
}
