//! The caller of a request, and the request's deadline.

use std::{fmt, time::Duration};

use tokio::time::{Instant, sleep_until};

use lockkeeper_machine::{Address, Identity};
use lockkeeper_policy::TokenHash;
use lockkeeper_traces::Origin;

/// The origin of a request, and its deadline.
///
/// Made by the adapter at the node that the client is connected to. A forwarded request carries it, so the leader sees the client, not
/// the follower.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// The client's address. `None`: an older peer forwarded the request without it.
    pub(crate) remote: Option<Address>,
    /// `None`: an anonymous client. A stream's requests have the identity of the request that opened it.
    pub(crate) identity: Option<Identity>,
    /// The token that showed the identity, at the node that the client is connected to: a stream ends when it is withdrawn.
    pub(crate) token: Option<TokenHash>,
    /// The identity was shown by a certificate of the cluster that this one was restored from, which counts for a time.
    pub(crate) is_of_earlier: bool,
    /// A member asks for itself, such as a node that joins: at the peers' port, and not for a client. No policy concerns it.
    pub(crate) is_peer: bool,
    /// The request gives something up for its client: it is executed while the node drains, too.
    pub(crate) is_withdrawal: bool,
    /// `None`: the caller waits without limit.
    pub(crate) deadline: Option<Deadline>,
    /// The trace that the request belongs to.
    pub(crate) origin: Origin,
}

impl Caller {
    /// Whose resources of this node it takes: its identity's; without one, those of its host.
    pub(crate) fn owner(&self) -> String {
        match (&self.identity, &self.remote) {
            (Some(identity), _) => format!("identity {identity}"),
            (None, Some(remote)) => remote.to_string(),
            (None, None) => String::new(),
        }
    }

    /// The client's identity and address as this node's log shows them.
    pub(crate) fn shown(&self) -> impl fmt::Display {
        let address = self.remote.map_or_else(|| "unknown".to_owned(), |remote| remote.to_string());
        self.identity.as_ref().map_or_else(|| address.clone(), |identity| format!("{identity} at {address}"))
    }
}

/// The deadline of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    /// At this moment.
    pub(crate) fn at(moment: Instant) -> Self {
        Self(moment)
    }

    /// The remaining time; zero once it has passed.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether it has passed.
    pub(crate) fn has_passed(self) -> bool {
        self.left().is_zero()
    }

    /// Returns when it passes; never, if there is none.
    pub(crate) async fn pass(deadline: Option<Self>) {
        match deadline {
            Some(Self(at)) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}
