//! Compiles the messages with `protox`, a Rust implementation: no `protoc` is needed.

use std::{env, error::Error, fs, path::PathBuf};

use protox::prost_reflect::prost_types::{FileDescriptorProto, source_code_info::Location};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=lockkeeper/v1");
    let files = [
        "lockkeeper/v1/sessions.proto",
        "lockkeeper/v1/locks.proto",
        "lockkeeper/v1/cluster.proto",
        "lockkeeper/v1/maintenance.proto",
        "lockkeeper/v1/errors.proto",
    ];
    let mut descriptors = protox::compile(files, ["."])?;
    descriptors.file.iter_mut().try_for_each(add_former_names)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);

    // For gRPC reflection.
    fs::write(out.join("public_descriptors.bin"), protox::prost::Message::encode_to_vec(&descriptors))?;

    tonic_prost_build::configure()
        .build_server(env::var_os("CARGO_FEATURE_SERVER").is_some())
        .codec_path("crate::codec::CountingCodec")
        .compile_fds(descriptors)?;
    Ok(())
}

/// Adds `Sessions.Close`, as `CloseSession` was called before: it is served, and called at nodes of the version before, for one version.
fn add_former_names(file: &mut FileDescriptorProto) -> Result<(), Box<dyn Error>> {
    for (place, service) in file.service.iter_mut().enumerate().filter(|(_, service)| service.name() == "Sessions") {
        let renamed = service.method.iter().position(|method| method.name() == "CloseSession");
        let renamed = renamed.ok_or("Sessions.CloseSession is not there")?;
        let mut former = service.method[renamed].clone();
        former.name = Some("Close".to_owned());
        former.options.get_or_insert_default().deprecated = Some(true);

        // The generator asks for the place of each method in its file, by the numbers of the fields and the positions there.
        let path = |method: usize| Ok::<_, Box<dyn Error>>(vec![6, i32::try_from(place)?, 2, i32::try_from(method)?]);
        let renamed_path = path(renamed)?;
        let former_path = path(service.method.len())?;
        let locations = &mut file.source_code_info.as_mut().ok_or("no places")?.location;
        let location = locations.iter().find(|location| location.path == renamed_path).ok_or("no place")?.clone();
        locations.push(Location { path: former_path, ..location });
        service.method.push(former);
    }
    Ok(())
}
