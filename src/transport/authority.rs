//! An authority with a scheme, which clients of etcd 3.4 send.
//!
//! Go's client calls etcd's service `Maintenance` by a connection of its own, whose `:authority` is the endpoint as the user gave it:
//! `http://HOST:PORT`. etcd does not look at it. h2 resets the stream, since an authority has no scheme, and has no setting for it. So
//! this stream lies beneath h2, and drops the scheme, and a path, from the authorities that a client sends.
//!
//! * **Frames**: only those of type HEADERS are looked at, once they are complete; all others pass as they come.
//! * **The field**: a literal whose name is that of HPACK's static table, in the first frame of a header block: so Go sends it. Where the
//!   client has it added to its dynamic table, h2 adds the shorter one to its own, and reads later references to it. The tables stay in
//!   step: indices count from the newest entry, and since no entry of h2's is longer than the client's, it keeps all that the client keeps.
//! * **Bytes that cannot be parsed pass unchanged**: h2 reports the error.
//!
//! Source: RFC 7541 (HPACK), RFC 9113 (HTTP/2).

use std::{
    io,
    ops::Range,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, ReadBuf};

/// Bytes of HTTP/2's connection preface.
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
/// The maximum payload of a frame that h2 accepts by default.
const PAYLOAD_BYTES_MAX: usize = 16 << 10;
/// The type of a frame that begins a header block, and two of its flags.
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Bytes of the fields that the flag PRIORITY stands for.
const PRIORITY_BYTES: usize = 5;

/// `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;
/// Bytes of an authority's value that is looked at. The name of a host has 253 at the most.
const VALUE_BYTES_MAX: usize = 320;
const SCHEMES: [&[u8]; 2] = [b"http://", b"https://"];
/// `htt` in HPACK's Huffman code.
const HUFFMAN_BEGINNING: [u8; 2] = [0x9d, 0x29];

/// A client's stream of HTTP/2 whose authorities have no scheme.
#[derive(Debug)]
pub(super) struct WithoutScheme<S> {
    stream: S,
    frames: Frames,
    /// The bytes that were read and not yet passed on.
    read: BytesMut,
}

