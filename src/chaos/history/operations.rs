//! Which end belongs to which beginning.

use std::collections::HashMap;

use super::{Answer, Call, Event, Function, History, ReadError, What};

/// An operation: its beginning, and its end if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// Who does it.
    pub process: &'a str,
    /// Its number in the process.
    pub op: Option<u64>,
    /// The locks, as at its beginning.
    pub locks: &'a [String],
    /// What is asked for.
    pub call: &'a Call,
    /// When it began, nanoseconds: before it was sent.
    pub invoked_ns: u64,
    /// The line of that.
    pub invoked_line: usize,
    /// What became of it.
    pub ended: Ended<'a>,
    /// When that was known, nanoseconds. `u64::MAX`: it never was.
    pub ended_ns: u64,
    /// Until when its process listened for an answer, nanoseconds: also where it gave up then. `u64::MAX`: its end is not in the history.
    pub listened_ns: u64,
    /// The line of that; the line of the beginning if it has no end.
    pub ended_line: usize,
}

/// What became of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Ended<'a> {
    /// It did what it was to.
    Ok(&'a Answer),
    /// It certainly did not, for this reason.
    Fail(&'a str),
    /// Nobody knows: it may take effect at any later time, or never.
    Info,
    /// Its end is not in the history. As [`Ended::Info`].
    Open,
}

impl Operation<'_> {
    /// Its outcome is not known: it may take effect at any later time, or never.
    pub fn is_unknown(&self) -> bool {
        matches!(self.ended, Ended::Info | Ended::Open)
    }
}

/// All operations, in the order of their beginnings.
///
/// Fails where an end has no beginning, or one of another kind, and where a process begins two at once without numbers.
pub fn operations(history: &History) -> Result<Vec<Operation<'_>>, ReadError> {
    let mut operations = Vec::with_capacity(history.events.len() / 2);
    let mut open: HashMap<(&str, Option<u64>), usize> = HashMap::new();
    for (line, event) in &history.events {
        let who = (&*event.process, event.op);
        if let What::Invoke(call) = &event.what {
            if open.insert(who, operations.len()).is_some() {
                return Err(ReadError::line(
                    *line,
                    format!("{} begins {}, before another ended", name(event), call.function()),
                ));
            }
            operations.push(begun(*line, event, call));
            continue;
        }
        let Some((f, ended)) = end(&event.what) else { continue };
        let Some(place) = open.remove(&who) else {
            return Err(ReadError::line(*line, format!("{} ends {f}, and began nothing", name(event))));
        };
        let operation = &mut operations[place];
        if operation.call.function() != f {
            let what = format!("{} ends {f}, and began {}", name(event), operation.call.function());
            return Err(ReadError::line(*line, what));
        }
        (operation.ended, operation.ended_line) = (ended, *line);
        operation.listened_ns = event.time_ns;
        // An unknown outcome has no end in time.
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
