//! The paths above a path, by their hashes.
//!
//! A recursive watch hears of all nodes below it, so each change asks for the watches at all of its ancestors: up to a thousand, with a
//! megabyte of text together. The hashes of all of them are made in one pass over the path, before the lock of the hub is taken. Below it,
//! a level is one look at a number, and its text is compared only where the number says that there is a watch.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    sync::Arc,
};

use crate::tree::ZnodePath;

/// Makes the hashes. The key is random, so no client can choose paths whose hashes are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct PathHasher(Arc<RandomState>);

/// An ancestor of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathAbove<'a> {
    pub(super) path: &'a str,
    pub(super) hash: u64,
}

impl PathHasher {
    /// The hash of a path itself.
    pub(super) fn hash(&self, path: &str) -> u64 {
        let mut hasher = self.0.build_hasher();
        if path != "/" {
            write_names(path, |_, name| hasher.write(name));
        }
        hasher.finish()
    }

    /// The ancestors of a path, from the root on.
    pub(super) fn above<'a>(&self, path: &'a ZnodePath) -> Vec<PathAbove<'a>> {
        let mut above = Vec::new();
        if path.is_root() {
            return above;
        }

        let path = path.as_str();
        let mut hasher = self.0.build_hasher();
        write_names(path, |before, name| {
            let ancestor = path.get(..before).filter(|ancestor| !ancestor.is_empty());
            above.push(PathAbove { path: ancestor.unwrap_or("/"), hash: hasher.finish() });
            hasher.write(name);
        });
        above
    }
}

/// Shows the names of a path with the slash before each, and the number of bytes before that. A hasher need not give the same for bytes
/// that come in other pieces.
fn write_names<'a>(path: &'a str, mut write: impl FnMut(usize, &'a [u8])) {
    let mut from = 0;
    for name in path.split_inclusive('/').skip(1) {
        let length = name.trim_end_matches('/').len() + 1;
        write(from, path.as_bytes().get(from..from + length).unwrap_or_default());
        from += length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ZnodePath {
        ZnodePath::parse(text).expect("a path")
    }

    #[test]
    fn the_hash_of_an_ancestor_is_that_of_its_path() {
        let hasher = PathHasher::default();
        let node = path("/seats/a5/é/0001");
        let above = hasher.above(&node);
        let paths: Vec<_> = above.iter().map(|above| above.path).collect();
        assert_eq!(paths, ["/", "/seats", "/seats/a5", "/seats/a5/é"]);
        for ancestor in &above {
            assert_eq!(ancestor.hash, hasher.hash(ancestor.path), "{}", ancestor.path);
        }

        assert_eq!(hasher.above(&path("/a")).len(), 1);
        assert_eq!(hasher.above(&ZnodePath::root()), []);
        assert_ne!(hasher.hash("/a/b"), hasher.hash("/ab"));
    }
}
