//! Parsers that are private to this crate, for `tests/fuzz`. This is not an interface: it changes with the parsers.

use std::fmt::Debug;

use lockkeeper_machine::{Attachment, Committed, ForceRelease, Released, Txn};
use prost::Message;

use crate::{
    api::{FailureReason, requests::*},
    wire::{Encode, status::error_of},
};

/// A message of `lockkeeper.v1`, and the check of its conversion.
#[derive(Clone, Copy, Debug)]
pub struct WireCheck {
    /// The typed value that the message stands for.
    pub name: &'static str,
    /// Converts a message. Panics if the message of a typed value stands for another value, or if an error names no field.
    pub check: fn(&[u8]),
}

macro_rules! wires {
    ($($value:ident),* $(,)?) => { &[$(WireCheck { name: stringify!($value), check: check::<$value> }),*] };
}

/// Requests, replies, and items of streams. Add further ones at the end: an input names its message by a number.
pub const WIRES: &[WireCheck] = wires![
    OpenSession,
    SessionOpened,
    RenewSession,
    SessionRenewed,
    CloseSession,
    SessionClosed,
    ListSessions,
    ListedSessions,
    KeepAlive,
    KeepAliveEvent,
    AcquireLocks,
    Acquired,
    ReleaseLocks,
    Released,
    UpdateData,
    DataUpdated,
    CheckToken,
    TokenChecked,
    GetLock,
    LockFound,
    ListLocks,
    ListedLocks,
    ForceRelease,
    GrantsForced,
    RemoveWaiter,
    WaiterRemoved,
    LiftDelay,
    DelayLifted,
    DropData,
    DataDropped,
    ResizeSemaphore,
    SemaphoreResized,
    WatchLocks,
    WatchEvent,
    Txn,
    Committed,
    GetEntries,
    EntriesFound,
    ListEntries,
    EntryPage,
    AddMember,
    PromoteMember,
    RemoveMember,
    ReplaceMember,
    MembersChanged,
    TransferLeader,
    LeaderTransferred,
    ShowBusiest,
    BusiestLocks,
    AttachSession,
    Attachment,
    SetSessionOwner,
    SessionOwnerSet,
];

fn check<T>(bytes: &[u8])
where
    T: Encode<Message: Message + Default + Clone + Debug> + Clone + PartialEq + Debug,
{
    let Ok(message) = T::Message::decode(bytes) else { return };

    match T::decode(message.clone()) {
        Ok(value) => {
            let again = T::decode(value.clone().encode());
            assert_eq!(again.as_ref(), Ok(&value), "the message of a value stands for another one: {message:?}");
        }
        Err(error) => {
            assert_eq!(error.reason, FailureReason::InvalidArgument, "{error:?}");
            let violation = error.violation().map(|(field, why)| field.is_empty() || why.is_empty());
            assert_eq!(violation, Some(false), "an error that names no field, or no problem: {error:?}");
        }
    }
}

/// Reads the error in another node's answer, and writes it again.
pub fn error(code: i32, message: &str, details: &[u8]) {
    let status = tonic::Status::with_details(code.into(), message, details.to_vec().into());
    let Some(error) = error_of(&status) else { return };
    let again = error_of(&tonic::Status::from(error.clone()));
    let again = again.expect("a status of this domain is an error of this domain");
    assert_eq!((again.reason, again.retry, again.message), (error.reason, error.retry, error.message));
}
