//! A connection: its bytes, its deadlines, and what it may hold.
//!
//! One task reads frames, answers them one after the other, and writes replies and events: so requests take effect in the order in which
//! they were sent, and no event overtakes a reply. A client that sends and does not read is read from until its replies have reached a
//! limit; then its requests wait in its own socket. If it reads nothing for some seconds, the connection is closed.
//!
//! An idle connection has no timer: it waits for bytes, for events, and for an order to end.

use std::{
    collections::VecDeque,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use bytes::BytesMut;
use lockkeeper_accept::{ArrivingBytes, ArrivingRequest, Slot, TaskOrder, WriteDeadline, read_at_most};
use lockkeeper_planted::NodeLimit;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split},
    time::{Duration, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    ZookeeperIdentity, ZookeeperStore,
    node::ZookeeperNode,
    session::{ClientSession, ClosingReason, Greeting, OutgoingFrames, greet},
    wire::{ConnectAnswer, ConnectRequest, FrameReader, Opcode},
    words,
    writes::TOGETHER_MAX,
};

/// Room that a buffer has at least before a read.
const READ_BYTES: usize = 4 << 10;
/// Number of bytes that are read at a time at the most.
const READ_BYTES_MAX: usize = 16 << 10;
/// Number of bytes that are read while a request is served.
const READ_AHEAD_BYTES: usize = 64 << 10;
/// Number of bytes of replies that are written before the room that they took is used again.
const WRITTEN_BYTES_KEPT: usize = 64 << 10;
/// Maximum length of the first frame, in bytes.
const CONNECT_BYTES_MAX: usize = 4 << 10;
/// Time for a client to close a connection after it got the last message: an earlier reset could lose that message.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that are read meanwhile.
const LINGER_BYTES_MAX: usize = 1 << 20;

/// The budgets of the port for bytes of requests and of replies.
#[derive(Clone, Debug)]
pub(crate) struct ByteBudgets {
    /// Bytes of requests that are not answered.
    pub(crate) requests: ArrivingBytes,
    /// Bytes of replies that are made and not read.
    pub(crate) replies: ArrivingBytes,
}

/// A connection that is served.
pub(crate) struct ZookeeperConnection<T, S> {
    reader: ReadHalf<WriteDeadline<T>>,
    writer: WriteHalf<WriteDeadline<T>>,
    /// What all connections share.
    node: Arc<ZookeeperNode<S>>,
    address: SocketAddr,
    /// What the client's certificate proves, until its session has it.
    identity: Option<ZookeeperIdentity>,
    /// Bytes that were read from the socket and not from here.
    input: BytesMut,
    /// Writes that have arrived, and could not be under way beside those before them.
    ready: VecDeque<BytesMut>,
    /// Whether the client sends no more.
    has_input_ended: bool,
    /// Replies and events.
    out: Vec<u8>,
    /// Number of bytes of `out` that are written.
    written: usize,
    /// The share of this connection in the budget of requests.
    held_requests: ArrivingRequest,
    /// The share of this connection in the budget of replies.
    held_replies: ArrivingRequest,
}

impl<T: AsyncRead + AsyncWrite + Unpin, S: ZookeeperStore> ZookeeperConnection<T, S> {
    /// Begins to serve a stream whose TLS handshake is complete.
    pub(crate) fn new(
        stream: T,
        node: Arc<ZookeeperNode<S>>,
        address: SocketAddr,
        identity: Option<ZookeeperIdentity>,
        budgets: &ByteBudgets,
    ) -> Self {
        let (reader, writer) = split(WriteDeadline::new(stream));

        Self {
            reader,
            writer,
            node,
            address,
            identity,
            input: BytesMut::new(),
            ready: VecDeque::new(),
            has_input_ended: false,
            out: Vec::new(),
            written: 0,
            held_requests: budgets.requests.request(address.ip()),
            held_replies: budgets.replies.request(address.ip()),
        }
    }

