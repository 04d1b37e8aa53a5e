//! Where a JSON object ends, in bytes that come in parts.
//!
//! A stream's client sends objects one after the other, in parts of any size. To parse what has come with each part would look at the first
//! bytes again and again: an object in many small parts would cost the square of its length. So the end is looked for first, each byte
//! once, and then the object is parsed once.
//!
//! Left out: everything else about JSON. What is not an object, or a wrong one, is refused by the parser.

/// A search for the end of the first object.
#[derive(Debug, Default)]
pub(crate) struct ObjectScan {
    /// The bytes that were looked at.
    seen: usize,
    /// Objects that are open.
    depth: usize,
    is_in_text: bool,
    /// The last byte was the backslash of an escape in a text.
    is_escaped: bool,
}

impl ObjectScan {
    /// Returns how many of the bytes the first object has, with the white space before it, once it is whole. `bytes` are those of the last
    /// call, and more. If something else than an object begins, that ends with the bytes.
    pub(crate) fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        for byte in bytes.get(self.seen..).unwrap_or_default() {
            self.seen += 1;
            if self.is_in_text {
                let is_end = *byte == b'"' && !self.is_escaped;
                self.is_escaped = *byte == b'\\' && !self.is_escaped;
                self.is_in_text = !is_end;
                continue;
            }

            match byte {
                b'{' => self.depth += 1,
                b'}' if self.depth == 1 => return Some(self.seen),
                b'}' if self.depth > 1 => self.depth -= 1,
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ if self.depth == 0 => return Some(bytes.len()),
                b'"' => self.is_in_text = true,
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The objects of a stream that comes in parts of this size.
    fn objects(stream: &[u8], size: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let mut buffer = Vec::new();
        let mut scan = ObjectScan::default();
        for part in stream.chunks(size) {
            buffer.extend_from_slice(part);
            while let Some(end) = scan.end(&buffer) {
                found.push(buffer.drain(..end).collect());
                scan = ObjectScan::default();
            }
            assert_eq!(scan.seen, buffer.len(), "each byte is looked at once");
        }
        found
    }

    #[test]
    fn objects_end_where_they_end_however_they_come() {
        let stream: [&[u8]; 5] = [
            b"{}",
            b"\n {\"a\":{\"b\":[{},{}]}}",
            br#" {"a":"}\"}\\"}"#,
            br#"{"\\":"{","b":"\\\""}"#,
            b"\r\n\t{\"\":1}",
        ];
        for size in 1..9 {
            assert_eq!(objects(&stream.concat(), size), stream);
        }
    }

    #[test]
    fn what_is_no_object_ends_with_its_part() {
        for stream in [&b"[{"[..], b"null", b"\"{\"", b"}", b" 5"] {
            assert_eq!(ObjectScan::default().end(stream), Some(stream.len()));
        }
        for part in [&b"{\"a\":\"}"[..], b"{{}", b" \n", b""] {
            assert_eq!(ObjectScan::default().end(part), None);
        }
    }
}
