//! The caller of a request, and the request's deadline.

use std::{fmt, time::Duration};

use tokio::time::{Instant, sleep_until};

use lockkeeper_accept::origin;
use lockkeeper_machine::{Address, Identity};
use lockkeeper_policy::TokenHash;
use lockkeeper_traces::Origin;
use lockkeeper_transport::tls::ShownCertificate;

/// The sender of a request, and the request's deadline.
///
/// The adapter at the node that the client is connected to makes it. A forwarded request carries it, so the leader sees the client, not the
/// follower.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// The client's address. It is missing if an older peer forwarded the request without it.
    pub(crate) remote: Option<Address>,
    /// The client's identity, unless it is anonymous. A stream's requests have the identity of the request that opened it.
    pub(crate) identity: Option<Identity>,
    /// The token that showed the identity, at the node that the client is connected to. A stream ends when its token is withdrawn.
    pub(crate) token: Option<TokenHash>,
    /// The certificate that showed the identity, at that node. A stream ends when it counts no more.
    pub(crate) certificate: Option<ShownCertificate>,
    /// Whether the identity was shown by a certificate of the cluster that this one was restored from, which counts for a time.
    pub(crate) is_of_earlier: bool,
    /// Whether a member asks for itself at the peers' port, such as a node that joins, and not for a client. No policy concerns it.
    pub(crate) is_peer: bool,
    /// Whether the request gives something up for its client. Such a request is executed even while the node drains.
    pub(crate) is_withdrawal: bool,
    /// The deadline. Without one, the caller waits without limit.
    pub(crate) deadline: Option<Deadline>,
    /// The term in which this node must lead to execute the request, which is a transaction. It goes to no other node.
    pub(crate) term: Option<u64>,
    /// The trace that the request belongs to.
    pub(crate) origin: Origin,
}

impl Caller {
    /// The name under which this node counts the resources that the caller takes: its identity or, without one, its host. The connection
    /// is not part of it, or a host would have as many shares as it opens connections.
    pub(crate) fn owner(&self) -> String {
        match (&self.identity, &self.remote) {
            (Some(identity), _) => format!("identity {identity}"),
            (None, Some(remote)) => origin(remote.ip()).to_string(),
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
    /// A deadline at this moment.
    pub(crate) fn at(moment: Instant) -> Self {
        Self(moment)
    }

    /// The time that is left, or zero once the deadline has passed.
    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether the deadline has passed.
    pub(crate) fn has_passed(self) -> bool {
        self.left().is_zero()
    }

    /// Returns when the deadline passes, or never if there is none.
    pub(crate) async fn pass(deadline: Option<Self>) {
        match deadline {
            Some(Self(at)) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(remote: &str, identity: Option<&str>) -> String {
        let identity = identity.map(|name| Identity::new(name).expect("a name"));
        Caller { remote: Some(remote.parse().expect("an address")), identity, ..Caller::default() }.owner()
    }

    #[test]
    fn an_anonymous_caller_is_its_host_whatever_its_connection() {
        assert_eq!(owner("10.0.0.1:1", None), owner("10.0.0.1:2", None));
        assert_ne!(owner("10.0.0.1:1", None), owner("10.0.0.2:1", None));
        // All addresses of a network of IPv6 are one host.
        assert_eq!(owner("[2001:db8::1]:1", None), owner("[2001:db8::2]:1", None));
        assert_eq!(owner("10.0.0.1:1", Some("ann")), owner("10.0.0.2:1", Some("ann")));
        assert_ne!(owner("10.0.0.1:1", Some("ann")), owner("10.0.0.1:1", None));
    }
}
