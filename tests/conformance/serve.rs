//! A fake cluster without a scenario, for a client's own tests: it obeys statements on its standard input.

use std::process::ExitCode;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};

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
