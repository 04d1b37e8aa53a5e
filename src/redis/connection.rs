//! A connection: its bytes, its deadlines, and what it may hold.
//!
//! One task reads requests, runs them and writes replies. Requests wait in their order while one of them waits for the log. A client that
//! sends and does not read is read from until its replies have reached a limit; then its requests wait in its own socket. If it reads
//! nothing for some seconds, the connection is closed.

use std::{collections::VecDeque, net::SocketAddr, sync::Arc};

use bytes::BytesMut;
use lockkeeper_accept::{ArrivingBytes, ArrivingRequest, OpenCall, Slot, TaskOrder, WriteDeadline, read_at_most};
use lockkeeper_planted::NodeLimit;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf, split},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    RedisIdentity, RedisReply, RedisStore,
    commands::{self, CommandSpec},
    node::RedisNode,
    replies::UnwrittenReplies,
    resp::{ProtocolError, RequestReader, RequestWords, bytes_in_memory},
    session::{Closes, RedisSession},
};

/// Number of bytes that are read at a time.
const READ_BYTES: usize = 16 << 10;
/// A buffer with at least this capacity is freed once it is empty.
const LARGE_INPUT_BYTES: usize = 4 * READ_BYTES;
/// Number of bytes that a client may send behind a command that waits for an item.
const AHEAD_BYTES_MAX: usize = 1 << 20;
/// Number of requests that are taken out of the buffer before the first of them has run.
const REQUESTS_MAX: usize = 128;

/// The budgets of the port for bytes of requests and of replies.
#[derive(Clone, Debug)]
pub(crate) struct Budgets {
    /// Bytes of requests that are not answered.
    pub(crate) requests: ArrivingBytes,
    /// Bytes of replies that are not read.
    pub(crate) replies: ArrivingBytes,
}

/// A connection that is served.
pub(crate) struct ServedConnection<T, S> {
    /// What the client sends.
    reader: ReadHalf<WriteDeadline<T>>,
    /// What the client reads.
    writer: WriteHalf<WriteDeadline<T>>,
    /// What all connections share.
    node: Arc<RedisNode<S>>,
    /// What lasts from one request to the next.
    session: RedisSession<S>,
    /// The reader of requests, with the arguments of one that is not whole.
    requests: RequestReader,
    /// Bytes that were read from the socket and not from here.
    input: BytesMut,
    /// Requests that have arrived and were not run.
    ready: VecDeque<RequestWords>,
    /// The error in the request after those that are ready.
    broken: Option<ProtocolError>,
    /// Replies that are not written.
    replies: UnwrittenReplies,
    /// The share of this connection in the budget of requests.
    held_requests: ArrivingRequest,
    /// When the rest of a request must have arrived.
    due: Option<Instant>,
}

/// Why a connection ends.
#[derive(Debug)]
enum ConnectionEnd {
    /// The client has closed it, or it broke.
    Gone,
    /// The written replies are sent, and then the connection is closed.
    AfterReplies,
    /// It is closed at once.
    AtOnce,
}

impl<T: AsyncRead + AsyncWrite + Unpin, S: RedisStore> ServedConnection<T, S> {
    /// Begins to serve a stream whose handshake is complete.
    pub(crate) fn new(
        stream: T,
        node: Arc<RedisNode<S>>,
        address: SocketAddr,
        identity: Option<RedisIdentity>,
        budgets: &Budgets,
    ) -> Self {
        let (reader, writer) = split(WriteDeadline::new(stream));
        let requests = RequestReader::new(node.options.request_limits);
        let held_replies = budgets.replies.request(address.ip());
        let due = Some(Instant::now() + node.options.arrival_timeout);

        Self {
            reader,
            writer,
            session: RedisSession::new(Arc::clone(&node), address, identity),
            replies: UnwrittenReplies::new(held_replies, node.options.connection_replies_bytes_max),
            node,
            requests,
            input: BytesMut::new(),
            ready: VecDeque::new(),
            broken: None,
            held_requests: budgets.requests.request(address.ip()),
            due,
        }
    }

    /// Serves the connection until it ends.
    pub(crate) async fn serve(mut self, slot: Arc<Slot>, stopping: CancellationToken) {
        let admitted = self.session.admit();
        let end = loop {
            if let Err(reply) = &admitted {
                self.replies.add_last(reply);
                break ConnectionEnd::AfterReplies;
            }

            let step = self.step(&slot, &stopping).await;
            if let Err(end) = step {
                break end;
            }
        };

        if matches!(end, ConnectionEnd::AfterReplies) {
            // Send the reason before closing, without waiting for another one; the write deadline bounds this.
            while self.replies.unwritten() > 0 {
                let next = self.replies.next();
                if self.writer.write_all(next).await.is_err() {
                    break;
                }
                self.replies.note_written(next.len());
            }
            let _ = self.writer.shutdown().await;
        }
    }

