//! The key-value store under the log, as a trait, and its implementation with sled.
//!
//! There are no batches, transactions or asynchronous flushes. After a crash, sled 0.34 recovers a prefix of plain inserts and
//! removals that one thread makes in order. Its batches write and sync twice, and its `flush_async` can deadlock (sled #1308).

use std::io;

/// The tables of the log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Tree {
    /// The entries. `record` describes their format.
    Log,
    /// The vote, the commit index and other metadata.
    Meta,
}

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// A store whose writes survive a crash in the order in which they were made, up to some point at or after the last flush.
///
/// A trait, so that tests can use one whose flush fails or hangs.
pub trait Disk: Send + 'static {
    /// The value of a key.
    fn get(&self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
    /// All pairs from this key on, sorted by key.
    fn scan(&self, tree: Tree, from: &[u8]) -> impl Iterator<Item = io::Result<Pair>>;
    /// Inserts a value, or replaces it.
    fn insert(&mut self, tree: Tree, key: &[u8], value: Vec<u8>) -> io::Result<()>;
    /// Removes a key and returns its value.
    fn remove(&mut self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
    /// Removes a key that exists, without reading its value.
    fn discard(&mut self, tree: Tree, key: &[u8]) -> io::Result<()> {
        self.remove(tree, key).map(drop)
    }
    /// Returns when all writes are durable. After a failure the store must not be used again, because the result of a second
    /// attempt says nothing about the first.
    fn flush(&mut self) -> io::Result<()>;
    /// Called when the writer is idle. Here the store can do work that would delay others at another time.
    fn idle(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Finishes background work. Afterwards the store is only dropped.
    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log's two trees in one sled database. Clones share the database.
#[derive(Clone)]
pub struct SledDisk {
    log: sled::Tree,
    meta: sled::Tree,
}

impl SledDisk {
    /// The trees of this database. They are made if they do not exist.
    pub fn new(database: &sled::Db) -> io::Result<Self> {
        Ok(Self { log: database.open_tree("log")?, meta: database.open_tree("meta")? })
    }

    fn tree(&self, tree: Tree) -> &sled::Tree {
        match tree {
            Tree::Log => &self.log,
            Tree::Meta => &self.meta,
        }
    }
}

impl Disk for SledDisk {
    fn get(&self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.tree(tree).get(key)?.map(|value| value.to_vec()))
    }

    fn scan(&self, tree: Tree, from: &[u8]) -> impl Iterator<Item = io::Result<Pair>> {
        self.tree(tree).range(from..).map(|pair| {
            let (key, value) = pair?;
            Ok((key.to_vec(), value.to_vec()))
        })
    }

    fn insert(&mut self, tree: Tree, key: &[u8], value: Vec<u8>) -> io::Result<()> {
        self.tree(tree).insert(key, value)?;
        Ok(())
    }

    fn remove(&mut self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.tree(tree).remove(key)?.map(|value| value.to_vec()))
    }

    fn flush(&mut self) -> io::Result<()> {
        // This flushes the whole database, not only this tree.
        self.meta.flush()?;
        Ok(())
    }

    /// Flushes once more. Reads make sled rearrange its pages, too, and it would write these on drop, where an error is lost.
    fn close(&mut self) -> io::Result<()> {
        self.flush()
    }
}
