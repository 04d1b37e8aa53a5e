//! Clients of DynamoDB under faults, judged with the run's own.
//!
//! Short here, with answers that are lost for longer than a lease, which the SDKs' own retries repeat, and faults that change the leader.
//! `scripts/dynamodb-clients.sh` runs a minute of all faults.

use std::env;

use lockkeeper::chaos::history::Function;

use super::{modules, python, script};
use crate::unmodified::judged;

/// For how long faults are injected, and which ones.
const DURATION: &str = "LOCKKEEPER_DYNAMODB_CHAOS";
const FAULTS: &str = "LOCKKEEPER_DYNAMODB_FAULTS";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a run of chaos"]
async fn the_history_of_unmodified_clients_under_faults_is_judged() {
    let (python, modules) = match (python().await, modules().await) {
        (Ok(python), Ok(modules)) => (python, modules),
        (Err(problem), _) | (_, Err(problem)) => {
            crate::skipped::skipped(format_args!("packages cannot be installed: {problem}"));
            return;
        }
    };
    let of = |name, usual: &str| env::var(name).unwrap_or_else(|_| usual.to_owned());
    let of_python = format!("exec '{}' '{}'", python.display(), script("chaos_python.py"));
    let of_node = format!("NODE_PATH='{}' exec node '{}'", modules.display(), script("chaos_npm.cjs"));
    let done = [
        ("python-lock", Function::Acquire),
        ("npm-lock", Function::Acquire),
        ("boto3", Function::Set),
        ("boto3", Function::Read),
    ];
    let duration = of(DURATION, "16s");
    let faults = of(FAULTS, "answers-lost,kill-leader,pause-leader");
    judged::run(&duration, &faults, &[of_python, of_node], &done).await;
}
