//! Exported histories, read back: they have the operations of the history, and a search finds an order where there is one.

use super::{ExportForm, export};
use crate::{
    history::History,
    registers::{Register, RegisterStep},
    wgl::{SearchOutcome, Timed, search},
};

const META: &str = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}"#;

/// One line for each event, a millisecond apart.
fn history(events: &[&str]) -> History {
    let lines =
        events.iter().enumerate().map(|(at, event)| format!("\n{{\"time_ns\":{},{event}}}", (at + 1) * 1_000_000));
    History::read(format!("{META}{}", lines.collect::<String>()).as_bytes()).unwrap()
}

/// Whether an exported file for porcupine has an order, by the search of this crate: the numbers of tokens are its values.
fn has_order(text: &str) -> bool {
    let read = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let value = |value: &serde_json::Value| value.as_i64().map(|number| number.cast_unsigned());
        let input = &line["Input"];
        let output = &line["Output"];
        let step = match (input["f"].as_str().unwrap(), output["ok"].as_bool().unwrap()) {
            ("read", _) => RegisterStep::Read(value(&output["value"])),
            ("cas", true) => RegisterStep::Set(value(&input["from"]), value(&input["to"])),
            ("cas", false) => RegisterStep::Refused(value(&input["from"])),
            other => panic!("{other:?}"),
        };
        let is_known = output["known"].as_bool().unwrap();
        let end_ns = if is_known { line["Return"].as_u64().unwrap() } else { u64::MAX };
        Timed { step, begin_ns: line["Call"].as_u64().unwrap(), end_ns }
    };
    let timed: Vec<_> = text.lines().map(read).collect();
    search(&Register, None, &timed, 100_000) == SearchOutcome::Found
}

/// The maps of an EDN file, as lists of their values: index, time, type, process, function, value.
fn edn(text: &str) -> Vec<[String; 6]> {
    let fields = [":index ", ":time ", ":type :", ":process ", ":f :", ":value "];
    let read = |line: &str| {
        let inner = line.strip_prefix('{').and_then(|line| line.strip_suffix('}')).expect("a map");
        let mut rest = inner;
        fields.map(|field| {
            let (_, after) = rest.split_once(field).expect("a field");
            let end = after.find(", :").filter(|_| field != ":value ").unwrap_or(after.len());
            rest = &after[end..];
            after[..end].to_owned()
        })
    };
    text.lines().map(read).collect()
}

/// Two sessions and one lock: the second is granted it after the end of the first, of which there are several.
fn handed_on(end: &[&str], read: &str) -> History {
    let begin = [
        r#""process":"ann","type":"invoke","f":"open","value":{"session":"s1","ttl_ms":20}"#,
        r#""process":"ann","type":"ok","f":"open""#,
        r#""process":"bob","type":"invoke","f":"open","value":{"session":"s2","ttl_ms":1000}"#,
        r#""process":"bob","type":"ok","f":"open""#,
        r#""process":"ann","type":"invoke","f":"acquire","lock":"a","value":{"session":"s1"}"#,
        r#""process":"ann","type":"ok","f":"acquire","value":{"token":5}"#,
    ];
    let next = [
        r#""process":"bob","type":"invoke","f":"acquire","lock":"a","value":{"session":"s2"}"#,
        r#""process":"bob","type":"ok","f":"acquire","value":{"token":6}"#,
        r#""process":"cat","type":"invoke","f":"get","lock":"a""#,
        read,
    ];
    history(&[&begin[..], end, &next].concat())
}

const HELD: &str = r#""process":"cat","type":"ok","f":"get","value":{"holders":[{"token":6,"session":"s2"}]}"#;
const HELD_BY_THE_FIRST: &str =
    r#""process":"cat","type":"ok","f":"get","value":{"holders":[{"token":5,"session":"s1"}]}"#;

