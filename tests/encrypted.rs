//! Connections by TLS as clients of other products make them: they name no protocol, and only some show a certificate.

use std::{fs, path::Path, sync::Arc};

use lockkeeper::{certs::Authority, client::TlsFiles, local::LocalCluster};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, ConfigBuilder, RootCertStore,
        client::WantsClientCert,
        crypto,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
    },
};

/// A connection to a node by its IP address, or `None` if it cannot be reached or breaks off.
pub(crate) async fn encrypted(address: &str, config: &Arc<ClientConfig>) -> Option<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.ok()?;
    let name = ServerName::from(stream.peer_addr().ok()?.ip());
    TlsConnector::from(Arc::clone(config)).connect(name, stream).await.ok()
}

/// A client that shows the certificate of the cluster's clients, and one that shows none.
pub(crate) fn with_and_without_certificate(cluster: &LocalCluster) -> (Arc<ClientConfig>, Arc<ClientConfig>) {
    let TlsFiles { ca, own } = cluster.client_files().expect("the cluster has TLS");
    let (certificate, key) = own.expect("the client's own");
    let chain = vec![CertificateDer::from_pem_file(&certificate).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(&key).expect("a key");
    let with = trusting(&ca).with_client_auth_cert(chain, key).expect("they belong together");
    (Arc::new(with), without_certificate(&ca))
}

/// A client that trusts this authority and shows no certificate.
pub(crate) fn without_certificate(authority: &Path) -> Arc<ClientConfig> {
    Arc::new(trusting(authority).with_no_client_auth())
}

/// Another authority takes the place of the one that has signed all certificates of the cluster. Its nodes read it within seconds, and then
/// know nobody by a certificate, not even each other.
pub(crate) fn replace_authority(cluster: &LocalCluster) {
    let directory = tempfile::tempdir().expect("a directory");
    let other = Authority::create(directory.path(), &cluster.node(1).config().cluster_id).expect("an authority");
    let TlsFiles { ca, .. } = cluster.client_files().expect("the cluster has TLS");
    let beside = ca.with_extension("new");
    fs::copy(other.certificate(), &beside).expect("copied");
    fs::rename(beside, ca).expect("renamed");
}

fn trusting(authority: &Path) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).expect("a certificate")).expect("an authority");
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    config.expect("they fit").with_root_certificates(roots)
}
