//! A connection of a session, for tests: frames in the order in which they come, so that the order of events and replies can be judged.
//!
//! It sends nothing by itself: no ping, no setWatches. A test that outlasts its session's timeout pings.

use std::{collections::VecDeque, io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::jute::{JuteAnswer, JuteReader, JuteRequest, JuteWriter, XID_EVENT};

/// A bound on failures.
const LONG: Duration = crate::support::LONG;
const PASSWORD_BYTES: usize = 16;
/// No server here sends a longer frame.
const FRAME_BYTES_MAX: usize = 16 << 20;

/// A session, as the server's answer to a connect names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct JuteSession {
    pub(crate) id: i64,
    pub(crate) password: Vec<u8>,
    /// What was granted, in milliseconds.
    pub(crate) timeout_ms: i32,
    /// The newest zxid that its client has seen.
    pub(crate) seen: i64,
}

impl JuteSession {
    /// What a connect for a new session sends.
    pub(crate) fn fresh(timeout_ms: i32) -> Self {
        Self { id: 0, password: vec![0; PASSWORD_BYTES], timeout_ms, seen: 0 }
    }
}

/// What comes from a server after the connect.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum JuteMessage {
    Event(JuteEvent),
    Reply(JuteReply),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct JuteEvent {
    /// 1 created, 2 deleted, 3 data changed, 4 children changed.
    pub(crate) kind: i32,
    pub(crate) path: String,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) struct JuteReply {
    pub(crate) xid: i32,
    pub(crate) zxid: i64,
    /// The body, or the error.
    pub(crate) answer: Result<JuteAnswer, i32>,
}

/// A connection that sends and takes whole frames.
pub(crate) struct JuteWire<S = TcpStream>(pub(crate) S);

impl JuteWire {
    pub(crate) async fn open(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self(stream))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> JuteWire<S> {
    /// Sends bytes as they are.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes).await
    }

