//! Makes one transaction of the requests of a write or of a multi.

use bytes::Bytes;

use super::overlay::{Overlay, PlannedChild};
use crate::{
    ZookeeperEntry, ZookeeperTxn, ZookeeperWrite,
    tree::{
        ClientIdentities, CreateMode, NodeLife, PENDING, PlannedStat, Znode, ZnodePath, ZnodeValue, split_numbered,
    },
    wire::{AclEntry, CreateRequest, ErrorCode, WriteOperation, permissions},
};

/// Maximum bytes of the access lists of one plan: those that are replaced by later ones count, too. An `auth` entry of 16 bytes stands for
/// up to 32 KiB.
const ACLS_BYTES_MAX: usize = 4 << 20;

/// Who asks, and when.
pub(super) struct Planner<'a> {
    /// What the client may do.
    pub(super) identities: &'a ClientIdentities,
    /// The session, for nodes that end with it.
    pub(super) session: u64,
    /// The time, in milliseconds since 1970.
    pub(super) wall_ms: i64,
}

/// The result of one request, once its transaction is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriteResult {
    /// A node was made by this write of the transaction.
    Created {
        /// The index of the write. Before the commit: among all that were planned.
        write: usize,
        /// The path, unless the store gave it.
        path: Option<ZnodePath>,
        /// What clients are told of the node, as the request left it.
        stat: PlannedStat,
    },
    Deleted,
    /// Data or an access list was replaced. What clients are told of the node, as the request left it.
    Written(PlannedStat),
    Checked,
}

/// Requests as a transaction.
pub(super) struct WritePlan {
    /// The transaction. If a request fails, it can only be refused: see [`WritePlan::failure`].
    pub(super) txn: ZookeeperTxn,
    /// The request of each write.
    pub(super) operations: Vec<usize>,
    /// The results, if no request fails.
    pub(super) results: Vec<WriteResult>,
    /// The first request that fails in the state of this node, and how. It is the answer if the transaction gets as far as that: if its
    /// conditions hold and it has no writes, or if the write after those of the requests before is refused, which always is.
    pub(super) failure: Option<(usize, ErrorCode)>,
}

impl WritePlan {
    /// Plans requests. `get` knows the entries of the store.
    pub(super) fn make(
        planner: &Planner<'_>,
        requests: &[WriteOperation],
        get: &dyn Fn(&[u8]) -> Option<ZookeeperEntry>,
    ) -> Self {
        let mut overlay = Overlay::new(get);
        let mut results = Vec::with_capacity(requests.len());
        let mut failure = None;
        for (operation, request) in requests.iter().enumerate() {
            match planner.plan(&mut overlay, operation, request) {
                Ok(result) => results.push(result),
                Err(code) => {
                    failure = Some((operation, code));
                    break;
                }
            }
        }

        let (mut txn, operations, places) = overlay.into_txn();
        if failure.is_some() && !txn.writes.is_empty() {
            txn.writes.push(refused_write(&txn.writes[0]));
        }
        for result in &mut results {
            if let WriteResult::Created { write, .. } = result {
                // If a multi deletes and recreates a node, the second creation has no write of its own.
                *write = places[*write].unwrap_or(usize::MAX);
            }
        }
        Self { txn, operations, results, failure }
    }
}

/// A write that always fails, because its parent key cannot belong to a node. It makes the store check the writes before it without
/// applying them. The key begins like that of another write of the transaction, so the client needs no further right for it.
fn refused_write(beside: &ZookeeperWrite) -> ZookeeperWrite {
    let (ZookeeperWrite::CreateChild { key, .. } | ZookeeperWrite::Put { key, .. } | ZookeeperWrite::Delete { key }) =
        beside;
    let parent = [key, &b"\x01"[..]].concat();
    let key = [&parent, &b"\x01"[..]].concat();
    ZookeeperWrite::CreateChild { parent, key, is_numbered: false, value: Vec::new().into(), owner: None }
}

