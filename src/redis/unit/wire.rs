//! Units and outcomes as bytes, on their way between nodes.

use crate::RedisReply;

/// Bytes that are being written.
#[derive(Default)]
pub(super) struct WireWriter(pub(super) Vec<u8>);

impl WireWriter {
    /// A byte as it is.
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// A number of seven bits a byte, the lowest first.
    pub(super) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Bytes with their number before them.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    /// A number of parts and the parts.
    pub(super) fn list(&mut self, list: &[Vec<u8>]) {
        self.number(list.len() as u64);
        list.iter().for_each(|bytes| self.bytes(bytes));
    }

    /// A reply: a sign for its form, and what it has.
    pub(super) fn reply(&mut self, reply: &RedisReply) {
        match reply {
            RedisReply::Status(text) => self.tagged(b'+', text),
            RedisReply::Error(text) => self.tagged(b'-', text),
            RedisReply::Bulk(bytes) => self.tagged(b'$', bytes),
            RedisReply::Verbatim(text) => self.tagged(b'=', text),
            RedisReply::Integer(number) => {
                self.byte(b':');
                self.0.extend_from_slice(&number.to_be_bytes());
            }

            RedisReply::Double(number) => {
                self.byte(b',');
                self.0.extend_from_slice(&number.to_be_bytes());
            }
            RedisReply::Nil | RedisReply::OwnRevision => self.byte(b'_'),
            RedisReply::NilArray => self.byte(b'!'),
            RedisReply::Array(items) => self.items(b'*', items),
            RedisReply::Set(items) => self.items(b'~', items),
            RedisReply::Push(items) => self.items(b'>', items),
            RedisReply::Map(pairs) => self.pairs(b'%', pairs),
            RedisReply::Pairs(pairs) => self.pairs(b'&', pairs),
        }
    }

    /// A sign and bytes.
    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.byte(tag);
        self.bytes(bytes);
    }

    /// A sign, a number of replies, and the replies.
    fn items(&mut self, tag: u8, items: &[RedisReply]) {
        self.byte(tag);
        self.number(items.len() as u64);
        items.iter().for_each(|item| self.reply(item));
    }

    /// A sign, a number of pairs, and the pairs.
    fn pairs(&mut self, tag: u8, pairs: &[(RedisReply, RedisReply)]) {
        self.byte(tag);
        self.number(pairs.len() as u64);
        for (first, second) in pairs {
            self.reply(first);
            self.reply(second);
        }
    }
}

/// Bytes that are left to be read. Each function answers `None` for a form that cannot be read.
pub(super) struct WireReader<'a>(pub(super) &'a [u8]);

impl WireReader<'_> {
    /// Whether nothing is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    /// A byte.
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    /// A number of seven bits a byte.
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// The number of parts that follow. Each takes at least one byte, so a number above that of the remaining bytes is invalid.
    pub(super) fn count(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= self.0.len())
    }

    /// Bytes with their number before them.
    pub(super) fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.count()?;
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(bytes.to_vec())
    }

    /// Bytes that are text.
    pub(super) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }

    /// A number of parts and the parts.
    pub(super) fn list(&mut self) -> Option<Vec<Vec<u8>>> {
        (0..self.count()?).map(|_| self.bytes()).collect()
    }

    /// Eight bytes, such as of an integer.
    fn eight(&mut self) -> Option<[u8; 8]> {
        let (eight, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*eight)
    }

    /// A reply with at most this depth.
    pub(super) fn reply(&mut self, depth: usize) -> Option<RedisReply> {
        let depth = depth.checked_sub(1)?;

        Some(match self.byte()? {
            b'+' => RedisReply::Status(self.bytes()?),
            b'-' => RedisReply::Error(self.bytes()?),
            b'$' => RedisReply::Bulk(self.bytes()?),
            b'=' => RedisReply::Verbatim(self.bytes()?),
            b':' => RedisReply::Integer(i64::from_be_bytes(self.eight()?)),
            b',' => RedisReply::Double(f64::from_be_bytes(self.eight()?)),
            b'_' => RedisReply::Nil,
            b'!' => RedisReply::NilArray,
            b'*' => RedisReply::Array(self.items(depth)?),
            b'~' => RedisReply::Set(self.items(depth)?),
            b'>' => RedisReply::Push(self.items(depth)?),
            b'%' => RedisReply::Map(self.pairs(depth)?),
            b'&' => RedisReply::Pairs(self.pairs(depth)?),
            _ => return None,
        })
    }

    /// Replies within a reply.
    fn items(&mut self, depth: usize) -> Option<Vec<RedisReply>> {
        (0..self.count()?).map(|_| self.reply(depth)).collect()
    }

    /// Pairs of replies within a reply.
    fn pairs(&mut self, depth: usize) -> Option<Vec<(RedisReply, RedisReply)>> {
        (0..self.count()?).map(|_| Some((self.reply(depth)?, self.reply(depth)?))).collect()
    }
}
