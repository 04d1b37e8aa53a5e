//! Reports on a run, for people: a summary, and a page that shows violations on a timeline.
//!
//! [`Report::text`] is for a terminal, [`Report::document`] (`report.json`) for programs, and [`Report::page`] (`report.html`) for a
//! browser: one self-contained file without network, server or framework. Its time axis runs from left to right. Faults shade all lanes.
//! Nodes, locks and clients have lanes with their leadership, tenures, waits and operations. Each violation links to its place.
//!
//! * `finding`: the findings of a checker;
//! * `leases`, `tenures`, `faults`: derived from the history;
//! * `summary`, `text`: counts;
//! * `timeline`, `packed`, `page`: the page's data, and the page.
//!
//! Bars show what *holders* could know: a tenure lasts from the answer to its acquire until its release was sent or the
//! session's deadline passed. Two overlapping bars of an exclusive lock are two concurrent holders.
//!
//! Deliberately absent: verdicts of its own; the checker's findings are an input, and a history without findings is
//! drawn the same way. Escaping at each place of use is absent too: names reach the page only as JSON in which `<`, `>`
//! and `&` are written as `\u003c`, `\u003e` and `\u0026`, and are shown only as text.

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
    finding::{ReportedFinding, ReportedVerdict, ReportedViolation},
    summary::{FaultCount, OperationCount, Summary},
};
use super::history::{History, ReadError, operations};

/// Information about a run that its history does not contain.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct About {
    /// The command that repeats the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The programs of the run with their versions.
    pub versions: Vec<(String, String)>,
}

/// A report in three forms.
#[derive(Clone, Debug)]
pub struct Report<'h> {
    history: &'h History,
    about: About,
    findings: Vec<ReportedFinding>,
    summary: Summary,
}

/// The contents of `report.json`. Fields are only ever added.
#[derive(Serialize)]
struct ReportDocument<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(flatten)]
    about: &'a About,
    summary: &'a Summary,
    findings: &'a [ReportedFinding],
}

impl<'h> Report<'h> {
    /// Makes a report of a history and of a checker's findings, which may be empty.
    ///
    /// Fails as [`operations`] does, on a contradictory history that was built in memory.
    ///
    /// ```
    /// use lockkeeper_checker::{history::History, report::{About, Report}};
    ///
    /// let text = r#"{"time_ns":0,"process":"nemesis","type":"info","f":"meta","value":{"format":1,"seed":7}}
    /// {"time_ns":1,"process":"ann","type":"invoke","f":"open","value":{"session":"s","ttl_ms":1000}}
    /// {"time_ns":2,"process":"ann","type":"ok","f":"open"}"#;
    /// let history = History::read(text.as_bytes())?;
    /// let report = Report::of(&history, About::default(), Vec::new())?;
    /// assert_eq!(report.summary().sessions, 1);
    /// assert!(report.page().starts_with("<!doctype html>"));
    /// # Ok::<_, lockkeeper_checker::history::ReadError>(())
    /// ```
    pub fn of(history: &'h History, about: About, findings: Vec<ReportedFinding>) -> Result<Self, ReadError> {
        let summary = Summary::from_history(history)?;
        Ok(Self { history, about, findings, summary })
    }

    /// The counts.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The text for a terminal: tables and violations. Ends with a line break.
    pub fn text(&self) -> String {
        text::text(self.history.meta().seed, &self.about, &self.summary, &self.findings)
    }

    /// The JSON document for programs, `report.json`.
    pub fn document(&self) -> String {
        serde_json::to_string_pretty(&self.as_document()).expect("it has no map whose keys are not strings")
    }

    /// The self-contained page for a browser, `report.html`.
    pub fn page(&self) -> String {
        let operations = operations(self.history).expect("it was told the same history before");
        page::page(&self.as_document(), &timeline::timeline(self.history, &operations))
    }

    fn as_document(&self) -> ReportDocument<'_> {
        let Self { history, about, findings, summary } = self;
        ReportDocument { seed: history.meta().seed, about, summary, findings }
    }
}
