//! The documents of `-o json`. Their fields are stable: fields may be added, but keep their names and meanings.

use serde::Serialize;

use super::show;
use crate::{
    client::{self, AttachedSession},
    machine,
};

#[derive(Serialize, Debug)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum ModeJson {
    Exclusive,
    Shared,
    Permit { limit: u32 },
}

#[derive(Serialize, Debug)]
pub(super) struct LockJson {
    name: String,
    kind: &'static str,
    mode: Option<ModeJson>,
    holders: Vec<HolderJson>,
    holder_count: u64,
    waiters: Vec<WaiterJson>,
    queue_length: u64,
    #[serde(flatten)]
    data: DataJson,
    keep_data: bool,
    delay_remaining_ms: u64,
    /// An operator gave the semaphore its size.
    resized: bool,
}

#[derive(Serialize, Debug)]
pub(super) struct HolderJson {
    token: u64,
    session_id: String,
    label: String,
    mode: Option<ModeJson>,
    since_unix_ms: u64,
    remaining_ms: u64,
    revoked_reason: Option<String>,
}

#[derive(Serialize, Debug)]
pub(super) struct WaiterJson {
    ticket: u64,
    session_id: String,
    label: String,
    mode: Option<ModeJson>,
    since_unix_ms: u64,
    remaining_ms: Option<u64>,
}

/// Always complete in hexadecimal, and also as text if it is valid text.
#[derive(Serialize, Debug)]
pub(super) struct DataJson {
    data_hex: Option<String>,
    data_text: Option<String>,
}

#[derive(Serialize, Debug)]
pub(super) struct SessionJson {
    session_id: String,
    label: String,
    ttl_ms: u64,
    remaining_ms: u64,
    opened_unix_ms: u64,
    grants: u32,
    waits: u32,
    bytes: u64,
    /// From where it was opened: IP:PORT; nothing if that is not known.
    address: Option<String>,
    owner: Option<String>,
}

#[derive(Serialize, Debug)]
pub(super) struct RenewalJson {
    session_id: String,
    ttl_ms: u64,
    /// How long the session may be trusted from now on.
    remaining_ms: u64,
    /// Until when it may be trusted, on this host's clock since boot (`CLOCK_BOOTTIME`, as in /proc/uptime): the
    /// sending of the request, plus the TTL, less a margin.
    deadline_uptime_ms: u64,
    revoked: Vec<RevokedJson>,
    more_revoked: bool,
}

#[derive(Serialize, Debug)]
struct RevokedJson {
    token: u64,
    reason: String,
    remaining_ms: u64,
}

#[derive(Serialize, Debug)]
pub(super) struct ForcedJson {
    token: u64,
    session_id: String,
    label: String,
    /// Time left for the holder if it does not release.
    remaining_ms: u64,
    /// How long the lock then stays closed.
    lock_delay_ms: u64,
}

impl From<machine::Mode> for ModeJson {
    fn from(mode: machine::Mode) -> Self {
        match mode {
            machine::Mode::Exclusive => Self::Exclusive,
            machine::Mode::Shared => Self::Shared,
            machine::Mode::Permit(permits) => Self::Permit { limit: permits.get() },
        }
    }
}

impl From<Option<Vec<u8>>> for DataJson {
    fn from(data: Option<Vec<u8>>) -> Self {
        Self { data_hex: data.as_deref().map(show::hex), data_text: data.and_then(|data| String::from_utf8(data).ok()) }
    }
}

/// `lock`, or `entry`: an item of another protocol.
pub(super) fn kind(kind: client::LockKind) -> &'static str {
    match kind {
        client::LockKind::Entry => "entry",
        client::LockKind::Lock | _ => "lock",
    }
}

impl From<client::LockInfo> for LockJson {
    fn from(lock: client::LockInfo) -> Self {
        Self {
            name: lock.name.as_str().to_owned(),
            kind: kind(lock.kind),
            mode: lock.mode.map(ModeJson::from),
            holders: lock.holders.into_iter().map(HolderJson::from).collect(),
            holder_count: lock.holder_count,
            waiters: lock.waiters.into_iter().map(WaiterJson::from).collect(),
            queue_length: lock.queue_length,
            data: lock.data.into(),
            keep_data: lock.keep_data,
            delay_remaining_ms: lock.delay_remaining.map_or(0, show::millis),
            resized: lock.resized,
        }
    }
}

impl From<client::Holder> for HolderJson {
    fn from(holder: client::Holder) -> Self {
        Self {
            token: holder.token.0,
            session_id: holder.session_id.to_string(),
            label: holder.label,
            mode: holder.mode.map(ModeJson::from),
            since_unix_ms: holder.since.0,
            remaining_ms: show::millis(holder.remaining),
            revoked_reason: holder.revoked_reason,
        }
    }
}

impl From<client::Waiter> for WaiterJson {
    fn from(waiter: client::Waiter) -> Self {
        Self {
            ticket: waiter.ticket.0,
            session_id: waiter.session_id.to_string(),
            label: waiter.label,
            mode: waiter.mode.map(ModeJson::from),
            since_unix_ms: waiter.since.0,
            remaining_ms: waiter.remaining.map(show::millis),
        }
    }
}

