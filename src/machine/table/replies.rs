//! The replies that a session remembers.

use std::sync::Arc;

use super::weights::{HELD, REPLY};
use crate::types::*;

/// A reply, and what its request asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RememberedReply {
    pub(crate) asked: RememberedRequest,
    pub(crate) reply: Reply,
}

/// What a remembered request asked for, in enough detail to tell a retry from another request under the same id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RememberedRequest {
    /// An acquire of these locks, in order.
    Acquire(Arc<[LockName]>),
    /// A release.
    Release(Target),
    /// An update by this token, of this lock.
    Update(Token, LockName),
    /// An acquire that was released before it arrived.
    Abandoned,
}

/// Remembered replies, by request id. There are few: the client closes an id soon after it has the reply.
#[derive(Clone, Default, Debug)]
pub(crate) struct RememberedReplies {
    by_id: Vec<(u64, Arc<RememberedReply>)>,
    /// Bytes of all replies.
    bytes: usize,
}

impl RememberedReply {
    /// The bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        REPLY + self.asked.bytes() + reply_bytes(&self.reply)
    }
}

/// The bytes of the reply to an acquire, without what a reply says of others.
pub(crate) fn remembered_acquire_bytes(acquire: &Acquire) -> usize {
    REPLY + acquire.wants().iter().map(|want| HELD + want.name.as_str().len()).sum::<usize>()
}

/// The bytes of the reply to an update.
pub(crate) fn remembered_update_bytes(update: &Update) -> usize {
    REPLY + update.name.as_str().len()
}

impl RememberedRequest {
    fn bytes(&self) -> usize {
        match self {
            Self::Acquire(names) => names.iter().map(|name| HELD + name.as_str().len()).sum(),
            Self::Update(_, name) => name.as_str().len(),
            Self::Release(_) | Self::Abandoned => 0,
        }
    }
}

impl RememberedReplies {
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &RememberedReply)> {
        self.by_id.iter().map(|(id, remembered)| (*id, &**remembered))
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Arc<RememberedReply>> {
        self.place(id).ok().map(|place| &self.by_id[place].1)
    }

    /// Replaces the reply to a remembered request. Has no effect on one that is not remembered.
    pub(super) fn replace(&mut self, id: u64, reply: Reply) {
        let Ok(place) = self.place(id) else { return };
        let remembered = Arc::make_mut(&mut self.by_id[place].1);
        let before = remembered.bytes();
        remembered.reply = reply;
        self.bytes = self.bytes - before + remembered.bytes();
    }

    /// Returns whether a reply was remembered under this id already.
    pub(super) fn insert(&mut self, id: u64, remembered: Arc<RememberedReply>) -> bool {
        self.bytes += remembered.bytes();
        match self.place(id) {
            Ok(place) => {
                let before = std::mem::replace(&mut self.by_id[place].1, remembered);
                self.bytes -= before.bytes();
                true
            }
            Err(place) => {
                self.by_id.insert(place, (id, remembered));
                false
            }
        }
    }

    pub(super) fn forget(&mut self, which: impl Fn(u64) -> bool) {
        let bytes = &mut self.bytes;
        self.by_id.retain(|(id, remembered)| {
            let stays = !which(*id);
            if !stays {
                *bytes -= remembered.bytes();
            }
            stays
        });
    }

    fn place(&self, id: u64) -> Result<usize, usize> {
        self.by_id.binary_search_by_key(&id, |(id, _)| *id)
    }
}

/// The names, labels and reasons in a reply: all else has a fixed size.
fn reply_bytes(reply: &Reply) -> usize {
    if let Reply::Busy(busy) | Reply::Acquired(WaitEnd::TimedOut(busy)) = reply {
        let holder = busy.holder.as_ref();
        let reason = holder.and_then(|holder| holder.revoked.as_ref()).map_or(0, |reason| reason.as_str().len());
        busy.name.as_str().len() + reason + holder.map_or(0, |holder| holder.label.as_str().len())
    } else if let Reply::Refused(Refusal::Revoked { reason, .. }) = reply {
        reason.as_str().len()
    } else if let Reply::Refused(Refusal::ModeMismatch { name, .. } | Refusal::LockUnknown { name }) = reply {
        name.as_str().len()
    } else {
        0
    }
}
