//! Compiles the calls between nodes with `protox`, a Rust implementation: no `protoc` is needed.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    const ROOT: &str = "../../proto";
    println!("cargo::rerun-if-changed={ROOT}/lockkeeper/internal");
    let peers = ["lockkeeper/internal/v1/peer.proto", "lockkeeper/internal/v1/backup.proto"];
    tonic_prost_build::configure()
        // The log, the peers and the cache share payloads; `Bytes` avoids copies.
        .bytes(".lockkeeper.internal.v1")
        .compile_fds(protox::compile(peers, [ROOT])?)?;

    // The keyspace's calls have the messages of the log's transactions, which the table has compiled: the service alone is made here. The
    // package is the same, so the file needs a folder of its own.
    let keyspace = PathBuf::from(env::var("OUT_DIR")?).join("keyspace");
    fs::create_dir_all(&keyspace)?;
    tonic_prost_build::configure()
        .extern_path(".lockkeeper.internal.v1", "::lockkeeper_table::messages")
        .out_dir(keyspace)
        .compile_fds(protox::compile(["lockkeeper/internal/v1/keyspace.proto"], [ROOT])?)?;
    Ok(())
}