impl From<client::SessionInfo> for SessionJson {
    fn from(session: client::SessionInfo) -> Self {
        Self {
            session_id: session.session_id.to_string(),
            label: session.label,
            ttl_ms: show::millis(session.ttl),
            remaining_ms: show::millis(session.remaining),
            opened_unix_ms: session.opened.0,
            grants: session.grants,
            waits: session.waits,
            bytes: session.bytes,
            address: session.address.map(|address| address.to_string()),
            owner: session.owner,
        }
    }
}

impl RenewalJson {
    pub(super) fn new(session: &AttachedSession, renewal: client::Renewal) -> Self {
        let revoked = renewal.revoked.into_iter().map(|revoked| RevokedJson {
            token: revoked.token.0,
            reason: revoked.reason,
            remaining_ms: show::millis(revoked.remaining),
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

impl From<client::Forced> for ForcedJson {
    fn from(forced: client::Forced) -> Self {
        Self {
            token: forced.token.0,
            session_id: forced.session_id.to_string(),
            label: forced.label,
            remaining_ms: show::millis(forced.remaining),
            lock_delay_ms: show::millis(forced.lock_delay),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::machine::{LockName, SessionId, Ticket, Token, WallTime};

    pub(in crate::cli) fn lock_without_holders(name: &str) -> client::LockInfo {
        client::LockInfo {
            name: LockName::new(name).unwrap(),
            kind: client::LockKind::Lock,
            mode: None,
            holders: Vec::new(),
            holder_count: 0,
            waiters: Vec::new(),
            queue_length: 0,
            data: None,
            keep_data: false,
            delay_remaining: None,
            resized: false,
        }
    }

    pub(in crate::cli) fn holder(token: u64, label: &str) -> client::Holder {
        client::Holder {
            token: Token(token),
            session_id: SessionId(1),
            label: label.to_owned(),
            mode: Some(machine::Mode::Shared),
            since: WallTime(1_000),
            remaining: Duration::from_millis(2_500),
            revoked_reason: None,
        }
    }

    pub(in crate::cli) fn waiter(ticket: u64, session_id: SessionId) -> client::Waiter {
        client::Waiter {
            ticket: Ticket(ticket),
            session_id,
            label: "bob".to_owned(),
            mode: Some(machine::Mode::Exclusive),
            since: WallTime(2_000),
            remaining: None,
        }
    }

    #[test]
    fn a_free_lock_has_all_fields() {
        let document = serde_json::to_value(LockJson::from(lock_without_holders("jobs"))).unwrap();
        let expected = json!({
            "name": "jobs", "kind": "lock", "mode": null, "holders": [], "holder_count": 0, "waiters": [], "queue_length": 0, "data_hex": null,
            "data_text": null, "keep_data": false, "delay_remaining_ms": 0, "resized": false,
        });
        assert_eq!(document, expected);
    }

    #[test]
    fn a_session_has_its_address_or_null() {
        let session = client::SessionInfo {
            session_id: SessionId(1),
            label: "ann".to_owned(),
            ttl: Duration::from_secs(10),
            remaining: Duration::from_secs(9),
            opened: WallTime(1_000),
            grants: 2,
            waits: 3,
            bytes: 4,
            address: Some("10.0.0.7:5123".parse().unwrap()),
            owner: Some("shop-1".to_owned()),
        };
        let mut expected = json!({
            "session_id": "00000000000000000000000000000001", "label": "ann", "ttl_ms": 10_000, "remaining_ms": 9_000,
            "opened_unix_ms": 1_000, "grants": 2, "waits": 3, "bytes": 4, "address": "10.0.0.7:5123", "owner": "shop-1",
        });
        assert_eq!(serde_json::to_value(SessionJson::from(session.clone())).unwrap(), expected);
        expected["address"] = serde_json::Value::Null;
        let unknown = SessionJson::from(client::SessionInfo { address: None, ..session });
        assert_eq!(serde_json::to_value(unknown).unwrap(), expected);
    }

    #[test]
    fn times_are_milliseconds_and_ids_are_texts() {
        let lock = client::LockInfo {
            mode: Some(machine::Mode::Permit(machine::Permits::new(3).unwrap())),
            holders: vec![client::Holder { revoked_reason: Some("stuck".to_owned()), ..holder(7, "ann") }],
            holder_count: 1,
            waiters: vec![client::Waiter { remaining: Some(Duration::from_micros(1_999)), ..waiter(8, SessionId(2)) }],
            queue_length: 1,
            delay_remaining: Some(Duration::from_secs(4)),
            ..lock_without_holders("jobs")
        };
        let document = serde_json::to_value(LockJson::from(lock)).unwrap();
        let expected = json!({
            "name": "jobs",
            "kind": "lock",
            "mode": {"kind": "permit", "limit": 3},
            "holders": [{
                "token": 7, "session_id": "00000000000000000000000000000001", "label": "ann", "mode": {"kind": "shared"},
                "since_unix_ms": 1_000, "remaining_ms": 2_500, "revoked_reason": "stuck",
            }],
            "holder_count": 1,
            "waiters": [{
                "ticket": 8, "session_id": "00000000000000000000000000000002", "label": "bob", "mode": {"kind": "exclusive"},
                "since_unix_ms": 2_000, "remaining_ms": 1,
            }],
            "queue_length": 1, "data_hex": null, "data_text": null, "keep_data": false, "delay_remaining_ms": 4_000, "resized": false,
        });
        assert_eq!(document, expected);
    }
}
