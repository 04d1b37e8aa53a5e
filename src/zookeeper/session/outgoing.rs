//! What a connection is about to send, as a share of the budget of the port.
//!
//! An answer takes memory from when it is made, and may wait then: for the events that come before it, for the time until the node may
//! answer for the session, behind the answers to what was sent with it. So it is counted before it waits. A connection whose answers find
//! no room in the budget ends, as one whose client does not read them.

use lockkeeper_accept::ArrivingRequest;
use lockkeeper_planted::NodeLimit;

use super::ClosingReason;
use crate::wire::{ErrorCode, JuteWriter};

/// Replies and events in the order in which they leave, and the answers that wait to be among them.
pub(crate) struct OutgoingFrames<'a> {
    frames: Vec<u8>,
    /// Number of bytes that the connection sends before these.
    before: usize,
    /// Number of bytes of answers that are made, and are not among the frames yet.
    waiting: usize,
    /// The share of the connection in the budget of replies.
    held: &'a mut ArrivingRequest,
}

impl<'a> OutgoingFrames<'a> {
    /// Nothing yet, behind this number of bytes.
    pub(crate) fn new(before: usize, held: &'a mut ArrivingRequest) -> Self {
        Self { frames: Vec::new(), before, waiting: 0, held }
    }

    /// Counts answers that are made, by the number of their bytes. Fails if the budget has no room for them.
    pub(super) fn count_made(&mut self, bytes: usize) -> Result<(), ClosingReason> {
        self.waiting += bytes;
        let all = self.before + self.frames.len() + self.waiting;
        self.held.hold(all).map_err(|_| {
            NodeLimit::ZookeeperReplies.note();
            ClosingReason::AtOnce
        })
    }

    /// Appends an answer that was counted.
    pub(super) fn put_reply(&mut self, xid: i32, zxid: i64, result: Result<&[u8], ErrorCode>) {
        self.waiting = self.waiting.saturating_sub(result.map_or(0, <[u8]>::len));
        JuteWriter::put_reply(&mut self.frames, xid, zxid, result);
    }

    /// The frames, to append events.
    pub(super) fn frames(&mut self) -> &mut Vec<u8> {
        &mut self.frames
    }

    /// The frames, when all is answered.
    pub(crate) fn into_frames(self) -> Vec<u8> {
        self.frames
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_accept::{ArrivingBytes, FREE_BYTES};

    use super::*;

    #[test]
    fn an_answer_counts_from_when_it_is_made_and_once() {
        let port = ArrivingBytes::new(2_000);
        let mut held = port.request([127, 0, 0, 1].into());
        let mut outgoing = OutgoingFrames::new(FREE_BYTES, &mut held);
        outgoing.count_made(900).expect("less than half");
        let mut other = port.request([127, 0, 0, 1].into());
        other.hold(FREE_BYTES + 101).expect_err("the answer waits, and counts");
        other.hold(FREE_BYTES + 100).expect("what it leaves");
        other.release();

        outgoing.put_reply(1, 1, Ok(&[0; 900]));
        assert_eq!(outgoing.count_made(50), Ok(()), "the first one is a frame now");
        assert_eq!(outgoing.count_made(100), Err(ClosingReason::AtOnce));
        assert!(outgoing.into_frames().len() > 900);
    }
}
