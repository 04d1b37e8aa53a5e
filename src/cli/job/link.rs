//! The link between wrapper and keeper: a socket pair.
//!
//! The keeper's end is its stdin, since safe code can pass only standard streams to a child. So the command's stdin is
//! sent over the link with the first message. When one end closes, the other knows that its peer process is gone.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream as StdStream, process::ExitStatusExt as _},
    },
    process::ExitStatus,
    time::Duration,
};

use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, send, sendmsg,
    },
    process::{Pid, Signal},
};
use tokio::{io::AsyncReadExt as _, net::UnixStream};

use crate::client::Moment;

/// Size of a message: a letter and a number.
const MESSAGE_BYTES: usize = 9;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Message {
    /// To the keeper: kill all processes at this moment on the boot clock, unless a later one is sent.
    KillAt(Moment),
    /// To the keeper: forward this signal to the command.
    Signal(Signal),
    /// To the keeper: send SIGTERM to all processes.
    Terminate,
    /// To the wrapper: the command ended.
    Ended(ExitStatus),
    /// To the wrapper: the time limit passed and all processes were killed.
    Expired,
    /// To the wrapper: the inner keeper has this pid.
    Keeper(Pid),
}

impl Message {
    fn encode(self) -> [u8; MESSAGE_BYTES] {
        let (letter, number) = match self {
            Self::KillAt(moment) => (b'k', u64::try_from(moment.0.as_nanos()).unwrap_or(u64::MAX)),
            Self::Signal(signal) => (b's', u64::from(signal.as_raw().unsigned_abs())),
            Self::Terminate => (b't', 0),
            Self::Ended(status) => (b'e', u64::from(status.into_raw().cast_unsigned())),
            Self::Expired => (b'x', 0),
            Self::Keeper(pid) => (b'i', u64::from(pid.as_raw_pid().unsigned_abs())),
        };
        let mut bytes = [letter; MESSAGE_BYTES];
        bytes[1..].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    fn decode(bytes: [u8; MESSAGE_BYTES]) -> Option<Self> {
        let [letter, number @ ..] = bytes;
        let number = u64::from_be_bytes(number);
        match letter {
            b'k' => Some(Self::KillAt(Moment(Duration::from_nanos(number)))),
            b's' => Some(Self::Signal(Signal::from_named_raw(i32::try_from(number).ok()?)?)),
            b't' => Some(Self::Terminate),
            b'e' => Some(Self::Ended(ExitStatus::from_raw(u32::try_from(number).ok()?.cast_signed()))),
            b'x' => Some(Self::Expired),
            b'i' => Some(Self::Keeper(Pid::from_raw(i32::try_from(number).ok()?)?)),
            _ => None,
        }
    }
}

/// One end of the link.
#[derive(Debug)]
pub(super) struct KeeperLink {
    stream: UnixStream,
    read: Vec<u8>,
}

impl KeeperLink {
    /// The wrapper's end, and the keeper's stdin. `stdin` is the command's.
    pub(super) fn new(kill_at: Moment, stdin: impl AsFd) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = StdStream::pair()?;
        let rights = [stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&rights));
        let first = Message::KillAt(kill_at).encode();
        sendmsg(&ours, &[IoSlice::new(&first)], &mut ancillary, SendFlags::empty())?;
        Ok((Self::from_stream(ours)?, theirs.into()))
    }

    /// The keeper's end, with the contents of the first message.
    pub(super) fn inherited() -> io::Result<(Self, Moment, OwnedFd)> {
        let stream = StdStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut first = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);

        let received = recvmsg(&stream, &mut [IoSliceMut::new(&mut first)], &mut ancillary, RecvFlags::empty())?;

        let stdin = ancillary.drain().find_map(|message| {
            let RecvAncillaryMessage::ScmRights(mut rights) = message else { return None };
            rights.next()
        });

        match (received.bytes, Message::decode(first), stdin) {
            (MESSAGE_BYTES, Some(Message::KillAt(moment)), Some(stdin)) => {
                fcntl_setfd(&stdin, FdFlags::CLOEXEC)?;
                Ok((Self::from_stream(stream)?, moment, stdin))
            }
            _ => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "internal command: only `lockkeeper lock` may call it"))
            }
        }
    }

    fn from_stream(stream: StdStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream: UnixStream::from_std(stream)?, read: Vec::new() })
    }

    /// Sends a message. Returns `false` if the other end is gone or its buffer is full. A message of this size is never split.
    pub(super) fn tell(&self, message: Message) -> bool {
        send(&self.stream, &message.encode(), SendFlags::empty()) == Ok(MESSAGE_BYTES)
    }

    /// The next message; `None` when the other end is gone. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Message> {
        while self.read.len() < MESSAGE_BYTES {
            match self.stream.read_buf(&mut self.read).await {
                Ok(1..) => {}
                // A reset ends the link too.
                Ok(0) | Err(_) => return None,
            }
        }
        let mut message = [0; MESSAGE_BYTES];
        self.read.drain(..MESSAGE_BYTES).zip(&mut message).for_each(|(byte, place)| *place = byte);
        // Both ends are the same program, so an unknown message is foreign and ends the link.
        Message::decode(message)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        for message in [
            Message::KillAt(Moment(Duration::new(86_400, 7))),
            Message::Signal(Signal::USR1),
            Message::Terminate,
            Message::Ended(ExitStatus::from_raw(3 << 8)),
            Message::Ended(ExitStatus::from_raw(9)),
            Message::Expired,
            Message::Keeper(Pid::INIT),
        ] {
            assert_eq!(Message::decode(message.encode()), Some(message));
        }
        assert_eq!(Message::decode([b'?'; MESSAGE_BYTES]), None);
    }

    #[tokio::test]
    async fn the_end_of_the_other_end_is_the_last_message() {
        let (mut link, other) = KeeperLink::new(Moment::default(), File::open("/dev/null").unwrap()).unwrap();
        let other = KeeperLink::from_stream(StdStream::from(other)).unwrap();
        assert!(other.tell(Message::Expired));
        drop(other);
        assert_eq!(link.next().await, Some(Message::Expired));
        assert_eq!(link.next().await, None);
        assert_eq!(link.next().await, None);
        assert!(!link.tell(Message::Terminate));
    }

    #[tokio::test]
    async fn one_who_does_not_listen_holds_up_nobody() {
        let (link, _other) = KeeperLink::new(Moment::default(), File::open("/dev/null").unwrap()).unwrap();
        assert!((0..1_000_000).any(|_| !link.tell(Message::Terminate)));
    }
}
