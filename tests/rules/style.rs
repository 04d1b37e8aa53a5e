//! Rules that rustfmt does not check: the width of comments, and the interface of the Rust client.
//!
//! The width of these is not checked: tables in docs; code, such as a long string (rustfmt breaks code); and Markdown files, which have
//! tables and links on lines of any length.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use crate::root;

/// Maximum length of a line with a comment, in characters.
const COLUMNS: usize = 140;

/// The text of each file with this extension below these directories, by its path from the root of the repository.
pub(crate) fn files(directories: &[&str], extension: &str) -> BTreeMap<PathBuf, String> {
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

/// The crate of the messages of the API.
const WIRE: &str = "lockkeeper_proto";

/// The text without test modules.
pub(crate) fn without_tests(text: &str) -> String {
    let mut lines = Vec::new();
    let mut of_test = false;
    for line in text.lines() {
        of_test |= line == "#[cfg(test)]";
        if !of_test {
            lines.push(line);
        }
        // Rustfmt writes the end of an item of a file to the first column.
        of_test &= !(line == "}" || line.starts_with("mod ") && line.ends_with(';'));
    }
    lines.join("\n")
}

/// The text without comments, and without test modules.
fn code(text: &str) -> String {
    let text = without_tests(text);
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.map(|line| line.split(" // ").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// The text up to the first of these characters outside of parentheses, brackets and braces, with it.
fn up_to<'a>(code: &'a str, ends: &[char]) -> &'a str {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        if depth == 0 && ends.contains(&c) {
            return &code[..=at];
        }
        depth += i32::from("([{".contains(c)) - i32::from(")]}".contains(c));
        if depth < 0 || depth == 0 && c == '}' && ends.contains(&c) {
            return &code[..=at];
        }
    }
    code
}

/// The imports of a file.
fn imports(code: &str) -> impl Iterator<Item = &str> {
    let starts = code.match_indices("use ").map(|(at, _)| at);
    let starts = starts.filter(|at| code[..*at].ends_with(|c: char| c.is_whitespace()) || *at == 0);
    starts.map(|at| up_to(&code[at..], &[';']))
}

/// The names in this file of the messages of the API, and of the modules that have them.
fn wire_names(code: &str) -> BTreeSet<String> {
    let of_wire = imports(code).filter(|import| words(import).any(|word| word == WIRE));
    let names = of_wire.flat_map(words).filter(|word| !["use", "as", "self"].contains(word));
    names.chain([WIRE]).map(str::to_owned).collect()
}

/// The field, or the constant without its value, at the start of this code, whose first line has this indentation.
fn field(code: &str, indentation: usize) -> &str {
    let mut end = 0;
    for line in code.split_inclusive('\n') {
        let is_last = end == 0 || line.len() - line.trim_start().len() == indentation;
        if let Some(value) = line.find(" = ") {
            return &code[..end + value];
        }
        end += line.len();
        if is_last && line.trim_end().ends_with([',', ';']) {
            break;
        }
    }
    &code[..end]
}

/// The parts of the code that are in the interface of its crate, and those with which it could be hidden there: an import of
/// everything, an import that other files can import, and the name of a type for another one.
///
/// Relies on rustfmt, by which each item and each field begins a line.
fn interface(code: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut at = 0;
    for line in code.split_inclusive('\n') {
        let (item, rest) = (line.trim_start(), &code[at + line.len() - line.trim_start().len()..]);
        at += line.len();
        let public =
            item.strip_prefix("pub ").map(|item| words(item).find(|word| !["async", "const", "unsafe"].contains(word)));
        match public {
            Some(Some("enum" | "trait" | "union")) => parts.push(up_to(rest, &['}'])),
            Some(Some("struct" | "fn" | "mod")) => parts.push(up_to(rest, &['{', ';'])),
            Some(Some("use" | "type" | "static")) => parts.push(up_to(rest, &[';'])),
            // A field or a constant.
            Some(_) => parts.push(field(rest, line.len() - item.len())),
            None if item.starts_with("impl") => parts.push(up_to(rest, &['{'])),
            None if item.starts_with("type ") => parts.push(up_to(rest, &[';'])),
            None if item.starts_with("pub(") && item.contains(") use ") => parts.push(up_to(rest, &[';'])),
            None if item.starts_with("pub(") && item.contains(") type ") => parts.push(up_to(rest, &[';'])),
            None if item.starts_with("use ") && up_to(rest, &[';']).contains('*') => parts.push(up_to(rest, &[';'])),
            None => {}
        }
    }
    parts
}

