//! libFuzzer over the targets of `tests/fuzz`: see `scripts/fuzz.sh`, which builds and calls this program.
//!
//! | variable | means |
//! |---|---|
//! | `LOCKKEEPER_FUZZ_TARGET` | the target; without it, the targets are listed |
//! | `LOCKKEEPER_FUZZ_SEEDS` | a directory: seeds and corpus of the target are written into it, one file each, and nothing else is done |
//! | `LOCKKEEPER_FUZZ_LINES` | a directory: its files are printed as lines of a corpus, and nothing else is done |
//!
//! Mutations by libFuzzer get the target's checksums. A single allocation of more than [`ALLOCATION_BYTES_MAX`] counts as a crash: no
//! input is that long, so only a length that an input claims asks for it.

#![no_main]

#[path = "../../corpus.rs"]
mod corpus;
#[path = "../../../formats/samples.rs"]
#[allow(dead_code, reason = "the checks of the samples are those of tests/formats")]
mod samples;
#[path = "../../targets/mod.rs"]
mod targets;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    env, fs,
    path::Path,
    process::{self, exit},
    sync::OnceLock,
};

use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

use targets::{TARGETS, Target};

/// The directory of the corpus.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../corpus");
/// Maximum bytes of an allocation.
const ALLOCATION_BYTES_MAX: usize = 64 << 20;

/// The system's allocator, for allocations of a sane size.
struct Bounded;

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

fn check(bytes: usize) {
    if bytes > ALLOCATION_BYTES_MAX {
        // Nothing here may allocate. libFuzzer catches the signal and keeps the input.
        process::abort();
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, or ends the process.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        check(bytes);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn target() -> &'static Target {
    static TARGET: OnceLock<&Target> = OnceLock::new();
    TARGET.get_or_init(|| {
        let name = env::var("LOCKKEEPER_FUZZ_TARGET").unwrap_or_default();
        TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| {
            TARGETS.iter().for_each(|target| println!("{}", target.name));
            exit(i32::from(!name.is_empty()))
        })
    })
}

/// Does what the variables ask for besides fuzzing.
fn prepare() {
    let target = target();
    if let Ok(directory) = env::var("LOCKKEEPER_FUZZ_SEEDS") {
        for (number, input) in (target.seeds)().into_iter().chain(corpus::inputs(target.name)).enumerate() {
            fs::write(Path::new(&directory).join(format!("seed-{number}")), input).expect("written");
        }
        exit(0);
    }
    if let Ok(directory) = env::var("LOCKKEEPER_FUZZ_LINES") {
        let files = fs::read_dir(directory).expect("a directory");
        let mut inputs: Vec<_> = files.map(|file| fs::read(file.expect("listed").path()).expect("readable")).collect();
        inputs.sort_by_key(|input| (input.len(), input.clone()));
        inputs.iter().for_each(|input| println!("{}", corpus::escape(input)));
        exit(0);
    }
}

fuzz_target!(init: prepare(), |input: &[u8]| (target().run)(input));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let size = fuzzer_mutate(data, size, max_size);
    match target().repair {
        // Now and then the checksums stay wrong.
        Some(repair) if !seed.is_multiple_of(16) => {
            let mut input = data[..size].to_vec();
            repair(&mut input);
            input.truncate(max_size);
            data[..input.len()].copy_from_slice(&input);
            input.len()
        }
        _ => size,
    }
});
