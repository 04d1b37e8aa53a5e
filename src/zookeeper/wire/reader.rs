//! Reads jute, ZooKeeper's encoding of records: big-endian numbers, lengths before bytes and before items.
//!
//! No length is trusted: the bytes that it announces must have arrived, so no allocation is larger than the bytes that have arrived.

use thiserror::Error;

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum JuteError {
    /// The bytes end before the record does.
    #[error("a record ends before its last field")]
    Short,
    /// A length below -1.
    #[error("a length of {0} is negative, and not the -1 of an absent value")]
    Negative(i32),
    /// A string that is not UTF-8.
    #[error("a string is not UTF-8")]
    NotText,
    /// More items than there are bytes for, or than are allowed.
    #[error("{0} items are more than the frame has room for, or than are served in one request")]
    TooMany(usize),
    /// A number that means nothing here.
    #[error("unknown {1}: {0}")]
    Unknown(i32, &'static str),
}

/// Bytes that are read from front to back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JuteReader<'a>(&'a [u8]);

impl<'a> JuteReader<'a> {
    /// Reads these bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether all bytes are read.
    pub(crate) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], JuteError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(JuteError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], JuteError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(JuteError::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// A byte that is zero or not.
    pub(crate) fn bool(&mut self) -> Result<bool, JuteError> {
        Ok(self.array::<1>()? != [0])
    }

    /// A number of four bytes.
    pub(crate) fn int(&mut self) -> Result<i32, JuteError> {
        self.array().map(i32::from_be_bytes)
    }

    /// A number of eight bytes.
    pub(crate) fn long(&mut self) -> Result<i64, JuteError> {
        self.array().map(i64::from_be_bytes)
    }

    /// A length; `None` is an absent value.
    fn length(&mut self) -> Result<Option<usize>, JuteError> {
        match self.int()? {
            -1 => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| JuteError::Negative(length)),
        }
    }

    /// Bytes, which may be absent.
    pub(crate) fn buffer(&mut self) -> Result<Option<&'a [u8]>, JuteError> {
        let length = self.length()?;
        length.map(|length| self.take(length)).transpose()
    }

    /// Reads a text. An absent text is read as the empty text: a path and a scheme are never empty, so both are refused alike.
    pub(crate) fn string(&mut self) -> Result<&'a str, JuteError> {
        let bytes = self.buffer()?.unwrap_or_default();
        std::str::from_utf8(bytes).map_err(|_| JuteError::NotText)
    }

    /// Items, each of which takes at least this number of bytes. An absent vector is read as an empty one.
    pub(crate) fn vector<T>(
        &mut self,
        bytes_min: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, JuteError>,
    ) -> Result<Vec<T>, JuteError> {
        let count = self.length()?.unwrap_or_default();
        // The count is checked against what has arrived before memory is taken for it.
        if count > self.0.len() / bytes_min {
            return Err(JuteError::TooMany(count));
        }
        (0..count).map(|_| item(self)).collect()
    }

    /// Texts.
    pub(crate) fn strings(&mut self) -> Result<Vec<String>, JuteError> {
        self.vector(4, |reader| reader.string().map(str::to_owned))
    }
}
