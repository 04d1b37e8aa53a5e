//! Hand-made histories. The first lines of each file state the expected verdict:
//!
//! * `# violates: PROPERTY at LINES`: exactly this property is violated, once, with exactly these lines as evidence;
//! * `# also: PROPERTY`: this property is violated too, since it checks the same by another method;
//! * `# holds: PROPERTIES`: these hold, with evidence.

use std::{collections::BTreeSet, fs, path::PathBuf};

use lockkeeper::chaos::{
    checker::{Finding, Property, Verdict, check},
    history::{History, Writer},
};

/// The expected verdict of a file.
#[derive(Default)]
struct Expected {
    violates: Option<(String, Vec<usize>)>,
    also: Option<String>,
    holds: Vec<String>,
}

fn files() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/checker/histories");
    let paths = fs::read_dir(folder).expect("the histories").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths.collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        (name, fs::read_to_string(path).expect("a history"))
    };
    paths.into_iter().map(read).collect()
}

fn expected(text: &str) -> Expected {
    let mut expected = Expected::default();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# violates: ") {
            let (property, lines) = rest.split_once(" at ").expect("PROPERTY at LINES");
            let lines = lines.split(' ').map(|line| line.parse().expect("a number")).collect();
            expected.violates = Some((property.to_owned(), lines));
        } else if let Some(property) = line.strip_prefix("# also: ") {
            expected.also = Some(property.to_owned());
        } else if let Some(properties) = line.strip_prefix("# holds: ") {
            expected.holds = properties.split(' ').map(str::to_owned).collect();
        }
    }
    expected
}

fn word(finding: &Finding) -> String {
    let json = serde_json::to_value(finding.property).expect("a word");
    json.as_str().expect("a word").to_owned()
}

#[test]
fn each_history_violates_exactly_the_expected_properties() {
    let mut wrong = Vec::new();
    let mut convicted = BTreeSet::new();
    for (name, text) in files() {
        let expected = expected(&text);
        let history = History::read(text.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
        for finding in check(&history).expect("it was read") {
            let property = word(&finding);
            let main = expected.violates.as_ref().filter(|(main, _)| *main == property);
            let also = expected.also.as_ref() == Some(&property);
            let right = match (&finding.verdict, main) {
                (Verdict::Violated(violations), Some((_, lines))) => {
                    violations.count == 1 && violations.shown[0].lines == *lines
                }
                (Verdict::Violated(_), None) => also,
                (Verdict::Holds, None) => !also,
                (_, None) => !also && !expected.holds.contains(&property),
                (_, Some(_)) => false,
            };
            if !right {
                wrong.push(format!("{name}: {finding:?}"));
            }
            convicted.extend(main.map(|_| property));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(convicted.len(), Property::ALL.len(), "some property has no violating history: {convicted:?}");
}

#[test]
fn a_written_history_reads_back_equal() {
    for (name, text) in files() {
        let history = History::read(text.as_bytes()).expect("a history");
        let mut writer = Writer::new(Vec::new());
        history.events.iter().for_each(|(_, event)| writer.write(event).expect("memory"));
        let again = History::read(&*writer.into_inner()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let events = |history: History| history.events.into_iter().map(|(_, event)| event).collect::<Vec<_>>();
        assert_eq!(events(history), events(again), "{name}");
    }
}
