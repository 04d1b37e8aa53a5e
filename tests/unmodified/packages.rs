//! Installations in the build directory, and packages from PyPI.

use std::{
    env,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, task, time::timeout};

/// A bound on failures, for an installation and for a program.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// A program, with nothing to read; what it writes is kept.
pub(crate) fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs a program to its end. What it wrote; as an error if it failed.
pub(crate) async fn run(mut command: Command) -> Result<String, String> {
    let output = timeout(PATIENCE, command.output()).await;
    let output = output.map_err(|_| format!("{command:?}: no end after {PATIENCE:?}"))?;
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{command:?}: {}\n{text}", output.status)) }
}

/// The directory of this installation, and its lock: other tests wait until it is complete. It is complete if its file `installed` has
/// the `wanted` text.
pub(crate) async fn directory(name: &str) -> io::Result<(PathBuf, File)> {
    let program = env::current_exe()?;
    let build = program.ancestors().nth(3).ok_or(io::ErrorKind::NotFound)?;
    let directory = build.join("tmp").join(name);
    fs::create_dir_all(&directory)?;
    let lock = File::create(directory.with_extension("lock"))?;
    let lock = task::spawn_blocking(move || lock.lock().map(|()| lock)).await.map_err(io::Error::other)??;
    Ok((directory, lock))
}

/// Whether the installation in this directory is complete and the one that is wanted.
pub(crate) fn is_installed(directory: &Path, wanted: &str) -> bool {
    fs::read_to_string(directory.join("installed")).is_ok_and(|installed| installed == wanted)
}

pub(crate) fn set_installed(directory: &Path, wanted: &str) -> Result<(), String> {
    fs::write(directory.join("installed"), wanted).map_err(|error| error.to_string())
}

/// A Python that has the packages of this list, in an installation of this name.
pub(crate) async fn python(name: &str, wanted: &str) -> Result<PathBuf, String> {
    let (directory, _lock) = directory(name).await.map_err(|error| error.to_string())?;
    let python = directory.join("bin/python");
    if !is_installed(&directory, wanted) {
        run(command(Path::new("python3"), &["-m", "venv", "--clear", &directory.display().to_string()])).await?;
        let requirements = directory.join("requirements.txt");
        fs::write(&requirements, wanted).map_err(|error| error.to_string())?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
        run(command(&python, &[&pip[..], &[&requirements.display().to_string()]].concat())).await?;
        set_installed(&directory, wanted)?;
    }
    Ok(python)
}
