//! The state that a plan sees: the stored nodes, with the changes of the plan up to now.
//!
//! A multi may write a node several times; the store takes one put of a key. So the overlay keeps the net effect: a put that follows
//! another one changes it, and a node that comes and goes within the multi leaves nothing but the numbers of its parent.

use std::{collections::HashMap, sync::Arc};

use crate::{
    ZookeeperCondition, ZookeeperEntry, ZookeeperTxn, ZookeeperWrite,
    tree::{PENDING, PlannedStat, Znode, ZnodePath, ZnodeValue, look_up_stored, stored_key},
};

/// What a plan knows of one path.
struct OverlaidZnode {
    node: Option<Znode>,
    /// The write that puts it, if there is one.
    put: Option<usize>,
    /// Whether an entry of the store is deleted by the plan.
    is_deleted: bool,
    /// The writes that make the node and end it, if it came and went within the plan.
    first_life: Option<(usize, usize)>,
}

/// A write of the plan.
struct PlannedWrite {
    write: ZookeeperWrite,
    /// The value that it gives the entry. It becomes bytes when the plan is made: an earlier value of the same entry is never sent.
    value: Option<ZnodeValue>,
    /// The request that it is for.
    operation: usize,
}

/// The state that a plan sees, and its writes so far.
pub(super) struct Overlay<'a> {
    get: &'a dyn Fn(&[u8]) -> Option<ZookeeperEntry>,
    nodes: HashMap<ZnodePath, OverlaidZnode>,
    conditions: Vec<ZookeeperCondition>,
    writes: Vec<Option<PlannedWrite>>,
    /// Bytes of all access lists that its requests have given.
    pub(super) acl_bytes: usize,
}

impl<'a> Overlay<'a> {
    /// A state of the store of which nothing was read.
    pub(super) fn new(get: &'a dyn Fn(&[u8]) -> Option<ZookeeperEntry>) -> Self {
        Self { get, nodes: HashMap::new(), conditions: Vec::new(), writes: Vec::new(), acl_bytes: 0 }
    }

    /// The node of a path. What is read becomes a condition of the transaction.
    pub(super) fn node(&mut self, path: &ZnodePath) -> Option<&Znode> {
        if !self.nodes.contains_key(path) {
            let node = look_up_stored(path, |key| {
                let stored = (self.get)(key);
                let modified = stored.as_ref().map_or(0, |stored| stored.modified);
                self.conditions.push(ZookeeperCondition { key: key.to_vec(), modified });
                stored
            });
            self.nodes.insert(path.clone(), OverlaidZnode { node, put: None, is_deleted: false, first_life: None });
        }
        self.nodes.get(path).and_then(|known| known.node.as_ref())
    }

    /// Whether the plan knows that there is a node. It reads nothing: the store finds out.
    pub(super) fn is_known(&self, path: &ZnodePath) -> bool {
        self.nodes.get(path).is_some_and(|known| known.node.is_some())
    }

    fn push(&mut self, operation: usize, write: ZookeeperWrite, value: Option<ZnodeValue>) -> usize {
        self.writes.push(Some(PlannedWrite { write, value, operation }));
        self.writes.len() - 1
    }

    /// Counts a child that comes, or goes.
    fn note_child(&mut self, parent: &ZnodePath, is_made: bool) {
        if let Some(node) = self.nodes.get_mut(parent).and_then(|known| known.node.as_mut()) {
            node.children.changed = PENDING;
            if is_made {
                node.children.made += 1;
                node.children.live += 1;
            } else {
                // A child that this node has not heard of yet may be deleted: its own condition will tell.
                node.children.live = node.children.live.saturating_sub(1);
            }
        }
    }

