//! Parts with their lengths before them: seven bits of the length in each byte, the lowest first.

/// The parts that are left to be read.
pub(super) struct EncodedParts<'a>(pub(super) &'a [u8]);

impl<'a> EncodedParts<'a> {
    /// Takes the next part. `Some(None)` is the end, and `None` a form that cannot be read.
    #[expect(clippy::option_option, reason = "the end of the parts and broken parts are different")]
    pub(super) fn next_part(&mut self) -> Option<Option<&'a [u8]>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let length = usize::try_from(take_length(&mut self.0)?).ok()?;
        let (part, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(Some(part))
    }

    /// Takes a score in the same way.
    #[expect(clippy::option_option, reason = "the end of the parts and broken parts are different")]
    pub(super) fn next_score(&mut self) -> Option<Option<f64>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let (score, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(Some(f64::from_be_bytes(*score)))
    }
}

/// Appends a part.
pub(super) fn put_part(out: &mut Vec<u8>, part: &[u8]) {
    put_length(out, part.len() as u64);
    out.extend_from_slice(part);
}

/// Appends a length: one byte up to 127, which is what nearly all parts have.
fn put_length(out: &mut Vec<u8>, mut length: u64) {
    while length >= 0x80 {
        out.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

/// Takes a length. Fails on one that has more bytes than it needs, since each value has one form.
fn take_length(bytes: &mut &[u8]) -> Option<u64> {
    let mut length = 0;
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        length |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return (byte != 0 || shift == 0).then_some(length);
        }
    }
    None
}
