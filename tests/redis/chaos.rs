//! Real lock clients under faults, judged with the run's own clients: redis-py's lock, npm's `redlock`, a semaphore, and registers.

use std::{env, path::Path};

use lockkeeper::chaos::history::Function;

use crate::{
    turns,
    unmodified::{judged, npm, packages},
};

/// For how long faults are injected, and which ones.
const DURATION: &str = "LOCKKEEPER_REDIS_CHAOS";
const FAULTS: &str = "LOCKKEEPER_REDIS_FAULTS";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "nightly: a run of chaos with packages from registries"]
async fn the_history_of_lock_clients_under_faults_is_judged() {
    let _turn = turns::whole_machine().await;
    let python = packages::python("redis-chaos-python", "redis==8.1.0\n").await.expect("it is installed");
    let lock = include_str!("package-lock.json");
    let modules = npm::modules("redis-chaos-npm", include_str!("package.json"), lock).await.expect("it is installed");

    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redis/clients");
    let program = |command: String, file: &str| format!("{command} '{}'", clients.join(file).display());
    let programs = [
        program(format!("exec '{}' -B", python.display()), "chaos_redis.py"),
        program(format!("NODE_PATH='{}' exec node", modules.display()), "chaos_redlock.cjs"),
    ];
    let done = [
        ("redis-lock", Function::Acquire),
        ("redis-lock", Function::Release),
        ("redis-semaphore", Function::Acquire),
        ("redis-key", Function::Set),
        ("redis-key", Function::Read),
        ("redlock", Function::Acquire),
    ];
    let setting = |name, usual: &str| env::var(name).unwrap_or_else(|_| usual.to_owned());
    let duration = setting(DURATION, "20s");
    let faults = setting(FAULTS, "answers-lost,kill-leader,pause-leader");
    judged::run(&duration, &faults, &programs, &done).await;
}
