//! Keys, session ids and the names of locks: how what ZooKeeper's clients name is called in the table.

use lockkeeper_machine::{Key, LockName, SessionId};
use lockkeeper_names::{has_hash, lock_for_key};
use lockkeeper_planted::Planted;

use crate::access::guard::ZOOKEEPER_SESSIONS;

/// The first part of the keys of nodes. The path of the parent, a NUL, and the name follow.
pub(super) const NODES: &[u8] = b"zookeeper";

/// Whether a key is one of a node.
pub(super) fn is_node(key: &Key) -> bool {
    let rest = key.as_bytes().strip_prefix(NODES);
    rest.is_some_and(|rest| rest.first().is_none_or(|first| matches!(first, b'/' | 0)))
}

/// The key of the parent of a node; `None` for the root.
pub(super) fn parent_key(key: &[u8]) -> Option<Vec<u8>> {
    let mut parts = key.rsplitn(2, |byte| *byte == 0);
    let _name = parts.next();
    let mut parent = parts.next()?.to_vec();

    // The last name of a path stands behind a NUL.
    if let Some(slash) = parent.iter_mut().rfind(|byte| **byte == b'/') {
        *slash = 0;
    }
    Some(parent)
}

/// The id of the session with this number.
pub(super) fn session_id(number: u64) -> SessionId {
    SessionId(ZOOKEEPER_SESSIONS | u128::from(number))
}

/// The number of a session, if it is one of this protocol's.
pub(super) fn session_number(session: SessionId) -> Option<u64> {
    // The XOR clears the high half only for ZooKeeper sessions.
    u64::try_from(session.0 ^ ZOOKEEPER_SESSIONS).ok()
}

/// The lock that a node with a session stands for: a place in the queue for its parent's path if its name is numbered, and otherwise its
/// own path.
pub(super) fn lock_of(parent: &[u8], key: &[u8], is_numbered: bool) -> Option<LockName> {
    let named = if is_numbered { parent } else { key };
    let path: Vec<_> = named.iter().map(|byte| if *byte == 0 { b'/' } else { *byte }).collect();
    let lock = lock_for_key(&path);
    let is_unnamed = has_hash(&lock) && Planted::RestoredUnnamed.is_on();
    (!is_unnamed).then_some(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_nodes_are_told_from_others() {
        let is_node = |key: &[u8]| is_node(&Key::new(key).expect("a key"));
        assert!([&b"zookeeper"[..], b"zookeeper\0app", b"zookeeper/app\0lock"].into_iter().all(is_node));
        assert!(![&b"zookeeper-secret"[..], b"zookeepers", b"etcd/zookeeper"].into_iter().any(is_node));
    }

    #[test]
    fn the_parent_of_a_node_is_found_by_its_key() {
        let parents = [&b"zookeeper"[..], b"zookeeper\0a", b"zookeeper/a\0b", b"zookeeper/a/b\0c"];
        for (parent, child) in parents.iter().zip(&parents[1..]) {
            assert_eq!(parent_key(child).as_deref(), Some(*parent));
        }
        assert_eq!(parent_key(b"zookeeper"), None);
    }

    #[test]
    fn sessions_are_numbers_and_come_back() {
        let session = session_id(u64::MAX >> 1);
        assert_eq!(session_number(session), Some(u64::MAX >> 1));
        assert_eq!(session_number(SessionId(7)), None);
    }

    #[test]
    fn a_numbered_node_queues_for_its_parent_and_another_holds_its_own_path() {
        let lock = |is_numbered| lock_of(b"zookeeper/app\0lock", b"zookeeper/app/lock\0n-0000000001", is_numbered);
        assert_eq!(lock(true).expect("a name").as_str(), "zookeeper/app/lock");
        assert_eq!(lock(false).expect("a name").as_str(), "zookeeper/app/lock/n-0000000001");

        let long = [&b"zookeeper\0"[..], &[b'a'; 600]].concat();
        let name = lock_of(b"zookeeper", &long, false).expect("a name");
        assert!(name.as_str().starts_with("zookeeper/aaa") && has_hash(&name), "{name}");
    }
}
