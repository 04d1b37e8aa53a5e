//! The blocks of commands and configuration in the Markdown pages, for tests that do what a page says.

use std::{fs, path::Path};

/// A fenced block of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    /// The heading above it, without its hashes.
    pub(crate) section: String,
    /// What stands after the fence: `sh`, `console`, …
    pub(crate) language: String,
    /// Its lines, without the indentation of the fence.
    pub(crate) text: String,
    /// The line of its fence in the page, from 1 on.
    pub(crate) line: usize,
}

/// The blocks of a page, named as from the root of the repository.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page));
    let text = text.unwrap_or_else(|error| panic!("{page}: {error}"));
    let mut section = String::new();
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();

    while let Some((number, line)) = lines.next() {
        let Some(language) = line.trim_start().strip_prefix("```") else {
            if line.starts_with('#') {
                section = line.trim_start_matches('#').trim().to_owned();
            }
            continue;
        };
        let indentation = line.len() - line.trim_start().len();
        let inner = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
        let dedented = inner.map(|line| format!("{}\n", line.get(indentation..).unwrap_or_default()));
        let text = dedented.collect();
        found.push(Block { section: section.clone(), language: language.trim().to_owned(), text, line: number + 1 });
    }
    found
}

/// The blocks of commands in one section of a page.
pub(crate) fn commands(page: &str, section: &str) -> Vec<Block> {
    let is_wanted = |block: &Block| block.section == section && block.language == "sh";
    let found: Vec<Block> = blocks(page).into_iter().filter(is_wanted).collect();
    assert!(!found.is_empty(), "{page} has no commands under {section:?}");
    found
}
