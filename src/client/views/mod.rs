//! The replies of the cluster in the client's own types.
//!
//! The messages of the wire have strings for names and ids, 0 for "none" and numbers for durations. These types have the values of
//! [`lockkeeper_types`], `Option` and [`Duration`], and do not change when the messages do. So the wire appears nowhere in the interface of
//! this crate.
//!
//! A value that has no meaning, such as a session id that is not hexadecimal, fails with [`Error::Malformed`]. A value that only a later
//! version knows does not: an enumeration has a variant `Other` for it.
//!
//! Left out: limits that only the cluster enforces, such as the size of data. A later version may raise them.

mod busiest;
mod busy;
mod changes;
mod locks;
mod operators;
mod sessions;
mod status;

use std::time::Duration;

use super::Error;
use lockkeeper_proto::v1::{self, mode::Kind};
use lockkeeper_types::{Address, LockName, Mode, Permits, SessionId};

pub use self::{
    busiest::{AskBusiest, Busiest, BusyLock, LongWait, Totals},
    busy::Busy,
    changes::{Change, ChangeKind, Changes, StatePart, WatchMessage},
    locks::{CheckAnswer, Holder, LockAnswer, LockInfo, LockKind, LockPage, Waiter},
    operators::{DroppedData, Forced, Resized},
    sessions::{Revocation, SessionInfo, SessionPage},
    status::{EarlierCluster, Member, NodeStatus, Role},
};

fn name(field: &'static str, name: &str) -> Result<LockName, Error> {
    LockName::new(name).map_err(|_| Error::malformed(field, name))
}

fn session_id(field: &'static str, id: &str) -> Result<SessionId, Error> {
    id.parse().map_err(|_| Error::malformed(field, id))
}

/// On the wire, an empty address is not known.
fn address(field: &'static str, address: &str) -> Result<Option<Address>, Error> {
    if address.is_empty() { Ok(None) } else { address.parse().map(Some).map_err(|_| Error::malformed(field, address)) }
}

/// Returns `None` if the mode is unset, or if only a later version knows it.
fn mode(field: &'static str, mode: Option<v1::Mode>) -> Result<Option<Mode>, Error> {
    Ok(match mode.and_then(|mode| mode.kind) {
        None => None,
        Some(Kind::Exclusive(_)) => Some(Mode::Exclusive),
        Some(Kind::Shared(_)) => Some(Mode::Shared),
        Some(Kind::Permit(permit)) => {
            let permits = Permits::new(permit.limit).map_err(|_| Error::malformed(field, &permit.limit.to_string()))?;
            Some(Mode::Permit(permits))
        }
    })
}

/// On the wire, an empty text means that there is none.
fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// On the wire, 0 is none.
fn set(value: u64) -> Option<u64> {
    Some(value).filter(|value| *value != 0)
}

/// On the wire, 0 is none.
fn set_millis(ms: u64) -> Option<Duration> {
    set(ms).map(Duration::from_millis)
}

fn each<W, T>(messages: Vec<W>, convert: impl Fn(W) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    messages.into_iter().map(convert).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The field and the value of an [`Error::Malformed`].
    pub(crate) fn malformed<T: std::fmt::Debug>(result: Result<T, Error>) -> (&'static str, String) {
        match result {
            Err(Error::Malformed { field, value }) => (field, value),
            other => panic!("not malformed: {other:?}"),
        }
    }

    fn of_kind(kind: Option<Kind>) -> Option<v1::Mode> {
        Some(v1::Mode { kind })
    }

    fn permit(limit: u32) -> Option<v1::Mode> {
        of_kind(Some(Kind::Permit(v1::mode::Permit { limit })))
    }

    #[test]
    fn a_mode_of_a_later_version_is_none_and_an_impossible_one_is_malformed() {
        let modes = [
            (None, None),
            (of_kind(None), None),
            (of_kind(Some(Kind::Exclusive(v1::mode::Exclusive {}))), Some(Mode::Exclusive)),
            (of_kind(Some(Kind::Shared(v1::mode::Shared {}))), Some(Mode::Shared)),
            (permit(3), Some(Mode::Permit(Permits::new(3).unwrap()))),
        ];
        for (wire, expected) in modes {
            assert_eq!(mode("mode", wire).unwrap(), expected);
        }
        assert_eq!(malformed(mode("mode", permit(0))), ("mode", "0".to_owned()));
        assert_eq!(malformed(mode("mode", permit(1_000_001))), ("mode", "1000001".to_owned()));
    }

    #[test]
    fn zero_and_empty_are_none() {
        assert_eq!((given(String::new()), given("a".to_owned())), (None, Some("a".to_owned())));
        assert_eq!((set(0), set(7)), (None, Some(7)));
        assert_eq!((set_millis(0), set_millis(7)), (None, Some(Duration::from_millis(7))));
    }
}
