//! A disk that can be killed at any moment, behind a journal, compared with a map.

use std::sync::{Condvar, Mutex};

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

use super::*;

const JOURNAL_BYTES: u64 = 4 << 10;
const TREES: [Tree; 2] = [Tree::Log, Tree::Meta];

type Content = BTreeMap<(Tree, Vec<u8>), Vec<u8>>;

/// A disk in memory. Clones share the disk.
#[derive(Clone, Default)]
struct Fake(Arc<(Mutex<Inner>, Condvar)>);

#[derive(Default)]
struct Inner {
    synced: Content,
    /// Unsynced writes: a crash keeps a prefix of them.
    pending: Vec<(Tree, Vec<u8>, Option<Vec<u8>>)>,
    is_dead: bool,
    /// The disk dies after this many more changes.
    dies_after: Option<usize>,
    /// While set, changes wait.
    is_held: bool,
    flushes: usize,
}

impl Inner {
    fn content(&self, pending: usize) -> Content {
        let mut content = self.synced.clone();
        for (tree, key, value) in &self.pending[..pending] {
            let at = (*tree, key.clone());
            match value {
                Some(value) => drop(content.insert(at, value.clone())),
                None => drop(content.remove(&at)),
            }
        }
        content
    }

    fn all(&self) -> Content {
        self.content(self.pending.len())
    }

    fn alive(&self) -> io::Result<()> {
        if self.is_dead { Err(io::Error::other("it is dead")) } else { Ok(()) }
    }
}

impl Fake {
    fn with<T>(&self, what: impl FnOnce(&mut Inner) -> T) -> T {
        let done = what(&mut self.0.0.lock().expect("nothing panics while it has it"));
        self.0.1.notify_all();
        done
    }

    fn change(&self, tree: Tree, key: &[u8], value: Option<Vec<u8>>) -> io::Result<()> {
        let inner = self.0.0.lock().expect("nothing panics while it has it");
        let mut inner = self.0.1.wait_while(inner, |inner| inner.is_held).expect("nothing panics while it has it");
        inner.alive()?;
        match &mut inner.dies_after {
            Some(0) => inner.is_dead = true,
            Some(more) => *more -= 1,
            None => {}
        }
        inner.alive()?;
        inner.pending.push((tree, key.to_vec(), value));
        Ok(())
    }

    /// The disk that another process finds after a crash.
    fn after_crash(&self, random: &mut StdRng) -> Self {
        let synced = self.with(|inner| inner.content(random.random_range(0..=inner.pending.len())));
        let next = Self::default();
        next.with(|inner| inner.synced = synced);
        next
    }
}

impl Disk for Fake {
    fn get(&self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.with(|inner| inner.alive().map(|()| inner.all().remove(&(tree, key.to_vec()))))
    }

    fn scan(&self, tree: Tree, from: &[u8]) -> impl Iterator<Item = io::Result<Pair>> {
        let all = self.with(|inner| inner.all());
        let from = from.to_vec();
        all.into_iter()
            .filter(move |((of, key), _)| *of == tree && *key >= from)
            .map(|((_, key), value)| Ok((key, value)))
    }

    fn insert(&mut self, tree: Tree, key: &[u8], value: Vec<u8>) -> io::Result<()> {
        self.change(tree, key, Some(value))
    }

    fn remove(&mut self, tree: Tree, key: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let was = self.get(tree, key)?;
        self.change(tree, key, None).map(|()| was)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.with(|inner| {
            inner.alive()?;
            inner.synced = inner.all();
            inner.pending.clear();
            inner.flushes += 1;
            Ok(())
        })
    }

    fn close(&mut self) -> io::Result<()> {
        self.flush()
    }
}

/// The content of a disk, without the journal's state.
fn content(disk: &impl Disk) -> Content {
    let mut content = Content::new();
    for tree in TREES {
        let mut last = None;
        for pair in disk.scan(tree, &[]) {
            let (key, value) = pair.expect("readable");
            assert!(last.as_ref() < Some(&key), "in order, each once");
            last = Some(key.clone());
            content.insert((tree, key), value);
        }
    }
    content.remove(&(Tree::Meta, STATE_KEY.to_vec()));
    content
}

fn open(disk: &Fake, directory: &Path) -> Journaled<Fake> {
    Journaled::open(disk.clone(), directory, JOURNAL_BYTES).expect("it opens")
}

/// Does a random operation on the disk and on the model.
fn act(journaled: &mut Journaled<Fake>, model: &mut Content, random: &mut StdRng) {
    let tree = TREES[random.random_range(0..2)];
    let key = vec![random.random_range(0..40)];
    match random.random_range(0..4) {
        0 => {
            let was = journaled.remove(tree, &key).expect("removed");
            assert_eq!(was, model.remove(&(tree, key)));
        }
        1 => assert_eq!(journaled.get(tree, &key).expect("read"), model.get(&(tree, key)).cloned()),
        2 => {
            let found: Vec<_> = journaled.scan(tree, &key).collect::<io::Result<_>>().expect("readable");
            let is_ours = |(_, key): &&(Tree, Vec<u8>)| *key != STATE_KEY;
            let there = model.iter().filter(|((of, at), _)| *of == tree && *at >= key);
            let there: Vec<_> = there.map(|((_, at), value)| (at.clone(), value.clone())).collect();
            let found: Vec<_> = found.into_iter().filter(|(at, _)| is_ours(&&(tree, at.clone()))).collect();
            assert_eq!(found, there);
        }
        _ => {
            let value = vec![random.random(); random.random_range(0..600)];
            journaled.insert(tree, &key, value.clone()).expect("inserted");
            model.insert((tree, key), value);
        }
    }
}