#[test]
fn a_lock_is_a_register_of_tokens() {
    let released = [
        r#""process":"ann","type":"invoke","f":"release","value":{"session":"s1","token":5}"#,
        r#""process":"ann","type":"ok","f":"release""#,
    ];
    let files = |history: &History| export(history, ExportForm::Porcupine).unwrap();
    let right = files(&handed_on(&released, HELD));
    assert_eq!((right.len(), &*right[0].name, &*right[0].about), (1, "lock-0001.jsonl", "lock \"a\""));
    assert!(has_order(&right[0].text), "{}", right[0].text);
    assert!(!has_order(&files(&handed_on(&released, HELD_BY_THE_FIRST))[0].text));
    // Without a release, the second has it too early; after the deadline of the first it has not.
    assert!(!has_order(&files(&handed_on(&[], HELD))[0].text));
    let waits = [r#""process":"n","type":"info","f":"note""#; 20];
    assert!(has_order(&files(&handed_on(&waits, HELD))[0].text));
}

#[test]
fn processes_have_one_operation_at_a_time_and_none_after_an_unknown_one() {
    let released = [
        r#""process":"ann","type":"invoke","f":"release","value":{"session":"s1","token":5}"#,
        r#""process":"ann","type":"info","f":"release""#,
    ];
    let files = export(&handed_on(&released, HELD), ExportForm::Jepsen).unwrap();
    let lines = edn(&files[0].text);
    let mut open = std::collections::HashMap::new();
    for (at, [index, _, kind, process, f, value]) in lines.iter().enumerate() {
        assert_eq!(*index, at.to_string());
        let before = open.insert(process.clone(), kind.clone());
        match &**kind {
            "invoke" => assert!(matches!(before.as_deref(), None | Some("ok" | "fail")), "{before:?} {lines:#?}"),
            _ => assert_eq!(before.as_deref(), Some("invoke"), "{lines:#?}"),
        }
        let is_first_write = f == "write" && at < 2;
        assert!(is_first_write || f == "read" || f == "cas" && value.starts_with('['), "{f} {value}");
    }
    let times: Vec<u64> = lines.iter().map(|line| line[1].parse().unwrap()).collect();
    assert!(times.is_sorted());
    assert_eq!(lines.len(), 2 + 2 * files[0].operations);
}

/// What Knossos says of one operation at a time (`knossos.model/CASRegister`): a read of `nil` fits every state.
fn knossos_accepts(lines: &[[String; 6]]) -> bool {
    let mut state = "nil".to_owned();
    for [_, _, kind, _, f, value] in lines {
        let pair = value.trim_matches(['[', ']']).split_once(' ');
        match (&**kind, &**f, pair) {
            ("ok", "write", _) => state.clone_from(value),
            ("ok", "cas", Some((from, to))) if from == state => to.clone_into(&mut state),
            ("ok", "read", _) if value == "nil" || *value == state => {}
            ("ok", ..) => return false,
            _ => {}
        }
    }
    true
}

#[test]
fn a_lock_that_is_read_as_free_while_it_is_held_has_no_order_in_knossos() {
    let read = |end: &str| {
        let open = r#""process":"ann","type":"invoke","f":"open","value":{"session":"s1","ttl_ms":1000}"#;
        let acquire = r#""process":"ann","type":"invoke","f":"acquire","lock":"a","value":{"session":"s1"}"#;
        let story = history(&[
            open,
            r#""process":"ann","type":"ok","f":"open""#,
            r#""process":"cat","type":"invoke","f":"get","lock":"a""#,
            r#""process":"cat","type":"ok","f":"get","value":{"holders":[]}"#,
            acquire,
            r#""process":"ann","type":"ok","f":"acquire","value":{"token":5}"#,
            r#""process":"cat","type":"invoke","f":"get","lock":"a""#,
            end,
        ]);
        let files = export(&story, ExportForm::Jepsen).unwrap();
        edn(&files[0].text)
    };
    let held = read(r#""process":"cat","type":"ok","f":"get","value":{"holders":[{"token":5,"session":"s1"}]}"#);
    assert!(knossos_accepts(&held), "{held:#?}");
    let free = read(r#""process":"cat","type":"ok","f":"get","value":{"holders":[]}"#);
    assert!(!knossos_accepts(&free), "{free:#?}");
    let is_unknown = |line: &&[String; 6]| line[2] == "ok" && line[4] == "read" && line[5] == "nil";
    assert_eq!(held.iter().chain(&free).find(is_unknown), None);
}

#[test]
fn the_absence_of_a_value_is_a_number_that_is_no_value() {
    let story = history(&[
        r#""process":"ann","type":"invoke","f":"set","lock":"r","value":{"to":0}"#,
        r#""process":"ann","type":"ok","f":"set""#,
        r#""process":"ann","type":"invoke","f":"set","lock":"r","value":{"from":0}"#,
        r#""process":"ann","type":"ok","f":"set""#,
        r#""process":"ann","type":"invoke","f":"read","lock":"r""#,
        r#""process":"ann","type":"ok","f":"read","value":{}"#,
    ]);
    let lines = edn(&export(&story, ExportForm::Jepsen).unwrap()[0].text);
    let told = lines.iter().filter(|line| line[2] == "ok").map(|line| (&*line[4], &*line[5]));
    let expected = [("write", "-1"), ("cas", "[-1 0]"), ("cas", "[0 -1]"), ("read", "-1")];
    assert_eq!(told.collect::<Vec<_>>(), expected);
    assert!(knossos_accepts(&lines));
}

#[test]
fn transactions_are_reads_and_writes_of_registers_that_last() {
    let story = history(&[
        r#""process":"ann","type":"invoke","f":"txn","value":{"then":[{"put":{"key":"a","value":"x"}},{"put":{"key":"b","value":"y","lease":"s"}}]}"#,
        r#""process":"ann","type":"ok","f":"txn","value":{"results":[{"put":{}},{"put":{}}]}"#,
        r#""process":"bob","type":"invoke","f":"txn","value":{"compares":[{"key":"a","target":"value","text":"x"}],"then":[{"range":{}},{"put":{"key":"c","value":"z"}}]}"#,
        r#""process":"bob","type":"ok","f":"txn","value":{"results":[{"ranged":{"registers":[["a",{"value":"x"}]]}},{"put":{}}]}"#,
        r#""process":"cat","type":"invoke","f":"txn","value":{"then":[{"put":{"key":"c","value":"w"}}]}"#,
        r#""process":"cat","type":"fail","f":"txn","value":{"reason":"unavailable"}"#,
        r#""process":"dan","type":"invoke","f":"txn","value":{"then":[{"put":{"key":"c","value":"v"}}]}"#,
    ]);
    let files = export(&story, ExportForm::Jepsen).unwrap();
    let lines = edn(&files[0].text);
    let told: Vec<_> = lines.iter().map(|line| (&*line[2], &*line[5])).collect();
    assert_eq!(
        told,
        [
            ("invoke", "[[:w 0 1]]"),
            ("ok", "[[:w 0 1]]"),
            ("invoke", "[[:r 0 nil] [:r 0 nil] [:r 1 nil] [:w 1 2]]"),
            ("ok", "[[:r 0 1] [:r 0 1] [:r 1 nil] [:w 1 2]]"),
            ("invoke", "[[:w 1 3]]"),
            ("fail", "[[:w 1 3]]"),
            ("invoke", "[[:w 1 4]]"),
            ("info", "[[:w 1 4]]"),
        ]
    );
    assert_eq!(export(&story, ExportForm::Porcupine).unwrap(), [], "it has no model of transactions");
}

#[test]
fn registers_and_huge_numbers_are_exported_as_they_are() {
    let story = history(&[
        r#""process":"ann","type":"invoke","f":"set","lock":"r","value":{"to":18446744073709551615}"#,
        r#""process":"ann","type":"ok","f":"set""#,
        r#""process":"ann","type":"invoke","f":"set","lock":"r","value":{"from":1,"to":2}"#,
        r#""process":"ann","type":"fail","f":"set","value":{"reason":"not_equal"}"#,
        r#""process":"ann","type":"invoke","f":"read","lock":"r""#,
        r#""process":"ann","type":"ok","f":"read","value":{"value":18446744073709551615}"#,
    ]);
    let files = export(&story, ExportForm::Jepsen).unwrap();
    assert!(files[0].text.contains(":type :ok, :process 0, :f :cas, :value [-1 18446744073709551615]"));
    assert!(files[0].text.contains(":type :fail, :process 0, :f :cas, :value [1 2]"), "{}", files[0].text);
    assert_eq!(
        "edn".parse::<ExportForm>(),
        Err("unknown form of export: \"edn\"; choose jepsen or porcupine".to_owned())
    );
}
