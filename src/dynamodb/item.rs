//! The format of an item: compact bytes with a version, so that a later format can be told from this one.
//!
//! Beside the attributes, a record has the revision of the acquisition that it shows, for locks (`recipes`), and a mark of the request that
//! wrote it, by which a retry of that request is recognized (`once`).

use std::collections::BTreeSet;

use crate::{AttributeValue, Item, Number, value::DEPTH_MAX};

/// The version of the format below.
const VERSION: u8 = 1;

/// The content of a store's entry for an item.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ItemRecord {
    pub(crate) item: Item,
    pub(crate) fence: ItemFence,
    pub(crate) mark: Option<RequestMark>,
}

/// The name of a request: the first half of a SHA-256.
pub(crate) type RequestMark = [u8; 16];

/// The time at which the lock that an item shows was acquired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ItemFence {
    /// The item is not a lock.
    #[default]
    None,
    /// The write that made this record acquired the lock. That write could not know its revision, which the entry has (`modified`).
    ThisRevision,
    /// An earlier write acquired the lock, at this revision. The next write of the record knew it.
    At(u64),
}

/// The bytes are not a record: another program or a later version wrote them.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("an entry of {0} bytes has an item format that this version cannot read")]
pub(crate) struct UnreadableItem(usize);

impl ItemRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        match self.fence {
            ItemFence::None => out.push(0),
            ItemFence::ThisRevision => out.push(1),
            ItemFence::At(revision) => {
                out.push(2);
                put_number(&mut out, revision.into());
            }
        }

        match &self.mark {
            None => out.push(0),
            Some(mark) => {
                out.push(1);
                out.extend(mark);
            }
        }

        put_item(&mut out, &self.item);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, UnreadableItem> {
        let mut reader = RecordReader(bytes);
        let record = reader.record().filter(|_| reader.0.is_empty());
        record.ok_or(UnreadableItem(bytes.len()))
    }
}

/// Returns the bytes of attributes, which are the same for the same attributes.
pub(crate) fn bytes_of(item: &Item) -> Vec<u8> {
    let mut out = Vec::new();
    put_item(&mut out, item);
    out
}

/// Writes seven bits a byte, the lowest first. The highest bit of a byte says that more follow.
fn put_number(out: &mut Vec<u8>, mut number: u128) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u128);
    out.extend(bytes);
}

fn put_item(out: &mut Vec<u8>, item: &Item) {
    put_number(out, item.len() as u128);
    for (name, value) in item {
        put_bytes(out, name.as_bytes());
        put_value(out, value);
    }
}

fn put_decimal(out: &mut Vec<u8>, number: Number) {
    let (negative, coefficient, exponent) = number.parts();
    out.push(u8::from(negative));
    out.extend(exponent.to_be_bytes());
    put_number(out, coefficient);
}

fn put_value(out: &mut Vec<u8>, value: &AttributeValue) {
    match value {
        AttributeValue::Null => out.push(0),
        AttributeValue::Bool(value) => out.push(1 + u8::from(*value)),
        AttributeValue::S(text) => {
            out.push(3);
            put_bytes(out, text.as_bytes());
        }
        AttributeValue::N(number) => {
            out.push(4);
            put_decimal(out, *number);
        }
        AttributeValue::B(bytes) => {
            out.push(5);
            put_bytes(out, bytes);
        }
        AttributeValue::Ss(set) => {
            out.push(6);
            put_number(out, set.len() as u128);
            set.iter().for_each(|text| put_bytes(out, text.as_bytes()));
        }
        AttributeValue::Ns(set) => {
            out.push(7);
            put_number(out, set.len() as u128);
            set.iter().for_each(|number| put_decimal(out, *number));
        }
        AttributeValue::Bs(set) => {
            out.push(8);
            put_number(out, set.len() as u128);
            set.iter().for_each(|bytes| put_bytes(out, bytes));
        }
        AttributeValue::L(list) => {
            out.push(9);
            put_number(out, list.len() as u128);
            list.iter().for_each(|value| put_value(out, value));
        }
        AttributeValue::M(map) => {
            out.push(10);
            put_item(out, map);
        }
    }
}

struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    fn record(&mut self) -> Option<ItemRecord> {
        if self.byte()? != VERSION {
            return None;
        }

        let fence = match self.byte()? {
            0 => ItemFence::None,
            1 => ItemFence::ThisRevision,
            2 => ItemFence::At(u64::try_from(self.number()?).ok()?),
            _ => return None,
        };

        let mark = match self.byte()? {
            0 => None,
            1 => Some(self.take(16)?.try_into().ok()?),
            _ => return None,
        };

        Some(ItemRecord { item: self.item(0)?, fence, mark })
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn number(&mut self) -> Option<u128> {
        let mut number = 0;
        for shift in (0..128).step_by(7) {
            let byte = self.byte()?;
            number |= u128::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// Reads a count of elements of at least one byte each. A false count allocates no more memory than there are bytes.
    fn count(&mut self) -> Option<usize> {
        // Each element has a byte at least: no damaged length reserves more memory than the record has.
        usize::try_from(self.number()?).ok().filter(|count| *count <= self.0.len())
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.count()?;
        self.take(length).map(<[u8]>::to_vec)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }

    fn decimal(&mut self) -> Option<Number> {
        let negative = self.byte()? == 1;
        let exponent = i16::from_be_bytes(self.take(2)?.try_into().ok()?);
        Number::from_parts(negative, self.number()?, exponent)
    }

    fn many<T, C: FromIterator<T>>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<C> {
        (0..self.count()?).map(|_| read(self)).collect()
    }

    fn item(&mut self, depth: usize) -> Option<Item> {
        self.many(|reader| Some((reader.text()?, reader.value(depth)?)))
    }

    fn value(&mut self, depth: usize) -> Option<AttributeValue> {
        if depth > DEPTH_MAX {
            return None;
        }

        Some(match self.byte()? {
            0 => AttributeValue::Null,
            1 => AttributeValue::Bool(false),
            2 => AttributeValue::Bool(true),
            3 => AttributeValue::S(self.text()?),
            4 => AttributeValue::N(self.decimal()?),
            5 => AttributeValue::B(self.bytes()?),
            6 => AttributeValue::Ss(self.many(Self::text)?),
            7 => AttributeValue::Ns(self.many::<_, BTreeSet<_>>(Self::decimal)?),
            8 => AttributeValue::Bs(self.many(Self::bytes)?),
            9 => AttributeValue::L(self.many(|reader| reader.value(depth + 1))?),
            10 => AttributeValue::M(self.item(depth + 1)?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;
    use crate::value::tests::any_value;

    fn any_record() -> impl Strategy<Value = ItemRecord> {
        let fence =
            prop_oneof![Just(ItemFence::None), Just(ItemFence::ThisRevision), any::<u64>().prop_map(ItemFence::At)];
        let item = collection::btree_map("[a-z]{1,3}", any_value(), 0..5);
        (item, fence, any::<Option<RequestMark>>()).prop_map(|(item, fence, mark)| ItemRecord { item, fence, mark })
    }

    proptest! {
        #[test]
        fn a_record_is_read_as_it_was_written(record in any_record()) {
            prop_assert_eq!(ItemRecord::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn damaged_bytes_are_refused_or_read_but_never_panic(
            record in any_record(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = record.encode();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = ItemRecord::decode(&bytes);
            prop_assert!(ItemRecord::decode(&record.encode()[..cut.index(bytes.len())]).is_err());
        }

        #[test]
        fn any_bytes_are_refused_or_read(bytes in collection::vec(any::<u8>(), 0..64)) {
            let _ = ItemRecord::decode(&bytes);
            let _ = ItemRecord::decode(&[&[VERSION, 0, 0], &bytes[..]].concat());
        }
    }

    #[test]
    fn another_version_is_refused() {
        let mut bytes = ItemRecord::default().encode();
        bytes[0] = VERSION + 1;
        assert_eq!(ItemRecord::decode(&bytes), Err(UnreadableItem(bytes.len())));
    }
}
