//! Replies that wait for room in the socket.

use std::{collections::VecDeque, mem};

/// A piece of this size is closed, and later bytes go into a new piece. So no buffer grows by copying its content into one of twice the
/// size, and written bytes are freed piece by piece.
const PIECE_BYTES: usize = 16 << 10;

/// The bytes of replies, in their order.
#[derive(Debug, Default)]
pub(crate) struct ReplyQueue {
    /// Pieces that are closed, the first one first.
    closed: VecDeque<Box<[u8]>>,
    /// Number of bytes in them.
    closed_bytes: usize,
    /// The last piece, to which replies are added.
    open: Vec<u8>,
    /// Number of bytes of the first piece that are written.
    written: usize,
}

impl ReplyQueue {
    /// The buffer to which replies are added. Call [`Self::close`] afterwards.
    pub(crate) fn open(&mut self) -> &mut Vec<u8> {
        &mut self.open
    }

    /// Closes the last piece if it is large enough.
    pub(crate) fn close(&mut self) {
        if self.open.len() >= PIECE_BYTES {
            let piece = mem::take(&mut self.open).into_boxed_slice();
            self.closed_bytes += piece.len();
            self.closed.push_back(piece);
        }
    }

    /// Number of bytes that are not written.
    pub(crate) fn unwritten(&self) -> usize {
        self.closed_bytes + self.open.len() - self.written
    }

    /// The bytes to write next. They are empty if everything is written.
    pub(crate) fn next(&self) -> &[u8] {
        let piece = self.closed.front().map_or(&*self.open, |piece| piece);
        &piece[self.written..]
    }

    /// Counts bytes of [`Self::next`] that the socket has taken.
    pub(crate) fn note_written(&mut self, bytes: usize) {
        self.written += bytes;
        if !self.next().is_empty() {
            return;
        }

        self.written = 0;
        match self.closed.pop_front() {
            Some(piece) => self.closed_bytes -= piece.len(),
            // A large buffer is given back.
            None if self.open.capacity() > PIECE_BYTES => self.open = Vec::new(),
            None => self.open.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that the buffers take.
    fn taken(replies: &ReplyQueue) -> usize {
        replies.closed.iter().map(|piece| piece.len()).sum::<usize>() + replies.open.capacity()
    }

    #[test]
    fn replies_are_written_in_their_order_whatever_the_socket_takes() {
        let mut replies = ReplyQueue::default();
        let mut sent = Vec::new();
        let mut expected = Vec::new();
        for number in 0..2_000_usize {
            let reply = number.to_string().repeat(number % 97);
            replies.open().extend_from_slice(reply.as_bytes());
            replies.close();
            expected.extend_from_slice(reply.as_bytes());

            let bytes = replies.next().len().min(number % 83);
            sent.extend_from_slice(&replies.next()[..bytes]);
            replies.note_written(bytes);
            assert_eq!(replies.unwritten(), expected.len() - sent.len());
        }

        assert!(replies.closed.len() > 1, "pieces wait");
        while replies.unwritten() > 0 {
            let next = replies.next().to_vec();
            sent.extend_from_slice(&next);
            replies.note_written(next.len());
        }
        assert_eq!(sent, expected);
        assert_eq!(replies.next(), b"");
    }

    #[test]
    fn buffers_take_hardly_more_than_what_waits() {
        let mut replies = ReplyQueue::default();
        for _ in 0..1_000 {
            replies.open().extend_from_slice(&[b'x'; 1_000]);
            replies.close();
            assert!(taken(&replies) <= replies.unwritten() + 2 * PIECE_BYTES);
        }

        // The client reads half of it, and then the rest.
        while replies.unwritten() > 500_000 {
            replies.note_written(replies.next().len().min(700));
            assert!(taken(&replies) <= replies.unwritten() + 3 * PIECE_BYTES);
        }
        while replies.unwritten() > 0 {
            replies.note_written(replies.next().len());
        }
        assert!(taken(&replies) <= PIECE_BYTES);
    }
}
