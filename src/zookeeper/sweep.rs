//! Removes nodes that end by themselves: containers that have had children, and nodes with a time to live.
//!
//! The node that leads calls this from time to time. Late is fine, early is not: what a node has seen once, it removes when it sees it
//! again, unchanged. A removal names the revision that was seen, and the store refuses it if a child has come.

use std::collections::HashMap;

use crate::{
    AppliedZnodes, ChildCounts, ZookeeperCondition, ZookeeperEntry, ZookeeperStore, ZookeeperStoreError, ZookeeperTxn,
    ZookeeperWrite,
    node::{ZookeeperNode, port},
    tree::{ALL_FROM, ALL_TO, NodeLife, ZnodeValue},
};

/// Entries that are looked at before others have a turn.
const PAGE: usize = 1_000;
/// Nodes that one transaction removes.
const REMOVED_AT_ONCE: usize = 64;

/// Nodes that were due when they were looked at last, by their keys: the revision of the entry, and its children.
pub(crate) type DueZnodes = HashMap<Vec<u8>, (u64, ChildCounts)>;

/// Looks at all nodes, removes those that were due before, and returns those that are due now, with the number of nodes that were removed.
pub(crate) async fn sweep<S: ZookeeperStore>(
    node: &ZookeeperNode<S>,
    before: &DueZnodes,
) -> Result<(DueZnodes, usize), ZookeeperStoreError> {
    let wall_ms = (node.options.wall_ms)();
    let mut due = DueZnodes::new();
    let mut from = ALL_FROM.to_vec();
    loop {
        let next = node.store.applied(|applied| find_due(applied, &from, wall_ms, &mut due));
        let Some(next) = next else { break };
        from = next;
        tokio::task::yield_now().await;
    }

    let is_ripe = |(key, seen): &(&Vec<u8>, &(u64, ChildCounts))| before.get(*key) == Some(*seen);
    let ripe: Vec<_> = due.iter().filter(is_ripe).map(|(key, (modified, _))| (key.clone(), *modified)).collect();
    let mut removed = 0;
    for some in ripe.chunks(REMOVED_AT_ONCE) {
        removed += remove(node, some).await?;
    }
    Ok((due, removed))
}

/// Looks at a page of nodes. Returns the key to go on from.
fn find_due(applied: &dyn AppliedZnodes, from: &[u8], wall_ms: i64, due: &mut DueZnodes) -> Option<Vec<u8>> {
    let mut seen = 0;
    let mut next = None;

    applied.range(from, ALL_TO, &mut |key, stored| {
        if seen == PAGE {
            next = Some(key.to_vec());
            return false;
        }
        seen += 1;
        if is_due(stored, wall_ms) {
            due.insert(key.to_vec(), (stored.modified, stored.children));
        }
        true
    });

    next
}

fn is_due(stored: &ZookeeperEntry, wall_ms: i64) -> bool {
    if stored.children.live > 0 || stored.owner.is_some() {
        return false;
    }
    let Some(value) = ZnodeValue::try_decode(&stored.value) else { return false };
    match value.life {
        NodeLife::Persistent => false,
        // A container that never had a child may be about to get its first one.
        NodeLife::Container => stored.children.made > 0,
        NodeLife::Ttl { ms } => wall_ms.saturating_sub(value.modified_ms) >= ms,
    }
}

/// Removes nodes, together if they can be, otherwise one by one: one that cannot must not keep the others.
async fn remove<S: ZookeeperStore>(
    node: &ZookeeperNode<S>,
    ripe: &[(Vec<u8>, u64)],
) -> Result<usize, ZookeeperStoreError> {
    let commit = async |some: &[(Vec<u8>, u64)]| {
        let condition = |(key, modified): &(Vec<u8>, u64)| ZookeeperCondition { key: key.clone(), modified: *modified };
        let txn = ZookeeperTxn {
            conditions: some.iter().map(condition).collect(),
            writes: some.iter().map(|(key, _)| ZookeeperWrite::Delete { key: key.clone() }).collect(),
            otherwise_get: Vec::new(),
        };
        let verdict = node.store.commit(&port(), None, txn).await?;
        Ok::<_, ZookeeperStoreError>(if verdict.refusal.is_none() { some.len() } else { 0 })
    };

    let together = commit(ripe).await?;
    if together > 0 || ripe.len() == 1 {
        return Ok(together);
    }
    let mut removed = 0;
    for one in ripe {
        removed += commit(std::slice::from_ref(one)).await?;
    }
    Ok(removed)
}
