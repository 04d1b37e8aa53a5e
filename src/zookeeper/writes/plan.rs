//! Makes one transaction of the requests of a write or of a multi.

use super::overlay::{Overlay, PlannedChild};
use crate::{
    StoredZnode, ZnodeTxn, ZnodeWrite,
    tree::{ClientIdentities, CreateMode, NodeLife, PENDING, Znode, ZnodePath, ZnodeValue, split_numbered},
    wire::{CreateRequest, ErrorCode, WriteOperation, permissions},
};

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
        /// The node, as the request left it.
        node: Box<Znode>,
    },
    Deleted,
    /// Data or an access list was replaced. The node, as the request left it.
    Written(Box<Znode>),
    Checked,
}

/// Requests as a transaction.
pub(super) struct WritePlan {
    /// The transaction. If a request fails, it can only be refused: see [`WritePlan::failure`].
    pub(super) txn: ZnodeTxn,
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
        get: &dyn Fn(&[u8]) -> Option<StoredZnode>,
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
                // A node that went again within the multi has no write of its own only if it is the second of its name.
                *write = places[*write].unwrap_or(usize::MAX);
            }
        }
        Self { txn, operations, results, failure }
    }
}

/// A write that is refused in every state: its parent has a key that is no node's. So the writes before it are judged, and nothing is done.
/// The key begins as that of a write beside it, so that no right is missing for this one alone.
fn refused_write(beside: &ZnodeWrite) -> ZnodeWrite {
    let (ZnodeWrite::CreateChild { key, .. } | ZnodeWrite::Put { key, .. } | ZnodeWrite::Delete { key }) = beside;
    let parent = [key, &b"\x01"[..]].concat();
    let key = [&parent, &b"\x01"[..]].concat();
    ZnodeWrite::CreateChild { parent, key, is_numbered: false, value: Vec::new().into(), owner: None }
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
                value.data.clone_from(data);
                written(overlay.put(operation, &path, value))
            }
            WriteOperation::SetAcl { path, acl, version } => {
                let path = writable(path)?;
                let acl = self.identities.complete(acl)?;
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
        let acl = self.identities.complete(&request.acl)?;
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
        let child = PlannedChild { parent, path: path.clone(), key, node: node.clone() };
        let write = overlay.create(operation, child);
        Ok(WriteResult::Created { write, path, node: Box::new(node) })
    }

    fn new_node(
        &self,
        request: &CreateRequest,
        life: NodeLife,
        acl: Vec<crate::wire::AclEntry>,
        owner: Option<u64>,
    ) -> Znode {
        let mut value = ZnodeValue {
            life,
            created_ms: self.wall_ms,
            modified_ms: self.wall_ms,
            data_revision: None,
            data: request.data.clone(),
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

fn written(node: Option<Znode>) -> Result<WriteResult, ErrorCode> {
    node.map(|node| WriteResult::Written(Box::new(node))).ok_or(ErrorCode::NoNode)
}

/// Whether a version is the one that was asked for; -1 asks for any.
fn check_version(asked: i32, is: i32) -> Result<(), ErrorCode> {
    if asked == -1 || asked == is { Ok(()) } else { Err(ErrorCode::BadVersion) }
}
