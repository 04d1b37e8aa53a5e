//! `overload`: more acquires than can be served.
//!
//! First the best rate is measured, by closed loops. Then acquires are sent at a multiple of that rate, whatever becomes of the earlier
//! ones (an open loop), as by a crowd of clients that do not know of each other: on streams, without the client library, which would
//! slow down when it is refused. What is granted is released; a release that is refused is sent again. A service that is overloaded
//! should go on at its best rate and refuse the rest at once.
//!
//! On one machine the load competes with the servers for the processors, and each refusal costs both some. How much was really sent is
//! a figure for that reason.

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

use super::{
    BenchError, Condition, Figure, Series, Tell, Timing, pairs,
    recorder::Recorder,
    target::{Target, close},
};
use crate::{
    client::Session,
    proto::v1::{
        AcquireRequest, PipelineRequest, PipelineResponse, ReleaseRequest, Want, acquire_response::Outcome,
        locks_client::LocksClient, pipeline_request::What as Asked, pipeline_response::What as Answer,
        release_request::Target as Released,
    },
};

/// Streams that share the load, each on a connection of its own.
const STREAMS: usize = 16;
/// Requests of one stream that wait for their answers, at most: what is due beyond that is not sent. Together they are twice the
/// commands that a leader lets wait.
const UNDER_WAY: usize = 1_024;
/// Requests that are handed to the connection and not yet on their way.
const PIPE: usize = 1_024;
/// How often what is due is sent.
const TICK: Duration = Duration::from_millis(1);

/// How much more is asked for than can be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overload {
    /// Workers of the closed loops that find the best rate.
    pub workers: usize,
    /// So many times the best rate is sent.
    pub factor: u32,
}

impl Overload {
    pub(super) fn problem(self) -> Option<String> {
        (self.factor == 0).then(|| "0 times the best rate is no load".to_owned())
    }

    pub(super) async fn measure(
        self,
        target: &Target,
        timing: &Timing,
        stop: &CancellationToken,
        tell: &Tell,
    ) -> Result<Vec<Series>, BenchError> {
        let mut best = pairs::uncontended(target, self.workers, timing, stop).await?;
        let rate = best.spread(Figure::PerSecond).map_or(0.0, |rate| rate.median);
        tell(&format!("at its best: {rate:.0} a second; now {} times as much", self.factor));
        best.conditions = vec![("load", Condition::Word(format!("{} workers", self.workers)))];
        for figures in &mut best.repetitions {
            for figure in [Figure::Sent, Figure::Refused, Figure::RefusedP50, Figure::RefusedP99, Figure::Elections] {
                figures.put(figure, None);
            }
        }

        let terms = target.terms().await;
        let sessions = target.sessions(STREAMS).await?;
        let recorder = Recorder::new(STREAMS, timing.repetitions);
        let per_stream = rate * f64::from(self.factor) / STREAMS as f64;
        let streams = sessions
            .iter()
            .enumerate()
            .map(|(place, session)| load(session, &target.prefix, place, per_stream, recorder.clone()));
        let servers = target.servers();
        let timed = tokio::select! {
            // They end when it is over.
            ended = try_join_all(streams) => return Err(ended.err().unwrap_or(BenchError::StreamEnded)),
            timed = recorder.run(timing, servers.as_deref(), stop) => timed,
        };
        // A node that does not answer now may be the one that knew the highest.
        let elected = target.terms().await.zip(terms).map(|(now, before)| now.saturating_sub(before) as f64);
        close(sessions).await;
        let conditions = vec![("load", Condition::Word(format!("{} × the best", self.factor)))];
        let timed = timed?;
        let mut over = recorder.series(conditions, &timed)?;
        recorder.put_refusals(&mut over, &timed);
        over.repetitions.iter_mut().for_each(|figures| figures.put(Figure::Elections, elected));
        Ok(vec![best, over])
    }
}

