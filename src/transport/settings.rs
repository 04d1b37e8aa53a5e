//! What a connection may cost the node that accepted it: all limits of HTTP/2, and all deadlines of a connection, in one place.
//!
//! Memory that one connection can hold, at the most, whatever it sends:
//!
//! | | clients | peers |
//! |---|---|---|
//! | calls without a message: headers ([`Settings::header_bytes_max`] at most, some hundred bytes in practice) and the call's own state, about 3 KiB | 10,240 × 3 KiB = 30 MiB | 16,384 × 3 KiB |
//! | calls given to a service before their message is there, about 13 KiB more each ([`Settings::unasked_max`]) | 1,024 × 13 KiB = 13 MiB | the same |
//! | requests that no service has read ([`Windows::connection`]), and the same again for the frames that they came in | 4 MiB | 16 MiB |
//! | answers that the client has not read: [`Settings::unsent_bytes_max`] for each call | 64 KiB each | 400 KiB each |
//!
//! and, for each call under way, what the service itself keeps for it.
//!
//! **Small frames.** h2 (0.4.20, `proto/streams/counts.rs`) counts what DATA frames of less than 256 bytes lack to 256, from their arrival until
//! a service reads them, and ends the connection (GOAWAY, `too_many_data_frames`) beyond half of the connection's window. Some gRPC
//! libraries send a frame for each message. So the window of a stream, full of the smallest requests, must fit into half of the
//! connection's window: 32 KiB of requests of 11 bytes are 2,979 frames that lack 245 bytes each, 713 KiB; half of 2 MiB is enough.
//! A test below holds the two together.
//!
//! **Turns.** What is read at one time is bounded ([`Settings::turn_bytes`]), and then the calls that it began have their turn. Otherwise a
//! connection that always has something to read is read for long before any of its calls is looked at, and everything waits meanwhile:
//! opened calls, calls that were given up already, and frames that nobody has read.

use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::KEEP_ALIVE;

/// How long an accepted connection may take for its whole HTTP/2 preface: 24 bytes and the first SETTINGS frame.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may stay without a first call.
pub const FIRST_CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may stay without an open call after its last one.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a call that waits for its request's message may wait for it.
pub const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection that was told to end (GOAWAY) may take to do so once it has no open call.
pub const CLOSING_TIMEOUT: Duration = Duration::from_secs(2);

/// HTTP/2 flow control: bytes under way in one direction, which the receiver has not read yet.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// In one call.
    pub stream: u32,
    /// In all calls of a connection.
    pub connection: u32,
}

impl Windows {
    /// A large message passes in one go: for nodes among themselves, and for answers.
    pub const WIDE: Self = Self { stream: 4 << 20, connection: 8 << 20 };
    /// What a node relays from another one to its clients, each of whom reads when it likes: little for each. The connection has no limit of its
    /// own, or a stream that nobody reads would be in the way of all others.
    pub const RELAYED: Self = Self { stream: 64 << 10, connection: 1 << 30 };
    /// Some hundreds of requests on one stream. What a node that is overloaded has not read yet is no more than that: flow control stops a
    /// client that sends too fast. The connection's is for small frames, see the module's documentation.
    pub const NARROW: Self = Self { stream: 32 << 10, connection: 2 << 20 };
}

/// How a port deals with its connections.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For what it is sent.
    pub windows: Windows,
    /// Calls open at one time on one connection. HTTP/2 makes a client wait with further ones.
    pub calls_max: u32,
    /// Of them, those that a service has in hand though their message is not there yet. Others wait for it outside.
    pub unasked_max: usize,
    /// Calls that are given up in the very turn that they came in. Beyond it the connection ends: GOAWAY, `too_many_resets`.
    pub resets_in_turn_max: usize,
    /// Bytes of one call's headers, as HTTP/2 counts them.
    pub header_bytes_max: u32,
    /// Bytes of one call's answer that wait for the client's flow control.
    pub unsent_bytes_max: usize,
    /// Bytes that are read before the calls that they began have a turn.
    pub turn_bytes: usize,
    /// Connections at one time.
    pub connections_max: usize,
}

impl Settings {
    /// For the port of clients.
    ///
    /// A session of the Rust client has a call that stays open, and one program may have 10,000 of them. A turn holds less than
    /// [`resets_in_turn_max`](Self::resets_in_turn_max) calls with a message and its reset: only who opens calls in order to reset
    /// them gets there. A client that cancels any number of waits is not counted: those are known to a service.
    pub const CLIENTS: Self = Self {
        windows: Windows::NARROW,
        calls_max: 10_240,
        unasked_max: 1_024,
        resets_in_turn_max: 256,
        header_bytes_max: 8 << 10,
        unsent_bytes_max: 64 << 10,
        turn_bytes: 16 << 10,
        connections_max: 10_000,
    };
    /// For the port of peers: a follower forwards the waits of all of its clients on one connection, and appends are large.
    pub const PEERS: Self = Self {
        windows: Windows::WIDE,
        calls_max: 16_384,
        unasked_max: 1_024,
        resets_in_turn_max: 4_096,
        header_bytes_max: 16 << 10,
        unsent_bytes_max: 400 << 10,
        turn_bytes: 256 << 10,
        connections_max: 1_000,
    };

    /// The same, for so many connections.
    #[must_use]
    pub const fn with_connections_max(self, connections_max: usize) -> Self {
        Self { connections_max, ..self }
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

    /// Below which h2 counts what a DATA frame lacks.
    const SMALL: u32 = 256;
    /// gRPC's five bytes, a number of two digits at least, and a request.
    const SMALLEST_REQUEST: u32 = 11;

    #[test]
    fn a_stream_full_of_the_smallest_requests_is_no_attack() {
        let Windows { stream, connection } = Settings::CLIENTS.windows;
        let lacking = stream / SMALLEST_REQUEST * (SMALL - SMALLEST_REQUEST);
        assert!(lacking <= connection / 2, "{lacking} bytes of {}", connection / 2);
    }

    #[test]
    fn a_turn_has_no_room_for_too_many_calls_that_asked_and_gave_up() {
        /// Headers that the connection's table knows (HEADERS and six bytes), a message of five bytes and more (DATA), RST_STREAM.
        const CALL: usize = (9 + 6) + (9 + 5 + 32) + (9 + 4);
        for settings in [Settings::CLIENTS, Settings::PEERS] {
            assert!(settings.turn_bytes / CALL < settings.resets_in_turn_max, "{settings:?}");
        }
    }
}
