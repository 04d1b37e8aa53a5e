//! The certificates of a cluster on this machine.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use lockkeeper_certs::{Authority, CERTIFICATE_DAYS, CertsError, Files};
use lockkeeper_config::{Config, TlsConfig};
use lockkeeper_transport::tls::TlsFiles;

use super::error::LocalError;

/// The name of the client that commands run as.
const CLIENT: &str = "local";

/// Makes the certificate of a node, and names its files in the node's configuration. Also makes an authority and a
/// client if there are none yet.
pub(super) fn issue_for_node(directory: &Path, config: &mut Config) -> Result<(), LocalError> {
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

/// The file with the client's access key for DynamoDB's API. The file is made if there is none. The key has the name
/// of the client's certificate.
pub(super) fn dynamodb_secrets(directory: &Path) -> Result<PathBuf, LocalError> {
    let path = directory.join("dynamodb-secrets");

    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Ok(mut file) => {
            #[expect(clippy::disallowed_methods, reason = "a secret that nobody can know")]
            let secret = rand::random::<u128>();
            let written = writeln!(file, "{CLIENT} {secret:032x}");
            written.map_err(|source| LocalError::Directory { path: path.clone(), source })?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(source) => return Err(LocalError::Directory { path, source }),
    }

    Ok(path)
}

/// The access key and the secret in that file.
pub(super) fn dynamodb_key(file: &Path) -> Option<(String, String)> {
    let text = fs::read_to_string(file).ok()?;
    let (key, secret) = text.lines().next()?.split_once(' ')?;
    Some((key.to_owned(), secret.to_owned()))
}

/// The files of the client.
pub(super) fn client_files(tls: &TlsConfig) -> TlsFiles {
    let directory = tls.ca.parent().unwrap_or(Path::new(""));
    let Files { certificate, key } = Files::for_client(directory, CLIENT);
    TlsFiles { ca: tls.ca.clone(), own: Some((certificate, key)) }
}
