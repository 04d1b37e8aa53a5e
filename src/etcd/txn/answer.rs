//! The answers to the operations of a branch that ran.
//!
//! All that they show is at hand when the transaction is committed: nothing is read here, and nothing can fail.

use std::{collections::BTreeMap, sync::Arc};

use lockkeeper_machine::{Committed, Entry, Key, Revision, Selected, TxnOperation, TxnResult};

use super::compile::{Branch, BranchStep, FormerEntry};
use crate::{
    header::{inner_header, key_value},
    proto::{
        etcdserverpb::{
            DeleteRangeResponse, PutResponse, RangeResponse, ResponseOp, TxnResponse, response_op::Response,
        },
        mvccpb::KeyValue,
    },
    range,
};

/// A branch that ran, and its results.
pub(super) struct BranchOutcome<'a> {
    pub(super) branch: &'a Branch<'a>,
    pub(super) committed: &'a Committed,
    /// What the branch has read of the past.
    pub(super) past: Vec<RangeResponse>,
    /// The entries that were read before the commit, those of [`Branch::former`] among them.
    pub(super) read_before: &'a BTreeMap<Key, Option<Arc<Entry>>>,
}

impl BranchOutcome<'_> {
    /// The revision of a branch that ran, and the answer.
    pub(super) fn answer(&self) -> (Revision, TxnResponse) {
        let Committed { revision, succeeded, .. } = *self.committed;
        (revision, TxnResponse { header: None, succeeded, responses: self.responses(&self.branch.steps) })
    }

    fn responses(&self, steps: &[BranchStep]) -> Vec<ResponseOp> {
        steps.iter().map(|step| ResponseOp { response: Some(self.response(step)) }).collect()
    }

    fn response(&self, step: &BranchStep) -> Response {
        let header = inner_header(self.committed.revision);

        match step {
            BranchStep::Past { place } => {
                let answer = self.past.get(*place).cloned().unwrap_or_default();
                Response::ResponseRange(RangeResponse { header, ..answer })
            }
            BranchStep::Range { place } => {
                let answer = range::answer(self.selected(*place));
                Response::ResponseRange(RangeResponse { header, ..answer })
            }
            BranchStep::Put { before } => {
                let prev_kv = self.former(before).pop();
                Response::ResponsePut(PutResponse { header, prev_kv })
            }
            BranchStep::Delete { place, before } => {
                let deleted = i64::try_from(self.deleted(*place)).unwrap_or(i64::MAX);
                // A deletion of what an earlier one has deleted has nothing to show.
                let prev_kvs = if deleted > 0 { self.former(before) } else { Vec::new() };
                Response::ResponseDeleteRange(DeleteRangeResponse { header, deleted, prev_kvs })
            }
            BranchStep::Txn { succeeded, steps } => {
                let responses = self.responses(steps);
                Response::ResponseTxn(TxnResponse { header, succeeded: *succeeded, responses })
            }
        }
    }

    /// The entries before a write.
    fn former(&self, before: &FormerEntry) -> Vec<KeyValue> {
        match before {
            FormerEntry::Unwanted => Vec::new(),
            FormerEntry::Operation(place) => self.shown(*place),
            // A transaction writes a key once, so the entry before the transaction is the one before the write.
            FormerEntry::ReadBefore(key) => {
                let entry = self.read_before.get(key).and_then(Option::as_deref);
                entry.map(|entry| key_value(key, entry)).into_iter().collect()
            }
        }
    }

    /// What the operation at this place selected.
    fn selected(&self, place: usize) -> Selected {
        match self.committed.results.get(place) {
            Some(TxnResult::Selected(selected)) => selected.clone(),
            Some(TxnResult::Got(_) | TxnResult::Put | TxnResult::Expires(_)) => Selected::default(),
            Some(TxnResult::Deleted(_) | TxnResult::Opened(_) | TxnResult::PutChild(_)) => Selected::default(),
            None => Selected::default(),
        }
    }

    /// The entries that the operation at this place shows.
    fn shown(&self, place: usize) -> Vec<KeyValue> {
        match (self.branch.operations.get(place), self.committed.results.get(place)) {
            (Some(TxnOperation::Get(key)), Some(TxnResult::Got(Some(entry)))) => vec![key_value(key, entry)],
            (_, Some(TxnResult::Selected(selected))) => {
                selected.entries.iter().map(|(key, entry)| key_value(key, entry)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The number of keys that the operation at this place deleted.
    fn deleted(&self, place: usize) -> u64 {
        if let Some(TxnResult::Deleted(count)) = self.committed.results.get(place) { *count } else { 0 }
    }
}
