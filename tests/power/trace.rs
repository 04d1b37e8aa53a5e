//! The records of the layer.

use std::{
    fs::File,
    io::Write,
    ops::Range,
    path::{Path, PathBuf},
};

/// One call that changed a file or directory, or began or ended a sync.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) call: Call,
    /// The file's descriptor, if the call has one.
    pub(crate) file: i32,
}

#[derive(Clone, Debug)]
pub(crate) enum Call {
    Open {
        path: PathBuf,
        creates: bool,
        truncates: bool,
    },
    Close,
    /// `bytes`: their position in the trace.
    Write {
        offset: u64,
        bytes: Range<usize>,
    },
    Truncate {
        length: u64,
    },
    /// A sync begins. `is_data`: it is an `fdatasync`, which replaces sled's `sync_file_range`.
    Sync {
        number: u64,
        is_data: bool,
    },
    Synced {
        number: u64,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    Unlink {
        path: PathBuf,
    },
    /// The kernel drops its cache of the file.
    Forget,
    MakeDirectory {
        path: PathBuf,
    },
    /// The layer injected its fault at this call.
    Fault {
        call: &'static str,
    },
    /// Written by the tests: the power failed; the seed decides about unsynced changes.
    Cut {
        seed: u64,
    },
    /// Written by the tests: another process begins. The kernel's cached data are kept.
    Restart,
}

const HEADER_BYTES: usize = 24;
const CUT: u32 = 100;
const RESTART: u32 = 101;

/// All records of a trace, in order. Paths are below `root`.
pub(crate) fn read(trace: &[u8], root: &Path) -> Vec<Record> {
    let mut records = Vec::new();
    let mut at = 0;
    // A killed process may leave an incomplete last record.
    while let Some(header) = trace.get(at..at + HEADER_BYTES) {
        let four = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let eight = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        let kind = four(0);
        let file = four(4) as i32;
        let offset = eight(8);
        let length = eight(16) as usize;
        let bytes = at + HEADER_BYTES..at + HEADER_BYTES + length;
        let Some(data) = trace.get(bytes.clone()) else { break };
        at = bytes.end;
        let path = |data: &[u8]| {
            let path = PathBuf::from(std::str::from_utf8(data).expect("paths of tests are text"));
            path.strip_prefix(root).expect("it is below the root").to_owned()
        };
        let call = match kind {
            1 => Call::Open { path: path(data), creates: offset & 1 != 0, truncates: offset & 2 != 0 },
            2 => Call::Close,
            3 => Call::Write { offset, bytes },
            4 => Call::Truncate { length: offset },
            5 | 6 => Call::Sync { number: offset, is_data: kind == 6 },
            7 => Call::Synced { number: offset },
            8 => Call::Rename { from: path(&data[..offset as usize]), to: path(&data[offset as usize..]) },
            9 => Call::Unlink { path: path(data) },
            10 => Call::MakeDirectory { path: path(data) },
            11 => Call::Fault {
                call: ["a write", "a truncation", "an fsync", "an fdatasync"]
                    .get((offset as usize).wrapping_sub(3))
                    .copied()
                    .unwrap_or("a call"),
            },
            12 => Call::Forget,
            CUT => Call::Cut { seed: offset },
            RESTART => Call::Restart,
            kind => panic!("the layer has no record of kind {kind}"),
        };
        records.push(Record { call, file });
    }
    records
}

/// Records a power failure.
pub(crate) fn append_cut(trace: &Path, seed: u64) {
    append(trace, CUT, seed);
}

/// Records the start of another process.
pub(crate) fn append_restart(trace: &Path) {
    append(trace, RESTART, 0);
}

fn append(trace: &Path, kind: u32, offset: u64) {
    let mut record = Vec::with_capacity(HEADER_BYTES);
    record.extend_from_slice(&kind.to_ne_bytes());
    record.extend_from_slice(&(-1_i32).to_ne_bytes());
    record.extend_from_slice(&offset.to_ne_bytes());
    record.extend_from_slice(&0_u64.to_ne_bytes());
    let mut file = File::options().append(true).create(true).open(trace).expect("the trace can be opened");
    file.write_all(&record).expect("the trace can be written");
}
