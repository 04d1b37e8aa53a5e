//! What to acquire, and how long to wait for it, as options of the commands that do.

use std::time::Duration;

use clap::Args;

use crate::machine::{self, Data, Invalid, LockName, Mode, Permits, Wait, Want};

/// The locks, and how they are to be held.
#[derive(Args, Debug, Default)]
pub(super) struct Wanted {
    /// The locks.
    #[arg(required = true, value_name = "NAME")]
    pub(super) names: Vec<String>,
    #[command(flatten)]
    pub(super) patience: Patience,
    /// Hold it together with any number of other sharers.
    #[arg(long)]
    shared: bool,
    /// Hold one of so many permits.
    #[arg(long, conflicts_with = "shared", value_name = "N")]
    permits: Option<u32>,
    /// Set this data on the lock.
    #[arg(long)]
    data: Option<String>,
    /// Keep the data on the lock after release.
    #[arg(long)]
    keep_data: bool,
    /// Refuse what does not exist: a lock that nobody holds or awaits, and that carries no data.
    #[arg(long)]
    must_exist: bool,
    /// If the holder is lost, keep the locks closed that long: 30s, for example.
    #[arg(long, value_parser = super::arguments::duration, value_name = "TIME")]
    lock_delay: Option<Duration>,
}

/// How long to wait.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct Patience {
    /// Wait that long at most: 500ms, 30s or 10m, for example. Otherwise, as long as it takes.
    #[arg(long, value_parser = super::arguments::duration, value_name = "TIME")]
    wait: Option<Duration>,
    /// Do not wait.
    #[arg(long = "try", conflicts_with = "wait")]
    no_wait: bool,
}

impl Wanted {
    /// One lock with data, and otherwise as if no option was given.
    pub(super) fn of(name: String, data: String, patience: Patience) -> Self {
        Self { names: vec![name], data: Some(data), patience, ..Self::default() }
    }

    pub(super) fn acquire(&self) -> Result<machine::Acquire, Invalid> {
        let mode = match (self.shared, self.permits) {
            (true, _) => Mode::Shared,
            (false, Some(permits)) => Mode::Permit(Permits::new(permits)?),
            (false, None) => Mode::Exclusive,
        };
        let data = self.data.as_deref().map(|data| Data::new(data.as_bytes())).transpose()?;
        let want = |name: &String| {
            let name = LockName::new(name)?;
            Ok(Want { name, mode, data: data.clone(), keep_data: self.keep_data, must_exist: self.must_exist })
        };
        let wants = self.names.iter().map(want).collect::<Result<_, Invalid>>()?;
        let lock_delay_ms = millis(self.lock_delay.unwrap_or_default());
        machine::Acquire::new(wants, self.patience.wait()?, u32::try_from(lock_delay_ms).unwrap_or(u32::MAX))
    }
}

impl Patience {
    fn wait(self) -> Result<Wait, Invalid> {
        match (self.no_wait, self.wait) {
            (true, _) => Ok(Wait::Never),
            (false, Some(limit)) => Wait::from_millis(millis(limit)),
            (false, None) => Ok(Wait::Forever),
        }
    }
}

/// Rounded up: somebody who waits half a millisecond wants to wait.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
