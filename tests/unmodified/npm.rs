//! Packages from npm.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::packages::{command, directory, is_installed, run, set_installed};

/// The directory that `NODE_PATH` is to name, with what this package and its lock name, in an installation of this name.
pub(crate) async fn modules(name: &str, package: &str, lock: &str) -> Result<PathBuf, String> {
    let (directory, _lock) = directory(name).await.map_err(|error| error.to_string())?;
    run(command(Path::new("node"), &["--version"])).await?;
    if !is_installed(&directory, lock) {
        for (name, text) in [("package.json", package), ("package-lock.json", lock)] {
            fs::write(directory.join(name), text).map_err(|error| error.to_string())?;
        }
        let mut npm = command(Path::new("npm"), &["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
        npm.current_dir(&directory);
        run(npm).await?;
        set_installed(&directory, lock)?;
    }
    Ok(directory.join("node_modules"))
}
