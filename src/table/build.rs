//! Compiles the messages of the log's commands and of a snapshot's records with `protox`, a Rust implementation: no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    const ROOT: &str = "../../proto";
    println!("cargo::rerun-if-changed={ROOT}/lockkeeper/internal");
    let files = [
        "lockkeeper/internal/v1/keyspace.proto",
        "lockkeeper/internal/v1/log.proto",
        "lockkeeper/internal/v1/snapshot.proto",
    ];

    // Messages alone: the calls between nodes belong to those that make them.
    tonic_prost_build::configure()
        .build_client(false)
        .build_server(false)
        // The log, the peers and the cache share payloads; `Bytes` avoids copies.
        .bytes(".lockkeeper.internal.v1")
        // Few entries have it, and all messages that hold entries would have its size.
        .boxed(".lockkeeper.internal.v1.KeyEntry.Entry.kin")
        .compile_fds(protox::compile(files, [ROOT])?)?;
    Ok(())
}
