//! Blocking pops and channels, at several nodes over one store.

mod bounds;
mod channels;
mod failures;
mod pops;
mod transactions;

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{Api, Memory, Scripted, options};
use crate::{RedisOptions, RedisStore as _, node::RedisNode, signals::port};

/// More than anything here takes, in the time of a test, which is not real.
const PATIENCE: Duration = Duration::from_secs(30);

/// Nodes over one store.
pub(super) struct SeveralNodes {
    pub(super) store: Memory,
    nodes: Vec<Arc<RedisNode<Memory>>>,
}

impl SeveralNodes {
    pub(super) fn new(count: u64) -> Self {
        let store = Memory::default();
        let node = |seed| {
            let options = RedisOptions { seed, ..options() };
            Arc::new(RedisNode::new(store.clone(), Arc::new(Scripted), options))
        };
        let nodes = (1..=count).map(node).collect();
        Self { store, nodes }
    }

    pub(super) fn client(&self, node: usize) -> Api {
        Api::at(self.store.clone(), Arc::clone(&self.nodes[node]))
    }

    /// Number of the entries that begin so.
    pub(super) async fn count(&self, prefix: &str) -> u64 {
        let mut end = prefix.as_bytes().to_vec();
        end.push(0xff);
        self.store.count(&port(), prefix.as_bytes().to_vec(), end).await.unwrap_or(u64::MAX)
    }

    pub(super) async fn until_count(&self, prefix: &str, count: u64) {
        let reached = timeout(PATIENCE, async {
            while self.count(prefix).await != count {
                sleep(Duration::from_millis(5)).await;
            }
        });
        assert!(reached.await.is_ok(), "{} entries of {prefix}, not {count}", self.count(prefix).await);
    }

    /// Has a client wait, and returns after it has its place.
    pub(super) async fn waits(&self, node: usize, line: &str) -> JoinHandle<(String, Duration)> {
        let before = self.count("redis/wait/").await;
        let mut client = self.client(node);
        let line = line.to_owned();
        let began = Instant::now();
        let waiting = tokio::spawn(async move { (client.call(&line).await, began.elapsed()) });
        let keys = self.count("redis/wait/");
        let placed = timeout(PATIENCE, async {
            while self.count("redis/wait/").await == before {
                sleep(Duration::from_millis(1)).await;
            }
        });
        drop(keys);
        assert!(placed.await.is_ok(), "no place");
        waiting
    }
}

pub(super) async fn reply(waiting: JoinHandle<(String, Duration)>) -> String {
    timeout(PATIENCE, waiting).await.expect("a reply in time").expect("no panic").0
}

/// The next message of a client.
pub(super) async fn message(client: &mut Api) -> String {
    let message = timeout(PATIENCE, client.session.next_message()).await.expect("a message in time");
    let mut out = Vec::new();
    client.session.write_message(&message, &mut out);
    String::from_utf8_lossy(&out).replace("\r\n", "|")
}
