//! `lockkeeper chaos client` is a client process of a run. `chaos run` starts it; people do not.

use std::path::PathBuf;

use clap::Args;

use super::super::{Exit, Failure};
use crate::{
    chaos::{
        dial::Dial,
        workload::{ClientOptions, run_client},
    },
    client::TlsFiles,
};

/// A client process of `chaos run`: uses locks until stdin closes.
#[derive(Args, Debug)]
pub(super) struct ClientProcess {
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
    #[arg(long)]
    ca: Option<PathBuf>,
    #[arg(long, requires_all = ["ca", "key"])]
    cert: Option<PathBuf>,
    #[arg(long, requires = "cert")]
    key: Option<PathBuf>,
}

impl ClientProcess {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let Self { name, endpoints, resource, out, base_ns, seed, processes, ca, cert, key } = self;
        let files = ca.map(|ca| TlsFiles { ca, own: cert.zip(key) });
        let dial = Dial::new(files)?;
        run_client(ClientOptions { name, endpoints, dial, resource, out, base_ns, seed, processes }).await?;
        Ok(Exit::Success)
    }
}
