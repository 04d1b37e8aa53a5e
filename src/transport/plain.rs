//! The first bytes of a connection tell its protocol.
//!
//! Plain text at a port that speaks TLS is told from TLS by them, and answered in its own protocol. Otherwise a client without TLS gets an
//! alert of TLS, which it takes for a broken frame of HTTP/2. HTTP/1 is told from HTTP/2 by them where both are spoken.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use super::SPEAKS_TLS;

/// The bytes that tell HTTP from TLS, and its versions from each other. Every handshake of TLS is longer.
const FIRST_BYTES: usize = 4;
/// The preface of HTTP/2 begins with these. No method of HTTP/1 does.
const HTTP2: [u8; FIRST_BYTES] = *b"PRI ";
/// Bytes of a plain-text client that are read after the answer. Closing a connection with unread bytes may discard the answer.
const DRAINED_BYTES_MAX: u64 = 64 << 10;
/// SETTINGS without a setting: what a server of HTTP/2 sends first.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// The code of GOAWAY. Not INADEQUATE_SECURITY: gRPC libraries make that PERMISSION_DENIED, with which a member says that a node was
/// removed from the cluster.
const PROTOCOL_ERROR: u32 = 1;

/// A connection whose first bytes were read, and are read again.
#[derive(Debug)]
pub(super) struct Rewound<S> {
    first: [u8; FIRST_BYTES],
    /// The bytes of `first` that are still to be read again.
    unread: std::ops::Range<usize>,
    stream: S,
}

/// Looks at the first bytes. Plain text gets an answer and an error. Needs a time limit of the caller's.
pub(super) async fn refused<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> io::Result<Rewound<S>> {
    let mut first = [0; FIRST_BYTES];
    let mut read = 0;
    // No record of TLS begins with a capital letter, and all methods of HTTP do.
    while read < FIRST_BYTES && first[..read].iter().all(u8::is_ascii_uppercase) {
        match stream.read(&mut first[read..]).await? {
            0 => break,
            more => read += more,
        }
    }

    let is_http = first[..read].first().is_some_and(u8::is_ascii_uppercase) && read == FIRST_BYTES;
    if !is_http {
        return Ok(Rewound { first, unread: 0..read, stream });
    }

    let answer = if first == HTTP2 { goaway() } else { bad_request() };
    stream.write_all(&answer).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(DRAINED_BYTES_MAX), &mut tokio::io::sink()).await?;
    Err(io::Error::new(io::ErrorKind::InvalidData, "the other end does not speak TLS"))
}

/// Looks at the first bytes, and says whether they are those of HTTP/2. The caller has to set a time limit.
pub(super) async fn is_http2<S: AsyncRead + Unpin>(mut stream: S) -> io::Result<(Rewound<S>, bool)> {
    let mut first = [0; FIRST_BYTES];
    let mut read = 0;
    while read < FIRST_BYTES && first[..read] == HTTP2[..read] {
        match stream.read(&mut first[read..]).await? {
            0 => break,
            more => read += more,
        }
    }
    let is_http2 = first[..read] == HTTP2[..read];
    Ok((Rewound { first, unread: 0..read, stream }, is_http2))
}

fn goaway() -> Vec<u8> {
    let length = (8 + SPEAKS_TLS.len()) as u32;
    let [_, length @ ..] = length.to_be_bytes();
    let last_stream = [0; 4];
    let head = [&length[..], &[7, 0, 0, 0, 0, 0], &last_stream, &PROTOCOL_ERROR.to_be_bytes()].concat();
    [&SETTINGS[..], &head, SPEAKS_TLS.as_bytes()].concat()
}

fn bad_request() -> Vec<u8> {
    let length = SPEAKS_TLS.len() + 1;
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{SPEAKS_TLS}\n"
    )
    .into()
}

impl<S> Rewound<S> {
    pub(super) fn stream(&mut self) -> &mut S {
        &mut self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.unread.is_empty() {
            return Pin::new(&mut this.stream).poll_read(context, buffer);
        }
        let count = this.unread.len().min(buffer.remaining());
        let end = this.unread.start + count;
        buffer.put_slice(&this.first[this.unread.start..end]);
        this.unread.start = end;
        Poll::Ready(Ok(()))
    }
}

crate::pass_writes!(Rewound, stream);

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    /// What a port does with these bytes, one by one: those that TLS gets to read, or the answer.
    async fn said(bytes: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
        let (mut near, far) = duplex(1024);
        let port = tokio::spawn(async {
            let mut heard = Vec::new();
            refused(far).await?.read_to_end(&mut heard).await?;
            Ok::<_, io::Error>(heard)
        });
        for byte in bytes {
            near.write_all(&[*byte]).await.expect("there is room");
            tokio::task::yield_now().await;
        }
        near.shutdown().await.expect("it is open");
        let mut answer = Vec::new();
        near.read_to_end(&mut answer).await.expect("it is closed in order");
        port.await.expect("no panic").map_err(|_| answer)
    }

    #[tokio::test]
    async fn http1_is_told_from_http2_by_its_first_bytes() {
        for (bytes, expected) in [
            (&b"PRI * HTTP/2.0"[..], true),
            (b"POST / HTTP/1.1", false),
            (b"PUT", false),
            (b"GET", false),
            (b"P", true),
            (b"", true),
        ] {
            let (mut near, far) = duplex(1024);
            near.write_all(bytes).await.expect("there is room");
            near.shutdown().await.expect("it is open");
            let (mut stream, is_http2) = is_http2(far).await.expect("it can be read");
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).await.expect("it can be read");
            assert_eq!((&heard[..], is_http2), (bytes, expected));
        }
    }

    #[tokio::test]
    async fn tls_gets_every_byte_and_http_an_answer() {
        for tls in [&b"\x16\x03\x01\x00\x05hello"[..], b"", b"\x16", b"P", b"PRI", b"no method"] {
            assert_eq!(said(tls).await, Ok(tls.to_vec()));
        }
        let http2 = said(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect_err("plain text");
        assert!(http2.starts_with(&SETTINGS) && http2.ends_with(SPEAKS_TLS.as_bytes()), "{}", http2.escape_ascii());
        for method in ["GET", "POST", "PUT", "PATCH"] {
            let http1 = said(format!("{method} / HTTP/1.1\r\n\r\n").as_bytes()).await.expect_err("plain text");
            let http1 = String::from_utf8(http1).expect("text");
            assert!(http1.starts_with("HTTP/1.1 400 ") && http1.contains(SPEAKS_TLS), "{http1}");
        }
    }
}
