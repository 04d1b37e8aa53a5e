//! Reports of histories: their counts, their timeline, and that all names are escaped in the page.

use std::{error::Error, fs, process::Command};

use lockkeeper::chaos::{
    history::History,
    report::{About, Report, ReportedFinding, ReportedVerdict, ReportedViolation},
};
use serde_json::{Value, json};

/// Ann releases the lock, bob acquires it and dies; cid acquires it next. Ann writes with an old token. A node is killed, another leads.
const STORY: &str = r#"
{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1,"seed":7}}
{"time_ns":1000000,"process":"node1","type":"info","f":"elected","value":{"node":1,"term":1}}
{"time_ns":2000000,"process":"ann","type":"invoke","f":"open","value":{"session":"sa","ttl_ms":100}}
{"time_ns":3000000,"process":"ann","type":"ok","f":"open"}
{"time_ns":3000000,"process":"bob","type":"invoke","f":"open","value":{"session":"sb","ttl_ms":100}}
{"time_ns":4000000,"process":"bob","type":"ok","f":"open"}
{"time_ns":5000000,"process":"ann","type":"invoke","f":"acquire","lock":"jobs","value":{"session":"sa"}}
{"time_ns":6000000,"process":"ann","type":"ok","f":"acquire","value":{"token":1}}
{"time_ns":7000000,"process":"bob","type":"invoke","f":"acquire","lock":"jobs","value":{"session":"sb","wait":{"at_most_ms":90}}}
{"time_ns":10000000,"process":"nemesis","type":"info","f":"fault","value":{"name":"cut node 1"}}
{"time_ns":20000000,"process":"ann","type":"invoke","f":"release","value":{"session":"sa","token":1}}
{"time_ns":21000000,"process":"ann","type":"ok","f":"release"}
{"time_ns":22000000,"process":"bob","type":"ok","f":"acquire","value":{"token":2}}
{"time_ns":23000000,"process":"ann","type":"invoke","f":"write","lock":"jobs","value":{"token":1}}
{"time_ns":24000000,"process":"ann","type":"fail","f":"write","value":{"reason":"refused_token"}}
{"time_ns":25000000,"process":"nemesis","type":"info","f":"died","value":{"process":"bob"}}
{"time_ns":30000000,"process":"nemesis","type":"info","f":"killed","value":{"node":1}}
{"time_ns":40000000,"process":"node2","type":"info","f":"elected","value":{"node":2,"term":2}}
{"time_ns":50000000,"process":"nemesis","type":"info","f":"heal","value":{}}
{"time_ns":51000000,"process":"nemesis","type":"info","f":"started","value":{"node":1}}
{"time_ns":52000000,"process":"node1","type":"info","f":"snapshot_installed","value":{"node":1,"index":9}}
{"time_ns":60000000,"process":"cid","type":"invoke","f":"open","value":{"session":"sc","ttl_ms":5000}}
{"time_ns":61000000,"process":"cid","type":"ok","f":"open"}
{"time_ns":62000000,"process":"cid","type":"invoke","f":"acquire","lock":"jobs","value":{"session":"sc"}}
{"time_ns":63000000,"process":"cid","type":"fail","f":"acquire","value":{"reason":"busy"}}
{"time_ns":64000000,"process":"ann","type":"invoke","f":"close","value":{"session":"sa"}}
{"time_ns":65000000,"process":"ann","type":"ok","f":"close"}
{"time_ns":110000000,"process":"cid","type":"invoke","f":"acquire","lock":"jobs","value":{"session":"sc"}}
{"time_ns":111000000,"process":"cid","type":"ok","f":"acquire","value":{"token":3}}
{"time_ns":112000000,"process":"op","type":"invoke","f":"force_release","lock":"jobs","value":{"now":true}}
{"time_ns":113000000,"process":"op","type":"ok","f":"force_release","value":{"revoked":[3]}}
{"time_ns":114000000,"process":"cid","type":"info","f":"lost","value":{"session":"sc","why":"revoked","token":3}}
{"time_ns":115000000,"process":"cid","type":"invoke","f":"get","lock":"jobs"}
{"time_ns":120000000,"process":"nemesis","type":"info","f":"end"}
"#;

fn story() -> History {
    History::read(STORY.trim_start().as_bytes()).expect("it is a history")
}

fn findings() -> Vec<ReportedFinding> {
    let says = r#"two hold "</script><b>" at once"#.to_owned();
    let shown = vec![ReportedViolation { says, lines: vec![8, 13] }];
    let finding = |property: &str, verdict| ReportedFinding {
        property: property.to_owned(),
        verdict,
        evidence: vec![("grants".to_owned(), 3)],
    };
    vec![
        finding("mutual exclusion", ReportedVerdict::Violated { count: 4, shown }),
        finding("token order", ReportedVerdict::Holds),
        finding("liveness", ReportedVerdict::Undecided { why: "no bound is promised".to_owned() }),
        finding("agreement", ReportedVerdict::Vacuous),
    ]
}

