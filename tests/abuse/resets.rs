//! Rapid reset (CVE-2023-44487): calls that are cancelled before the server has accepted them.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::{Instant, timeout},
};

use super::{
    frames::{EMPTY_MESSAGE, connect, data, farewell, headers, reset, stream_id},
    sized,
    stage::{Descriptors, Stage},
};
use crate::support::LONG;

pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;
/// Bytes of the full attack: 143 MiB.
const FULL_BYTES: usize = 143 << 20;
const SMALL_BYTES: usize = 4 << 20;
/// More calls than a client may reset on one connection before the node has accepted them.
const TOO_MANY: usize = 300;
const PATH: &str = "/lockkeeper.v1.Locks/Get";

/// The frames of these calls, each cancelled at once.
fn resets(calls: std::ops::Range<usize>, message: &[u8]) -> Vec<u8> {
    let call = |call| {
        let stream = stream_id(call);
        let asked = if message.is_empty() { Vec::new() } else { data(stream, message) };
        [headers(stream, PATH), asked, reset(stream)].concat()
    };
    calls.flat_map(call).collect()
}

/// Sends this number of bytes of cancelled calls, and opens another connection after each that ends. Returns the number of connections.
async fn flood(stage: &Stage, bytes: usize, message: &[u8]) -> usize {
    const AT_ONCE: usize = 500;
    let address = stage.leader().await;
    let (mut sent, mut connections) = (0, 0);
    while sent < bytes {
        connections += 1;
        let Ok(mut stream) = connect(address).await else { continue };
        let (mut answers, mut requests) = stream.split();
        let write = async {
            let mut first = 0;
            while sent < bytes {
                let chunk = resets(first..first + AT_ONCE, message);
                requests.write_all(&chunk).await?;
                sent += chunk.len();
                first += AT_ONCE;
            }
            Ok::<_, io::Error>(())
        };
        // Read as well: flow control would stop a client that does not.
        tokio::select! {
            _ = write => {}
            _ = farewell(&mut answers) => {}
        }
    }
    connections
}

/// A call that is cancelled, 25 bytes in all.
fn short_reset(stream: u32) -> Vec<u8> {
    let id = stream.to_be_bytes();
    [&[0, 0, 3, 1, 4][..], &id, &[0x83, 0x86, 0x84], &reset(stream)].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_harm_no_other_client_and_without_a_message_close_their_connection() {
    let mut stage = Stage::open(Descriptors::AsTheyAre).await;
    let told = stage.survives("a few resets", a_few).await;
    assert_eq!(told, Some((ENHANCE_YOUR_CALM, "too_many_resets".to_owned())));
    let bytes = sized(SMALL_BYTES, FULL_BYTES);
    for (what, message) in [("resets", &[][..]), ("resets of calls with a message", EMPTY_MESSAGE)] {
        let began = Instant::now();
        let connections = stage.survives(what, async |stage: &Stage| flood(stage, bytes, message).await).await;
        println!("{what}: {bytes} bytes on {connections} connections, {:.1?}", began.elapsed());
    }
}

/// Sends the resets in one write. The server reads them in one turn; with no unread bytes left, closing does not lose its GOAWAY.
async fn a_few(stage: &Stage) -> Option<(u32, String)> {
    reset_a_few(&mut connect(stage.leader().await).await.expect("it serves")).await
}

/// The same on a connection whose preface was sent. Returns the node's GOAWAY.
pub(crate) async fn reset_a_few(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Option<(u32, String)> {
    let few: Vec<u8> = (0..TOO_MANY).flat_map(|call| short_reset(stream_id(call))).collect();
    stream.write_all(&few).await.expect("it reads");
    timeout(LONG, farewell(stream)).await.expect("in time")
}
