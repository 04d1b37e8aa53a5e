//! Measures the peers as `lockkeeper bench` measures Lockkeeper, and compares the results. scripts/bench-peers.sh starts the servers.
//!
//! Loops, windows, CPU time and quantiles come from [`lockkeeper::bench`]. This crate adds each peer's acquire, and the workloads that are
//! not a plain loop.

mod etcd;
mod peer;
mod ratios;
mod redis;
mod works;
mod zookeeper;

use std::{path::PathBuf, time::Duration};

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};
use lockkeeper::bench::Timing;
use serde_json::json;

use crate::peer::{Peer, Servers};

/// The number that `lockkeeper bench` uses.
const CONNECTIONS: usize = 16;

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures one peer; prints the result as JSON.
    Measure {
        #[arg(value_enum)]
        peer: Kind,
        #[arg(value_enum)]
        work: Work,
        /// The server directory of scripts/bench-peers.sh.
        #[arg(long)]
        servers: PathBuf,
        #[arg(long, value_delimiter = ',', default_value = "64")]
        workers: Vec<usize>,
        #[arg(long, default_value = "2s", value_parser = humantime::parse_duration)]
        warm_up: Duration,
        #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
        duration: Duration,
        #[arg(long, default_value_t = 3)]
        repetitions: usize,
        /// Number of sessions, of watchers or of held locks.
        #[arg(long, default_value_t = 10_000)]
        count: usize,
        #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
        ttl: Duration,
        /// Renewals per second; default: unlimited.
        #[arg(long)]
        rate: Option<f64>,
        /// Watches of other keys meanwhile (uncontended only).
        #[arg(long, default_value_t = 0)]
        watches: usize,
        /// Spreads the sessions over all nodes; default: the leader.
        #[arg(long)]
        spread: bool,
    },
    /// Waits until all nodes are ready.
    Ready {
        #[arg(value_enum)]
        peer: Kind,
        #[arg(long)]
        servers: PathBuf,
    },
    /// Prints the ratios from a directory of results.
    Ratios { results: PathBuf },
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Etcd,
    EtcdLock,
    Zookeeper,
    ZookeeperRecipe,
    Redis,
}

#[derive(Clone, Copy, ValueEnum)]
enum Work {
    Uncontended,
    Contended,
    Read,
    Keepalive,
    Watch,
    Failover,
    Held,
}

impl Kind {
    fn peer(self, servers: &Servers) -> Box<dyn Peer> {
        let servers = servers.clone();
        match self {
            Self::Etcd => Box::new(etcd::Etcd::new(servers, etcd::Way::Transaction)),
            Self::EtcdLock => Box::new(etcd::Etcd::new(servers, etcd::Way::LockApi)),
            Self::Zookeeper => Box::new(zookeeper::ZooKeeper::new(servers, zookeeper::Way::Raw)),
            Self::ZookeeperRecipe => Box::new(zookeeper::ZooKeeper::new(servers, zookeeper::Way::Recipe)),
            Self::Redis => Box::new(redis::Redis::new(servers)),
        }
    }
}

fn main() -> Result<()> {
    // One thread, like `lockkeeper bench`.
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(run(Arguments::parse().command))
}

async fn run(command: Command) -> Result<()> {
    let (peer, work, measured) = match command {
        Command::Ratios { results } => return ratios::print(&results),
        Command::Ready { peer, servers } => {
            let servers = Servers::of(servers)?;
            return works::ready(&*peer.peer(&servers), &servers).await;
        }
        Command::Measure { peer, work, servers, workers, warm_up, duration, repetitions, count, ttl, rate, watches, spread } => {
            let servers = Servers::of(servers)?;
            let bench = works::Bench {
                peer: peer.peer(&servers),
                servers,
                workers,
                timing: Timing { warm_up, duration, repetitions },
            };
            bench.peer.prepare().await?;
            let series = match work {
                Work::Uncontended => bench.uncontended(watches).await?,
                Work::Contended => bench.contended().await?,
                Work::Read => bench.read().await?,
                Work::Keepalive => bench.keep_alive(count, ttl, rate, spread).await?,
                Work::Watch => bench.watch(count).await?,
                Work::Failover => bench.failover().await?,
                Work::Held => bench.held(count).await?,
            };
            (peer, work, series)
        }
    };
    let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
    let series: Vec<_> = measured.iter().map(lockkeeper::bench::Series::document).collect();
    let document = json!({
        "peer": name(peer.to_possible_value()),
        "work": name(work.to_possible_value()),
        "series": series,
    });
    println!("{document:#}");
    Ok(())
}
