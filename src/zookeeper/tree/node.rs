//! A node, as requests see it: an entry of the store, or one that is always there.

use bytes::Bytes;

use super::{ZnodePath, ZnodeValue};
use crate::{
    AppliedZnodes, ChildCounts, ZookeeperEntry,
    wire::{AclEntry, ZnodeStat, permissions},
};

/// In place of a revision, that of the transaction which is being made.
pub(crate) const PENDING: u64 = u64::MAX;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Znode {
    /// What its entry says.
    pub(crate) value: ZnodeValue,
    /// The revision of its creation, or [`PENDING`].
    pub(crate) created: u64,
    /// The revision of its entry, or [`PENDING`].
    pub(crate) modified: u64,
    /// The session that it ends with.
    pub(crate) owner: Option<u64>,
    /// Its children.
    pub(crate) children: ChildCounts,
}

/// What clients are told of a node, without its data and its access list. Its revisions may be [`PENDING`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlannedStat(ZnodeStat);

impl Znode {
    /// A node of the store.
    pub(crate) fn from_stored(stored: &ZookeeperEntry) -> Self {
        Self::with_value(stored, ZnodeValue::decode(&stored.value))
    }

    fn with_value(stored: &ZookeeperEntry, value: ZnodeValue) -> Self {
        let ZookeeperEntry { created, modified, owner, children, value: _ } = *stored;
        Self { value, created, modified, owner, children }
    }

    /// A node that is always there, with this number of children.
    fn system(children: u64) -> Self {
        let children = ChildCounts { made: 0, live: children, changed: 0 };
        Self { value: ZnodeValue::system(), created: 0, modified: 0, owner: None, children }
    }

    /// The node's `Stat` for clients. `revision` is the revision of the transaction that is being made.
    pub(crate) fn stat(&self, revision: u64) -> ZnodeStat {
        self.planned_stat().at(revision)
    }

    /// What clients will be told of it when the transaction has its revision.
    pub(crate) fn planned_stat(&self) -> PlannedStat {
        let ChildCounts { made, live, changed } = self.children;
        // Both halves of the count wrap around as ZooKeeper's number of 32 bits does.
        #[expect(clippy::cast_possible_truncation, reason = "a counter of 32 bits that wraps around")]
        let child_version = made.wrapping_mul(2).wrapping_sub(live) as i32;
        let children_modified = if changed == 0 { self.created } else { changed };

        PlannedStat(ZnodeStat {
            created: self.created,
            modified: self.value.data_revision.unwrap_or(self.modified),
            created_ms: self.value.created_ms,
            modified_ms: self.value.modified_ms,
            version: self.value.version,
            child_version,
            acl_version: self.value.acl_version,
            owner: self.owner.unwrap_or_default(),
            data_bytes: self.value.data.as_ref().map_or(0, Bytes::len),
            children: live,
            children_modified,
        })
    }
}

impl PlannedStat {
    /// The same once the transaction has this revision.
    pub(crate) fn at(&self, revision: u64) -> ZnodeStat {
        let settled = |number: u64| if number == PENDING { revision } else { number };
        let Self(stat) = self;

        ZnodeStat {
            created: settled(stat.created),
            modified: settled(stat.modified),
            children_modified: settled(stat.children_modified),
            ..stat.clone()
        }
    }
}

/// The node of a path in a state of the store.
pub(crate) fn look_up(applied: &dyn AppliedZnodes, path: &ZnodePath) -> Option<Znode> {
    look_up_stored(path, |key| applied.get(key))
}

/// What clients are told of the node of a path. Nothing of its value is copied.
pub(crate) fn look_up_stat(applied: &dyn AppliedZnodes, path: &ZnodePath) -> Option<ZnodeStat> {
    let open = |stored: &ZookeeperEntry| Znode::with_value(stored, ZnodeValue::decode_without_acl(&stored.value));
    let node = look_up_with(path, |key| applied.get(key), open)?;
    Some(node.stat(applied.revision()))
}

/// The key in the store of a node, if it can have one.
pub(crate) fn stored_key(path: &ZnodePath) -> Option<Vec<u8>> {
    (!path.is_system()).then(|| path.key())
}

/// The node of a path, of which `get` knows the entries.
pub(crate) fn look_up_stored(path: &ZnodePath, get: impl FnOnce(&[u8]) -> Option<ZookeeperEntry>) -> Option<Znode> {
    look_up_with(path, get, Znode::from_stored)
}

fn look_up_with(
    path: &ZnodePath,
    get: impl FnOnce(&[u8]) -> Option<ZookeeperEntry>,
    open: impl Fn(&ZookeeperEntry) -> Znode,
) -> Option<Znode> {
    let Some(key) = stored_key(path) else { return system_node(path) };
    let stored = get(&key);
    if !path.is_root() {
        return stored.as_ref().map(open);
    }

    // One child of the root, /zookeeper, always exists and was never created. So the number of the first created child is 0.
    let mut root = stored.as_ref().map_or_else(|| Znode::system(0), open);
    root.created = 0;
    root.children.live += 1;
    Some(root)
}

fn system_node(path: &ZnodePath) -> Option<Znode> {
    let children = match path.as_str() {
        "/zookeeper" => 2,
        "/zookeeper/config" | "/zookeeper/quota" => 0,
        _ => return None,
    };
    let mut node = Znode::system(children);
    // Clients cannot write these nodes.
    node.value.acl = [AclEntry { permissions: permissions::READ, ..AclEntry::open() }].into();
    Some(node)
}
