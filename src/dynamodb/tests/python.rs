//! moto as an oracle: the random walk in `tests/dynamodb/walk.py`.
//!
//! Where the Python packages cannot be installed, the test is skipped and says so.

#[path = "../../../tests/unmodified/packages.rs"]
mod packages;

use std::path::Path;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::memory::Memory;
use crate::{DynamoOptions, serve};

const REQUIREMENTS: &str = include_str!("../../../tests/dynamodb/requirements.txt");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_walk_has_the_answers_of_moto() {
    let python = match packages::python("dynamodb-python", REQUIREMENTS).await {
        Ok(python) => python,
        Err(problem) => {
            super::skipped::skipped(format_args!("the Python packages cannot be installed: {problem}"));
            return;
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let stopping = CancellationToken::new();
    let served = tokio::spawn(serve(listener, Memory::default(), DynamoOptions::new(|| 0, 1), stopping.clone()));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/dynamodb/walk.py").display().to_string();
    let ended = packages::run(packages::command(&python, &[&script, &endpoint, "1000", "1"])).await;
    stopping.cancel();
    served.await.unwrap();
    match ended {
        Ok(output) => println!("{output}"),
        Err(output) => panic!("{output}"),
    }
}
