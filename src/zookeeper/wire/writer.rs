//! Writes jute.

use super::{ErrorCode, Opcode};

/// Bytes that are written from front to back, as whole frames.
#[derive(Debug, Default)]
pub(crate) struct JuteWriter {
    bytes: Vec<u8>,
}

impl JuteWriter {
    /// The bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Number of bytes that are written.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// A truth value.
    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        self.bytes.push(u8::from(value));
        self
    }

    /// A number of four bytes.
    pub(crate) fn int(&mut self, value: i32) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// A number of eight bytes.
    pub(crate) fn long(&mut self, value: i64) -> &mut Self {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// A count or a length. No frame comes near 2 GiB: requests and replies are bounded far below.
    pub(crate) fn count(&mut self, count: usize) -> &mut Self {
        self.int(i32::try_from(count).unwrap_or(i32::MAX))
    }

    /// Bytes, or their absence.
    pub(crate) fn buffer(&mut self, value: Option<&[u8]>) -> &mut Self {
        let Some(value) = value else { return self.int(-1) };
        self.count(value.len());
        self.bytes.extend_from_slice(value);
        self
    }

    /// A text.
    pub(crate) fn string(&mut self, value: &str) -> &mut Self {
        self.buffer(Some(value.as_bytes()))
    }

    /// Texts.
    pub(crate) fn strings<'a>(&mut self, values: impl ExactSizeIterator<Item = &'a str>) -> &mut Self {
        self.count(values.len());
        for value in values {
            self.string(value);
        }
        self
    }

    /// Appends bytes that are written already.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The header of a result within a multi, and its end.
    pub(crate) fn multi_header(&mut self, opcode: Opcode, is_end: bool, error: i32) -> &mut Self {
        self.int(opcode.0).bool(is_end).int(error)
    }

    /// A result within a multi that is an error: the number stands twice.
    pub(crate) fn multi_error(&mut self, error: i32) -> &mut Self {
        self.multi_header(Opcode::NONE, false, error).int(error)
    }
}

/// Appends a frame with this payload.
fn put_frame(out: &mut Vec<u8>, parts: &[&[u8]]) {
    let length = parts.iter().map(|part| part.len()).sum::<usize>();
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

impl JuteWriter {
    /// Appends what was written as one frame.
    pub(crate) fn put_frame(&self, out: &mut Vec<u8>) {
        put_frame(out, &[&self.bytes]);
    }

    /// Appends a reply: a header and, if there is no error, a body.
    pub(crate) fn put_reply(out: &mut Vec<u8>, xid: i32, zxid: i64, result: Result<&[u8], ErrorCode>) {
        let mut header = Self::default();
        let error = result.err().map_or(0, ErrorCode::number);
        header.int(xid).long(zxid).int(error);
        put_frame(out, &[&header.bytes, result.unwrap_or_default()]);
    }

    /// Appends an event of a watch: its type, and the path. The state is always that of a session that is connected.
    pub(crate) fn put_event(out: &mut Vec<u8>, kind: i32, path: &str) {
        const SYNC_CONNECTED: i32 = 3;
        let mut event = Self::default();
        event.int(-1).long(-1).int(0).int(kind).int(SYNC_CONNECTED).string(path);
        event.put_frame(out);
    }
}
