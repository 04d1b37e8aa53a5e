//! Flow control.

/// Flow-control windows of HTTP/2: bytes in one direction that the receiver has not read yet.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// The window of one call.
    pub stream: u32,
    /// The window of all calls of a connection.
    pub connection: u32,
}

impl Windows {
    /// A large message passes at once: between nodes, and for answers.
    pub const WIDE: Self = Self { stream: 4 << 20, connection: 8 << 20 };
    /// For answers that a node relays from another node to its clients, which read them at their own pace: little for each. The
    /// connection has almost no limit of its own, since a stream that is not read would block all others.
    pub const RELAYED: Self = Self { stream: 64 << 10, connection: 1 << 30 };
    /// Some hundreds of requests on one stream: an overloaded node has at most that many unread, then flow control stops the client. The
    /// connection's window allows for small frames, see `settings`.
    pub const NARROW: Self = Self { stream: 32 << 10, connection: 2 << 20 };
}