impl Planner<'_> {
    fn plan(
        &self,
        overlay: &mut Overlay<'_>,
        operation: usize,
        request: &WriteOperation,
    ) -> Result<WriteResult, ErrorCode> {
        match request {
            WriteOperation::Create(request) => self.create(overlay, operation, request),
            WriteOperation::Delete { path, version } => self.delete(overlay, operation, path, *version),
            WriteOperation::Check { path, version } => {
                let path = ZnodePath::parse(path)?;
                let node = self.existing(overlay, &path, permissions::READ)?;
                check_version(*version, node.value.version)?;
                Ok(WriteResult::Checked)
            }
            WriteOperation::SetData { path, data, version } => {
                let path = writable(path)?;
                let node = self.existing(overlay, &path, permissions::WRITE)?;
                check_version(*version, node.value.version)?;

                let mut value = node.value.clone();
                value.version = value.version.wrapping_add(1);
                value.modified_ms = self.wall_ms;
                value.data_revision = None;
                value.data = data.as_deref().map(Bytes::copy_from_slice);
                written(overlay.put(operation, &path, value))
            }
            WriteOperation::SetAcl { path, acl, version } => {
                let path = writable(path)?;
                let acl = self.complete(overlay, acl)?;
                let node = self.existing(overlay, &path, permissions::ADMIN)?;
                check_version(*version, node.value.acl_version)?;

                let mut value = node.value.clone();
                value.acl_version = value.acl_version.wrapping_add(1);
                value.set_acl(acl);
                // From now on the entry's revision is no longer that of its data, unless both are written together.
                if value.data_revision.is_none() && node.modified != PENDING {
                    value.data_revision = Some(node.modified);
                }
                written(overlay.put(operation, &path, value))
            }
        }
    }

    /// An access list as it is kept.
    fn complete(&self, overlay: &mut Overlay<'_>, asked: &[AclEntry]) -> Result<Vec<AclEntry>, ErrorCode> {
        let acl = self.identities.complete(asked)?;
        overlay.acl_bytes += acl.iter().map(AclEntry::bytes).sum::<usize>();
        if overlay.acl_bytes > ACLS_BYTES_MAX { Err(ErrorCode::BadArguments) } else { Ok(acl) }
    }

    /// A node that must be there, and the right to do this with it.
    fn existing<'o>(
        &self,
        overlay: &'o mut Overlay<'_>,
        path: &ZnodePath,
        permissions: i32,
    ) -> Result<&'o Znode, ErrorCode> {
        let node = overlay.node(path).ok_or(ErrorCode::NoNode)?;
        self.identities.check(&node.value, permissions)?;
        Ok(node)
    }

    fn create(
        &self,
        overlay: &mut Overlay<'_>,
        operation: usize,
        request: &CreateRequest,
    ) -> Result<WriteResult, ErrorCode> {
        let mode = CreateMode::from_request(request)?;
        let (parent, path, key) = place(&request.path, mode.is_numbered)?;
        let acl = self.complete(overlay, &request.acl)?;
        if path.as_ref().is_some_and(|path| path.as_str() == "/zookeeper") {
            return Err(ErrorCode::NodeExists);
        }
        if parent.is_system() {
            // Quotas are kept there by ZooKeeper.
            return Err(ErrorCode::Unimplemented);
        }

        let above = self.existing(overlay, &parent, permissions::CREATE)?;
        let is_above_ephemeral = above.owner.is_some();
        // Whether the child exists in the store is for the store to say; what this plan has made itself, it would refuse as a second put.
        if path.as_ref().is_some_and(|path| overlay.is_known(path)) {
            return Err(ErrorCode::NodeExists);
        }
        if is_above_ephemeral {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }

        let owner = mode.is_ephemeral.then_some(self.session);
        let node = self.new_node(request, mode.life, acl, owner);
        let stat = node.planned_stat();
        let write = overlay.create(operation, PlannedChild { parent, path: path.clone(), key, node });
        Ok(WriteResult::Created { write, path, stat })
    }

    fn new_node(&self, request: &CreateRequest, life: NodeLife, acl: Vec<AclEntry>, owner: Option<u64>) -> Znode {
        let mut value = ZnodeValue {
            life,
            created_ms: self.wall_ms,
            modified_ms: self.wall_ms,
            data_revision: None,
            data: request.data.as_deref().map(Bytes::copy_from_slice),
            ..ZnodeValue::system()
        };
        value.set_acl(acl);

        Znode { value, created: PENDING, modified: PENDING, owner, children: crate::ChildCounts::default() }
    }

    fn delete(
        &self,
        overlay: &mut Overlay<'_>,
        operation: usize,
        path: &str,
        version: i32,
    ) -> Result<WriteResult, ErrorCode> {
        let path = writable(path)?;
        let parent = path.parent().ok_or(ErrorCode::BadArguments)?;
        let above = overlay.node(&parent).ok_or(ErrorCode::NoNode)?;
        self.identities.check(&above.value, permissions::DELETE)?;
        let node = overlay.node(&path).ok_or(ErrorCode::NoNode)?;
        check_version(version, node.value.version)?;
        overlay.delete(operation, &path, &parent);
        Ok(WriteResult::Deleted)
    }
}

