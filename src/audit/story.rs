//! The lines about one lock or session.

use super::line::{AuditLine, Session};

/// The lock or session whose lines are asked for. Without both, all lines are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StorySubject {
    /// Only lines of this lock.
    pub lock: Option<String>,
    /// Only lines of this session.
    pub session: Option<Session>,
}

/// Whether a line belongs to the story. The story of a lock has its lines and no others: what became of a session is that
/// session's story.
pub fn select(wanted: &StorySubject, line: &AuditLine<'_>) -> bool {
    let of_lock = wanted.lock.as_deref().is_none_or(|lock| line.lock.as_deref() == Some(lock));
    let of_session = wanted.session.is_none_or(|session| line.session == Some(session));
    of_lock && of_session
}
