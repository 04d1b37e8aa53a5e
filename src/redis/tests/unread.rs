//! Replies that are not read, or cannot be sent yet.

use std::{
    collections::VecDeque,
    future::{pending, ready},
    io,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use lockkeeper_accept::ConnectionSource;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{Api, Memory, Scripted, handle, options, words};
use crate::{RedisListener, RedisOptions, node::RedisNode, unit::REPLY_BYTES_MAX};

/// More than anything here takes, in the time of a test, which is not real.
const PATIENCE: Duration = Duration::from_secs(5);

fn put_text(store: &Memory, key: &str, bytes: usize) {
    store.put(&format!("redis/0/{key}"), &[b"s".to_vec(), vec![b'x'; bytes]].concat());
}

/// One connection, whose pipes hold few bytes.
struct OnePipe(Option<DuplexStream>);

impl ConnectionSource for OnePipe {
    type Stream = DuplexStream;

    async fn accept(
        &mut self,
    ) -> io::Result<(impl Future<Output = io::Result<DuplexStream>> + Send + 'static, SocketAddr)> {
        let Some(stream) = self.0.take() else { return pending().await };
        Ok((ready(Ok(stream)), ([10, 0, 0, 1], 1).into()))
    }
}

impl RedisListener for OnePipe {}

/// The client may not do what the command waits for before it has them.
#[tokio::test(start_paused = true)]
async fn replies_are_sent_while_a_command_behind_them_waits() {
    const LARGE: usize = 100_000;
    let store = Memory::default();
    put_text(&store, "large", LARGE);
    let (mut client, end) = duplex(1_000);
    let stopping = CancellationToken::new();
    let port = handle(store.clone());
    let served = stopping.clone();
    tokio::spawn(async move { port.serve(OnePipe(Some(end)), served).await });

    client.write_all(b"GET large\r\nBLPOP queue 0\r\n").await.expect("it is open");
    let mut reply = vec![0; LARGE + 11];
    let read = timeout(PATIENCE, client.read_exact(&mut reply)).await;
    read.expect("the whole reply in time").expect("it is open");
    assert!(reply.starts_with(b"$100000\r\nxxx") && reply.ends_with(b"xxx\r\n"));

    Api::over(store).call("rpush queue a").await;
    let mut popped = [0; 22];
    timeout(PATIENCE, client.read_exact(&mut popped)).await.expect("in time").expect("it is open");
    assert_eq!(&popped, b"*2\r\n$5\r\nqueue\r\n$1\r\na\r\n");
    stopping.cancel();
}

/// Between two of them it is looked whether the client reads.
#[tokio::test(start_paused = true)]
async fn commands_whose_replies_are_too_much_together_are_served_one_by_one() {
    let mut api = Api::new();
    put_text(&api.store, "large", 390_000);
    let large = format!("mget{}", " large".repeat(15));
    let mut requests: VecDeque<_> = [&*large, &*large, &*large, "ping", "set a 1", "incr a"].map(words).into();
    let mut out = Vec::new();
    let mut all = 0;
    for left in (0..6).rev() {
        api.session.serve_next(&mut requests, &mut out).await.expect("it goes on");
        assert_eq!(requests.len(), left);
        assert!(out.len() < REPLY_BYTES_MAX, "{} bytes", out.len());
        all += out.len();
        out.clear();
    }
    assert!(all > 2 * REPLY_BYTES_MAX, "{all} bytes");

    // Those that follow run together again.
    let mut requests: VecDeque<_> = ["set a 1", "incr a"].map(words).into();
    api.session.serve_next(&mut requests, &mut out).await.expect("it goes on");
    assert_eq!((requests.len(), &out[..]), (0, &b"+OK\r\n:2\r\n"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_transaction_whose_replies_cannot_wait_does_nothing() {
    let store = Memory::default();
    // One address may have half of it.
    let options = RedisOptions { replies_bytes_max: 100_000, ..options() };
    let node = Arc::new(RedisNode::new(store.clone(), Arc::new(Scripted), options));
    let mut api = Api::at(store.clone(), node);

    for (bytes, is_done) in [(60_000, false), (40_000, true), (60_000, false), (40_000, true)] {
        put_text(&store, "large", bytes);
        api.expect(&[("multi", "+OK|"), ("set done x", "+QUEUED|"), ("get large", "+QUEUED|")]).await;
        let reply = api.call("exec").await;
        let refused = "-ERR Lockkeeper is overloaded, and nothing was done: replies that are not read";
        assert_eq!(reply.starts_with(refused), !is_done, "{bytes} bytes: {}", &reply[..20]);
        assert_eq!(api.call("del done").await, if is_done { ":1|" } else { ":0|" });
    }
}
