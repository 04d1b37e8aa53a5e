//! What the log asks of a key-value store, and how sled gives it.
//!
//! Deliberately absent: batches, transactions and asynchronous flushes. Plain inserts and removals by one thread, in order, are
//! what sled 0.34 recovers a prefix of; its batches write and sync twice, and its `flush_async` can deadlock (sled #1308).

use std::io;

/// The tables of the log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Table {
    /// The entries; see `record`.
    Log,
    /// The vote and the like; see `meta`.
    Meta,
}

/// A key and its value.
pub(super) type Pair = (Vec<u8>, Vec<u8>);

/// A store whose writes survive in the order in which they were made, up to some point that is at or after the last flush.
///
/// A trait, so that tests can have one whose flush fails or hangs.
pub(super) trait Disk: Send + 'static {
    fn get(&self, table: Table, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
    /// All pairs from this key on, in the order of their keys.
    fn scan(&self, table: Table, from: &[u8]) -> impl Iterator<Item = io::Result<Pair>>;
    fn insert(&mut self, table: Table, key: &[u8], value: Vec<u8>) -> io::Result<()>;
    /// Answers what was there.
    fn remove(&mut self, table: Table, key: &[u8]) -> io::Result<Option<Vec<u8>>>;
    /// Removes a key that is known to be there: who does not ask for its value need not wait until that is read.
    fn discard(&mut self, table: Table, key: &[u8]) -> io::Result<()> {
        self.remove(table, key).map(drop)
    }
    /// Returns when all that was written is durable. After a failure the store must not be used again: what a second attempt
    /// reports says nothing about the first.
    fn flush(&mut self) -> io::Result<()>;
    /// Nothing was asked of it for a moment, and nothing waits: time for what nobody is to wait for.
    fn rest(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Ends what still goes on behind it. After this it is only dropped.
    fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log's two trees in one sled database. Clones are the same database.
#[derive(Clone)]
pub(super) struct SledDisk {
    log: sled::Tree,
    meta: sled::Tree,
}

impl SledDisk {
    pub(super) fn new(database: &sled::Db) -> io::Result<Self> {
        Ok(Self { log: database.open_tree("log")?, meta: database.open_tree("meta")? })
    }

    fn tree(&self, table: Table) -> &sled::Tree {
        match table {
            Table::Log => &self.log,
            Table::Meta => &self.meta,
        }
    }
}

impl Disk for SledDisk {
    fn get(&self, table: Table, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.tree(table).get(key)?.map(|value| value.to_vec()))
    }

    fn scan(&self, table: Table, from: &[u8]) -> impl Iterator<Item = io::Result<Pair>> {
        self.tree(table).range(from..).map(|pair| {
            let (key, value) = pair?;
            Ok((key.to_vec(), value.to_vec()))
        })
    }

    fn insert(&mut self, table: Table, key: &[u8], value: Vec<u8>) -> io::Result<()> {
        self.tree(table).insert(key, value)?;
        Ok(())
    }

    fn remove(&mut self, table: Table, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.tree(table).remove(key)?.map(|value| value.to_vec()))
    }

    fn flush(&mut self) -> io::Result<()> {
        // Of the whole database, whichever tree is asked.
        self.meta.flush()?;
        Ok(())
    }

    /// sled rearranges its pages when they are read, too. What is left of that it writes when it is dropped, where nobody hears of an error.
    fn close(&mut self) -> io::Result<()> {
        self.flush()
    }
}
