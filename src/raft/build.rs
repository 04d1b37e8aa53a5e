//! Compiles the messages between nodes with `protox`, a Rust implementation: no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    const ROOT: &str = "../../proto";
    println!("cargo::rerun-if-changed={ROOT}/lockkeeper/internal");
    let files = [
        "lockkeeper/internal/v1/keyspace.proto",
        "lockkeeper/internal/v1/log.proto",
        "lockkeeper/internal/v1/snapshot.proto",
        "lockkeeper/internal/v1/peer.proto",
        "lockkeeper/internal/v1/backup.proto",
    ];
    tonic_prost_build::configure()
        // The log, the peers and the cache share payloads; `Bytes` avoids copies.
        .bytes(".lockkeeper.internal.v1")
        .compile_fds(protox::compile(files, [ROOT])?)?;
    Ok(())
}