#[test]
fn flushed_changes_survive_any_crash() {
    let mut flushes = 0;
    let mut crashes_at_opening = 0;
    for seed in 0..300 {
        // How much is left for an opening to do depends on how far the settler's thread came.
        if seed >= 30 && flushes > 300 && crashes_at_opening > 20 {
            break;
        }

        let mut random = StdRng::seed_from_u64(seed);
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut disk = Fake::default();
        let mut durable = Content::new();
        for _ in 0..4 {
            let mut journaled = open(&disk, directory.path());
            assert_eq!(content(&journaled), durable, "seed {seed}");
            let mut model = durable.clone();
            let mut held_for = 0_u32;
            for _ in 0..random.random_range(0..400) {
                act(&mut journaled, &mut model, &mut random);
                if random.random_range(0..5) == 0 {
                    journaled.flush().expect("flushed");
                    durable.clone_from(&model);
                }
                held_for = if held_for > 0 { held_for - 1 } else { random.random_range(0..60_u32).saturating_sub(20) };
                // Not so long that the journal would have to wait: the test could not release the disk then.
                let may_wait = journaled.journal.used() < 2 * JOURNAL_BYTES;
                disk.with(|inner| inner.is_held = held_for > 0 && may_wait);
            }
            disk.with(|inner| (inner.is_held, inner.is_dead) = (false, random.random_bool(0.7)));
            drop(journaled);
            flushes += disk.with(|inner| inner.flushes);
            disk = disk.after_crash(&mut random);
            // An opening may be interrupted too.
            disk.with(|inner| inner.dies_after = Some(random.random_range(0..60)));
            if Journaled::open(disk.clone(), directory.path(), JOURNAL_BYTES).is_err() {
                crashes_at_opening += 1;
                disk = disk.after_crash(&mut random);
            }
            disk.with(|inner| inner.dies_after = None);
        }
    }
    assert!(flushes > 300 && crashes_at_opening > 20, "{flushes} flushes, {crashes_at_opening} broken openings");
}

#[test]
fn an_error_of_settling_fails_the_next_flush() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let disk = Fake::default();
    let mut journaled = open(&disk, directory.path());
    disk.with(|inner| inner.is_dead = true);
    let mut flushes = 0;
    let error = loop {
        journaled.insert(Tree::Log, &[flushes], vec![0; 1000]).expect("it goes to the journal");
        match journaled.flush() {
            Ok(()) => flushes += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.to_string(), "it is dead");
    assert!(flushes >= 3, "what was in the journal was durable all the same");
}

#[test]
fn closing_returns_the_error_of_the_disk() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let disk = Fake::default();
    let mut journaled = open(&disk, directory.path());
    journaled.close().expect("the disk is in order");
    disk.with(|inner| inner.is_dead = true);
    assert_eq!(journaled.close().expect_err("the disk is dead").to_string(), "it is dead");
}

#[test]
fn a_journal_that_is_gone_is_damage() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let disk = Fake::default();
    drop(open(&disk, directory.path()));
    std::fs::remove_file(directory.path().join("journal-1")).expect("removed");
    let error = Journaled::open(disk, directory.path(), JOURNAL_BYTES).err().expect("not opened");
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (io::ErrorKind::InvalidData, "its file `journal-1` is missing")
    );
}

/// Sectors that remain of a torn record complete no record that is written over them.
#[test]
fn remains_of_a_torn_record_complete_no_other() {
    const SECTOR_BYTES: usize = 512;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("journal-0");
    let read = || std::fs::read(&file).expect("readable");
    let disk = Fake::default();
    let write = |value: u8| {
        let mut journaled = open(&disk, directory.path());
        let before = read();
        journaled.insert(Tree::Log, b"key", vec![value; 1200]).expect("inserted");
        journaled.flush().expect("flushed");
        before
    };
    // Of the first record only its second sector was written; of the next one, in the same place, all others.
    let mut torn = write(1);
    let sectors = [0, SECTOR_BYTES, 2 * SECTOR_BYTES];
    let copy =
        |from: &[u8], to: &mut [u8], at: usize| to[at..at + SECTOR_BYTES].copy_from_slice(&from[at..at + SECTOR_BYTES]);
    copy(&read(), &mut torn, sectors[1]);
    std::fs::write(&file, &torn).expect("written");
    let mut torn = write(2);
    copy(&read(), &mut torn, sectors[0]);
    copy(&read(), &mut torn, sectors[2]);
    std::fs::write(&file, &torn).expect("written");
    assert_eq!(content(&open(&disk, directory.path())), Content::new(), "neither was acknowledged");
}
