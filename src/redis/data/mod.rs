//! Values of keys, and how they lie in the store: one entry each.
//!
//! The first byte of an entry says its type. A string follows as it is, so that a transaction can compare it by its bytes. The other types
//! are lists of parts, each with its length before it. A change of a structure writes the whole entry; locks, semaphores and queues of
//! waiters are small, and the store limits the rest.
//!
//! A command that asks for one part, or for the number of parts, passes over the bytes of the entry; others decode it.
//!
//! Fields and members are shown in the order in which they came, as Redis shows small structures.

mod bytes;
mod fields;
mod scan;
mod sorted;

use std::{collections::VecDeque, sync::Arc};

pub(crate) use fields::OrderedFields;
pub(crate) use scan::{PartFound, count_parts, find_item, find_named, score_in};
pub(crate) use sorted::{Score, SortedMembers};

use bytes::{EncodedParts, put_part};

/// The first byte of a string's entry.
const TEXT: u8 = b's';
/// The first byte of a list: its items follow.
const LIST: u8 = b'l';
/// The first byte of a hash: fields and values follow in turns.
const HASH: u8 = b'h';
/// The first byte of a set: its members follow.
const SET: u8 = b'e';
/// The first byte of a sorted set: scores and members follow in turns.
const SORTED: u8 = b'z';

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Datum {
    /// A string of any bytes.
    Text(Vec<u8>),
    /// A list, from left to right.
    List(Arc<ListItems>),
    /// Fields with values.
    Hash(Arc<HashFields>),
    /// Members.
    Set(Arc<SetMembers>),
    /// Members with scores.
    Sorted(Arc<SortedMembers>),
}

/// The items of a list.
pub(crate) type ListItems = VecDeque<Vec<u8>>;
/// The fields of a hash.
pub(crate) type HashFields = OrderedFields<Vec<u8>>;
/// The members of a set.
pub(crate) type SetMembers = OrderedFields<()>;

/// A type of values that have parts. A key whose value has none does not exist.
pub(crate) trait Structure: Clone + Default {
    /// The type of values that it is.
    const KIND: DatumKind;
    /// The structure, if the value is of this type.
    fn from_datum(datum: &Datum) -> Option<&Arc<Self>>;
    /// The structure as a value.
    fn into_datum(self) -> Datum;
    /// Number of parts.
    fn part_count(&self) -> usize;
}

macro_rules! structure {
    ($type:ty, $variant:ident) => {
        impl Structure for $type {
            const KIND: DatumKind = DatumKind::$variant;

            fn from_datum(datum: &Datum) -> Option<&Arc<Self>> {
                if let Datum::$variant(structure) = datum { Some(structure) } else { None }
            }

            fn into_datum(self) -> Datum {
                Datum::$variant(Arc::new(self))
            }

            fn part_count(&self) -> usize {
                self.len()
            }
        }
    };
}

structure!(ListItems, List);
structure!(HashFields, Hash);
structure!(SetMembers, Set);
structure!(SortedMembers, Sorted);

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DatumKind {
    Text,
    List,
    Hash,
    Set,
    Sorted,
}

impl DatumKind {
    /// The name of the type, as TYPE says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Text => "string",
            Self::List => "list",
            Self::Hash => "hash",
            Self::Set => "set",
            Self::Sorted => "zset",
        }
    }

    /// The type of an entry. `None` for an entry that this version cannot read.
    pub(crate) fn from_entry(bytes: &[u8]) -> Option<Self> {
        match *bytes.first()? {
            TEXT => Some(Self::Text),
            LIST => Some(Self::List),
            HASH => Some(Self::Hash),
            SET => Some(Self::Set),
            SORTED => Some(Self::Sorted),
            _ => None,
        }
    }
}

impl Datum {
    /// The type of the value.
    pub(crate) fn kind(&self) -> DatumKind {
        match self {
            Self::Text(_) => DatumKind::Text,
            Self::List(_) => DatumKind::List,
            Self::Hash(_) => DatumKind::Hash,
            Self::Set(_) => DatumKind::Set,
            Self::Sorted(_) => DatumKind::Sorted,
        }
    }

    /// The bytes of the entry.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();

        match self {
            Self::Text(text) => return encode_text(text),
            Self::List(items) => {
                out.push(LIST);
                items.iter().for_each(|item| put_part(&mut out, item));
            }
            Self::Hash(fields) => {
                out.push(HASH);
                for (field, value) in fields.in_order() {
                    put_part(&mut out, field);
                    put_part(&mut out, value);
                }
            }
            Self::Set(members) => {
                out.push(SET);
                members.in_order().for_each(|(member, ())| put_part(&mut out, member));
            }
            Self::Sorted(members) => {
                out.push(SORTED);
                for (member, score) in members.in_order() {
                    out.extend_from_slice(&score.to_be_bytes());
                    put_part(&mut out, member);
                }
            }
        }
        out
    }

    /// Reads the bytes of an entry. `None` for an entry that this version cannot read.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let kind = DatumKind::from_entry(bytes)?;
        let mut parts = EncodedParts(&bytes[1..]);

        Some(match kind {
            DatumKind::Text => Self::Text(bytes[1..].to_vec()),
            DatumKind::List => {
                let mut items = VecDeque::new();
                while let Some(item) = parts.next_part()? {
                    items.push_back(item.to_vec());
                }
                Self::List(Arc::new(items))
            }
            DatumKind::Hash => {
                let mut fields = OrderedFields::default();
                while let Some(field) = parts.next_part()? {
                    let value = parts.next_part()??;
                    fields.set(field, value.to_vec());
                }
                Self::Hash(Arc::new(fields))
            }
            DatumKind::Set => {
                let mut members = OrderedFields::default();
                while let Some(member) = parts.next_part()? {
                    members.set(member, ());
                }
                Self::Set(Arc::new(members))
            }
            DatumKind::Sorted => {
                let mut members = SortedMembers::default();
                while let Some(score) = parts.next_score()? {
                    let member = parts.next_part()??;
                    members.set(member, Score::new(score)?);
                }
                Self::Sorted(Arc::new(members))
            }
        })
    }
}

/// The bytes of the entry of a string: what a transaction compares.
pub(crate) fn encode_text(text: &[u8]) -> Vec<u8> {
    [&[TEXT], text].concat()
}

/// The string in the bytes of an entry, if it is one.
pub(crate) fn text_in_entry(bytes: &[u8]) -> Option<&[u8]> {
    bytes.strip_prefix(&[TEXT])
}

#[cfg(test)]
mod tests;
