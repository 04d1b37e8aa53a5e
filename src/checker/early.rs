//! No early expiry: no session ends before its holder stops trusting it.
//!
//! The holder counts from the *sending* of its last acknowledged open or renewal, the cluster from a later stamp. So until that sending
//! plus the TTL, the cluster neither reports the session as over nor grants its locks to another, and the registers with its lease are
//! there. With one machine and one monotonic clock this is exact, except for `stamp_ns` of the meta. (A session that the cluster no longer
//! knows is a loss, which `durability` reports.)
//!
//! A close ends a session at any time, but the history has it: of the holder or of whoever else may close sessions. A session that is
//! reported as closed although nobody had begun to close it has ended too early, too.

use std::fmt;

use super::{
    grants::Grant,
    run::{Acknowledged, Mark, Run},
    show::Ms,
    tenures::Overlap,
    transactions::EndedEarly,
    verdict::{Evidence, Finding, Investigation, Property},
};

enum TooEarly<'r> {
    Told { session: &'r str, how: EndReported, told: Mark, lease: Acknowledged },
    PassedOn { lock: &'r str, from: &'r Grant<'r>, to: &'r Grant<'r> },
    Absent(&'r EndedEarly),
}

/// How the cluster says that a session has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EndReported {
    Expired,
    Closed,
}

impl EndReported {
    /// From the reason of a refusal.
    fn from_reason(reason: &str) -> Option<Self> {
        match reason {
            "session_expired" => Some(Self::Expired),
            "session_closed" => Some(Self::Closed),
            _ => None,
        }
    }
}

impl fmt::Display for TooEarly<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Told { session, how, told, lease } => {
                let told = Ms(told.0);
                let until = Ms(lease.until_ns);
                let how = match how {
                    EndReported::Expired => "expired",
                    EndReported::Closed => "closed, which nobody had asked for,",
                };
                write!(f, "session {session:?} was reported as {how} at {told}, but its lease lasts until {until}")
            }
            Self::PassedOn { lock, from, to } => {
                let until = Ms(from.until_ns);
                let answered = Ms(to.answered_ns);
                write!(f, "lock {lock:?}: {from} held it until {until}, and it was granted as {to} by {answered}")
            }
            Self::Absent(EndedEarly { key, session, lease, told, .. }) => {
                let told = Ms(told.0);
                let until = Ms(lease.until_ns);
                write!(
                    f,
                    "register {key:?} was absent by {told}, but the lease of session {session:?} lasts until {until}"
                )
            }
        }
    }
}

impl Evidence for TooEarly<'_> {
    fn lines(&self) -> Vec<usize> {
        match self {
            Self::Told { told, lease, .. } => vec![lease.line, told.1],
            Self::Absent(early) => vec![early.put_line, early.lease.line, early.told.1],
            Self::PassedOn { from, to, .. } => vec![from.answered_line, from.until_line, to.answered_line],
        }
    }
}

pub(super) fn check(run: &Run<'_>, overlaps: &[Overlap<'_>], ended_early: &[EndedEarly]) -> Finding {
    let mut investigation = Investigation::new(Property::NoEarlyExpiry);
    investigation.count("sessions with a lease", 0);

    for overlap in overlaps {
        if let Some(from) = overlap.silent() {
            investigation.report(&TooEarly::PassedOn { lock: overlap.lock, from, to: overlap.next });
        }
    }

    for early in ended_early {
        investigation.report(&TooEarly::Absent(early));
    }

    let mut sessions: Vec<_> = run.sessions.iter().collect();
    sessions.sort_unstable_by_key(|(name, _)| **name);
    for (session, record) in sessions {
        let Some(lease) = record.trusted else { continue };
        investigation.count("sessions with a lease", 1);

        let Some((told, reason)) = record.over else { continue };
        let Some(how) = EndReported::from_reason(reason) else { continue };
        if how == EndReported::Expired {
            investigation.count("expiries noticed", 1);
        }
        let closed = record.closing.is_some_and(|closing| closing < told);
        if told.0 < lease.until_ns && !closed {
            investigation.report(&TooEarly::Told { session, how, told, lease });
        }
    }

    investigation.close()
}
