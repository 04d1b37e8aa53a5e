//! The options of an acquire: locks, mode and wait.

use std::time::Duration;

use clap::Args;

use crate::machine::{self, Data, Invalid, LockName, Mode, Permits, Wait, Want};

/// The locks and their mode.
#[derive(Args, Debug, Default)]
pub(super) struct WantedLocks {
    /// The locks
    #[arg(required = true, value_name = "NAME")]
    pub(super) names: Vec<String>,
    #[command(flatten)]
    pub(super) waiting: WaitOptions,
    /// Hold the locks in shared mode, together with other sharers
    #[arg(long)]
    shared: bool,
    /// Hold one of N permits (a semaphore); all users of a lock give the same N
    #[arg(long, conflicts_with = "shared", value_name = "N")]
    permits: Option<u32>,
    /// Set this data on the locks
    #[arg(long)]
    data: Option<String>,
    /// Keep the data on the locks after release
    #[arg(long)]
    keep_data: bool,
    /// Refuse a lock that does not exist: without holder, waiter and data
    #[arg(long)]
    must_exist: bool,
    /// If the holder is lost, keep the locks closed for this time: 30s, for example
    #[arg(long, value_parser = super::arguments::duration, value_name = "TIME")]
    lock_delay: Option<Duration>,
}

/// The time limit of the wait.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(super) struct WaitOptions {
    /// Wait at most this time: 500ms, 30s or 10m, for example. Without it, wait without a limit
    #[arg(long, value_parser = super::arguments::duration, value_name = "TIME")]
    wait: Option<Duration>,
    /// Do not wait
    #[arg(long = "try", conflicts_with = "wait")]
    no_wait: bool,
}

impl WantedLocks {
    /// One lock with data, and no other option.
    pub(super) fn with_data(name: String, data: String, waiting: WaitOptions) -> Self {
        Self { names: vec![name], data: Some(data), waiting, ..Self::default() }
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
        // A delay that does not fit is refused by `Acquire::new`, which names the limit.
        machine::Acquire::new(wants, self.waiting.wait()?, u32::try_from(lock_delay_ms).unwrap_or(u32::MAX))
    }
}

impl WaitOptions {
    fn wait(self) -> Result<Wait, Invalid> {
        match (self.no_wait, self.wait) {
            (true, _) => Ok(Wait::Never),
            (false, Some(limit)) => Wait::from_millis(millis(limit)),
            (false, None) => Ok(Wait::Forever),
        }
    }
}

/// Rounds up: a wait of half a millisecond must not become a wait of zero, which means "do not wait".
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
