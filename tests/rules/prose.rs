//! How well the production code can be read, as numbers that may only get better.
//!
//! Each number has a ratchet: the value that the code has now, and the goal. A change that makes a number worse fails. So does one that
//! makes it better and leaves the table as it was, because the next change could then undo it unseen.
//!
//! The goals are for the workspace, not for each function: a `match` that wants to be long may be, and a blank line belongs where the
//! thought changes. Tests are not measured.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Write as _, stderr},
    path::{Path, PathBuf},
};

use syn::{
    Expr, ItemMod, Lit, Pat,
    visit::{self, Visit},
};

use crate::{modules::is_test, style};

/// The number that the code has now, and the one that it should have.
struct Ratchet {
    what: &'static str,
    now: usize,
    goal: usize,
}

/// To be lowered (the comments: raised) by the commit that makes a number better.
const RATCHETS: [Ratchet; 12] = [
    Ratchet { what: UNDIVIDED, now: 10, goal: 30 },
    Ratchet { what: COMMENTS, now: 20, goal: 25 },
    Ratchet { what: PAIRED_BINDINGS, now: 15, goal: 20 },
    Ratchet { what: BOOLEAN_ARMS, now: 0, goal: 0 },
    Ratchet { what: SHARED_NAMES, now: 32, goal: 60 },
    Ratchet { what: NAMED_OF, now: 1, goal: 10 },
    Ratchet { what: LONGEST, now: 80, goal: 80 },
    Ratchet { what: LONGEST_ROW, now: 8, goal: 8 },
    Ratchet { what: TELEGRAMS, now: 0, goal: 0 },
    Ratchet { what: AVOIDED_WORDS, now: 0, goal: 0 },
    Ratchet { what: IS_NO, now: 1, goal: 0 },
    Ratchet { what: VERBLESS, now: 0, goal: 0 },
];

const UNDIVIDED: &str = "functions of 15 lines and more without a blank line, in %";
const COMMENTS: &str = "comment lines for 100 lines of code";
const PAIRED_BINDINGS: &str = "bindings `let (a, b) = (x, y)`, or to the default of such a pair";
const BOOLEAN_ARMS: &str = "arms `true =>` and `false =>`";
const SHARED_NAMES: &str = "names that more than one type has";
const NAMED_OF: &str = "functions named `of` or `of_…`";
const LONGEST: &str = "lines of the longest function";
const LONGEST_ROW: &str = "statements of a block in a row, without a blank line between them";
const TELEGRAMS: &str = "doc lines in telegram style (\"`None`: it waits\")";
const AVOIDED_WORDS: &str = "lines with \"such a\", \"is none that\" or \"there is none of\"";
const IS_NO: &str = "lines with \"is no WORD\", except \"there is no\", \"is no longer\" and \"is no more than\"";
const VERBLESS: &str = "doc comments that begin with \"Of\", \"That one\", \"One that\" or \"Those that\"";

/// A function of so many lines should have paragraphs.
const LONG_FUNCTION: usize = 15;

/// What the rules look for in the syntax of a file.
#[derive(Default)]
struct Syntax {
    paired_bindings: usize,
    boolean_arms: usize,
    /// Names of the types and traits that the file defines.
    types: Vec<String>,
    /// Functions named `of` or `of_…`.
    named_of: Vec<String>,
    /// Modules of the file that are compiled for tests alone.
    test_modules: Vec<String>,
}

