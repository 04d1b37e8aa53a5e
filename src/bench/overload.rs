//! The workload `overload` sends more acquires than the cluster can serve.
//!
//! First the highest rate is measured with closed loops. Then acquires are sent at a multiple of that rate without
//! waiting for answers (an open loop), as by many independent clients: on streams, without the client library, which
//! would back off after refusals. Grants are released; a refused release is sent again. An overloaded service should
//! keep its highest rate and shed the rest at once.
//!
//! On one machine the load generator competes with the servers for processors, and each refusal costs both of them.
//! Therefore the rate that was really sent is a figure, too.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use futures::future::try_join_all;
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use lockkeeper_client::Session;
use lockkeeper_proto::v1::{
    AcquireRequest, PipelineRequest, PipelineResponse, ReleaseRequest, Want, acquire_response::Outcome,
    locks_client::LocksClient, pipeline_request::What as PipelineCall, pipeline_response::What as Answer,
    release_request::Target as Released,
};

use super::{
    BenchError, Figure, Series, SeriesCondition, Tell, Timing, pairs,
    recorder::ResultRecorder,
    target::{MeasuredCluster, close},
};

/// The number of streams that share the load. Each has its own connection.
const STREAMS: usize = 16;
/// The maximum number of pending requests of a stream. Acquires that are due beyond it are not sent. All streams
/// together allow twice the number of commands that a leader queues.
const PENDING_MAX: usize = 1_024;
/// The number of requests that may be queued for the connection.
const PIPE: usize = 1_024;
/// The interval at which due requests are sent.
const TICK: Duration = Duration::from_millis(1);

/// How much load is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overload {
    /// The number of workers of the closed loops that find the highest rate.
    pub workers: usize,
    /// The multiple of the highest rate that is sent.
    pub factor: u32,
}

impl Overload {
    pub(super) fn problem(self) -> Option<String> {
        (self.factor == 0).then(|| "factor 0 sends no load: choose at least 1".to_owned())
    }

    pub(super) async fn measure(
        self,
        target: &MeasuredCluster,
        timing: &Timing,
        stop: &CancellationToken,
        tell: &Tell,
    ) -> Result<Vec<Series>, BenchError> {
        let mut best = pairs::uncontended(target, self.workers, timing, stop).await?;
        let rate = best.spread(Figure::PerSecond).map_or(0.0, |rate| rate.median);
        tell(&format!("highest rate: {rate:.0} per second; now sending {} times that rate", self.factor));
        best.conditions = vec![("load", SeriesCondition::Word(format!("{} workers", self.workers)))];
        for figures in &mut best.repetitions {
            for figure in [Figure::Sent, Figure::Refused, Figure::RefusedP50, Figure::RefusedP99, Figure::Elections] {
                figures.put(figure, None);
            }
        }

        let terms = target.terms().await;
        let sessions = target.sessions(STREAMS).await?;
        let recorder = ResultRecorder::new(STREAMS, timing.repetitions);
        let per_stream = rate * f64::from(self.factor) / STREAMS as f64;
        let streams = sessions
            .iter()
            .enumerate()
            .map(|(place, session)| load(session, &target.prefix, place, per_stream, recorder.clone()));
        let servers = target.servers();
        let timed = tokio::select! {
            // The streams end only with an error.
            ended = try_join_all(streams) => return Err(ended.err().unwrap_or(BenchError::StreamEnded)),
            timed = recorder.run(timing, servers.as_deref(), stop) => timed,
        };

        // The number of elections is too low if the node with the highest term does not answer.
        let elected = target.terms().await.zip(terms).map(|(now, before)| now.saturating_sub(before) as f64);
        close(sessions).await;
        let conditions = vec![("load", SeriesCondition::Word(format!("{} × the best", self.factor)))];

        let timed = timed?;
        let mut over = recorder.series(conditions, &timed)?;
        recorder.put_refusals(&mut over, &timed);
        over.repetitions.iter_mut().for_each(|figures| figures.put(Figure::Elections, elected));
        Ok(vec![best, over])
    }
}

/// A request without an answer yet.
#[derive(Clone, Copy)]
struct PendingRequest {
    /// When its pair of acquire and release began.
    began: Instant,
    sent: Instant,
    /// The token to release, or `None` if the request is an acquire.
    releases: Option<u64>,
}

