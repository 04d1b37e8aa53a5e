//! Questions about a stored structure that are answered where it lies: its parts are passed over by their lengths, and none is decoded,
//! copied or allocated.
//!
//! A structure is one entry, of up to some hundred kilobytes. A command that asks for one field of it, or for its length, would otherwise
//! build all of it.

use std::ops::Range;

use super::{DatumKind, Score, bytes::EncodedParts};

/// What a pass over an entry has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartFound {
    /// Where the bytes lie in the entry, if there are any: the value of a field, a member of a set, the score of a member, or an item.
    pub(crate) place: Option<Range<usize>>,
    /// Number of bytes of the entry that were passed.
    pub(crate) passed: usize,
}

/// The bytes of an entry, from one part to the next.
struct PartScan<'a> {
    entry: &'a [u8],
    parts: EncodedParts<'a>,
}

impl<'a> PartScan<'a> {
    /// Begins after the byte that says the type.
    fn new(entry: &'a [u8]) -> Option<Self> {
        Some(Self { entry, parts: EncodedParts(entry.get(1..)?) })
    }

    /// Number of bytes that were passed.
    fn passed(&self) -> usize {
        self.entry.len() - self.parts.0.len()
    }

    /// The next part, `Some(None)` at the end, and `None` for a form that cannot be read.
    #[expect(clippy::option_option, reason = "the end of the parts and broken parts are different")]
    fn next_part(&mut self) -> Option<Option<&'a [u8]>> {
        self.parts.next_part()
    }

    /// Where the part lies that was passed last.
    fn place_of_last(&self, part: &[u8]) -> Range<usize> {
        self.passed() - part.len()..self.passed()
    }
}

/// Counts the parts of a structure: items, fields or members. `None` for an entry that this version cannot read.
pub(crate) fn count_parts(entry: &[u8]) -> Option<usize> {
    let kind = DatumKind::from_entry(entry)?;
    let mut scan = PartScan::new(entry)?;
    let mut count = 0;
    loop {
        let is_end = match kind {
            DatumKind::Sorted => scan.parts.next_score()?.is_none(),
            DatumKind::Text | DatumKind::List | DatumKind::Hash | DatumKind::Set => scan.next_part()?.is_none(),
        };
        if is_end {
            return Some(count);
        }

        count += 1;
        if matches!(kind, DatumKind::Hash | DatumKind::Sorted) {
            scan.next_part()??;
        }
    }
}

/// Finds a field of a hash, or a member of a set or a sorted set. `None` for an entry that this version cannot read.
pub(crate) fn find_named(entry: &[u8], name: &[u8]) -> Option<PartFound> {
    let kind = DatumKind::from_entry(entry)?;
    let mut scan = PartScan::new(entry)?;
    loop {
        let score_at = scan.passed();
        if kind == DatumKind::Sorted && scan.parts.next_score()?.is_none() {
            return Some(PartFound { place: None, passed: scan.passed() });
        }
        let Some(part) = scan.next_part()? else { return Some(PartFound { place: None, passed: scan.passed() }) };
        let own = scan.place_of_last(part);

        let value = match kind {
            DatumKind::Hash => {
                let value = scan.next_part()??;
                scan.place_of_last(value)
            }
            DatumKind::Sorted => score_at..score_at + size_of::<f64>(),
            DatumKind::Text | DatumKind::List | DatumKind::Set => own,
        };
        if part == name {
            return Some(PartFound { place: Some(value), passed: scan.passed() });
        }
    }
}

/// Finds an item of a list by its place from the left. `None` for an entry that this version cannot read.
pub(crate) fn find_item(entry: &[u8], place: usize) -> Option<PartFound> {
    let mut scan = PartScan::new(entry)?;
    for _ in 0..place {
        if scan.next_part()?.is_none() {
            return Some(PartFound { place: None, passed: scan.passed() });
        }
    }
    let item = scan.next_part()?;
    Some(PartFound { place: item.map(|item| scan.place_of_last(item)), passed: scan.passed() })
}

/// Reads the score that [`find_named`] has found.
pub(crate) fn score_in(bytes: &[u8]) -> Option<Score> {
    let bytes = bytes.first_chunk()?;
    Score::new(f64::from_be_bytes(*bytes))
}
