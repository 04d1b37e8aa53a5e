//! `lockkeeper doctor` writes one page for a ticket, about this machine and the cluster as it is reached from here.
//!
//! Each remark is a fact with a judgement. What is not known is left out rather than guessed. Nothing is changed: the one file that is
//! written, to measure the disk, is removed.

mod certificates;
mod clock;
mod cluster;
mod machine;

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueHint};
use jiff::Timestamp;
use serde::Serialize;

use super::{
    ClusterArguments, Exit, Failure,
    output::{Format, Output, print, print_document},
};
use crate::planted::VERSION;

/// Examines this machine and the cluster, and prints one page for a ticket. Exit code 1: there is a problem.
///
/// Looks at the endpoints, the quorum, the names and dates in certificates, the clocks, the time that a disk needs to sync, and the limit
/// of file descriptors. Run it where a node runs to examine the node's machine, with the node's --data-dir; elsewhere it examines a
/// client's. Secrets are not printed.
#[derive(Args, Debug)]
pub(super) struct Doctor {
    /// Measure the disk of this directory: one small file is written, synced and removed
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    data_dir: PathBuf,
    /// Examine the certificates in this directory too, such as those of a node
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    certs: Option<PathBuf>,
    /// How long to wait for each node
    #[arg(long, value_parser = super::arguments::duration, default_value = "2s", value_name = "TIME")]
    node_timeout: Duration,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    cluster: ClusterArguments,
}

/// How a fact is judged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Urgency {
    Ok,
    /// Worth a look.
    Note,
    Problem,
}

/// A fact, and how it is judged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Remark {
    urgency: Urgency,
    text: String,
}

/// The remarks about one subject.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Chapter {
    subject: &'static str,
    remarks: Vec<Remark>,
}

/// The page.
#[derive(Debug, Serialize)]
struct DoctorReport {
    version: &'static str,
    host: String,
    at_unix_ms: i64,
    problems: usize,
    chapters: Vec<Chapter>,
}

impl Remark {
    fn ok(text: impl Into<String>) -> Self {
        Self { urgency: Urgency::Ok, text: text.into() }
    }

    fn note(text: impl Into<String>) -> Self {
        Self { urgency: Urgency::Note, text: text.into() }
    }

    fn problem(text: impl Into<String>) -> Self {
        Self { urgency: Urgency::Problem, text: text.into() }
    }
}

impl Doctor {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let (client, source) = self.cluster.quiet_client()?;
        let credentials = self.cluster.complete_credentials()?;
        let wall = clock::Wall::now();

        // The clocks are compared over the time that the rest takes.
        let examined = cluster::examine(&client, &source, self.node_timeout).await;
        let directory = self.data_dir.clone();
        let disk = tokio::task::spawn_blocking(move || machine::disk(&directory));
        let disk = disk.await.map_err(|error| Failure::new(Exit::Error, error))?;

        let chapters = vec![
            Chapter { subject: "endpoints", remarks: examined.endpoints },
            Chapter { subject: "cluster", remarks: examined.cluster },
            Chapter {
                subject: "certificates",
                remarks: certificates::examine(&credentials, self.certs.as_deref(), wall.seconds()),
            },
            Chapter { subject: "clock", remarks: clock::examine(wall, examined.clocks).await },
            Chapter { subject: "disk", remarks: disk },
            Chapter { subject: "descriptors", remarks: machine::descriptors() },
            Chapter { subject: "environment", remarks: machine::environment() },
        ];
        let problems = chapters.iter().flat_map(|chapter| &chapter.remarks);
        let problems = problems.filter(|remark| remark.urgency == Urgency::Problem).count();
        let report =
            DoctorReport { version: VERSION, host: machine::host(), at_unix_ms: wall.unix_ms(), problems, chapters };

        match self.output.output {
            Format::Text => print(&text(&report))?,
            Format::Json => print_document(&report)?,
        }
        Ok(if problems > 0 { Exit::Error } else { Exit::Success })
    }
}

fn text(report: &DoctorReport) -> String {
    let at = Timestamp::from_millisecond(report.at_unix_ms).map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    let at = at.unwrap_or_default();
    let mut text = format!("lockkeeper {} doctor, {at}\n{}\n", report.version, report.host);
    for Chapter { subject, remarks } in &report.chapters {
        text += &format!("\n{subject}\n");
        for Remark { urgency, text: fact } in remarks {
            let mark = match urgency {
                Urgency::Ok => "ok     ",
                Urgency::Note => "note   ",
                Urgency::Problem => "PROBLEM",
            };
            text += &format!("  {mark}  {fact}\n");
        }
    }

    let sum = match report.problems {
        0 => "no problem was found".to_owned(),
        1 => "1 problem was found".to_owned(),
        problems => format!("{problems} problems were found"),
    };
    text + &format!("\n{sum}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_each_fact_with_its_judgement() {
        let report = DoctorReport {
            version: "0.1.0",
            host: "vm, Linux 6.1".to_owned(),
            at_unix_ms: 1_000_000_000_000,
            problems: 1,
            chapters: vec![
                Chapter {
                    subject: "endpoints",
                    remarks: vec![Remark::ok("a:1 answers"), Remark::problem("b:1 is down")],
                },
                Chapter { subject: "clock", remarks: vec![Remark::note("it jumped")] },
            ],
        };
        let expected = "\
lockkeeper 0.1.0 doctor, 2001-09-09 01:46:40 UTC
vm, Linux 6.1

endpoints
  ok       a:1 answers
  PROBLEM  b:1 is down

clock
  note     it jumped

1 problem was found
";
        assert_eq!(text(&report), expected);
    }
}
