//! The documents of `-o json`. Their fields are stable: fields may be added, but keep their names and meanings. Locks, holders, waiters and
//! sessions are written as the client's views are: see [`client::json`].

use serde::Serialize;

use super::show;
use crate::client::{self, AttachedSession};

#[derive(Serialize, Debug)]
pub(super) struct RenewalJson {
    session_id: String,
    ttl_ms: u64,
    /// How long the session may be trusted from now on.
    remaining_ms: u64,
    /// Until when it may be trusted, on this host's clock since boot (`CLOCK_BOOTTIME`, as in /proc/uptime): the
    /// sending of the request, plus the TTL, less a margin.
    deadline_uptime_ms: u64,
    revoked: Vec<client::Revocation>,
    more_revoked: bool,
}

impl RenewalJson {
    pub(super) fn new(session: &AttachedSession, renewal: client::Renewal) -> Self {
        Self {
            session_id: session.id().to_string(),
            ttl_ms: show::millis(renewal.ttl),
            remaining_ms: show::millis(renewal.remaining),
            deadline_uptime_ms: show::millis(renewal.deadline.0),
            revoked: renewal.revoked,
            more_revoked: renewal.more_revoked,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::machine::{self, LockName, SessionId, Ticket, Token, WallTime};

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
            ..client::Holder::default()
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
        let document = serde_json::to_value(lock_without_holders("jobs")).unwrap();
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
        assert_eq!(serde_json::to_value(&session).unwrap(), expected);
        expected["address"] = serde_json::Value::Null;
        let unknown = client::SessionInfo { address: None, ..session };
        assert_eq!(serde_json::to_value(unknown).unwrap(), expected);
    }

    #[test]
    fn times_are_milliseconds_and_ids_are_texts() {
        let lock = client::LockInfo {
            mode: Some(machine::Mode::Permit(machine::Permits::new(3).unwrap())),
            holders: vec![client::Holder {
                revoked_reason: Some("stuck".to_owned()),
                address: Some("10.0.0.7:5123".parse().unwrap()),
                ..holder(7, "ann")
            }],
            holder_count: 1,
            waiters: vec![client::Waiter { remaining: Some(Duration::from_micros(1_999)), ..waiter(8, SessionId(2)) }],
            queue_length: 1,
            delay_remaining: Some(Duration::from_secs(4)),
            ..lock_without_holders("jobs")
        };
        let document = serde_json::to_value(lock).unwrap();
        let expected = json!({
            "name": "jobs",
            "kind": "lock",
            "mode": {"kind": "permit", "limit": 3},
            "holders": [{
                "token": 7, "session_id": "00000000000000000000000000000001", "label": "ann", "mode": {"kind": "shared"},
                "since_unix_ms": 1_000, "remaining_ms": 2_500, "revoked_reason": "stuck", "address": "10.0.0.7:5123",
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