    /// Serves the connection until it ends.
    pub(crate) async fn serve(mut self, slot: Arc<Slot>, stopping: CancellationToken) {
        let arrival_timeout = self.node.options.arrival_timeout;
        let begun = tokio::select! {
            begun = timeout(arrival_timeout, self.begin(&slot)) => begun,
            () = slot.must_end() => return,
            () = stopping.cancelled() => return,
        };

        let end = match begun {
            Ok(Ok(mut session)) => {
                let end = loop {
                    if let Err(end) = self.step(&mut session, &slot, &stopping).await {
                        break end;
                    }
                };
                session.note_end(end);
                end
            }
            Ok(Err(end)) => end,
            Err(_) => ClosingReason::AtOnce,
        };
        if end == ClosingReason::AfterReplies {
            self.finish().await;
        }
    }

    /// Sends the remaining bytes, and waits for the client to close, so that a reset does not lose the reason.
    async fn finish(mut self) {
        let rest = self.out.split_off(self.written);
        if self.writer.write_all(&rest).await.is_err() || self.writer.shutdown().await.is_err() {
            return;
        }

        let drain = async {
            let mut drained = 0;
            while drained < LINGER_BYTES_MAX {
                self.input.clear();
                match read_at_most(&mut self.reader, &mut self.input, READ_BYTES_MAX).await {
                    Ok(bytes) if bytes > 0 => drained += bytes,
                    Ok(_) | Err(_) => break,
                }
            }
        };
        // A client that takes longer may lose the rest.
        let _ = timeout(LINGER_TIMEOUT, drain).await;
    }

    /// Reads more. Before a session exists, nothing else may happen on the connection.
    async fn read_more(&mut self) -> Result<(), ClosingReason> {
        self.input.reserve(READ_BYTES);
        match read_at_most(&mut self.reader, &mut self.input, READ_BYTES_MAX).await {
            Ok(bytes) if bytes > 0 => Ok(()),
            Ok(_) | Err(_) => Err(ClosingReason::Gone),
        }
    }

    /// The first bytes: a word, or a connect.
    async fn begin(&mut self, slot: &Arc<Slot>) -> Result<ClientSession<S>, ClosingReason> {
        let frames = FrameReader { length_max: CONNECT_BYTES_MAX };
        let frame = loop {
            if let Some(word) = self.input.first_chunk().filter(|word| word.iter().all(u8::is_ascii_lowercase)) {
                let word = *word;
                let text = words::answer(&self.node, word, self.identity.is_some()).await;
                self.out.extend_from_slice(text.as_bytes());
                return Err(ClosingReason::AfterReplies);
            }
            match frames.read(&mut self.input) {
                Ok(Some(frame)) => break frame,
                Ok(None) => self.read_more().await?,
                Err(_) => return Err(ClosingReason::AtOnce),
            }
        };
        let request = ConnectRequest::read(&frame).map_err(|_| ClosingReason::AtOnce)?;
        let _call = slot.call().map_err(|_| ClosingReason::AtOnce)?;

        self.node.stats.received.fetch_add(1, Relaxed);
        let identity = self.identity.as_ref().map(|proof| proof.name.clone());
        let greeting = greet(&self.node, self.address, identity, &request).await;
        match greeting {
            Ok(Greeting::Session(mut session, answer)) => {
                if let Some(proof) = self.identity.take() {
                    session.note_proof(proof);
                }
                answer.put_frame(request.has_read_only, &mut self.out);
                self.node.stats.sent.fetch_add(1, Relaxed);
                Ok(*session)
            }
            Ok(Greeting::Over) => {
                ConnectAnswer::OVER.put_frame(request.has_read_only, &mut self.out);
                self.node.stats.sent.fetch_add(1, Relaxed);
                Err(ClosingReason::AfterReplies)
            }
            Err(failure) => {
                // Without an answer the client tries the next server.
                tracing::debug!(%failure, client = %self.address, "a client's connect was not served");
                Err(ClosingReason::AtOnce)
            }
        }
    }