impl<S> WithoutScheme<S> {
    /// The stream begins with the preface.
    pub(super) fn new(stream: S) -> Self {
        Self { stream, frames: Frames { passing: PREFACE_BYTES, held: Vec::new() }, read: BytesMut::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WithoutScheme<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, frames, read } = self.get_mut();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        while read.is_empty() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut *stream).poll_read(context, buffer))?;
            let bytes = &buffer.filled()[before..];

            if bytes.is_empty() {
                // The end, within a frame perhaps.
                read.extend_from_slice(&std::mem::take(&mut frames.held));
                break;
            }
            frames.take(bytes, read);
            buffer.set_filled(before);
        }
        let count = read.len().min(buffer.remaining());
        buffer.put_slice(&read[..count]);
        read.advance(count);
        if read.is_empty() {
            // An idle connection keeps no memory for what it sent.
            *read = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

crate::pass_writes!(WithoutScheme, stream);

/// The place in a stream of frames.
#[derive(Debug)]
struct Frames {
    /// Bytes that pass as they are, before the next frame begins.
    passing: usize,
    /// The beginning of a frame: its header, and its payload if it is one of type HEADERS.
    held: Vec<u8>,
}

impl Frames {
    /// Takes the next bytes, and adds those that are ready to `passed`.
    fn take(&mut self, mut bytes: &[u8], passed: &mut BytesMut) {
        while !bytes.is_empty() {
            if self.passing > 0 {
                let (now, later) = bytes.split_at(self.passing.min(bytes.len()));
                passed.extend_from_slice(now);
                self.passing -= now.len();
                bytes = later;
                continue;
            }
            let missing = self.wanted() - self.held.len();
            let (now, later) = bytes.split_at(missing.min(bytes.len()));
            self.held.extend_from_slice(now);
            bytes = later;

            let is_wanted = self.is_headers() && self.payload_bytes() <= PAYLOAD_BYTES_MAX;
            if self.held.len() == FRAME_HEADER_BYTES && !is_wanted {
                self.passing = self.payload_bytes();
                passed.extend_from_slice(&std::mem::take(&mut self.held));
            } else if self.held.len() >= FRAME_HEADER_BYTES && self.held.len() == self.wanted() {
                let frame = without_scheme(&self.held);
                passed.extend_from_slice(frame.as_deref().unwrap_or(&self.held));
                self.held = Vec::new();
            }
        }
    }

    /// Bytes to hold before anything is decided.
    fn wanted(&self) -> usize {
        if self.held.len() < FRAME_HEADER_BYTES {
            FRAME_HEADER_BYTES
        } else {
            FRAME_HEADER_BYTES + self.payload_bytes()
        }
    }

    fn payload_bytes(&self) -> usize {
        self.held.iter().take(3).fold(0, |length, byte| length << 8 | usize::from(*byte))
    }

    fn is_headers(&self) -> bool {
        self.held.get(3) == Some(&HEADERS)
    }
}

/// A frame of type HEADERS without the scheme in its authority. Returns `None` if it had none, or cannot be read.
fn without_scheme(frame: &[u8]) -> Option<Vec<u8>> {
    let (header, payload) = frame.split_at_checked(FRAME_HEADER_BYTES)?;
    let flags = *header.get(4)?;
    let mut block = 0..payload.len();
    if flags & PADDED != 0 {
        block = 1..block.end.checked_sub(usize::from(*payload.first()?))?;
    }
    if flags & PRIORITY != 0 {
        block.start += PRIORITY_BYTES;
    }
    let (value, text) = authority(payload.get(block.clone())?)?;
    let scheme = SCHEMES.iter().find(|scheme| text.starts_with(scheme))?;
    let host = text[scheme.len()..].split(|byte| *byte == b'/').next()?;

    let before = &payload[..block.start + value.start];
    let after = &payload[block.start + value.end..];
    let payload = [before, &literal(host), after].concat();
    if payload.len() > PAYLOAD_BYTES_MAX {
        return None;
    }
    let [_, length @ ..] = u32::try_from(payload.len()).ok()?.to_be_bytes();
    Some([&length, &header[3..], &payload].concat())
}

/// The authority in a header block: the place of its value, with its length, and the text.
fn authority(block: &[u8]) -> Option<(Range<usize>, Vec<u8>)> {
    let mut fields = Fields { block, at: 0 };
    while let Some(first) = block.get(fields.at) {
        // An indexed field, or a change of the table's size, has no value here.
        if first & 0x80 != 0 {
            fields.integer(7)?;
            continue;
        }
        if first & 0xe0 == 0x20 {
            fields.integer(5)?;
            continue;
        }

        // An index of 0 means that the name follows as text.
        let name = fields.integer(if first & 0x40 != 0 { 6 } else { 4 })?;
        if name == 0 {
            fields.string()?;
        }

        let start = fields.at;
        let (is_huffman, value) = fields.string()?;
        if name != AUTHORITY {
            continue;
        }

        if value.len() > VALUE_BYTES_MAX {
            return None;
        }
        let text = if is_huffman { huffman_text(value)? } else { value.to_vec() };
        return Some((start..fields.at, text));
    }
    None
}

/// The fields of a header block, one after the other.
struct Fields<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn next(&mut self) -> Option<u8> {
        let byte = *self.block.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// A number that begins with so many bits of the next byte (RFC 7541, 5.1).
    fn integer(&mut self, bits: u32) -> Option<usize> {
        let prefix_max = (1_usize << bits) - 1;
        let prefix = usize::from(self.next()?) & prefix_max;
        if prefix < prefix_max {
            return Some(prefix);
        }

        let mut number = prefix;
        // No length in a frame has more than three further bytes.
        for shift in [0, 7, 14] {
            let byte = self.next()?;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A string, and whether it is in Huffman code (RFC 7541, 5.2).
    fn string(&mut self) -> Option<(bool, &'a [u8])> {
        let is_huffman = *self.block.get(self.at)? & 0x80 != 0;
        let length = self.integer(7)?;
        let value = self.block.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some((is_huffman, value))
    }
}

/// A string of a header block, not in Huffman code.
fn literal(text: &[u8]) -> Vec<u8> {
    const PREFIX_MAX: usize = 0x7f;
    let low = |number: usize| number.to_le_bytes()[0];
    let mut bytes = vec![low(text.len().min(PREFIX_MAX))];
    if let Some(mut rest) = text.len().checked_sub(PREFIX_MAX) {
        while rest > PREFIX_MAX {
            bytes.push(low(rest) | 0x80);
            rest >>= 7;
        }
        bytes.push(low(rest));
    }
    bytes.extend_from_slice(text);
    bytes
}

/// The text of an authority with a scheme that is in Huffman code. Returns `None` if it does not begin so, or has a character that no
/// authority has.
fn huffman_text(bytes: &[u8]) -> Option<Vec<u8>> {
    if !bytes.starts_with(&HUFFMAN_BEGINNING) {
        return None;
    }

    let mut text = Vec::new();
    let mut code = 0_u16;
    let mut bits = 0;

    for byte in bytes {
        for place in (0..8).rev() {
            code = code << 1 | u16::from(byte >> place & 1);
            bits += 1;
            if let Some((character, ..)) = HUFFMAN.iter().find(|(_, of, length)| (*of, *length) == (code, bits)) {
                text.push(*character);
                (code, bits) = (0, 0);
            } else if bits >= HUFFMAN_BITS_MAX {
                return None;
            }
        }
    }

    // The rest is padding: less than a byte, all ones.
    (bits < 8 && code + 1 == 1 << bits).then_some(text)
}

/// The longest code below.
const HUFFMAN_BITS_MAX: u32 = 13;
/// The characters of authorities, with their Huffman code and its bits (RFC 7541, appendix B).
#[rustfmt::skip]
const HUFFMAN: [(u8, u16, u32); 72] = [
    (b'%', 0x15, 6), (b'-', 0x16, 6), (b'.', 0x17, 6), (b'/', 0x18, 6), (b'0', 0x0, 5), (b'1', 0x1, 5), (b'2', 0x2, 5), (b'3', 0x19, 6),
    (b'4', 0x1a, 6), (b'5', 0x1b, 6), (b'6', 0x1c, 6), (b'7', 0x1d, 6), (b'8', 0x1e, 6), (b'9', 0x1f, 6), (b':', 0x5c, 7), (b'@', 0x1ffa, 13),
    (b'A', 0x21, 6), (b'B', 0x5d, 7), (b'C', 0x5e, 7), (b'D', 0x5f, 7), (b'E', 0x60, 7), (b'F', 0x61, 7), (b'G', 0x62, 7), (b'H', 0x63, 7),
    (b'I', 0x64, 7), (b'J', 0x65, 7), (b'K', 0x66, 7), (b'L', 0x67, 7), (b'M', 0x68, 7), (b'N', 0x69, 7), (b'O', 0x6a, 7), (b'P', 0x6b, 7),
    (b'Q', 0x6c, 7), (b'R', 0x6d, 7), (b'S', 0x6e, 7), (b'T', 0x6f, 7), (b'U', 0x70, 7), (b'V', 0x71, 7), (b'W', 0x72, 7), (b'X', 0xfc, 8),
    (b'Y', 0x73, 7), (b'Z', 0xfd, 8), (b'[', 0x1ffb, 13), (b']', 0x1ffc, 13), (b'_', 0x22, 6), (b'a', 0x3, 5), (b'b', 0x23, 6), (b'c', 0x4, 5),
    (b'd', 0x24, 6), (b'e', 0x5, 5), (b'f', 0x25, 6), (b'g', 0x26, 6), (b'h', 0x27, 6), (b'i', 0x6, 5), (b'j', 0x74, 7), (b'k', 0x75, 7),
    (b'l', 0x28, 6), (b'm', 0x29, 6), (b'n', 0x2a, 6), (b'o', 0x7, 5), (b'p', 0x2b, 6), (b'q', 0x76, 7), (b'r', 0x2c, 6), (b's', 0x8, 5),
    (b't', 0x9, 5), (b'u', 0x2d, 6), (b'v', 0x77, 7), (b'w', 0x78, 7), (b'x', 0x79, 7), (b'y', 0x7a, 7), (b'z', 0x7b, 7), (b'~', 0x1ffd, 13),
];

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    /// As Go's client writes it: POST, http, the path, and the authority, added to its table in Huffman code.
    const GO: &[u8] = b"\x83\x86\x44\x82\x60\x7f\x41\x8f\x9d\x29\xae\xe3\x0c\x04\x4e\xae\x05\xc0\xb8\x6e\x09\x97\x5f";

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let [_, length @ ..] = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [&length[..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn headers(authority: &[u8]) -> Vec<u8> {
        [b"\x83\x86\x44\x01/\x41", &literal(authority)[..]].concat()
    }

    /// What h2 gets to read of these bytes after the preface, which come in parts of this size.
    async fn passed(bytes: &[u8], part: usize) -> Vec<u8> {
        let (mut near, far) = duplex(1 << 20);
        let mut stream = WithoutScheme::new(far);
        let reading = tokio::spawn(async move {
            let mut read = Vec::new();
            stream.read_to_end(&mut read).await.expect("it can be read");
            read
        });
        for part in [&[7; PREFACE_BYTES][..], bytes].concat().chunks(part) {
            near.write_all(part).await.expect("there is room");
            tokio::task::yield_now().await;
        }
        near.shutdown().await.expect("it is open");
        reading.await.expect("no panic").split_off(PREFACE_BYTES)
    }

    #[test]
    fn a_text_in_huffman_code_is_read() {
        let mut bits = String::new();
        let text = b"https://Host-1.example_x:2379";
        for character in text {
            let (_, code, length) = HUFFMAN.iter().find(|(of, ..)| of == character).expect("an authority's");
            bits += &format!("{code:0width$b}", width = *length as usize);
        }
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        let byte = |bits: &[u8]| bits.iter().fold(0, |byte, bit| byte << 1 | (bit - b'0'));
        let bytes: Vec<u8> = bits.as_bytes().chunks(8).map(byte).collect();
        assert_eq!(huffman_text(&bytes).as_deref(), Some(&text[..]));
        assert_eq!(huffman_text(&[&bytes[..], &[0xff]].concat()), None, "padding of a whole byte");
        assert_eq!(huffman_text(b"\x9d\x29\xff\xff\xff\xff"), None);
    }

    #[test]
    fn lengths_are_those_of_hpack() {
        for length in [0, 1, 126, 127, 128, 254, 255, 300, 16_383] {
            let text = vec![b'a'; length];
            let written = literal(&text);
            let mut fields = Fields { block: &written, at: 0 };
            assert_eq!(fields.string(), Some((false, &text[..])), "{length}");
            assert_eq!(fields.at, written.len());
        }
    }

    #[tokio::test]
    async fn a_scheme_is_dropped_and_everything_else_passes_as_it_is() {
        let settings = frame(4, 0, b"");
        let data = frame(0, 1, &[HEADERS; 300]);
        let without = headers(b"127.0.0.1:2379");
        for (given, expected) in [
            (headers(b"http://127.0.0.1:2379"), without.clone()),
            (headers(b"https://127.0.0.1:2379"), without.clone()),
            (headers(b"http://127.0.0.1:2379/"), without.clone()),
            (without.clone(), without.clone()),
            (headers(b"http:/127.0.0.1"), headers(b"http:/127.0.0.1")),
            (headers(&[b'a'; 1000]), headers(&[b'a'; 1000])),
            // A length beyond the block, and numbers that do not end.
            (b"\x41\x50http://".to_vec(), b"\x41\x50http://".to_vec()),
            (b"\xff\xff\xff\xff\xff\xff".to_vec(), b"\xff\xff\xff\xff\xff\xff".to_vec()),
            // Other forms of a field before it.
            (
                [b"\x3f\x01\x00\x01a\x01b\x10\x01c\x01d\xbe", &headers(b"http://h:1")[..]].concat(),
                [b"\x3f\x01\x00\x01a\x01b\x10\x01c\x01d\xbe", &headers(b"h:1")[..]].concat(),
            ),
        ] {
            let given = [&settings[..], &frame(HEADERS, 4, &given), &data, &frame(HEADERS, 5, b"\x83")].concat();
            let expected = [&settings[..], &frame(HEADERS, 4, &expected), &data, &frame(HEADERS, 5, b"\x83")].concat();
            for part in [1, 7, given.len() + PREFACE_BYTES] {
                assert_eq!(passed(&given, part).await, expected, "in parts of {part}");
            }
        }
        let padded = [b"\x03\0\0\0\0\x10", &headers(b"http://h:1")[..], b"\0\0\0"].concat();
        let mended = [b"\x03\0\0\0\0\x10", &headers(b"h:1")[..], b"\0\0\0"].concat();
        let flags = 4 | PADDED | PRIORITY;
        assert_eq!(passed(&frame(HEADERS, flags, &padded), 1000).await, frame(HEADERS, flags, &mended));
        // Cut off within a frame, too long, and with more padding than there is.
        let whole = frame(HEADERS, 4, &headers(b"http://h:1"));
        assert_eq!(passed(&whole[..20], 1000).await, whole[..20]);
        let long = frame(HEADERS, 4, &vec![0; PAYLOAD_BYTES_MAX + 1]);
        assert_eq!(passed(&long, 1000).await, long);
        let empty = frame(HEADERS, flags, b"\xff");
        assert_eq!(passed(&empty, 1000).await, empty);
    }

    #[tokio::test]
    async fn an_authority_as_go_writes_it_loses_its_scheme() {
        let read = passed(&frame(HEADERS, 4, GO), 1000).await;
        let expected = [b"\x83\x86\x44\x82\x60\x7f\x41", &literal(b"127.0.0.1:2379")[..]].concat();
        assert_eq!(read, frame(HEADERS, 4, &expected), "{}", read.escape_ascii());
    }
}
