//! The corpus: one file for each target, one input a line, as Rust writes bytes in a string: `\xff` is a byte, `\n` a line feed.
//!
//! Lines that begin with `#` and empty lines are skipped: a comment says what the lines below it found.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The file of a target.
pub(crate) fn file(target: &str) -> PathBuf {
    Path::new(super::CORPUS).join(format!("{target}.txt"))
}

/// The inputs of a target's file. Panics on a line that is no input.
pub(crate) fn inputs(target: &str) -> Vec<Vec<u8>> {
    let file = file(target);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => panic!("{}: {error}", file.display()),
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let input = |(at, line)| unescape(line).unwrap_or_else(|| panic!("{}:{}: no input", file.display(), at + 1));
    lines.map(input).collect()
}

/// An input as a line.
pub(crate) fn escape(input: &[u8]) -> String {
    let line = input.escape_ascii().to_string();
    // Otherwise it would be a comment, or an editor might remove its end.
    let line = line.strip_prefix('#').map_or(line.clone(), |rest| format!("\\x23{rest}"));
    line.strip_suffix(' ').map_or(line.clone(), |rest| format!("{rest}\\x20"))
}

/// The reverse.
pub(crate) fn unescape(line: &str) -> Option<Vec<u8>> {
    let mut input = Vec::with_capacity(line.len());
    let mut rest = line.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            input.push(byte);
            continue;
        }
        input.push(match rest.next()? {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'x' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? << 4 | digit()?).ok()?
            }
            other @ (b'\\' | b'\'' | b'"') => other,
            _ => return None,
        });
    }
    Some(input)
}
