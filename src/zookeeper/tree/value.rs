//! The value of a node's entry: what ZooKeeper keeps of a node beside its children, and its data.
//!
//! A version byte, flags, times, counts, the access list unless everybody may do everything, and the data. A setACL writes the entry and
//! must not look like a write of the data, so the revision of the data stands here from then on, until the data is written again.

use std::sync::Arc;

use bytes::Bytes;

use super::NodeLife;
use crate::wire::AclEntry;

/// The version of this form.
const VERSION: u8 = 1;
const IS_CONTAINER: u8 = 1;
const HAS_TTL: u8 = 2;
const HAS_DATA_REVISION: u8 = 4;
const HAS_ACL: u8 = 8;
const IS_NULL: u8 = 16;

/// A value of the store, as a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZnodeValue {
    /// How long it lives.
    pub(crate) life: NodeLife,
    /// When it was created, in milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// When its data was written, in milliseconds since 1970.
    pub(crate) modified_ms: i64,
    /// How often its data was replaced.
    pub(crate) version: i32,
    /// How often its access list was replaced.
    pub(crate) acl_version: i32,
    /// The revision of its data, if the entry was written since.
    pub(crate) data_revision: Option<u64>,
    /// Who may do what. Empty means that everybody may do everything.
    pub(crate) acl: Arc<[AclEntry]>,
    /// Its data, which may be absent. What was read is a part of the entry, and not a copy.
    pub(crate) data: Option<Bytes>,
}

impl ZnodeValue {
    /// A node that nobody has written: the root before its first entry, and those that are always there.
    pub(crate) fn system() -> Self {
        Self {
            life: NodeLife::Persistent,
            created_ms: 0,
            modified_ms: 0,
            version: 0,
            acl_version: 0,
            data_revision: Some(0),
            acl: Arc::default(),
            data: Some(Bytes::new()),
        }
    }

    /// The bytes of the entry.
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        let mut flags = 0;
        let mut optional = Vec::new();
        if let Some(revision) = self.data_revision {
            flags |= HAS_DATA_REVISION;
            optional.extend_from_slice(&revision.to_be_bytes());
        }
        match self.life {
            NodeLife::Persistent => {}
            NodeLife::Container => flags |= IS_CONTAINER,
            NodeLife::Ttl { ms } => {
                flags |= HAS_TTL;
                optional.extend_from_slice(&ms.to_be_bytes());
            }
        }

        if !self.acl.is_empty() {
            flags |= HAS_ACL;
            encode_acl(&self.acl, &mut optional);
        }
        if self.data.is_none() {
            flags |= IS_NULL;
        }

        let mut bytes = vec![VERSION, flags];
        bytes.extend_from_slice(&self.created_ms.to_be_bytes());
        bytes.extend_from_slice(&self.modified_ms.to_be_bytes());
        bytes.extend_from_slice(&self.version.to_be_bytes());
        bytes.extend_from_slice(&self.acl_version.to_be_bytes());
        bytes.extend_from_slice(&optional);
        bytes.extend_from_slice(self.data.as_deref().unwrap_or_default());
        bytes.into()
    }

    /// Reads the bytes of an entry. One that this version cannot read was written by other means than this protocol: it shows as a node
    /// with these bytes as its data, which everybody may read and write as far as the policy allows.
    pub(crate) fn decode(entry: &Arc<[u8]>) -> Self {
        Self::try_decode(entry).unwrap_or_else(|| Self::foreign(entry))
    }

    /// The same without the access list: for those who are not asked what they may do.
    pub(crate) fn decode_without_acl(entry: &Arc<[u8]>) -> Self {
        Self::try_decode_parts(entry, false).unwrap_or_else(|| Self::foreign(entry))
    }

    fn foreign(entry: &Arc<[u8]>) -> Self {
        Self { data: Some(Bytes::from_owner(Arc::clone(entry))), ..Self::system() }
    }

    /// Whether the last write of the entry was one of its data. Looks at the first bytes alone.
    pub(crate) fn is_data_written(bytes: &[u8]) -> bool {
        !matches!(bytes, [VERSION, flags, ..] if flags & HAS_DATA_REVISION != 0)
    }

    /// Reads the bytes of an entry.
    pub(crate) fn try_decode(entry: &Arc<[u8]>) -> Option<Self> {
        Self::try_decode_parts(entry, true)
    }

    fn try_decode_parts(entry: &Arc<[u8]>, has_acl: bool) -> Option<Self> {
        let mut reader = ValueReader(entry);
        if reader.number()? != [VERSION] {
            return None;
        }
        let [flags] = reader.number()?;
        let created_ms = i64::from_be_bytes(reader.number()?);
        let modified_ms = i64::from_be_bytes(reader.number()?);
        let version = i32::from_be_bytes(reader.number()?);
        let acl_version = i32::from_be_bytes(reader.number()?);

        let has = |flag: u8| flags & flag != 0;
        let data_revision = if has(HAS_DATA_REVISION) { Some(u64::from_be_bytes(reader.number()?)) } else { None };
        let life = match (has(IS_CONTAINER), has(HAS_TTL)) {
            (true, _) => NodeLife::Container,
            (false, true) => NodeLife::Ttl { ms: i64::from_be_bytes(reader.number()?) },
            (false, false) => NodeLife::Persistent,
        };
        let acl = if has(HAS_ACL) { reader.acl(has_acl)?.into() } else { Arc::default() };
        let data_from = entry.len() - reader.0.len();
        let data = if has(IS_NULL) { None } else { Some(Bytes::from_owner(Arc::clone(entry)).slice(data_from..)) };

        Some(Self { life, created_ms, modified_ms, version, acl_version, data_revision, acl, data })
    }

    /// The access list as clients see it.
    pub(crate) fn shown_acl(&self) -> Vec<AclEntry> {
        if self.acl.is_empty() { vec![AclEntry::open()] } else { self.acl.to_vec() }
    }

    /// Makes this the access list.
    pub(crate) fn set_acl(&mut self, acl: Vec<AclEntry>) {
        self.acl = if acl == [AclEntry::open()] { Arc::default() } else { acl.into() };
    }
}

/// Lengths fit: `access.rs` bounds lists and identities far below.
fn encode_acl(acl: &[AclEntry], out: &mut Vec<u8>) {
    let short = |length: usize| u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
    out.extend_from_slice(&short(acl.len()));
    for AclEntry { permissions, scheme, id } in acl {
        out.extend_from_slice(&permissions.to_be_bytes());
        for text in [scheme, id] {
            out.extend_from_slice(&short(text.len()));
            out.extend_from_slice(text.as_bytes());
        }
    }
}

/// Reads the bytes of an entry from front to back.
struct ValueReader<'a>(&'a [u8]);

impl<'a> ValueReader<'a> {
    fn number<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*number)
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::from(u16::from_be_bytes(self.number()?));
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    /// Reads an access list, and keeps it if it is asked for.
    fn acl(&mut self, is_kept: bool) -> Option<Vec<AclEntry>> {
        let count = u16::from_be_bytes(self.number()?);
        let mut acl = Vec::new();
        for _ in 0..count {
            let permissions = i32::from_be_bytes(self.number()?);
            let scheme = self.text()?;
            let id = self.text()?;
            if is_kept {
                acl.push(AclEntry { permissions, scheme: scheme.to_owned(), id: id.to_owned() });
            }
        }
        Some(acl)
    }
}
