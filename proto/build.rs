//! Compiles the messages with `protox`, a Rust implementation: no `protoc` is needed.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = [
        "lockkeeper/v1/sessions.proto",
        "lockkeeper/v1/locks.proto",
        "lockkeeper/v1/cluster.proto",
        "lockkeeper/v1/errors.proto",
        "lockkeeper/internal/v1/log.proto",
        "lockkeeper/internal/v1/snapshot.proto",
        "lockkeeper/internal/v1/peer.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);

    // For gRPC reflection: only the public API.
    let public = protox::compile(&files[..4], ["proto"])?;
    fs::write(out.join("public_descriptors.bin"), protox::prost::Message::encode_to_vec(&public))?;

    tonic_prost_build::configure()
        // The log, the peers and the cache share payloads; `Bytes` avoids copies.
        .bytes(".lockkeeper.internal.v1")
        .compile_fds(descriptors)?;
    Ok(())
}
