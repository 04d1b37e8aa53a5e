//! `lockkeeper chaos check` checks histories.

use std::{fs::File, io::BufReader, path::PathBuf};

use clap::Args;
use serde::Serialize;

use super::super::{
    Exit, Failure,
    output::{Format, Output, print, print_document},
    show,
};
use crate::chaos::{
    checker::{Finding, Property, Verdict, Violation, check},
    history::History,
};

/// Checks histories: which properties hold, and which lines show a violation. Exit code 0: all hold; 30: one is
/// violated; 31: one is undecided, or there was no evidence for it.
#[derive(Args, Debug)]
pub(super) struct CheckHistories {
    /// Histories: JSON lines, as `lockkeeper::chaos::history` documents them; `-` is stdin
    #[arg(required = true, value_name = "HISTORY")]
    histories: Vec<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct HistoryReport {
    history: String,
    events: usize,
    findings: Vec<FindingReport>,
}

#[derive(Serialize)]
struct FindingReport {
    property: Property,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    evidence: Vec<EvidenceCount>,
    violation_count: u64,
    violations: Vec<Violation>,
}

#[derive(Serialize)]
struct EvidenceCount {
    what: &'static str,
    count: u64,
}

impl CheckHistories {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let mut worst = Worst::Holds;
        let mut documents = Vec::new();
        for (place, path) in self.histories.iter().enumerate() {
            let name = path.display().to_string();
            let fail = |error: String| Failure::new(Exit::Usage, format!("{name}: {error}"));

            let history = match name.as_str() {
                "-" => History::read(std::io::stdin().lock()),
                _ => History::read(BufReader::new(File::open(path).map_err(|error| fail(error.to_string()))?)),
            };
            let history = history.map_err(|error| fail(error.to_string()))?;
            let findings = check(&history).map_err(|error| fail(error.to_string()))?;

            worst = findings.iter().map(Worst::judge).fold(worst, Worst::max);
            match self.output.output {
                Format::Text => {
                    let gap = if place > 0 { "\n" } else { "" };
                    let events = show::count(history.events.len(), "event", "events");
                    print(&format!("{gap}{name}: {events}\n{}", text(&history, &findings)))?;
                }
                Format::Json => {
                    let findings = findings.into_iter().map(FindingReport::from).collect();
                    documents.push(HistoryReport { history: name, events: history.events.len(), findings });
                }
            }
        }

        if self.output.output == Format::Json {
            print_document(&documents)?;
        }
        Ok(worst.exit())
    }
}

/// The worst verdict of several.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Worst {
    Holds,
    Open,
    Violated,
}

impl Worst {
    pub(super) fn judge(finding: &Finding) -> Self {
        match finding.verdict {
            Verdict::Holds => Self::Holds,
            Verdict::Undecided(_) | Verdict::Vacuous => Self::Open,
            Verdict::Violated(_) => Self::Violated,
        }
    }

    pub(super) fn exit(self) -> Exit {
        match self {
            Self::Holds => Exit::Success,
            Self::Open => Exit::Undecided,
            Self::Violated => Exit::Violated,
        }
    }
}

/// One line per property, then each violation with its lines of the history.
fn text(history: &History, findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let verdict = match &finding.verdict {
            Verdict::Holds => "holds".to_owned(),
            Verdict::Violated(violations) if violations.count == 1 => "VIOLATED once".to_owned(),
            Verdict::Violated(violations) => format!("VIOLATED {} times", violations.count),
            Verdict::Undecided(why) => format!("undecided: {why}"),
            Verdict::Vacuous => "not tested: no evidence".to_owned(),
        };
        let counts: Vec<_> = finding.evidence.iter().map(|(what, count)| format!("{count} {what}")).collect();
        text.push_str(&format!("  {:<24}  {verdict} ({})\n", finding.name(), counts.join(", ")));
    }

    for Finding { verdict, .. } in findings {
        let Verdict::Violated(violations) = verdict else { continue };
        for violation in &violations.shown {
            text.push_str(&format!("\n{}: {}\n", violation.property, violation.says));
            for line in &violation.lines {
                text.push_str(&format!("{line:>7}  {}\n", history.line(*line).unwrap_or_default()));
            }
        }

        let more = violations.count - violations.shown.len() as u64;
        if more > 0 {
            text.push_str(&format!("\nand {more} more of this kind\n"));
        }
    }
    text
}

impl From<Finding> for FindingReport {
    fn from(finding: Finding) -> Self {
        let (verdict, why, violations) = match finding.verdict {
            Verdict::Holds => ("holds", None, None),
            Verdict::Violated(violations) => ("violated", None, Some(violations)),
            Verdict::Undecided(why) => ("undecided", Some(why), None),
            Verdict::Vacuous => ("vacuous", None, None),
        };

        let violations = violations.unwrap_or_default();
        Self {
            property: finding.property,
            protocol: finding.protocol,
            verdict,
            why,
            evidence: finding.evidence.into_iter().map(|(what, count)| EvidenceCount { what, count }).collect(),
            violation_count: violations.count,
            violations: violations.shown,
        }
    }
}