    /// Plans a child. Returns the index of the write, among all that were planned.
    pub(super) fn create(&mut self, operation: usize, child: PlannedChild) -> usize {
        let PlannedChild { parent, path, key, node } = child;
        let write = ZookeeperWrite::CreateChild {
            parent: parent.key(),
            key,
            is_numbered: path.is_none(),
            value: Arc::default(),
            owner: node.owner,
        };
        let value = Some(node.value.clone());

        self.note_child(&parent, true);
        let Some(path) = path else { return self.push(operation, write, value) };
        let known = self.nodes.get(&path);
        let first_life = known.and_then(|known| known.first_life);
        let is_deleted = first_life.is_none() && known.is_some_and(|known| known.is_deleted);

        // The store takes one put of a key. So a node that comes, goes and comes again is made once, at its first place, where what was
        // made below it meanwhile finds it. Its parent counts one child less than ZooKeeper's.
        let index = if let Some((made, ended)) = first_life {
            if let Some(planned) = self.writes[made].as_mut() {
                planned.write = write;
                planned.value = value;
            }
            self.writes[ended] = None;
            made
        } else {
            self.push(operation, write, value)
        };
        self.nodes.insert(path, OverlaidZnode { node: Some(node), put: Some(index), is_deleted, first_life: None });
        index
    }

    /// Plans another value for a node that was read. Returns what clients are told of the node as it is then.
    pub(super) fn put(&mut self, operation: usize, path: &ZnodePath, value: ZnodeValue) -> Option<PlannedStat> {
        let put = self.nodes.get(path)?.put;
        if let Some(planned) = put.and_then(|index| self.writes[index].as_mut()) {
            planned.value = Some(value.clone());
        } else {
            let write = ZookeeperWrite::Put { key: stored_key(path)?, value: Arc::default() };
            let index = self.push(operation, write, Some(value.clone()));
            self.nodes.get_mut(path)?.put = Some(index);
        }

        let node = self.nodes.get_mut(path)?.node.as_mut()?;
        node.value = value;
        node.modified = PENDING;
        Some(node.planned_stat())
    }

    /// Plans the end of a node that was read.
    pub(super) fn delete(&mut self, operation: usize, path: &ZnodePath, parent: &ZnodePath) {
        let Some(known) = self.nodes.get_mut(path) else { return };
        known.node = None;
        let put = known.put.take();
        let is_made_here = put.and_then(|index| self.writes[index].as_ref()).is_some_and(PlannedWrite::is_create);

        // What this plan wrote into an entry of the store ends with it; so does a second life of the node within the plan. A first life
        // stays, since it counts for the parent.
        let was_deleted = std::mem::replace(&mut known.is_deleted, true);
        if let Some(index) = put
            && (!is_made_here || was_deleted)
        {
            self.writes[index] = None;
        }
        if !(is_made_here && was_deleted) {
            let ended = self.push(operation, ZookeeperWrite::Delete { key: path.key() }, None);
            let first_life = put.filter(|_| is_made_here).map(|made| (made, ended));
            if let Some(known) = self.nodes.get_mut(path) {
                known.first_life = first_life;
            }
        }
        self.note_child(parent, false);
    }

    /// The transaction, and the request of each of its writes.
    pub(super) fn into_txn(self) -> (ZookeeperTxn, Vec<usize>, Vec<Option<usize>>) {
        let mut places = Vec::with_capacity(self.writes.len());
        let mut writes = Vec::new();
        let mut operations = Vec::new();
        for planned in self.writes {
            places.push(planned.as_ref().map(|_| writes.len()));
            if let Some(PlannedWrite { mut write, value, operation }) = planned {
                if let Some(value) = value {
                    write.set_value(value.encode());
                }
                writes.push(write);
                operations.push(operation);
            }
        }

        let otherwise_get = self.conditions.iter().map(|condition| condition.key.clone()).collect();
        (ZookeeperTxn { conditions: self.conditions, writes, otherwise_get }, operations, places)
    }
}

/// A child that is planned.
pub(super) struct PlannedChild {
    /// Its parent, which was read.
    pub(super) parent: ZnodePath,
    /// Its path, unless the store appends a number.
    pub(super) path: Option<ZnodePath>,
    /// Its key, or what precedes its number.
    pub(super) key: Vec<u8>,
    /// The node.
    pub(super) node: Znode,
}

impl PlannedWrite {
    fn is_create(&self) -> bool {
        matches!(self.write, ZookeeperWrite::CreateChild { .. })
    }
}

impl ZookeeperWrite {
    fn set_value(&mut self, new: Arc<[u8]>) {
        match self {
            Self::CreateChild { value, .. } | Self::Put { value, .. } => *value = new,
            Self::Delete { .. } => {}
        }
    }
}
