//! The versions of the members: what this program supports, what the peers say that theirs support, and the cluster's version.
//!
//! Every call between peers, and every answer that counts, carries in its metadata the versions that its sender's program supports, and
//! the cluster version that the sender has applied. So a leader learns a member's versions with its first answer, and again after a
//! restart with another program. A sender that says nothing supports version 1: its program is from before versions.
//!
//! * The leader raises (`raising`) the version when all members have said, lately, that they support the next one.
//! * A node does not talk with one whose program does not support the cluster version: it refuses its calls and its answers, and says to
//!   install another version on it.
//! * A node that a member tells of a cluster version that it does not support ends ([`PeerVersions::outgrown`]).
//!
//! It also carries whether its sender writes an audit trail, which the leader then begins (`raising`).
//!
//! What the versions mean is in [`lockkeeper_machine::Version`].

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tonic::{
    Status,
    metadata::{AsciiMetadataValue, MetadataMap},
};

use lockkeeper_machine::{Version, Versions};
use lockkeeper_planted::{Planted, VERSION};
use lockkeeper_table::AppliedVersion;

/// The supported versions, `LOWEST-HIGHEST`.
const SUPPORTED: &str = "lockkeeper-versions";
/// The program's version, for people.
const PROGRAM: &str = "lockkeeper-program";
/// Present if the sender writes an audit trail.
const AUDIT: &str = "lockkeeper-audit";
/// The cluster version that the sender has applied.
const CLUSTER_VERSION: &str = "lockkeeper-cluster-version";
/// How long what a member said counts for raising the version: longer than any pause between two heartbeats, shorter than the exchange of a
/// program.
const LATELY: Duration = Duration::from_secs(5);

/// The versions of this node's program, of its peers' programs, and of the cluster.
#[derive(Debug)]
pub struct PeerVersions {
    applied: Arc<AppliedVersion>,
    writes_audit: bool,
    members: Mutex<BTreeMap<u64, (PeerProgram, Instant)>>,
    changed: Notify,
    outgrown: watch::Sender<Option<String>>,
}

/// What a member says of its program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerProgram {
    /// The cluster versions that it supports.
    pub versions: Versions,
    /// Its own version, for people; empty if it does not say.
    pub program: String,
    /// It writes an audit trail.
    pub writes_audit: bool,
}

impl Default for PeerVersions {
    /// The versions of this build.
    fn default() -> Self {
        Self::new(Versions::OWN)
    }
}

impl PeerVersions {
    /// Makes the versions of a node whose program supports `own`.
    pub fn new(own: Versions) -> Self {
        Self {
            applied: Arc::new(AppliedVersion::new(own)),
            writes_audit: false,
            members: Mutex::default(),
            changed: Notify::new(),
            outgrown: watch::Sender::new(None),
        }
    }

    /// Sets whether this node writes an audit trail.
    pub fn with_audit(self, writes_audit: bool) -> Self {
        Self { writes_audit, ..self }
    }

    /// Whether this node or a member that was heard writes an audit trail.
    pub(crate) fn is_audit_written(&self) -> bool {
        self.writes_audit || self.lock().values().any(|(said, _)| said.writes_audit)
    }

    /// The versions that this program supports.
    pub fn own(&self) -> Versions {
        self.applied.own()
    }

    /// The cluster version, as of the last entry that this node applied.
    pub fn cluster(&self) -> Version {
        self.applied.cluster()
    }

    /// What this program supports and the cluster has: for the table, which raises the latter.
    pub fn applied(&self) -> &Arc<AppliedVersion> {
        &self.applied
    }

    /// What a member last said, or `None` if it was not heard since this node started. For this node itself, see [`PeerVersions::own`].
    pub fn said_by(&self, node_id: u64) -> Option<PeerProgram> {
        self.lock().get(&node_id).map(|(said, _)| said.clone())
    }

