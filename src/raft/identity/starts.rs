//! The starts of a data directory: how an older copy of it is told from the directory itself.
//!
//! A restored copy (an old backup, a virtual machine's snapshot, a second copy beside the first) has the right incarnation and a log that
//! is consistent in itself. But it lacks promises: votes given, entries acknowledged. So each start draws a random number, a *start*, and
//! the file keeps the numbers of all starts in their order. Peers remember the latest start of each member that they relied on, for a
//! vote or an acknowledged append. A directory continues from what a peer remembers if and only if that start is among its own. An older
//! copy lacks the starts that came after it, a second copy those of the first, however often either is started; a plain counter would
//! catch up.
//!
//! A start that was shown to nobody before the next one is dropped: see [`NodeIdentity::show_start`](super::NodeIdentity::show_start). No
//! peer can remember it, so nothing is lost with it, and a copy lacks the next one all the same. A node that fails at each start, as one
//! does whose supervisor starts it every few seconds while a file is missing, keeps those that peers remember.
//!
//! This does not detect a copy made since the last start: nothing was drawn between the two. For that, a leader also remembers the last
//! entry that each member acknowledged, and sends it in every call ([`AcknowledgedEntry`]); the member compares. A loss that no reachable
//! peer remembers cannot be detected.

use std::{fmt, str::FromStr};

use rand::RngCore;
use serde::{Deserialize, Serialize};

use super::InvalidId;
use crate::types::{CommittedLeaderId, LogId};

/// One start of a node: a random number. Written as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Start(u64);

/// Maximum starts of a directory in its file, of those that were shown to peers. A peer that was away for more starts takes the node for a
/// copy.
pub(super) const STARTS_KEPT: usize = 4096;
/// Maximum starts in its file that were begun and not finished. Far more than of the others: the log may have recorded any one of them, and
/// a log whose start the file lacks is refused. So many take about 1.3 MB, until the next start that is finished removes them all.
pub(super) const STARTING_KEPT: usize = 65_536;

/// The last entry that a leader knows to be durable on a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct AcknowledgedEntry {
    /// The leader's term: the member's vote is of this term, or of a later one.
    pub term: u64,
    /// The entry's own term.
    pub entry_term: u64,
    /// The member's log reaches this entry, as long as its vote is of `term`.
    pub index: u64,
}

/// What a node remembers of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RememberedPeer {
    /// The peer.
    pub node_id: u64,
    /// The latest start of the peer that this node relied on.
    pub start: Option<Start>,
    /// The last entry that the peer acknowledged to this node.
    pub acknowledged: Option<AcknowledgedEntry>,
}

impl Start {
    /// Draws a new one.
    pub fn draw(random: &mut impl RngCore) -> Self {
        Self(random.next_u64())
    }
}

impl AcknowledgedEntry {
    /// An entry that was acknowledged in the term of a leader.
    pub fn new(term: u64, last: LogId) -> Self {
        Self { term, entry_term: last.leader_id.term, index: last.index }
    }

    /// Whether a node whose vote is of `term`, and whose log ends at `last`, can have acknowledged this.
    ///
    /// In a later term a leader may have made it truncate its log. Within a term, acknowledged entries stay.
    pub fn is_kept_by(&self, term: u64, last: Option<LogId>) -> bool {
        let entry = LogId { leader_id: CommittedLeaderId::new(self.entry_term), index: self.index };
        term > self.term || (term == self.term && last >= Some(entry))
    }
}

impl FromStr for Start {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = InvalidId("a start is 16 hexadecimal digits");
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| invalid)
    }
}

impl TryFrom<String> for Start {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<Start> for String {
    fn from(start: Start) -> Self {
        start.to_string()
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for AcknowledgedEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.term, self.entry_term, self.index)
    }
}

impl FromStr for AcknowledgedEntry {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let mut numbers = text.split('.').map(str::parse);
        let read = match (numbers.next(), numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(term)), Some(Ok(entry_term)), Some(Ok(index)), None) => Some(Self { term, entry_term, index }),
            _ => None,
        };
        // Numbers are also read with a plus sign or leading zeros, as no node writes them.
        let written = read.filter(|read| read.to_string() == text);
        written.ok_or(InvalidId("an acknowledged entry is written as TERM.ENTRY_TERM.INDEX"))
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    fn log_id(term: u64, index: u64) -> LogId {
        LogId { leader_id: CommittedLeaderId::new(term), index }
    }

    #[test]
    fn come_back_as_they_were_written() {
        let start = Start::draw(&mut StdRng::seed_from_u64(1));
        assert_eq!(start.to_string().parse(), Ok(start));
        for damaged in ["", "0123456789abcde", "0123456789abcdeg", "+123456789abcdef"] {
            assert!(damaged.parse::<Start>().is_err(), "{damaged}");
        }
        let acknowledged = AcknowledgedEntry::new(7, log_id(5, 39));
        assert_eq!(acknowledged.to_string(), "7.5.39");
        assert_eq!("7.5.39".parse(), Ok(acknowledged));
        for damaged in ["", "7.5", "7.5.39.1", "7.5.x", "7.5.-1", "+7.5.39", "7.05.39"] {
            assert!(damaged.parse::<AcknowledgedEntry>().is_err(), "{damaged}");
        }
    }

    #[test]
    fn acknowledged_entries_are_kept_within_their_term() {
        let acknowledged = AcknowledgedEntry::new(7, log_id(5, 39));
        assert!(acknowledged.is_kept_by(7, Some(log_id(5, 39))) && acknowledged.is_kept_by(7, Some(log_id(7, 40))));
        assert!(acknowledged.is_kept_by(8, Some(log_id(5, 30))), "the leader of term 8 may have truncated it");
        assert!(!acknowledged.is_kept_by(7, Some(log_id(5, 38))) && !acknowledged.is_kept_by(7, None));
        assert!(!acknowledged.is_kept_by(6, Some(log_id(5, 39))), "the vote is older");
    }
}
