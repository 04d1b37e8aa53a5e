//! Jepsen's EDN: one operation map a line, in the order of time.
//!
//! The absence of a value is a number, too, which is below all others of its file and is written before anything else: Knossos accepts a
//! read of `nil` in every state, since with `nil` its histories say that the value is not known.

use std::fmt::Write as _;

use super::{
    ExportedOperation,
    objects::ExportedStep,
    processes,
    transactions::{ExportedTxn, MicroOperation},
};

/// A line to be written.
struct EdnLine {
    time_ns: u64,
    /// Ends come before starts of the same moment: a process may go on at once.
    is_start: bool,
    kind: &'static str,
    process: usize,
    f: &'static str,
    value: String,
}

pub(super) fn registers(operations: &[ExportedOperation]) -> String {
    let spans: Vec<_> = operations.iter().map(|operation| (operation.begin_ns, operation.end_ns)).collect();
    let absence = absence(operations);
    let number = |value: Option<i128>| value.unwrap_or(absence).to_string();
    let pair = |from, to| format!("[{} {}]", number(from), number(to));

    // It has begun and ended before the first operation, whose process goes on.
    let mut lines = Vec::new();
    push(&mut lines, (0, Some(0)), 0, "write", [absence.to_string(), absence.to_string()], "ok");
    for (operation, process) in operations.iter().zip(processes(&spans)) {
        let (f, asked, told, kind) = match operation.step {
            ExportedStep::Read(value) => ("read", "nil".to_owned(), number(value), "ok"),
            ExportedStep::Set(from, to) => ("cas", pair(from, to), pair(from, to), "ok"),
            ExportedStep::Refused(from, to) => ("cas", pair(from, to), pair(from, to), "fail"),
        };
        push(&mut lines, (operation.begin_ns, operation.end_ns), process, f, [asked, told], kind);
    }
    text(lines)
}

pub(super) fn transactions(transactions: &[ExportedTxn]) -> String {
    let spans: Vec<_> = transactions.iter().map(|txn| (txn.begin_ns, txn.end_ns)).collect();
    let mut lines = Vec::new();
    for (txn, process) in transactions.iter().zip(processes(&spans)) {
        let asked = micro_operations(&txn.operations, false);
        let told = micro_operations(&txn.operations, true);
        let kind = if txn.has_failed { "fail" } else { "ok" };
        push(&mut lines, (txn.begin_ns, txn.end_ns), process, "txn", [asked, told], kind);
    }
    text(lines)
}

fn push(
    lines: &mut Vec<EdnLine>,
    (begin_ns, end_ns): (u64, Option<u64>),
    process: usize,
    f: &'static str,
    [asked, told]: [String; 2],
    kind: &'static str,
) {
    // An operation that nobody answers is told to be without an outcome at its start. It may take effect at any later time.
    let (kind, told) = if end_ns.is_some() { (kind, told) } else { ("info", asked.clone()) };
    lines.push(EdnLine { time_ns: begin_ns, is_start: true, kind: "invoke", process, f, value: asked });

    // The end follows its start, whatever their times are.
    let time_ns = end_ns.unwrap_or(begin_ns);
    lines.push(EdnLine { time_ns, is_start: time_ns == begin_ns, kind, process, f, value: told });
}

fn text(mut lines: Vec<EdnLine>) -> String {
    lines.sort_by_key(|line| (line.time_ns, line.is_start));
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let EdnLine { time_ns, kind, process, f, value, .. } = line;
        let _ = writeln!(
            text,
            "{{:index {index}, :time {time_ns}, :type :{kind}, :process {process}, :f :{f}, :value {value}}}"
        );
    }
    text
}

/// A number that none of these operations has as a value, for a register without a value.
fn absence(operations: &[ExportedOperation]) -> i128 {
    let values = operations.iter().flat_map(|operation| match operation.step {
        ExportedStep::Read(value) => [value, None],
        ExportedStep::Set(from, to) | ExportedStep::Refused(from, to) => [from, to],
    });
    values.flatten().min().map_or(-1, |least| least.min(0) - 1)
}

/// The reads and writes of a transaction. What it read is not known when it starts.
fn micro_operations(operations: &[MicroOperation], is_told: bool) -> String {
    let micro = operations.iter().map(|operation| match operation {
        MicroOperation::Read { key, value } => {
            let value = value.filter(|_| is_told).map_or_else(|| "nil".to_owned(), |value| value.to_string());
            format!("[:r {key} {value}]")
        }
        MicroOperation::Write { key, value } => format!("[:w {key} {value}]"),
    });
    format!("[{}]", micro.collect::<Vec<_>>().join(" "))
}
