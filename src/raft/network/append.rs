//! Appends to one peer, pipelined over one stream.
//!
//! All work happens when openraft polls the stream of answers: requests are taken from its log, split and handed to gRPC, answers are
//! matched with them in order, and deadlines are checked. There is no task of its own, so nothing is left when openraft drops the stream:
//! in particular not the request stream, which holds a lock that the next session needs.
//!
//! The commit index piggybacks on entries: each request with entries contains it. Without entries, openraft sends it by itself as soon as
//! it advances; that would cost each follower, and the leader that handles the answer, as much as an entry does, and just when clients
//! are to be answered. So here a request without them waits up to [`COMMITTED_WAITS`] for entries, which then replace it. Its answer is not
//! needed: openraft evaluates up to where an answer says that the logs agree, not which request it answers. For this reason too,
//! openraft's own time of the last acknowledgement may be too late, and reads use [`super::Acknowledgements`].
//!
//! openraft opens a stream for each heartbeat, and reads cause thousands a second: headers, a call and its tasks at both ends would cost
//! several times as much as the heartbeat. So between two heartbeats the stream is parked, for the next one. After [`PARKED_MAX`] it is
//! closed all the same, since each new one says what the metadata of a call say: starts, versions, what was acknowledged.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{Stream, StreamExt, future::BoxFuture};
use openraft::network::RPCTypes;
use prost::Message;
use tokio::{
    sync::{Notify, mpsc},
    time::{Instant, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{
    APPEND_BYTES_IN_FLIGHT_MAX, APPEND_BYTES_MAX, APPENDS_IN_FLIGHT_MAX, COMMITTED_WAITS, SnapshotSource,
    acknowledgements, allowance,
    parked::Parked,
    peer::{PeerClient, Purpose, RpcError},
};
use crate::messages as pb;
use crate::types::{AppendRequest, LogId, StreamAppendError, StreamAppendResult};
use lockkeeper_transport::Connector;

/// How long after its opening a stream of heartbeats is used again. Shorter than the time for which a member's versions count as said.
const PARKED_MAX: Duration = Duration::from_millis(500);

/// Sends the requests from `input`, and yields the answers. `patience` is the time for the answer to a small request, `opening_max` that
/// for the first answer on a new connection, in this stream or a later one.
pub(super) fn pipeline<'c, C: Connector, D: SnapshotSource, S>(
    client: &'c mut PeerClient<C, D>,
    input: S,
    patience: Duration,
    opening_max: Duration,
) -> impl Stream<Item = Result<StreamAppendResult, RpcError>> + Send + 'c
where
    S: Stream<Item = AppendRequest> + Send + Unpin + 'static,
{
    let cut = client.cut();
    let (requests, answers, opened_at) = match client.parked.take() {
        Some(Parked { requests, answers, opened_at }) => (Some(requests), AppendAnswers::Coming(answers), opened_at),
        None => (None, AppendAnswers::NotAsked, Instant::now()),
    };

    let pipeline = AppendPipeline {
        client,
        cut,
        input: Some(input),
        ready: VecDeque::new(),
        held: None,
        is_begun: false,
        requests,
        answers,
        opened_at,
        outstanding: VecDeque::new(),
        outstanding_bytes: 0,
        heard_at: Instant::now(),
        patience,
        opening_max,
        over: false,
    };

    futures::stream::unfold(pipeline, async |mut pipeline| {
        let answer = pipeline.next().await?;
        Some((answer, pipeline))
    })
}

struct AppendPipeline<'c, C, D, S> {
    client: &'c mut PeerClient<C, D>,
    /// Notified when the peer is too slow, and is sent a snapshot instead.
    cut: Option<Arc<Notify>>,
    /// openraft's requests, or `None` once there are no more.
    input: Option<S>,
    /// The remaining pieces of the last request, until there is room.
    ready: VecDeque<AppendPiece>,
    /// A request with a commit index only, and when to send it: unless a later request implies it.
    held: Option<(AppendRequest, Instant)>,
    /// Whether a request was sent before: the peer is known to follow.
    is_begun: bool,
    /// The request stream to gRPC. It is `None` before it is opened, and after the last request.
    requests: Option<mpsc::Sender<pb::AppendRequest>>,
    answers: AppendAnswers,
    /// When the stream was opened.
    opened_at: Instant,
    /// Unanswered requests, oldest first.
    outstanding: VecDeque<(AppendSpan, acknowledgements::Sent)>,
    outstanding_bytes: usize,
    /// When the last answer came, or when a request was sent while none was outstanding.
    heard_at: Instant,
    patience: Duration,
    /// How long a new connection may take until its first answer.
    opening_max: Duration,
    /// Whether the stream has ended.
    over: bool,
}

