//! Background state during a measurement: held locks or live sessions.

use std::{
    fmt,
    ops::Range,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use futures::future::try_join_all;

use lockkeeper_client::{Error, Guard, Session};

use super::{
    BenchError, Latencies,
    target::{MeasuredCluster, close},
};

/// The number of sessions that hold the background locks.
const HOLDERS: usize = 256;

/// The background state of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Beside {
    /// There is no background state.
    #[default]
    Nothing,
    /// This number of locks is held, without competition for them.
    Locks(usize),
    /// This number of sessions is renewed, and they hold nothing.
    Sessions(usize),
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Locks(locks) => write!(f, "{locks} locks"),
            Self::Sessions(sessions) => write!(f, "{sessions} sessions"),
        }
    }
}

/// The background state. It only ever grows.
#[derive(Default)]
pub(super) struct Background {
    sessions: Vec<Session>,
    locks: usize,
}

impl Background {
    /// Grows the background state to this size.
    pub(super) async fn grow(&mut self, target: &MeasuredCluster, to: Beside) -> Result<(), BenchError> {
        let sessions = match to {
            Beside::Nothing => return Ok(()),
            Beside::Locks(_) => HOLDERS,
            Beside::Sessions(sessions) => sessions,
        };

        self.sessions.extend(target.sessions(sessions.saturating_sub(self.sessions.len())).await?);

        if let Beside::Locks(locks) = to {
            hold(&target.prefix, &self.sessions, self.locks..locks).await?;
            self.locks = self.locks.max(locks);
        }

        Ok(())
    }

    pub(super) async fn close(self) {
        close(self.sessions).await;
    }
}

/// Acquires the locks with these numbers, one at a time per session. The locks stay held until their sessions end.
pub(super) async fn hold(prefix: &str, sessions: &[Session], numbers: Range<usize>) -> Result<Latencies, Error> {
    let latencies = Mutex::new(Latencies::default());

    let hold = |worker: usize| {
        let latencies = &latencies;
        let numbers = numbers.clone();
        async move {
            for number in numbers.skip(worker).step_by(sessions.len()) {
                let began = Instant::now();
                let held = sessions[worker].acquire(&format!("{prefix}held/{number}")).await?;

                latencies.lock().unwrap_or_else(PoisonError::into_inner).record(began.elapsed());
                keep(held);
            }
            Ok::<(), Error>(())
        }
    };

    try_join_all((0..sessions.len()).map(hold)).await?;
    Ok(latencies.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Forgets the guard, so that the grant ends with its session. A drop would release each of a million locks by a
/// separate call.
fn keep(held: Guard) {
    std::mem::forget(held);
}
