//! The fields of a protobuf message, written and read one by one, without an object for each message.
//!
//! For messages that each node reads for each command of the log: the objects between bytes and values cost more than the values. The rest
//! of this module uses generated types.

use prost::encoding::{WireType, decode_varint, encode_key, encode_varint};

use super::Malformed;

/// Bytes of a length that is written before it is known.
const SHORT_LENGTH_MAX: usize = 127;

/// The fields of a message, in the order in which they were written.
pub(super) struct MessageFields<'a>(&'a [u8]);

/// What a field has.
#[derive(Clone, Copy)]
pub(super) enum FieldContent<'a> {
    /// A number, a flag, or a constant of an enumeration.
    Number(u64),
    /// Bytes, a text, or a message.
    Bytes(&'a [u8]),
    /// A number of a fixed length, which no field here has.
    Fixed,
}

impl<'a> MessageFields<'a> {
    /// The fields of the message with these bytes.
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn read(&mut self) -> Option<(u32, FieldContent<'a>)> {
        let key = self.number()?;
        let tag = u32::try_from(key >> 3).ok().filter(|tag| *tag > 0)?;
        let field = match WireType::try_from(key & 7).ok()? {
            WireType::Varint => FieldContent::Number(self.number()?),
            WireType::LengthDelimited => {
                let bytes = usize::try_from(self.number()?).ok()?;
                FieldContent::Bytes(self.take(bytes)?)
            }
            WireType::ThirtyTwoBit => self.take(4).map(|_| FieldContent::Fixed)?,
            WireType::SixtyFourBit => self.take(8).map(|_| FieldContent::Fixed)?,
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        Some((tag, field))
    }

    fn number(&mut self) -> Option<u64> {
        match self.0 {
            // Nearly all tags, lengths and flags.
            [byte @ ..0x80, rest @ ..] => {
                self.0 = rest;
                Some((*byte).into())
            }
            _ => decode_varint(&mut self.0).ok(),
        }
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for MessageFields<'a> {
    type Item = Result<(u32, FieldContent<'a>), Malformed>;

    /// The tag and the content of the next field.
    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read().ok_or(Malformed("a message that ends within a field"));
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

impl<'a> FieldContent<'a> {
    pub(super) fn number(self) -> Result<u64, Malformed> {
        if let Self::Number(number) = self { Ok(number) } else { Err(Malformed("a field that should be a number")) }
    }

    pub(super) fn flag(self) -> Result<bool, Malformed> {
        Ok(self.number()? != 0)
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], Malformed> {
        if let Self::Bytes(bytes) = self { Ok(bytes) } else { Err(Malformed("a field that should have bytes")) }
    }

    pub(super) fn text(self) -> Result<&'a str, Malformed> {
        str::from_utf8(self.bytes()?).map_err(|_| Malformed("a text that is not UTF-8"))
    }
}

/// A message that is being written. MessageFields are left out that have the value of an absent one, unless it is said.
#[derive(Default)]
pub(super) struct MessageWriter(Vec<u8>);

impl MessageWriter {
    /// A writer with room for this number of bytes.
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    /// The bytes of the message.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn number(&mut self, tag: u32, number: u64) {
        if number != 0 {
            self.present_number(tag, number);
        }
    }

    /// A number that is written even if it is 0.
    pub(super) fn present_number(&mut self, tag: u32, number: u64) {
        encode_key(tag, WireType::Varint, &mut self.0);
        encode_varint(number, &mut self.0);
    }

    /// Numbers in one field.
    pub(super) fn numbers(&mut self, tag: u32, numbers: &[u64]) {
        if !numbers.is_empty() {
            self.message(tag, |message| numbers.iter().for_each(|number| encode_varint(*number, &mut message.0)));
        }
    }

    pub(super) fn flag(&mut self, tag: u32, flag: bool) {
        self.number(tag, flag.into());
    }

    pub(super) fn bytes(&mut self, tag: u32, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.present_bytes(tag, bytes);
        }
    }

    /// Bytes that are written even if there are none.
    pub(super) fn present_bytes(&mut self, tag: u32, bytes: &[u8]) {
        encode_key(tag, WireType::LengthDelimited, &mut self.0);
        encode_varint(bytes.len() as u64, &mut self.0);
        self.0.extend_from_slice(bytes);
    }

    /// A message within this one. `write` writes its fields.
    pub(super) fn message(&mut self, tag: u32, write: impl FnOnce(&mut Self)) {
        encode_key(tag, WireType::LengthDelimited, &mut self.0);
        let before = self.0.len();
        self.0.push(0);
        write(self);

        let bytes = self.0.len() - before - 1;
        if bytes <= SHORT_LENGTH_MAX {
            self.0[before] = bytes as u8;
            return;
        }
        // The length takes more than the byte that was left for it.
        let mut length = Vec::new();
        encode_varint(bytes as u64, &mut length);
        self.0.splice(before..=before, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(message: &[u8]) -> Result<Vec<(u32, Option<u64>)>, Malformed> {
        MessageFields::new(message).map(|field| field.map(|(tag, field)| (tag, field.number().ok()))).collect()
    }

    #[test]
    fn fields_of_all_kinds_are_passed_over() {
        let message = [0x08, 150, 1, 0x12, 2, 7, 7, 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8, 0x28, 0];
        let expected = vec![(1, Some(150)), (2, None), (3, None), (4, None), (5, Some(0))];
        assert_eq!(read(&message), Ok(expected));
    }

    #[test]
    fn a_message_that_is_cut_off_is_refused_once() {
        for message in [&[0x08][..], &[0x08, 0x80], &[0x12, 3, 1, 2], &[0x1d, 1], &[0x21, 1], &[0x0b], &[0x00, 1]] {
            let fields: Vec<_> = MessageFields::new(message).collect();
            assert!(matches!(fields[..], [Err(_)]), "{message:?}");
        }
        let huge = [0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert!(read(&huge).is_err());
    }

    #[test]
    fn messages_within_messages_have_their_lengths() {
        for bytes in [0, 1, 120, 123, 124, 125, 126, 127, 128, 129, 16_380, 16_384, 70_000] {
            let mut writer = MessageWriter::default();
            writer.number(1, 7);
            writer.message(2, |inner| {
                inner.message(3, |inmost| inmost.present_bytes(4, &vec![9; bytes]));
                inner.flag(5, true);
            });
            writer.number(6, 8);

            let message = writer.into_bytes();
            let fields: Vec<_> = MessageFields::new(&message).map(Result::unwrap).collect();
            let [(1, one), (2, inner), (6, last)] = fields[..] else { panic!("{bytes}") };
            assert_eq!((one.number(), last.number()), (Ok(7), Ok(8)));
            let inner: Vec<_> = MessageFields::new(inner.bytes().unwrap()).map(Result::unwrap).collect();
            let [(3, inmost), (5, flag)] = inner[..] else { panic!("{bytes}") };
            assert_eq!(flag.flag(), Ok(true));
            let (tag, content) = MessageFields::new(inmost.bytes().unwrap()).next().unwrap().unwrap();
            assert_eq!((tag, content.bytes().unwrap().len()), (4, bytes));
        }
    }
}
