//! Compiles etcd's messages with `protox`, and makes their JSON forms, with the names of the fields as they are.

use std::{env, error::Error, fs, path::PathBuf};

use protox::prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = ["proto/kv.proto", "proto/rpc.proto", "proto/lock.proto", "proto/election.proto"];
    let descriptors = protox::compile(files, ["proto"])?;

    let out = PathBuf::from(env::var("OUT_DIR")?);
    let encoded = descriptors.encode_to_vec();
    fs::write(out.join("descriptors.bin"), &encoded)?;
    tonic_prost_build::configure().codec_path("crate::codec::BoundedCodec").compile_fds(descriptors)?;

    // etcd's gateway takes fields that it does not know.
    pbjson_build::Builder::new()
        .register_descriptors(&encoded)?
        .preserve_proto_field_names()
        .ignore_unknown_fields()
        .build(&[".mvccpb", ".etcdserverpb", ".v3lockpb", ".v3electionpb"])?;
    Ok(())
}
