//! `chaos-client`: a client process of a chaos run. Started by `lockkeeper chaos`, not by people.

use std::path::PathBuf;

use clap::Args;

use super::{Exit, Failure};
use crate::chaos::workload::{ClientOptions, run_client};

/// A client of `lockkeeper chaos`: uses locks until stdin closes.
#[derive(Args, Debug)]
pub(super) struct ChaosClient {
    #[arg(long)]
    name: String,
    #[arg(long)]
    endpoints: String,
    #[arg(long)]
    resource: PathBuf,
    #[arg(long)]
    out: PathBuf,
    #[arg(long)]
    base_ns: u64,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    processes: u32,
}

impl ChaosClient {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let Self { name, endpoints, resource, out, base_ns, seed, processes } = self;
        run_client(ClientOptions { name, endpoints, resource, out, base_ns, seed, processes }).await?;
        Ok(Exit::Success)
    }
}
