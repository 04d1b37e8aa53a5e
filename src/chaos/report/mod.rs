//! What a run was like, for people: a summary, and a page on which a violation can be *seen*.
//!
//! [`Report::text`] is for a terminal, [`Report::document`] (`report.json`) for programs, and [`Report::page`] (`report.html`) for
//! eyes: one file that needs nothing else, no network, no server, no framework. On it, time runs from left to right; faults shade all
//! lanes; nodes lead; locks are held and waited for; clients do their operations. Each verdict that a checker found leads to its place.
//!
//! * `finding`: what a checker hands over;
//! * `leases`, `tenures`, `faults`: the story that a history tells, sorted out;
//! * `summary`, `text`: how much of everything there was;
//! * `timeline`, `packed`, `page`: the page's data, and the page.
//!
//! Bars show what *holders* could know: a tenure lasts from the answer to its acquire until the release was sent or the session's
//! deadline passed. Two bars of an exclusive lock that overlap are two holders at once.
//!
//! What is deliberately absent: any judgement. That is the checker's, which is handed in; the same history without verdicts is drawn
//! just the same. And escaping by hand: names reach the page only as JSON in which `<`, `>` and `&` are written as `\u003c`, `\u003e`
//! and `\u0026`, and are shown only as text.

mod faults;
mod finding;
mod leases;
mod packed;
mod page;
mod summary;
mod tenures;
mod text;
mod timeline;

use serde::Serialize;

pub use self::{
    finding::{Finding, Verdict, Violation},
    summary::{FaultCount, OperationCount, Summary},
};
use super::history::{History, ReadError, operations};

/// What a history itself does not tell.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct About {
    /// The command that repeats the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// What was run, and in which version.
    pub versions: Vec<(String, String)>,
}

/// A history, told in three ways.
#[derive(Clone, Debug)]
pub struct Report<'h> {
    history: &'h History,
    about: About,
    findings: Vec<Finding>,
    summary: Summary,
}

/// `report.json`. Its fields only ever grow.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(flatten)]
    about: &'a About,
    summary: &'a Summary,
    findings: &'a [Finding],
}

impl<'h> Report<'h> {
    /// Of a history, and of what a checker found out about it: nothing, if none looked.
    ///
    /// Fails as [`operations`] does, on a history that was put together by hand and contradicts itself.
    ///
    /// ```
    /// use lockkeeper::chaos::{history::History, report::{About, Report}};
    ///
    /// let text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1,"seed":7}}
    /// {"time_ns":1,"process":"ann","type":"invoke","f":"open","value":{"session":"s","ttl_ms":1000}}
    /// {"time_ns":2,"process":"ann","type":"ok","f":"open"}"#;
    /// let history = History::read(text.as_bytes())?;
    /// let report = Report::of(&history, About::default(), Vec::new())?;
    /// assert_eq!(report.summary().sessions, 1);
    /// assert!(report.page().starts_with("<!doctype html>"));
    /// # Ok::<_, lockkeeper::chaos::history::ReadError>(())
    /// ```
    pub fn of(history: &'h History, about: About, findings: Vec<Finding>) -> Result<Self, ReadError> {
        let summary = Summary::of(history)?;
        Ok(Self { history, about, findings, summary })
    }

    /// How much of everything there was.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// For a terminal: tables, and what is wrong. Ends in a line break.
    pub fn text(&self) -> String {
        text::text(self.history.meta().seed, &self.about, &self.summary, &self.findings)
    }

    /// For programs: a JSON document, `report.json`.
    pub fn document(&self) -> String {
        serde_json::to_string_pretty(&self.as_document()).expect("it has no map whose keys are not strings")
    }

    /// For eyes: a page that stands alone, `report.html`.
    pub fn page(&self) -> String {
        let operations = operations(self.history).expect("it was told the same history before");
        page::page(&self.as_document(), &timeline::timeline(self.history, &operations))
    }

    fn as_document(&self) -> Document<'_> {
        let Self { history, about, findings, summary } = self;
        Document { seed: history.meta().seed, about, summary, findings }
    }
}
