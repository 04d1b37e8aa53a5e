use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
};

use futures::{FutureExt as _, executor::block_on, future::join_all};

use super::*;
use crate::{database::GuardedError, files};

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(20);

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn insert(map: &DurableMap, key: &str, value: &str) {
    block_on(map.insert(bytes(key), bytes(value))).expect("inserted");
}

fn damage(directory: &Path) -> String {
    match DurableMap::open(directory) {
        Err(OpenError::Damaged { what, .. }) => what,
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[test]
fn insertions_are_there_when_it_is_opened_again() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (map, contents) = DurableMap::open(directory.path()).expect("new");
    assert!(contents.is_empty());
    insert(&map, "b", "1");
    insert(&map, "a", "2");
    insert(&map, "b", "3");
    drop(map);

    let (_map, contents) = DurableMap::open(directory.path()).expect("closed");
    assert_eq!(contents, [(bytes("a"), bytes("2")), (bytes("b"), bytes("3"))]);
}

#[test]
fn it_is_opened_once_at_a_time() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let _map = DurableMap::open(directory.path()).expect("new");
    assert!(matches!(DurableMap::open(directory.path()), Err(OpenError::Locked { .. })));
}

#[test]
fn an_emptied_database_is_not_taken_for_a_new_one() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    drop(DurableMap::open(directory.path()).expect("new"));
    fs::remove_dir_all(directory.path().join("sled")).expect("removed");
    assert_eq!(damage(directory.path()), "its database was emptied");
}

#[test]
fn a_map_without_its_file_is_refused_once_it_has_values() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    drop(DurableMap::open(directory.path()).expect("new"));
    fs::remove_file(directory.path().join(opening::MADE)).expect("removed");
    let (map, _) = DurableMap::open(directory.path()).expect("as after a first opening that broke off");
    insert(&map, "a", "1");
    drop(map);
    fs::remove_file(directory.path().join(opening::MADE)).expect("removed");
    assert_eq!(damage(directory.path()), "the file `made` is missing");
}

/// sled writes its configuration first, in two pieces.
#[test]
fn a_first_opening_that_was_interrupted_is_taken_up() {
    let made = tempfile::tempdir().expect("a temporary directory");
    drop(DurableMap::open(made.path()).expect("new"));
    let whole = fs::read(made.path().join(opening::SLED).join("conf")).expect("readable");

    for length in [0, 1, whole.len() / 2, whole.len() - 1] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let sled = directory.path().join(opening::SLED);
        fs::create_dir(&sled).expect("made");
        fs::write(sled.join("conf"), &whole[..length]).expect("written");
        fs::write(sled.join("db"), "").expect("written");
        let (map, contents) = DurableMap::open(directory.path()).expect("nothing was ever stored");
        assert!(contents.is_empty());
        insert(&map, "a", "1");
        drop(map);

        // With values, half a configuration is not deleted. sled repairs a short one by itself, and refuses another.
        fs::write(sled.join("conf"), &whole[..length]).expect("written");
        match DurableMap::open(directory.path()) {
            Ok((_map, contents)) => assert_eq!(contents, [(bytes("a"), bytes("1"))], "{length} bytes"),
            Err(OpenError::Damaged { .. }) => {}
            Err(other) => panic!("another error: {other}"),
        }
    }
}

#[test]
fn a_full_disk_and_a_slow_one_are_not_taken_for_damage() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let partial = format!("{}{}", opening::MADE, files::PARTIAL_SUFFIX);
    std::os::unix::fs::symlink("/dev/full", directory.path().join(&partial)).expect("made");
    let full = DurableMap::open(directory.path()).expect_err("it cannot be written");
    assert!(matches!(full, OpenError::Full { .. }), "{full}");
    fs::remove_file(directory.path().join(&partial)).expect("removed");
    drop(DurableMap::open(directory.path()).expect("there is room now"));

    let limit = Duration::from_secs(60);
    let after = |error: GuardedError| opening::after_guarded(directory.path(), limit, error).to_string();
    let panic = "io error: Os { code: 28, kind: StorageFull, message: \"No space left on device\" }";
    for error in [GuardedError::Late, GuardedError::Panicked(panic.to_owned())] {
        let said = after(error);
        assert!(!said.contains("damaged") && !said.contains("an empty directory"), "{said}");
    }
    assert!(after(GuardedError::Panicked("a page is broken".to_owned())).contains("is damaged: sled panicked"));
}

/// A backend in memory whose flush waits for the test's permission, and may fail.
struct Fake {
    flushing: SyncSender<()>,
    go_on: Receiver<()>,
    inserted: Arc<AtomicUsize>,
    is_broken: Arc<AtomicBool>,
}

impl MapBackend for Fake {
    fn insert(&mut self, _key: &[u8], _value: &[u8]) -> io::Result<()> {
        self.inserted.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushing.send(()).expect("the test waits for it");
        self.go_on.recv_timeout(PATIENCE).expect("the test lets it through");
        if self.is_broken.load(Ordering::SeqCst) {
            Err(io::Error::new(io::ErrorKind::StorageFull, "no room"))
        } else {
            Ok(())
        }
    }
}

struct Harness {
    map: DurableMap,
    flushing: Receiver<()>,
    go_on: SyncSender<()>,
    inserted: Arc<AtomicUsize>,
    is_broken: Arc<AtomicBool>,
}

fn harness() -> Harness {
    let (flushing_in, flushing) = sync_channel(10);
    let (go_on, go_on_out) = sync_channel(10);
    let inserted = Arc::<AtomicUsize>::default();
    let is_broken = Arc::<AtomicBool>::default();
    let fake =
        Fake { flushing: flushing_in, go_on: go_on_out, inserted: inserted.clone(), is_broken: is_broken.clone() };
    let map = DurableMap::start(MapWriter::unlocked(fake)).expect("started");
    Harness { map, flushing, go_on, inserted, is_broken }
}

#[test]
fn insertions_during_a_flush_share_the_next_one() {
    let Harness { map, flushing, go_on, inserted, .. } = harness();
    thread::scope(|scope| {
        let first = scope.spawn(|| insert(&map, "first", "1"));
        flushing.recv().expect("it flushes");
        let mut others = (0..20).map(|n| Box::pin(map.insert(vec![n], vec![n]))).collect::<Vec<_>>();
        for other in &mut others {
            assert!(other.as_mut().now_or_never().is_none(), "nothing is durable yet");
        }
        assert_eq!(inserted.load(Ordering::SeqCst), 1);
        go_on.send(()).expect("it waits");
        go_on.send(()).expect("it has room");
        let answers = block_on(join_all(others));
        assert!(answers.iter().all(Result::is_ok));
        first.join().expect("no panic");
    });
    assert_eq!(inserted.load(Ordering::SeqCst), 21);
    assert_eq!(flushing.try_iter().count(), 1, "one flush for the twenty");
}

#[test]
fn a_failed_flush_is_not_repeated() {
    let Harness { map, flushing, go_on, inserted, is_broken } = harness();
    is_broken.store(true, Ordering::SeqCst);
    go_on.send(()).expect("it has room");
    let error = block_on(map.insert(bytes("a"), bytes("1"))).expect_err("the flush failed");
    assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::StorageFull, "no room"));
    is_broken.store(false, Ordering::SeqCst);

    let error = block_on(map.insert(bytes("b"), bytes("2"))).expect_err("closed");
    assert!(error.to_string().contains("earlier write"), "{error}");
    assert_eq!(inserted.load(Ordering::SeqCst), 1);
    assert_eq!(flushing.try_iter().count(), 1);
}
