//! Commits plans until one is judged by the state that it was made for.

use std::collections::HashMap;

use tokio::time::{Duration, Instant, sleep};

use super::plan::{Planner, WritePlan, WriteResult};
use crate::{
    NumberedSession, TxnRefusal, WriteRefusal, ZookeeperCaller, ZookeeperCommitted, ZookeeperEntry, ZookeeperStore,
    ZookeeperStoreError, ZookeeperTxn, ZookeeperWrite,
    tree::{ClientIdentities, ZnodePath, ZnodeValue},
    wire::{ErrorCode, WriteOperation},
};

/// Plans that are made at once; further ones wait a little, since others write the same nodes.
const AT_ONCE: u32 = 8;
/// The longest of these waits.
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// Who writes.
pub(crate) struct WriteContext<'a, S> {
    /// The store.
    pub(crate) store: &'a S,
    /// The client, and its deadline.
    pub(crate) caller: &'a ZookeeperCaller,
    /// Its session.
    pub(crate) attached: NumberedSession,
    /// What it may do.
    pub(crate) identities: &'a ClientIdentities,
    /// The time, in milliseconds since 1970.
    pub(crate) wall_ms: i64,
}

impl<S> WriteContext<'_, S> {
    pub(super) fn planner(&self) -> Planner<'_> {
        Planner { identities: self.identities, session: self.attached.session, wall_ms: self.wall_ms }
    }
}

/// What became of requests.
#[derive(Debug)]
pub(crate) enum WriteOutcome {
    /// All are done, in this revision.
    Done {
        /// The revision.
        revision: u64,
        /// The keys of the children that the store named, by the index of their write.
        created: Vec<Option<Vec<u8>>>,
        /// The results, in the order of the requests.
        results: Vec<WriteResult>,
    },
    /// None is done, because this request cannot be.
    Failed {
        /// The revision of the state in which it cannot be.
        revision: u64,
        /// The index of the request.
        operation: usize,
        /// Why.
        code: ErrorCode,
    },
    /// The session is over.
    SessionOver { revision: u64 },
    /// Another connection has the session.
    SessionMoved { revision: u64 },
}

/// Does requests, all or none. Fails as the store does, or when others have written the same nodes for as long as the caller waits.
/// Dropping the future abandons it: what it does may still take effect.
pub(crate) async fn execute<S: ZookeeperStore>(
    context: &WriteContext<'_, S>,
    requests: &[WriteOperation],
) -> Result<WriteOutcome, ZookeeperStoreError> {
    let planner = context.planner();
    // What a refusal has shown is newer than what this node has applied.
    let mut shown: HashMap<Vec<u8>, Option<ZookeeperEntry>> = HashMap::new();
    // A multi may read nodes that have more bytes together than the store shows in one refusal.
    let mut asks_for_found = true;
    let mut pause = Duration::from_millis(1);

    for attempt in 1_u32.. {
        let mut plan = context.store.applied(|applied| {
            let get = |key: &[u8]| shown.get(key).cloned().unwrap_or_else(|| applied.get(key));
            WritePlan::make(&planner, requests, &get)
        });
        let mut txn = std::mem::take(&mut plan.txn);
        if !asks_for_found {
            txn.otherwise_get.clear();
        }
        let keys = txn.otherwise_get.clone();

        match context.store.commit(context.caller, Some(context.attached), txn).await {
            // Either the transaction or the entries in its refusal are too large. It is tried again without these entries.
            Err(ZookeeperStoreError::TooLarge(_)) if asks_for_found => asks_for_found = false,
            Err(failure) => return Err(failure),
            Ok(verdict) => match judge(plan, verdict) {
                PlanJudgement::Ended(outcome) => return Ok(outcome),
                PlanJudgement::Again(found) if asks_for_found => shown.extend(keys.into_iter().zip(found)),
                PlanJudgement::Again(_) => {
                    // The state of the refusal comes to this node.
                    context.store.catch_up(context.caller).await?;
                    shown.clear();
                }
            },
        }

        if Instant::now() >= context.caller.deadline {
            break;
        }
        if attempt > AT_ONCE {
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
    let why = "others have written the same nodes for as long as this request may take; send it again";
    Err(ZookeeperStoreError::NotExecuted(why.to_owned()))
}

/// What a verdict means for a plan.
pub(super) enum PlanJudgement {
    Ended(WriteOutcome),
    /// The plan was made for another state; these are the entries that it has read, as they are now.
    Again(Vec<Option<ZookeeperEntry>>),
}

pub(super) fn judge(plan: WritePlan, verdict: ZookeeperCommitted) -> PlanJudgement {
    let ZookeeperCommitted { revision, created, refusal, found } = verdict;
    let failed = |operation, code| PlanJudgement::Ended(WriteOutcome::Failed { revision, operation, code });

    match refusal {
        Some(TxnRefusal::Condition(_)) => PlanJudgement::Again(found),
        Some(TxnRefusal::SessionOver) => PlanJudgement::Ended(WriteOutcome::SessionOver { revision }),
        Some(TxnRefusal::SessionMoved) => PlanJudgement::Ended(WriteOutcome::SessionMoved { revision }),
        Some(TxnRefusal::Write { index, reason }) => match (plan.operations.get(index), plan.failure) {
            (Some(operation), _) => failed(*operation, refusal_code(reason)),
            // The write that is always refused: all before it would have been done.
            (None, Some((operation, code))) => failed(operation, code),
            (None, None) => failed(0, refusal_code(reason)),
        },
        None => match plan.failure {
            Some((operation, code)) => failed(operation, code),
            None => PlanJudgement::Ended(WriteOutcome::Done { revision, created, results: plan.results }),
        },
    }
}

fn refusal_code(reason: WriteRefusal) -> ErrorCode {
    match reason {
        WriteRefusal::NoParent => ErrorCode::NoNode,
        WriteRefusal::ParentEnds => ErrorCode::NoChildrenForEphemerals,
        WriteRefusal::Exists => ErrorCode::NodeExists,
        WriteRefusal::HasChildren => ErrorCode::NotEmpty,
    }
}

/// Makes the entry of the root if it is missing: without it, nothing can be made below.
pub(crate) async fn ensure_root<S: ZookeeperStore>(
    store: &S,
    caller: &ZookeeperCaller,
) -> Result<(), ZookeeperStoreError> {
    let key = ZnodePath::root().key();
    if store.applied(|applied| applied.get(&key).is_some()) {
        return Ok(());
    }

    let caller = ZookeeperCaller { is_port: true, ..caller.clone() };
    let condition = crate::ZookeeperCondition { key: key.clone(), modified: 0 };
    let put = ZookeeperWrite::Put { key, value: ZnodeValue::system().encode() };
    let txn = ZookeeperTxn { conditions: vec![condition], writes: vec![put], otherwise_get: Vec::new() };
    // A refusal means that another node was faster.
    store.commit(&caller, None, txn).await.map(|_| ())
}
