//! Whether a run had enough activity to prove anything.
//!
//! The verdict of a property tells whether it had evidence. This module is about the run as a whole.

use crate::report::Summary;

/// The activities that did not occur, although a meaningful run has them all.
pub fn missing(summary: &Summary) -> Vec<&'static str> {
    let counts = [
        (summary.grants, "no lock was granted"),
        (summary.hand_overs, "no lock passed from one session to another"),
        (summary.expiries, "no session expired"),
        (summary.elections, "no election was seen"),
        (summary.faults.len(), "there was no fault"),
    ];
    counts.iter().filter(|(count, _)| *count == 0).map(|(_, what)| *what).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        history::History,
        report::{About, Report},
    };

    #[test]
    fn a_run_without_anything_says_what_is_missing() {
        let text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1}}
{"time_ns":1,"process":"a","type":"invoke","f":"open","value":{"session":"s","ttl_ms":9000}}
{"time_ns":1,"process":"a","type":"ok","f":"open","value":{"ttl_ms":9000}}
{"time_ns":1,"process":"b","type":"invoke","f":"open","value":{"session":"t","ttl_ms":9000}}
{"time_ns":1,"process":"b","type":"ok","f":"open","value":{"ttl_ms":9000}}
{"time_ns":1,"process":"a","type":"invoke","f":"acquire","lock":"x","value":{"session":"s"}}
{"time_ns":2,"process":"a","type":"ok","f":"acquire","value":{"token":1}}
{"time_ns":3,"process":"b","type":"invoke","f":"acquire","lock":"x","value":{"session":"t"}}
{"time_ns":9000000004,"process":"b","type":"ok","f":"acquire","value":{"token":2}}
{"time_ns":9000000005,"process":"nemesis","type":"info","f":"fault","value":{"name":"delay"}}"#;
        let history = History::read(text.as_bytes()).unwrap();
        let report = Report::of(&history, About::default(), Vec::new()).unwrap();
        assert_eq!(missing(report.summary()), ["no election was seen"]);
        assert!(missing(&Summary::default()).len() == 5);
    }
}
