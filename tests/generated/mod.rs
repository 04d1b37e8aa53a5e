//! Clients that are generated from `proto/` for other languages: they compile, and close a session at a node.
//!
//! TypeScript (ts-proto, grpc-js), plain JavaScript (`@grpc/proto-loader`), Python (`grpcio-tools`), Java and Go by Debian's plugins. Go is
//! generated and not compiled. Generators are installed into the build directory in the versions named here; a language whose generator
//! cannot be had is skipped, and says so.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use crate::{
    skipped::skipped,
    support::cluster_of,
    unmodified::{
        debian, npm,
        packages::{self, command, run},
    },
};

/// Debian's packages for Java and Go, with what they need.
const DEBIAN: [&str; 11] = [
    "protobuf-compiler",
    "libprotoc32",
    "libprotobuf32",
    "protobuf-compiler-grpc-java-plugin",
    "libgrpc-java",
    "libprotobuf-java",
    "libguava-java",
    "libgeronimo-annotation-1.3-spec-java",
    "protoc-gen-go",
    "protoc-gen-go-grpc",
    "zlib1g",
];
const JARS: [&str; 6] = ["grpc-api", "grpc-stub", "grpc-protobuf", "protobuf", "guava", "geronimo-annotation-1.3-spec"];

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// The messages of the API, relative to `proto/`.
fn messages() -> Vec<String> {
    let entries = fs::read_dir(root("proto/lockkeeper/v1")).expect("readable");
    let names = entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"));
    let mut messages: Vec<String> = names.map(|name| format!("lockkeeper/v1/{name}")).collect();
    messages.sort();
    assert!(messages.len() >= 5, "{messages:?}");
    messages
}

async fn python() -> Result<PathBuf, String> {
    packages::python("generated-python", include_str!("requirements.txt")).await
}

async fn modules() -> Result<PathBuf, String> {
    npm::modules("generated-npm", include_str!("package.json"), include_str!("package-lock.json")).await
}

/// Runs Python's protoc with these options.
async fn generate(python: &Path, options: &[String]) {
    let include = text(&root("proto"));
    let fixed = ["-m", "grpc_tools.protoc", "-I", &include].map(str::to_owned);
    let arguments = [&fixed[..], options, &messages()].concat();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run(command(python, &arguments)).await.unwrap_or_else(|said| panic!("{said}"));
}

/// The files under a directory with this extension.
fn files(directory: &Path, extension: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(text(&path));
        }
    }
    found.sort();
    found
}

fn place() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