enum AppendAnswers {
    NotAsked,
    Asked(BoxFuture<'static, Result<Streaming<pb::AppendResponse>, Status>>),
    Coming(Box<Streaming<pb::AppendResponse>>),
}

/// A part of a request, within the size limit.
struct AppendPiece {
    request: pb::AppendRequest,
    /// The leader's term.
    term: u64,
    span: AppendSpan,
}

/// The data of a request that is needed to interpret its answer.
struct AppendSpan {
    previous: Option<LogId>,
    last: Option<LogId>,
    bytes: usize,
}

impl<C: Connector, D: SnapshotSource, S: Stream<Item = AppendRequest> + Unpin> AppendPipeline<'_, C, D, S> {
    async fn next(&mut self) -> Option<Result<StreamAppendResult, RpcError>> {
        while !self.over {
            self.send_what_fits();
            if self.over {
                break;
            }

            let deadline = self.deadline();
            let has_room = self.ready.is_empty();
            let held_until = self.held.as_ref().map(|(_, until)| *until);
            let Self { input, answers, cut, .. } = &mut *self;

            tokio::select! {
                // Answers first: they make room in flight, and a deadline must not pass while the answer that meets it is there to be read.
                biased;
                answer = answers.next() => return self.answered(answer),
                () = until(held_until) => self.send_held(),
                // openraft's stream is read only when all pieces of the last request are sent: what is not read stays in the log and takes
                // no memory.
                request = next_of(input), if has_room && input.is_some() => match request {
                    Some(request) => self.take(request),
                    None => {
                        self.send_held();
                        self.input = None;
                    }
                },
                // An error, not the end: at an error openraft looks where the follower is, and finds that it is sent a snapshot now.
                () = cut_requested(cut.as_deref()) => {
                    self.over = true;
                    let status = Status::aborted("the peer is too slow to receive entries; it is sent a snapshot instead");
                    return Some(Err(self.client.failed(&status)));
                }
                () = until(deadline) => {
                    self.over = true;
                    let Self { patience, opening_max, .. } = *self;
                    return Some(Err(self.client.timed_out_opening(RPCTypes::AppendEntries, patience, opening_max)));
                }
            }
        }
        None
    }

    fn take(&mut self, request: AppendRequest) {
        // The later request inherits the time of the earlier one. Otherwise a stream of commit indexes, each soon after the last, would be
        // put off for ever.
        let waits_until = match self.held.take_if(|(held, _)| implies(&request, held)) {
            Some((_, until)) => until,
            None => Instant::now() + COMMITTED_WAITS,
        };

        self.send_held();

        // Not the first request of a stream, though it has no entries: it asks whether the peer follows at all, and leadership waits for
        // the answer.
        if self.is_begun && request.entries.is_empty() {
            self.held = Some((request, waits_until));
        } else {
            self.ready.extend(cut(&request));
        }
        self.is_begun = true;
    }

    fn send_held(&mut self) {
        if let Some((held, _)) = self.held.take() {
            self.ready.extend(cut(&held));
        }
    }

    /// Hands pieces to gRPC while the limits in flight allow; closes the stream after the last one.
    fn send_what_fits(&mut self) {
        while let Some(piece) = self.ready.pop_front() {
            let full = self.outstanding.len() >= APPENDS_IN_FLIGHT_MAX
                || self.outstanding_bytes + piece.span.bytes > APPEND_BYTES_IN_FLIGHT_MAX;
            if full && !self.outstanding.is_empty() {
                self.ready.push_front(piece);
                return;
            }
            self.send(piece);
        }

        if self.input.is_none() && self.parks() {
            self.park();
        } else if self.input.is_none() {
            self.requests = None;
            // The stream had no request: no answer will come.
            self.over = matches!(self.answers, AppendAnswers::NotAsked);
        }
    }

