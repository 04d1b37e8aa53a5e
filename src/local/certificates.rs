//! The certificates of a cluster on this machine.

use std::path::Path;

use super::error::LocalError;
use crate::{
    certs::{Authority, CERTIFICATE_DAYS, CertsError, Files},
    server::config::{Config, TlsConfig},
};
use lockkeeper_transport::tls::TlsFiles;

/// The name of the client that commands run as.
const CLIENT: &str = "local";

/// Makes the certificate of a node, and an authority and a client if there are none; names the files in the node's configuration.
pub(super) fn of_node(directory: &Path, config: &mut Config) -> Result<(), LocalError> {
    let authority = match Authority::create(directory, &config.cluster_id) {
        Ok(authority) => {
            authority.client(CLIENT, CERTIFICATE_DAYS)?;
            authority
        }
        Err(CertsError::Exists(_)) => Authority::open(directory)?,
        Err(error) => return Err(error.into()),
    };
    let hosts = ["127.0.0.1", "localhost"].map(str::to_owned);
    let Files { certificate, key } = authority.node(config.node_id, &hosts, CERTIFICATE_DAYS)?;
    config.tls = Some(TlsConfig { ca: authority.certificate(), certificate, key });
    Ok(())
}

/// The files of the client.
pub(super) fn of_client(tls: &TlsConfig) -> TlsFiles {
    let directory = tls.ca.parent().unwrap_or(Path::new(""));
    let Files { certificate, key } = Files::of_client(directory, CLIENT);
    TlsFiles { ca: tls.ca.clone(), own: Some((certificate, key)) }
}