#[tokio::test]
#[ignore = "nightly: packages of others"]
async fn typescript_compiles_in_its_strict_mode() {
    let (python, modules) = match (python().await, modules().await) {
        (Ok(python), Ok(modules)) => (python, modules),
        (Err(why), _) | (_, Err(why)) => return skipped(format_args!("typescript: {why}")),
    };
    // Imports of packages are found from here.
    let place = place();
    std::os::unix::fs::symlink(&modules, place.path().join("node_modules")).expect("made");
    let out = text(place.path());
    generate(
        &python,
        &[
            format!("--plugin=protoc-gen-ts_proto={}", text(&modules.join(".bin/protoc-gen-ts_proto"))),
            format!("--ts_proto_out={out}"),
            "--ts_proto_opt=outputServices=grpc-js,esModuleInterop=true,importSuffix=.js".to_owned(),
        ],
    )
    .await;
    fs::copy(root("tests/generated/client.ts"), place.path().join("client.ts")).expect("copied");

    let sources = files(&place.path().join("lockkeeper"), "ts");
    assert!(sources.len() >= 5, "{sources:?}");
    let options = ["--strict", "--noEmit", "--skipLibCheck", "--module", "nodenext", "--target", "es2022", "client.ts"];
    let options: Vec<&str> = options.into_iter().chain(sources.iter().map(String::as_str)).collect();
    let mut tsc = command(&modules.join(".bin/tsc"), &options);
    tsc.current_dir(place.path());
    run(tsc).await.unwrap_or_else(|said| panic!("{said}"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: packages of others"]
async fn plain_javascript_closes_a_session_and_its_own_client() {
    let modules = match modules().await {
        Ok(modules) => modules,
        Err(why) => return skipped(format_args!("javascript: {why}")),
    };
    let cluster = cluster_of(1).await;
    let program = text(&root("tests/generated/client.js"));
    let proto = text(&root("proto"));
    let mut node = command(Path::new("node"), &[&program, &proto, &cluster.node(1).config().client_listen]);
    node.env("NODE_PATH", modules);
    let said = run(node).await.unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(said, "closed\n");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "nightly: packages of others"]
async fn python_compiles_and_closes_a_session() {
    let python = match python().await {
        Ok(python) => python,
        Err(why) => return skipped(format_args!("python: {why}")),
    };
    let place = place();
    let cluster = cluster_of(1).await;
    let out = text(place.path());
    generate(&python, &["--python_out", "--pyi_out", "--grpc_python_out"].map(|option| format!("{option}={out}")))
        .await;
    run(command(&python, &["-m", "compileall", "-q", &out])).await.unwrap_or_else(|said| panic!("{said}"));

    let program = text(&root("tests/generated/client.py"));
    let mut client = command(&python, &[&program, &cluster.node(1).config().client_listen]);
    client.env("PYTHONPATH", &out);
    let said = run(client).await.unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(said, "closed\n");
}

/// Debian's protoc, with one of its plugins, run with these options. An error: they cannot be had here.
async fn debian_generates(options: impl Fn(&Path) -> Vec<String>) -> Result<PathBuf, String> {
    let packages = async || Ok(DEBIAN.map(str::to_owned).to_vec());
    let debian = debian::unpacked("generated-debian", &DEBIAN.join(" "), packages).await?;
    let include = text(&root("proto"));
    let arguments = [vec!["-I".to_owned(), include], options(&debian), messages()].concat();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut protoc = command(&debian.join("usr/bin/protoc"), &arguments);
    let library = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    protoc.env("LD_LIBRARY_PATH", debian.join(library));
    run(protoc).await?;
    Ok(debian)
}

#[tokio::test]
#[ignore = "nightly: packages of others"]
async fn java_compiles() {
    let place = place();
    let sources = place.path().join("java");
    let classes = place.path().join("classes");
    fs::create_dir(&sources).expect("made");
    if let Err(why) = run(command(Path::new("javac"), &["-version"])).await {
        return skipped(format_args!("java: {why}"));
    }
    let out = text(&sources);
    let options = |debian: &Path| {
        let plugin = text(&debian.join("usr/bin/grpc_java_plugin"));
        let outs = [format!("--java_out={out}"), format!("--grpc-java_out={out}")];
        [vec![format!("--plugin=protoc-gen-grpc-java={plugin}")], outs.to_vec()].concat()
    };
    let debian = match debian_generates(options).await {
        Ok(debian) => debian,
        Err(why) => return skipped(format_args!("java: {why}")),
    };
    let jars = JARS.map(|jar| text(&debian.join(format!("usr/share/java/{jar}.jar")))).join(":");
    let sources = files(&sources, "java");
    assert!(sources.iter().any(|source| source.ends_with("SessionsGrpc.java")), "{sources:?}");
    let classes = text(&classes);
    let options: Vec<&str> = ["-nowarn", "-d", &classes, "-cp", &jars].into_iter().collect();
    let options = [options, sources.iter().map(String::as_str).collect()].concat();
    run(command(Path::new("javac"), &options)).await.unwrap_or_else(|said| panic!("{said}"));
}

/// Generated, and not compiled: that would need Go's compiler and its modules.
#[tokio::test]
#[ignore = "nightly: packages of others"]
async fn go_is_generated() {
    let place = place();
    let out = text(place.path());
    let options = |debian: &Path| {
        let plugins = ["go", "go-grpc"].map(|plugin| {
            let program = text(&debian.join(format!("usr/bin/protoc-gen-{plugin}")));
            [format!("--plugin=protoc-gen-{plugin}={program}"), format!("--{plugin}_out={out}")].to_vec()
        });
        let packages = messages().into_iter().flat_map(|file| {
            ["go", "go-grpc"].map(|plugin| format!("--{plugin}_opt=M{file}=example.org/lockkeeper/v1"))
        });
        [plugins.concat(), packages.collect()].concat()
    };
    if let Err(why) = debian_generates(options).await {
        return skipped(format_args!("go: {why}"));
    }
    let sources = files(place.path(), "go");
    let sessions = sources.iter().find(|source| source.ends_with("sessions_grpc.pb.go")).expect("it is generated");
    assert!(fs::read_to_string(sessions).expect("readable").contains("CloseSession("), "{sessions}");
}