    /// Runs the requests that are there, or waits for what happens next.
    async fn step(&mut self, slot: &Arc<Slot>, stopping: &CancellationToken) -> Result<(), ConnectionEnd> {
        self.take_requests()?;
        let mut messages = self.replies.take_buffer();
        self.session.write_messages(&mut messages, self.replies.room());
        self.add_replies(messages)?;
        let has_room = self.replies.room() > 0;
        if !has_room {
            NodeLimit::RedisConnectionReplies.note();
        }
        // Once it is to end, nothing more is run: some libraries take a subscription for a lock that they hold while they are answered.
        let is_ending = self.session.client().kill.is_cancelled();
        if has_room && !self.ready.is_empty() && !is_ending {
            self.write_at_once().await?;
            return self.run_requests(slot, stopping).await;
        }

        let kill = self.session.client().kill.clone();
        let due = self.due.unwrap_or_else(|| Instant::now() + self.node.options.request_timeout);
        let is_reading = self.ready.is_empty();
        let is_writing = self.replies.unwritten() > 0;
        tokio::select! {
            biased;
            written = self.writer.write(self.replies.next()), if is_writing => note_written(&mut self.replies, written),
            () = kill.cancelled() => Err(ConnectionEnd::AtOnce),
            message = self.session.next_message(), if has_room => {
                let mut written = self.replies.take_buffer();
                self.session.write_message(&message, &mut written);
                self.add_replies(written)
            }
            () = stopping.cancelled(), if !is_writing => Err(ConnectionEnd::AfterReplies),
            order = slot.ordered() => match order {
                TaskOrder::Stay => Ok(()),
                TaskOrder::Finish | TaskOrder::GiveWay => Err(ConnectionEnd::AtOnce),
            },
            read = read_at_most(&mut self.reader, &mut self.input, READ_BYTES), if is_reading => match read {
                Ok(bytes) if bytes > 0 => self.note_read(),
                Ok(_) | Err(_) => Err(ConnectionEnd::Gone),
            },
            () = sleep_until(due), if self.due.is_some() => Err(ConnectionEnd::AtOnce),
        }
    }

    /// Writes what the socket takes without waiting: the next request may take its time, and these replies do not wait for it.
    async fn write_at_once(&mut self) -> Result<(), ConnectionEnd> {
        if self.replies.unwritten() == 0 {
            return Ok(());
        }
        tokio::select! {
            biased;
            written = self.writer.write(self.replies.next()) => note_written(&mut self.replies, written),
            () = std::future::ready(()) => Ok(()),
        }
    }

    /// Takes whole requests out of the buffer.
    fn take_requests(&mut self) -> Result<(), ConnectionEnd> {
        while self.broken.is_none() && self.ready.len() < REQUESTS_MAX && !self.input.is_empty() {
            self.requests.set_known(self.session.is_known());
            match self.requests.read(&mut self.input) {
                Ok(Some(request)) => self.ready.push_back(request),
                Ok(None) => break,
                // The requests before it are served first.
                Err(error) => self.broken = Some(error),
            }
            // What the client may send next depends on whether this one proves who it is.
            if !self.session.is_known() {
                break;
            }
        }

        if self.input.is_empty() && self.input.capacity() > LARGE_INPUT_BYTES {
            self.input = BytesMut::new();
        }

        if self.ready.is_empty()
            && let Some(error) = self.broken.take()
        {
            return Err(self.refuse(&error));
        }
        let is_unfinished = self.requests.is_within_request() || !self.input.is_empty();
        if self.ready.is_empty() && !is_unfinished && self.is_established() {
            self.due = None;
        }
        if self.ready.is_empty() && is_unfinished && self.due.is_none() {
            self.due = Some(Instant::now() + self.node.options.request_timeout);
        }
        Ok(())
    }

    /// Whether a request was served, of a client that is known. A stranger's time goes on, whatever it sends.
    fn is_established(&self) -> bool {
        self.session.is_known() && !self.session.client().told().last_command.is_empty()
    }

    /// Tells the client what is wrong with its request, as Redis does before it closes.
    fn refuse(&mut self, error: &ProtocolError) -> ConnectionEnd {
        self.replies.add_last(&RedisReply::error(format!("ERR {error}")));
        ConnectionEnd::AfterReplies
    }

    /// Counts what has arrived.
    fn note_read(&mut self) -> Result<(), ConnectionEnd> {
        self.input.reserve(READ_BYTES);
        self.hold_requests(0)
    }

    /// Number of bytes of the requests that are whole, and of what the client has had this node keep.
    fn kept_bytes(&self) -> usize {
        self.ready.iter().map(bytes_in_memory).sum::<usize>() + self.session.held_bytes()
    }

