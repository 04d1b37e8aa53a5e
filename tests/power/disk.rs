//! A file system as a trace describes it, and its possible states after a power failure.
//!
//! Only synced data are certain: a file's content up to its last `fsync` or `fdatasync` that had returned, and the names in a
//! directory up to its own last sync. For all later changes a seed decides:
//! * a write is kept, dropped, or torn: each of its 512-byte sectors separately, since a disk writes a sector atomically;
//! * writes survive in order, or in any combination;
//! * a file's size is the synced one, the one that the kept writes need, or the newest, with zeros in the gaps;
//! * creations, renames and deletions survive in order, as with a journal, or in any combination. POSIX promises no more than the
//!   latter; ext4, XFS and btrfs do.
//!
//! These power failures lose no acknowledged data. But a few in ten thousand such logs are refused, all of them cut while they were
//! opened. sled renames a new snapshot, deletes the old one, and then clears segments, without a sync of the directory between these
//! steps: it cannot recover from cleared segments with the old snapshot, or with none.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::trace::{Call, Record};

const SECTOR_BYTES: usize = 512;

/// The file with the driver's reports. It lies next to the log, and power failures do not affect it.
pub(crate) const SAID: &str = "said";

/// Paths and contents; `None`: a directory.
pub(crate) type Image = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// A file system at one point of a trace.
pub(crate) struct Disk {
    trace: Arc<Vec<u8>>,
    files: Vec<Content>,
    names: BTreeMap<PathBuf, Node>,
    durable_names: BTreeMap<PathBuf, Node>,
    pending_names: Vec<(u64, NameChange)>,
    open: HashMap<i32, Opened>,
    /// The syncs in progress: their file or directory, and the number of calls before them.
    syncs: HashMap<u64, (Opened, u64)>,
    calls: u64,
    /// Whether an `fdatasync` makes data durable.
    obeys_datasync: bool,
    /// Whether data of a failed sync are never written: see [`with_stale_cache`](Self::with_stale_cache).
    has_stale_cache: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Node {
    Directory,
    File(usize),
}

#[derive(Clone, Debug)]
enum Opened {
    Directory(PathBuf),
    File(usize),
    /// The driver's reports.
    Said,
}

#[derive(Default)]
struct Content {
    durable: Vec<u8>,
    pending: Vec<(u64, Change)>,
    /// The kernel's cached content, if it differs from the content above.
    cached: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, bytes: std::ops::Range<usize> },
    Truncate { length: u64 },
}

#[derive(Clone, Debug)]
enum NameChange {
    Create(PathBuf, Node),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf, Node),
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, Node>) {
        match self {
            Self::Create(path, node) => drop(names.insert(path.clone(), *node)),
            Self::Remove(path) => drop(names.remove(path)),
            Self::Rename(from, to, node) => {
                names.remove(from);
                names.insert(to.clone(), *node);
            }
        }
    }

    fn directory(&self) -> &Path {
        let (Self::Create(path, _) | Self::Remove(path) | Self::Rename(path, _, _)) = self;
        path.parent().expect("it is below the root")
    }
}

impl Disk {
    /// An empty file system. The control does not obey `fdatasync`.
    pub(crate) fn new(trace: Arc<Vec<u8>>, obeys_datasync: bool) -> Self {
        Self {
            trace,
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            open: HashMap::new(),
            syncs: HashMap::new(),
            calls: 0,
            obeys_datasync,
            has_stale_cache: false,
        }
    }

    /// A file system whose kernel keeps the data of a failed sync as if they were on the disk, and never writes them.
    pub(crate) fn with_stale_cache(self) -> Self {
        Self { has_stale_cache: true, ..self }
    }

    /// Applies a record. Returns the driver's report if the record writes one.
    pub(crate) fn apply(&mut self, record: &Record) -> Option<String> {
        self.calls += 1;
        match &record.call {
            Call::Open { path, creates, truncates } => self.open(record.file, path, *creates, *truncates),
            Call::Close => drop(self.open.remove(&record.file)),
            Call::Write { offset, bytes } => match self.opened(record.file) {
                Opened::Said => return Some(String::from_utf8_lossy(&self.trace[bytes.clone()]).into_owned()),
                Opened::File(file) => self.change(file, Change::Write { offset: *offset, bytes: bytes.clone() }),
                Opened::Directory(path) => panic!("{} is a directory", path.display()),
            },
            Call::Truncate { length } => match self.opened(record.file) {
                Opened::File(file) => self.change(file, Change::Truncate { length: *length }),
                Opened::Said | Opened::Directory(_) => panic!("only the log's own files are truncated"),
            },
            Call::Sync { number, is_data } => {
                if self.obeys_datasync || !is_data {
                    let what = self.opened(record.file);
                    self.syncs.insert(*number, (what, self.calls));
                }
            }
            Call::Synced { number } => {
                if let Some((what, begun)) = self.syncs.remove(number) {
                    self.synced(&what, begun);
                }
            }
            Call::Rename { from, to } => {
                let node = *self.names.get(from).expect("a renamed file exists");
                self.name(NameChange::Rename(from.clone(), to.clone(), node));
            }
            Call::Unlink { path } => self.name(NameChange::Remove(path.clone())),
            Call::MakeDirectory { path } => self.name(NameChange::Create(path.clone(), Node::Directory)),
            Call::Fault { call } => {
                if let (true, true, Some(Opened::File(file))) =
                    (self.has_stale_cache, call.ends_with("sync"), self.open.get(&record.file))
                {
                    self.files[*file].fail_to_sync(&self.trace);
                }
            }
            Call::Forget => {
                if let Opened::File(file) = self.opened(record.file) {
                    self.files[file].cached = None;
                }
            }
            Call::Cut { seed } => {
                let image = self.after_power_failure(*seed);
                self.restart();
                self.become_image(image);
            }
            Call::Restart => self.restart(),
        }
        None
    }

