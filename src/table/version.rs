//! The version of the cluster, and which entries this program can apply.
//!
//! What the versions mean is in [`lockkeeper_machine::Version`]. What other members support is not known here: only whether an entry, which
//! is committed already, asks for more than this program has.

use std::{
    io,
    sync::atomic::{AtomicU32, Ordering},
};

use lockkeeper_machine::{Command, Record, Version, Versions};
use lockkeeper_planted::VERSION;

/// The cluster version as of the last applied entry, and the versions that this node's program supports.
#[derive(Debug)]
pub struct AppliedVersion {
    own: Versions,
    cluster: AtomicU32,
}

impl Default for AppliedVersion {
    /// The version of this build.
    fn default() -> Self {
        Self::new(Versions::OWN)
    }
}

impl AppliedVersion {
    /// Makes the version of a program that supports `own`.
    pub fn new(own: Versions) -> Self {
        Self { own, cluster: AtomicU32::new(Version::FIRST.0) }
    }

    /// The versions that this program supports.
    pub fn own(&self) -> Versions {
        self.own
    }

    /// The cluster version, as of the last entry that this node applied.
    pub fn cluster(&self) -> Version {
        Version(self.cluster.load(Ordering::Acquire))
    }

    /// The table has applied an entry, and its cluster version is this one now.
    pub fn note_applied(&self, version: Version) {
        if self.cluster.swap(version.0, Ordering::AcqRel) != version.0 {
            tracing::info!(%version, "the cluster version");
        }
    }

    /// Refuses commands that this program does not know, or must not apply.
    pub fn check_commands(&self, commands: &[Command]) -> io::Result<()> {
        self.check_since(commands.iter().map(Command::since))
    }

    /// Refuses a record that this program does not know.
    pub fn check_record(&self, record: &Record) -> io::Result<()> {
        self.check_since(Some(record.since()))
    }

    fn check_since(&self, since: impl IntoIterator<Item = Version>) -> io::Result<()> {
        let unsupported = since.into_iter().find(|since| *since > self.own.highest);
        let Some(since) = unsupported else { return Ok(()) };

        let text = format!(
            "it needs cluster version {since}, and this program ({VERSION}) supports {}: install a later version of Lockkeeper on this node",
            self.own
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_records_of_a_later_version_are_refused() {
        let versions = |lowest, highest| Versions { lowest: Version(lowest), highest: Version(highest) };
        let old = AppliedVersion::new(versions(1, 1));
        let new = AppliedVersion::new(versions(1, 3));
        let raise = |to| [Command::Tick, Command::RaiseVersion { to: Version(to) }];

        let refused = old.check_commands(&raise(1)).expect_err("version 1 had no versions");
        assert!(refused.to_string().contains("install a later version"), "{refused}");
        assert!(new.check_commands(&raise(3)).is_ok());
        assert!(new.check_commands(&raise(4)).is_err());
        assert!(new.check_record(&Record::Version { version: Version(4) }).is_err());
    }
}
