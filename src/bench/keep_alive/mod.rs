//! The workload `keepalive` measures the cost of renewals.
//!
//! Sessions share streams, as the protocol allows and as clients of other services do. (A [`lockkeeper_client::Session`]
//! has its own stream: with as many streams as sessions, this measures that case.) Renewals are sent at a fixed rate,
//! evenly over the sessions, or with a fixed number in flight.

mod stream;

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _, future::join_all, stream as streams};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use lockkeeper_client::{AttachedSession, Client, SessionOptions};
use lockkeeper_machine::Ttl;

use self::stream::{RenewalPace, renew};
use super::{BenchError, Series, SeriesCondition, Timing, recorder::ResultRecorder, target::MeasuredCluster};

/// The number of concurrent opens and closes.
const AT_A_TIME: usize = 256;
/// How long the streams may take to end, and the sessions to be closed.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The options of the `keepalive` workload.
#[derive(Clone, PartialEq, Debug)]
pub struct KeepAliveOptions {
    /// The number of sessions.
    pub sessions: usize,
    /// The TTL of each session.
    pub ttl: Duration,
    /// The number of streams that the sessions share. A stream carries up to 10,000 sessions.
    pub streams: usize,
    /// The rates of renewals. Each is measured on its own.
    pub rates: Vec<Rate>,
    /// The numbers of renewals in flight over all streams, for an unlimited rate. Each is measured on its own.
    pub in_flight: Vec<usize>,
}

/// How fast renewals are sent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rate {
    /// This number of renewals is sent per second.
    PerSecond(f64),
    /// The rate is unlimited: each answer triggers the next renewal.
    Max,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            _ if text == "max" => Ok(Self::Max),
            Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(Self::PerSecond(rate)),
            Ok(_) | Err(_) => Err("give a number of renewals per second above 0, or `max`".to_owned()),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerSecond(rate) => write!(f, "{rate}"),
            Self::Max => write!(f, "max"),
        }
    }
}

impl KeepAliveOptions {
    /// The problem with the options, if there is one.
    pub(super) fn problem(&self) -> Option<String> {
        let ttl_ms = u32::try_from(self.ttl.as_millis()).unwrap_or(u32::MAX);
        if let Err(invalid) = Ttl::from_millis(ttl_ms) {
            return Some(format!("a TTL of {:?} is invalid: {invalid}", self.ttl));
        }

        // A renewal counts as late at this age in the client library, too.
        let slowest = self.sessions as f64 / (self.ttl.as_secs_f64() * 0.9);
        let too_slow = self.rates.iter().find(|rate| matches!(rate, Rate::PerSecond(rate) if *rate < slowest));

        if self.streams == 0 || self.streams > self.sessions {
            return Some(format!(
                "{} streams for {} sessions: choose from 1 to the number of sessions",
                self.streams, self.sessions
            ));
        }

        too_slow.map(|rate| {
            format!(
                "at {rate} renewals per second, {} sessions with a TTL of {:?} expire: choose a --rate of at least {}",
                self.sessions,
                self.ttl,
                slowest.ceil()
            )
        })
    }

    /// The rates and numbers in flight to measure, in order.
    pub(super) fn cases(&self) -> Vec<(Rate, usize)> {
        let of_rate = |&rate: &Rate| match rate {
            Rate::PerSecond(_) => vec![(rate, 0)],
            Rate::Max => self.in_flight.iter().map(|&in_flight| (rate, in_flight)).collect(),
        };
        self.rates.iter().flat_map(of_rate).collect()
    }

