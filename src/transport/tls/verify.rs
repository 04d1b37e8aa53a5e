//! Which certificate counts where.
//!
//! rustls checks the chain to an authority, the dates, the key usage and the signature. These verifiers check, in addition, whom the
//! certificate names.

use std::sync::{Arc, OnceLock};

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

use super::{
    Expected, Port, provider,
    subject::{self, Subject},
};

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
    own: Option<Subject>,
    expected: Expected,
    successor: Arc<OnceLock<String>>,
}

impl NodeVerifier {
    /// The certificate of this process names `own`. `successor` is the cluster that was met in place of its own, once it was.
    pub(super) fn new(
        roots: Arc<RootCertStore>,
        own: Option<Subject>,
        expected: Expected,
        successor: Arc<OnceLock<String>>,
    ) -> Self {
        Self { roots, algorithms: provider().signature_verification_algorithms, own, expected, successor }
    }

    fn check(&self, subject: &Subject, certificate: &CertificateDer<'_>) -> Result<(), String> {
        #[cfg(test)]
        if self.expected == Expected::Blind {
            return Ok(());
        }

        if let Some(own) = &self.own {
            self.check_cluster(own, subject, certificate)?;
        }

        match (subject, self.expected) {
            (Subject::Client { .. }, _) => Err(format!("names {subject}, which is not a node")),
            (Subject::Node { id, .. }, Expected::Node(expected)) if *id != expected => {
                Err(format!("names {subject}, which is not node {expected}: check the peer addresses"))
            }
            (Subject::Node { .. }, _) => Ok(()),
        }
    }

    /// Refuses a node of another cluster, unless that cluster continues the own one. Nodes know no such exception: a node of an earlier
    /// cluster that still runs must reach none of the later one, and none of these must reach it.
    fn check_cluster(&self, own: &Subject, node: &Subject, certificate: &CertificateDer<'_>) -> Result<(), String> {
        let cluster = own.cluster();
        let other = node.cluster();
        let is_client = matches!(own, Subject::Client { .. }) && self.expected == Expected::Host;

        if other == cluster {
            // After contact with the new cluster, the old one is no longer accepted: its answers would contradict the new one's.
            return match self.successor.get().filter(|_| is_client) {
                Some(successor) => Err(format!(
                    "names {node}, and cluster {successor} has taken the place of cluster {cluster}: stop that node for good"
                )),
                None => Ok(()),
            };
        }
        if is_client && subject::continues(certificate, cluster) {
            self.successor.get_or_init(|| other.to_owned());
            return Ok(());
        }
        Err(format!("names {node}, which is not of cluster {cluster}"))
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

        // Members are told apart by the id in their certificates, so their addresses may change. A client knows no ids: it has the name
        // that it dialled.
        if self.expected == Expected::Host {
            verify_server_name(&certificate, server_name)?;
        }

        let subject = Subject::from_certificate(end_entity).map_err(refused)?;
        self.check(&subject, end_entity).map_err(refused)?;
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
    /// A cluster whose clients are accepted too. The callers decide until when, and as which identity, so that a client gets an error in
    /// words.
    earlier: Option<String>,
    port: Port,
}

impl ClientVerifier {
    pub(super) fn new(
        roots: Arc<RootCertStore>,
        cluster: String,
        earlier: Option<String>,
        port: Port,
    ) -> Result<Self, String> {
        let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
        let builder = match port {
            Port::Peers => builder,
            // It may have a token; what an anonymous caller may do is decided above.
            Port::Clients | Port::EitherHttp | Port::Http | Port::Console => builder.allow_unauthenticated(),
        };
        Ok(Self { chain: builder.build().map_err(|error| error.to_string())?, cluster, earlier, port })
    }

    fn check(&self, subject: &Subject) -> Result<(), String> {
        let is_earlier = self.earlier.as_deref() == Some(subject.cluster());
        if is_earlier && matches!(subject, Subject::Node { .. }) {
            return Err(format!(
                "names {subject}: only clients of cluster {} are accepted, and none of its nodes; stop that node for good",
                subject.cluster()
            ));
        }

        if subject.cluster() != self.cluster && !is_earlier {
            return Err(format!("names {subject}, which is not of cluster {}", self.cluster));
        }

        match (subject, self.port) {
            (Subject::Client { .. }, Port::Peers) => {
                Err(format!("names {subject}, and the port for peers accepts certificates of nodes only"))
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
        let subject = Subject::from_certificate(end_entity).map_err(refused)?;
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
