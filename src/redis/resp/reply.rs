//! Replies, as commands make them: the same for both versions of the protocol.

use crate::number::format_double;

/// The reply to a command. How it is written depends on the version that the connection speaks: RESP2 has no maps, sets, doubles, pushes
/// and verbatim texts, and writes arrays and strings in their place.
#[derive(Clone, Debug, PartialEq)]
pub enum RedisReply {
    /// A short text such as OK, with the sign `+`.
    Status(Vec<u8>),
    /// An error, which begins with a word in capitals, with the sign `-`.
    Error(Vec<u8>),
    /// An integer, with the sign `:`.
    Integer(i64),
    /// A string, with the sign `$`.
    Bulk(Vec<u8>),
    /// The absence of a string: `$-1`, or `_`.
    Nil,
    /// The absence of an array, such as of an EXEC that was abandoned: `*-1`, or `_`.
    NilArray,
    /// An array, with the sign `*`.
    Array(Vec<RedisReply>),
    /// Keys and values, with the sign `%`; or an array of twice the length.
    Map(Vec<(RedisReply, RedisReply)>),
    /// Pairs with an order, such as members and scores: an array of arrays of two, or one array of twice the length.
    Pairs(Vec<(RedisReply, RedisReply)>),
    /// Members without an order, with the sign `~`; or an array.
    Set(Vec<RedisReply>),
    /// A number such as a score, with the sign `,`; or a string.
    Double(f64),
    /// A text for people, such as that of INFO, with the sign `=`; or a string.
    Verbatim(Vec<u8>),
    /// The revision of the commit that the reply waits for, as a string. It is known when the commit is made.
    OwnRevision,
    /// A message that no command asked for, with the sign `>`; or an array.
    Push(Vec<RedisReply>),
}

impl RedisReply {
    /// The status OK.
    pub fn ok() -> Self {
        Self::Status(b"OK".to_vec())
    }

    /// An error with this text, which begins with its word in capitals.
    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into().into_bytes())
    }

    /// A number of things.
    pub(crate) fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// A string of this text.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Bulk(text.into().into_bytes())
    }

    /// A string, or nil.
    pub(crate) fn bulk_or_nil(bytes: Option<Vec<u8>>) -> Self {
        bytes.map_or(Self::Nil, Self::Bulk)
    }

    /// An array of strings.
    pub(crate) fn bulks(items: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self::Array(items.into_iter().map(Self::Bulk).collect())
    }

    /// 1 for yes, and 0 for no.
    pub(crate) fn flag(is_so: bool) -> Self {
        Self::Integer(is_so.into())
    }

    /// The same reply in the forms of RESP2: without maps, sets, doubles, pushes and verbatim texts.
    pub(crate) fn into_resp2(self) -> Self {
        let all = |items: Vec<Self>| Self::Array(items.into_iter().map(Self::into_resp2).collect());

        match self {
            Self::Array(items) | Self::Set(items) | Self::Push(items) => all(items),
            Self::Map(pairs) | Self::Pairs(pairs) => {
                all(pairs.into_iter().flat_map(|(first, second)| [first, second]).collect())
            }
            Self::Double(number) => Self::text(format_double(number)),
            Self::Verbatim(text) => Self::Bulk(text),
            plain @ (Self::Status(_)
            | Self::Error(_)
            | Self::Integer(_)
            | Self::Bulk(_)
            | Self::Nil
            | Self::NilArray
            | Self::OwnRevision) => plain,
        }
    }

    /// The reply once its commit has this revision.
    pub(crate) fn at_revision(self, revision: u64) -> Self {
        if self == Self::OwnRevision { Self::text(revision.to_string()) } else { self }
    }

    /// About how many bytes it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.sum_of_parts(std::mem::size_of::<Self>())
    }

    /// Number of bytes of its texts.
    pub(crate) fn text_bytes(&self) -> usize {
        self.sum_of_parts(0)
    }

    /// Number of bytes of its texts, and so many more for each part.
    fn sum_of_parts(&self, part_bytes: usize) -> usize {
        let all = |items: &[Self]| items.iter().map(|item| item.sum_of_parts(part_bytes)).sum::<usize>();
        part_bytes
            + match self {
                Self::Status(bytes) | Self::Error(bytes) | Self::Bulk(bytes) | Self::Verbatim(bytes) => bytes.len(),
                Self::Array(items) | Self::Set(items) | Self::Push(items) => all(items),
                Self::Map(pairs) | Self::Pairs(pairs) => {
                    let both =
                        |(first, second): &(Self, Self)| [first, second].map(|part| part.sum_of_parts(part_bytes));
                    pairs.iter().flat_map(both).sum()
                }
                Self::Integer(_) | Self::Double(_) | Self::Nil | Self::NilArray | Self::OwnRevision => 0,
            }
    }
}
