//! PostgreSQL: the one that is installed, or else Debian's, downloaded once and unpacked into the build directory.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::unmodified::{
    debian::unpacked,
    packages::{command, run},
};

/// Where Debian has the programs of each version.
const VERSIONS: &str = "usr/lib/postgresql";
/// What is not needed of its dependencies.
const NOT_NEEDED: [&str; 4] = ["libc6", "libelogind", "libllvm", "libperl"];

/// The directory that has `postgres` and its tools; why there is none.
pub(super) async fn programs() -> Result<PathBuf, String> {
    if let Some(programs) = newest(Path::new("/")) {
        return Ok(programs);
    }
    if let Ok(text) = run(command(Path::new("pg_config"), &["--bindir"])).await
        && Path::new(text.trim()).join("initdb").exists()
    {
        return Ok(text.trim().into());
    }
    let root = unpacked("etcd-postgresql", VERSIONS, packages).await?;
    newest(&root).ok_or_else(|| format!("no PostgreSQL in {}", root.display()))
}

/// Where the libraries are that were unpacked with it, for `LD_LIBRARY_PATH`; none if it is installed.
pub(super) fn libraries(programs: &Path) -> Option<PathBuf> {
    let root = programs.ancestors().nth(5).filter(|root| *root != Path::new("/"))?;
    let of_machine = fs::read_dir(root.join("usr/lib")).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    of_machine.into_iter().find(|path| path.to_string_lossy().ends_with("-linux-gnu"))
}

fn newest(root: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(root.join(VERSIONS)).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let programs = versions.max_by_key(number)?.join("bin");
    programs.join("initdb").exists().then_some(programs)
}

/// The packages that it needs and that are not installed: its own, and libraries.
async fn packages() -> Result<Vec<String>, String> {
    let no =
        ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"].map(|kind| format!("--no-{kind}"));
    let no: Vec<&str> = no.iter().map(String::as_str).collect();
    let all =
        run(command(Path::new("apt-cache"), &[&["depends", "--recurse"], &no[..], &["postgresql"]].concat())).await?;
    let installed = run(command(Path::new("dpkg-query"), &["--show", "--showformat=${Package}\n"])).await?;
    let installed: BTreeSet<&str> = installed.lines().collect();
    let is_needed = |name: &&str| {
        let is_own = name.strip_prefix("postgresql-").is_some_and(|rest| !rest.contains("common"));
        let is_library = name.starts_with("lib") && !NOT_NEEDED.iter().any(|it| name.starts_with(it));
        (is_own || is_library) && !installed.contains(name)
    };
    let names: BTreeSet<&str> = all.lines().filter(|line| !line.starts_with([' ', '<'])).filter(is_needed).collect();
    Ok(names.into_iter().map(str::to_owned).collect())
}