    fn opened(&self, file: i32) -> Opened {
        self.open.get(&file).expect("the file is open").clone()
    }

    fn open(&mut self, file: i32, path: &Path, creates: bool, truncates: bool) {
        if path == Path::new(SAID) {
            self.open.insert(file, Opened::Said);
            return;
        }
        if creates && !self.names.contains_key(path) {
            self.files.push(Content::default());
            self.name(NameChange::Create(path.to_owned(), Node::File(self.files.len() - 1)));
        }
        let opened = match self.names.get(path) {
            Some(Node::File(file)) => Opened::File(*file),
            // The root itself has no entry in `names`.
            Some(Node::Directory) | None => Opened::Directory(path.to_owned()),
        };
        if let (true, Opened::File(file)) = (truncates, &opened) {
            self.change(*file, Change::Truncate { length: 0 });
        }
        self.open.insert(file, opened);
    }

    fn change(&mut self, file: usize, change: Change) {
        let content = &mut self.files[file];
        // Truncation to zero empties the cache too.
        content.cached.take_if(|_| matches!(change, Change::Truncate { length: 0 }));
        if let Some(cached) = &mut content.cached {
            change.apply(&self.trace, cached);
        }
        content.pending.push((self.calls, change));
    }

    fn name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.pending_names.push((self.calls, change));
    }

    /// Makes the changes before the start of the sync durable.
    fn synced(&mut self, what: &Opened, begun: u64) {
        match what {
            Opened::File(file) => {
                let content = &mut self.files[*file];
                let later = content.pending.partition_point(|(call, _)| *call < begun);
                for (_, change) in content.pending.drain(..later) {
                    change.apply(&self.trace, &mut content.durable);
                }
            }
            Opened::Directory(path) => {
                let durable = &mut self.durable_names;
                self.pending_names.retain(|(call, change)| {
                    let is_synced = *call < begun && change.directory() == path;
                    if is_synced {
                        change.apply(durable);
                    }
                    !is_synced
                });
            }
            Opened::Said => {}
        }
    }

    /// The process has ended: closes all files.
    fn restart(&mut self) {
        self.open.clear();
        self.syncs.clear();
    }

    fn become_image(&mut self, image: Image) {
        self.files.clear();
        self.names.clear();
        self.pending_names.clear();
        for (path, content) in image {
            let node = match content {
                Some(durable) => {
                    self.files.push(Content { durable, ..Content::default() });
                    Node::File(self.files.len() - 1)
                }
                None => Node::Directory,
            };
            self.names.insert(path, node);
        }
        self.durable_names = self.names.clone();
    }

    /// The current contents, without a power failure.
    pub(crate) fn now(&self) -> Image {
        image(&self.names, |file| self.files[file].now(&self.trace))
    }

    /// The contents on disk of the files whose cached content differs.
    pub(crate) fn behind_cache(&self) -> Image {
        let is_stale = |node: &Node| matches!(node, Node::File(file) if self.files[*file].cached.is_some());
        let stale = self.names.iter().filter(|(_, node)| is_stale(node) || **node == Node::Directory);
        image(&stale.map(|(name, node)| (name.clone(), *node)).collect(), |file| self.files[file].durable.clone())
    }

    /// The contents after a power failure now. Deterministic for a seed.
    pub(crate) fn after_power_failure(&self, seed: u64) -> Image {
        let mut luck = Luck::new(seed);
        let mut names = self.durable_names.clone();
        let kept = luck.choose(self.pending_names.len());
        for ((_, change), _) in self.pending_names.iter().zip(kept).filter(|(_, kept)| *kept) {
            change.apply(&mut names);
        }
        image(&names, |file| self.files[file].after_power_failure(&self.trace, &mut luck))
    }
}

