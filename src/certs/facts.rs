//! What certificates say, for people who look for the one that is wrong.

use std::net::IpAddr;

use x509_parser::{certificate::X509Certificate, extensions::GeneralName, pem::Pem};

/// What a certificate says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateFacts {
    /// Whom it is for, as its distinguished name.
    pub subject: String,
    /// Who has signed it, as a distinguished name.
    pub issuer: String,
    /// The URIs, host names and IP addresses that it is for.
    pub names: Vec<String>,
    /// The time from which it is valid, seconds since 1970-01-01 UTC.
    pub valid_from: i64,
    /// The time until which it is valid, seconds since 1970-01-01 UTC.
    pub valid_until: i64,
    /// Whether it may sign others.
    pub is_authority: bool,
}

impl CertificateFacts {
    /// Reads the certificates of a file in PEM, in their order. Fails, for people, if one is damaged or if there is none. No signature
    /// is checked.
    pub fn read_all(pem: &[u8]) -> Result<Vec<Self>, String> {
        let mut facts = Vec::new();
        for block in Pem::iter_from_buffer(pem) {
            let block = block.map_err(|error| format!("is not PEM: {error}"))?;
            // A file may have a private key beside its certificate.
            if block.label == "CERTIFICATE" {
                let certificate = block.parse_x509().map_err(|error| format!("has a damaged certificate: {error}"))?;
                facts.push(Self::from(&certificate));
            }
        }

        if facts.is_empty() {
            return Err("has no certificate".to_owned());
        }
        Ok(facts)
    }
}

impl From<&X509Certificate<'_>> for CertificateFacts {
    fn from(certificate: &X509Certificate<'_>) -> Self {
        let alternatives = certificate.subject_alternative_name().ok().flatten();
        let names = alternatives.map(|extension| extension.value.general_names.as_slice()).unwrap_or_default();
        let validity = certificate.validity();
        Self {
            subject: certificate.subject().to_string(),
            issuer: certificate.issuer().to_string(),
            names: names.iter().filter_map(name).collect(),
            valid_from: validity.not_before.timestamp(),
            valid_until: validity.not_after.timestamp(),
            is_authority: certificate.is_ca(),
        }
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    if let GeneralName::URI(uri) = name {
        return Some((*uri).to_owned());
    }
    host(name)
}

/// The host name or IP address, if it is one.
pub(crate) fn host(name: &GeneralName<'_>) -> Option<String> {
    if let GeneralName::DNSName(host) = name {
        return Some((*host).to_owned());
    }
    let GeneralName::IPAddress(bytes) = name else { return None };
    let four = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
    let address = four.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
    Some(address.ok()?.to_string())
}
