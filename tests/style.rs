//! Rules that rustfmt does not check: the width of comments, and circles of imports between files.
//!
//! The width of these is not checked: tables in docs; code, such as a long string (rustfmt breaks code); and Markdown files, which have
//! tables and links on lines of any length.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Maximum length of a line with a comment, in characters.
const COLUMNS: usize = 140;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The text of each file with this extension below these directories, by its path from the root of the repository.
fn files(directories: &[&str], extension: &str) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut left: Vec<_> = directories.iter().map(|directory| root().join(directory)).collect();
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display())) {
            let path = entry.expect("a directory that can be listed").path();
            if path.is_dir() && !path.ends_with("target") {
                left.push(path);
            } else if path.extension().is_some_and(|its| its == extension) {
                let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                found.insert(path.strip_prefix(root()).expect("below the root").to_owned(), text);
            }
        }
    }
    assert!(!found.is_empty(), "no .{extension} below {directories:?}");
    found
}

/// Whether the line is a comment that can be broken.
fn is_comment(line: &str, extension: &str) -> bool {
    let line = line.trim_start();
    let text = line.trim_start_matches(['/', '!']).trim_start();
    line.starts_with(if extension == "sh" { "#" } else { "//" }) && !text.starts_with('|')
}

#[test]
fn comments_are_at_most_140_columns_wide() {
    let mut wide = Vec::new();
    for (directories, extension) in
        [(&["src", "tests", "proto"][..], "rs"), (&["proto"], "proto"), (&["scripts"], "sh")]
    {
        for (path, text) in files(directories, extension) {
            let of_file = text.lines().zip(1..).filter(|(line, _)| is_comment(line, extension));
            let too_wide = of_file.filter(|(line, _)| line.chars().count() > COLUMNS);
            wide.extend(too_wide.map(|(_, number)| format!("{}:{number}", path.display())));
        }
    }
    assert!(wide.is_empty(), "comments of more than {COLUMNS} columns: {wide:#?}");
}

/// Imports of a file by `use super::…`: the first name of each path, which is a sibling module or another item.
///
/// Reads text: it sees neither `crate::…`, nor paths outside of `use`, nor the module of a name that the parent re-exports.
fn siblings(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let mut found = BTreeSet::new();
    for statement in code.split("use super::").skip(1) {
        let statement = statement.split(';').next().unwrap_or_default();
        let mut depth = 0;
        let items = statement.strip_prefix('{').unwrap_or(statement).split(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            c == ',' && depth == 0
        });
        let first = |item: &str| item.trim().split([':', ' ', '}']).next().unwrap_or_default().to_owned();
        found.extend(items.map(first));
    }
    found
}

/// The files in circles, or on a path between two circles; `None`: there is no circle.
fn circle(imports: &BTreeMap<String, BTreeSet<String>>) -> Option<BTreeSet<String>> {
    let mut left = imports.clone();
    loop {
        let names: BTreeSet<_> = left.keys().cloned().collect();
        let before = left.len();
        // Remove files without imports among the rest, and files that none of the rest imports: they are in no circle.
        let imported: BTreeSet<_> =
            left.iter().flat_map(|(name, of)| of.iter().filter(move |other| *other != name)).cloned().collect();
        left.retain(|name, of| {
            imported.contains(name) && of.iter().any(|other| other != name && names.contains(other))
        });
        if left.len() == before {
            return (before > 0).then_some(names);
        }
    }
}

#[test]
fn files_of_one_directory_do_not_import_each_other_in_a_circle() {
    let mut directories = BTreeMap::<PathBuf, BTreeMap<String, BTreeSet<String>>>::new();
    for (path, text) in files(&["src"], "rs") {
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a file name in UTF-8").to_owned();
        if let Some(directory) = path.parent().filter(|_| !["mod", "lib", "main", "build", "tests"].contains(&&*name)) {
            directories.entry(directory.to_owned()).or_default().insert(name, siblings(&text));
        }
    }
    let circles: Vec<_> =
        directories.iter().filter_map(|(directory, imports)| Some((directory, circle(imports)?))).collect();
    assert!(circles.is_empty(), "these files, or some of them, import each other in a circle: {circles:#?}");
}

#[test]
fn a_circle_is_found_and_a_file_that_only_leads_to_it_is_not_part_of_it() {
    let read = |files: &[(&str, &str)]| {
        let imports = files.iter().map(|(name, text)| ((*name).to_owned(), siblings(text))).collect();
        circle(&imports).map(|found| found.into_iter().collect::<Vec<_>>().join(" "))
    };
    let local = "use super::{\n    keep_alive,\n    pages::{One, watch},\n};\n";
    let (keep_alive, pages) = ("use std::pin;\nuse super::local::PATIENCE;\n", "use super::*;\n");
    assert_eq!(
        read(&[("local", local), ("keep_alive", keep_alive), ("pages", pages)]).as_deref(),
        Some("keep_alive local")
    );
    let tests = "use super::patience::PATIENCE;\n#[cfg(test)]\nmod tests {\n    use super::local;\n}\n";
    assert_eq!(
        read(&[("local", local), ("keep_alive", tests), ("patience", ""), ("watch", "use super::local;\n")]),
        None
    );
}
