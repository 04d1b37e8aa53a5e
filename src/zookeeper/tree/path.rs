//! Paths of nodes, and their keys in the store.
//!
//! ```text
//! path      key
//! /         zookeeper
//! /a        zookeeper\0a
//! /a/b      zookeeper/a\0b
//! ```
//!
//! So the children of a node are one range of keys, no two paths have the same key, and a rule of the policy for `zookeeper/a` is one for
//! all below `/a`.

use std::sync::Arc;

use crate::wire::ErrorCode;

/// The first key of all nodes: that of the root.
pub(crate) const ALL_FROM: &[u8] = b"zookeeper";
/// The end of the keys of all nodes: the byte after `/`.
pub(crate) const ALL_TO: &[u8] = b"zookeeper0";

/// Maximum bytes of a path: with it, the key of its node has 2 KiB, more than which no store takes.
pub(crate) const PATH_BYTES_MAX: usize = (2 << 10) - ALL_FROM.len();

/// The path of a node, as it must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ZnodePath(Arc<str>);

impl ZnodePath {
    /// The path of a request.
    pub(crate) fn parse(text: &str) -> Result<Self, ErrorCode> {
        let is_root = text == "/";
        let names = text.strip_prefix('/').ok_or(ErrorCode::BadArguments)?;
        let is_name = |name: &str| !matches!(name, "" | "." | "..");
        if text.len() > PATH_BYTES_MAX {
            return Err(ErrorCode::BadArguments);
        }
        if is_root || (names.split('/').all(is_name) && !text.chars().any(is_forbidden)) {
            Ok(Self(text.into()))
        } else {
            Err(ErrorCode::BadArguments)
        }
    }

    /// The root.
    pub(crate) fn root() -> Self {
        Self("/".into())
    }

    /// The path of a key of the store; `None` if it is the key of no node.
    pub(crate) fn from_key(key: &[u8]) -> Option<Self> {
        let rest = std::str::from_utf8(key.strip_prefix(ALL_FROM)?).ok()?;
        if rest.is_empty() {
            return Some(Self::root());
        }
        let (parent, name) = rest.rsplit_once('\0')?;
        Some(Self(format!("{parent}/{name}").into()))
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, shared.
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// Whether it is the root.
    pub(crate) fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// Whether it is one of the nodes that are always there and cannot be written, or would lie below one of them.
    pub(crate) fn is_system(&self) -> bool {
        self.0.strip_prefix("/zookeeper").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The parent; `None` for the root.
    pub(crate) fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        let parent = self.0.rsplit_once('/').map_or("", |(parent, _)| parent);
        Some(if parent.is_empty() { Self::root() } else { Self(parent.into()) })
    }

    /// The text that precedes the slash of a child.
    fn stem(&self) -> &str {
        if self.is_root() { "" } else { &self.0 }
    }

    /// The key in the store.
    pub(crate) fn key(&self) -> Vec<u8> {
        match self.0.rsplit_once('/') {
            _ if self.is_root() => ALL_FROM.to_vec(),
            Some((parent, name)) => [ALL_FROM, parent.as_bytes(), b"\0", name.as_bytes()].concat(),
            None => ALL_FROM.to_vec(),
        }
    }

    /// The range of the keys of its children.
    pub(crate) fn child_keys(&self) -> (Vec<u8>, Vec<u8>) {
        let stem = self.stem().as_bytes();
        ([ALL_FROM, stem, b"\0"].concat(), [ALL_FROM, stem, b"\x01"].concat())
    }

    /// The range of the keys of all that lies below its children.
    pub(crate) fn deeper_keys(&self) -> (Vec<u8>, Vec<u8>) {
        let stem = self.stem().as_bytes();
        ([ALL_FROM, stem, b"/"].concat(), [ALL_FROM, stem, b"0"].concat())
    }

    /// The key of the child whose name begins so; its number is appended by the store.
    pub(crate) fn child_key(&self, name: &str) -> Vec<u8> {
        [&*self.child_keys().0, name.as_bytes()].concat()
    }

    /// The path of a child.
    pub(crate) fn child(&self, name: &str) -> Result<Self, ErrorCode> {
        Self::parse(&format!("{}/{name}", self.stem()))
    }
}

/// Characters that a path must not have: the ones that ZooKeeper forbids, so that ZooKeeper accepts every path that is accepted here.
fn is_forbidden(character: char) -> bool {
    matches!(u32::from(character), 0..=0x1f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..)
}

/// The parent and the beginning of the name of a node that gets a number. The beginning may be empty.
pub(crate) fn split_numbered(text: &str) -> Result<(ZnodePath, &str), ErrorCode> {
    let (parent, name) = text.rsplit_once('/').ok_or(ErrorCode::BadArguments)?;
    let parent = if parent.is_empty() { ZnodePath::root() } else { ZnodePath::parse(parent)? };
    // With its number the name must be one.
    parent.child(&format!("{name}0000000000"))?;
    Ok((parent, name))
}