/// The image of these names and their contents, without files whose directory is missing.
fn image(names: &BTreeMap<PathBuf, Node>, mut content: impl FnMut(usize) -> Vec<u8>) -> Image {
    let mut image = Image::new();
    for (path, node) in names {
        let parent = path.parent().expect("it is below the root");
        // A directory comes before its files.
        if parent == Path::new("") || image.get(parent) == Some(&None) {
            let content = match node {
                Node::Directory => None,
                Node::File(file) => Some(content(*file)),
            };
            image.insert(path.clone(), content);
        }
    }
    image
}

impl Content {
    fn now(&self, trace: &[u8]) -> Vec<u8> {
        self.cached.clone().unwrap_or_else(|| {
            let mut content = self.durable.clone();
            self.pending.iter().for_each(|(_, change)| change.apply(trace, &mut content));
            content
        })
    }

    fn fail_to_sync(&mut self, trace: &[u8]) {
        self.cached = Some(self.now(trace));
        self.pending.clear();
    }

    fn after_power_failure(&self, trace: &[u8], luck: &mut Luck) -> Vec<u8> {
        let mut kept = self.durable.clone();
        let mut newest = self.durable.len();
        for ((_, change), is_kept) in self.pending.iter().zip(luck.choose(self.pending.len())) {
            match change {
                Change::Write { offset, bytes } => {
                    newest = newest.max(*offset as usize + bytes.len());
                    for sector in sectors(*offset as usize, bytes) {
                        if luck.keeps_sector(is_kept) {
                            sector.apply(trace, &mut kept);
                        }
                    }
                }
                Change::Truncate { length } => {
                    newest = *length as usize;
                    if is_kept {
                        change.apply(trace, &mut kept);
                    }
                }
            }
        }
        match luck.random.random_range(0..8) {
            0 => kept.resize(self.durable.len(), 0),
            1 => kept.resize(newest, 0),
            _ => {}
        }
        kept
    }
}

impl Change {
    fn apply(&self, trace: &[u8], content: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let from = *offset as usize;
                let to = *offset as usize + bytes.len();
                if content.len() < to {
                    content.resize(to, 0);
                }
                content[from..to].copy_from_slice(&trace[bytes.clone()]);
            }
            Self::Truncate { length } => content.resize(*length as usize, 0),
        }
    }
}

/// A write, split at the sector boundaries of the file.
fn sectors(offset: usize, bytes: &std::ops::Range<usize>) -> impl Iterator<Item = Change> {
    let start = bytes.start;
    let end = bytes.end;
    let mut at = start;
    std::iter::from_fn(move || {
        let offset = offset + at - start;
        let length = (SECTOR_BYTES - offset % SECTOR_BYTES).min(end - at);
        let piece = Change::Write { offset: offset as u64, bytes: at..at + length };
        at += length;
        (length > 0).then_some(piece)
    })
}

/// The random parameters of one power failure.
struct Luck {
    random: StdRng,
    keeps_order: bool,
    /// Probability that a change is kept.
    keeps: f64,
    /// Probability that a sector has another fate than its write.
    tears: f64,
}

impl Luck {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let keeps_order = random.random();
        let keeps = [0.0, 0.1, 0.5, 0.9, 1.0][random.random_range(0..5)];
        let tears = [0.0, 0.02, 0.5][random.random_range(0..3)];
        Self { random, keeps_order, keeps, tears }
    }

    /// Decides for each of `count` changes whether it is kept.
    fn choose(&mut self, count: usize) -> Vec<bool> {
        if self.keeps_order {
            let kept = self.random.random_range(0..=count);
            (0..count).map(|at| at < kept).collect()
        } else {
            (0..count).map(|_| self.random.random_bool(self.keeps)).collect()
        }
    }

    fn keeps_sector(&mut self, is_kept: bool) -> bool {
        is_kept != self.random.random_bool(self.tears)
    }
}

/// Replaces the contents of a directory by this image, except the driver's reports.
pub(crate) fn write_image(image: &Image, root: &Path) {
    for entry in fs::read_dir(root).expect("the root is a directory") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            fs::remove_dir_all(path).expect("removed");
        } else if path.file_name().is_none_or(|name| name != SAID) {
            fs::remove_file(path).expect("removed");
        }
    }
    for (path, content) in image {
        match content {
            Some(content) => fs::write(root.join(path), content).expect("written"),
            None => fs::create_dir(root.join(path)).expect("made"),
        }
    }
}

/// The contents of a directory, except the driver's reports.
pub(crate) fn read_image(root: &Path) -> Image {
    let mut image = Image::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("readable") {
            let path = entry.expect("readable").path();
            let name = path.strip_prefix(root).expect("it is below").to_owned();
            if path.is_dir() {
                image.insert(name, None);
                directories.push(path);
            } else if name != Path::new(SAID) {
                image.insert(name, Some(fs::read(path).expect("readable")));
            }
        }
    }
    image
}
