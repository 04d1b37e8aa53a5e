//! Compiles the messages with `protox`, a Rust implementation: no `protoc` is needed.

use std::{env, error::Error, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=lockkeeper/v1");
    let files = [
        "lockkeeper/v1/sessions.proto",
        "lockkeeper/v1/locks.proto",
        "lockkeeper/v1/cluster.proto",
        "lockkeeper/v1/maintenance.proto",
        "lockkeeper/v1/errors.proto",
    ];
    let descriptors = protox::compile(files, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);

    // For gRPC reflection.
    fs::write(out.join("public_descriptors.bin"), protox::prost::Message::encode_to_vec(&descriptors))?;

    tonic_prost_build::configure()
        .build_server(env::var_os("CARGO_FEATURE_SERVER").is_some())
        .compile_fds(descriptors)?;
    Ok(())
}
