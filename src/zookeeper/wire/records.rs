//! Records that occur in many requests and replies.

use super::{JuteError, JuteWriter, reader::JuteReader};

/// Rights, as bits.
pub(crate) mod permissions {
    pub(crate) const READ: i32 = 1;
    pub(crate) const WRITE: i32 = 2;
    pub(crate) const CREATE: i32 = 4;
    pub(crate) const DELETE: i32 = 8;
    pub(crate) const ADMIN: i32 = 16;
    pub(crate) const ALL: i32 = 31;
}

/// An entry of an access list: who may do what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AclEntry {
    /// Rights: see [`permissions`].
    pub(crate) permissions: i32,
    /// The kind of identity: `world`, `digest`, `ip`, `x509`; in requests also `auth`.
    pub(crate) scheme: String,
    /// The identity.
    pub(crate) id: String,
}

impl AclEntry {
    /// Everybody may do everything: the list of nearly every node.
    pub(crate) fn open() -> Self {
        Self { permissions: permissions::ALL, scheme: "world".to_owned(), id: "anyone".to_owned() }
    }

    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.scheme.len() + self.id.len()
    }

    /// Reads a list.
    pub(crate) fn read_list(reader: &mut JuteReader<'_>) -> Result<Vec<Self>, JuteError> {
        const BYTES_MIN: usize = 12;
        reader.vector(BYTES_MIN, |reader| {
            let permissions = reader.int()?;
            let scheme = reader.string()?.to_owned();
            let id = reader.string()?.to_owned();
            Ok(Self { permissions, scheme, id })
        })
    }

    /// Writes a list.
    pub(crate) fn write_list(entries: &[Self], out: &mut JuteWriter) {
        out.count(entries.len());
        for Self { permissions, scheme, id } in entries {
            out.int(*permissions).string(scheme).string(id);
        }
    }
}

/// The facts about a node without its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZnodeStat {
    /// Revision of its creation.
    pub(crate) created: u64,
    /// Revision of its data.
    pub(crate) modified: u64,
    /// When it was created, in milliseconds since 1970.
    pub(crate) created_ms: i64,
    /// When its data was written, in milliseconds since 1970.
    pub(crate) modified_ms: i64,
    /// How often its data was replaced.
    pub(crate) version: i32,
    /// How many children came and went.
    pub(crate) child_version: i32,
    /// How often its access list was replaced.
    pub(crate) acl_version: i32,
    /// The session that it ends with, or 0.
    pub(crate) owner: u64,
    /// Bytes of its data.
    pub(crate) data_bytes: usize,
    /// Number of its children.
    pub(crate) children: u64,
    /// Revision at which the last child came or went, or that of its creation.
    pub(crate) children_modified: u64,
}

impl ZnodeStat {
    /// Writes the record.
    pub(crate) fn write(&self, out: &mut JuteWriter) {
        // Revisions and sessions have 63 bits.
        let long = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        out.long(long(self.created)).long(long(self.modified)).long(self.created_ms).long(self.modified_ms);
        out.int(self.version).int(self.child_version).int(self.acl_version).long(long(self.owner));
        out.count(self.data_bytes).count(usize::try_from(self.children).unwrap_or(usize::MAX));
        out.long(long(self.children_modified));
    }
}