/// The parts of the interface that name a message of the API.
fn leaks(text: &str) -> Vec<String> {
    let code = code(text);
    let names = wire_names(&code);
    let leaks = interface(&code).into_iter().filter(|part| words(part).any(|word| names.contains(word)));
    leaks.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn the_interface_of_the_client_does_not_name_the_messages_of_the_api() {
    let files = files(&["src/client"], "rs");
    let found: Vec<_> =
        files.iter().map(|(path, text)| (path, leaks(text))).filter(|(_, leaks)| !leaks.is_empty()).collect();
    assert!(found.is_empty(), "convert these into types of the client, in src/client/views: {found:#?}");
    let parts: usize = files.values().map(|text| interface(&code(text)).len()).sum();
    assert!(parts > 400, "only {parts} parts: the search no longer understands the code");
}

#[test]
fn a_message_of_the_api_is_found_in_each_part_of_an_interface() {
    for leak in [
        "pub use lockkeeper_proto as proto;",
        "pub(crate) use lockkeeper_proto::v1::Busy;",
        "pub(super) type Blocked = lockkeeper_proto::v1::Busy;",
        "use lockkeeper_proto::v1::*;",
        "type Blocked = v1::Busy;",
        "pub fn busy() -> Option<v1::Busy> {",
        "    pub async fn busy(\n        &self,\n        of: &[Blocked],\n    ) -> Result<(), Error>\n    where\n",
        "pub struct Error(pub v1::Busy);",
        "    pub busy: Option<Box<v1::Busy>>,",
        "    pub busy: BTreeMap<String, v1::Busy>,",
        "    pub busy: BTreeMap<\n        String,\n        v1::Busy,\n    >,",
        "pub enum Error {\n    Other {},\n    Busy(Box<v1::Busy>),\n}",
        "pub trait Blocks {\n    fn by(&self) -> v1::Busy;\n}",
        "pub const NONE: Option<v1::Busy> = None;",
        "impl From<v1::Busy> for Error {",
        "impl Stream for Watch {\n    type Item = Result<v1::Busy, Error>;",
        "pub fn messages() -> impl Stream<Item = v1::Busy> {",
        "#[cfg(test)]\nmod tests;\npub fn busy() -> v1::Busy {",
        "#[cfg(test)]\nmod tests {\n    fn a() {}\n}\n\npub fn busy() -> v1::Busy {",
    ] {
        let text = format!("use lockkeeper_proto::v1::{{\n    self, Busy as Blocked,\n}};\n{leak}\n}}\n");
        assert_eq!(leaks(&text).len(), 1, "{leak}: {:?}", leaks(&text));
    }
    for inside in [
        "use lockkeeper_proto::v1::Busy;",
        "pub(crate) fn busy() -> Option<v1::Busy> {",
        "    pub(super) busy: Option<v1::Busy>,",
        "    busy: Option<v1::Busy>,",
        "/// As `v1::Busy`.\npub fn busy() -> Busy {\n    let busy: v1::Busy = ask();",
        "#[cfg(test)]\nmod tests {\n    pub fn busy() -> v1::Busy {}\n",
    ] {
        let text = format!("use lockkeeper_proto::v1;\n{inside}\n}}\n");
        assert_eq!(leaks(&text), [""; 0], "{inside}");
    }
}
