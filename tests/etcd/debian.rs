//! Debian's `etcd` and `etcdctl`, downloaded once and unpacked into the build directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::packages::{command, directory, is_installed, run, set_installed};

const PACKAGES: [&str; 2] = ["etcd-client", "etcd-server"];

/// The directory that has both programs; why there is none.
pub(crate) async fn programs() -> Result<PathBuf, String> {
    let (directory, _lock) = directory("etcd-debian").await.map_err(|error| error.to_string())?;
    let wanted = PACKAGES.join(" ");
    let root = directory.join("root");
    if !is_installed(&directory, &wanted) {
        let mut download = command(Path::new("apt-get"), &[&["download", "--quiet"][..], &PACKAGES[..]].concat());
        download.current_dir(&directory);
        run(download).await?;
        for file in fs::read_dir(&directory).map_err(|error| error.to_string())? {
            let file = file.map_err(|error| error.to_string())?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                let (file, root) = (file.display().to_string(), root.display().to_string());
                run(command(Path::new("dpkg"), &["-x", &file, &root])).await?;
            }
        }
        set_installed(&directory, &wanted)?;
    }
    Ok(root.join("usr/bin"))
}
