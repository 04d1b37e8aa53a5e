//! The audit trails of the nodes: in half of the runs each node writes one, into real files of its directory.
//!
//! The files are those of the product, written by its own code. Only the thread of the sink is not there
//! ([`lockkeeper_audit::Sink::simulate`]): a node's process writes the lines that wait four times a second of its clock, and syncs them
//! before a snapshot counts. So the content of the files depends on the seed alone, and no node waits for a real disk. A killed process
//! loses the lines that wait; a machine that loses its power also loses what was not synced, also in the middle of a line ([`synced`]). A
//! node whose data are gone keeps its files, which may lie on another disk. Each cluster that is made anew has files of its own: an
//! operator moves those of the lost one aside.
//!
//! At the end all files are verified by the code of `lockkeeper audit verify`:
//!
//! * the files of each node are sound, and lack only lines of entries for which the node got a snapshot of another ([`made`]); the nodes
//!   that live have all others. So a line that no disk has, though the node purged its entry, is found;
//! * those of all nodes of a cluster together are one chain from its first line on, without a gap, with the hashes that the tables had;
//! * the first line of a cluster that was made anew cites the copy, and the copy has the hash that the nodes had where it ends;
//! * what clients were told is in the lines ([`told`]).
//!
//! Left out: the sink's own thread, and a disk that hangs (the chaos runs have both); a disk that fails; the loss of a file's entry in its
//! directory; and files that are deleted when there are too many.

mod made;
mod synced;
mod told;

use std::{
    collections::BTreeMap,
    fs, io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use lockkeeper::chaos::history::History;
use lockkeeper_audit::{AuditEvent, AuditLine, MissingLines, SoundFiles, verify};

pub(crate) use self::{
    made::{MadeLines, TrailPlace},
    synced::lose_unsynced,
};
use self::{synced::audit_files, told::TrailLines};

/// The count that says how much was verified, as it is named among those of a run.
pub(crate) const VERIFIED: &str = "audit lines verified";

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum TrailCount {
    Line,
    Trail,
    /// A line that a node lacks, since it got a snapshot.
    Skipped,
    /// A copy that was cited with the hash that nodes had.
    Copy,
    Grant,
    GrantOfEntry,
    Release,
    Forced,
    Close,
    /// An answer of a cluster that was lost, about lines that were lost with it.
    Excused,
    LostByte,
}

impl TrailCount {
    const ALL: [Self; 11] = [
        Self::Line,
        Self::Trail,
        Self::Skipped,
        Self::Copy,
        Self::Grant,
        Self::GrantOfEntry,
        Self::Release,
        Self::Forced,
        Self::Close,
        Self::Excused,
        Self::LostByte,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Line => VERIFIED,
            Self::Trail => "audit trails verified",
            Self::Skipped => "audit lines that a snapshot stood for",
            Self::Copy => "copies whose audit trail was compared",
            Self::Grant => "grants found in the audit trail",
            Self::GrantOfEntry => "grants of entries found in the audit trail",
            Self::Release => "releases found in the audit trail",
            Self::Forced => "forced releases found in the audit trail",
            Self::Close => "closed sessions found in the audit trail",
            Self::Excused => "answers about audit lines that were lost with their cluster",
            Self::LostByte => "bytes of audit files lost in crashes",
        }
    }
}

/// What was found in the trails of a run.
#[derive(Default, Debug)]
pub(crate) struct TrailFindings {
    complaints: Vec<String>,
    counts: BTreeMap<TrailCount, u64>,
}

/// The first line of a trail.
#[derive(Debug)]
struct FirstLine {
    what: AuditEvent,
    reason: String,
}

