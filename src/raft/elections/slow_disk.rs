//! A leader whose disk has become slow hands over leadership.
//!
//! A majority commits an entry, so the leader's own disk is not always waited for. But a leader with a slow disk fills its write-ahead
//! queue and then delays every entry; and of three members, both others must answer each time, so that one slow follower more stops the
//! cluster.
//!
//! **The measure.** About every `INTERVAL` while entries are written, the leader takes the newest entry, and the times from its append
//! until it is durable here, and until each peer has acknowledged it. The latter contain the network and the peer's own sync. The disk is
//! slow if the median of the last `SAMPLES` times here is at least `SLOW` and at least `RATIO` times the median of a voter. The fastest
//! such voter that answers and has almost the whole log gets the leadership ([`crate::elections::handover`]). Learners are not measured:
//! they cannot lead, and no commit waits for them.
//!
//! **Stability.** If all disks are slow, the ratio is not reached, and nothing happens. The new leader measures the slow disk in the
//! acknowledgements of the former leader, and does not hand back. One slow sync does not change a median; samples older than `AGE_MAX`
//! do not count; and a node hands over at most once in `REST`. If no voter is fit to lead, nothing was done, and the node tries again after
//! `REST_REFUSED`.
//!
//! Deliberately absent: a hand-over by an idle leader, since nothing is written, so nobody waits.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use openraft::{RaftMetrics, async_runtime::WatchReceiver};
use tokio::time::{Instant, sleep};

use crate::{
    elections::handover,
    proposals::leadership::{Led, TermLeadership},
    replica::Replica,
    types::TypeConfig,
};
use lockkeeper_planted::Planted;

/// Time between two samples.
pub(super) const INTERVAL: Duration = Duration::from_millis(250);
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
/// The shortest time between two attempts, of which the first found no voter that is fit to lead.
const REST_REFUSED: Duration = Duration::from_secs(5);
/// How long the successor may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The times until an entry was durable.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) here: Duration,
    pub(super) peers: BTreeMap<u64, Duration>,
}

/// The last samples of this leadership, oldest first.
#[derive(Debug, Default)]
pub(super) struct Window(VecDeque<Sample>);

/// A slow disk, and the voters that should lead.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SlowDisk {
    /// The median here.
    pub(super) here: Duration,
    /// The medians of the voters that are fast enough, and their ids: the fastest first.
    pub(super) successors: Vec<(Duration, u64)>,
}

/// Hands leadership over when this node's disk is slow: see the [module](self). Returns when Raft stops.
pub async fn watch(replica: Replica) {
    let mut led: Led = replica.led();
    let mut rests_until = Instant::now();
    while led.wait_for(Option::is_some).await.is_ok() {
        let Some(term) = term(&led) else { continue };

        let mut window = Window::default();
        while let Some(sample) = sample(&replica, &led, term).await {
            window.note(sample);

            // A verdict is acted on once: the samples after a hand-over that failed are counted anew.
            let has_rested = Instant::now() >= rests_until;
            if let Some(verdict) = window.verdict().filter(|_| has_rested) {
                window = Window::default();
                let was_tried = hand_over(&replica, &verdict).await;
                rests_until = Instant::now() + if was_tried { REST } else { REST_REFUSED };
            }

            sleep(INTERVAL).await;
        }
    }
}

fn term(led: &Led) -> Option<u64> {
    led.borrow().as_ref().map(|led: &std::sync::Arc<TermLeadership>| led.term)
}

/// Hands over to the fastest voter that can lead now. Returns `false` if none can: then nothing was done.
async fn hand_over(replica: &Replica, SlowDisk { here, successors }: &SlowDisk) -> bool {
    let here_ms = here.as_millis() as u64;
    for (there, successor) in successors {
        if let Err(error) = handover::successor(replica, Some(*successor)) {
            tracing::warn!(here_ms, successor, %error, "this leader's disk is slow: check the disk. This voter cannot take over");
            continue;
        }

        let there_ms = there.as_millis() as u64;
        tracing::warn!(
            here_ms,
            successor,
            there_ms,
            "this leader's disk is slow: check the disk. Handing over leadership"
        );

        if let Err(error) = handover::transfer(replica, Some(*successor), PATIENCE).await {
            tracing::warn!(%error, "leadership was not handed over");
        }
        return true;
    }
    false
}