/// The parent, the path unless it gets a number, and the key or what precedes its number.
fn place(text: &str, is_numbered: bool) -> Result<(ZnodePath, Option<ZnodePath>, Vec<u8>), ErrorCode> {
    if is_numbered {
        let (parent, name) = split_numbered(text)?;
        let key = parent.child_key(name);
        return Ok((parent, None, key));
    }

    let path = ZnodePath::parse(text)?;
    // The root is always there.
    let parent = path.parent().ok_or(ErrorCode::NodeExists)?;
    let key = path.key();
    Ok((parent, Some(path), key))
}

/// A path of a node that can be written.
fn writable(text: &str) -> Result<ZnodePath, ErrorCode> {
    let path = ZnodePath::parse(text)?;
    if path.is_system() { Err(ErrorCode::BadArguments) } else { Ok(path) }
}

fn written(stat: Option<PlannedStat>) -> Result<WriteResult, ErrorCode> {
    stat.map(WriteResult::Written).ok_or(ErrorCode::NoNode)
}

/// Whether a version is the one that was asked for; -1 asks for any.
fn check_version(asked: i32, is: i32) -> Result<(), ErrorCode> {
    if asked == -1 || asked == is { Ok(()) } else { Err(ErrorCode::BadVersion) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ChildCounts;

    /// A plan in a state in which each node that is asked for is there, with this value.
    fn plan(identities: &ClientIdentities, requests: &[WriteOperation], value: &ZnodeValue) -> WritePlan {
        let value = value.encode();
        let get = |_: &[u8]| {
            let children = ChildCounts::default();
            Some(ZookeeperEntry { created: 1, modified: 1, owner: None, children, value: Arc::clone(&value) })
        };
        WritePlan::make(&Planner { identities, session: 1, wall_ms: 0 }, requests, &get)
    }

    fn identities() -> ClientIdentities {
        ClientIdentities::new("127.0.0.1".parse().expect("an address"), None)
    }

    #[test]
    fn what_a_node_has_is_planned_once_however_often_a_multi_writes_it() {
        let set_acl = |number: i32| {
            let acl = vec![AclEntry { permissions: 16 + number % 2, ..AclEntry::open() }];
            WriteOperation::SetAcl { path: "/a".to_owned(), acl, version: -1 }
        };
        let requests: Vec<_> = (0..400).map(set_acl).collect();
        let value = ZnodeValue { data: Some(vec![7; 20_000].into()), ..ZnodeValue::system() };
        let plan = plan(&identities(), &requests, &value);

        assert_eq!((plan.results.len(), plan.txn.writes.len(), plan.failure), (400, 1, None));
        // All that the results hold is in this text: nothing of the data.
        let held = format!("{:?}", plan.results).len();
        assert!(held < 400 * 1_000, "{held} bytes");
        assert_eq!(plan.results[399], WriteResult::Written(written_stat(&value, 400)));
    }

    fn written_stat(value: &ZnodeValue, acl_version: i32) -> PlannedStat {
        let value = ZnodeValue { acl_version, ..value.clone() };
        let children = ChildCounts::default();
        Znode { value, created: 1, modified: PENDING, owner: None, children }.planned_stat()
    }

    #[test]
    fn access_lists_that_grow_in_a_multi_are_bounded() {
        let mut identities = identities();
        for number in 0..32 {
            identities.add_digest(&format!("{}{number}:hush", "u".repeat(900))).expect("an identity");
        }
        let auth = |permissions: i32| AclEntry { permissions, scheme: "auth".to_owned(), id: String::new() };
        let acl: Vec<_> = (1..8).map(auth).chain([AclEntry::open()]).collect();
        let set_acl = WriteOperation::SetAcl { path: "/a".to_owned(), acl, version: -1 };

        let plan = plan(&identities, &vec![set_acl; 1_000], &ZnodeValue::system());
        let (operation, code) = plan.failure.expect("it fails");
        assert_eq!(code, ErrorCode::BadArguments);
        assert!((10..20).contains(&operation), "{operation}");
    }
}
