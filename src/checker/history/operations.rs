//! Pairs begins and ends of operations.

use std::collections::HashMap;

use super::{Answer, Call, Event, Function, History, ReadError, What};

/// An operation: its start, and its end if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// The process that executes it.
    pub process: &'a str,
    /// Its number in the process.
    pub op: Option<u64>,
    /// The locks, from its start.
    pub locks: &'a [String],
    /// The request.
    pub call: &'a Call,
    /// The time of its start in nanoseconds, before it was sent.
    pub invoked_ns: u64,
    /// The line of its start.
    pub invoked_line: usize,
    /// The outcome.
    pub ended: Ended<'a>,
    /// The time of the outcome in nanoseconds, or `u64::MAX` if the outcome is unknown.
    pub ended_ns: u64,
    /// The time in nanoseconds until which the process waited for an answer, even if it gave up then, or `u64::MAX` if the history has no
    /// end of the operation.
    pub listened_ns: u64,
    /// The line of the end or, without an end, of the start.
    pub ended_line: usize,
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Ended<'a> {
    /// The operation took effect.
    Ok(&'a Answer),
    /// The operation had no effect, for this reason.
    Fail(&'a str),
    /// The outcome is unknown: the operation may take effect at any later time, or never.
    Info,
    /// The history has no end of the operation. Its outcome is unknown, as with [`Ended::Info`].
    Open,
}

impl Operation<'_> {
    /// Whether the outcome is unknown: it may take effect at any later time, or never.
    pub fn is_unknown(&self) -> bool {
        matches!(self.ended, Ended::Info | Ended::Open)
    }
}

/// All operations, in the order of their starts.
///
/// Fails if an end has no start or the start of another operation, and if a process starts two concurrent operations without numbers.
pub fn operations(history: &History) -> Result<Vec<Operation<'_>>, ReadError> {
    let mut operations = Vec::with_capacity(history.events.len() / 2);
    let mut open: HashMap<(&str, Option<u64>), usize> = HashMap::new();
    for (line, event) in &history.events {
        let who = (&*event.process, event.op);

        if let What::Invoke(call) = &event.what {
            if open.insert(who, operations.len()).is_some() {
                let what = format!(
                    "{} begins {} before another operation without a number ended",
                    name(event),
                    call.function()
                );
                return Err(ReadError::line(*line, what));
            }
            operations.push(begun(*line, event, call));
            continue;
        }

        let Some((f, ended)) = end(&event.what) else { continue };
        let Some(place) = open.remove(&who) else {
            return Err(ReadError::line(*line, format!("{} ends {f} without a begin", name(event))));
        };

        let operation = &mut operations[place];
        if operation.call.function() != f {
            let what = format!("{} ends {f}, but its begin is {}", name(event), operation.call.function());
            return Err(ReadError::line(*line, what));
        }
        if let (Call::Txn(transaction), Ended::Ok(Answer::Txn(answer))) = (operation.call, ended) {
            transaction.validate_answer(answer).map_err(|what| ReadError::line(*line, what))?;
        }

        operation.ended = ended;
        operation.ended_line = *line;
        operation.listened_ns = event.time_ns;
        // An unknown outcome has no end time.
        operation.ended_ns = if operation.is_unknown() { u64::MAX } else { event.time_ns };
    }

    Ok(operations)
}

fn begun<'a>(line: usize, event: &'a Event, call: &'a Call) -> Operation<'a> {
    Operation {
        process: &event.process,
        op: event.op,
        locks: &event.locks,
        call,
        invoked_ns: event.time_ns,
        invoked_line: line,
        ended: Ended::Open,
        ended_ns: u64::MAX,
        listened_ns: u64::MAX,
        ended_line: line,
    }
}

fn end(what: &What) -> Option<(Function, Ended<'_>)> {
    match what {
        What::Invoke(_) | What::Fact(_) => None,
        What::Ok(answer) => Some((answer.function(), Ended::Ok(answer))),
        What::Fail { f, reason } => Some((*f, Ended::Fail(reason))),
        What::Info { f, .. } => Some((*f, Ended::Info)),
    }
}

fn name(event: &Event) -> String {
    match event.op {
        Some(op) => format!("{} (op {op})", event.process),
        None => event.process.clone(),
    }
}
