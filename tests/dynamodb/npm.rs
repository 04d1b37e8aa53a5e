//! The packages from npm, installed as those from PyPI are.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::packages::{command, directory, is_installed, run, set_installed};

/// The directory that `NODE_PATH` is to name.
pub(crate) async fn modules() -> Result<PathBuf, String> {
    let (package, lock) = (include_str!("package.json"), include_str!("package-lock.json"));
    let (directory, _lock) = directory("dynamodb-npm").await.map_err(|error| error.to_string())?;
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