    pub(super) async fn measure(
        &self,
        (rate, in_flight): (Rate, usize),
        target: &MeasuredCluster,
        timing: &Timing,
        stop: &CancellationToken,
    ) -> Result<Series, BenchError> {
        let clients = target.clients(self.streams)?;
        let sessions = self.open(&clients).await?;

        let recorder = ResultRecorder::new(self.streams, timing.repetitions);
        let start = |place: usize| {
            let client = clients[place % clients.len()].clone();
            let of_stream = sessions.iter().skip(place).step_by(self.streams);
            let session_ids = of_stream.map(|session| session.id()).collect();

            let pace = match rate {
                // Each stream sends its share with an offset, so the renewals are spread evenly over all streams.
                Rate::PerSecond(rate) => {
                    RenewalPace::every(Duration::from_secs_f64(self.streams as f64 / rate), place as f64 / rate)
                }
                Rate::Max => RenewalPace::InFlight(in_flight.div_ceil(self.streams)),
            };

            tokio::spawn(renew(client, session_ids, pace, place, recorder.clone()))
        };

        let tasks: Vec<JoinHandle<Result<(), BenchError>>> = (0..self.streams).map(start).collect();
        let handles: Vec<_> = tasks.iter().map(JoinHandle::abort_handle).collect();

        let timed = recorder.run(timing, target.servers().as_deref(), stop).await;

        let ended = timeout(END_LIMIT, join_all(tasks)).await.unwrap_or_default();
        handles.iter().for_each(tokio::task::AbortHandle::abort);
        close(&sessions).await;

        // The sessions are closed by now, so an error may end the measurement.

        let timed = timed?;
        ended.into_iter().flatten().collect::<Result<(), BenchError>>()?;

        let in_flight = match rate {
            Rate::PerSecond(_) => SeriesCondition::None,
            Rate::Max => in_flight.into(),
        };

        let conditions = vec![
            ("sessions", self.sessions.into()),
            ("streams", self.streams.into()),
            ("rate", SeriesCondition::Word(rate.to_string())),
            ("in_flight", in_flight),
        ];

        recorder.series(conditions, &timed)
    }

    /// Opens the sessions. Fails if that takes so long that the first ones may expire before their first renewal.
    async fn open(&self, clients: &[Client]) -> Result<Vec<AttachedSession>, BenchError> {
        let open = |place: usize| {
            let client = clients[place % clients.len()].clone();
            let options = SessionOptions { ttl: self.ttl, ..SessionOptions::default() };
            async move { client.open_detached(options).await }
        };

        let began = Instant::now();
        let opened: Vec<_> = streams::iter(0..self.sessions).map(open).buffered(AT_A_TIME).try_collect().await?;

        if began.elapsed() > self.ttl / 2 {
            return Err(BenchError::SlowToOpen { sessions: self.sessions, took: began.elapsed(), ttl: self.ttl });
        }

        Ok(opened.into_iter().map(|(session, _)| session).collect())
    }
}

async fn close(sessions: &[AttachedSession]) {
    let closing = streams::iter(sessions).for_each_concurrent(AT_A_TIME, |session| async move {
        let _ = session.close().await;
    });
    let _ = timeout(END_LIMIT, closing).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_number_or_the_highest() {
        assert_eq!("3000".parse(), Ok(Rate::PerSecond(3_000.0)));
        assert_eq!("max".parse(), Ok(Rate::Max));
        for wrong in ["", "fast", "0", "-1", "NaN", "inf"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sessions_that_would_expire_are_noticed_beforehand() {
        let ttl = Duration::from_secs(10);
        let fine = KeepAliveOptions {
            sessions: 900,
            ttl,
            streams: 4,
            rates: vec![Rate::PerSecond(100.0)],
            in_flight: Vec::new(),
        };
        assert_eq!(fine.problem(), None);
        let slow = KeepAliveOptions { rates: vec![Rate::Max, Rate::PerSecond(99.0)], ..fine.clone() };
        assert!(slow.problem().is_some_and(|problem| problem.contains("at least 100")));
        assert!(KeepAliveOptions { streams: 901, ..fine.clone() }.problem().is_some());
        assert!(KeepAliveOptions { streams: 0, ..fine }.problem().is_some());
    }
}
