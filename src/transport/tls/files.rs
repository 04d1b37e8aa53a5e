//! The files with certificates and keys.

use std::{
    fmt, fs,
    io::ErrorKind,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};

use super::subject::{self, Subject};

/// The largest file that is read: 1 MiB.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The files of one process's certificates, in PEM.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// The authorities that certificates are signed by: one or more.
    pub ca: PathBuf,
    /// This process's own certificate, with those between it and an authority, and its private key, if it has one.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// Why certificates cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{} {what}", .file.display())]
pub struct TlsError {
    /// The file.
    pub file: PathBuf,
    /// The problem and the remedy.
    pub what: String,
}

impl TlsError {
    pub(super) fn new(file: &Path, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), what: what.into() }
    }
}

/// What the files contain. The key's bytes are shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TlsContents {
    ca: Vec<u8>,
    own: Option<(Vec<u8>, Vec<u8>)>,
}

impl TlsFiles {
    /// The file to name in an error about the own certificate.
    pub(super) fn certificate_or_ca(&self) -> &Path {
        self.own.as_ref().map_or(&self.ca, |(certificate, _)| certificate)
    }

    pub(super) fn read(&self) -> Result<TlsContents, TlsError> {
        let own = self.own.as_ref().map(|(certificate, key)| Ok((read(certificate)?, read(key)?))).transpose()?;
        Ok(TlsContents { ca: read(&self.ca)?, own })
    }

    /// A warning if others than the owner may read the private key.
    pub fn warning(&self) -> Option<String> {
        let (_, key) = self.own.as_ref()?;
        let mode = fs::metadata(key).ok()?.permissions().mode() & 0o777;
        (mode & 0o077 != 0)
            .then(|| format!("{} is readable by others (mode {mode:o}): run chmod 600 on it", key.display()))
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |error: std::io::Error| {
        let kind = error.kind();
        let remedy = if kind == ErrorKind::NotFound {
            "name an existing file; `lockkeeper certs init` makes all of them"
        } else if kind == ErrorKind::PermissionDenied {
            "let this user read it"
        } else {
            "name a file that can be read"
        };
        TlsError::new(file, format!("cannot be read: {error}: {remedy}"))
    };

    let length = fs::metadata(file).map_err(failed)?.len();
    if length > FILE_BYTES_MAX {
        return Err(TlsError::new(
            file,
            format!("has {length} bytes, and a certificate file at most {FILE_BYTES_MAX}: name another file"),
        ));
    }

    fs::read(file).map_err(failed)
}

impl TlsContents {
    /// Whether both have the same authorities.
    pub(super) fn has_authorities_of(&self, other: &Self) -> bool {
        self.ca == other.ca
    }

    pub(super) fn roots(&self, files: &TlsFiles) -> Result<RootCertStore, TlsError> {
        let wrong = |what: String| TlsError::new(&files.ca, what);
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.ca).map_err(wrong)? {
            roots
                .add(certificate)
                .map_err(|error| wrong(format!("has a certificate that cannot serve as an authority: {error}")))?;
        }
        Ok(roots)
    }

    /// The own certificate with its key, whom it names, and when it expires.
    pub(super) fn own(&self, files: &TlsFiles) -> Result<Option<(CertifiedKey, Subject, SystemTime)>, TlsError> {
        let (Some((certificate, key)), Some((certificate_file, key_file))) = (&self.own, &files.own) else {
            return Ok(None);
        };

        let wrong = |what: String| TlsError::new(certificate_file, what);
        let chain = certificates(certificate).map_err(wrong)?;
        let subject = Subject::from_certificate(&chain[0]).map_err(wrong)?;
        let expires = subject::expires(&chain[0]).map_err(wrong)?;

        let wrong_key = |what: String| TlsError::new(key_file, what);
        let key = PrivateKeyDer::from_pem_slice(key);
        let key = key.map_err(|_| wrong_key("has no private key in PEM (PKCS #8, SEC 1 or PKCS #1)".to_owned()))?;
        let key = ring::sign::any_supported_type(&key);
        let key =
            key.map_err(|_| wrong_key("has a key of a kind that is not supported: use ECDSA or Ed25519".to_owned()))?;

        let certified = CertifiedKey::new(chain, key);
        let does_not_fit = |_| wrong_key(format!("is not the key of {}", certificate_file.display()));
        certified.keys_match().map_err(does_not_fit)?;
        Ok(Some((certified, subject, expires)))
    }
}

/// One or more certificates.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => Err("has no certificate in PEM".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("is not PEM: {error}")),
    }
}

impl fmt::Debug for TlsContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Contents(..)")
    }
}