impl Syntax {
    fn note_function(&mut self, signature: &syn::Signature) {
        let name = signature.ident.to_string();
        if name == "of" || name.starts_with("of_") {
            self.named_of.push(name);
        }
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "syn's list of items is open: the others define no type and no function"
)]
impl Visit<'_> for Syntax {
    fn visit_item(&mut self, item: &syn::Item) {
        let attributes = match item {
            syn::Item::Enum(item) => {
                self.types.push(item.ident.to_string());
                &item.attrs
            }
            syn::Item::Struct(item) => {
                self.types.push(item.ident.to_string());
                &item.attrs
            }
            syn::Item::Trait(item) => {
                self.types.push(item.ident.to_string());
                &item.attrs
            }
            syn::Item::Type(item) => {
                self.types.push(item.ident.to_string());
                &item.attrs
            }
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };

        if is_test(attributes) {
            if let syn::Item::Mod(ItemMod { ident, content: None, .. }) = item {
                self.test_modules.push(ident.to_string());
            }
            return;
        }
        visit::visit_item(self, item);
    }

    fn visit_signature(&mut self, signature: &syn::Signature) {
        self.note_function(signature);
        visit::visit_signature(self, signature);
    }

    fn visit_local(&mut self, local: &syn::Local) {
        let value = local.init.as_ref().map(|init| &*init.expr);
        if matches!(local.pat, Pat::Tuple(_)) && value.is_some_and(is_of_independent_values) {
            self.paired_bindings += 1;
        }
        visit::visit_local(self, local);
    }

    fn visit_arm(&mut self, arm: &syn::Arm) {
        if let Pat::Lit(literal) = &arm.pat
            && let Lit::Bool(_) = literal.lit
        {
            self.boolean_arms += 1;
        }
        visit::visit_arm(self, arm);
    }
}

/// Whether an expression is several values that have nothing to do with each other: a tuple, or the defaults of one.
fn is_of_independent_values(value: &Expr) -> bool {
    let Expr::Call(call) = value else { return matches!(value, Expr::Tuple(_)) };
    let Expr::Path(function) = &*call.func else { return false };
    call.args.is_empty() && function.path.segments.last().is_some_and(|last| last.ident == "default")
}

/// A function as rustfmt sets it.
struct Function {
    /// The line of its `fn`, counted from one.
    line: usize,
    /// How many lines it has, from its `fn` to its closing brace.
    lines: usize,
    has_blank_line: bool,
    /// The most statements of a block that follow each other without a blank line.
    longest_row: usize,
}

/// Whether a function begins on this line.
fn begins_function(line: &str) -> bool {
    let qualifiers = ["pub", "const", "async", "unsafe", "extern", "\"C\""];
    let mut words = line.split_whitespace().skip_while(|word| qualifiers.contains(word) || word.starts_with("pub("));
    words.next() == Some("fn")
}

/// The functions with a body of more than one line.
///
/// Relies on rustfmt, by which a function ends with the first brace that stands alone in the column where it began.
fn functions(text: &str) -> Vec<Function> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        if !begins_function(line) || line.ends_with(['}', ';']) {
            continue;
        }

        let indentation = &line[..line.len() - line.trim_start().len()];
        let own = |line: &str| line.strip_prefix(indentation).is_some_and(|rest| !rest.starts_with(' '));
        let Some(length) = lines[at + 1..].iter().position(|line| own(line) && line.trim_end().ends_with(['}', ';']))
        else {
            continue;
        };

        let body = &lines[at..=at + 1 + length];
        // A declaration in a trait has no body.
        if body.last().is_some_and(|last| last.trim() == "}") {
            found.push(Function {
                line: at + 1,
                lines: body.len(),
                has_blank_line: body.iter().any(|line| line.trim().is_empty()),
                longest_row: longest_row(body),
            });
        }
    }
    found
}

/// Lines of the same indentation, with what is nested between them.
struct Nest {
    column: usize,
    /// They are statements, and not arms of a `match`, fields or arguments.
    has_statements: bool,
    /// The statements since the last blank line.
    row: usize,
}

/// The most statements of a block in a function that follow each other without a blank line. A statement of many lines is one: an array, or
/// a `match`, may be as long as it wants to be.
///
/// Relies on rustfmt, by which a statement begins in the column of its block, and goes on further right.
fn longest_row(function: &[&str]) -> usize {
    let mut nests: Vec<Nest> = Vec::new();
    let mut opening = "";
    let mut follows_blank_line = false;
    let mut longest = 0;
    for line in function {
        let text = line.trim();
        if text.is_empty() {
            follows_blank_line = true;
            continue;
        }

        let column = line.len() - line.trim_start().len();
        while nests.last().is_some_and(|nest| nest.column > column) {
            nests.pop();
        }
        if nests.last().is_none_or(|nest| nest.column < column) {
            nests.push(Nest { column, has_statements: opens_block(opening), row: 0 });
        }

        let nest = nests.last_mut().expect("one was pushed");
        if follows_blank_line {
            nest.row = 0;
            follows_blank_line = false;
        }
        if text.starts_with("//") {
            continue;
        }

        // What begins so ends a statement, or goes on with one.
        let begins_statement = !text.starts_with(['{', '}', ')', ']', '.', '#']);
        if nest.has_statements && begins_statement {
            nest.row += 1;
            longest = longest.max(nest.row);
        }
        opening = text;
    }
    longest
}

