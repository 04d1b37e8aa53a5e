//! One line: what happened, in which log entry, to which session and lock, and who did it.
//!
//! A line is a flat object. Each kind of line has some of the fields, in the order of the struct. The text is a function of
//! the values alone.

use std::{borrow::Cow, fmt};

use serde::{Deserialize, Serialize};

/// What a line reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditEvent {
    /// The trail begins. Sessions, grants and waits from before have no lines. `token` and `ticket` are the last ones issued.
    Begun,
    /// The cluster was restored from a backup. The fields are those of `Begun`.
    Restored,
    /// A session was opened.
    SessionOpened,
    /// A session that was opened without an owner got one.
    OwnerSet,
    /// A session ended. `how` says whether it was closed or expired; `by` and `reason` are those of an operator who closed it.
    SessionEnded,
    /// A session got a lock.
    Granted,
    /// An acquire began to wait.
    Queued,
    /// A wait ended without a grant. `how` says why.
    Left,
    /// A holder gave a lock back.
    Released,
    /// A holder lost a lock, because its session expired or an operator took it (`how`, `reason`).
    Lost,
    /// An operator revoked a grant. Its holder keeps it until it releases it or its session would have ended.
    Revoked,
    /// An operator forced a release. `by` and `reason` are the operator's, and `count` is the number of grants concerned.
    ForcedRelease,
    /// An operator removed a waiter.
    WaiterRemoved,
    /// An operator ended a lock-delay.
    DelayLifted,
    /// An operator dropped data of locks. `target` is the prefix of their names, and `count` their number.
    DataDropped,
    /// An operator gave a semaphore another size.
    Resized,
    /// A node became a member, or got other addresses or another role.
    MemberChanged,
    /// A node is no longer a member.
    MemberRemoved,
    /// The cluster version rose.
    VersionRaised,
    /// Something happened that does not change the table: a refused permission, a backup, a transfer of the leadership (`act`,
    /// `target`, `reason`). `count` is the number of other notes that were not written since the last one.
    Note,
}

/// A session's id. Its text has 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Session(pub u128);

impl Session {
    /// The id in lines of a lock without a session: an entry with its own deadline holds the lock.
    pub const NONE: Self = Self(0);
}

/// How the members of a cluster are listed.
pub type MemberIds = Vec<u64>;

/// A line. The hash is not part of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditLine<'a> {
    /// The line's number, from 1 on.
    pub line: u64,
    /// The index of the log entry.
    pub index: u64,
    /// The cluster time at that entry in milliseconds.
    pub stamp_ms: u64,
    /// The leader's wall clock when it proposed the entry, in milliseconds since 1970. Entries without commands have none.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wall_ms: Option<u64>,
    /// What happened.
    pub what: AuditEvent,
    /// The lock.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lock: Option<Cow<'a, str>>,
    /// What holds the lock and waits for it. `entry` means entries of the keyspace, such as items of DynamoDB's lock clients.
    /// Otherwise grants do.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub kind: Option<Cow<'a, str>>,
    /// The token of the grant, or of the entry that waits.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub token: Option<u64>,
    /// The place in the order of arrival. For a grant, that of the wait that it ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ticket: Option<u64>,
    /// The mode: `exclusive`, `shared` or `permit`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<Cow<'a, str>>,
    /// The size of the semaphore.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub permits: Option<u32>,
    /// The session.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub session: Option<Session>,
    /// The identity that the session belongs to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub owner: Option<Cow<'a, str>>,
    /// The session's label.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub label: Option<Cow<'a, str>>,
    /// The address from which the session was opened.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<Cow<'a, str>>,
    /// The session's TTL in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ttl_ms: Option<u32>,
    /// How a session, a wait or a grant ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub how: Option<Cow<'a, str>>,
    /// The identity that asked for an administrative act, or that was refused.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub by: Option<Cow<'a, str>>,
    /// The reason that this identity gave.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<Cow<'a, str>>,
    /// The act that a note reports.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub act: Option<Cow<'a, str>>,
    /// What the act was about.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target: Option<Cow<'a, str>>,
    /// A number of things. [`AuditEvent`] says which.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub count: Option<u64>,
    /// The node.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node: Option<u64>,
    /// The cluster version.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub version: Option<u32>,
}

impl AuditLine<'_> {
    /// A line that says only what happened.
    pub fn new(what: AuditEvent) -> Self {
        Self {
            line: 0,
            index: 0,
            stamp_ms: 0,
            wall_ms: None,
            what,
            lock: None,
            kind: None,
            token: None,
            ticket: None,
            mode: None,
            permits: None,
            session: None,
            owner: None,
            label: None,
            address: None,
            ttl_ms: None,
            how: None,
            by: None,
            reason: None,
            act: None,
            target: None,
            count: None,
            node: None,
            version: None,
        }
    }

    /// Appends the line as an object.
    pub(super) fn write(&self, text: &mut Vec<u8>) {
        serde_json::to_writer(text, self).expect("a line is written to memory, and its keys are strings");
    }

    pub(super) fn parse(text: &str) -> Result<AuditLine<'static>, serde_json::Error> {
        serde_json::from_str(text)
    }
}

impl fmt::Display for AuditEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for Session {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [0; 32];
        for (digit, shift) in text.iter_mut().zip((0..32).rev()) {
            *digit = DIGITS[(self.0 >> (4 * shift) & 15) as usize];
        }
        serializer.serialize_str(str::from_utf8(&text).expect("digits"))
    }
}

impl<'de> Deserialize<'de> for Session {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        // Only the form in which ids are written is accepted, because programs that compare texts, such as grep, must find every
        // line of a session.
        let is_written_so = text.len() == 32 && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        let id = u128::from_str_radix(&text, 16).ok().filter(|_| is_written_so);
        id.map(Self).ok_or_else(|| {
            serde::de::Error::custom(format_args!("the session {text:?} is not 32 hexadecimal digits in lower case"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_has_one_form() {
        let text = "\"0000000000000000fedcba9876543210\"";
        let session: Session = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&session).unwrap(), text);
        for other in ["", "7", "+000000000000000fedcba9876543210", "0000000000000000FEDCBA9876543210"] {
            let error = serde_json::from_str::<Session>(&format!("\"{other}\"")).unwrap_err();
            assert!(error.to_string().contains("32 hexadecimal digits"), "{other:?}: {error}");
        }
    }
}
