//! Checks files: the chain, and the rules of [`replay`](super::replay).
//!
//! The files may come from several nodes, in any order. They are read in the order in which they go on in the chain. Lines
//! that an earlier file had already must be the same: every file's own chain is checked, and where it begins and ends it
//! must have the hash that the other files have there.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use super::{
    chain::{BadLine, Hash, Head},
    files::{FileError, Reader},
    line::AuditLine,
    replay::{BrokenRule, Replay},
};

/// The summary of files that are sound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SoundFiles {
    /// The id of the cluster.
    pub cluster: String,
    /// The number of the first line.
    pub first: u64,
    /// The end of the chain.
    pub head: Head,
    /// The log entry of the last line.
    pub index: u64,
    /// The lines that no file has.
    pub gaps: Vec<MissingLines>,
    /// The numbers of sessions that are open at the end, of locks that are held, and of waits.
    pub open: (usize, usize, usize),
}

/// Lines that no file has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MissingLines {
    /// The first missing line.
    pub from: u64,
    /// The last missing line.
    pub to: u64,
}

/// A line that is not as it was written, or that reports what must not happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The file.
    pub path: PathBuf,
    /// The number of the line in the file. The header is line 1.
    pub at: u64,
    /// The number of the line in the chain, if that is known.
    pub line: Option<u64>,
    /// The fault.
    pub fault: LineFault,
}

/// A fault of a line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LineFault {
    /// The line does not continue the chain.
    #[error("the chain breaks: {0}")]
    Chain(#[from] BadLine),
    /// The line breaks a rule.
    #[error("{0}")]
    Rule(#[from] BrokenRule),
    /// Another file, or the caller, has another hash for the same line.
    #[error("line {line} has the hash {found} here, and {expected} {wherefrom}: the histories differ")]
    Differs {
        /// The number of the line.
        line: u64,
        /// The hash that this file has.
        found: Hash,
        /// The hash that was expected.
        expected: Hash,
        /// The source of the expected hash.
        wherefrom: String,
    },
    /// The chain does not go as far as the expected head.
    #[error(
        "the expected head {0} is not the hash of the last line: lines are missing at the end, or all were made anew"
    )]
    Head(Hash),
    /// The file belongs to another cluster than the others.
    #[error("the file belongs to cluster {0:?}, and the other files to another one")]
    Cluster(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: line {} of the file", self.path.display(), self.at)?;
        if let Some(line) = self.line {
            write!(f, ", line {line} of the trail")?;
        }
        write!(f, ": {}", self.fault)
    }
}

/// Why files were not found sound.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A line is wrong.
    #[error("{0}")]
    Broken(Box<Broken>),
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no file.
    #[error("no audit file was named, and none is in the directory: name files that begin with `audit-`")]
    None,
}

/// Checks files, and shows each line of the trail once, in order. With `head`, the chain must end there.
pub fn verify(
    files: &[PathBuf],
    head: Option<Hash>,
    mut show: impl FnMut(&AuditLine<'_>),
) -> Result<SoundFiles, VerifyError> {
    let mut files =
        files.iter().map(|path| Ok((Reader::open(path)?.header, path))).collect::<Result<Vec<_>, FileError>>()?;
    files.sort_by_key(|(header, path)| (header.after, (*path).clone()));

    let (first, first_path) = files.first().ok_or(VerifyError::None)?;

    let mut trail = VerifiedTrail {
        at: Head { lines: first.after, hash: first.hash },
        replay: Replay::from(first.token, first.ticket, true),
        gaps: Vec::new(),
        index: 0,
        joints: joints(&files)?,
    };

    let cluster = first.cluster.clone();
    let from = first.after + 1;
    let mut last = ((*first_path).clone(), 1);

    for (header, path) in &files {
        let broken = |fault| VerifyError::Broken(Box::new(Broken { path: (*path).clone(), at: 1, line: None, fault }));
        if header.cluster != cluster {
            return Err(broken(LineFault::Cluster(header.cluster.clone())));
        }

        let at = trail.read(path, &mut show)?;
        if trail.at.lines > 0 {
            last = ((*path).clone(), at);
        }
    }

    if let Some(head) = head.filter(|head| *head != trail.at.hash) {
        let (path, at) = last;
        let line = Some(trail.at.lines);
        return Err(VerifyError::Broken(Box::new(Broken { path, at, line, fault: LineFault::Head(head) })));
    }

    let open = trail.replay.counts();
    Ok(SoundFiles { cluster, first: from, head: trail.at, index: trail.index, gaps: trail.gaps, open })
}

/// The lines where files begin and end, with the hashes that these files have there.
type Joints = BTreeMap<u64, Vec<(Hash, PathBuf)>>;

fn joints(files: &[(super::AuditHeader, &PathBuf)]) -> Result<Joints, FileError> {
    let mut joints = Joints::new();
    for (header, path) in files {
        let end = Reader::tail(path)?;
        for (line, hash) in [(header.after, header.hash), (end.lines, end.hash)] {
            joints.entry(line).or_default().push((hash, (*path).clone()));
        }
    }
    Ok(joints)
}

struct VerifiedTrail {
    at: Head,
    replay: Replay,
    gaps: Vec<MissingLines>,
    index: u64,
    joints: Joints,
}

impl VerifiedTrail {
    /// Reads a file, and adds its new lines to the trail. Returns the number of the last line in the file.
    fn read(&mut self, path: &Path, show: &mut impl FnMut(&AuditLine<'_>)) -> Result<u64, VerifyError> {
        let mut reader = Reader::open(path)?;

        let header = reader.header.clone();
        let mut own = Head { lines: header.after, hash: header.hash };
        let broken = |at, line, fault| VerifyError::Broken(Box::new(Broken { path: path.to_owned(), at, line, fault }));

        if own.lines > self.at.lines {
            self.gaps.push(MissingLines { from: self.at.lines + 1, to: own.lines });
            // Locks that were held before the gap may be released in it, and held by others.
            self.replay = Replay::from(header.token, header.ticket, true);
            self.at = own;
        }

        loop {
            let text = match reader.next() {
                Ok(None) => return Ok(reader.at),
                Ok(Some(text)) => text.to_owned(),
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                    let bad = BadLine::Malformed(error.to_string());
                    return Err(broken(reader.at, Some(own.lines + 1), bad.into()));
                }
                Err(error) => return Err(FileError::io(path)(error).into()),
            };

            let before = own;
            let line = own.follow(&text).map_err(|bad| broken(reader.at, Some(before.lines + 1), bad.into()))?;

            // An earlier file had this line already.
            if own.lines <= self.at.lines {
                continue;
            }

            self.joint(before).map_err(|fault| broken(reader.at, Some(before.lines), fault))?;
            self.replay.step(&line).map_err(|rule| broken(reader.at, Some(line.line), rule.into()))?;
            (self.at, self.index) = (own, line.index);
            self.joint(own).map_err(|fault| broken(reader.at, Some(own.lines), fault))?;

            show(&line);
        }
    }

    /// Compares a place in the chain with the files that begin or end there.
    fn joint(&self, head: Head) -> Result<(), LineFault> {
        let others = self.joints.get(&head.lines).map(Vec::as_slice).unwrap_or_default();
        match others.iter().find(|(hash, _)| *hash != head.hash) {
            None => Ok(()),
            Some((expected, path)) => Err(LineFault::Differs {
                line: head.lines,
                found: head.hash,
                expected: *expected,
                wherefrom: format!("in {}", path.display()),
            }),
        }
    }
}
