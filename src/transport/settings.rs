//! The cost of a connection to the node that accepted it: all limits of HTTP/2, and all deadlines of a connection.
//!
//! Memory that one connection can take at most, whatever it sends:
//!
//! | | clients | peers |
//! |---|---|---|
//! | calls without a message: headers ([`Settings::header_bytes_max`] at most, usually some hundred bytes) and the call's own state, about 3 KiB | 10,240 × 3 KiB = 30 MiB | 16,384 × 3 KiB |
//! | calls passed to a service before their message has arrived, about 13 KiB more each ([`Settings::without_message_max`]) | 1,024 × 13 KiB = 13 MiB | the same |
//! | requests that no service has read ([`Windows::connection`]), and the same again for their frames | 4 MiB | 16 MiB |
//! | answers that the client has not read: [`Settings::unsent_bytes_max`] for each call | 64 KiB each | 400 KiB each |
//!
//! and, for each call under way, the memory of the service itself. A message is not decoded before its request has ended
//! ([`Settings::request_bytes_max`]), since it then takes many times its bytes. Of all connections of clients together, requests that have
//! begun to arrive, or are complete and not answered, take 64 MiB ([`Settings::arriving_bytes_max`]) and 4 KiB each.
//!
//! **Small frames.** For DATA frames below 256 bytes, h2 (0.4.20, `proto/streams/counts.rs`) counts the bytes missing to 256, from their
//! arrival until a service reads them, and ends the connection (GOAWAY, `too_many_data_frames`) beyond half of the connection's window.
//! Some gRPC libraries send a frame for each message. So the window of a stream, full of the smallest requests, must fit into half of the
//! connection's window: 32 KiB of requests of 11 bytes are 2,979 frames that lack 245 bytes each, 713 KiB; half of 2 MiB is enough. A
//! test below checks this.
//!
//! **Turns.** The bytes read at one time are bounded ([`Settings::turn_bytes`]); then the calls that they began have their turn.
//! Otherwise a connection that always has bytes to read would be read for a long time before its calls run, and opened calls, cancelled
//! calls and unread frames would pile up meanwhile.

use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::{KEEP_ALIVE, Windows};

/// Time limit for the whole HTTP/2 preface of an accepted connection: 24 bytes and the first SETTINGS frame.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the first call of a connection.
pub const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may stay without an open call after its last one.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Time in which a client of HTTP/2 must read some of what is written to it (see [`WriteDeadline`](lockkeeper_accept::WriteDeadline)).
/// HTTP/2's pings do not notice one that goes on sending calls.
pub const UNREAD_HTTP2_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the message of a call whose service waits for it, and for the end of a request that is one message.
pub const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a connection without an open call to end after GOAWAY.
pub const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of HTTP/1.1 that are read and not yet taken: a request's line and headers must fit into them.
const HTTP1_BUFFER: usize = 16 << 10;

/// The limits of a port's connections.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The windows for requests.
    pub windows: Windows,
    /// Maximum open calls of one connection. HTTP/2 makes the client wait with further ones.
    pub calls_max: u32,
    /// The maximum of these calls that are passed to a service before their message has arrived. Further calls wait for their message
    /// outside of it.
    pub without_message_max: usize,
    /// Maximum calls that are reset in the turn in which they arrived. Beyond it the connection ends: GOAWAY, `too_many_resets`.
    pub resets_in_turn_max: usize,
    /// Bytes of one call's headers, as HTTP/2 counts them.
    pub header_bytes_max: u32,
    /// Bytes of one call's answer that wait for the client's flow control.
    pub unsent_bytes_max: usize,
    /// Bytes that are read before the calls that they began have a turn.
    pub turn_bytes: usize,
    /// Bytes of all requests that are not answered, without the first 4 KiB of each: see `lockkeeper_accept::ArrivingBytes`.
    pub arriving_bytes_max: usize,
    /// The largest message of a call of gRPC, by the path of the call, if its request is one message. This request must end within
    /// [`FIRST_MESSAGE_TIMEOUT`], and a service gets none of its bytes before. Of other calls, streams above all, there is no limit here,
    /// and their bytes are handed over as they come.
    pub request_bytes_max: fn(&str) -> Option<usize>,
    /// Maximum connections at one time.
    pub connections_max: usize,
    /// Whether HTTP/1.1 is spoken too: a connection that does not begin as one of HTTP/2 does.
    pub speaks_http1: bool,
}

