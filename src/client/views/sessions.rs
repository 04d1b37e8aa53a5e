//! Sessions and the revocations of their grants.

use std::time::Duration;

use super::{address, each, given, session_id};
use crate::Error;
#[cfg(feature = "serde")]
use crate::json;
use lockkeeper_proto::v1;
use lockkeeper_types::{Address, SessionId, Token, WallTime};

/// The answer of [`Client::sessions`](crate::Client::sessions).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionPage {
    /// Sorted by id.
    pub sessions: Vec<SessionInfo>,
    /// Where the next page begins, unless this was the last one.
    pub next_page_token: Option<String>,
    /// The log index at which the cluster read them.
    pub index: u64,
}

/// A session.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SessionInfo {
    /// Its id.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::text"))]
    pub session_id: SessionId,
    /// Its label.
    pub label: String,
    /// How long it lives without a renewal.
    #[cfg_attr(feature = "serde", serde(rename = "ttl_ms", serialize_with = "json::millis"))]
    pub ttl: Duration,
    /// Time left until it expires if it is not renewed.
    #[cfg_attr(feature = "serde", serde(rename = "remaining_ms", serialize_with = "json::millis"))]
    pub remaining: Duration,
    /// When it was opened, by the wall clock of the leader at that time. For people only.
    #[cfg_attr(feature = "serde", serde(rename = "opened_unix_ms", serialize_with = "json::unix_millis"))]
    pub opened: WallTime,
    /// Number of its grants.
    pub grants: u32,
    /// Number of its waiting acquires.
    pub waits: u32,
    /// Approximate size in the cluster's table, bytes: its grants, its waits and its stored replies.
    pub bytes: u64,
    /// The address from which it was opened, as the node saw it that took the call, if that is known.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::some_text"))]
    pub address: Option<Address>,
    /// The identity that it belongs to, which nobody else can use. A client without an identity opens sessions without one.
    pub owner: Option<String>,
}

/// A grant that an operator revoked. Renewals no longer extend it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Revocation {
    /// The grant.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::token"))]
    pub token: Token,
    /// The operator's reason.
    pub reason: String,
    /// How long the lock stays closed if the holder does not release it. Zero: it is open and the grant is over.
    #[cfg_attr(feature = "serde", serde(rename = "remaining_ms", serialize_with = "json::millis"))]
    pub remaining: Duration,
}

impl SessionPage {
    pub(crate) fn from_wire(wire: v1::ListSessionsResponse) -> Result<Self, Error> {
        let v1::ListSessionsResponse { sessions, next_page_token, index } = wire;
        Ok(Self { sessions: each(sessions, SessionInfo::from_wire)?, next_page_token: given(next_page_token), index })
    }
}

impl SessionInfo {
    fn from_wire(wire: v1::SessionInfo) -> Result<Self, Error> {
        Ok(Self {
            session_id: session_id("session.session_id", &wire.session_id)?,
            label: wire.label,
            ttl: Duration::from_millis(wire.ttl_ms.into()),
            remaining: Duration::from_millis(wire.remaining_ms),
            opened: WallTime(wire.opened_unix_ms),
            grants: wire.grants,
            waits: wire.waits,
            bytes: wire.bytes,
            address: address("session.address", &wire.address)?,
            owner: given(wire.owner),
        })
    }
}

impl Revocation {
    pub(crate) fn from_wire(wire: v1::Revocation) -> Self {
        let v1::Revocation { token, reason, remaining_ms } = wire;
        Self { token: Token(token), reason, remaining: Duration::from_millis(remaining_ms) }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::malformed, *};

    #[test]
    fn a_session_keeps_every_value() {
        let wire = v1::SessionInfo {
            session_id: SessionId(1).to_string(),
            label: "ann".to_owned(),
            ttl_ms: 10_000,
            remaining_ms: 9_000,
            opened_unix_ms: 1_000,
            grants: 2,
            waits: 3,
            bytes: 4,
            address: "[::1]:7101".to_owned(),
            owner: "shop-1".to_owned(),
        };
        let expected = SessionInfo {
            session_id: SessionId(1),
            label: "ann".to_owned(),
            ttl: Duration::from_secs(10),
            remaining: Duration::from_secs(9),
            opened: WallTime(1_000),
            grants: 2,
            waits: 3,
            bytes: 4,
            address: Some("[::1]:7101".parse().unwrap()),
            owner: Some("shop-1".to_owned()),
        };
        let page = |session, token: &str| {
            let next_page_token = token.to_owned();
            SessionPage::from_wire(v1::ListSessionsResponse { sessions: vec![session], next_page_token, index: 42 })
        };
        let next_page_token = Some("1".to_owned());
        let expected = SessionPage { sessions: vec![expected], next_page_token, index: 42 };
        assert_eq!(page(wire.clone(), "1").unwrap(), expected);
        let unknown = page(v1::SessionInfo { address: String::new(), ..wire.clone() }, "").unwrap();
        assert_eq!((unknown.sessions[0].address, unknown.next_page_token), (None, None));
        let wrong = malformed(page(v1::SessionInfo { address: "host".to_owned(), ..wire.clone() }, ""));
        assert_eq!(wrong, ("session.address", "host".to_owned()));
        let wrong = malformed(page(v1::SessionInfo { session_id: String::new(), ..wire }, ""));
        assert_eq!(wrong, ("session.session_id", String::new()));
    }

    #[test]
    fn a_revocation_keeps_every_value() {
        let wire = v1::Revocation { token: 7, reason: "stuck".to_owned(), remaining_ms: 300 };
        let expected =
            Revocation { token: Token(7), reason: "stuck".to_owned(), remaining: Duration::from_millis(300) };
        assert_eq!(Revocation::from_wire(wire), expected);
    }
}
