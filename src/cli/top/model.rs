//! What the looks say together: rates, and outages.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

use super::{
    super::{
        nodes::{self, AskedNode},
        show,
    },
    look::{Since, TopLook, TopRequest, TotalsOrigin},
};
use crate::client::{Busiest, BusyLock, LongWait, Totals};

/// Rates that are kept: as many columns of a graph.
const RATES_KEPT: usize = 240;
/// Grants of a lock are counted over this time.
const COUNTED: Duration = Duration::from_secs(10);

/// The known state of the cluster.
pub(super) struct TopModel {
    endpoints: Vec<String>,
    /// The source of the endpoints, for people.
    source: String,
    /// The last look in which a node answered.
    look: Option<TopLook>,
    /// The nodes, as of the last look.
    nodes: Vec<AskedNode>,
    /// Totals of the same origin, the newest last.
    points: VecDeque<Point>,
    origin: Option<TotalsOrigin>,
    /// The newest last. An unknown rate is `None`.
    rates: VecDeque<Option<Rates>>,
    /// The time since which no node answers, and the reason.
    silence: Option<(Instant, String)>,
    /// The time since which no leader serves.
    leaderless: Option<Instant>,
}

/// A look's totals.
struct Point {
    at: Instant,
    index: u64,
    totals: Totals,
}

/// Events a second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Rates {
    pub(super) granted: f64,
    pub(super) released: f64,
    /// Locks lost with their sessions, or to an operator.
    pub(super) lost: f64,
}

/// How bad a line is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum NoticeLevel {
    Note,
    Warning,
    Trouble,
}

impl TopModel {
    pub(super) fn new(endpoints: Vec<String>, source: String) -> Self {
        Self {
            endpoints,
            source,
            look: None,
            nodes: Vec::new(),
            points: VecDeque::new(),
            origin: None,
            rates: VecDeque::new(),
            silence: None,
            leaderless: None,
        }
    }

    /// What the next look asks for.
    pub(super) fn asked(&self, prefix: &str) -> TopRequest {
        let newest = self.points.back().map(|point| point.at);
        let in_time = |point: &&Point| newest.is_some_and(|newest| newest - point.at <= COUNTED);
        let first = self.points.iter().find(in_time);
        let since = self.origin.clone().zip(first).map(|(origin, point)| Since { origin, index: point.index });
        TopRequest { prefix: prefix.to_owned(), since }
    }

    pub(super) fn add(&mut self, look: TopLook) {
        let rates = self.rates_of(&look);
        self.rates.push_back(rates);
        if self.rates.len() > RATES_KEPT {
            self.rates.pop_front();
        }

        self.nodes.clone_from(&look.nodes);

        if !look.is_answered() {
            let why = look.nodes.iter().map(nodes::trouble).next().unwrap_or_default();
            let since = self.silence.take().map_or(look.at, |(since, _)| since);
            self.silence = Some((since, why));
            return;
        }

        self.silence = None;
        self.leaderless = match nodes::leader(&look.nodes) {
            Some(_) => None,
            None => Some(self.leaderless.unwrap_or(look.at)),
        };
        self.look = Some(look);
    }

    /// The rates since the look before, if the same start of the same node told of both.
    fn rates_of(&mut self, look: &TopLook) -> Option<Rates> {
        let Busiest { index, totals, .. } = *look.busiest.as_ref()?.as_ref().ok()?;
        let origin = look.origin();
        if self.origin != origin {
            self.points.clear();
            self.origin = origin;
        }
        let rates = self.points.back().map(|before| Rates::between(before.totals, totals, look.at - before.at));
        self.points.push_back(Point { at: look.at, index, totals });
        while self.points.len() > RATES_KEPT {
            self.points.pop_front();
        }
        rates
    }

    /// The last look in which a node answered.
    pub(super) fn look(&self) -> Option<&TopLook> {
        self.look.as_ref()
    }

    /// Whether a node answered the last look.
    pub(super) fn is_answered(&self) -> bool {
        self.silence.is_none()
    }

    /// The nodes, as of the last look.
    pub(super) fn nodes(&self) -> &[AskedNode] {
        &self.nodes
    }

    /// The newest rates.
    pub(super) fn rates(&self) -> Option<Rates> {
        self.rates.back().copied().flatten()
    }

