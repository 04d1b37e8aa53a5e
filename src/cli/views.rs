//! The documents of `-o json`. Their fields are stable: fields may be added, but keep their names and meanings.

use serde::Serialize;

use super::show;
use crate::{
    client::{self, AttachedSession},
    proto::v1::{self, mode::Kind},
};

#[derive(Serialize, Debug)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Mode {
    Exclusive,
    Shared,
    Permit { limit: u32 },
}

#[derive(Serialize, Debug)]
pub(super) struct Lock {
    name: String,
    mode: Option<Mode>,
    holders: Vec<Holder>,
    holder_count: u64,
    waiters: Vec<Waiter>,
    queue_length: u64,
    #[serde(flatten)]
    data: Data,
    keep_data: bool,
    delay_remaining_ms: u64,
    /// An operator gave the semaphore its size.
    resized: bool,
}

#[derive(Serialize, Debug)]
pub(super) struct Holder {
    token: u64,
    session_id: String,
    label: String,
    mode: Option<Mode>,
    since_unix_ms: u64,
    remaining_ms: u64,
    revoked_reason: Option<String>,
}

#[derive(Serialize, Debug)]
pub(super) struct Waiter {
    ticket: u64,
    session_id: String,
    label: String,
    mode: Option<Mode>,
    since_unix_ms: u64,
    remaining_ms: Option<u64>,
}

/// Always complete in hexadecimal, and also as text if it is valid text.
#[derive(Serialize, Debug)]
pub(super) struct Data {
    data_hex: Option<String>,
    data_text: Option<String>,
}

#[derive(Serialize, Debug)]
pub(super) struct Session {
    session_id: String,
    label: String,
    ttl_ms: u32,
    remaining_ms: u64,
    opened_unix_ms: u64,
    grants: u32,
    waits: u32,
    bytes: u64,
    /// From where it was opened: IP:PORT; nothing if that is not known.
    address: Option<String>,
}

#[derive(Serialize, Debug)]
pub(super) struct Renewal {
    session_id: String,
    ttl_ms: u64,
    /// How long the session may be trusted from now on.
    remaining_ms: u64,
    /// Until when it may be trusted, on this host's clock since boot (`CLOCK_BOOTTIME`, as in /proc/uptime): the
    /// sending of the request, plus the TTL, less a margin.
    deadline_uptime_ms: u64,
    revoked: Vec<Revoked>,
    more_revoked: bool,
}

#[derive(Serialize, Debug)]
struct Revoked {
    token: u64,
    reason: String,
    remaining_ms: u64,
}

#[derive(Serialize, Debug)]
pub(super) struct Forced {
    token: u64,
    session_id: String,
    label: String,
    /// Time left for the holder if it does not release.
    remaining_ms: u64,
    /// How long the lock then stays closed.
    lock_delay_ms: u64,
}

pub(super) fn mode(mode: Option<v1::Mode>) -> Option<Mode> {
    match mode?.kind? {
        Kind::Exclusive(_) => Some(Mode::Exclusive),
        Kind::Shared(_) => Some(Mode::Shared),
        Kind::Permit(permit) => Some(Mode::Permit { limit: permit.limit }),
    }
}

impl From<Option<Vec<u8>>> for Data {
    fn from(data: Option<Vec<u8>>) -> Self {
        Self { data_hex: data.as_deref().map(show::hex), data_text: data.and_then(|data| String::from_utf8(data).ok()) }
    }
}

impl From<v1::LockInfo> for Lock {
    fn from(lock: v1::LockInfo) -> Self {
        Self {
            name: lock.name,
            mode: mode(lock.mode),
            holders: lock.holders.into_iter().map(Holder::from).collect(),
            holder_count: lock.holder_count,
            waiters: lock.waiters.into_iter().map(Waiter::from).collect(),
            queue_length: lock.queue_length,
            data: lock.data.into(),
            keep_data: lock.keep_data,
            delay_remaining_ms: lock.delay_remaining_ms,
            resized: lock.resized,
        }
    }
}

impl From<v1::Holder> for Holder {
    fn from(holder: v1::Holder) -> Self {
        Self {
            token: holder.token,
            session_id: holder.session_id,
            label: holder.label,
            mode: mode(holder.mode),
            since_unix_ms: holder.since_unix_ms,
            remaining_ms: holder.remaining_ms,
            revoked_reason: Some(holder.revoked_reason).filter(|reason| !reason.is_empty()),
        }
    }
}

impl From<v1::Waiter> for Waiter {
    fn from(waiter: v1::Waiter) -> Self {
        Self {
            ticket: waiter.ticket,
            session_id: waiter.session_id,
            label: waiter.label,
            mode: mode(waiter.mode),
            since_unix_ms: waiter.since_unix_ms,
            remaining_ms: waiter.remaining_ms,
        }
    }
}

impl From<v1::SessionInfo> for Session {
    fn from(session: v1::SessionInfo) -> Self {
        Self {
            session_id: session.session_id,
            label: session.label,
            ttl_ms: session.ttl_ms,
            remaining_ms: session.remaining_ms,
            opened_unix_ms: session.opened_unix_ms,
            grants: session.grants,
            waits: session.waits,
            bytes: session.bytes,
            address: Some(session.address).filter(|address| !address.is_empty()),
        }
    }
}

impl Renewal {
    pub(super) fn new(session: &AttachedSession, renewal: client::Renewal) -> Self {
        let revoked = renewal.revoked.into_iter().map(|revoked| Revoked {
            token: revoked.token,
            reason: revoked.reason,
            remaining_ms: revoked.remaining_ms,
        });
        Self {
            session_id: session.id().to_string(),
            ttl_ms: show::millis(renewal.ttl),
            remaining_ms: show::millis(renewal.remaining),
            deadline_uptime_ms: show::millis(renewal.deadline.0),
            revoked: revoked.collect(),
            more_revoked: renewal.more_revoked,
        }
    }
}

impl From<v1::force_release_response::Forced> for Forced {
    fn from(forced: v1::force_release_response::Forced) -> Self {
        Self {
            token: forced.token,
            session_id: forced.session_id,
            label: forced.label,
            remaining_ms: forced.remaining_ms,
            lock_delay_ms: forced.lock_delay_ms,
        }
    }
}
