//! The page of the proof, `tests/PROOF.md`, shows each bug and what the record of convictions says of it.
//!
//! `LOCKKEEPER_WRITE_PROOF=1 cargo test -p lockkeeper-planted` writes its tables again.

use std::{collections::BTreeMap, env, fmt::Write as _, fs, path::PathBuf};

use crate::Planted;

const PAGE: &str = "tests/PROOF.md";
const RECORD: &str = "tests/calibration/convictions.tsv";
/// The program that writes the record.
const DRIVER: &str = "scripts/convict.py";

/// The layers of the record, in the order of the page's table.
const LAYERS: &[&str] = &[
    "unit",
    "golden",
    "transcripts",
    "formats",
    "parsers",
    "model",
    "log-store",
    "power",
    "network",
    "clusters",
    "etcd",
    "dynamodb",
    "abuse",
    "conformance",
    "simulation",
];

/// The layers that make up what they try, by chance or by enumeration.
const SEARCHES: &[&str] = &["parsers", "model", "power", "etcd", "dynamodb", "simulation"];

/// The program and the test that convict a bug in a layer; `None` if the layer was run and did not find it.
type Record = BTreeMap<(String, String), Option<String>>;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).expect("it is in the repository")
}

fn record() -> Record {
    let line = |line: &str| match line.split('\t').collect::<Vec<_>>()[..] {
        [bug, layer, test] => {
            let test = Some(test.to_owned()).filter(|test| test != "-");
            ((bug.to_owned(), layer.to_owned()), test)
        }
        _ => panic!("{RECORD}: {line:?} is no bug, layer and test"),
    };
    read(RECORD).lines().map(line).collect()
}

/// What a layer did with a bug.
fn mark(record: &Record, bug: Planted, layer: &str) -> &'static str {
    match record.get(&(bug.name().to_owned(), layer.to_owned())) {
        Some(Some(_)) => "●",
        Some(None) => "–",
        None => "",
    }
}

fn is_convicted_by(record: &Record, bug: Planted, layer: &str) -> bool {
    mark(record, bug, layer) == "●"
}

/// The bugs that no layer on record convicts.
fn open(record: &Record) -> Vec<Planted> {
    let is_convicted = |bug: &Planted| LAYERS.iter().any(|layer| is_convicted_by(record, *bug, layer));
    Planted::SUITES.iter().copied().filter(|bug| !is_convicted(bug)).collect()
}

#[test]
fn no_bug_is_without_a_layer_that_convicts_it() {
    let open: Vec<_> = open(&record()).into_iter().map(Planted::name).collect();
    let again = format!("{DRIVER} hunt --bugs {}", open.join(","));
    assert!(open.is_empty(), "{} bugs without a conviction: {again}", open.len());
}

#[test]
fn the_record_names_bugs_and_layers_that_there_are() {
    let driver = read(DRIVER);
    for layer in LAYERS {
        assert!(driver.contains(&format!("    \"{layer}\": (")), "{DRIVER} has no layer {layer:?}");
    }
    for (bug, layer) in record().keys() {
        assert!(Planted::named(bug).is_some_and(Planted::is_found_by_suites), "{RECORD}: no suite is to find {bug:?}");
        assert!(LAYERS.contains(&layer.as_str()), "{RECORD}: there is no layer {layer:?}");
    }
}

/// Bugs by layers.
fn matrix(record: &Record) -> String {
    let rules = "---|".repeat(LAYERS.len());
    let mut table = format!("| bug | effect | {} |\n|---|---|{rules}\n", LAYERS.join(" | "));
    for bug in Planted::SUITES {
        let marks: Vec<_> = LAYERS.iter().map(|layer| mark(record, *bug, layer)).collect();
        writeln!(table, "| `{}` | {} | {} |", bug.name(), bug.effect(), marks.join(" | ")).expect("a text takes it");
    }

    let count = |layer: &&str| {
        let run = Planted::SUITES.iter().filter(|bug| !mark(record, **bug, layer).is_empty()).count();
        let found = Planted::SUITES.iter().filter(|bug| is_convicted_by(record, **bug, layer)).count();
        if run == 0 { String::new() } else { format!("{found} of {run}") }
    };
    let counts: Vec<_> = LAYERS.iter().map(count).collect();
    writeln!(table, "| {} bugs | | {} |", Planted::SUITES.len(), counts.join(" | ")).expect("a text takes it");
    table
}

/// The bugs that no layer finds which makes up what it tries.
fn found_by_examples_alone(record: &Record) -> String {
    let open = open(record);
    let is_searched_out = |bug: &Planted| SEARCHES.iter().any(|layer| is_convicted_by(record, *bug, layer));
    let rest = Planted::SUITES.iter().filter(|bug| !is_searched_out(bug) && !open.contains(bug));
    let names: Vec<_> = rest.map(|bug| format!("`{}`", bug.name())).collect();
    format!("{} of {}: {}.\n", names.len(), Planted::SUITES.len() - open.len(), names.join(", "))
}

/// The bugs that no layer on record convicts, with what was tried.
fn shown_open(record: &Record) -> String {
    let tried = |bug: Planted| {
        let layers: Vec<_> = LAYERS.iter().filter(|layer| mark(record, bug, layer) == "–").copied().collect();
        if layers.is_empty() { "no layer was run yet".to_owned() } else { format!("not by {}", layers.join(", ")) }
    };
    let line = |bug: Planted| format!("* `{}`: {}\n", bug.name(), tried(bug));
    let lines: String = open(record).into_iter().map(line).collect();
    if lines.is_empty() { "None.\n".to_owned() } else { lines }
}

/// The bugs with a scenario or a run of their own.
fn others() -> String {
    let groups = [
        (Planted::FAULTS, "chaos and simulation, as a violation of a property"),
        (Planted::SEEDED, "simulation: a removed node does not end"),
        (Planted::STAGED, "a scenario of `tests/calibration`"),
    ];
    let mut table = "| bug | effect | convicted by |\n|---|---|---|\n".to_owned();
    for (bugs, convicted) in groups {
        for bug in bugs {
            writeln!(table, "| `{}` | {} | {convicted} |", bug.name(), bug.effect()).expect("a text takes it");
        }
    }
    table
}

/// The page with this text between the marks of a part.
fn with_part(page: &str, part: &str, text: &str) -> String {
    let begin = format!("<!-- generated: {part} -->\n");
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{PAGE} has no part {part:?}"));
    let (_, after) = rest.split_once("<!-- end -->").unwrap_or_else(|| panic!("{PAGE}: part {part:?} has no end"));
    format!("{before}{begin}\n{text}\n<!-- end -->{after}")
}

#[test]
fn the_page_shows_the_record() {
    let record = record();
    let page = read(PAGE);
    let mut expected = with_part(&page, "matrix", &matrix(&record));
    expected = with_part(&expected, "examples", &found_by_examples_alone(&record));
    expected = with_part(&expected, "open", &shown_open(&record));
    expected = with_part(&expected, "others", &others());

    if env::var_os("LOCKKEEPER_WRITE_PROOF").is_some() {
        fs::write(path(PAGE), &expected).expect("it can be written");
    } else {
        let again = "LOCKKEEPER_WRITE_PROOF=1 cargo test -p lockkeeper-planted";
        assert!(page == expected, "{PAGE} does not show what {RECORD} has: {again}");
    }
}
