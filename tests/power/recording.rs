//! The calls of several drivers, as one trace.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    disk::{Disk, read_image, write_image},
    layer::{self, Fault},
    support::temporary,
    trace::{self, Record},
};

/// Processes in one recording: each starts with the files that the previous one left after a kill or a power failure.
pub(crate) const GENERATIONS: u64 = 6;
const OPERATIONS: u64 = 160;

/// A parsed trace.
pub(crate) struct Recording {
    root: PathBuf,
    bytes: Arc<Vec<u8>>,
    pub(crate) records: Vec<Record>,
}

impl Recording {
    /// Reads a trace file about this directory.
    pub(crate) fn read(trace: &Path, root: &Path) -> Self {
        // The layer cannot be preloaded into a statically linked program.
        Self::parse(root, fs::read(trace).expect("the layer wrote it, unless this program is linked statically"))
    }

    fn parse(root: &Path, bytes: Vec<u8>) -> Self {
        let records = trace::read(&bytes, root);
        Self { root: root.to_owned(), bytes: Arc::new(bytes), records }
    }

    /// The file system before the first record.
    pub(crate) fn disk(&self, obeys_datasync: bool) -> Disk {
        Disk::new(self.bytes.clone(), obeys_datasync)
    }

    /// The file system after the last record.
    pub(crate) fn disk_at_end(&self) -> Disk {
        let mut disk = self.disk(true);
        self.records.iter().for_each(|record| drop(disk.apply(record)));
        disk
    }

    /// Checks that no change bypassed the layer.
    pub(crate) fn must_tell_all(&self) {
        assert!(self.disk_at_end().now() == read_image(&self.root), "the trace does not match the files");
    }

    /// Writes it to a file, so that a point of it can be replayed.
    pub(crate) fn keep(&self, name: &str) -> PathBuf {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("power").join(name);
        let mut bytes = self.root.display().to_string().into_bytes();
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.bytes);
        fs::write(&path, bytes).expect("cargo's directory for tests is writable");
        path
    }

    /// Reads a kept recording.
    pub(crate) fn kept(path: &Path) -> Self {
        let bytes = fs::read(path).expect("the file of a failed test");
        let end_of_root = bytes.iter().position(|byte| *byte == b'\n').expect("it begins with a line");
        let root = PathBuf::from(std::str::from_utf8(&bytes[..end_of_root]).expect("a path"));
        Self::parse(&root, bytes[end_of_root + 1..].to_vec())
    }
}

/// Runs drivers one after the other, each on the files of the previous one, and records their calls.
pub(crate) fn record(seed: u64, generations: u64) -> Recording {
    let directory = temporary();
    let aside = temporary();
    let root = directory.path();
    let trace = aside.path().join("trace");
    let mut random = StdRng::seed_from_u64(seed);
    for generation in 0..generations {
        let is_last = generation + 1 == generations;
        let fault = (!is_last && generation % 3 != 2).then(|| Fault::Kill(random.random_range(300..1500)));
        let ended = layer::run(root, &trace, random.random(), OPERATIONS, fault);
        assert!(ended.was_killed() || ended.is_success(), "seed {seed}: {ended}");
        let recording = Recording::read(&trace, root);
        recording.must_tell_all();
        match generation % 3 {
            _ if is_last => {}
            0 => trace::append_restart(&trace),
            _ => {
                trace::append_cut(&trace, random.random());
                write_image(&Recording::read(&trace, root).disk_at_end().now(), root);
            }
        }
    }
    Recording::read(&trace, root)
}
