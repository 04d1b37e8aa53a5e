//! Clients of the cluster that this one was restored from.
//!
//! A restored cluster has another id, and the certificates of all clients name the one before. Until a moment that the operator sets, such
//! a certificate shows the same identity as one of this cluster. After it, calls are refused with a message that says what to do, and
//! streams end. The ports let the certificates in ([`lockkeeper_transport::tls`]), since an end during the handshake explains nothing;
//! a caller that is refused here has got no further than one without a certificate.
//!
//! The wall clock decides, as it does for certificates.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::sleep;

use lockkeeper_config::EarlierClusterConfig;
use lockkeeper_environment::Clock;
use lockkeeper_machine::Identity;
use lockkeeper_transport::LogThrottle;

use crate::api::Error;

/// Identities that are remembered, so that each is logged once. Beyond them, none is logged.
const IDENTITIES_MAX: usize = 1024;
/// Longest time between two looks at the wall clock, which may be set.
const LOOK_MAX: Duration = Duration::from_secs(60);

/// The earlier cluster, and who came with its certificates.
#[derive(Debug)]
pub(crate) struct EarlierClients {
    own_id: String,
    id: String,
    until_ms: u64,
    /// The time as written in the configuration.
    until: String,
    clock: Arc<dyn Clock>,
    identities: Mutex<BTreeSet<Identity>>,
    refusals: LogThrottle,
}

impl EarlierClients {
    /// `own_id` is this cluster. Fails if the configuration names it as the earlier one.
    pub(crate) fn new(config: &EarlierClusterConfig, own_id: &str, clock: Arc<dyn Clock>) -> Result<Self, String> {
        if config.cluster_id == own_id {
            return Err(format!("earlier_cluster.cluster_id: {own_id:?} is this cluster: leave [earlier_cluster] out"));
        }
        let until_ms =
            config.until_ms().ok_or("earlier_cluster.until has no date, or a time without an offset: give a date")?;
        let id = config.cluster_id.clone();
        let until = config.until.to_string();
        let identities = Mutex::default();
        let refusals = LogThrottle::default();

        tracing::warn!(
            cluster = id,
            until,
            "client certificates of an earlier cluster are accepted: replace them before that date"
        );
        Ok(Self { own_id: own_id.to_owned(), id, until_ms, until, clock, identities, refusals })
    }

    /// The cluster's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Seconds until its clients are refused; negative: since they are.
    pub(crate) fn seconds_left(&self) -> i64 {
        let signed = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        (signed(self.until_ms) - signed(self.clock.wall_ms())).div_euclid(1000)
    }

    /// The identities that have shown a certificate of that cluster since the start of this node.
    pub(crate) fn clients(&self) -> u64 {
        self.identities.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    /// Notes that this identity came with a certificate of that cluster. Refuses it after the end.
    pub(crate) fn admit(&self, who: &Identity) -> Result<(), Error> {
        self.check(Some(who))?;
        let mut identities = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        if identities.len() < IDENTITIES_MAX && identities.insert(who.clone()) {
            let cluster = &self.id;
            let until = &self.until;
            tracing::info!(%who, cluster, until, "a client came with a certificate of the earlier cluster: give it one of this cluster");
        }
        Ok(())
    }

    /// Refuses its clients after the end.
    pub(crate) fn check(&self, who: Option<&Identity>) -> Result<(), Error> {
        if self.clock.wall_ms() < self.until_ms {
            return Ok(());
        }

        let Self { own_id, id, until, .. } = self;
        let who = who.map_or("NAME", Identity::as_str);
        if let Some(count) = self.refusals.count() {
            tracing::warn!(
                count,
                who,
                cluster = id,
                until,
                "requests were refused: certificates of the earlier cluster are no longer accepted"
            );
        }

        Err(Error::unauthenticated(format!(
            "the certificate is of cluster {id}, and this is cluster {own_id}, which accepted those until {until}: use one of {own_id}, \
             which `lockkeeper certs successor {own_id}` made, or `lockkeeper certs client {who}` makes, on the machine that holds the \
             authority"
        )))
    }

    /// Returns at the end.
    pub(crate) async fn over(&self, who: Option<&Identity>) -> Error {
        loop {
            if let Err(error) = self.check(who) {
                return error;
            }
            let left = Duration::from_millis(self.until_ms.saturating_sub(self.clock.wall_ms()));
            sleep(left.min(LOOK_MAX)).await;
        }
    }
}
