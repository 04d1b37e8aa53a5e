//! Whom a certificate names.

use std::{
    fmt,
    str::FromStr,
    time::{Duration, SystemTime},
};

use rustls::pki_types::CertificateDer;
use x509_parser::{extensions::GeneralName, prelude::X509Certificate};

const SCHEME: &str = "lockkeeper://";
/// What the URI of an earlier cluster begins with.
const EARLIER_SCHEME: &str = "lockkeeper-earlier://";

/// Whom a certificate names, as a URI among its subject alternative names: `lockkeeper://CLUSTER/node/ID` or
/// `lockkeeper://CLUSTER/client/NAME`. The other names and the common name say nothing here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subject {
    /// A node.
    Node {
        /// Its cluster.
        cluster: String,
        /// Its id there: 1 or more.
        id: u64,
    },
    /// A client.
    Client {
        /// Its cluster.
        cluster: String,
        /// Its name: 1 to 64 letters, digits, `-`, `_`, `.` and `@`.
        name: String,
    },
}

impl Subject {
    /// Its cluster.
    pub fn cluster(&self) -> &str {
        match self {
            Self::Node { cluster, .. } | Self::Client { cluster, .. } => cluster,
        }
    }

    /// Reads it from a certificate. Fails with what the certificate lacks.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let certificate = parsed(certificate)?;
        let names = certificate.subject_alternative_name().map_err(|error| format!("has malformed names: {error}"))?;
        let names = names.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();

        let mut own = names.iter().filter_map(|name| {
            let GeneralName::URI(uri) = name else { return None };
            uri.starts_with(SCHEME).then_some(*uri)
        });

        match (own.next(), own.next()) {
            (Some(uri), None) => uri.parse(),
            (None, _) => {
                Err(format!("has no URI that begins with {SCHEME}: make certificates with `lockkeeper certs`"))
            }
            (Some(first), Some(second)) => Err(format!("names both {first} and {second}: it may name one")),
        }
    }
}

/// Whether the certificate of a node says that its cluster continues this one.
pub(super) fn continues(certificate: &CertificateDer<'_>, cluster: &str) -> bool {
    let Ok(certificate) = parsed(certificate) else { return false };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return false };
    let is_named = |name: &GeneralName<'_>| matches!(name, GeneralName::URI(uri) if uri.strip_prefix(EARLIER_SCHEME) == Some(cluster));
    names.value.general_names.iter().any(is_named)
}

fn parsed<'c>(certificate: &'c CertificateDer<'_>) -> Result<X509Certificate<'c>, String> {
    match x509_parser::parse_x509_certificate(certificate) {
        Ok((_, certificate)) => Ok(certificate),
        Err(error) => Err(format!("is malformed: {error}")),
    }
}

/// When a certificate expires.
pub(super) fn expires(certificate: &CertificateDer<'_>) -> Result<SystemTime, String> {
    let seconds = parsed(certificate)?.validity().not_after.timestamp();
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node { cluster, id } => write!(f, "{SCHEME}{cluster}/node/{id}"),
            Self::Client { cluster, name } => write!(f, "{SCHEME}{cluster}/client/{name}"),
        }
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(uri: &str) -> Result<Self, String> {
        let rest = uri.strip_prefix(SCHEME);
        let subject = rest.and_then(|rest| {
            let mut parts = rest.split('/');
            let cluster = parts.next()?;
            let kind = parts.next()?;
            let name = parts.next()?;
            let cluster = Some(cluster.to_owned()).filter(|cluster| is_cluster(cluster))?;

            match (kind, parts.next()) {
                ("node", None) => {
                    // One spelling for each id: `+1` and `01` would be other texts for node 1.
                    let id = name.parse().ok().filter(|id: &u64| *id > 0 && id.to_string() == name)?;
                    Some(Self::Node { cluster, id })
                }
                ("client", None) if is_name(name) => Some(Self::Client { cluster, name: name.to_owned() }),
                _ => None,
            }
        });

        subject.ok_or_else(|| {
            // It comes from the other end: no control characters of it reach a log, and no long text.
            let shown: String = uri.chars().take(200).flat_map(char::escape_default).collect();
            format!("names {shown}, which is neither {SCHEME}CLUSTER/node/ID nor {SCHEME}CLUSTER/client/NAME")
        })
    }
}

fn is_cluster(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'@');
    (1..=64).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_node_or_a_client() {
        for uri in ["lockkeeper://shop-1/node/3", "lockkeeper://c/client/ann@host.example"] {
            assert_eq!(uri.parse::<Subject>().expect("it is one").to_string(), uri);
        }
        for other in [
            "",
            "lockkeeper://",
            "lockkeeper://shop/node/0",
            "lockkeeper://shop/node/03",
            "lockkeeper://shop/node/+3",
            "lockkeeper://shop/node/18446744073709551616",
            "lockkeeper://shop/node/3/",
            "lockkeeper://Shop/node/3",
            "lockkeeper:///node/3",
            "lockkeeper://shop/peer/3",
            "lockkeeper://shop/client/",
            "lockkeeper://shop/client/a b",
            "lockkeeper://shop/client/a%20b",
            "spiffe://shop/node/3",
        ] {
            assert!(other.parse::<Subject>().expect_err("it is none").contains("neither"), "{other}");
        }
    }
}