    /// The members among `others` that do not support a version, or have not said lately what they support, each with a text for people.
    pub fn without<'a>(
        &self,
        version: Version,
        others: impl IntoIterator<Item = &'a u64>,
    ) -> BTreeMap<u64, &'static str> {
        let members = self.lock();
        let missing = |id: &&u64| match members.get(id) {
            None => Some("not heard"),
            Some((said, _)) if !said.versions.include(version) => Some("runs another version"),
            Some((_, at)) if at.elapsed() > LATELY => Some("not heard lately"),
            Some(_) => None,
        };
        others.into_iter().filter_map(|id| Some((*id, missing(&id)?))).collect()
    }

    /// The version to which the cluster can be raised now, if these are all the other members.
    pub(crate) fn next(&self, others: &[u64]) -> Option<Version> {
        let highest = |id| self.said_by(id).map_or(Version::FIRST, |said| said.versions.highest);
        let others = if Planted::VersionRaisedEarly.is_on() { &[] } else { others };
        let to = others.iter().map(|id| highest(*id)).fold(self.own().highest, Version::min);
        (to > self.cluster() && self.own().include(to) && self.without(to, others).is_empty()).then_some(to)
    }

    /// Waits until a member says something new.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// What this node says with each call and answer.
    pub(crate) fn said(&self) -> impl Iterator<Item = (&'static str, AsciiMetadataValue)> + use<> {
        let Versions { lowest, highest } = self.own();
        let ascii = |text: &str| text.parse().expect("versions are plain ASCII");
        [
            (SUPPORTED, ascii(&format!("{lowest}-{highest}"))),
            (PROGRAM, ascii(VERSION)),
            (CLUSTER_VERSION, self.cluster().0.into()),
        ]
        .into_iter()
        .chain(self.writes_audit.then(|| (AUDIT, ascii("1"))))
    }

    /// Takes what another node said. Fails if its program does not support the cluster version. If it is a member (`is_member`), its word
    /// on the cluster's version counts, and is remembered.
    pub(crate) fn hear(&self, node_id: u64, metadata: &MetadataMap, is_member: bool) -> Result<(), Status> {
        let text = |key| metadata.get(key).and_then(|value| value.to_str().ok());
        let versions = text(SUPPORTED).and_then(parse).unwrap_or(Versions::UNSAID);
        let writes_audit = metadata.contains_key(AUDIT);
        let said = PeerProgram { versions, program: text(PROGRAM).unwrap_or_default().to_owned(), writes_audit };
        let theirs = text(CLUSTER_VERSION).and_then(|version| version.parse().ok()).map(Version);

        if is_member {
            let before = self.lock().insert(node_id, (said.clone(), Instant::now()));
            if before.is_none_or(|(before, _)| before != said) {
                self.changed.notify_one();
            }
            if let Some(theirs) = theirs.filter(|theirs| *theirs > self.own().highest) {
                let text = format!(
                    "node {node_id} says that the cluster has version {theirs}, and this program ({VERSION}) supports {}: install a later \
                     version of Lockkeeper on this node",
                    self.own()
                );
                self.outgrown.send_if_modified(|known| known.replace(text).is_none());
            }
        }

        if said.versions.include(self.cluster()) {
            Ok(())
        } else {
            Err(Status::failed_precondition(self.refusal(node_id, &said)))
        }
    }

    fn refusal(&self, node_id: u64, said: &PeerProgram) -> String {
        let PeerProgram { versions, program, writes_audit: _ } = said;
        let cluster = self.cluster();
        let program = if program.is_empty() { "an early version" } else { program };
        let other = if versions.highest < cluster { "a later" } else { "an earlier" };
        format!(
            "node {node_id} runs {program} of Lockkeeper, which supports {versions}, and the cluster has version {cluster}: install {other} \
             version on node {node_id}"
        )
    }

    /// Returns once a member says that the cluster has a version that this program does not support: the text for people.
    pub async fn outgrown(&self) -> String {
        let mut outgrown = self.outgrown.subscribe();
        let text = outgrown.wait_for(Option::is_some).await.map(|text| text.clone().unwrap_or_default());
        text.expect("the sender is a part of `self`")
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (PeerProgram, Instant)>> {
        // Replaced entry by entry, so it is consistent even if another thread panicked.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(text: &str) -> Option<Versions> {
    let (lowest, highest) = text.split_once('-')?;
    Some(Versions { lowest: Version(lowest.parse().ok()?), highest: Version(highest.parse().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Version = Version(2);

    fn says(versions: &PeerVersions) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        for (key, value) in versions.said() {
            metadata.insert(key, value);
        }
        metadata
    }

    fn of(lowest: u32, highest: u32) -> PeerVersions {
        PeerVersions::new(Versions { lowest: Version(lowest), highest: Version(highest) })
    }

    #[tokio::test(start_paused = true)]
    async fn the_version_rises_once_all_members_lately_said_that_they_support_it() {
        let leader = of(1, 3);
        assert_eq!(leader.next(&[]), Some(Version(3)), "alone");
        leader.hear(2, &says(&of(1, 2)), true).expect("it supports version 1");
        assert_eq!(leader.next(&[2, 3]), None, "node 3 is not heard");
        leader.hear(3, &MetadataMap::new(), true).expect("it says nothing, so it supports version 1");
        assert_eq!(leader.next(&[2, 3]), None);
        leader.hear(3, &says(&of(1, 3)), true).expect("it has another program now");
        assert_eq!(leader.next(&[2, 3]), Some(TWO), "the highest that all support");
        tokio::time::advance(LATELY + Duration::from_millis(1)).await;
        assert_eq!(leader.next(&[2, 3]), None, "they may run another program by now");
        assert_eq!(leader.without(TWO, &[2, 3]).len(), 2);
        leader.hear(2, &says(&of(1, 2)), true).expect("it supports version 1");
        leader.hear(3, &says(&of(2, 3)), true).expect_err("it does not support version 1 any more");
        assert_eq!(leader.next(&[2, 3]), Some(TWO));
        leader.applied().note_applied(TWO);
        assert_eq!(leader.next(&[2, 3]), None, "it has that version");
    }

    #[tokio::test]
    async fn a_program_that_does_not_support_the_cluster_version_is_refused_and_ends() {
        let (node, old, dropped) = (of(1, 3), of(1, 1), of(3, 3));
        node.applied().note_applied(TWO);
        let refused = node.hear(7, &says(&old), false).expect_err("it supports version 1");
        assert!(
            refused.message().contains("node 7 runs") && refused.message().contains("install a later"),
            "{refused}"
        );
        assert!(node.said_by(7).is_none(), "no member, so not remembered");
        let refused = node.hear(7, &says(&dropped), false).expect_err("it supports version 3");
        assert!(refused.message().contains("install an earlier version on node 7"), "{refused}");
        old.hear(1, &says(&node), false).expect("node 1 supports version 1");
        assert!(old.outgrown.borrow().is_none(), "only a member is believed");
        old.hear(1, &says(&node), true).expect("node 1 supports version 1");
        let text = old.outgrown().await;
        assert!(text.contains("the cluster has version 2") && text.contains("supports version 1"), "{text}");
    }
}
