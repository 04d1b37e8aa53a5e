//! Replies, as commands make them: the same for both versions of the protocol.

/// The reply to a command. How it is written depends on the version that the connection speaks: RESP2 has no maps, sets, doubles, pushes
/// and verbatim texts, and writes arrays and strings in their place.
#[derive(Clone, Debug, PartialEq)]
pub enum RedisReply {
    /// A short text such as `OK`: `+`.
    Status(Vec<u8>),
    /// An error, which begins with a word in capitals: `-`.
    Error(Vec<u8>),
    /// An integer: `:`.
    Integer(i64),
    /// A string: `$`.
    Bulk(Vec<u8>),
    /// No string: `$-1`, or `_`.
    Nil,
    /// No array, such as of an EXEC that was abandoned: `*-1`, or `_`.
    NilArray,
    /// An array: `*`.
    Array(Vec<RedisReply>),
    /// Pairs: `%`, or an array of twice the length.
    Map(Vec<(RedisReply, RedisReply)>),
    /// Members without an order: `~`, or an array.
    Set(Vec<RedisReply>),
    /// A number such as a score: `,`, or a string.
    Double(f64),
    /// A text for people, such as that of INFO: `=`, or a string.
    Verbatim(Vec<u8>),
    /// A message that no command asked for: `>`, or an array.
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
}
