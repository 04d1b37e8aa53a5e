//! What one connection may have its node keep.

/// The limits of a connection. Only a simulation has other ones than [`Self::REAL`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionLimits {
    /// Commands of a transaction.
    pub queued: usize,
    /// Bytes of their arguments.
    pub queued_bytes: usize,
    /// Watched keys: the keyspace compares no more of them in a transaction.
    pub watched: usize,
    /// Bytes that they take.
    pub watched_bytes: usize,
    /// Channels and patterns.
    pub topics: usize,
}

impl ConnectionLimits {
    /// The limits of every real node. The bytes of watched keys are more than those of so many of the longest keys of the keyspace.
    pub const REAL: Self =
        Self { queued: 16 << 10, queued_bytes: 4 << 20, watched: 256, watched_bytes: 1 << 20, topics: 1024 };
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self::REAL
    }
}