/// Whether the lines within this one are statements.
fn opens_block(line: &str) -> bool {
    let Some(head) = line.strip_suffix('{').map(str::trim_end) else { return false };
    let is_arm = head.ends_with("=>");
    if !is_arm && (head.starts_with("match ") || head.contains(" match ") || head.contains("(match ")) {
        return false;
    }

    let ends = ["=>", "=", "|", ")", "else", "loop", "move", "async", "unsafe"];
    let begins = ["if ", "while ", "for ", "} else if "];
    head.is_empty()
        || ends.iter().any(|end| head.ends_with(end))
        || begins.iter().any(|begin| head.starts_with(begin))
        || [" if ", "-> ", "fn "].iter().any(|word| head.contains(word))
}

/// How many lines of documentation define something by a word and a colon, where a sentence should stand. An item of a list is no such
/// line: there, a word and its meaning are the form.
fn telegrams(text: &str) -> usize {
    let docs = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or(line.strip_prefix("//!")).map(str::trim)
    });
    docs.filter(|line| has_telegram(line)).count()
}

/// How many lines use words that hide their subject.
fn avoided_words(text: &str) -> usize {
    const AVOIDED: [&str; 4] = ["such a ", "such an ", "is none that", "there is none of"];
    text.lines().filter(|line| AVOIDED.iter().any(|words| line.contains(words))).count()
}

/// How many lines say that something "is no" such thing, instead of "is not a".
fn negated_nouns(text: &str) -> usize {
    let is_negated = |line: &str| {
        line.match_indices("is no ").any(|(at, words)| {
            let before = &line[..at];
            let after = &line[at + words.len()..];
            let is_word = before.is_empty() || before.ends_with([' ', '`', '"', '(', '}']);
            let is_there = before.to_lowercase().ends_with("there ");
            let is_other = after.starts_with("longer") || after.starts_with("more than");
            is_word && !is_there && !is_other
        })
    };
    text.lines().filter(|line| is_negated(line)).count()
}

/// How many paragraphs of documentation begin with words after which no subject and no verb follow.
fn verbless_docs(text: &str) -> usize {
    const BEGINNINGS: [&str; 4] = ["Of ", "That one ", "One that ", "Those that "];
    let mut previous = "";
    let mut found = 0;
    for line in text.lines() {
        let doc = line.trim_start().strip_prefix("///").map_or("", str::trim);
        found += usize::from(previous.is_empty() && BEGINNINGS.iter().any(|words| doc.starts_with(words)));
        previous = doc;
    }
    found
}

/// Whether a sentence in the line begins with code and a colon.
fn has_telegram(line: &str) -> bool {
    let begins = |sentence: &str| {
        let code = sentence.strip_prefix('`').and_then(|rest| rest.split_once('`'));
        code.is_some_and(|(_, after)| after.starts_with(": "))
    };
    let later = line.match_indices(['.', ';']).map(|(at, _)| &line[at + 1..]);
    begins(line) || later.filter_map(|rest| rest.strip_prefix(' ')).any(begins)
}

/// The measures of the production code.
#[derive(Default)]
struct Measures {
    comments: usize,
    code: usize,
    long_functions: usize,
    undivided: usize,
    longest: (usize, String),
    longest_row: (usize, String),
    telegrams: usize,
    avoided_words: usize,
    negated_nouns: usize,
    verbless_docs: usize,
    paired_bindings: usize,
    boolean_arms: usize,
    named_of: Vec<String>,
    /// Where each name of a type is defined.
    types: BTreeMap<String, Vec<PathBuf>>,
}

