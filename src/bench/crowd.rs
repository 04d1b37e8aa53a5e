//! What is in the table while something else is measured: locks that are held, sessions that live.

use std::{
    fmt,
    ops::Range,
    sync::{Mutex, PoisonError},
    time::Instant,
};

use futures::future::try_join_all;

use super::{
    BenchError, Latencies,
    target::{Target, close},
};
use crate::client::{Error, Guard, Session};

/// Who acquires locks that are just held, where nobody says otherwise.
const HOLDERS: usize = 256;

/// What there is beside the work that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Beside {
    /// Nothing.
    #[default]
    Nothing,
    /// So many locks that are held, and that nobody else wants.
    Locks(usize),
    /// So many sessions that are renewed, and hold nothing.
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

/// It only grows.
#[derive(Default)]
pub(super) struct Crowd {
    sessions: Vec<Session>,
    locks: usize,
}

impl Crowd {
    /// Until there are so many.
    pub(super) async fn grow(&mut self, target: &Target, to: Beside) -> Result<(), BenchError> {
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

/// Acquires locks with these numbers, each session one at a time. They are held until their sessions end.
pub(super) async fn hold(prefix: &str, sessions: &[Session], numbers: Range<usize>) -> Result<Latencies, Error> {
    let latencies = Mutex::new(Latencies::default());
    let hold = |worker: usize| {
        let (latencies, numbers) = (&latencies, numbers.clone());
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

/// It ends with its session. Were it dropped, each of a million would be released by a call of its own.
fn keep(held: Guard) {
    std::mem::forget(held);
}
