//! What a transaction asks of the keyspace before it runs: properties of entries, and a session that has not moved.

use super::*;

/// How a property of an entry must relate to an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relation {
    /// Equal to it.
    Equal,
    /// Not equal to it.
    NotEqual,
    /// Less than it.
    Less,
    /// Greater than it.
    Greater,
}

/// A property of an entry, and what it is compared with. An absent key has the revisions and the version 0, no lease, and no value: a
/// compare of its value never holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operand {
    /// [`Entry::created`].
    Created(Revision),
    /// [`Entry::modified`].
    Modified(Revision),
    /// [`Entry::version`].
    Version(u64),
    /// [`Entry::value`], ordered byte by byte.
    Value(Value),
    /// The session of [`Entry::lease`]. No lease is less than any session.
    Lease(Option<SessionId>),
}

/// A condition of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compare {
    /// The key.
    pub key: Key,
    /// If set, the condition is on all keys from `key` up to this one, excluded. On a range without entries it is one on an absent key.
    pub up_to: Option<Key>,
    /// How its entry, or each of them, must relate to the operand.
    pub relation: Relation,
    /// The operand.
    pub operand: Operand,
}

/// The condition that a session still belongs to the connection that attached it last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The session.
    pub session: SessionId,
    /// The number that the attachment was given ([`Attachment::number`]); 0 if no connection has attached the session since it was opened.
    pub number: u64,
}

impl Operand {
    /// Whether the property of this entry relates to it so. An absent entry has properties as well.
    pub fn holds(&self, relation: Relation, entry: Option<&Entry>) -> bool {
        // An absent entry has numbers of 0 and no lease, and no value to compare with.
        let number = |property: fn(&Entry) -> u64| entry.map_or(0, property);
        let ordering = match self {
            Self::Created(revision) => number(|entry| entry.created.0).cmp(&revision.0),
            Self::Modified(revision) => number(|entry| entry.modified.0).cmp(&revision.0),
            Self::Version(version) => number(|entry| entry.version).cmp(version),
            Self::Lease(session) => entry.and_then(|entry| entry.lease).map(|lease| lease.session).cmp(session),
            Self::Value(value) => match entry {
                Some(entry) => entry.value.cmp(value),
                None => return false,
            },
        };

        match relation {
            Relation::Equal => ordering.is_eq(),
            Relation::NotEqual => ordering.is_ne(),
            Relation::Less => ordering.is_lt(),
            Relation::Greater => ordering.is_gt(),
        }
    }
}

impl Compare {
    pub(super) fn check_limits(&self) -> Result<(), Invalid> {
        self.key.check_limits()?;
        self.up_to.as_ref().map_or(Ok(()), Key::check_limits)?;
        if let Operand::Value(value) = &self.operand { value.check_limits() } else { Ok(()) }
    }
}
