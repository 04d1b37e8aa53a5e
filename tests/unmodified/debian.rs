//! Debian's packages, downloaded and unpacked, not installed: that takes no root, and leaves the machine as it is.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::packages::{command, directory, is_installed, run, set_installed};

/// Debian's `etcd` and `etcdctl`.
const ETCD: [&str; 2] = ["etcd-client", "etcd-server"];

/// The directory that has `etcd` and `etcdctl`; why there is none.
pub(crate) async fn etcd() -> Result<PathBuf, String> {
    let packages = async || Ok(ETCD.map(str::to_owned).to_vec());
    Ok(unpacked("etcd-debian", &ETCD.join(" "), packages).await?.join("usr/bin"))
}

/// The root under which these packages are unpacked, in an installation of this name. `wanted` says what it is to have: another text makes
/// it anew.
pub(crate) async fn unpacked(
    name: &str,
    wanted: &str,
    packages: impl AsyncFnOnce() -> Result<Vec<String>, String>,
) -> Result<PathBuf, String> {
    let (directory, _lock) = directory(name).await.map_err(|error| error.to_string())?;
    let root = directory.join("root");
    if !is_installed(&directory, wanted) {
        let packages = packages().await?;
        let packages: Vec<&str> = packages.iter().map(String::as_str).collect();
        let mut download = command(Path::new("apt-get"), &[&["download", "--quiet"], &packages[..]].concat());
        download.current_dir(&directory);
        run(download).await?;
        for file in fs::read_dir(&directory).map_err(|error| error.to_string())? {
            let file = file.map_err(|error| error.to_string())?.path();
            if file.extension().is_some_and(|extension| extension == "deb") {
                let file = file.display().to_string();
                let root = root.display().to_string();
                run(command(Path::new("dpkg"), &["-x", &file, &root])).await?;
            }
        }
        set_installed(&directory, wanted)?;
    }
    Ok(root)
}