/// Waits for the next new entry, and measures it. Returns `None` once this leadership has ended.
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
    let mut here = None;
    let mut peers = BTreeMap::new();
    let progress = replica.raft().watch_log_progress();
    loop {
        let passed = at.elapsed();
        let flushed = progress.get().and_then(|point| point.last_log_id).is_some_and(|last| last.index >= target);
        here = here.or(flushed.then_some(passed));

        let others = {
            let metrics = metrics.borrow_watched();
            note_acknowledgements(&metrics, target, passed, &mut peers)?
        };

        // A sync that has not ended takes at least this long. A peer that did not acknowledge has no measured time, so it cannot be the
        // successor.
        if (here.is_some() && peers.len() >= others) || passed >= TIME_MAX {
            return Some(Sample { at, here: here.unwrap_or(passed), peers });
        }

        if term(led) != Some(leading) {
            return None;
        }
        sleep(LOOK).await;
    }
}

/// Notes the other voters that have acknowledged the entry `target` for the first time, and returns the number of other voters. `None`:
/// this node does not lead.
fn note_acknowledgements(
    metrics: &RaftMetrics<TypeConfig>,
    target: u64,
    passed: Duration,
    peers: &mut BTreeMap<u64, Duration>,
) -> Option<usize> {
    let replication = metrics.replication.as_ref()?;
    let mut others = 0;

    let learners = metrics.membership_config.membership().learner_ids().filter(|_| Planted::LearnerMeasured.is_on());
    for voter in metrics.membership_config.voter_ids().chain(learners).filter(|voter| *voter != metrics.id) {
        others += 1;
        let matched = replication.get(&voter).and_then(Option::as_ref);
        if matched.is_some_and(|matched| matched.index >= target) {
            peers.entry(voter).or_insert(passed);
        }
    }

    Some(others)
}

impl Window {
    pub(super) fn note(&mut self, sample: Sample) {
        let now = sample.at;
        self.0.push_back(sample);
        while self.0.len() > SAMPLES || self.0.front().is_some_and(|oldest| now - oldest.at > AGE_MAX) {
            self.0.pop_front();
        }
    }

    /// Returns `None` if the disk is not slow, or that of each voter is as slow.
    pub(super) fn verdict(&self) -> Option<SlowDisk> {
        if self.0.len() < SAMPLES {
            return None;
        }
        let slowest = self.0.iter().map(|sample| sample.here).max().filter(|_| Planted::SlowByOneSample.is_on());
        let here = slowest.unwrap_or_else(|| median(self.0.iter().map(|sample| sample.here)));
        let peers = self.0.back()?.peers.keys().map(|peer| {
            let times = self.0.iter().map(|sample| sample.peers.get(peer).copied().unwrap_or(TIME_MAX));
            (median(times), *peer)
        });
        let mut successors: Vec<(Duration, u64)> = peers.filter(|(there, _)| here >= RATIO * *there).collect();
        successors.sort_unstable();
        (here >= SLOW && !successors.is_empty()).then_some(SlowDisk { here, successors })
    }
}

/// The median. Of an even number of times it is the lower one of the two in the middle. There must be at least one time.
fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times[(times.len() - 1) / 2]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::types::{CommittedLeaderId, LogId, Membership, StoredMembership};
    use lockkeeper_table::MemberNode;

    /// Of node 1, which leads voters 1 and 2 and learner 3. `matched`: of 2 and 3.
    fn metrics(matched: [u64; 2]) -> RaftMetrics<TypeConfig> {
        let log_id = |index| LogId { leader_id: CommittedLeaderId::new(1), index };
        let nodes: BTreeMap<u64, MemberNode> = (1..=3).map(|id| (id, MemberNode::default())).collect();
        let membership = Membership::new(vec![[1, 2].into()], nodes).unwrap();
        let mut metrics = RaftMetrics::new_initial(1);
        metrics.membership_config = Arc::new(StoredMembership::new(None, membership));
        metrics.replication = Some([2, 3].into_iter().zip(matched.map(|index| Some(log_id(index)))).collect());
        metrics
    }

    #[test]
    fn a_learner_is_not_measured_since_it_cannot_lead() {
        let mut peers = BTreeMap::new();
        let (early, late) = (Duration::from_millis(1), Duration::from_millis(30));
        assert_eq!(note_acknowledgements(&metrics([6, 7]), 7, early, &mut peers), Some(1));
        assert!(peers.is_empty(), "only the learner has the entry: {peers:?}");
        assert_eq!(note_acknowledgements(&metrics([7, 7]), 7, late, &mut peers), Some(1));
        assert_eq!(peers, BTreeMap::from([(2, late)]));
    }
}
