//! The certificate that the other end of an accepted connection has shown, for as long as the connection lasts.
//!
//! A handshake verifies a certificate for its moment. A connection may last for months, and meanwhile the certificate expires, or its
//! authority is taken out of the file `ca`, which is how an operator withdraws it. So whoever serves the connection asks again: before each
//! call ([`ShownCertificate::check`]), and once, to be told, for what lasts ([`ShownCertificate::withdrawn`]).
//!
//! Nothing is verified again until there is a reason: the authorities have changed since, or a date in the chain has passed. Otherwise a
//! check compares two numbers.
//!
//! **Between nodes** an expired certificate does not end a connection; an authority that is taken out does. The certificates of a cluster's
//! nodes are often made together, and would end all of its connections in the same second: no quorum, and nobody could release a lock. So
//! when the authorities have changed, a node's certificate is judged by them as of the moment at which its connection was accepted. A new
//! connection is refused as everywhere.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, UNIX_EPOCH},
};

use rustls::{
    CertificateError, Error,
    pki_types::{CertificateDer, UnixTime},
};
use tokio::time::sleep;

use super::{
    Port, Tls,
    subject::{self, Subject},
};

/// Longest time between two looks at the wall clock, which may be set.
const LOOK_MAX: Duration = Duration::from_secs(600);

/// A certificate that was verified when its connection was accepted. Clones are the same.
#[derive(Clone)]
pub struct ShownCertificate(Arc<ShownState>);

struct ShownState {
    tls: Tls,
    port: Port,
    /// When the connection was accepted.
    accepted: UnixTime,
    subject: Subject,
    /// The certificate, and those between it and an authority that came with it.
    chain: Vec<CertificateDer<'static>>,
    /// The generation of the authorities by which it was verified last.
    generation: AtomicU64,
    /// The last second, since 1970, for which that holds.
    until: AtomicU64,
    /// Held while it is verified. What refused it last, with the generation: who is refused and asks again costs nothing further.
    refused: Mutex<Option<(u64, WithdrawnCertificate)>>,
}

/// A certificate that was good when its connection was accepted, and is not any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the certificate of this connection, {subject}, {why}")]
pub struct WithdrawnCertificate {
    subject: String,
    why: String,
}

impl ShownCertificate {
    /// `generation` is that of the authorities by which the handshake has verified the chain, and `accepted` a time just before. `None`
    /// without a certificate; fails if it names nobody.
    pub(super) fn new(
        tls: &Tls,
        port: Port,
        generation: u64,
        accepted: UnixTime,
        chain: Option<&[CertificateDer<'_>]>,
    ) -> Result<Option<Self>, String> {
        let chain = chain.unwrap_or_default();
        let Some(own) = chain.first() else { return Ok(None) };

        let subject = Subject::from_certificate(own)?;
        let chain: Vec<_> = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        let until = AtomicU64::new(good_until(port, &chain, accepted.as_secs()));
        let generation = AtomicU64::new(generation);
        let refused = Mutex::default();
        let state = ShownState { tls: tls.clone(), port, accepted, subject, chain, generation, until, refused };
        Ok(Some(Self(Arc::new(state))))
    }

    /// Whom it names.
    pub fn subject(&self) -> &Subject {
        &self.0.subject
    }

    /// Fails if the certificate would be refused in a handshake now; between nodes, if it would be for another reason than its dates.
    pub fn check(&self) -> Result<(), WithdrawnCertificate> {
        if self.is_verified() { Ok(()) } else { self.verify() }
    }

    /// Returns once [`check`](Self::check) would fail.
    pub async fn withdrawn(&self) -> WithdrawnCertificate {
        let mut changes = self.0.tls.shared.changes.subscribe();
        loop {
            if let Err(withdrawn) = self.check() {
                return withdrawn;
            }

            let until = self.0.until.load(Ordering::Acquire);
            let left = until.saturating_add(1).saturating_sub(UnixTime::now().as_secs());
            tokio::select! {
                // The sender lives as long as this certificate.
                _ = changes.changed() => {}
                () = sleep(Duration::from_secs(left).min(LOOK_MAX)) => {}
            }
        }
    }

    fn is_verified(&self) -> bool {
        let ShownState { tls, generation, until, .. } = &*self.0;
        let is_current = generation.load(Ordering::Acquire) == tls.shared.generation.load(Ordering::Acquire);
        is_current && UnixTime::now().as_secs() <= until.load(Ordering::Acquire)
    }

    fn verify(&self) -> Result<(), WithdrawnCertificate> {
        let ShownState { tls, port, accepted, subject, chain, generation, until, refused } = &*self.0;
        let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
        // Many streams of one connection ask at the same moment.
        if self.is_verified() {
            return Ok(());
        }

        let current = tls.current();
        if let Some((at, withdrawn)) = &*refused
            && *at == current.generation
        {
            return Err(withdrawn.clone());
        }

        let now = UnixTime::now();
        // Between nodes the authorities decide, and no date that has passed since.
        let as_of = if *port == Port::Peers { *accepted } else { now };
        match current.verify(*port, chain, as_of) {
            Ok(()) => {
                *refused = None;
                until.store(good_until(*port, chain, now.as_secs()), Ordering::Release);
                generation.store(current.generation, Ordering::Release);
                Ok(())
            }
            Err(error) => {
                let withdrawn = WithdrawnCertificate { subject: subject.to_string(), why: said(&error) };
                *refused = Some((current.generation, withdrawn.clone()));
                Err(withdrawn)
            }
        }
    }
}

impl fmt::Debug for ShownCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShownCertificate").field(&self.0.subject).finish()
    }
}

/// The last second for which a chain that is good now stays good by its dates. A certificate that has expired already was not needed.
fn good_until(port: Port, chain: &[CertificateDer<'_>], now: u64) -> u64 {
    if port == Port::Peers {
        return u64::MAX;
    }
    let expiries = chain.iter().filter_map(|certificate| {
        let expires = subject::expires(certificate).ok()?;
        Some(expires.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
    });
    expiries.filter(|expires| *expires >= now).min().unwrap_or(now)
}

/// The error of a verification, for who reads a log or an answer.
fn said(error: &Error) -> String {
    if let Error::InvalidCertificate(wrong) = error {
        if matches!(wrong, CertificateError::Expired | CertificateError::ExpiredContext { .. }) {
            return "has expired".to_owned();
        }
        if *wrong == CertificateError::UnknownIssuer {
            return "is signed by no authority that this node still trusts".to_owned();
        }
    }
    format!("is no longer accepted: {error}")
}
