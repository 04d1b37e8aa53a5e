//! Which certificate counts where.
//!
//! rustls checks the chain to an authority, the dates, the key usage and the signature. These verifiers check, in addition, whom the
//! certificate names.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerIncompatible, RootCertStore,
    SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ParsedCertificate, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::{Expected, Port, provider, subject::Subject};

/// A certificate of the right authority that names the wrong end.
#[derive(Debug, thiserror::Error)]
#[error("the certificate of the other end {0}")]
struct WrongSubject(String);

/// The alert for this is `certificate_unknown`.
fn refused(what: String) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(WrongSubject(what)))))
}

/// Verifies the certificate of a node, for whoever connects to it.
#[derive(Debug)]
pub(super) struct NodeVerifier {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
    cluster: Option<String>,
    expected: Expected,
}

impl NodeVerifier {
    pub(super) fn new(roots: Arc<RootCertStore>, cluster: Option<String>, expected: Expected) -> Self {
        Self { roots, algorithms: provider().signature_verification_algorithms, cluster, expected }
    }

    fn check(&self, subject: &Subject) -> Result<(), String> {
        #[cfg(test)]
        if self.expected == Expected::Blind {
            return Ok(());
        }
        if let Some(cluster) = self.cluster.as_deref().filter(|cluster| *cluster != subject.cluster()) {
            return Err(format!("names {subject}, which is not of cluster {cluster}"));
        }
        match (subject, self.expected) {
            (Subject::Client { .. }, _) => Err(format!("names {subject}, which is no node")),
            (Subject::Node { id, .. }, Expected::Node(expected)) if *id != expected => {
                Err(format!("names {subject}, which is not node {expected}: check the peer addresses"))
            }
            (Subject::Node { .. }, _) => Ok(()),
        }
    }
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        if self.expected == Expected::Host {
            verify_server_name(&certificate, server_name)?;
        }
        let subject = Subject::of(end_entity).map_err(refused)?;
        self.check(&subject).map_err(refused)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifies the certificate of whoever connects to a port.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    cluster: String,
    port: Port,
}

impl ClientVerifier {
    pub(super) fn new(roots: Arc<RootCertStore>, cluster: String, port: Port) -> Result<Self, String> {
        let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
        let builder = match port {
            Port::Peers => builder,
            // It may have a token; what an anonymous caller may do is decided above.
            Port::Clients | Port::EitherHttp | Port::Http | Port::Console => builder.allow_unauthenticated(),
        };
        Ok(Self { chain: builder.build().map_err(|error| error.to_string())?, cluster, port })
    }

    fn check(&self, subject: &Subject) -> Result<(), String> {
        if subject.cluster() != self.cluster {
            return Err(format!("names {subject}, which is not of cluster {}", self.cluster));
        }
        match (subject, self.port) {
            (Subject::Client { .. }, Port::Peers) => {
                Err(format!("names {subject}, which is no node: this is the port of peers"))
            }
            _ => Ok(()),
        }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(end_entity, intermediates, now)?;
        let subject = Subject::of(end_entity).map_err(refused)?;
        self.check(&subject).map_err(refused)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