impl Measures {
    fn add(&mut self, path: &Path, text: &str, syntax: Syntax) {
        let text = style::without_tests(text);
        for line in text.lines().map(str::trim_start).filter(|line| !line.is_empty()) {
            if line.starts_with("//") {
                self.comments += 1;
            } else {
                self.code += 1;
            }
        }

        for function in functions(&text) {
            if function.lines >= LONG_FUNCTION {
                self.long_functions += 1;
                self.undivided += usize::from(!function.has_blank_line);
            }
            let place = || format!("{}:{}", path.display(), function.line);
            if function.lines > self.longest.0 {
                self.longest = (function.lines, place());
            }
            if function.longest_row > self.longest_row.0 {
                self.longest_row = (function.longest_row, place());
            }
        }

        self.telegrams += telegrams(&text);
        self.avoided_words += avoided_words(&text);
        self.negated_nouns += negated_nouns(&text);
        self.verbless_docs += verbless_docs(&text);
        self.paired_bindings += syntax.paired_bindings;
        self.boolean_arms += syntax.boolean_arms;
        self.named_of.extend(syntax.named_of.iter().map(|name| format!("{}: {name}", path.display())));
        for name in syntax.types {
            self.types.entry(name).or_default().push(path.to_owned());
        }
    }

    /// Where the number for this ratchet was found, if it is that of one place.
    fn place(&self, what: &str) -> String {
        match what {
            LONGEST => format!(": {}", self.longest.1),
            LONGEST_ROW => format!(": {}", self.longest_row.1),
            _ => String::new(),
        }
    }

    /// The number for this ratchet.
    fn number(&self, what: &str) -> usize {
        match what {
            UNDIVIDED => (100 * self.undivided).div_ceil(self.long_functions.max(1)),
            COMMENTS => 100 * self.comments / self.code.max(1),
            PAIRED_BINDINGS => self.paired_bindings,
            BOOLEAN_ARMS => self.boolean_arms,
            SHARED_NAMES => self.types.values().filter(|places| places.len() > 1).count(),
            NAMED_OF => self.named_of.len(),
            LONGEST => self.longest.0,
            LONGEST_ROW => self.longest_row.0,
            TELEGRAMS => self.telegrams,
            AVOIDED_WORDS => self.avoided_words,
            IS_NO => self.negated_nouns,
            VERBLESS => self.verbless_docs,
            other => panic!("nothing measures {other:?}"),
        }
    }
}

/// Measures the files of the crates below this directory; files that belong to tests are left out.
fn measure(files: &BTreeMap<PathBuf, String>) -> Measures {
    let mut syntaxes = Vec::new();
    let mut tests = BTreeSet::new();
    for (path, text) in files {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut syntax = Syntax::default();
        syntax.visit_file(&file);

        // The modules of `mod.rs`, and of the root of a crate, lie beside it; those of another file in a folder of its name.
        let is_root = path.file_name().is_some_and(|name| name == "mod.rs" || name == "lib.rs" || name == "main.rs");
        let below = if is_root { path.with_file_name("") } else { path.with_extension("") };
        tests.extend(syntax.test_modules.iter().map(|name| below.join(name)));
        syntaxes.push((path, text, syntax));
    }

    let mut measures = Measures::default();
    for (path, text, syntax) in syntaxes {
        let is_of_tests = path.ancestors().any(|at| tests.contains(&at.with_extension("")));
        if !is_of_tests {
            measures.add(path, text, syntax);
        }
    }
    measures
}

/// What is wrong with a ratchet, if anything.
fn complaint(ratchet: &Ratchet, measured: usize) -> Option<String> {
    let Ratchet { what, now, goal } = ratchet;
    let more_is_better = *what == COMMENTS;
    let is_worse = if more_is_better { measured < *now } else { measured > *now };
    if is_worse {
        Some(format!("{what}: {measured}, and it was {now} before this change; the goal is {goal}"))
    } else if measured != *now {
        Some(format!("{what}: {measured}, better than {now}: write `now: {measured}` into tests/rules/prose.rs"))
    } else {
        None
    }
}

