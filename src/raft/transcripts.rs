//! Runs the transcripts of the parts that decide: golden scripts in `tests/consensus`, one behaviour a file.
//!
//! A script gives what a node knows and asks it to decide; below `---` stand the decisions. Outputs are recorded, never typed:
//! `UPDATE_GOLDENFILES=1 cargo test -p lockkeeper-raft --lib transcripts`; then read the diff.
//!
//! The grammar of a folder is at the top of its runner: [`crate::members`] and [`crate::elections`] have one each.

use std::{collections::BTreeSet, error::Error, fs, path::Path, str::FromStr};

use goldenscript::{ArgumentConsumer, Runner};

/// What a command of a script prints, or why it is wrong.
pub(crate) type Output<T = String> = Result<T, Box<dyn Error>>;

/// Runs each script of a folder of `tests/consensus` with a runner of its own.
pub(crate) fn run_each<R: Runner + Default>(folder: &str, least: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/consensus").join(folder);
    let entries = fs::read_dir(folder).expect("the scripts are part of the source");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the folder can be read").path()).collect();
    paths.sort();
    assert!(paths.len() >= least, "only {} scripts were found", paths.len());

    for path in paths {
        if let Err(error) = goldenscript::run(&mut R::default(), &path) {
            panic!("{}: {error}", path.display());
        }
    }
}

/// The value of an argument `key=`, or `None` without one.
pub(crate) fn key<T: FromStr<Err: Error + 'static>>(
    arguments: &mut ArgumentConsumer<'_>,
    key: &str,
) -> Output<Option<T>> {
    Ok(arguments.take_key(key).map(str::parse).transpose()?)
}

/// The value of an argument `key=`, which must be there.
pub(crate) fn required<T: FromStr<Err: Error + 'static>>(
    arguments: &mut ArgumentConsumer<'_>,
    name: &str,
) -> Output<T> {
    key(arguments, name)?.ok_or_else(|| format!("give {name}=").into())
}

/// The next argument without a key, as a number.
pub(crate) fn number(arguments: &mut ArgumentConsumer<'_>, what: &str) -> Output<u64> {
    let text = arguments.next_pos().ok_or_else(|| format!("name a {what}"))?;
    Ok(text.parse()?)
}

/// The ids of an argument such as `voters=1,2,3`; none without it.
pub(crate) fn ids(arguments: &mut ArgumentConsumer<'_>, key: &str) -> Output<BTreeSet<u64>> {
    let text = arguments.take_key(key).unwrap_or_default();
    let ids = text.split(',').filter(|id| !id.is_empty()).map(str::parse);
    Ok(ids.collect::<Result<_, _>>()?)
}

/// Ids for people.
pub(crate) fn list<'a>(ids: impl IntoIterator<Item = &'a u64>) -> String {
    let ids: Vec<String> = ids.into_iter().map(u64::to_string).collect();
    ids.join(" ")
}
