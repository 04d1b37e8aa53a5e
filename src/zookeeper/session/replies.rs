//! What writes answer.

use super::RequestAnswer;
use crate::{
    tree::{PlannedStat, ZnodePath},
    wire::{ErrorCode, JuteWriter, Opcode, WriteOperation},
    writes::{WriteOutcome, WriteResult},
};

/// The answer to a write or a multi.
pub(super) fn answer(outcome: WriteOutcome, requests: &[WriteOperation], is_multi: bool) -> RequestAnswer {
    match outcome {
        WriteOutcome::SessionOver { revision } => RequestAnswer::new(revision, Err(ErrorCode::SessionExpired)).last(),
        WriteOutcome::SessionMoved { revision } => RequestAnswer::new(revision, Err(ErrorCode::SessionMoved)).last(),

        WriteOutcome::Failed { revision, operation, code } if is_multi => {
            RequestAnswer::new(revision, Ok(failed_multi(operation, code, requests.len())))
        }
        WriteOutcome::Failed { revision, code, .. } => RequestAnswer::new(revision, Err(code)),
        WriteOutcome::Done { revision, created, results } => {
            let writer = ResultWriter { revision, created: &created };
            let body = if is_multi { writer.multi(requests, &results) } else { writer.single(requests, &results) };
            RequestAnswer::new(revision, Ok(body))
        }
    }
}

/// The answer to requests that the store has refused as a whole.
pub(super) fn refuse(revision: u64, code: ErrorCode, count: usize, is_multi: bool) -> RequestAnswer {
    let result = if is_multi { Ok(failed_multi(0, code, count)) } else { Err(code) };
    RequestAnswer::new(revision, result)
}

/// The results of a multi that failed: 0 for what stands before the request that failed, its own code, and -2 for what follows.
fn failed_multi(operation: usize, code: ErrorCode, count: usize) -> Vec<u8> {
    let mut body = JuteWriter::default();
    for index in 0..count {
        let error = match index.cmp(&operation) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => code.number(),
            std::cmp::Ordering::Greater => ErrorCode::RuntimeInconsistency.number(),
        };
        body.multi_error(error);
    }
    body.multi_header(Opcode::NONE, true, -1);
    body.into_bytes()
}

/// Writes results, now that their revision is known.
struct ResultWriter<'a> {
    revision: u64,
    /// The keys of children that the store named, by the index of their write.
    created: &'a [Option<Vec<u8>>],
}

impl ResultWriter<'_> {
    fn single(&self, requests: &[WriteOperation], results: &[WriteResult]) -> Vec<u8> {
        let mut body = JuteWriter::default();

        if let (Some(request), Some(result)) = (requests.first(), results.first()) {
            match result {
                WriteResult::Created { write, path, stat } => {
                    body.string(&self.path(*write, path.as_ref()));
                    if opcode(request) != Opcode::CREATE {
                        self.stat(stat, &mut body);
                    }
                }
                WriteResult::Written(stat) => self.stat(stat, &mut body),
                WriteResult::Deleted | WriteResult::Checked => {}
            }
        }
        body.into_bytes()
    }

    fn multi(&self, requests: &[WriteOperation], results: &[WriteResult]) -> Vec<u8> {
        let mut body = JuteWriter::default();
        for (request, result) in requests.iter().zip(results) {
            let opcode = multi_opcode(request);

            body.multi_header(opcode, false, 0);
            match result {
                WriteResult::Created { write, path, stat } => {
                    body.string(&self.path(*write, path.as_ref()));
                    if opcode == Opcode::CREATE_WITH_STAT {
                        self.stat(stat, &mut body);
                    }
                }
                WriteResult::Written(stat) => self.stat(stat, &mut body),
                WriteResult::Deleted | WriteResult::Checked => {}
            }
        }
        body.multi_header(Opcode::NONE, true, -1);
        body.into_bytes()
    }

    fn stat(&self, stat: &PlannedStat, body: &mut JuteWriter) {
        stat.at(self.revision).write(body);
    }

    /// The path of a node that was made.
    fn path(&self, write: usize, path: Option<&ZnodePath>) -> String {
        if let Some(path) = path {
            return path.as_str().to_owned();
        }
        let key = self.created.get(write).and_then(Option::as_deref);
        let path = key.and_then(ZnodePath::from_key);
        path.expect("the store has named the child").as_str().to_owned()
    }
}

/// The operation of a request.
fn opcode(request: &WriteOperation) -> Opcode {
    match request {
        WriteOperation::Create(create) => create.opcode,
        WriteOperation::Delete { .. } => Opcode::DELETE,
        WriteOperation::SetData { .. } => Opcode::SET_DATA,
        WriteOperation::SetAcl { .. } => Opcode::SET_ACL,
        WriteOperation::Check { .. } => Opcode::CHECK,
    }
}

/// The operation that a result within a multi names. ZooKeeper answers a create that asks for a stat as one that does not, and the other
/// two as one that does.
fn multi_opcode(request: &WriteOperation) -> Opcode {
    match opcode(request) {
        Opcode::CREATE_WITH_STAT => Opcode::CREATE,
        Opcode::CREATE_CONTAINER | Opcode::CREATE_TTL => Opcode::CREATE_WITH_STAT,
        opcode => opcode,
    }
}
