//! The caller of a request, and the request's deadline.

use std::{fmt, time::Duration};

use tokio::time::{Instant, sleep_until};

use lockkeeper_machine::Address;

/// Where a request comes from, and until when its answer is of use.
///
/// Made by the adapter at the node that the client is connected to. A request that is forwarded takes it along, so the leader sees the
/// client, not the follower between them. An authenticated identity belongs here too, once a protocol brings one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// The client's end of its connection. `None`: an older peer forwarded the request and did not name it.
    pub(crate) remote: Option<Address>,
    /// `None`: the caller waits for as long as it takes.
    pub(crate) deadline: Option<Deadline>,
}

impl Caller {
    /// The client's address as this node's log shows it.
    pub(crate) fn shown(&self) -> impl fmt::Display {
        self.remote.map_or_else(|| "unknown".to_owned(), |remote| remote.to_string())
    }
}

/// When a request must be answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// At this moment.
    pub(crate) fn at(moment: Instant) -> Self {
        Self(moment)
    }

    /// The time until then; zero once it has passed.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(self) -> bool {
        self.left().is_zero()
    }

    /// Returns when it passes; never, where there is none.
    pub(crate) async fn pass(deadline: Option<Self>) {
        match deadline {
            Some(Self(at)) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}
