//! Hand-made histories of transactions and watches. Each anomaly is convicted, under its name, and right histories are not.

use crate::{Property, Verdict, check, history::History};

/// The violations of a property in a history of these lines: each a time, a process, and an event without its value's quotes.
///
/// An event is `invoke`, `ok`, `fail` or `info` of a transaction, or `fact NAME`, and a value. Keys and texts of a value have no quotes.
fn violations(property: Property, events: &[(u64, &str, &str)]) -> Vec<String> {
    match verdict(property, r#"{"format":1,"watch_bound_ms":1}"#, events) {
        Verdict::Holds => Vec::new(),
        Verdict::Violated(violations) => violations.shown.into_iter().map(|violation| violation.says).collect(),
        other @ (Verdict::Undecided(_) | Verdict::Vacuous) => panic!("{other:?}"),
    }
}

/// The verdict on a property by a history with this meta and these lines, as [`violations`] reads them.
fn verdict(property: Property, meta: &str, events: &[(u64, &str, &str)]) -> Verdict {
    let mut text = format!(r#"{{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{meta}}}"#);
    for (time_ns, process, event) in events {
        let (words, value) = event.split_once(' ').unwrap_or((event, "{}"));
        let (kind, f, value) = match words {
            "fact" => {
                let (name, value) = value.split_once(' ').unwrap_or((value, "{}"));
                ("info", name, value)
            }
            "open" => {
                (value.split_once(' ').unwrap_or((value, "")).0, "open", value.split_once(' ').map_or("{}", |it| it.1))
            }
            kind => (kind, "txn", value),
        };
        let value = quoted(value);
        let value = if f == "end" { String::new() } else { format!(r#","value":{value}"#) };
        text.push_str(&format!(
            "\n{{\"time_ns\":{time_ns},\"process\":\"{process}\",\"type\":\"{kind}\",\"f\":\"{f}\"{value}}}"
        ));
    }

    let history = History::read(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let findings = check(&history).unwrap();
    findings.into_iter().find(|finding| finding.property == property).expect("it was checked").verdict
}

/// Puts quotes around words that are not numbers or constants.
fn quoted(value: &str) -> String {
    let mut text = String::new();
    let mut word = String::new();
    for c in value.chars().chain([' ']) {
        if c.is_alphanumeric() || c == '_' {
            word.push(c);
            continue;
        }
        let is_bare = word.is_empty() || word.parse::<u64>().is_ok() || ["null", "true", "false"].contains(&&*word);
        text.push_str(&if is_bare { word.clone() } else { format!("{word:?}") });
        word.clear();
        text.push(c);
    }
    text.trim().to_owned()
}

fn anomalies(events: &[(u64, &str, &str)]) -> Vec<String> {
    violations(Property::Serializability, events)
}

/// Expects one anomaly, by the start of its text.
fn convicts(name: &str, events: &[(u64, &str, &str)]) {
    let found = anomalies(events);
    assert!(matches!(&*found, [one] if one.starts_with(name)), "not one {name}, but {found:#?}");
}

fn acquits(events: &[(u64, &str, &str)]) {
    assert_eq!(anomalies(events), Vec::<String>::new());
}

const PUT_A: [(u64, &str, &str); 2] =
    [(1, "ann", "invoke {then:[{put:{key:a,value:x1}}]}"), (2, "ann", "ok {revision:5,results:[{put:{}}]}")];
/// A second value, at the next revision.
const PUT_A_AGAIN: [(u64, &str, &str); 2] =
    [(3, "ann", "invoke {then:[{put:{key:a,value:x2}}]}"), (4, "ann", "ok {revision:6,results:[{put:{}}]}")];
const GET_A: (u64, &str, &str) = (10, "bob", "invoke {then:[{get:{key:a}}]}");

fn after(
    before: &[&[(u64, &'static str, &'static str)]],
    more: &[(u64, &'static str, &'static str)],
) -> Vec<(u64, &'static str, &'static str)> {
    before.iter().copied().flatten().chain(more).copied().collect()
}

#[test]
fn right_transactions_are_acquitted() {
    acquits(&after(
        &[&PUT_A],
        &[
            (
                3,
                "ann",
                "invoke {compares:[{key:a,target:modified,number:5}],then:[{put:{key:a,value:x2}},{put:{key:b,value:y1}},{get:{key:a}}]}",
            ),
            (4, "ann", "ok {revision:6,results:[{put:{}},{put:{}},{got:{value:x2,created:5,modified:6,version:2}}]}"),
            (5, "bob", "invoke {then:[{range:{from:a,to:c}},{get:{key:c}}]}"),
            (
                6,
                "bob",
                "ok {revision:6,results:[{ranged:{registers:[[a,{value:x2,created:5,modified:6,version:2}],[b,{value:y1,modified:6}]]}},{got:null}]}",
            ),
            (7, "bob", "invoke {compares:[{key:a,target:created,number:0}],then:[],otherwise:[{delete:{key:a}}]}"),
            (8, "bob", "ok {revision:8,succeeded:false,results:[{deleted:{count:1}}]}"),
            (9, "ann", "invoke {at:6,then:[{get:{key:a}}]}"),
            (10, "ann", "ok {revision:8,results:[{got:{value:x2,modified:6}}]}"),
            (11, "bob", "invoke {then:[{range:{}}]}"),
            (12, "bob", "ok {revision:9,results:[{ranged:{registers:[[b,{modified:6}]],count:1}}]}"),
        ],
    ));
}

#[test]
fn reads_that_miss_acknowledged_writes_are_stale() {
    let old = (11, "bob", "ok {revision:7,results:[{got:{value:x1,modified:5}}]}");
    convicts("stale read: register \"a\" changed at revision 6", &after(&[&PUT_A, &PUT_A_AGAIN], &[GET_A, old]));
    let absent = (11, "bob", "ok {revision:7,results:[{got:null}]}");
    convicts("stale read: register \"a\" changed at revision 5", &after(&[&PUT_A], &[GET_A, absent]));
    let consistent = (11, "bob", "ok {revision:5,results:[{got:{value:x1,modified:5}}]}");
    convicts("stale read: a transaction has revision 5", &after(&[&PUT_A, &PUT_A_AGAIN], &[GET_A, consistent]));
    let accepted = (10, "bob", "invoke {stale:true,then:[{get:{key:a}}]}");
    acquits(&after(&[&PUT_A, &PUT_A_AGAIN], &[accepted, consistent]));
    let phantom = [
        (10, "bob", "invoke {then:[{range:{from:a,to:z}}]}"),
        (11, "bob", "ok {revision:7,results:[{ranged:{registers:[]}}]}"),
    ];
    convicts("stale read: register \"a\" changed at revision 5", &after(&[&PUT_A], &phantom));
}

#[test]
fn reads_of_the_past_show_the_state_of_their_revision() {
    let past = (10, "bob", "invoke {at:5,then:[{get:{key:a}}]}");
    acquits(&after(
        &[&PUT_A, &PUT_A_AGAIN],
        &[past, (11, "bob", "ok {revision:9,results:[{got:{value:x1,modified:5}}]}")],
    ));
    convicts(
        "G1c",
        &after(&[&PUT_A, &PUT_A_AGAIN], &[past, (11, "bob", "ok {revision:9,results:[{got:{value:x2,modified:6}}]}")]),
    );
}

#[test]
fn what_had_no_effect_must_not_be_read() {
    let failed = [(3, "cat", "invoke {then:[{put:{key:a,value:x9}}]}"), (4, "cat", "fail {reason:unavailable}")];
    let read = (11, "bob", "ok {revision:7,results:[{got:{value:x9,modified:6}}]}");
    convicts("G1a", &after(&[&PUT_A, &failed], &[GET_A, read]));

    let branch = [
        (3, "cat", "invoke {compares:[{key:a,target:value,text:x0}],then:[{put:{key:a,value:x9}}]}"),
        (4, "cat", "ok {revision:5,succeeded:false}"),
    ];
    convicts("G1a", &after(&[&PUT_A, &branch], &[GET_A, read]));
    convicts("garbage read", &after(&[&PUT_A], &[GET_A, read]));

    let twice = [
        (3, "cat", "invoke {then:[{put:{key:a,value:x9}},{put:{key:a,value:y1}}]}"),
        (4, "cat", "ok {revision:6,results:[{put:{}},{put:{}}]}"),
    ];
    convicts("G1b", &after(&[&PUT_A, &twice], &[GET_A, read]));
}

#[test]
fn a_transaction_must_not_see_half_of_another() {
    let both = [
        (3, "cat", "invoke {then:[{put:{key:a,value:x2}},{put:{key:b,value:y2}}]}"),
        (12, "cat", "ok {revision:6,results:[{put:{}},{put:{}}]}"),
    ];
    let reads = (4, "bob", "invoke {then:[{get:{key:a}},{get:{key:b}}]}");
    let half = (11, "bob", "ok {revision:6,results:[{got:{value:x1,modified:5}},{got:{value:y2,modified:6}}]}");
    convicts("G-single (read skew)", &after(&[&PUT_A], &[both[0], reads, half, both[1]]));

    // The same, if the transaction was never answered.
    let half = (11, "bob", "ok {revision:6,results:[{got:{value:x2,modified:6}},{got:null}]}");
    convicts("G-single (read skew)", &after(&[&PUT_A], &[both[0], reads, half]));
    let whole = (11, "bob", "ok {revision:6,results:[{got:{value:x2,modified:6}},{got:{value:y2,modified:6}}]}");
    acquits(&after(&[&PUT_A], &[both[0], reads, whole]));
    let before = (11, "bob", "ok {revision:5,results:[{got:{value:x1,modified:5}},{got:null}]}");
    acquits(&after(&[&PUT_A], &[both[0], reads, before]));
}

#[test]
fn transactions_that_miss_each_others_writes_have_no_order() {
    let replace = [
        (3, "bob", "invoke {then:[{get:{key:a}},{put:{key:a,value:x2}}]}"),
        (3, "cat", "invoke {then:[{get:{key:a}},{put:{key:a,value:x3}}]}"),
        (5, "bob", "ok {revision:6,results:[{got:{value:x1,modified:5}},{put:{}}]}"),
        (6, "cat", "ok {revision:7,results:[{got:{value:x1,modified:5}},{put:{}}]}"),
    ];
    convicts("G-single (lost update)", &after(&[&PUT_A], &replace));

    let skew = [
        (3, "bob", "invoke {then:[{get:{key:b}},{put:{key:a,value:x2}}]}"),
        (3, "cat", "invoke {then:[{get:{key:a}},{put:{key:b,value:y3}}]}"),
        (5, "bob", "ok {revision:6,results:[{got:null},{put:{}}]}"),
        (6, "cat", "ok {revision:7,results:[{got:{value:x1,modified:5}},{put:{}}]}"),
    ];
    convicts("G2", &after(&[&PUT_A], &skew));
}

#[test]
fn revisions_have_one_writer_and_rise_with_time() {
    let same = [(3, "bob", "invoke {then:[{put:{key:b,value:y1}}]}"), (4, "bob", "ok {revision:5,results:[{put:{}}]}")];
    let found = anomalies(&after(&[&PUT_A], &same));
    assert!(found[0].starts_with("G0") && found[1].starts_with("order against real time"), "{found:#?}");
    let lower =
        [(3, "bob", "invoke {then:[{put:{key:b,value:y1}}]}"), (4, "bob", "ok {revision:4,results:[{put:{}}]}")];
    convicts("order against real time", &after(&[&PUT_A], &lower));
}

#[test]
fn a_register_has_one_state_at_a_revision() {
    let other = (11, "bob", "ok {revision:5,results:[{got:{value:x7,modified:5}}]}");
    convicts("dirty update", &after(&[&PUT_A], &[GET_A, other]));
    let versions = [
        (11, "bob", "ok {revision:5,results:[{got:{version:1,modified:5}}]}"),
        (12, "bob", "invoke {then:[{get:{key:a}}]}"),
        (13, "bob", "ok {revision:5,results:[{got:{version:2,modified:5}}]}"),
    ];
    convicts("dirty update", &after(&[&PUT_A, &[GET_A]], &versions));
    let lost = (11, "bob", "ok {revision:6,results:[{got:{version:1,created:5,modified:6}}]}");
    convicts("G-single (lost update)", &after(&[&PUT_A, &PUT_A_AGAIN], &[GET_A, lost]));
}

#[test]
fn a_transaction_sees_its_own_steps() {
    let steps = [
        (3, "bob", "invoke {then:[{put:{key:a,value:x2}},{get:{key:a}}]}"),
        (4, "bob", "ok {revision:6,results:[{put:{}},{got:{value:x1,modified:5}}]}"),
    ];
    convicts("internal", &after(&[&PUT_A], &steps));
}

#[test]
fn the_branch_that_runs_is_that_of_the_conditions() {
    let compare = (3, "bob", "invoke {compares:[{key:a,target:value,text:x1}],then:[{put:{key:b,value:y1}}]}");
    acquits(&after(&[&PUT_A], &[compare, (4, "bob", "ok {revision:6,results:[{put:{}}]}")]));
    convicts("wrong branch", &after(&[&PUT_A], &[compare, (4, "bob", "ok {revision:5,succeeded:false}")]));
    convicts(
        "wrong branch",
        &after(&[&PUT_A, &PUT_A_AGAIN], &[(5, "bob", compare.2), (6, "bob", "ok {revision:7,results:[{put:{}}]}")]),
    );
    let absent = (3, "bob", "invoke {compares:[{key:a,target:created,number:0}],then:[{put:{key:b,value:y1}}]}");
    convicts("G", &after(&[&PUT_A], &[absent, (4, "bob", "ok {revision:6,results:[{put:{}}]}")]));
    // A transaction of unknown outcome may have changed the register.
    let unknown = [(3, "cat", "invoke {then:[{put:{key:a,value:x9}}]}"), (4, "cat", "info {}")];
    acquits(&after(&[&PUT_A, &unknown], &[(5, "bob", compare.2), (6, "bob", "ok {revision:6,succeeded:false}")]));
}

const LEASED: [(u64, &str, &str); 4] = [
    (1, "ann", "open invoke {session:s1,ttl_ms:1}"),
    (2, "ann", "open ok {}"),
    (3, "ann", "invoke {then:[{put:{key:a,value:x1,lease:s1}}]}"),
    (4, "ann", "ok {revision:5,results:[{put:{}}]}"),
];

#[test]
fn a_register_with_a_lease_ends_when_that_is_over() {
    let absent =
        |at: u64| after(&[&LEASED], &[(at, "bob", GET_A.2), (at, "bob", "ok {revision:5,results:[{got:null}]}")]);
    acquits(&absent(1_000_001));
    assert_eq!(violations(Property::NoEarlyExpiry, &absent(1_000_001)), Vec::<String>::new());
    acquits(&absent(1_000_000));
    let early = violations(Property::NoEarlyExpiry, &absent(1_000_000));
    assert!(matches!(&*early, [one] if one.starts_with("register \"a\" was absent")), "{early:?}");

    let again =
        [(1_000_002, "bob", GET_A.2), (1_000_003, "bob", "ok {revision:5,results:[{got:{value:x1,modified:5}}]}")];
    // The revision of the end is later than that of the read: the state at revisions between them has the register.
    let past = [
        (1_000_002, "bob", "invoke {then:[{put:{key:b,value:y1}}]}"),
        (1_000_003, "bob", "ok {revision:6,results:[{put:{}}]}"),
        (1_000_004, "bob", "invoke {at:6,then:[{get:{key:a}}]}"),
        (1_000_005, "bob", "ok {revision:6,results:[{got:{value:x1,modified:5}}]}"),
    ];
    acquits(&after(&[&absent(1_000_001)], &past));
    convicts("stale read: register \"a\" had ended", &after(&[&absent(1_000_001)], &again));
}

#[test]
fn a_register_that_outlives_its_lease_changes_its_revision() {
    let kept = [
        (3, "ann", "invoke {then:[{put:{key:a,value:x1,lease:s1,outlives_lease:true}}]}"),
        (4, "ann", "ok {revision:5,results:[{put:{}}]}"),
        (2_000_000, "bob", GET_A.2),
        (2_000_001, "bob", "ok {revision:7,results:[{got:{value:x1,modified:6}}]}"),
    ];
    acquits(&after(&[&LEASED[..2]], &kept));
}

#[test]
fn without_revisions_values_tell_the_order() {
    let put = |value| match value {
        1 => [(1, "ann", "invoke {then:[{put:{key:a,value:x1}}]}"), (2, "ann", "ok {results:[{put:{}}]}")],
        _ => [(3, "ann", "invoke {then:[{put:{key:a,value:x2}}]}"), (4, "ann", "ok {results:[{put:{}}]}")],
    };
    let got = |answer| (11, "bob", answer);
    acquits(&after(&[&put(1), &put(2)], &[GET_A, got("ok {results:[{got:{value:x2}}]}")]));
    convicts("stale read", &after(&[&put(1), &put(2)], &[GET_A, got("ok {results:[{got:{value:x1}}]}")]));
    convicts("stale read", &after(&[&put(1)], &[GET_A, got("ok {results:[{got:null}]}")]));
    convicts("garbage read", &after(&[&put(1)], &[GET_A, got("ok {results:[{got:{value:x7}}]}")]));

    let failed = [(3, "cat", "invoke {then:[{put:{key:a,value:x9}}]}"), (4, "cat", "fail {reason:unavailable}")];
    convicts("G1a", &after(&[&put(1), &failed], &[GET_A, got("ok {results:[{got:{value:x9}}]}")]));
    let twice = [
        (3, "cat", "invoke {then:[{put:{key:a,value:x9}},{put:{key:a,value:y1}}]}"),
        (4, "cat", "ok {results:[{put:{}},{put:{}}]}"),
    ];
    convicts("G1b", &after(&[&put(1), &twice], &[GET_A, got("ok {results:[{got:{value:x9}}]}")]));
    // A transaction of unknown outcome is known by its value.
    let unknown = [(3, "cat", "invoke {then:[{put:{key:a,value:x9}}]}"), (4, "cat", "info {}")];
    acquits(&after(&[&put(1), &unknown], &[GET_A, got("ok {results:[{got:{value:x9}}]}")]));
}

#[test]
fn without_revisions_circles_of_dependencies_are_found() {
    convicts(
        "G1c",
        &[
            (1, "ann", "invoke {then:[{put:{key:a,value:x1}},{get:{key:b}}]}"),
            (1, "bob", "invoke {then:[{put:{key:b,value:y1}},{get:{key:a}}]}"),
            (5, "ann", "ok {results:[{put:{}},{got:{value:y1}}]}"),
            (6, "bob", "ok {results:[{put:{}},{got:{value:x1}}]}"),
        ],
    );
    convicts(
        "G-single (read skew)",
        &[
            (1, "ann", "invoke {then:[{put:{key:a,value:x1}},{put:{key:b,value:y1}}]}"),
            (1, "bob", "invoke {then:[{get:{key:a}},{get:{key:b}}]}"),
            (5, "ann", "ok {results:[{put:{}},{put:{}}]}"),
            (6, "bob", "ok {results:[{got:{value:x1}},{got:null}]}"),
        ],
    );
    convicts(
        "G2",
        &[
            (1, "ann", "invoke {then:[{get:{key:b}},{put:{key:a,value:x1}}]}"),
            (1, "bob", "invoke {then:[{get:{key:a}},{put:{key:b,value:y1}}]}"),
            (5, "ann", "ok {results:[{got:null},{put:{}}]}"),
            (6, "bob", "ok {results:[{got:null},{put:{}}]}"),
        ],
    );
    convicts(
        "G-single (lost update)",
        &[
            (1, "ann", "invoke {then:[{get:{key:a}},{put:{key:a,value:x1}}]}"),
            (1, "bob", "invoke {then:[{get:{key:a}},{put:{key:a,value:x2}}]}"),
            (5, "ann", "ok {results:[{got:null},{put:{}}]}"),
            (6, "bob", "ok {results:[{got:null},{put:{}}]}"),
        ],
    );
    // Each replaced what the other had put.
    convicts(
        "G0",
        &[
            (1, "ann", "invoke {compares:[{key:a,target:value,text:x2}],then:[{put:{key:a,value:x1}}]}"),
            (1, "bob", "invoke {compares:[{key:a,target:value,text:x1}],then:[{put:{key:a,value:x2}}]}"),
            (5, "ann", "ok {results:[{put:{}}]}"),
            (6, "bob", "ok {results:[{put:{}}]}"),
        ],
    );
}

#[test]
fn without_revisions_a_register_is_created_once_until_it_ends() {
    let create = |begin: u64, end: u64, process, value| {
        let compare = "compares:[{key:a,target:created,number:0}]";
        [
            (begin, process, format!("invoke {{{compare},then:[{{put:{{key:a,value:{value}}}}}]}}")),
            (end, process, "ok {results:[{put:{}}]}".to_owned()),
        ]
    };
    let delete = |begin: u64, end: u64| {
        [
            (begin, "cat", "invoke {then:[{delete:{key:a}}]}".to_owned()),
            (end, "cat", "ok {results:[{deleted:{}}]}".to_owned()),
        ]
    };
    let judged = |parts: &[&[(u64, &'static str, String)]]| {
        let mut events: Vec<_> = parts.iter().copied().flatten().collect();
        events.sort_by_key(|(at, ..)| *at);
        let events: Vec<_> = events.iter().map(|(at, process, event)| (*at, *process, &**event)).collect();
        anomalies(&events)
    };
    let is_lost_update =
        |found: &[String]| matches!(found, [one] if one.starts_with("G-single (lost update)") && one.contains("\"a\""));

    // What ends the register an hour later explains nothing.
    let hour = 3_600_000_000_000;
    let overlapping = [create(1, 5, "ann", "x1"), create(2, 6, "bob", "x2")];
    let found = judged(&[&overlapping[0], &overlapping[1], &delete(hour, hour + 1)]);
    assert!(is_lost_update(&found), "{found:#?}");

    // Nor does what ended an earlier value, or has certainly come before.
    let earlier = [create(1, 2, "dan", "x0"), delete(3, 4)];
    let later = [create(11, 15, "ann", "x1"), create(12, 16, "bob", "x2")];
    let found = judged(&[&earlier[0], &earlier[1], &later[0], &later[1]]);
    assert!(is_lost_update(&found), "{found:#?}");
    let found = judged(&[&earlier[0], &earlier[1], &create(11, 12, "ann", "x1"), &create(13, 14, "bob", "x2")]);
    assert!(is_lost_update(&found), "one after the other: {found:#?}");

    let none: [String; 0] = [];
    assert_eq!(judged(&[&earlier[0], &earlier[1], &later[0]]), none);

    let compare = "compares:[{key:a,target:created,number:0}],";
    for steps in ["get:{key:a}}", "get:{key:a}},{get:{key:a}}"] {
        let results = steps.replace("get:{key:a}", "got:null");
        for compare in [compare, ""] {
            let twice = [
                (11, "ann", format!("invoke {{{compare}then:[{{{steps},{{put:{{key:a,value:x1}}}}]}}")),
                (12, "ann", format!("ok {{results:[{{{results},{{put:{{}}}}]}}")),
            ];
            assert_eq!(judged(&[&earlier[0], &earlier[1], &twice]), none, "one that sees twice that it is absent");
        }
    }

    assert_eq!(judged(&[&overlapping[0], &overlapping[1], &delete(4, 9)]), none, "it may have come between");
    let unknown = [(3, "cat", "invoke {then:[{delete:{key:a}}]}".to_owned()), (4, "cat", "info {}".to_owned())];
    assert_eq!(judged(&[&overlapping[0], &overlapping[1], &unknown]), none, "it may have taken effect");
    let failed = [(3, "cat", unknown[0].2.clone()), (4, "cat", "fail {reason:unavailable}".to_owned())];
    assert!(is_lost_update(&judged(&[&overlapping[0], &overlapping[1], &failed])), "it has not");
}

#[test]
fn without_revisions_a_lease_that_may_be_over_explains_a_second_creation() {
    let create = |at: u64, process, value: &str, lease: &str| {
        let put = format!("{{put:{{key:a,value:{value}{lease}}}}}");
        [
            (at, process, format!("invoke {{compares:[{{key:a,target:created,number:0}}],then:[{put}]}}")),
            (at + 1, process, "ok {results:[{put:{}}]}".to_owned()),
        ]
    };
    let judged = |second_at: u64| {
        let opened = [(1, "ann", "open invoke {session:s1,ttl_ms:1}".to_owned()), (2, "ann", "open ok {}".to_owned())];
        let parts = [opened, create(3, "ann", "x1", ",lease:s1"), create(second_at, "bob", "x2", "")];
        let events: Vec<_> = parts.iter().flatten().map(|(at, process, event)| (*at, *process, &**event)).collect();
        anomalies(&events)
    };
    assert_eq!(judged(1_000_000), Vec::<String>::new(), "the lease may be over by the answer");
    let found = judged(900_000);
    assert!(matches!(&*found, [one] if one.starts_with("G-single (lost update)")), "{found:#?}");
}

#[test]
fn without_revisions_a_value_of_several_writers_is_not_judged_as_if_it_held() {
    let twice = [
        (1, "ann", "invoke {then:[{put:{key:a,value:x1}}]}"),
        (2, "ann", "ok {results:[{put:{}}]}"),
        (3, "bob", "invoke {then:[{put:{key:a,value:x1}}]}"),
        (4, "bob", "ok {results:[{put:{}}]}"),
    ];
    acquits(&twice);
    let read = (11, "bob", "ok {results:[{got:{value:x1}}]}");
    let found = verdict(Property::Serializability, r#"{"format":1}"#, &after(&[&twice], &[GET_A, read]));
    assert!(matches!(&found, Verdict::Undecided(why) if why.contains("\"a\" was read \"x1\"")), "{found:?}");
}

#[test]
fn without_revisions_a_value_of_both_branches_has_one_writer() {
    let put = "[{put:{key:a,value:x1}}]";
    let both = format!("invoke {{compares:[{{key:b,target:value,text:y1}}],then:{put},otherwise:{put}}}");
    let unknown = [(1, "ann", &*both), (2, "ann", "info {}")];
    let read = [GET_A, (11, "bob", "ok {results:[{got:{value:x1}}]}")];
    acquits(&[unknown[0], unknown[1], read[0], read[1]]);

    // It is known that the transaction took effect: so a read that began after that, and missed it, is stale.
    let missed = [(12, "cat", GET_A.2), (13, "cat", "ok {results:[{got:null}]}")];
    let found = anomalies(&[unknown[0], unknown[1], read[0], read[1], missed[0], missed[1]]);
    assert!(matches!(&*found, [one] if one.starts_with("stale read")), "{found:#?}");
}

const WATCHING: (u64, &str, &str) = (0, "eve", "fact watching {watch:w1,range:{from:a,to:c},after:0}");

fn watched(events: &[(u64, &str, &str)]) -> Vec<String> {
    violations(Property::Watches, events)
}

fn convicts_watch(name: &str, events: &[(u64, &str, &str)]) {
    let found = watched(events);
    assert!(matches!(&*found, [one] if one.starts_with(name)), "not one {name}, but {found:#?}");
}

#[test]
fn a_watch_reports_each_change_once_and_in_order() {
    let first = (20, "eve", "fact watched {watch:w1,revision:5,changes:[{key:a,now:{value:x1}}]}");
    let second = (21, "eve", "fact watched {watch:w1,revision:6,changes:[{key:a,now:{value:x2}}]}");
    let later = (21, "eve", second.2);
    let late = |event: (u64, &'static str, &'static str)| (22, event.1, event.2);
    let story = |more: &[(u64, &'static str, &'static str)]| after(&[&[WATCHING], &PUT_A, &PUT_A_AGAIN], more);

    assert_eq!(watched(&story(&[first, second])), Vec::<String>::new());
    convicts_watch(
        "gap",
        &story(&[(20, "eve", "fact watched {watch:w1,revision:6,changes:[{key:a,now:{value:x2}}]}")]),
    );
    convicts_watch("repetition", &story(&[first, later, late(second)]));
    let found = watched(&story(&[(20, "eve", second.2), (21, "eve", first.2)]));
    assert!(matches!(&*found, [one] if one.starts_with("reordering")), "{found:?}");
    let claim = (21, "eve", "fact watch_progress {watch:w1,revision:6}");
    convicts_watch("gap", &story(&[first, claim]));
    convicts_watch("reordering", &story(&[first, claim, late(second)]));
    let outside = (20, "eve", "fact watched {watch:w1,revision:7,changes:[{key:d,now:{value:x1}}]}");
    convicts_watch("watch \"w1\" reported \"d\"", &story(&[first, second, (22, "eve", outside.2)]));
    let deleted = (22, "eve", "fact watched {watch:w1,revision:7,changes:[{key:a}]}");
    convicts_watch("watch \"w1\" reported that \"a\" was deleted", &story(&[first, second, deleted]));
    let put_as_deleted = (20, "eve", "fact watched {watch:w1,revision:5,changes:[{key:a}]}");
    convicts_watch("dirty update: watch \"w1\" reported that \"a\" was deleted", &story(&[put_as_deleted, second]));
    // What another watch saw is as good as an answer.
    let other = (0, "fay", "fact watching {watch:w2,range:{},after:0}");
    let unanswered = (1, "ann", "invoke {then:[{put:{key:a,value:x1}}]}");
    let seen = (21, "fay", "fact watched {watch:w2,revision:5,changes:[{key:a,now:{value:x1}}]}");
    let told = after(&[&[WATCHING, other, unanswered]], &[put_as_deleted, seen]);
    convicts_watch("dirty update: watch \"w1\" reported that \"a\" was deleted", &told);
}

#[test]
fn a_watch_goes_on_to_the_end_of_the_run() {
    let first = (20, "eve", "fact watched {watch:w1,revision:5,changes:[{key:a,now:{value:x1}}]}");
    let story =
        |more: &[(u64, &'static str, &'static str)]| after(&[&[WATCHING], &PUT_A, &PUT_A_AGAIN, &[first]], more);
    convicts_watch("gap: watch \"w1\" had not reported", &story(&[(2_000_000, "nemesis", "fact end")]));
    assert_eq!(watched(&story(&[(900_000, "nemesis", "fact end")])), Vec::<String>::new());
    let ended = (30, "eve", "fact watch_ended {watch:w1,why:closed}");
    assert_eq!(watched(&story(&[ended, (2_000_000, "nemesis", "fact end")])), Vec::<String>::new());
    let fault = [(30, "nemesis", "fact fault {name:cut}"), (1_900_000, "nemesis", "fact heal {}")];
    assert_eq!(watched(&story(&[fault[0], fault[1], (2_000_000, "nemesis", "fact end")])), Vec::<String>::new());

    // Without a bound nobody knows whether it goes on: an hour of silence is no evidence that it holds.
    let late = story(&[(3_600_000_000_000, "nemesis", "fact end")]);
    let unbounded = |events: &[(u64, &str, &str)]| verdict(Property::Watches, r#"{"format":1}"#, events);
    assert_eq!(unbounded(&late), Verdict::Undecided("the meta promises no watch_bound_ms".to_owned()));
    assert_eq!(unbounded(&story(&[ended, (2_000_000, "nemesis", "fact end")])), Verdict::Holds);
    let second = (21, "eve", "fact watched {watch:w1,revision:6,changes:[{key:a,now:{value:x2}}]}");
    assert_eq!(unbounded(&story(&[second, (2_000_000, "nemesis", "fact end")])), Verdict::Holds);
}

#[test]
fn a_watch_has_its_bound_for_what_came_before_it_and_keeps_it_until_it_ends() {
    let began = (1_900_000, "eve", "fact watching {watch:w1,range:{from:a,to:c},after:0}");
    let first = (1_900_001, "eve", "fact watched {watch:w1,revision:5,changes:[{key:a,now:{value:x1}}]}");
    let story = |more: &[(u64, &'static str, &'static str)]| after(&[&PUT_A, &PUT_A_AGAIN, &[began, first]], more);
    assert_eq!(watched(&story(&[(2_000_000, "nemesis", "fact end")])), Vec::<String>::new());
    convicts_watch("gap: watch \"w1\" had not reported", &story(&[(2_900_001, "nemesis", "fact end")]));
    // It was there for long enough, whatever ended it then.
    let ended = (2_900_001, "eve", "fact watch_ended {watch:w1,why:closed}");
    convicts_watch("gap: watch \"w1\" had not reported", &story(&[ended, (2_900_002, "nemesis", "fact end")]));
}

#[test]
fn a_watch_reports_the_end_of_a_lease() {
    let ended = (1_000_100, "eve", "fact watched {watch:w1,revision:7,changes:[{key:a}]}");
    let put = (20, "eve", "fact watched {watch:w1,revision:5,changes:[{key:a,now:{value:x1}}]}");
    assert_eq!(watched(&after(&[&[WATCHING], &LEASED], &[put, ended])), Vec::<String>::new());
    let early = (900_000, "eve", ended.2);
    let early = violations(Property::NoEarlyExpiry, &after(&[&[WATCHING], &LEASED], &[put, early]));
    assert!(matches!(&*early, [one] if one.starts_with("register \"a\" was absent")), "{early:?}");
    // What one watch has seen, the others must not leave out.
    let other = (0, "fay", "fact watching {watch:w2,range:{},after:0}");
    let lacks = [
        (1_000_101, "fay", "fact watched {watch:w2,revision:5,changes:[{key:a,now:{value:x1}}]}"),
        (1_000_102, "fay", "fact watch_progress {watch:w2,revision:8}"),
    ];
    convicts_watch("gap: watch \"w2\"", &after(&[&[WATCHING, other], &LEASED, &[put, ended]], &lacks));
}
