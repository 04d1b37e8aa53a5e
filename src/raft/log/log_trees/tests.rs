//! Purges, counted on a disk in memory behind a journal.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use lockkeeper_storage::{disk::Pair, journaled::Journaled};

use super::*;

type Content = BTreeMap<(Tree, Vec<u8>), Vec<u8>>;

/// A disk in memory that counts the pairs that scans visit. Clones share the disk.
#[derive(Clone, Default)]
struct Counting {
    pairs: Arc<Mutex<Content>>,
    visits: Arc<AtomicUsize>,
}

impl Counting {
    fn pairs(&self) -> MutexGuard<'_, Content> {
        self.pairs.lock().expect("nothing panics while it has it")
    }
}

impl Disk for Counting {
    fn get(&self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.pairs().get(&(tree, key.to_vec())).cloned())
    }

    fn scan(&self, tree: Tree, from: &[u8]) -> impl Iterator<Item = io::Result<Pair>> {
        let from_here = self.pairs().split_off(&(tree, from.to_vec()));
        self.pairs().extend(from_here.clone());
        let of_tree = from_here.into_iter().take_while(move |((of, _), _)| *of == tree);
        of_tree.map(|((_, key), value)| {
            self.visits.fetch_add(1, Ordering::Relaxed);
            Ok((key, value))
        })
    }

    fn insert(&mut self, tree: Tree, key: &[u8], value: Vec<u8>) -> io::Result<()> {
        self.pairs().insert((tree, key.to_vec()), value);
        Ok(())
    }

    fn remove(&mut self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(self.pairs().remove(&(tree, key.to_vec())))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Counted, not timed: the removals of a slice stay in the journal's memory, above the disk's pairs, until they are settled. If each
/// slice began at the first key, the visits of a purge would grow with the square of its length.
#[test]
fn a_purge_comes_by_each_entry_once() {
    const SLICE: u64 = 100;
    for entries in [10 * SLICE, 80 * SLICE] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut disk = Counting::default();
        for index in 0..entries {
            disk.insert(Tree::Log, &EntryKey::head(index).encode(), vec![7]).expect("inserted");
        }
        let journaled = Journaled::open(disk.clone(), directory.path(), 1 << 20).expect("it opens");
        let mut trees = LogTrees::new(journaled);
        // Two purges, the second while the first one's removals are in memory.
        let mut slices = 0;
        for last in [entries / 2, entries - 1] {
            while !trees.remove_upwards(last, SLICE as usize).expect("removed") {
                trees.disk.flush().expect("flushed");
                slices += 1;
            }
        }
        assert!(slices >= entries / SLICE - 1, "{slices} slices of {entries} entries");
        assert_eq!(trees.disk.scan(Tree::Log, &[]).count(), 0, "all of it is gone");
        let visits = disk.visits.load(Ordering::Relaxed) as u64 - entries;
        // Each slice visits the last pair of the previous one, and the first one that stays.
        assert!(visits <= entries + 3 * slices, "{visits} pairs for {entries} entries");
    }
}
