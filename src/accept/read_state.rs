//! The bytes that a connection may read in its turn, and whether its handshake is complete.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// The state of a connection that its server can see.
#[derive(Debug)]
pub struct ReadState {
    turn_bytes: usize,
    /// The bytes that may still be read in this turn.
    left: AtomicUsize,
    is_handshake_complete: AtomicBool,
}

impl ReadState {
    /// The state of a connection that may read this number of bytes in a turn.
    pub fn new(turn_bytes: usize) -> Self {
        Self { turn_bytes, left: AtomicUsize::new(turn_bytes), is_handshake_complete: AtomicBool::new(false) }
    }

    /// Begins another turn: the connection is polled again.
    pub fn begin_turn(&self) {
        self.left.store(self.turn_bytes, Relaxed);
    }

    /// The bytes that may still be read in this turn.
    pub fn left(&self) -> usize {
        self.left.load(Relaxed)
    }

    /// Notes the bytes that were read.
    pub fn read(&self, bytes: usize) {
        self.left.store(self.left().saturating_sub(bytes), Relaxed);
    }

    /// Whether the other end has begun to speak the protocol of the port. The port decides what that means. With HTTP/2, it
    /// means that the whole preface has arrived, including SETTINGS.
    pub fn is_handshake_complete(&self) -> bool {
        self.is_handshake_complete.load(Relaxed)
    }

    /// Notes whether the handshake is complete.
    pub fn note_handshake(&self, is_complete: bool) {
        self.is_handshake_complete.store(is_complete, Relaxed);
    }
}