fn about() -> About {
    About {
        command: Some("lockkeeper chaos run --seed 7".to_owned()),
        versions: vec![("lockkeeper".to_owned(), "1".to_owned())],
    }
}

#[test]
fn the_text_tells_how_much_of_everything_there_was() -> Result<(), Box<dyn Error>> {
    let history = story();
    let report = Report::of(&history, about(), findings())?;
    assert_eq!(report.text(), include_str!("report/story.txt"));
    Ok(())
}

#[test]
fn the_document_tells_the_same() -> Result<(), Box<dyn Error>> {
    let history = story();
    let document: Value = serde_json::from_str(&Report::of(&history, about(), findings())?.document())?;
    assert_eq!(document["seed"], 7);
    assert_eq!(document["command"], "lockkeeper chaos run --seed 7");
    let summary = &document["summary"];
    // The killed node and the killed client are counted separately.
    assert_eq!(summary["faults_injected"], 1);
    assert_eq!(summary["grants"], 3);
    assert_eq!(summary["hand_overs"], 2);
    assert_eq!(summary["expiries"], 1);
    assert_eq!(summary["losses"], json!({"revoked": 1}));
    assert_eq!(summary["faults"], json!([{"name": "cut node 1", "times": 1, "lasted_ms": 40}]));
    assert_eq!(document["findings"][0]["verdict"], "violated");
    assert_eq!(document["findings"][0]["shown"][0]["lines"], json!([8, 13]));
    assert_eq!(document["findings"][2]["why"], "no bound is promised");
    Ok(())
}

/// The JSON data in the page.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once(r#"<script type="application/json" id="data">"#).expect("the page has data");
    let (data, _) = rest.split_once("</script>").expect("the data ends");
    serde_json::from_str(data).expect("the data is JSON")
}

#[test]
fn the_page_carries_the_history_and_needs_nothing_else() -> Result<(), Box<dyn Error>> {
    let history = story();
    let page = Report::of(&history, about(), findings())?.page();
    for outside in ["http:", "https:", "//cdn", "src=", "@import", "url(", "<link", "fetch("] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'"));
    let data = data(&page);
    let timeline = &data["timeline"];
    assert_eq!(timeline["events"].as_array().map(Vec::len), Some(34));
    assert_eq!(timeline["locks"][0]["name"], "jobs");
    let texts = |place: &Value| {
        timeline["texts"][place.as_u64().and_then(|place| usize::try_from(place).ok()).expect("a place")].clone()
    };
    // Start, certain end, known end, row, token, session, client, mode, kind of end, lines.
    let tenures = timeline["locks"][0]["tenures"].as_array().expect("tenures");
    let told: Vec<_> = tenures
        .iter()
        .map(|tenure| json!([tenure[0], tenure[1], tenure[3], tenure[4], texts(&tenure[6]), texts(&tenure[8])]))
        .collect();
    assert_eq!(
        told,
        [
            json!([6_000_000, 20_000_000, 0, 1, "ann", "released"]),
            json!([22_000_000, 103_000_000, 0, 2, "bob", "deadline"]),
            json!([111_000_000, 112_000_000, 0, 3, "cid", "force-released"]),
        ]
    );
    assert_eq!(timeline["nodes"][0]["led"][0][1]["to_ns"], 30_000_000);
    assert_eq!(timeline["probes"], json!([]));
    assert_eq!(data["report"]["findings"].as_array().map(Vec::len), Some(4));
    Ok(())
}

fn timeline(events: &[&str]) -> Value {
    let mut text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}"#.to_owned();
    for (place, event) in events.iter().enumerate() {
        text.push_str(&format!("\n{{\"time_ns\":{}000000,{event}}}", place + 1));
    }
    let history = History::read(text.as_bytes()).expect("it is a history");
    data(&Report::of(&history, about(), Vec::new()).expect("it is consistent").page())["timeline"].clone()
}

#[test]
fn locks_of_probes_stand_apart_and_are_explained() {
    let timeline = timeline(&[
        r#""process":"operator","type":"invoke","f":"get","lock":"fresh/1""#,
        r#""process":"operator","type":"invoke","op":2,"f":"get","lock":"jobs""#,
        r#""process":"ann","type":"invoke","f":"get","lock":"fresh/2""#,
    ]);
    let names = |lanes: &Value| -> Vec<Value> {
        lanes.as_array().expect("lanes").iter().map(|lane| lane["name"].clone()).collect()
    };
    assert_eq!(names(&timeline["locks"]), ["fresh/2", "jobs"], "a lock that a client uses is no probe");
    assert_eq!(names(&timeline["probes"]), ["fresh"]);
    assert_eq!(names(&timeline["probes"][0]["locks"]), ["fresh/1"]);
    assert!(timeline["probes"][0]["says"].as_str().is_some_and(|says| says.contains("leader")));
}

