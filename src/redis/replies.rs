//! Replies that wait for room in the socket.

use std::{collections::VecDeque, mem};

use lockkeeper_accept::{ArrivingRequest, TooManyBytes};

use crate::{
    RedisReply,
    resp::{Protocol, write_reply},
};

/// A piece of this size is closed, and later bytes go into a new piece. So no buffer grows by copying its content into one of twice the
/// size, and written bytes are freed piece by piece.
const PIECE_BYTES: usize = 16 << 10;
/// A buffer of replies with more bytes than this is freed once they are added.
const SPARE_BYTES_MAX: usize = 4 << 10;

/// The replies of a connection that are not written. They are counted in the budget of the port before they wait.
#[derive(Debug)]
pub(crate) struct UnwrittenReplies {
    queue: ReplyQueue,
    /// The share of this connection in the budget.
    held: ArrivingRequest,
    /// From this number of bytes on, no further command of the connection runs.
    bytes_max: usize,
    /// An empty buffer, in which the next replies are made.
    spare: Vec<u8>,
}

impl UnwrittenReplies {
    /// There are none yet.
    pub(crate) fn new(held: ArrivingRequest, bytes_max: usize) -> Self {
        Self { queue: ReplyQueue::default(), held, bytes_max, spare: Vec::new() }
    }

    /// A buffer to make replies in, for [`Self::add`].
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        mem::take(&mut self.spare)
    }

    /// Adds replies. If the budget has no room for them, it fails, and they are gone.
    pub(crate) fn add(&mut self, mut replies: Vec<u8>) -> Result<(), TooManyBytes> {
        if !replies.is_empty() {
            self.held.hold(self.queue.unwritten() + replies.len())?;
            self.queue.append(&mut replies);
        }
        if replies.capacity() <= SPARE_BYTES_MAX {
            self.spare = replies;
        }
        Ok(())
    }

    /// Adds the error with which the connection ends, whatever the budget says.
    pub(crate) fn add_last(&mut self, error: &RedisReply) {
        let mut last = self.take_buffer();
        write_reply(error, Protocol::Resp2, &mut last);
        self.queue.append(&mut last);
    }

    /// Number of bytes that are not written.
    pub(crate) fn unwritten(&self) -> usize {
        self.queue.unwritten()
    }

    /// Number of bytes for which there is room before commands have to wait.
    pub(crate) fn room(&self) -> usize {
        self.bytes_max.saturating_sub(self.queue.unwritten())
    }

    /// The bytes to write next. They are empty if everything is written.
    pub(crate) fn next(&self) -> &[u8] {
        self.queue.next()
    }

    /// Counts bytes of [`Self::next`] that the socket has taken.
    pub(crate) fn note_written(&mut self, bytes: usize) {
        self.queue.note_written(bytes);
        // Fewer bytes than before are never refused.
        let _ = self.held.hold(self.queue.unwritten());
    }
}

/// The bytes of replies, in their order.
#[derive(Debug, Default)]
struct ReplyQueue {
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
    /// Adds bytes, and leaves the buffer empty. Many of them are not copied.
    fn append(&mut self, bytes: &mut Vec<u8>) {
        if bytes.len() < PIECE_BYTES {
            self.open.append(bytes);
            if self.open.len() >= PIECE_BYTES {
                self.close();
            }
            return;
        }

        if !self.open.is_empty() {
            self.close();
        }
        mem::swap(&mut self.open, bytes);
        self.close();
    }

    /// Closes the last piece.
    fn close(&mut self) {
        let piece = mem::take(&mut self.open).into_boxed_slice();
        self.closed_bytes += piece.len();
        self.closed.push_back(piece);
    }

    /// Number of bytes that are not written.
    fn unwritten(&self) -> usize {
        self.closed_bytes + self.open.len() - self.written
    }

    /// The bytes to write next. They are empty if everything is written.
    fn next(&self) -> &[u8] {
        let piece = self.closed.front().map_or(&*self.open, |piece| piece);
        &piece[self.written..]
    }

    /// Counts bytes of [`Self::next`] that the socket has taken.
    fn note_written(&mut self, bytes: usize) {
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
    use lockkeeper_accept::ArrivingBytes;

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
            // Some of them are pieces of their own.
            let times = if number % 101 == 0 { PIECE_BYTES / 2 } else { number % 97 };
            let reply = number.to_string().repeat(times);
            replies.append(&mut reply.clone().into_bytes());
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
            replies.append(&mut vec![b'x'; 1_000]);
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

    #[test]
    fn replies_are_counted_before_they_wait() {
        let budget = ArrivingBytes::new(100_000);
        let [mut first, mut second] = [(); 2].map(|()| {
            let held = budget.request([10, 0, 0, 1].into());
            UnwrittenReplies::new(held, 30_000)
        });
        first.add(vec![b'x'; 20_000]).expect("there is room");
        assert_eq!(first.room(), 10_000);
        first.add(vec![b'x'; 20_000]).expect("there is room");
        assert_eq!(first.room(), 0);

        // One address may have half of the budget.
        second.add(vec![b'x'; 20_000]).expect_err("too many");
        assert_eq!((second.unwritten(), second.room()), (0, 30_000));
        first.note_written(first.next().len());
        second.add(vec![b'x'; 20_000]).expect("there is room again");

        second.add_last(&RedisReply::error("ERR the last"));
        assert_eq!(second.unwritten(), 20_015);
    }
}
