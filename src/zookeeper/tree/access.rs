//! Who a client is, and what access lists allow.
//!
//! Lists are data of the nodes, as in ZooKeeper, and are checked here. A list cannot allow more than the policy of the store. There is no
//! superuser.

use std::net::IpAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha1::{Digest as _, Sha1};

use super::ZnodeValue;
use crate::wire::{AclEntry, ErrorCode};

/// Maximum number of identities that one connection may add.
const IDENTITIES_MAX: usize = 32;
/// Maximum number of entries of a list.
const ENTRIES_MAX: usize = 256;
/// Maximum bytes of an identity.
const ID_BYTES_MAX: usize = 1024;

/// The identities of a connection.
#[derive(Clone, Debug)]
pub(crate) struct ClientIdentities {
    /// Where it comes from.
    address: IpAddr,
    /// What its certificate proves.
    certificate: Option<String>,
    /// Users with the hashes of their passwords: `user:hash`.
    digests: Vec<String>,
}

impl ClientIdentities {
    /// A connection that has said nothing yet.
    pub(crate) fn new(address: IpAddr, certificate: Option<String>) -> Self {
        Self { address: address.to_canonical(), certificate, digests: Vec::new() }
    }

    /// Adds a user by `user:password`. Without a colon the whole text is the user, as in ZooKeeper.
    pub(crate) fn add_digest(&mut self, credentials: &str) -> Result<(), ErrorCode> {
        let user = credentials.split(':').next().unwrap_or_default();
        let digest = format!("{user}:{}", STANDARD.encode(Sha1::digest(credentials.as_bytes())));
        if digest.len() > ID_BYTES_MAX || self.digests.len() == IDENTITIES_MAX {
            return Err(ErrorCode::AuthFailed);
        }
        if !self.digests.contains(&digest) {
            self.digests.push(digest);
        }
        Ok(())
    }

    /// Whether the client has a certificate.
    pub(crate) fn has_certificate(&self) -> bool {
        self.certificate.is_some()
    }

    /// All identities by their schemes, without the hashes of passwords.
    pub(crate) fn shown(&self) -> Vec<(&'static str, String)> {
        let mut shown = vec![("ip", self.address.to_string())];
        shown.extend(self.certificate.iter().map(|id| ("x509", id.clone())));
        let user = |digest: &String| digest.split(':').next().unwrap_or_default().to_owned();
        shown.extend(self.digests.iter().map(|digest| ("digest", user(digest))));
        shown
    }

    /// Checks a list that a client gives to a node. `auth` becomes the client's own identities.
    pub(crate) fn complete(&self, asked: &[AclEntry]) -> Result<Vec<AclEntry>, ErrorCode> {
        // Check the number before comparing entries: a frame can have many thousands of them, and each `auth` stands for many.
        if asked.len() > ENTRIES_MAX {
            return Err(ErrorCode::InvalidAcl);
        }

        let mut acl: Vec<AclEntry> = Vec::new();
        let mut own_permissions = Vec::new();
        for entry in asked {
            let entries = match entry.scheme.as_str() {
                "auth" if own_permissions.contains(&entry.permissions) => continue,
                "auth" => {
                    own_permissions.push(entry.permissions);
                    self.own(entry.permissions)
                }
                _ if is_valid(entry) => vec![entry.clone()],
                _ => Vec::new(),
            };
            if entries.is_empty() {
                return Err(ErrorCode::InvalidAcl);
            }
            for entry in entries {
                if !acl.contains(&entry) {
                    acl.push(entry);
                }
            }
            if acl.len() > ENTRIES_MAX {
                return Err(ErrorCode::InvalidAcl);
            }
        }

        if acl.is_empty() { Err(ErrorCode::InvalidAcl) } else { Ok(acl) }
    }

    /// Entries for the identities that the client has proven. An address does not prove an identity.
    fn own(&self, permissions: i32) -> Vec<AclEntry> {
        let entry = |scheme: &str, id: &String| AclEntry { permissions, scheme: scheme.to_owned(), id: id.clone() };
        let certificates = self.certificate.iter().map(|id| entry("x509", id));
        certificates.chain(self.digests.iter().map(|id| entry("digest", id))).collect()
    }

    /// Fails unless the list of a node gives the client one of these rights.
    pub(crate) fn check(&self, value: &ZnodeValue, permissions: i32) -> Result<(), ErrorCode> {
        if self.is_allowed(&value.acl, permissions) { Ok(()) } else { Err(ErrorCode::NoAuth) }
    }

    /// Whether a list gives the client one of these rights. An empty one gives everybody all of them.
    pub(crate) fn is_allowed(&self, acl: &[AclEntry], permissions: i32) -> bool {
        acl.is_empty() || acl.iter().any(|entry| entry.permissions & permissions != 0 && self.is_meant(entry))
    }

    /// Whether an entry of a list is about this client.
    fn is_meant(&self, entry: &AclEntry) -> bool {
        match entry.scheme.as_str() {
            "world" => entry.id == "anyone",
            "digest" => self.digests.contains(&entry.id),
            "x509" => self.certificate.as_ref() == Some(&entry.id),
            "ip" => IpRange::parse(&entry.id).is_some_and(|range| range.has(self.address)),
            _ => false,
        }
    }
}

/// Whether an entry can stand in a list.
fn is_valid(entry: &AclEntry) -> bool {
    let id = &entry.id;
    let is_known = match entry.scheme.as_str() {
        "world" => id == "anyone",
        "digest" => id.split_once(':').is_some_and(|(_, hash)| !hash.is_empty() && !hash.contains(':')),
        "x509" => !id.is_empty(),
        "ip" => IpRange::parse(id).is_some(),
        _ => false,
    };
    is_known && id.len() <= ID_BYTES_MAX
}

/// Addresses with a common beginning: `10.0.0.0/8`.
struct IpRange {
    address: IpAddr,
    bits: u32,
}

impl IpRange {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(bits_max), |bits| bits.parse().ok())?;
        (bits <= bits_max).then_some(Self { address, bits })
    }

    fn has(&self, address: IpAddr) -> bool {
        let is_same = |left: u128, right: u128, width: u32| {
            let rest = width - self.bits;
            left.checked_shr(rest).unwrap_or_default() == right.checked_shr(rest).unwrap_or_default()
        };
        match (self.address, address) {
            (IpAddr::V4(range), IpAddr::V4(address)) => is_same(range.to_bits().into(), address.to_bits().into(), 32),
            (IpAddr::V6(range), IpAddr::V6(address)) => is_same(range.to_bits(), address.to_bits(), 128),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}
