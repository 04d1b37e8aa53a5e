//! What the clients with identities saw, judged by the files of tokens and rules that are in force.

use std::{
    collections::BTreeMap,
    fmt, io,
    ops::Range,
    path::Path,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use lockkeeper::config::AuthConfig;

use super::{Edition, Who, config, limits::DrawnLimits, write_secrets};
use crate::{faults::LastPause, system, tally, trace};

/// From a change of the files until all nodes have read them, and until answers by the old ones have come: nodes read them each second.
const SETTLED: Duration = Duration::from_secs(4);
/// The same from the moment on at which a node that stood still goes on: it reads the files first of all, twice, 0.2 s apart, and meanwhile
/// answers what came before.
const AWAKE: Duration = Duration::from_secs(2);

/// What the clients with identities saw.
pub(crate) struct RightsJudge {
    files: AuthConfig,
    /// The limits of some identities, which stay as they are.
    pub(super) limits: DrawnLimits,
    last_pause: LastPause,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    edition: Edition,
    /// When the files were changed last, since the begin of the simulation.
    changed: Option<Duration>,
    counts: BTreeMap<String, u64>,
    complaints: Vec<String>,
}

impl RightsJudge {
    /// Writes the files of a run.
    pub(crate) fn new(directory: &Path, seed: u64) -> io::Result<Self> {
        let files = config(directory);
        let limits = DrawnLimits::draw(seed);
        Edition::First.write(&files, &limits)?;
        write_secrets(directory)?;
        Ok(Self { files, limits, last_pause: LastPause::default(), seen: Mutex::default() })
    }

    /// Where the director notes when nodes stood still.
    pub(crate) fn last_pause(&self) -> &LastPause {
        &self.last_pause
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("nothing panics while it has this")
    }

    /// What cannot have been.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.seen().complaints.clone()
    }

    /// Answers by kind.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        self.seen().counts.clone().into_iter().collect()
    }

    /// What a run needs and this one lacks.
    pub(crate) fn missing(&self) -> Option<String> {
        let seen = self.seen();
        let has = |outcome: &str| seen.counts.keys().any(|count| count.ends_with(outcome));
        let ports = ["redis", "etcd", "zookeeper", "dynamodb"]
            .into_iter()
            .flat_map(|port| ["served", "refused"].map(|outcome| format!("{port} {outcome}")));
        let missing =
            ports.chain(["served", "refused", "changed"].map(str::to_owned)).find(|what| !has(&format!(" {what}")));
        missing.map(|what| format!("of the clients with identities: nothing was {what}"))
    }

    /// Changes the files, if that was not done just now.
    pub(super) fn change_files(&self) -> io::Result<()> {
        let mut seen = self.seen();
        if seen.changed.is_some_and(|changed| system::elapsed() < changed + 2 * SETTLED) {
            return Ok(());
        }

        seen.edition = match seen.edition {
            Edition::First => Edition::Second,
            Edition::Second => Edition::First,
        };
        seen.changed = Some(system::elapsed());
        *seen.counts.entry("rights: files changed".to_owned()).or_default() += 1;
        seen.edition.write(&self.files, &self.limits)
    }

    pub(super) fn count(&self, what: &str) {
        *self.seen().counts.entry(format!("rights: {what}")).or_default() += 1;
    }

    /// Counts a limit of an identity that the metrics of the nodes do not count.
    pub(super) fn reach(&self, limit: &str) {
        *self.seen().counts.entry(format!("{}{limit}", tally::LIMIT)).or_default() += 1;
    }

    pub(super) fn complain(&self, what: String) {
        self.seen().complaints.push(what);
    }

    /// Whether all nodes have read files that were changed at this time, and what they answered before has come.
    fn has_settled(&self, changed: Duration) -> bool {
        let last_pause = self.last_pause.lock().expect("nothing panics while it has it");
        has_settled(changed, last_pause.as_ref(), system::elapsed())
    }

    /// Judges an answer to what a client asked for. While some nodes may not have read the files again, it is good if it is so by either
    /// edition.
    pub(super) fn judge(&self, who: Who, asked: &str, is_allowed: impl Fn(Edition) -> bool, outcome: Outcome) {
        let mut seen = self.seen();
        *seen.counts.entry(format!("rights: {} {outcome}", who.name())).or_default() += 1;

        let is_settled = seen.changed.is_none_or(|changed| self.has_settled(changed));
        let edition = seen.edition;
        trace::say(
            "rights",
            format_args!("{} asked for {asked}: {outcome} ({edition:?}, settled: {is_settled})", who.name()),
        );
        let in_force = |other: &Edition| !is_settled || *other == edition;
        let mut editions = Edition::ALL.into_iter().filter(in_force);
        // Meanwhile a node may pass a call on under an identity that the leader has no rules for any more.
        let may_be_withdrawn =
            !is_settled && Edition::ALL.into_iter().any(|other| other.knows(who) != edition.knows(who));
        let name = who.name();

        match outcome {
            Outcome::Served if !editions.any(&is_allowed) => {
                seen.complaints.push(format!("{name} was served, and no rule allows it ({edition:?}): {asked}"));
            }
            Outcome::Refused if !may_be_withdrawn && editions.all(&is_allowed) => {
                seen.complaints.push(format!("{name} was refused, and a rule allows it ({edition:?}): {asked}"));
            }
            Outcome::Served | Outcome::Refused | Outcome::Failed => {}
        }
    }
}

/// The same, by the last time in which nodes stood still. The next one begins later than [`AWAKE`] after it.
fn has_settled(changed: Duration, last_pause: Option<&Range<Duration>>, now: Duration) -> bool {
    // Who did not stand still meanwhile has read them.
    let has_slept = last_pause.is_some_and(|last| last.start < changed + SETTLED && now <= last.end + AWAKE);
    now > changed + SETTLED && !has_slept
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Served,
    /// For want of an identity or a right.
    Refused,
    /// For another reason, or it is not known.
    Failed,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Served => "served",
            Self::Refused => "refused",
            Self::Failed => "failed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGED_MS: u64 = 10_000;

    fn is_settled_at(now_ms: u64, last_pause_ms: Option<Range<u64>>) -> bool {
        let last = last_pause_ms.map(|last| Duration::from_millis(last.start)..Duration::from_millis(last.end));
        has_settled(Duration::from_millis(CHANGED_MS), last.as_ref(), Duration::from_millis(now_ms))
    }

    /// Nodes read the files each second, and one that has just changed twice.
    #[test]
    fn an_edition_is_in_force_once_all_nodes_that_run_have_read_it() {
        assert!(!is_settled_at(CHANGED_MS + 1_200, None));
        assert!(is_settled_at(CHANGED_MS + 4_001, None));
        assert!(is_settled_at(CHANGED_MS + 4_001, Some(2_000..7_900)), "awake since long before");
    }

    /// Seed 3056: the leader stood still while the files changed, and answered a request that had waited for it by the edition from before.
    #[test]
    fn a_node_that_slept_through_a_change_has_a_moment_to_read_it() {
        for pause in [9_000..15_500, 11_100..15_500] {
            assert!(!is_settled_at(15_600, Some(pause.clone())), "{pause:?}");
            assert!(!is_settled_at(17_500, Some(pause.clone())), "{pause:?}");
            assert!(is_settled_at(17_501, Some(pause.clone())), "{pause:?}: no longer than that");
        }
        assert!(is_settled_at(15_600, Some(14_100..15_500)), "it had read them before it slept");
    }
}