    /// Whether the stream stays open for the next heartbeat.
    fn parks(&self) -> bool {
        self.client.purpose == Purpose::Heartbeats && self.opened_at.elapsed() < PARKED_MAX
    }

    /// Leaves the stream to the next heartbeat, once all are answered.
    fn park(&mut self) {
        if !self.outstanding.is_empty() {
            return;
        }
        self.over = true;
        if let Some(requests) = self.requests.take()
            && let AppendAnswers::Coming(answers) = std::mem::replace(&mut self.answers, AppendAnswers::NotAsked)
        {
            self.client.parked = Some(Parked { requests, answers, opened_at: self.opened_at });
        }
    }

    fn send(&mut self, piece: AppendPiece) {
        if self.outstanding.is_empty() {
            self.heard_at = Instant::now();
        }
        if self.requests.is_none() {
            self.open();
        }
        self.outstanding_bytes += piece.span.bytes;
        self.outstanding.push_back((piece.span, self.client.sending(piece.term)));
        // The channel is as long as the pipeline, so it has room. If gRPC has closed it, the answers tell why.
        let requests = self.requests.as_ref().expect("it was opened above");
        let _ = requests.try_send(piece.request);
    }

    /// Opens the stream. The first request does not wait until it is open: a heartbeat takes one round trip, not two.
    fn open(&mut self) {
        let (sender, receiver) = mpsc::channel(APPENDS_IN_FLIGHT_MAX);
        self.requests = Some(sender);
        self.opened_at = Instant::now();
        let opening = self.client.open();
        let callee = self.client.callee();
        self.answers = AppendAnswers::Asked(Box::pin(async move {
            let (mut stub, envelope) = opening.await?;
            let response = stub.append(envelope.address(ReceiverStream::new(receiver))).await?;
            callee.rely_on(response.metadata()).await?;
            Ok(response.into_inner())
        }));
    }

    /// When the peer counts as gone, because an answer or the end of its stream is overdue.
    fn deadline(&self) -> Option<Instant> {
        match self.outstanding.front() {
            // Count from the last answer and not from the request: a peer that works through a full pipeline is slow, and not dead.
            Some((oldest, _)) => Some(self.heard_at + self.patience + allowance(oldest.bytes as u64)),
            None if self.input.is_none() && self.ready.is_empty() => Some(self.heard_at + self.patience),
            None => None,
        }
    }

    fn answered(
        &mut self,
        answer: Result<Option<pb::AppendResponse>, Status>,
    ) -> Option<Result<StreamAppendResult, RpcError>> {
        self.heard_at = Instant::now();

        let answer = match answer {
            Ok(Some(mut answer)) => {
                self.client.answered();
                self.client.disk_reported(answer.disk.take());
                answer
            }
            Ok(None) => {
                self.over = true;
                if self.outstanding.is_empty() && self.input.is_none() {
                    return None;
                }
                let status = Status::unknown("the peer ended the stream of appends");
                return Some(Err(self.client.failed(&status)));
            }
            Err(status) => {
                self.over = true;
                return Some(Err(self.client.failed(&status)));
            }
        };

        let Some((span, sent)) = self.outstanding.pop_front() else {
            self.over = true;
            let status = Status::internal("the peer answered an append that was not sent");
            return Some(Err(self.client.failed(&status)));
        };
        self.outstanding_bytes -= span.bytes;

        match answer.into_result(span.previous, span.last) {
            Ok(result) => {
                // A follower that reports a conflict between the logs follows this leader as well.
                if result.is_ok() && span.bytes > 0 {
                    self.client.replicated(&sent);
                }
                match &result {
                    Ok(last) => self.client.acknowledged(sent, *last),
                    Err(StreamAppendError::Conflict(_)) => self.client.acknowledged(sent, None),
                    Err(StreamAppendError::HigherVote(_)) => {}
                }
                // Requests sent after a refused append are void; the peer answers none of them.
                self.over = result.is_err();
                Some(Ok(result))
            }
            Err(malformed) => {
                self.over = true;
                Some(Err(self.client.malformed_answer(&malformed)))
            }
        }
    }
}