#[test]
fn the_code_does_not_become_harder_to_read() {
    let files = style::files(&["src", "proto"], "rs");
    let measures = measure(&files);
    assert!(
        measures.long_functions > 500,
        "only {} functions: the search no longer understands the code",
        measures.long_functions
    );

    let mut table = format!("\n{:>5} {:>5}  measure of the production code\n", "now", "goal");
    let mut complaints = Vec::new();
    for ratchet in &RATCHETS {
        let measured = measures.number(ratchet.what);
        let place = measures.place(ratchet.what);
        table.push_str(&format!("{measured:>5} {:>5}  {}{place}\n", ratchet.goal, ratchet.what));
        complaints.extend(complaint(ratchet, measured));
    }

    // A test that passes shows nothing of what it prints; the table is for each run.
    stderr().write_all(table.as_bytes()).expect("standard error can be written");
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn each_measure_finds_what_it_is_about() {
    let text = r#"
//! `None`: nothing is said.

/// Fine. `None`: it waits forever.
/// * `of`: in a list, this is the form, and such a list is long.
struct Document;

/// Of a text: it is no longer there, this is no text.
struct Text;

impl Document {
    fn of(x: bool) {
        let (a, b) = (1, 2);
        let (c, d) = Default::default();
        match x {
            true => drop(a),
            false => drop(b),
        }
    }
}

mod inner {
    type Document = u8;
}

#[cfg(test)]
mod tests {
    fn of_a_test() {}
}

fn divided() {
    let text = "";

    drop(text);
}
"#;
    let files = BTreeMap::from([(PathBuf::from("src/lib.rs"), text.to_owned())]);
    let measures = measure(&files);
    assert_eq!(measures.named_of, ["src/lib.rs: of"]);
    let measured =
        [PAIRED_BINDINGS, BOOLEAN_ARMS, SHARED_NAMES, LONGEST, LONGEST_ROW, TELEGRAMS, AVOIDED_WORDS, IS_NO, VERBLESS];
    assert_eq!(measured.map(|what| measures.number(what)), [2, 2, 1, 8, 3, 2, 1, 1, 1]);

    let found: Vec<_> = functions(text).iter().map(|function| (function.line, function.has_blank_line)).collect();
    assert_eq!(found, [(12, false), (31, true)]);
}

#[test]
fn a_row_of_statements_ends_with_a_blank_line() {
    let text = r#"
fn shown(
    first: u8,
    second: u8,
) -> Vec<u8> {
    let one = first;
    // A comment is no statement, and ends no row.
    let two = Pair {
        first,

        second,
        third: 0,
        fourth: 0,
    };

    let three = match one {
        0 => 1,
        1 => 2,
        2 => 3,
        3 => 4,
        _ => 5,
    };
    if three > 0 {
        note(one);
        note(two);
        note(three);
        note(three);
    }
    vec![
        one,
        two,
    ]
}
"#;
    let found: Vec<_> = functions(text).iter().map(|function| function.longest_row).collect();
    assert_eq!(found, [4]);
}

#[test]
fn files_of_tests_are_not_measured() {
    let files = BTreeMap::from([
        (PathBuf::from("src/a/mod.rs"), "#[cfg(test)]\nmod tests;\nmod b;\n".to_owned()),
        (PathBuf::from("src/a/tests.rs"), "mod deeper;\nstruct Test;\n".to_owned()),
        (PathBuf::from("src/a/tests/deeper.rs"), "struct DeeperTest;\n".to_owned()),
        (PathBuf::from("src/a/b.rs"), "#[cfg(test)]\nmod at_limits;\nstruct B;\n".to_owned()),
        (PathBuf::from("src/a/b/at_limits.rs"), "struct OfLimits;\n".to_owned()),
    ]);
    let types: Vec<_> = measure(&files).types.into_keys().collect();
    assert_eq!(types, ["B"]);
}

#[test]
fn a_ratchet_holds_in_both_directions() {
    let fewer = Ratchet { what: NAMED_OF, now: 5, goal: 1 };
    assert_eq!(complaint(&fewer, 5), None);
    assert!(complaint(&fewer, 6).is_some_and(|text| text.contains("it was 5 before")));
    assert!(complaint(&fewer, 4).is_some_and(|text| text.contains("write `now: 4`")));

    let more = Ratchet { what: COMMENTS, now: 5, goal: 9 };
    assert!(complaint(&more, 4).is_some_and(|text| text.contains("it was 5 before")));
    assert!(complaint(&more, 6).is_some_and(|text| text.contains("write `now: 6`")));
}
