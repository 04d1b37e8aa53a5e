//! Whole commands, over a store in memory.

mod families;
mod fuzz;
mod held;
mod kinds;
mod lapses;
mod locks;
mod memory;
mod moments;
mod pipelines;
mod port;
mod scripted;
mod scripts;
mod signals;
mod strangers;
mod transactions;
mod unread;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

// The store in memory is a module of other suites, too, and finds the types there.
use crate as redis;
use crate::{
    Redis, RedisCaller, RedisOptions,
    node::RedisNode,
    resp::RequestWords,
    session::{Closes, RedisSession},
};
pub(crate) use memory::Memory;
pub(crate) use scripted::Scripted;

/// 2025-01-01, in microseconds.
const NOW_US: u64 = 1_735_689_600_000_000;

pub(crate) fn options() -> RedisOptions {
    RedisOptions::new(|| NOW_US, 7)
}

/// Splits a line into words. `''` is an empty one, and `_` within a word a space.
fn words(line: &str) -> RequestWords {
    let word = |word: &str| if word == "''" { Vec::new() } else { word.replace('_', " ").into_bytes() };
    line.split_whitespace().map(word).collect()
}

/// One client of a node, without a connection.
struct Api {
    store: Memory,
    node: Arc<RedisNode<Memory>>,
    session: RedisSession<Memory>,
}

impl Api {
    fn new() -> Self {
        Self::over(Memory::default())
    }

    fn over(store: Memory) -> Self {
        let node = Arc::new(RedisNode::new(store.clone(), Arc::new(Scripted), options()));
        Self::at(store, node)
    }

    fn at(store: Memory, node: Arc<RedisNode<Memory>>) -> Self {
        let session = RedisSession::new(Arc::clone(&node), ([127, 0, 0, 1], 4000).into(), None);
        Self { store, node, session }
    }

    fn caller(&self) -> RedisCaller {
        let deadline = Instant::now() + Duration::from_secs(60);
        RedisCaller { identity: None, address: ([127, 0, 0, 1], 4000).into(), deadline, is_port: false }
    }

    /// Another client of the same node.
    fn other(&self) -> Self {
        Self::at(self.store.clone(), Arc::clone(&self.node))
    }

    /// Sends requests together, and returns the bytes of the replies with `|` for each end of a line.
    async fn pipeline(&mut self, requests: Vec<RequestWords>) -> Result<String, Closes> {
        let mut requests: VecDeque<_> = requests.into();
        let mut out = Vec::new();
        while !requests.is_empty() {
            self.session.serve_next(&mut requests, &mut out).await?;
        }
        Ok(String::from_utf8_lossy(&out).replace("\r\n", "|"))
    }

    async fn request(&mut self, request: RequestWords) -> String {
        self.pipeline(vec![request]).await.unwrap_or_else(|Closes| "closed".to_owned())
    }

    async fn call(&mut self, line: &str) -> String {
        self.request(words(line)).await
    }

    /// Runs commands one after the other, each with the reply that it must have.
    async fn expect(&mut self, expected: &[(&str, &str)]) {
        for (line, reply) in expected {
            assert_eq!(self.call(line).await, *reply, "{line}");
        }
    }
}

/// The handle of a program.
fn handle(store: Memory) -> Redis<Memory> {
    Redis::new(store, Arc::new(Scripted), options())
}