impl AppendAnswers {
    /// The next answer; pending for ever before the first request. Dropping the future loses no answer.
    async fn next(&mut self) -> Result<Option<pb::AppendResponse>, Status> {
        loop {
            match self {
                Self::NotAsked => return std::future::pending().await,
                Self::Asked(opening) => *self = Self::Coming(Box::new(opening.await?)),
                Self::Coming(answers) => return answers.message().await,
            }
        }
    }
}

/// Whether the later request, once accepted, tells the follower and the leader at least as much as the earlier one, which has no entries.
fn implies(later: &AppendRequest, earlier: &AppendRequest) -> bool {
    later.vote == earlier.vote
        && later.prev_log_id >= earlier.prev_log_id
        && later.leader_commit >= earlier.leader_commit
}

/// Splits a request into pieces of at most [`APPEND_BYTES_MAX`], with at least one entry each.
fn cut(request: &AppendRequest) -> Vec<AppendPiece> {
    let mut whole = pb::AppendRequest::from(request);
    let entries = std::mem::take(&mut whole.entries);
    let mut pieces = Vec::with_capacity(1);
    let term = request.vote.leader_id.term;
    let mut piece = AppendPiece::after(request.prev_log_id, term, &whole);

    for (entry, log_id) in entries.into_iter().zip(request.entries.iter().map(|entry| entry.log_id)) {
        let bytes = entry.encoded_len();
        if !piece.request.entries.is_empty() && piece.span.bytes + bytes > APPEND_BYTES_MAX {
            let next = AppendPiece::after(piece.span.last, term, &whole);
            pieces.push(std::mem::replace(&mut piece, next));
        }
        piece.request.entries.push(entry);
        piece.span.bytes += bytes;
        piece.span.last = Some(log_id);
    }

    pieces.push(piece);
    pieces
}

impl AppendPiece {
    /// A piece of `whole` without entries yet.
    fn after(previous: Option<LogId>, term: u64, whole: &pb::AppendRequest) -> Self {
        Self {
            request: pb::AppendRequest {
                vote: whole.vote,
                previous: previous.as_ref().map(Into::into),
                entries: Vec::new(),
                leader_commit: whole.leader_commit,
            },
            term,
            span: AppendSpan { previous, last: previous, bytes: 0 },
        }
    }
}

async fn next_of<S: Stream + Unpin>(input: &mut Option<S>) -> Option<S::Item> {
    match input {
        Some(input) => input.next().await,
        None => None,
    }
}

async fn cut_requested(cut: Option<&Notify>) {
    match cut {
        Some(cut) => cut.notified().await,
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CommittedLeaderId, EntryPayload, LogEntry, Payload, Vote};

    fn log_id(index: u64) -> LogId {
        LogId { leader_id: CommittedLeaderId::new(1), index }
    }

    fn request(sizes: &[usize]) -> AppendRequest {
        let entry = |(at, size): (usize, &usize)| LogEntry {
            log_id: log_id(at as u64 + 1),
            payload: EntryPayload::Normal(Payload(vec![7; *size].into())),
        };
        AppendRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: Some(log_id(0)),
            entries: sizes.iter().enumerate().map(entry).collect(),
            leader_commit: Some(log_id(0)),
        }
    }

    fn ranges(sizes: &[usize]) -> Vec<(u64, u64)> {
        let range = |piece: AppendPiece| {
            let (previous, last) = (piece.span.previous.expect("not the first"), piece.span.last.expect("not empty"));
            assert_eq!(piece.request.entries.len() as u64, last.index - previous.index);
            assert_eq!(piece.request.previous, Some((&previous).into()));
            (previous.index, last.index)
        };
        cut(&request(sizes)).into_iter().map(range).collect()
    }

    #[test]
    fn requests_are_cut_to_size() {
        assert_eq!(ranges(&[]), [(0, 0)]);
        assert_eq!(ranges(&[10, 10, 10]), [(0, 3)]);
        let half = APPEND_BYTES_MAX / 2 - 100;
        assert_eq!(ranges(&[half, half, half, half, half]), [(0, 2), (2, 4), (4, 5)]);
        let large = APPEND_BYTES_MAX + 100_000;
        assert_eq!(ranges(&[large, 10, large, large]), [(0, 1), (1, 2), (2, 3), (3, 4)]);
    }
}
