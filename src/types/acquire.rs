//! What an acquire asks for.

use std::sync::Arc;

use super::{values::number, *};
use crate::limits::*;

/// One lock of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// The lock's name.
    pub name: LockName,
    /// The mode to hold it in.
    pub mode: Mode,
    /// The data to set when the lock is granted. `None` leaves the present data.
    pub data: Option<Data>,
    /// Whether the data stays when the grant ends.
    pub keep_data: bool,
    /// Whether the acquire is refused if the lock does not exist when it arrives. A lock exists while it is held, awaited or
    /// delayed, or carries data.
    pub must_exist: bool,
}

/// How long an acquire waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// The acquire does not wait.
    Never,
    /// The acquire waits at most this many milliseconds, 1 to [`WAIT_MS_MAX`].
    Millis(u64),
    /// The acquire waits as long as its session lives.
    Forever,
}

/// An acquire of 1 to [`WANTS_MAX`] locks, all or nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acquire {
    /// Sorted by name, no name twice: see [`Acquire::new`].
    wants: Arc<[Want]>,
    /// How long to wait.
    pub wait: Wait,
    /// How long the locks stay closed if this holder is lost, milliseconds: 0 to [`LOCK_DELAY_MS_MAX`].
    pub lock_delay_ms: u32,
}

/// In messages: the number of the locks.
const NUMBER: &str = "the number of locks in one acquire";

fn ensure_bounded(wants: usize, wait: Wait, lock_delay_ms: u32) -> Result<(), Invalid> {
    number(NUMBER, wants, 1, WANTS_MAX)?;
    if let Wait::Millis(ms) = wait {
        number("the wait in milliseconds", ms, 1, WAIT_MS_MAX)?;
    }
    number("the lock-delay in milliseconds", lock_delay_ms, 0, LOCK_DELAY_MS_MAX)?;
    Ok(())
}

impl Want {
    fn check_limits(&self) -> Result<(), Invalid> {
        self.name.check_limits()?;
        self.mode.permits().map_or(Ok(()), Permits::check_limits)?;
        self.data.as_ref().map_or(Ok(()), Data::check_limits)
    }
}

impl Wait {
    /// A wait of this many milliseconds. 0 means no wait. Fails over [`WAIT_MS_MAX`].
    pub fn from_millis(ms: u64) -> Result<Self, Invalid> {
        match number("the wait in milliseconds", ms, 0, WAIT_MS_MAX)? {
            0 => Ok(Self::Never),
            ms => Ok(Self::Millis(ms)),
        }
    }

    /// Like `from_millis`, but of any length: see the [crate](crate).
    pub fn from_log(ms: u64) -> Self {
        if ms == 0 { Self::Never } else { Self::Millis(ms) }
    }
}

/// Fails on a lock-delay over [`LOCK_DELAY_MS_MAX`].
pub fn ensure_lock_delay(ms: u32) -> Result<(), Invalid> {
    number("the lock-delay in milliseconds", ms, 0, LOCK_DELAY_MS_MAX).map(drop)
}

impl Acquire {
    /// Sorts the locks by name. Fails on none or more than [`WANTS_MAX`], on a name given twice, on a wait outside 1 to [`WAIT_MS_MAX`],
    /// and on a lock-delay over [`LOCK_DELAY_MS_MAX`].
    pub fn new(wants: Vec<Want>, wait: Wait, lock_delay_ms: u32) -> Result<Self, Invalid> {
        ensure_bounded(wants.len(), wait, lock_delay_ms)?;
        Self::from_log(wants, wait, lock_delay_ms)
    }

    /// Like `new`, but of any number and duration: see the [crate](crate). Fails on no lock, and on a name given twice.
    pub fn from_log(mut wants: Vec<Want>, wait: Wait, lock_delay_ms: u32) -> Result<Self, Invalid> {
        if wants.is_empty() {
            return Err(Invalid::new(format!("{NUMBER} is 0: give it 1 to {WANTS_MAX}")));
        }
        wants.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = wants.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(Invalid(format!("the lock {:?} is named twice in one acquire: name it once", pair[0].name)));
        }
        Ok(Self { wants: wants.into(), wait, lock_delay_ms })
    }

    /// Fails on what is beyond a limit, in it or in its locks.
    pub fn check_limits(&self) -> Result<(), Invalid> {
        ensure_bounded(self.wants.len(), self.wait, self.lock_delay_ms)?;
        self.wants.iter().try_for_each(Want::check_limits)
    }

    /// Sorted by name, no name twice.
    pub fn wants(&self) -> &[Want] {
        &self.wants
    }
}