impl Settings {
    /// The settings of the port for clients.
    ///
    /// A session of the Rust client has a call that stays open, and one program may have 10,000 of them. A turn holds fewer than
    /// [`resets_in_turn_max`](Self::resets_in_turn_max) calls with a message and its reset: only a client that opens calls in order to
    /// reset them reaches the limit. Cancelled waits do not count, since a service has seen them.
    pub const CLIENTS: Self = Self {
        windows: Windows::NARROW,
        calls_max: 10_240,
        without_message_max: 1_024,
        resets_in_turn_max: 256,
        header_bytes_max: 8 << 10,
        unsent_bytes_max: 64 << 10,
        turn_bytes: 16 << 10,
        arriving_bytes_max: 64 << 20,
        request_bytes_max: |_| None,
        connections_max: 10_000,
        speaks_http1: false,
    };
    /// The settings of the port for peers: a follower forwards the waits of all of its clients on one connection, and appends are large.
    pub const PEERS: Self = Self {
        windows: Windows::WIDE,
        calls_max: 16_384,
        without_message_max: 1_024,
        resets_in_turn_max: 4_096,
        header_bytes_max: 16 << 10,
        unsent_bytes_max: 400 << 10,
        turn_bytes: 256 << 10,
        // Members are believed, and an append is large.
        arriving_bytes_max: usize::MAX,
        request_bytes_max: |_| None,
        connections_max: 1_000,
        speaks_http1: false,
    };

    /// The same settings with this limit of connections.
    #[must_use]
    pub const fn with_connections_max(self, connections_max: usize) -> Self {
        Self { connections_max, ..self }
    }

    /// The same settings with these limits of messages.
    #[must_use]
    pub const fn with_requests(self, request_bytes_max: fn(&str) -> Option<usize>) -> Self {
        Self { request_bytes_max, ..self }
    }

    /// The same settings, for a port that speaks HTTP/1.1 too, and takes an authority with a scheme: etcd's.
    #[must_use]
    pub const fn with_http1(self) -> Self {
        Self { speaks_http1: true, ..self }
    }

    /// How HTTP/1.1 is served, if it is spoken here.
    pub(super) fn http1(&self) -> Option<http1::Builder> {
        let mut builder = http1::Builder::new();
        // The headers' time includes the one without a call.
        builder.timer(TokioTimer::new()).header_read_timeout(IDLE_TIMEOUT).max_buf_size(HTTP1_BUFFER);
        self.speaks_http1.then_some(builder)
    }

    pub(super) fn http2(&self) -> http2::Builder<TokioExecutor> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .max_concurrent_streams(self.calls_max)
            .max_pending_accept_reset_streams(self.resets_in_turn_max)
            .max_header_list_size(self.header_bytes_max)
            .max_send_buf_size(self.unsent_bytes_max)
            .initial_stream_window_size(self.windows.stream)
            .initial_connection_window_size(self.windows.connection);
        builder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// DATA frames below this size count by their missing bytes in h2.
    const SMALL: u32 = 256;
    /// gRPC's five bytes, a number of at least two digits, and a request.
    const SMALLEST_REQUEST: u32 = 11;

    #[test]
    fn a_stream_full_of_the_smallest_requests_is_allowed() {
        let Windows { stream, connection } = Settings::CLIENTS.windows;
        let lacking = stream / SMALLEST_REQUEST * (SMALL - SMALLEST_REQUEST);
        assert!(lacking <= connection / 2, "{lacking} bytes of {}", connection / 2);
    }

    #[test]
    fn a_turn_has_no_room_for_too_many_reset_calls() {
        /// Headers that the connection's table knows (HEADERS and six bytes), a message of five bytes and more (DATA), RST_STREAM.
        const CALL: usize = (9 + 6) + (9 + 5 + 32) + (9 + 4);
        for settings in [Settings::CLIENTS, Settings::PEERS] {
            assert!(settings.turn_bytes / CALL < settings.resets_in_turn_max, "{settings:?}");
        }
    }
}
