//! Operations as JSON lines with the fields of porcupine's `Operation`.
//!
//! `Return` of an operation without an answer is the largest time: porcupine then lets it take effect at any later moment, or after all
//! others, where nobody sees it.

use serde::Serialize;

use super::{ExportedOperation, objects::ExportedStep, processes};

/// The name of the fields is porcupine's.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct PorcupineOperation {
    client_id: usize,
    input: PorcupineInput,
    call: u64,
    output: PorcupineOutput,
    r#return: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum PorcupineFunction {
    Read,
    Cas,
}

#[derive(Serialize)]
struct PorcupineInput {
    f: PorcupineFunction,
    from: Option<i128>,
    to: Option<i128>,
}

#[derive(Serialize)]
struct PorcupineOutput {
    /// Whether the outcome is known.
    known: bool,
    /// Whether the register was set, or the value that was read.
    ok: bool,
    value: Option<i128>,
}

pub(super) fn operations(operations: &[ExportedOperation]) -> String {
    let spans: Vec<_> = operations.iter().map(|operation| (operation.begin_ns, operation.end_ns)).collect();
    let mut text = String::new();
    for (ExportedOperation { step, begin_ns, end_ns }, client_id) in operations.iter().zip(processes(&spans)) {
        let (f, from, to, ok, value) = match *step {
            ExportedStep::Read(value) => (PorcupineFunction::Read, None, None, true, value),
            ExportedStep::Set(from, to) => (PorcupineFunction::Cas, from, to, true, None),
            ExportedStep::Refused(from, to) => (PorcupineFunction::Cas, from, to, false, None),
        };

        let operation = PorcupineOperation {
            client_id,
            input: PorcupineInput { f, from, to },
            call: *begin_ns,
            output: PorcupineOutput { known: end_ns.is_some(), ok, value },
            // Go's times are signed.
            r#return: end_ns.unwrap_or(i64::MAX.unsigned_abs()),
        };

        text.push_str(&serde_json::to_string(&operation).expect("it has no map whose keys are not strings"));
        text.push('\n');
    }
    text
}