/// A stream that sends acquires at a fixed rate.
struct AcquireStream<'a> {
    session_id: &'a str,
    prefix: &'a str,
    pipe: mpsc::Sender<PipelineRequest>,
    place: usize,
    recorder: ResultRecorder,
    number: u64,
    pending: HashMap<u64, PendingRequest>,
    /// Releases that were refused or not sent yet, each with the begin of its pair.
    to_release: VecDeque<(Instant, u64)>,
}

/// Sends acquires at this rate until the stream fails.
async fn load(
    session: &Session,
    prefix: &str,
    place: usize,
    rate: f64,
    recorder: ResultRecorder,
) -> Result<(), BenchError> {
    let session_id = session.id().to_string();
    let (pipe, requests) = mpsc::channel(PIPE);

    let pending = HashMap::new();
    let to_release = VecDeque::new();

    let mut stream =
        AcquireStream { session_id: &session_id, prefix, pipe, place, recorder, number: 0, pending, to_release };

    // The server answers only after the first request, so send it before waiting for the stream.
    stream.acquire();
    let mut service = LocksClient::new(session.client().preferred_channel());
    let mut answers = service.pipeline(ReceiverStream::new(requests)).await?.into_inner();

    let began = Instant::now();
    let mut due = 0;
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);

    loop {
        tokio::select! {
            answer = answers.message() => stream.hear(answer?.ok_or(BenchError::StreamEnded)?),
            _ = tick.tick() => {
                stream.release();
                let until = (began.elapsed().as_secs_f64() * rate) as u64;
                (due..until).for_each(|_| stream.acquire());
                due = until;
            }
        }
    }
}

impl AcquireStream<'_> {
    fn acquire(&mut self) {
        let name = format!("{}{:016x}", self.prefix, rand::random::<u64>());
        let locks = vec![Want { name, ..Want::default() }];
        let acquire = AcquireRequest { session_id: self.session_id.to_owned(), locks, ..AcquireRequest::default() };
        let sent = self.send(PipelineCall::Acquire(acquire), Instant::now(), None);
        if sent {
            self.recorder.sent();
        }
    }

    /// Sends the due releases, up to the limit of pending requests.
    fn release(&mut self) {
        while let Some(&(began, token)) = self.to_release.front() {
            let target = Some(Released::Token(token));
            let release = ReleaseRequest { session_id: self.session_id.to_owned(), request: None, target };
            if !self.send(PipelineCall::Release(release), began, Some(token)) {
                return;
            }
            self.to_release.pop_front();
        }
    }

    /// Sends a request and returns whether it was sent. It is not sent beyond the limit of pending requests.
    fn send(&mut self, what: PipelineCall, began: Instant, releases: Option<u64>) -> bool {
        // Releases have a higher limit, so they are always possible.
        let room = if releases.is_some() { 2 * PENDING_MAX } else { PENDING_MAX };
        if self.pending.len() >= room {
            return false;
        }

        self.number += 1;
        let is_sent = self.pipe.try_send(PipelineRequest { number: self.number, what: Some(what) }).is_ok();
        if is_sent {
            self.pending.insert(self.number, PendingRequest { began, sent: Instant::now(), releases });
        }

        is_sent
    }

    fn hear(&mut self, PipelineResponse { number, what, .. }: PipelineResponse) {
        let Some(PendingRequest { began, sent, releases }) = self.pending.remove(&number) else { return };
        match what {
            Some(Answer::Acquire(answer)) => match answer.outcome {
                Some(Outcome::Granted(grant)) => {
                    self.to_release.push_back((began, grant.token));
                    self.release();
                }
                _ => self.recorder.note(self.place, Err("an uncontended lock was not granted")),
            },
            Some(Answer::Release(_)) => self.recorder.note::<&str>(self.place, Ok(began.elapsed())),
            Some(Answer::Failure(failure)) if failure.code == i32::from(Code::ResourceExhausted) => {
                self.recorder.refused(sent.elapsed());
                self.to_release.extend(releases.map(|token| (began, token)));
            }
            Some(Answer::Failure(failure)) => self.recorder.note(self.place, Err(failure.message)),
            Some(Answer::Check(_) | Answer::Get(_)) | None => {
                self.recorder.note(self.place, Err("an answer of another kind than the request"));
            }
        }
    }
}
