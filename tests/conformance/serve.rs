//! A fake cluster without a scenario, for a client's own tests: it obeys statements on its standard input.

use std::{
    process::{ExitCode, Stdio},
    time::Duration,
};

use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, stdin},
    process::Command,
    time::timeout,
};

use crate::{
    fake::{FakeCluster, statements::FakeStatement},
    scenario::parsed,
};

/// Serves until the input ends.
pub(crate) fn main(nodes: &str) -> Result<ExitCode, String> {
    let nodes = parsed(nodes)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(serve(nodes))?;
    std::process::exit(0);
}

async fn serve(nodes: usize) -> Result<(), String> {
    let mut cluster = FakeCluster::start(nodes).await?;
    let addresses: Vec<&str> = (1..=nodes).filter_map(|node| cluster.address(node)).collect();
    println!("{}", json!({ "endpoints": addresses.join(",") }));

    let mut mark = 0;
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await.map_err(|error| error.to_string())? {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => continue,
            ["mark"] => mark = cluster.state().arrivals.count(),
            ["requests"] => {
                let arrivals = cluster.state().arrivals.since(mark);
                arrivals.iter().for_each(|arrival| println!("{}", arrival.show()));
            }
            _ => {
                let obeyed = match FakeStatement::parse(&words) {
                    Ok(statement) => cluster.obey(&statement).await,
                    Err(why) => Err(why),
                };
                if let Err(why) = obeyed {
                    println!("error: {why}");
                    continue;
                }
            }
        }
        println!("ok");
    }
    Ok(())
}

/// How long a cluster may take to answer a few statements and to end.
const END_MAX: Duration = Duration::from_secs(20);

/// Shows that it serves: starts this program, gives it statements, and compares the answers.
pub(crate) async fn check() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["--serve", "2"]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let mut input = child.stdin.take().ok_or("the cluster has no input")?;
    input
        .write_all(b"fault acquire lost\nnonsense\nnode 3 dies\nmark\nrequests\n")
        .await
        .map_err(|error| error.to_string())?;
    drop(input);

    let output = timeout(END_MAX, child.wait_with_output()).await.map_err(|_| "it does not end with its input")?;
    let output = String::from_utf8_lossy(&output.map_err(|error| error.to_string())?.stdout).into_owned();
    let lines: Vec<&str> = output.lines().collect();
    let wrong = || format!("it said {lines:?}");
    let [first, answers @ ..] = &lines[..] else { return Err(wrong()) };
    let endpoints: serde_json::Value = serde_json::from_str(first).map_err(|error| format!("{first}: {error}"))?;
    let count = endpoints["endpoints"].as_str().unwrap_or_default().split(',').count();
    let expected = ["ok", "error: there is no such statement", "error: there is no node 3", "ok", "ok"];
    if count != 2 || answers != expected {
        return Err(wrong());
    }
    Ok(())
}
