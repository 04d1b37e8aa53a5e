//! Tells the benchmarks the name of the profile that they were built with, so that figures can name it.

use std::{env, path::Path};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");

    // Cargo's own variable says `release` for each profile that inherits it. The directory is TARGET/PROFILE/build/PACKAGE/out.
    let out = env::var_os("OUT_DIR").expect("cargo sets it");
    let profile = Path::new(&out).ancestors().nth(3).and_then(Path::file_name).and_then(|name| name.to_str());
    // Cargo also sets it for what it runs: so it must not be a variable that the program reads.
    println!("cargo:rustc-env=LOCKKEEPER_BUILD_PROFILE={}", profile.unwrap_or("unknown"));
}