/// A request that is not answered.
#[derive(Clone, Copy)]
struct UnderWay {
    /// When its pair began.
    began: Instant,
    sent: Instant,
    /// The token that it gives back; `None`: it is an acquire.
    releases: Option<u64>,
}

/// One stream, on which so many acquires a second are due.
struct Stream<'a> {
    session_id: &'a str,
    prefix: &'a str,
    pipe: mpsc::Sender<PipelineRequest>,
    place: usize,
    recorder: Recorder,
    number: u64,
    under_way: HashMap<u64, UnderWay>,
    /// Releases that were refused, or not sent yet.
    to_release: VecDeque<(Instant, u64)>,
}

/// Does not end but with an error.
async fn load(session: &Session, prefix: &str, place: usize, rate: f64, recorder: Recorder) -> Result<(), BenchError> {
    let session_id = session.id().to_string();
    let (pipe, requests) = mpsc::channel(PIPE);
    let (under_way, to_release) = (HashMap::new(), VecDeque::new());
    let mut stream =
        Stream { session_id: &session_id, prefix, pipe, place, recorder, number: 0, under_way, to_release };
    // The first request opens the stream: a server answers when it has seen one.
    stream.acquire();
    let mut service = LocksClient::new(session.core().client.caller.nodes.preferred().channel);
    let mut answers = service.pipeline(ReceiverStream::new(requests)).await?.into_inner();
    let (began, mut due) = (Instant::now(), 0);
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

impl Stream<'_> {
    fn acquire(&mut self) {
        let name = format!("{}{:016x}", self.prefix, rand::random::<u64>());
        let locks = vec![Want { name, ..Want::default() }];
        let acquire = AcquireRequest { session_id: self.session_id.to_owned(), locks, ..AcquireRequest::default() };
        let sent = self.send(Asked::Acquire(acquire), Instant::now(), None);
        if sent {
            self.recorder.sent();
        }
    }

    /// All that is to be released, as far as it goes.
    fn release(&mut self) {
        while let Some(&(began, token)) = self.to_release.front() {
            let target = Some(Released::Token(token));
            let release = ReleaseRequest { session_id: self.session_id.to_owned(), request: None, target };
            if !self.send(Asked::Release(release), began, Some(token)) {
                return;
            }
            self.to_release.pop_front();
        }
    }

    /// Answers whether it was sent: not if too much is under way.
    fn send(&mut self, what: Asked, began: Instant, releases: Option<u64>) -> bool {
        // There is always room for releases.
        let room = if releases.is_some() { 2 * UNDER_WAY } else { UNDER_WAY };
        if self.under_way.len() >= room {
            return false;
        }
        self.number += 1;
        let is_sent = self.pipe.try_send(PipelineRequest { number: self.number, what: Some(what) }).is_ok();
        if is_sent {
            self.under_way.insert(self.number, UnderWay { began, sent: Instant::now(), releases });
        }
        is_sent
    }

    fn hear(&mut self, PipelineResponse { number, what, .. }: PipelineResponse) {
        let Some(UnderWay { began, sent, releases }) = self.under_way.remove(&number) else { return };
        match what {
            Some(Answer::Acquire(answer)) => match answer.outcome {
                Some(Outcome::Granted(grant)) => {
                    self.to_release.push_back((began, grant.token));
                    self.release();
                }
                _ => self.recorder.note(self.place, Err("a lock that nobody wants was not granted")),
            },
            Some(Answer::Release(_)) => self.recorder.note::<&str>(self.place, Ok(began.elapsed())),
            Some(Answer::Failure(failure)) if failure.code == i32::from(Code::ResourceExhausted) => {
                self.recorder.refused(sent.elapsed());
                self.to_release.extend(releases.map(|token| (began, token)));
            }
            Some(Answer::Failure(failure)) => self.recorder.note(self.place, Err(failure.message)),
            Some(Answer::Check(_) | Answer::Get(_)) | None => {
                self.recorder.note(self.place, Err("an answer to another question"));
            }
        }
    }
}
