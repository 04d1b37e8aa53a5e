//! `lockkeeper chaos export` writes a history in the form of another checker.

use std::{
    fs::{self, File},
    io::BufReader,
    path::PathBuf,
};

use clap::Args;

use super::super::{Exit, Failure, output::print, show};
use crate::chaos::{
    checker::export::{ExportForm, export},
    history::History,
};

/// Writes a history in the form of another checker: `jepsen` (EDN, for Knossos and Elle) or `porcupine` (JSON lines). How those are run
/// says the page `tests/checkers.md` in Lockkeeper's repository.
#[derive(Args, Debug)]
#[command(after_help = "Example: lockkeeper chaos export history.jsonl --form jepsen --out edn")]
pub(super) struct Export {
    /// The history: JSON lines, as `lockkeeper::chaos::history` documents them
    history: PathBuf,
    /// The form: jepsen or porcupine
    #[arg(long)]
    form: ExportForm,
    /// The directory for the files: one for each lock and each register, one for all transactions, and index.txt. It must not exist yet
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
}

impl Export {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let name = self.history.display().to_string();
        let fail = |error: String| Failure::new(Exit::Usage, format!("{name}: {error}"));
        let file = File::open(&self.history).map_err(|error| fail(error.to_string()))?;
        let history = History::read(BufReader::new(file)).map_err(|error| fail(error.to_string()))?;
        let files = export(&history, self.form).map_err(|error| fail(error.to_string()))?;

        let out = self.out.display().to_string();
        let fail = |error: std::io::Error| Failure::new(Exit::Usage, format!("{out}: {error}"));
        fs::create_dir(&self.out).map_err(fail)?;
        let mut index = String::new();
        for file in &files {
            fs::write(self.out.join(&file.name), &file.text).map_err(fail)?;
            index.push_str(&format!("{}\t{}\t{}\t{}\n", file.name, file.model, file.operations, file.about));
        }

        fs::write(self.out.join("index.txt"), index).map_err(fail)?;
        let operations: usize = files.iter().map(|file| file.operations).sum();
        let count = show::count(files.len(), "file", "files");
        print(&format!("{out}: {count}, {}\n", show::count(operations, "operation", "operations")))?;
        Ok(Exit::Success)
    }
}