    /// The rates, the newest first.
    pub(super) fn history(&self) -> impl Iterator<Item = Option<Rates>> + '_ {
        self.rates.iter().rev().copied()
    }

    fn busiest(&self) -> Option<&Busiest> {
        self.look.as_ref()?.busiest.as_ref()?.as_ref().ok()
    }

    pub(super) fn locks(&self) -> &[BusyLock] {
        self.busiest().map_or(&[], |busiest| &busiest.locks)
    }

    pub(super) fn waits(&self) -> &[LongWait] {
        self.busiest().map_or(&[], |busiest| &busiest.waits)
    }

    /// Grants of the lock a second, if it is known over which time they were counted.
    pub(super) fn grant_rate(&self, busy: &BusyLock) -> Option<f64> {
        let busiest = self.busiest()?;
        let now = self.points.back()?.at;
        let seconds = (now - self.time_at(busiest.counted_after_index)?).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        (seconds > 0.0).then(|| busy.grants as f64 / seconds)
    }

    /// When the node had applied this entry, estimated between two looks.
    fn time_at(&self, index: u64) -> Option<Instant> {
        let after = self.points.iter().position(|point| point.index >= index)?;
        let later = &self.points[after];
        let Some(earlier) = after.checked_sub(1).map(|before| &self.points[before]) else {
            return (later.index == index).then_some(later.at);
        };
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let part = (index - earlier.index) as f64 / (later.index - earlier.index) as f64;
        Some(earlier.at + (later.at - earlier.at).mul_f64(part))
    }

    /// The problems, the worst first, for people.
    pub(super) fn notices(&self, now: Instant) -> Vec<(NoticeLevel, String)> {
        let mut notices = Vec::new();
        let lasts = |since: Instant| match (now - since).as_secs() {
            0 => String::new(),
            seconds => format!(" for {}", show::duration(Duration::from_secs(seconds))),
        };

        if let Some((since, why)) = &self.silence {
            let nodes = self.endpoints.join(",");
            let why = show::text(why);
            let source = if self.source.is_empty() { String::new() } else { format!(" ({})", self.source) };
            let silent = format!("no node answers{}, of {nodes}{source}: {why}; trying again", lasts(*since));
            notices.push((NoticeLevel::Trouble, silent));
            return notices;
        }

        let Some(look) = &self.look else {
            notices.push((NoticeLevel::Note, format!("asking {}", self.endpoints.join(","))));
            return notices;
        };

        if let Some(since) = self.leaderless {
            let silent = format!("no leader serves{}: no lock is granted until one is elected", lasts(since));
            notices.push((NoticeLevel::Trouble, silent));
        }
        if let Some(down) = nodes::down(&look.nodes) {
            notices.push((NoticeLevel::Warning, down));
        }

        match &look.busiest {
            Some(Err(error)) => {
                let error = show::text(&error.to_string());

                notices.push((NoticeLevel::Warning, format!("the locks are not known: {error}")));
            }
            Some(Ok(busiest)) if busiest.more_waits => {
                notices.push((
                    NoticeLevel::Note,
                    "more acquires wait than were examined: some queues are longer than shown, or missing".to_owned(),
                ));
            }
            Some(Ok(_)) | None => {}
        }
        notices
    }
}

impl Rates {
    fn between(before: Totals, after: Totals, time: Duration) -> Self {
        let seconds = time.as_secs_f64().max(f64::MIN_POSITIVE);
        #[expect(clippy::cast_precision_loss, reason = "events of one interval")]
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        Self {
            granted: rate(before.granted, after.granted),
            released: rate(before.released, after.released),
            lost: rate(before.expired + before.forced, after.expired + after.forced),
        }
    }
}

/// A rate with as many digits as it needs.
pub(super) fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 99.95 => format!("{rate:.0}"),
        rate if rate > 0.0 && rate < 0.05 => "<0.1".to_owned(),
        rate => format!("{rate:.1}"),
    }
}

/// The time since a moment of the wall clock; zero for one in the future, as clocks differ.
pub(super) fn since(unix_ms: u64, now_unix_ms: u64) -> String {
    let ms = now_unix_ms.saturating_sub(unix_ms);
    // Under a second people see only that it is new.
    if ms < 1_000 { "<1 s".to_owned() } else { show::duration(Duration::from_millis(ms)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_the_digits_that_fit() {
        let shown = [0.0, 0.01, 0.25, 12.34, 99.96, 4_321.7].map(rate);
        assert_eq!(shown, ["0.0", "<0.1", "0.2", "12.3", "100", "4322"]);
    }

    #[test]
    fn a_moment_in_the_future_is_now() {
        assert_eq!((since(5_000, 4_000), since(4_000, 9_500)), ("<1 s".to_owned(), "5.5 s".to_owned()));
    }
}
