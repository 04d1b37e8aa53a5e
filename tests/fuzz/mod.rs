//! Parsers of bytes from outside, on their corpus and on seeded mutations of it: the part of the fuzzing that every check runs.
//!
//! `scripts/fuzz.sh` goes on from here, guided by coverage. What it finds becomes a line of `corpus/`, and is replayed here ever after.
//!
//! The process may map 3 GiB at most: a parser that allocates what a length of four bytes claims ends the test.

mod corpus;
mod mutate;
mod targets;

use std::{
    cell::Cell,
    env, fs,
    panic::{self, AssertUnwindSafe, catch_unwind},
    sync::Once,
};

use rand::{SeedableRng as _, rngs::StdRng};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use self::targets::{TARGETS, Target};
use crate::formats::samples;

/// The directory of the corpus.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus");
/// Mutations of a target's inputs in a usual run.
const MUTATIONS: u32 = 2_000;
/// How many instead.
const MUTATIONS_VARIABLE: &str = "LOCKKEEPER_FUZZ_MUTATIONS";
const SEED: u64 = 19;
const ADDRESS_SPACE_BYTES_MAX: u64 = 3 << 30;

/// A test for each target, and the list of them.
macro_rules! tests {
    ($($test:ident: $name:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                replay($name);
            }
        )*

        const TESTED: &[&str] = &[$($name),*];
    };
}

tests! {
    batch: "batch",
    record: "record",
    log_entry: "log-entry",
    journal: "journal",
    first_journal: "first-journal",
    snapshot: "snapshot",
    backup: "backup",
    peer_message: "peer-message",
    peer_metadata: "peer-metadata",
    wire: "wire",
    error_status: "error-status",
    certificate: "certificate",
    dynamodb_operation: "dynamodb-operation",
    dynamodb_expression: "dynamodb-expression",
    dynamodb_item: "dynamodb-item",
    dynamodb_number: "dynamodb-number",
    dynamodb_http: "dynamodb-http",
    etcd_message: "etcd-message",
    etcd_json: "etcd-json",
    redis_requests: "redis-requests",
    redis_commands: "redis-commands",
    redis_script: "redis-script",
    redis_entry: "redis-entry",
    redis_unit: "redis-unit",
    zookeeper_frames: "zookeeper-frames",
    zookeeper_value: "zookeeper-value",
    zookeeper_path: "zookeeper-path",
    audit: "audit",
    tokens: "tokens",
    policy: "policy",
    config: "config",
    value: "value",
    argument: "argument",
    history: "history",
}

#[test]
fn every_target_has_a_test_and_every_corpus_a_target() {
    let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, TESTED);
    for entry in fs::read_dir(CORPUS).expect("the repository has it") {
        let path = entry.expect("listed").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("UTF-8");
        assert!(names.contains(&name), "{} is of no target", path.display());
    }
}

#[test]
fn a_line_of_the_corpus_is_the_input_that_was_escaped() {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    for input in [&b""[..], b"# no comment", b"#", b" ", b"\\x", "\u{e9}\r\n\t\"'".as_bytes(), &all] {
        let line = corpus::escape(input);
        assert!(!line.contains('\n') && !line.starts_with('#') && !line.ends_with(' '), "{line}");
        assert_eq!(corpus::unescape(&line).as_deref(), Some(input));
    }
    assert_eq!(corpus::unescape("\\q"), None);
}

thread_local! {
    /// Panics on this thread, those included that a runtime catches in its tasks.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Limits the memory, and counts panics.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            PANICS.set(PANICS.get() + 1);
            report(panic);
        }));
        let maximum = getrlimit(Resource::As).maximum;
        let limit = Rlimit { current: Some(ADDRESS_SPACE_BYTES_MAX), maximum };
        setrlimit(Resource::As, limit).expect("a limit below the present one");
    });
}

/// Seeds and corpus as they are, and mutations of them.
fn replay(name: &str) {
    prepare();
    let target = TARGETS.iter().find(|target| target.name == name).expect("its name is in the table");
    let mut inputs = (target.seeds)();
    inputs.extend(corpus::inputs(name));
    assert!(!inputs.is_empty(), "{name} has neither seeds nor a corpus");
    inputs.iter().for_each(|input| run(target, input));

    let count = env::var(MUTATIONS_VARIABLE).map_or(MUTATIONS, |count| count.parse().expect("a number of mutations"));
    let mut random = StdRng::seed_from_u64(SEED);
    for _ in 0..count {
        let mut input = mutate::mutated(&inputs, &mut random);
        if let Some(repair) = target.repair {
            repair(&mut input);
        }
        run(target, &input);
    }
}

/// Says which input it was if the target panics.
fn run(target: &Target, input: &[u8]) {
    let before = PANICS.get();
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    assert!(
        result.is_ok() && PANICS.get() == before,
        "the panic above is by this input, a line of tests/fuzz/corpus/{}.txt:\n{}",
        target.name,
        corpus::escape(input)
    );
}