impl TrailFindings {
    /// Verifies the files of all nodes of a run, of which none writes any more, and looks for what clients were told.
    pub(crate) fn verify(made: &MadeLines, directory: impl Fn(TrailPlace) -> PathBuf, history: &History) -> Self {
        let mut findings = Self::default();
        let mut lines = TrailLines::default();
        let mut generations: Vec<_> = made.places().map(|place| place.generation).collect();
        generations.dedup();

        let mut excused = Vec::new();
        for generation in generations {
            let last = findings.verify_cluster(made, generation, &directory, &mut lines);
            excused.extend(made.told_after(generation, last));
        }

        if let Err(error) = lines.judge(history, &excused, &mut findings) {
            findings.complain(error);
        }
        findings.count(TrailCount::LostByte, made.lost_bytes());
        findings
    }

    /// What must not be.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// What a meaningful run with trails has, and this one lacks.
    pub(crate) fn missing(&self) -> Vec<String> {
        let needed = [TrailCount::Line, TrailCount::Grant, TrailCount::Release];
        let lacking = needed.into_iter().filter(|what| self.counted(*what) == 0);
        lacking.map(|what| format!("no {}", what.name())).collect()
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (String, u64)> {
        TrailCount::ALL.into_iter().map(|what| (what.name().to_owned(), self.counted(what)))
    }

    fn counted(&self, what: TrailCount) -> u64 {
        self.counts.get(&what).copied().unwrap_or_default()
    }

    fn count(&mut self, what: TrailCount, more: u64) {
        *self.counts.entry(what).or_default() += more;
    }

    fn complain(&mut self, what: String) {
        self.complaints.push(format!("audit trail: {what}"));
    }

    /// Verifies the files of the nodes of one cluster, each by itself and all together. Returns the number of the last line.
    fn verify_cluster(
        &mut self,
        made: &MadeLines,
        generation: usize,
        directory: impl Fn(TrailPlace) -> PathBuf,
        lines: &mut TrailLines,
    ) -> u64 {
        let mut all = Vec::new();
        for place in made.places().filter(|place| place.generation == generation) {
            match begun_files(&directory(place)) {
                Ok(files) => {
                    self.verify_node(made, place, &files);
                    all.extend(files);
                }
                Err(error) => self.complain(format!("the files of {} cannot be read: {error}", shown(place))),
            }
        }
        if all.is_empty() {
            return 0;
        }

        let mut first = None;
        let verified = verify(&all, None, |line| {
            first.get_or_insert_with(|| FirstLine::from(line));
            lines.add(line);
        });
        match verified {
            Ok(sound) => {
                self.judge_cluster(made, generation, &sound);
                self.judge_first(made, generation, first);
                sound.head.lines
            }
            Err(error) => {
                self.complain(format!("of the nodes of cluster {generation} together: {error}"));
                0
            }
        }
    }

    /// Verifies the files of one node.
    fn verify_node(&mut self, made: &MadeLines, place: TrailPlace, files: &[PathBuf]) {
        let sound = if files.is_empty() { None } else { Some(verify(files, None, |_| {})) };
        let sound = match sound.transpose() {
            Ok(sound) => sound,
            Err(error) => return self.complain(format!("of {}: {error}", shown(place))),
        };

        for missing in missing_lines(sound.as_ref(), made.due(place)) {
            if made.were_skipped(place, &missing) {
                self.count(TrailCount::Skipped, missing.end() - missing.start() + 1);
            } else {
                let due = made.due(place);
                self.complain(format!(
                    "{} lacks lines of {missing:?}, for which it got no snapshot (line {due} must be there at the end)",
                    shown(place)
                ));
            }
        }
        if let Some(sound) = sound {
            self.compare_hash(made, place.generation, &sound, &shown(place));
        }
    }

    /// The files of all nodes together have each line, and end with the hash that a table had.
    fn judge_cluster(&mut self, made: &MadeLines, generation: usize, sound: &SoundFiles) {
        for missing in missing_lines(Some(sound), 0) {
            self.complain(format!("the lines {missing:?} of cluster {generation} are in the files of no node"));
        }
        self.compare_hash(made, generation, sound, "all nodes");
        self.count(TrailCount::Trail, 1);
        self.count(TrailCount::Line, sound.head.lines);
    }

    /// The files may end in the middle of an entry, where no table did.
    fn compare_hash(&mut self, made: &MadeLines, generation: usize, sound: &SoundFiles, whose: &str) {
        let head = sound.head;
        let Some(hash) = made.hash(generation, head.lines) else { return };
        if hash != head.hash {
            self.complain(format!(
                "line {} of cluster {generation} has the hash {} in the files of {whose}, and {hash} in a table",
                head.lines, head.hash
            ));
        }
    }

    /// The first line of a cluster that was made anew names the end of the trail of its copy, and the copy ends as the nodes had it.
    fn judge_first(&mut self, made: &MadeLines, generation: usize, first: Option<FirstLine>) {
        let Some(FirstLine { what, reason }) = first else { return };
        let Some(copy) = made.copy(generation) else {
            if what != AuditEvent::Begun {
                self.complain(format!("the trail of the first cluster begins with the line of kind {what}"));
            }
            return;
        };

        let Some(cited) = copy.cited else { return };
        let is_cited = reason.contains(&format!(" {} lines", cited.lines)) && reason.contains(&cited.hash.to_string());
        if what != AuditEvent::Restored || !is_cited {
            self.complain(format!("cluster {generation} begins with {reason:?}, and its copy ended with {cited:?}"));
        }

        let Some((had, copied)) = made.heads_at_end(&copy) else { return };
        if had == copied {
            self.count(TrailCount::Copy, 1);
        } else {
            let from = copy.from;
            self.complain(format!(
                "the copy of cluster {from}, of which cluster {generation} was made, ends with {copied:?}, not {had:?}"
            ));
        }
    }
}

impl From<&AuditLine<'_>> for FirstLine {
    fn from(line: &AuditLine<'_>) -> Self {
        Self { what: line.what, reason: line.reason.as_deref().unwrap_or_default().to_owned() }
    }
}