    /// Sends a payload with its length before it.
    pub(crate) async fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        let mut frame = JuteWriter::default();
        frame.buffer(Some(payload));
        self.0.write_all(&frame.0).await
    }

    /// The payload of the next frame, or `None` if the server has closed.
    ///
    /// Panics if nothing comes for a minute: a server that is silent must be told from one that closes.
    pub(crate) async fn receive(&mut self) -> Option<Vec<u8>> {
        let reading = async {
            let length = self.0.read_i32().await.ok()?;
            let length = usize::try_from(length).ok().filter(|length| *length <= FRAME_BYTES_MAX)?;
            let mut payload = vec![0; length];
            self.0.read_exact(&mut payload).await.ok()?;
            Some(payload)
        };
        timeout(LONG, reading).await.expect("a frame, or an end")
    }

    /// What is sent up to the end: the answer to a word of four letters.
    pub(crate) async fn receive_text(&mut self) -> String {
        let mut text = Vec::new();
        let reading = self.0.read_to_end(&mut text);
        let _ = timeout(LONG, reading).await.expect("it ends");
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// A connection to which a session is attached.
pub(crate) struct JuteConnection<S = TcpStream> {
    wire: JuteWire<S>,
    pub(crate) session: JuteSession,
    last_xid: i32,
    /// Operation and xid of what was sent and is not answered, in order.
    pending: VecDeque<(i32, i32)>,
    /// Events that came before a reply that was waited for.
    pub(crate) events: Vec<JuteEvent>,
}

impl JuteConnection {
    /// Opens a session, or attaches one. `Ok(None)`: the server says that it is over.
    ///
    /// # Errors
    ///
    /// The server does not listen, or has closed without an answer: another server may take the session.
    pub(crate) async fn connect(address: &str, session: &JuteSession) -> io::Result<Option<Self>> {
        Self::over(JuteWire::open(address).await?, session).await
    }

    /// Opens a session.
    pub(crate) async fn open(address: &str, timeout_ms: i32) -> Self {
        let fresh = JuteSession::fresh(timeout_ms);
        Self::connect(address, &fresh).await.expect("it listens").expect("a new session")
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> JuteConnection<S> {
    /// The same on a connection that is there.
    pub(crate) async fn over(mut wire: JuteWire<S>, session: &JuteSession) -> io::Result<Option<Self>> {
        let mut connect = JuteWriter::default();
        connect.int(0).long(session.seen).int(session.timeout_ms).long(session.id);
        connect.buffer(Some(&session.password)).boolean(false);
        wire.send(&connect.0).await?;
        let answer = wire.receive().await.ok_or(io::ErrorKind::ConnectionReset)?;
        let mut answer = JuteReader(&answer);
        let mut read = || {
            let (_protocol, timeout_ms, id) = (answer.int()?, answer.int()?, answer.long()?);
            let (password, _read_only) = (answer.buffer()??, answer.boolean()?);
            answer.0.is_empty().then_some((timeout_ms, id, password))
        };
        let (timeout_ms, id, password) = read().ok_or(io::ErrorKind::InvalidData)?;
        assert_eq!(password.len(), PASSWORD_BYTES, "a password of 16 bytes");
        if timeout_ms == 0 {
            assert!(id == 0 && password.iter().all(|byte| *byte == 0), "a session that is over has no id");
            return Ok(None);
        }
        let session = JuteSession { id, password, timeout_ms, seen: session.seen };
        Ok(Some(Self { wire, session, last_xid: 0, pending: VecDeque::new(), events: Vec::new() }))
    }

    /// Sends a request and does not wait.
    pub(crate) async fn send(&mut self, request: &JuteRequest) -> io::Result<()> {
        let xid = request.fixed_xid().unwrap_or_else(|| {
            self.last_xid += 1;
            self.last_xid
        });
        let mut payload = JuteWriter::default();
        payload.int(xid).int(request.op());
        request.write(&mut payload);
        self.pending.push_back((request.op(), xid));
        self.wire.send(&payload.0).await
    }

    /// What comes next, or `None` if the server has closed. Panics where no server may: at a reply out of order, at a zxid that falls, at a
    /// body that is not of its operation.
    pub(crate) async fn receive(&mut self) -> Option<JuteMessage> {
        let payload = self.wire.receive().await?;
        let mut input = JuteReader(&payload);
        let (xid, zxid, error) = (input.int(), input.long(), input.int());
        let (xid, zxid, error) = (xid.expect("an xid"), zxid.expect("a zxid"), error.expect("an error"));
        if xid == XID_EVENT {
            let (kind, state) = (input.int().expect("a kind"), input.int());
            let path = input.text().expect("a path");
            assert!((zxid, error, state) == (-1, 0, Some(3)) && input.0.is_empty(), "an event: {payload:?}");
            return Some(JuteMessage::Event(JuteEvent { kind, path }));
        }
        let (op, expected) = self.pending.pop_front().expect("a reply to a request");
        assert_eq!(xid, expected, "replies come in the order of requests");
        // An authentication is answered before it is known at which state.
        if op != super::jute::op::AUTH {
            assert!(zxid >= self.session.seen, "zxid {zxid:#x} after {:#x}", self.session.seen);
            self.session.seen = zxid;
        }
        let read = || JuteAnswer::read(op, input.0).unwrap_or_else(|| panic!("the answer to {op}: {:?}", input.0));
        assert!(error == 0 || input.0.is_empty(), "an error {error} with a body");
        let answer = if error == 0 { Ok(read()) } else { Err(error) };
        Some(JuteMessage::Reply(JuteReply { xid, zxid, answer }))
    }

    /// Sends a request, and waits for its reply. Events that come before it are kept in [`Self::events`]. `None`: the server has closed.
    pub(crate) async fn call(&mut self, request: &JuteRequest) -> Option<JuteReply> {
        self.send(request).await.ok()?;
        loop {
            match self.receive().await? {
                JuteMessage::Event(event) => self.events.push(event),
                JuteMessage::Reply(reply) if self.pending.is_empty() => return Some(reply),
                JuteMessage::Reply(_) => {}
            }
        }
    }

    /// The answer of a call on a connection that stays open.
    pub(crate) async fn ask(&mut self, request: &JuteRequest) -> Result<JuteAnswer, i32> {
        self.call(request).await.expect("the server goes on").answer
    }

    /// The events since the last time that this was asked.
    pub(crate) fn take_events(&mut self) -> Vec<JuteEvent> {
        std::mem::take(&mut self.events)
    }
}
