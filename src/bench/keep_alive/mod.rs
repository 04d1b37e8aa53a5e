//! `keepalive`: what it costs to keep sessions alive.
//!
//! Sessions share streams, as `proto` allows and as clients of other services do by themselves. (A [`crate::client::Session`] has a stream
//! of its own: as many streams as sessions show what that costs.) Renewals come at a fixed rate, evenly over the sessions, or so many
//! are in flight all the time, each answer sending the next.

mod stream;

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _, future::join_all, stream as streams};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use self::stream::{Pace, renew};
use super::{BenchError, Condition, Series, Timing, recorder::Recorder, target::Target};
use crate::{
    client::{AttachedSession, Client, SessionOptions},
    machine::Ttl,
};

/// Opens and closes that are under way at a time.
const AT_A_TIME: usize = 256;
/// How long streams may take to end, and sessions to be closed.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What to keep alive.
#[derive(Clone, PartialEq, Debug)]
pub struct KeepAlive {
    /// How many sessions.
    pub sessions: usize,
    /// How long each lives without a renewal.
    pub ttl: Duration,
    /// Streams that they share, up to 10,000 sessions on each.
    pub streams: usize,
    /// How fast; one measurement for each.
    pub rates: Vec<Rate>,
    /// In flight, all streams together, where there is no limit to the rate; one measurement for each number.
    pub in_flight: Vec<usize>,
}

/// How fast to renew.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rate {
    /// So many a second.
    PerSecond(f64),
    /// As many as are answered.
    Max,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<f64>() {
            _ if text == "max" => Ok(Self::Max),
            Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(Self::PerSecond(rate)),
            Ok(_) | Err(_) => Err("neither a number of renewals a second nor `max`".to_owned()),
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

impl KeepAlive {
    /// What of it cannot be.
    pub(super) fn problem(&self) -> Option<String> {
        let ttl_ms = u32::try_from(self.ttl.as_millis()).unwrap_or(u32::MAX);
        if let Err(invalid) = Ttl::from_millis(ttl_ms) {
            return Some(format!("a ttl of {:?} cannot be: {invalid}", self.ttl));
        }
        // Where the client library begins to worry.
        let slowest = self.sessions as f64 / (self.ttl.as_secs_f64() * 0.9);
        let too_slow = self.rates.iter().find(|rate| matches!(rate, Rate::PerSecond(rate) if *rate < slowest));
        if self.streams == 0 || self.streams > self.sessions {
            return Some(format!("{} streams for {} sessions: each stream needs one", self.streams, self.sessions));
        }
        too_slow.map(|rate| {
            format!(
                "at {rate} renewals a second, {} sessions with a TTL of {:?} expire: {} a second keep them alive",
                self.sessions,
                self.ttl,
                slowest.ceil()
            )
        })
    }

    /// What is to be measured, one after the other.
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
        target: &Target,
        timing: &Timing,
        stop: &CancellationToken,
    ) -> Result<Series, BenchError> {
        let clients = target.clients(self.streams)?;
        let sessions = self.open(&clients).await?;
        let recorder = Recorder::new(self.streams, timing.repetitions);
        let start = |place: usize| {
            let client = clients[place % clients.len()].clone();
            let of_stream = sessions.iter().skip(place).step_by(self.streams).map(|session| session.id()).collect();
            let pace = match rate {
                // Each stream its share, one after the other: evenly over all.
                Rate::PerSecond(rate) => {
                    Pace::every(Duration::from_secs_f64(self.streams as f64 / rate), place as f64 / rate)
                }
                Rate::Max => Pace::InFlight(in_flight.div_ceil(self.streams)),
            };
            tokio::spawn(renew(client, of_stream, pace, place, recorder.clone()))
        };
        let tasks: Vec<JoinHandle<Result<(), BenchError>>> = (0..self.streams).map(start).collect();
        let handles: Vec<_> = tasks.iter().map(JoinHandle::abort_handle).collect();
        let timed = recorder.run(timing, target.servers().as_deref(), stop).await;
        let ended = timeout(END_LIMIT, join_all(tasks)).await.unwrap_or_default();
        handles.iter().for_each(tokio::task::AbortHandle::abort);
        close(&sessions).await;
        let timed = timed?;
        ended.into_iter().flatten().collect::<Result<(), BenchError>>()?;
        let in_flight = match rate {
            Rate::PerSecond(_) => Condition::None,
            Rate::Max => in_flight.into(),
        };
        let conditions = vec![
            ("sessions", self.sessions.into()),
            ("streams", self.streams.into()),
            ("rate", Condition::Word(rate.to_string())),
            ("in_flight", in_flight),
        ];
        recorder.series(conditions, &timed)
    }

    /// Fails if that takes so long that the first may be over before they are renewed.
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
        let fine =
            KeepAlive { sessions: 900, ttl, streams: 4, rates: vec![Rate::PerSecond(100.0)], in_flight: Vec::new() };
        assert_eq!(fine.problem(), None);
        let slow = KeepAlive { rates: vec![Rate::Max, Rate::PerSecond(99.0)], ..fine.clone() };
        assert!(slow.problem().is_some_and(|problem| problem.contains("100 a second")));
        assert!(KeepAlive { streams: 901, ..fine.clone() }.problem().is_some());
        assert!(KeepAlive { streams: 0, ..fine }.problem().is_some());
    }
}
