//! Encodes HTTP/2 frames, for sequences that no library sends.

use std::{io, net::SocketAddr};

use bytes::Bytes;
use prost::Message;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const EMPTY_SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_HEADERS: u8 = 4;
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// An empty gRPC message with its length prefix.
pub(crate) const EMPTY_MESSAGE: &[u8] = &[0; 5];

/// A gRPC message with its length prefix.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let length = u32::try_from(message.encoded_len()).expect("short").to_be_bytes();
    [&[0], &length[..], &message.encode_to_vec()].concat().into()
}

/// The stream id of the n-th call of a connection.
pub(crate) fn stream_id(call: usize) -> u32 {
    u32::try_from(2 * call + 1).expect("a stream's number")
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A HEADERS frame that opens a call.
pub(crate) fn headers(stream: u32, path: &str) -> Vec<u8> {
    let literal = |name: &[u8], value: &str| {
        let length = u8::try_from(value.len()).expect("short");
        [name, &[length], value.as_bytes()].concat()
    };
    // HPACK's static table holds POST, http, and the names of the other headers but `te`.
    let mut block = vec![0x83, 0x86];
    block.extend(literal(&[0x04], path));
    block.extend(literal(&[0x01], "node"));
    block.extend(literal(&[0x0f, 0x10], "application/grpc"));
    block.extend(literal(b"\0\x02te", "trailers"));
    frame(HEADERS, END_HEADERS, stream, &block)
}

pub(crate) fn data(stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, 0, stream, bytes)
}

pub(crate) fn reset(stream: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &CANCEL)
}

/// Opens a connection and sends the preface.
pub(crate) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&[PREFACE, EMPTY_SETTINGS].concat()).await?;
    Ok(stream)
}

/// Reads until the server's GOAWAY: its code and its debug text. `None`: the connection ended without one.
pub(crate) async fn farewell(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<(u32, String)> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload).await.ok()?;
        if head[3] == GOAWAY {
            let code = u32::from_be_bytes(payload[4..8].try_into().expect("four bytes"));
            return Some((code, String::from_utf8_lossy(&payload[8..]).into_owned()));
        }
    }
}
