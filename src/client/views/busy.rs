//! Why an acquire did not get its locks.

use std::time::Duration;

use super::{Holder, name, set_millis};
use crate::Error;
use lockkeeper_proto::v1;
use lockkeeper_types::LockName;

/// Why an acquire did not get its locks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Busy {
    /// The first of the requested locks that was not available.
    pub name: LockName,
    /// One of its holders.
    pub holder: Option<Holder>,
    /// Number of the acquires that wait for it.
    pub queue_length: u64,
    /// Time left of its lock-delay, if it has one.
    pub delay_remaining: Option<Duration>,
}

impl Busy {
    pub(crate) fn from_wire(wire: v1::Busy) -> Result<Self, Error> {
        let v1::Busy { name: lock, holder, queue_length, delay_remaining_ms } = wire;
        Ok(Self {
            name: name("busy.name", &lock)?,
            holder: holder.map(Holder::from_wire).transpose()?,
            queue_length,
            delay_remaining: set_millis(delay_remaining_ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::malformed, *};
    use lockkeeper_types::SessionId;

    #[test]
    fn a_busy_lock_is_described_by_its_holder_or_its_delay() {
        let holder = v1::Holder { token: 7, session_id: SessionId(1).to_string(), ..v1::Holder::default() };
        let wire =
            v1::Busy { name: "jobs".to_owned(), holder: Some(holder.clone()), queue_length: 3, delay_remaining_ms: 0 };
        let (name, holder) = (LockName::new("jobs").unwrap(), Some(Holder::from_wire(holder).unwrap()));
        let expected = Busy { name, holder, queue_length: 3, delay_remaining: None };
        assert_eq!(Busy::from_wire(wire.clone()).unwrap(), expected);
        let delay_remaining = Some(Duration::from_millis(1));
        let expected = Busy { holder: None, delay_remaining, ..expected };
        assert_eq!(
            Busy::from_wire(v1::Busy { holder: None, delay_remaining_ms: 1, ..wire.clone() }).unwrap(),
            expected
        );
        assert_eq!(
            malformed(Busy::from_wire(v1::Busy { name: "a\0".to_owned(), ..wire })),
            ("busy.name", "a\0".to_owned())
        );
    }
}