fn shown(place: TrailPlace) -> String {
    let TrailPlace { generation, node } = place;
    format!("node {node} of cluster {generation}")
}

/// The lines that files lack: before their first one, in their gaps, and after their last one up to one that is due.
fn missing_lines(sound: Option<&SoundFiles>, due: u64) -> Vec<RangeInclusive<u64>> {
    let Some(SoundFiles { first, head, gaps, .. }) = sound else {
        return if due == 0 { Vec::new() } else { vec![1..=due] };
    };
    let gaps = gaps.iter().map(|MissingLines { from, to }| *from..=*to);
    let all = std::iter::once(1..=first - 1).chain(gaps).chain([head.lines + 1..=due]);
    all.filter(|missing| !missing.is_empty()).collect()
}

/// The audit files of a directory, but for one whose first line is not complete: a node that starts there again removes it.
fn begun_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut begun = Vec::new();
    for file in audit_files(directory)? {
        if fs::read(&file)?.contains(&b'\n') {
            begun.push(file);
        }
    }
    Ok(begun)
}

#[cfg(test)]
mod tests {
    use lockkeeper_audit::{Hash, Head};

    use super::*;

    #[test]
    fn lines_may_be_missing_at_each_end_and_between() {
        let head = Head { lines: 20, hash: Hash::default() };
        let gaps = vec![MissingLines { from: 11, to: 14 }];
        let sound = |first| {
            let gaps = gaps.clone();
            SoundFiles { cluster: "c".to_owned(), first, head, index: 9, gaps, open: (0, 0, 0) }
        };
        assert_eq!(missing_lines(Some(&sound(5)), 22), [1..=4, 11..=14, 21..=22]);
        assert_eq!(missing_lines(Some(&sound(1)), 20), [11..=14]);
        assert_eq!((missing_lines(None, 3), missing_lines(None, 0)), (vec![1..=3], vec![]));
    }
}