    /// Counts what this connection keeps beside its replies, and so many bytes more. A client for which there is no room is told so.
    fn hold_requests(&mut self, more: usize) -> Result<(), ConnectionEnd> {
        let bytes = self.input.len() + self.requests.held_bytes() + self.kept_bytes() + more;
        self.held_requests.hold(bytes).map_err(|_| {
            NodeLimit::RedisRequests.note();
            let text = "ERR requests that are not answered take all memory for them, with queued commands, watched keys and subscriptions: \
                        send again later, or send smaller ones";
            self.replies.add_last(&RedisReply::error(text));
            ConnectionEnd::AfterReplies
        })
    }

    /// Runs some of the requests that are there.
    async fn run_requests(&mut self, slot: &Arc<Slot>, stopping: &CancellationToken) -> Result<(), ConnectionEnd> {
        // A client that has not authenticated stays an arrival, so it cannot take the slot of one that has.
        let was_known = self.session.is_known();
        let _call = if was_known { Some(self.begin_call(slot)?) } else { None };
        // A client that waits for an item and goes away must not be given one.
        let first = self.ready.front().and_then(|request| commands::find(&request[0]));
        let may_wait = first.is_some_and(CommandSpec::may_wait);
        let mut waiting_bytes = 0;
        if may_wait {
            // It waits with a copy of its arguments.
            let copy = self.ready.front().map_or(0, bytes_in_memory);
            self.hold_requests(copy)?;
            waiting_bytes = self.kept_bytes() + copy;
        }
        let waits = may_wait.then_some((stopping, waiting_bytes));
        self.serve_next(waits).await?;

        if !was_known && self.session.is_known() {
            self.begin_call(slot)?;
        }
        if was_known && !self.session.is_known() {
            // After RESET it is a stranger's again, with as much time.
            self.due = Some(Instant::now() + self.node.options.arrival_timeout);
        }
        if stopping.is_cancelled() && self.ready.is_empty() {
            return Err(ConnectionEnd::AfterReplies);
        }

        if self.ready.is_empty() {
            self.hold_requests(0)?;
            if self.input.is_empty() && self.session.is_known() {
                self.due = None;
            }
        }
        Ok(())
    }

    /// Has the session serve the next requests. Replies that wait are written meanwhile: the client may need them before it does what a
    /// command waits for. If one may wait for others, `waits` has what ends it, and the number of bytes that are kept meanwhile.
    async fn serve_next(&mut self, waits: Option<(&CancellationToken, usize)>) -> Result<(), ConnectionEnd> {
        let kill = self.session.client().kill.clone();
        let mut replies = self.replies.take_buffer();
        let served = {
            let serve = self.session.serve_next(&mut self.ready, &mut replies);
            tokio::pin!(serve);
            loop {
                let is_writing = self.replies.unwritten() > 0;
                let stopped = async {
                    match waits {
                        Some((stopping, _)) => stopping.cancelled().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    served = &mut serve => break served,
                    () = kill.cancelled() => return Err(ConnectionEnd::AtOnce),
                    () = stopped => return Err(ConnectionEnd::AtOnce),
                    written = self.writer.write(self.replies.next()), if is_writing => {
                        note_written(&mut self.replies, written)?;
                    }
                    // Read everything that it sends: unread bytes in the socket would hide that it has disconnected.
                    read = read_at_most(&mut self.reader, &mut self.input, READ_BYTES), if waits.is_some() => {
                        if !read.is_ok_and(|bytes| bytes > 0) {
                            return Err(ConnectionEnd::Gone);
                        }
                        let kept = waits.map_or(0, |(_, kept)| kept);
                        let bytes = self.input.len() + self.requests.held_bytes() + kept;
                        if self.input.len() > AHEAD_BYTES_MAX || self.held_requests.hold(bytes).is_err() {
                            tracing::debug!(bytes, "a client that waits is disconnected, since it has sent too much meanwhile");
                            return Err(ConnectionEnd::AtOnce);
                        }
                    }
                }
            }
        };

        self.add_replies(replies)?;
        if served == Err(Closes) { Err(ConnectionEnd::AfterReplies) } else { Ok(()) }
    }

    /// Has replies wait for the socket. One that cannot wait cannot be replaced, either: what it answers has happened.
    fn add_replies(&mut self, replies: Vec<u8>) -> Result<(), ConnectionEnd> {
        self.replies.add(replies).map_err(|_| {
            NodeLimit::RedisReplies.note();
            ConnectionEnd::AtOnce
        })
    }

    /// Begins a call, which gives the connection its place among those in use.
    fn begin_call(&mut self, slot: &Arc<Slot>) -> Result<OpenCall, ConnectionEnd> {
        slot.call().map_err(|_| {
            self.replies.add_last(&RedisReply::error("ERR max number of clients reached"));
            ConnectionEnd::AfterReplies
        })
    }
}

/// Counts what the socket has taken.
fn note_written(replies: &mut UnwrittenReplies, written: std::io::Result<usize>) -> Result<(), ConnectionEnd> {
    match written {
        Ok(bytes) if bytes > 0 => {
            replies.note_written(bytes);
            Ok(())
        }
        Ok(_) | Err(_) => Err(ConnectionEnd::Gone),
    }
}
