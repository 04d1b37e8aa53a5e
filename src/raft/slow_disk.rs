//! A leader whose disk has become slow hands over leadership.
//!
//! A majority commits an entry, so the leader's own disk is not always waited for. But a leader with a slow disk fills its write-ahead
//! queue and then delays every entry; and of three members, both others must answer each time, so that one slow follower more stops the
//! cluster.
//!
//! **The measure.** About every `INTERVAL` while entries are written, the leader takes the newest entry, and the times from its append
//! until it is durable here, and until each peer has acknowledged it. The latter contain the network and the peer's own sync. The disk is
//! slow if the median of the last `SAMPLES` times here is at least `SLOW` and at least `RATIO` times the median of a peer. That peer
//! gets the leadership, if it is a voter that answers and has almost the whole log ([`super::handover`]).
//!
//! **Stability.** If all disks are slow, the ratio is not reached, and nothing happens. The new leader measures the slow disk in the
//! acknowledgements of the former leader, and does not hand back. One slow sync does not change a median; samples older than `AGE_MAX`
//! do not count; and a node hands over at most once in `REST`.
//!
//! Deliberately absent: a hand-over by an idle leader, since nothing is written, so nobody waits.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use openraft::async_runtime::WatchReceiver;
use tokio::time::{Instant, sleep};

use super::{
    handover,
    leadership::{Leadership, Led},
    replica::Replica,
};

/// Time between two samples.
const INTERVAL: Duration = Duration::from_millis(250);
/// Samples that decide.
const SAMPLES: usize = 12;
/// The age at which a sample no longer counts.
const AGE_MAX: Duration = Duration::from_secs(60);
/// The longest time that is measured; an entry that takes longer counts as this.
const TIME_MAX: Duration = Duration::from_secs(2);
/// The resolution of the measurement.
const LOOK: Duration = Duration::from_millis(5);
/// The median time until an entry is durable here, from which on the disk may be slow. A disk of a server takes 0.2 to 20 ms.
const SLOW: Duration = Duration::from_millis(100);
/// How many times as long as a peer's acknowledgements.
const RATIO: u32 = 4;
/// The shortest time between two hand-overs by this node.
const REST: Duration = Duration::from_secs(60);
/// How long the successor may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The times until an entry was durable.
#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    here: Duration,
    peers: BTreeMap<u64, Duration>,
}

/// The last samples of this leadership, oldest first.
#[derive(Debug, Default)]
struct Window(VecDeque<Sample>);

/// A slow disk, and the peer that should lead.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Verdict {
    successor: u64,
    /// Medians.
    here: Duration,
    there: Duration,
}

/// Hands leadership over when this node's disk is slow: see the [module](self). Returns when Raft stops.
pub async fn watch(replica: Replica) {
    let mut led: Led = replica.led();
    let mut handed_over: Option<Instant> = None;
    while led.wait_for(Option::is_some).await.is_ok() {
        let Some(term) = term(&led) else { continue };
        let mut window = Window::default();
        while let Some(sample) = sample(&replica, &led, term).await {
            window.note(sample);
            let has_rested = handed_over.is_none_or(|at| at.elapsed() >= REST);
            if let Some(verdict) = window.verdict().filter(|_| has_rested) {
                handed_over = Some(Instant::now());
                window = Window::default();
                hand_over(&replica, &verdict).await;
            }
            sleep(INTERVAL).await;
        }
    }
}

fn term(led: &Led) -> Option<u64> {
    led.borrow().as_ref().map(|led: &std::sync::Arc<Leadership>| led.term)
}

async fn hand_over(replica: &Replica, Verdict { successor, here, there }: &Verdict) {
    let (here_ms, there_ms) = (here.as_millis() as u64, there.as_millis() as u64);
    tracing::warn!(here_ms, successor, there_ms, "this leader's disk is slow; see to it. Leadership is handed over");
    if let Err(error) = handover::transfer(replica, Some(*successor), PATIENCE).await {
        tracing::warn!(%error, "leadership was not handed over");
    }
}

