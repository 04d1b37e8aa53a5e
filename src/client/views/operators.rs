//! The results of operators' calls.

use std::time::Duration;

use super::{given, session_id};
use crate::Error;
#[cfg(feature = "serde")]
use crate::json;
use lockkeeper_proto::v1::{self, force_release_response};
use lockkeeper_types::{SessionId, Token};

/// A grant that [`Client::force_release`](crate::Client::force_release) revoked.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Forced {
    /// The grant.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::token"))]
    pub token: Token,
    /// Its session.
    #[cfg_attr(feature = "serde", serde(serialize_with = "json::text"))]
    pub session_id: SessionId,
    /// The label of its session.
    pub label: String,
    /// Time left for the holder if it does not release. Zero: the grant is over.
    #[cfg_attr(feature = "serde", serde(rename = "remaining_ms", serialize_with = "json::millis"))]
    pub remaining: Duration,
    /// How long lock-delays then keep the lock closed. Zero: it is open.
    #[cfg_attr(feature = "serde", serde(rename = "lock_delay_ms", serialize_with = "json::millis"))]
    pub lock_delay: Duration,
}

/// The answer of [`Client::drop_data`](crate::Client::drop_data).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DroppedData {
    /// Number of locks whose data this call dropped.
    pub dropped: u64,
    /// There are more locks under the prefix: call again with this value as `after`. Without it, these were all.
    pub more_after: Option<String>,
}

/// The answer of [`Client::resize`](crate::Client::resize).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resized {
    /// The size before.
    pub permits_before: u32,
    /// Number of its holders now, with those that the new size let in at once; many are let in a little later.
    pub holder_count: u64,
    /// Number of its waiters now.
    pub queue_length: u64,
}

impl Forced {
    pub(crate) fn from_wire(wire: force_release_response::Forced) -> Result<Self, Error> {
        Ok(Self {
            token: Token(wire.token),
            session_id: session_id("forced.session_id", &wire.session_id)?,
            label: wire.label,
            remaining: Duration::from_millis(wire.remaining_ms),
            lock_delay: Duration::from_millis(wire.lock_delay_ms),
        })
    }
}

impl DroppedData {
    pub(crate) fn from_wire(wire: v1::DropDataResponse) -> Self {
        Self { dropped: wire.dropped, more_after: given(wire.more_after) }
    }
}

impl Resized {
    pub(crate) fn from_wire(wire: v1::ResizeResponse) -> Self {
        let v1::ResizeResponse { permits_before, holder_count, queue_length } = wire;
        Self { permits_before, holder_count, queue_length }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::malformed, *};

    #[test]
    fn a_forced_grant_keeps_every_value() {
        let wire = force_release_response::Forced {
            token: 7,
            session_id: SessionId(1).to_string(),
            label: "ann".to_owned(),
            remaining_ms: 300,
            lock_delay_ms: 5_000,
        };
        let expected = Forced {
            token: Token(7),
            session_id: SessionId(1),
            label: "ann".to_owned(),
            remaining: Duration::from_millis(300),
            lock_delay: Duration::from_secs(5),
        };
        assert_eq!(Forced::from_wire(wire.clone()).unwrap(), expected);
        let wrong = malformed(Forced::from_wire(force_release_response::Forced { session_id: "1".to_owned(), ..wire }));
        assert_eq!(wrong, ("forced.session_id", "1".to_owned()));
    }

    #[test]
    fn the_last_part_of_the_dropped_data_names_no_other() {
        let of = |more_after: &str| {
            DroppedData::from_wire(v1::DropDataResponse { dropped: 3, more_after: more_after.to_owned() })
        };
        assert_eq!(of("jobs"), DroppedData { dropped: 3, more_after: Some("jobs".to_owned()) });
        assert_eq!(of(""), DroppedData { dropped: 3, more_after: None });
    }

    #[test]
    fn a_resized_semaphore_keeps_every_value() {
        let wire = v1::ResizeResponse { permits_before: 1, holder_count: 2, queue_length: 3 };
        assert_eq!(Resized::from_wire(wire), Resized { permits_before: 1, holder_count: 2, queue_length: 3 });
    }
}