    /// Answers a request that is there, or waits for what happens next.
    async fn step(
        &mut self,
        session: &mut ClientSession<S>,
        slot: &Arc<Slot>,
        stopping: &CancellationToken,
    ) -> Result<(), ClosingReason> {
        // Without room, events stay in the outbox, whose limit cuts off a client that reads none.
        let replies_bytes_max = self.node.options.connection_replies_bytes_max;
        if self.unwritten() < replies_bytes_max {
            session.take_events(&mut self.out)?;
        }
        self.held_replies.hold(self.unwritten()).map_err(|_| ClosingReason::AtOnce)?;
        let has_room = self.unwritten() < replies_bytes_max;
        if !has_room {
            NodeLimit::ZookeeperConnectionReplies.note();
        }

        let frames = FrameReader { length_max: self.node.options.frame_bytes_max };
        // The requests before a frame that cannot be are answered.
        if has_room && self.take_requests(frames)? {
            return self.answer(session, slot).await;
        }
        if self.has_input_ended {
            return Err(ClosingReason::Gone);
        }
        if self.input.is_empty() && self.input.capacity() > READ_BYTES {
            // A large buffer is given back.
            self.input = BytesMut::new();
        }

        let outbox = Arc::clone(session.outbox());
        let is_writing = self.unwritten() > 0;
        self.input.reserve(if has_room { READ_BYTES } else { 0 });
        tokio::select! {
            biased;
            written = self.writer.write(&self.out[self.written..]), if is_writing => self.note_written(written),
            () = outbox.kill.cancelled() => Err(ClosingReason::AtOnce),
            () = outbox.arrived.notified() => Ok(()),
            () = stopping.cancelled(), if !is_writing => Err(ClosingReason::AfterReplies),
            order = slot.ordered() => match order {
                TaskOrder::Stay => Ok(()),
                TaskOrder::Finish | TaskOrder::GiveWay => Err(ClosingReason::AtOnce),
            },
            read = read_at_most(&mut self.reader, &mut self.input, READ_BYTES_MAX), if has_room => match read {
                Ok(bytes) if bytes > 0 => {
                    hold_requests(&mut self.held_requests, self.input.len())
                }
                Ok(_) | Err(_) => {
                    self.has_input_ended = true;
                    Ok(())
                }
            },
        }
    }

    /// Takes a request out of the bytes that have arrived, if none is ready; and the writes behind it if it is a write, too, since they may
    /// be under way together; to another node they go in one message, and they fit, since all of them were read into one buffer, which has
    /// grown to twice the largest write at the most. Returns whether one is ready. Fails at a frame that cannot be, once those before it
    /// are answered.
    fn take_requests(&mut self, frames: FrameReader) -> Result<bool, ClosingReason> {
        if self.ready.is_empty() {
            self.ready.extend(frames.read(&mut self.input).map_err(|_| ClosingReason::AfterReplies)?);
        }

        let is_write = |opcode: Option<Opcode>| opcode.is_some_and(Opcode::is_single_write);
        while self.ready.len() < TOGETHER_MAX
            && self.ready.back().is_some_and(|last| is_write(Opcode::from_frame(last)))
            && is_write(frames.next_opcode(&self.input))
            && let Ok(Some(next)) = frames.read(&mut self.input)
        {
            self.ready.push_back(next);
        }
        Ok(!self.ready.is_empty())
    }

