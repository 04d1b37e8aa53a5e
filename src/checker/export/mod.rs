//! Histories in the forms of other checkers, so that nobody has to believe this one.
//!
//! * [`ExportForm::Jepsen`]: EDN as Jepsen writes it, one operation map a line, for Knossos and Elle (by `elle-cli`).
//! * [`ExportForm::Porcupine`]: JSON lines with the fields of porcupine's `Operation`.
//!
//! Each lock and each register is a file of its own, as a register with compare-and-set: what is linearizable is so object by object, and a
//! search takes exponential time. All transactions are one file, whose reads and writes are Elle's `rw-register`.
//!
//! A lock's value is the token of its holder, and nothing while it is free. An acquire sets it from nothing to a token, a release from the
//! token to nothing. A lease that may be over is an operation without an answer that does the same from then on, or never. So a checker
//! that knows no leases finds two holders.
//!
//! What has no place in these models is left out: locks with shared holders or permits, waits, refusals, ranges that a limit cut off,
//! reads of the past, and registers of transactions that are deleted or have leases (Elle knows no absence after a write).

mod jepsen;
mod objects;
mod porcupine;
#[cfg(test)]
mod tests;
mod transactions;

use std::str::FromStr;

use self::objects::{ExportedObject, ExportedOperation, objects};
use super::{
    grants::Grants,
    history::{History, ReadError},
    run::Run,
};

/// A form of histories that another checker reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExportForm {
    /// Jepsen's EDN.
    Jepsen,
    /// Operations for porcupine, as JSON lines.
    Porcupine,
}

/// One file of an exported history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportedFile {
    /// The name of the file.
    pub name: String,
    /// Its text.
    pub text: String,
    /// The model by which it is to be checked: `cas-register` or `rw-register`.
    pub model: &'static str,
    /// What it is about, for people: a lock, a register, or all transactions.
    pub about: String,
    /// Number of operations in it.
    pub operations: usize,
}

impl FromStr for ExportForm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "jepsen" => Ok(Self::Jepsen),
            "porcupine" => Ok(Self::Porcupine),
            other => Err(format!("unknown form of export: {other:?}; choose jepsen or porcupine")),
        }
    }
}

/// Exports a history. Objects without operations that have a place in the models make no file.
///
/// Porcupine has no model of transactions, so its form leaves them out.
///
/// Fails as [`super::check`] does, on a contradictory history that was built in memory.
pub fn export(history: &History, form: ExportForm) -> Result<Vec<ExportedFile>, ReadError> {
    let run = Run::from_history(history)?;
    let grants = Grants::from_run(&run);
    let mut files = Vec::new();
    for (place, object) in objects(&run, &grants).iter().enumerate() {
        let ExportedObject { kind, name, operations } = object;
        let (extension, text) = match form {
            ExportForm::Jepsen => ("edn", jepsen::registers(operations)),
            ExportForm::Porcupine => ("jsonl", porcupine::operations(operations)),
        };
        files.push(ExportedFile {
            name: format!("{kind}-{:04}.{extension}", place + 1),
            text,
            model: "cas-register",
            about: format!("{kind} {name:?}"),
            operations: operations.len(),
        });
    }

    let transactions = transactions::transactions(&run);
    if form == ExportForm::Jepsen && !transactions.is_empty() {
        files.push(ExportedFile {
            name: "transactions.edn".to_owned(),
            text: jepsen::transactions(&transactions),
            model: "rw-register",
            about: "all transactions".to_owned(),
            operations: transactions.len(),
        });
    }
    Ok(files)
}

/// Gives each operation a number as its process. A process has one operation at a time, and none after one without an answer.
fn processes(spans: &[(u64, Option<u64>)]) -> Vec<usize> {
    let mut order: Vec<_> = (0..spans.len()).collect();
    order.sort_by_key(|place| spans[*place].0);

    // The moment from which each process is free, if it ever is.
    let mut free: Vec<Option<u64>> = Vec::new();
    let mut numbers = vec![0; spans.len()];
    for place in order {
        let (begin_ns, end_ns) = spans[place];
        let known = free.iter().position(|free_ns| free_ns.is_some_and(|free_ns| free_ns < begin_ns));
        let number = known.unwrap_or(free.len());
        if known.is_some() {
            free[number] = end_ns;
        } else {
            free.push(end_ns);
        }
        numbers[place] = number;
    }
    numbers
}
