//! etcd's transactions under faults, judged with the run's own clients: the recipe of a lock that is one key, and registers.

use std::{env, path::Path};

use lockkeeper::chaos::history::Function;

use crate::{turns, unmodified::judged};

/// For how long faults are injected, and which ones.
const DURATION: &str = "LOCKKEEPER_ETCD_CHAOS";
const FAULTS: &str = "LOCKKEEPER_ETCD_FAULTS";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a run of chaos"]
async fn the_history_of_transactions_under_faults_is_judged() {
    let _turn = turns::whole_machine().await;
    let of = |name, usual: &str| env::var(name).unwrap_or_else(|_| usual.to_owned());
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd/clients/chaos_json.py");
    // The standard library alone.
    let program = format!("exec python3 '{}'", program.display());
    let done = [("etcd-lock", Function::Acquire), ("etcd-key", Function::Set), ("etcd-key", Function::Read)];
    let duration = of(DURATION, "16s");
    let faults = of(FAULTS, "answers-lost,kill-leader,pause-leader");
    judged::run(&duration, &faults, &[program], &done).await;
}