    /// Answers one request, or writes that have arrived together. Meanwhile further ones are read, and replies are written.
    async fn answer(&mut self, session: &mut ClientSession<S>, slot: &Arc<Slot>) -> Result<(), ClosingReason> {
        let ready_bytes = self.ready.iter().map(BytesMut::len).sum::<usize>();
        let Ok(_call) = slot.call() else { return Err(ClosingReason::AfterReplies) };
        let _outstanding = OutstandingRequest::new(&self.node);
        let outbox = Arc::clone(session.outbox());
        let mut outgoing = OutgoingFrames::new(self.unwritten(), &mut self.held_replies);
        let mut has_room = true;
        let answered = {
            let mut serve = pin!(session.answer_some(self.ready.make_contiguous(), &mut outgoing));
            loop {
                // A client that closes after its last request has sent it all the same: it is served to its end.
                let reads_ahead = self.input.len() < READ_AHEAD_BYTES && has_room && !self.has_input_ended;
                let is_writing = self.written < self.out.len();
                if reads_ahead {
                    self.input.reserve(READ_BYTES);
                }
                tokio::select! {
                    biased;
                    answered = &mut serve => break answered,
                    () = outbox.kill.cancelled() => break Err(ClosingReason::AtOnce),
                    written = self.writer.write(&self.out[self.written..]), if is_writing => {
                        // A client that reads no more has sent its requests all the same.
                        if note_written(&mut self.out, &mut self.written, &written).is_err() {
                            self.has_input_ended = true;
                            self.out.clear();
                            self.written = 0;
                        }
                    }
                    read = read_at_most(&mut self.reader, &mut self.input, READ_BYTES_MAX), if reads_ahead => {
                        self.has_input_ended = !read.is_ok_and(|bytes| bytes > 0);
                        // What waits behind a slow request is memory, too.
                        // Without room, further requests wait in the client's socket, and what is here is counted as before.
                        has_room = self.held_requests.grow(ready_bytes + self.input.len()).is_ok();
                        if !has_room {
                            NodeLimit::ZookeeperRequests.note();
                        }
                    }
                }
            }
        };

        // A reply that was made while the feed ended and began anew may show a change whose event is lost: it must not leave.
        if outbox.kill.is_cancelled() {
            return Err(ClosingReason::AtOnce);
        }
        self.out.append(&mut outgoing.into_frames());
        self.ready.drain(..answered?);
        let ready_bytes = self.ready.iter().map(BytesMut::len).sum::<usize>();
        hold_requests(&mut self.held_requests, ready_bytes + self.input.len())
    }

    /// Number of bytes that wait for room in the socket.
    fn unwritten(&self) -> usize {
        self.out.len() - self.written
    }

    /// Counts what the socket has taken.
    fn note_written(&mut self, written: io::Result<usize>) -> Result<(), ClosingReason> {
        note_written(&mut self.out, &mut self.written, &written)
    }
}

/// Counts what has arrived and is not answered.
fn hold_requests(held: &mut ArrivingRequest, bytes: usize) -> Result<(), ClosingReason> {
    held.hold(bytes).map_err(|_| {
        NodeLimit::ZookeeperRequests.note();
        ClosingReason::AfterReplies
    })
}

fn note_written(out: &mut Vec<u8>, written: &mut usize, taken: &io::Result<usize>) -> Result<(), ClosingReason> {
    match taken {
        Ok(bytes) if *bytes > 0 => *written += *bytes,
        // The client is there, and does not read.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(ClosingReason::AtOnce),
        Ok(_) | Err(_) => return Err(ClosingReason::Gone),
    }

    if *written == out.len() {
        // A large buffer is given back.
        if out.capacity() > READ_BYTES {
            *out = Vec::new();
        }
        out.clear();
        *written = 0;
    } else if *written >= WRITTEN_BYTES_KEPT && *written >= out.len() / 2 {
        // A client that has always asked for more than it has read never comes to the end. What is moved is less than what was written.
        out.drain(..*written);
        *written = 0;
    }
    Ok(())
}

/// Counts a request while it is served.
struct OutstandingRequest<'a, S>(&'a ZookeeperNode<S>);

impl<'a, S> OutstandingRequest<'a, S> {
    fn new(node: &'a ZookeeperNode<S>) -> Self {
        node.stats.outstanding.fetch_add(1, Relaxed);
        Self(node)
    }
}

impl<S> Drop for OutstandingRequest<'_, S> {
    fn drop(&mut self) {
        self.0.stats.outstanding.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_always_reads_and_always_asks_for_more_takes_bounded_room() {
        const REPLY_BYTES: usize = 400 << 10;
        let mut out = vec![0; 4 << 20];
        let mut written = 0;
        for number in 0..1_000_u32 {
            out.extend_from_slice(&[0; REPLY_BYTES]);
            let end = out.len();
            out[end - 4..].copy_from_slice(&number.to_be_bytes());
            note_written(&mut out, &mut written, &Ok(REPLY_BYTES)).expect("it is written");

            assert_eq!(out.len() - written, 4 << 20, "what waits");
            assert!(out.capacity() <= 20 << 20, "{} bytes after {number} replies", out.capacity());
            assert!(out.ends_with(&number.to_be_bytes()));
        }
    }
}
