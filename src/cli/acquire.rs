//! `acquire`: takes locks in a session that outlives this command.
//!
//! Whatever goes wrong, the session holds nothing afterwards that nobody knows the token of: a wait that is interrupted, an acquire whose
//! answer does not come, a token that cannot be printed are all taken back, as far as the cluster can be reached. Where it cannot, that
//! is said, and closing the session helps.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{
    Cluster, Exit, Failure,
    job::Signals,
    output::{Format, Output, print, print_document},
    session,
};
use crate::{
    client::{AttachedAcquire, AttachedSession, Error},
    machine::{self, Data, Invalid, LockName, Mode, Permits, Token, Wait, Want},
};

/// Acquires a lock in a session, or several at once, all or nothing, and prints the token.
///
/// They are held until `release`, or until the session ends. Exit code 10 says that they were not to be had, or not in time.
#[derive(Args, Debug)]
pub(super) struct Acquire {
    #[command(flatten)]
    within: session::In,
    /// The locks.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Wait that long at most. Otherwise, as long as it takes and the session lives.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    wait: Option<Duration>,
    /// Do not wait.
    #[arg(long = "try", conflicts_with = "wait")]
    no_wait: bool,
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
    /// If the session is lost, keep the locks closed that long.
    #[arg(long, value_parser = humantime::parse_duration, value_name = "TIME")]
    lock_delay: Option<Duration>,
    #[command(flatten)]
    cluster: Cluster,
    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Document {
    token: u64,
    names: Vec<String>,
    session_id: String,
}

impl Acquire {
    pub(super) async fn run(self) -> Result<Exit, Failure> {
        let mut signals = Signals::new()?;
        let request = self.request().map_err(Error::from)?;
        let session = self.cluster.client()?.attach(self.within.session);
        let mut acquire = session.acquire(request);
        let granted = tokio::select! {
            granted = acquire.granted() => granted,
            signal = signals.next() => {
                give_up(acquire).await?;
                return Ok(Exit::Signal(signal.as_raw()));
            }
        };
        let token = match granted {
            Ok(token) => token,
            Err(Error::Unknown { why }) => {
                give_up(acquire).await?;
                let why = format!("no answer in time (last: {why}); the acquire was taken back: try again");
                return Err(Failure::new(Exit::NoCluster, why));
            }
            Err(error) => return Err(error.into()),
        };
        match self.print(&session, token) {
            Ok(()) => Ok(Exit::Success),
            Err(error) => {
                session.release(token).await.map_err(Failure::of_holder)?;
                Err(Failure::new(Exit::Error, format!("nobody read the token, so it was released: {error}")))
            }
        }
    }

    fn request(&self) -> Result<machine::Acquire, Invalid> {
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
        let wait = match (self.no_wait, self.wait) {
            (true, _) => Wait::Never,
            (false, Some(limit)) => Wait::from_millis(millis(limit))?,
            (false, None) => Wait::Forever,
        };
        let lock_delay_ms = millis(self.lock_delay.unwrap_or_default());
        machine::Acquire::new(wants, wait, u32::try_from(lock_delay_ms).unwrap_or(u32::MAX))
    }

    /// As the grant has them, and as `lock` tells them.
    fn sorted_names(&self) -> Vec<String> {
        let mut names = self.names.clone();
        names.sort();
        names
    }

    fn print(&self, session: &AttachedSession, token: Token) -> std::io::Result<()> {
        match self.output.output {
            Format::Text => print(&format!("{}\n", token.0)),
            Format::Json => print_document(&Document {
                token: token.0,
                names: self.sorted_names(),
                session_id: session.id().to_string(),
            }),
        }
    }
}

async fn give_up(acquire: AttachedAcquire) -> Result<(), Failure> {
    acquire.abandon().await.map_err(|error| {
        let message =
            format!("the acquire was not taken back ({error}): close the session to be sure that it holds nothing");
        Failure::new(Exit::Unknown, message)
    })
}

/// Rounded up: somebody who waits half a millisecond wants to wait.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
