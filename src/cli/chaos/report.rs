//! `lockkeeper chaos report` writes a report on a history.

use std::{
    fs::{self, File},
    io::{BufReader, ErrorKind},
    path::{Path, PathBuf},
};

use clap::{Args, ValueHint};

use super::super::{
    exit::{Exit, Failure},
    output::{Format, Output, print},
};
use crate::{
    chaos::{
        checker::check,
        history::{History, ReadError},
        report::{About, Report},
    },
    planted::VERSION,
};

/// Reports on a run: a summary, and a page with its timeline.
///
/// The page is one self-contained HTML file. It shows where a property is violated; `chaos check` also returns that as its
/// exit code, this command does not.
#[derive(Args, Debug)]
pub(super) struct ReportOf {
    /// The history: JSON lines
    #[arg(value_hint = ValueHint::FilePath)]
    history: PathBuf,
    /// File for the page
    #[arg(long, value_name = "FILE.html", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,
    /// The command that repeats the run, shown in the report
    #[arg(long = "command", value_name = "COMMAND")]
    repeat: Option<String>,
    #[command(flatten)]
    output: Output,
}

impl ReportOf {
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        let history = read(&self.history)?;
        let versions = vec![("lockkeeper".to_owned(), VERSION.to_owned())];
        let about = About { command: self.repeat.clone(), versions };

        let findings = check(&history).map_err(|error| unreadable(&self.history, &error))?;
        let findings = findings.into_iter().map(Into::into).collect();
        let report = Report::of(&history, about, findings).map_err(|error| unreadable(&self.history, &error))?;

        if let Some(out) = &self.out {
            fs::write(out, report.page()).map_err(|error| Failure::for_path(out, &error))?;
        }

        match self.output.output {
            Format::Text => print(&report.text())?,
            Format::Json => print(&format!("{}\n", report.document()))?,
        }
        Ok(Exit::Success)
    }
}

fn read(path: &Path) -> Result<History, Failure> {
    let file = File::open(path).map_err(|error| unreadable(path, &error.into()))?;
    History::read(BufReader::new(file)).map_err(|error| unreadable(path, &error))
}

/// A file that is missing or is not a history is an invalid argument.
fn unreadable(path: &Path, error: &ReadError) -> Failure {
    let exit = match error {
        ReadError::Io(error) if error.kind() != ErrorKind::NotFound => Exit::Error,
        ReadError::Io(_) | ReadError::Line { .. } => Exit::Usage,
    };
    Failure::new(exit, format_args!("{}: {error}", path.display()))
}