#[test]
fn faults_that_hit_a_leader_at_once_have_rows_of_their_own_in_its_lane() {
    let timeline = timeline(&[
        r#""process":"node1","type":"info","f":"elected","value":{"node":1,"term":1}"#,
        r#""process":"nemesis","type":"info","f":"fault","value":{"name":"pause","nodes":[1]}"#,
        r#""process":"nemesis","type":"info","f":"fault","value":{"name":"clock","nodes":[1]}"#,
        r#""process":"nemesis","type":"info","f":"heal","value":{}"#,
        r#""process":"nemesis","type":"info","f":"end""#,
    ]);
    let node = &timeline["nodes"][0];
    assert_eq!(node["led"].as_array().map(Vec::len), Some(1));
    let rows: Vec<_> = node["faulty"].as_array().expect("faults").iter().map(|one| json!([one[0], one[2]])).collect();
    assert_eq!(rows, [json!(["pause", 0]), json!(["clock", 1])]);
}

#[test]
fn no_name_breaks_out_of_the_page() -> Result<(), Box<dyn Error>> {
    let ends = |page: &str| page.to_lowercase().matches("</script").count();
    let opens = |page: &str| page.to_lowercase().matches("<script").count();
    let plain = story();
    let harmless = Report::of(&plain, about(), Vec::new())?.page();
    for name in [
        "</script><script>alert(1)</script>",
        "<!--<script>",
        "]]>",
        "a&lt;\"'\\b",
        "/*SCRIPT*/",
        "/*DATA*/",
        "\u{2028}\u{7f}ö",
    ] {
        let text = STORY
            .replace(r#""jobs""#, &json!(name).to_string())
            .replace("cut node 1", &json!(name).to_string().replace(['"', '\\'], ""));
        let history = History::read(text.trim_start().as_bytes())?;
        let command = About { command: Some(name.to_owned()), versions: vec![(name.to_owned(), name.to_owned())] };
        let page = Report::of(&history, command, findings())?.page();
        assert_eq!((ends(&page), opens(&page)), (ends(&harmless), opens(&harmless)), "{name}");
        assert!(!page.contains("<!--"), "{name}");
        let data = data(&page);
        assert_eq!(data["timeline"]["locks"][0]["name"], name);
        assert_eq!(data["report"]["command"], name);
    }
    Ok(())
}

#[test]
fn two_holders_at_once_are_drawn_below_each_other() -> Result<(), Box<dyn Error>> {
    // Ann does not release: bob is granted the lock that she holds until she closes her session.
    let lines: Vec<_> = STORY.lines().filter(|line| !(line.contains("ann") && line.contains("release"))).collect();
    let history = History::read(lines.join("\n").trim_start().as_bytes())?;
    let data = data(&Report::of(&history, about(), Vec::new())?.page());
    let rows: Vec<_> = data["timeline"]["locks"][0]["tenures"]
        .as_array()
        .expect("tenures")
        .iter()
        .map(|tenure| tenure[3].clone())
        .collect();
    assert_eq!(rows, [0, 1, 0]);
    Ok(())
}

fn report(arguments: &[&str]) -> Result<std::process::Output, std::io::Error> {
    Command::new(env!("CARGO_BIN_EXE_lockkeeper")).args(["chaos", "report"]).args(arguments).output()
}

#[test]
fn the_program_makes_a_page_of_a_file() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name).display().to_string();
    let history = path("history.jsonl");
    let page = path("report.html");
    fs::write(&history, STORY)?;
    let output = report(&[&history, "--out", &page, "--command", "make chaos"])?;
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stdout)?.contains("to repeat: make chaos\n"));
    assert_eq!(data(&fs::read_to_string(&page)?)["report"]["seed"], 7);
    let output = report(&[&history, "-o", "json"])?;
    assert_eq!(serde_json::from_slice::<Value>(&output.stdout)?["summary"]["events"], 34);

    fs::write(&history, STORY.replacen(r#""f":"elected""#, r#""f":"elected","lock":5"#, 1))?;
    let output = report(&[&history, "--out", &page])?;
    assert_eq!(output.status.code(), Some(2));
    let complaint = String::from_utf8(output.stderr)?;
    assert!(complaint.contains("history.jsonl: line 3: "), "{complaint}");
    assert_eq!(report(&[&path("absent")])?.status.code(), Some(2));
    Ok(())
}