/// Waits for the next new entry, and measures it. `None`: this leadership has ended.
async fn sample(replica: &Replica, led: &Led, leading: u64) -> Option<Sample> {
    let mut metrics = replica.raft().metrics();
    let known = metrics.borrow_watched().last_log_index;
    let target = loop {
        if term(led) != Some(leading) {
            return None;
        }
        let last = metrics.borrow_watched().last_log_index;
        if last > known {
            break last?;
        }
        metrics.changed().await.ok()?;
    };
    let at = Instant::now();
    let (mut here, mut peers) = (None, BTreeMap::new());
    let progress = replica.raft().watch_log_progress();
    loop {
        let passed = at.elapsed();
        let flushed = progress.get().and_then(|point| point.last_log_id).is_some_and(|last| last.index >= target);
        here = here.or(flushed.then_some(passed));
        let others = {
            let metrics = metrics.borrow_watched();
            let replication = metrics.replication.as_ref()?;
            let mut others = 0;
            for (peer, matched) in replication.iter().filter(|(peer, _)| **peer != metrics.id) {
                others += 1;
                if matched.as_ref().is_some_and(|matched| matched.index >= target) {
                    peers.entry(*peer).or_insert(passed);
                }
            }
            others
        };
        // What is not durable by now takes at least this long. A peer that did not acknowledge has no time, and is no successor.
        if (here.is_some() && peers.len() >= others) || passed >= TIME_MAX {
            return Some(Sample { at, here: here.unwrap_or(passed), peers });
        }
        if term(led) != Some(leading) {
            return None;
        }
        sleep(LOOK).await;
    }
}

impl Window {
    fn note(&mut self, sample: Sample) {
        let now = sample.at;
        self.0.push_back(sample);
        while self.0.len() > SAMPLES || self.0.front().is_some_and(|oldest| now - oldest.at > AGE_MAX) {
            self.0.pop_front();
        }
    }

    /// `None`: the disk is not slow, or that of each peer is as slow.
    fn verdict(&self) -> Option<Verdict> {
        if self.0.len() < SAMPLES {
            return None;
        }
        let here = median(self.0.iter().map(|sample| sample.here));
        let peers = self.0.back()?.peers.keys().map(|peer| {
            let times = self.0.iter().map(|sample| sample.peers.get(peer).copied().unwrap_or(TIME_MAX));
            (median(times), *peer)
        });
        let (there, successor) = peers.min()?;
        (here >= SLOW && here >= RATIO * there).then_some(Verdict { successor, here, there })
    }
}

/// Of an even number, the lower one of the two in the middle. There must be at least one.
fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times[(times.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `samples` times here, and of peers 2 and 3, in milliseconds.
    fn window(samples: &[[u64; 3]], interval: Duration) -> Window {
        let (mut window, start) = (Window::default(), Instant::now());
        for (number, [here, second, third]) in (0..).zip(samples) {
            let peers = [(2, *second), (3, *third)].map(|(peer, ms)| (peer, Duration::from_millis(ms))).into();
            window.note(Sample { at: start + number * interval, here: Duration::from_millis(*here), peers });
        }
        window
    }

    fn successor(samples: &[[u64; 3]]) -> Option<u64> {
        window(samples, INTERVAL).verdict().map(|verdict| verdict.successor)
    }

    #[test]
    fn a_slow_disk_hands_over_to_the_peer_that_acknowledges_first() {
        assert_eq!(successor(&[[400, 30, 20]; SAMPLES]), Some(3));
        assert_eq!(successor(&[[100, 25, 99]; SAMPLES]), Some(2), "at the limits");
        assert_eq!(successor(&[[99, 5, 5]; SAMPLES]), None, "fast enough");
        assert_eq!(successor(&[[400, 30, 20]; SAMPLES - 1]), None, "too few samples");
    }

    #[test]
    fn nothing_happens_while_all_disks_are_slow() {
        assert_eq!(successor(&[[400, 101, 400]; SAMPLES]), None);
        assert_eq!(successor(&[[400, 30, 400]; SAMPLES]), Some(2), "one other is fast");
    }

    #[test]
    fn some_slow_syncs_are_no_slow_disk() {
        let mut samples = [[5, 5, 5]; SAMPLES];
        samples[..SAMPLES / 2].fill([2000, 5, 5]);
        assert_eq!(successor(&samples), None);
        samples[SAMPLES / 2] = [2000, 5, 5];
        assert_eq!(successor(&samples), Some(2));
    }

    #[test]
    fn old_samples_do_not_count() {
        let samples = [[400, 30, 20]; SAMPLES];
        assert!(window(&samples, AGE_MAX / SAMPLES as u32).verdict().is_some());
        assert!(window(&samples, AGE_MAX / (SAMPLES as u32 - 2)).verdict().is_none());
    }

    #[test]
    fn a_peer_that_does_not_acknowledge_is_no_successor() {
        let mut window = window(&[[1900, 30, 500]; SAMPLES], INTERVAL);
        window.0.iter_mut().for_each(|sample| _ = sample.peers.remove(&2));
        assert_eq!(window.verdict(), None);
    }
}
