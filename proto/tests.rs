//! Each file of messages compiles with `protox`, which the build uses, and with `protoc`, which everybody else uses: it refuses some of
//! what the former takes.

use std::{
    env, fs,
    io::{Write as _, stderr},
    path::{Path, PathBuf},
    process::Command,
};

/// Where imports begin, beside this crate: its own messages, and etcd's.
const ROOTS: [&str; 2] = [".", "../src/etcd/proto"];

/// The files under a root, relative to it.
fn files(root: &Path) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![root.to_owned()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("it can be read") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "proto") {
                found.push(path.strip_prefix(root).expect("it is under the root").to_owned());
            }
        }
    }
    found.sort();
    found
}

fn roots() -> impl Iterator<Item = (PathBuf, Vec<PathBuf>)> {
    ROOTS.iter().map(|root| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(root);
        let files = files(&root);
        assert!(files.len() >= 4, "{files:?} under {}", root.display());
        (root, files)
    })
}

/// `protoc`: the one that `PROTOC` names, the one in the path, or that of Python's `grpcio-tools`.
fn protoc() -> Option<impl Fn() -> Command> {
    let named = env::var("PROTOC").unwrap_or_else(|_| "protoc".to_owned());
    let commands = [vec![named], vec!["python3".to_owned(), "-m".to_owned(), "grpc_tools.protoc".to_owned()]];
    let begin = |words: &[String]| {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
    };
    let works = |words: &&Vec<String>| {
        let version = begin(words).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    let words = commands.iter().find(works)?.clone();
    Some(move || begin(&words))
}

#[test]
fn each_file_compiles_with_protox() {
    for (root, files) in roots() {
        for file in files {
            protox::compile([&file], [&root]).unwrap_or_else(|error| panic!("{}: {error:?}", file.display()));
        }
    }
}

/// Names of methods of the classes that generated clients extend: a call of the same name hides the method, or does not compile. A call
/// `Close` becomes `close` in JavaScript, TypeScript, Java and PHP.
const METHODS_OF_CLIENTS: [&str; 29] = [
    // grpc-js: `Client`.
    "close",
    "getChannel",
    "waitForReady",
    "makeUnaryRequest",
    "makeClientStreamRequest",
    "makeServerStreamRequest",
    "makeBidiStreamRequest",
    "checkOptionalUnaryResponseArguments",
    "checkMetadataAndOptions",
    "constructor",
    "hasOwnProperty",
    "toString",
    "valueOf",
    // Java: `AbstractStub` and `Object`.
    "build",
    "getCallOptions",
    "withDeadline",
    "withDeadlineAfter",
    "withExecutor",
    "withCompression",
    "withInterceptors",
    "withOption",
    "withWaitForReady",
    "getClass",
    "hashCode",
    "equals",
    "notify",
    "wait",
    // PHP: `BaseStub`.
    "getTarget",
    "getConnectivityState",
];

#[test]
fn no_call_has_the_name_of_a_method_of_generated_clients() {
    let mut calls = 0;
    for (root, files) in roots() {
        let descriptors = protox::compile(files, [root]).expect("they compile");
        for method in descriptors.file.iter().flat_map(|file| &file.service).flat_map(|service| &service.method) {
            let name = method.name();
            let clash = METHODS_OF_CLIENTS.iter().find(|known| known.eq_ignore_ascii_case(name));
            assert_eq!(clash, None, "{name}: choose another name");
            calls += 1;
        }
    }
    assert!(calls > 30, "{calls}");
}

#[test]
fn each_file_compiles_with_protoc() {
    let Some(protoc) = protoc() else {
        // Directly: what is printed is only shown if the test fails.
        let why = "\n!!! SKIPPED: there is no protoc: install it, or Python's grpcio-tools, or name it in PROTOC\n";
        stderr().write_all(why.as_bytes()).expect("standard error is open");
        return;
    };
    for (root, files) in roots() {
        let output = protoc().arg("-I").arg(&root).args(["--descriptor_set_out", "/dev/null"]).args(&files).output();
        let output = output.expect("protoc runs");
        assert!(output.status.success(), "{}: {}", root.display(), String::from_utf8_lossy(&output.stderr));
    }
}
