//! Rules that rustfmt does not check: the width of comments, who makes functions of scripts, and the interface of the Rust client.
//!
//! The width of these is not checked: tables in docs; code, such as a long string (rustfmt breaks code); and Markdown files, which have
//! tables and links on lines of any length.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{
    ImplItem, Item, ItemImpl, ItemStruct, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

use crate::{modules::is_test, root};

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

/// The file with the constructors of functions that scripts call. They check that the stack has room for the arguments.
const CONSTRUCTORS: &str = "src/lua/raise.rs";

/// The calls of the binding that make a function of Lua from one of Rust.
const FUNCTION_MAKERS: [&str; 4] = ["create_function", "create_c_function", "create_async_function", "Function::wrap"];

/// The lines of a file that make such a function.
fn made_functions(text: &str) -> impl Iterator<Item = usize> {
    let makes = |line: &str| FUNCTION_MAKERS.iter().any(|maker| line.contains(maker));
    (1..).zip(text.lines()).filter(move |(_, line)| makes(line)).map(|(number, _)| number)
}

/// A function that is made elsewhere could panic when a script calls it with very many arguments, and a panic ends the node.
#[test]
fn functions_of_scripts_are_made_only_by_the_constructors_that_check_the_stack() {
    let mut elsewhere = Vec::new();
    let mut in_constructors = 0;
    for (path, text) in files(&["src/lua"], "rs") {
        if path == Path::new(CONSTRUCTORS) {
            in_constructors = made_functions(&text).count();
        } else {
            elsewhere.extend(made_functions(&text).map(|number| format!("{}:{number}", path.display())));
        }
    }
    assert!(elsewhere.is_empty(), "make these functions by `native_function` or `scoped_function`: {elsewhere:#?}");
    assert!(in_constructors > 1, "{in_constructors} in {CONSTRUCTORS}: the search no longer finds the constructors");
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

/// Collects the identifiers of a piece of syntax.
#[derive(Default)]
struct Identifiers(BTreeSet<String>);

impl Visit<'_> for Identifiers {
    fn visit_ident(&mut self, identifier: &syn::Ident) {
        self.0.insert(identifier.to_string());
    }
}

/// The names in a file of the messages of the API, and of the modules that have them.
struct WireNames(BTreeSet<String>);

impl WireNames {
    fn from_file(file: &syn::File) -> Self {
        let mut names = Self([WIRE.to_owned()].into());
        names.visit_file(file);
        names
    }
}

impl Visit<'_> for WireNames {
    fn visit_item_use(&mut self, import: &ItemUse) {
        let mut found = Identifiers::default();
        found.visit_use_tree(&import.tree);
        if found.0.contains(WIRE) {
            self.0.extend(found.0.into_iter().filter(|name| name != "self"));
        }
    }
}

/// The parts of a file that are in the interface of its crate, and those with which it could be hidden there: an import of everything, an
/// import that other files can import, and the name of a type for another one.
struct Interface {
    names: WireNames,
    /// How many parts there are.
    parts: usize,
    /// The parts that name a message of the API.
    leaks: Vec<String>,
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn has_glob(tree: &UseTree) -> bool {
    match tree {
        UseTree::Path(path) => has_glob(&path.tree),
        UseTree::Group(group) => group.items.iter().any(has_glob),
        UseTree::Glob(_) => true,
        UseTree::Name(_) | UseTree::Rename(_) => false,
    }
}

impl Interface {
    fn from_text(text: &str) -> Self {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{error} in {text}"));
        let mut interface = Self { names: WireNames::from_file(&file), parts: 0, leaks: Vec::new() };
        interface.visit_file(&file);
        interface
    }

    /// Looks at one part. `visit` shows its syntax, and `what` says in which words it is reported.
    fn part(&mut self, what: impl ToString, visit: impl FnOnce(&mut Identifiers)) {
        let mut found = Identifiers::default();
        visit(&mut found);

        self.parts += 1;
        if !found.0.is_disjoint(&self.names.0) {
            self.leaks.push(what.to_string());
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "syn's lists of items are open: the others have no interface")]
impl Visit<'_> for Interface {
    fn visit_item(&mut self, item: &Item) {
        match item {
            Item::Mod(module) if is_test(&module.attrs) => {}
            Item::Fn(function) if is_test(&function.attrs) => {}
            Item::Fn(function) if is_public(&function.vis) => {
                self.part(&function.sig.ident, |found| found.visit_signature(&function.sig));
            }
            Item::Enum(item) if is_public(&item.vis) => self.part(&item.ident, |found| found.visit_item_enum(item)),
            Item::Trait(item) if is_public(&item.vis) => self.part(&item.ident, |found| found.visit_item_trait(item)),
            Item::Const(item) if is_public(&item.vis) => self.part(&item.ident, |found| found.visit_type(&item.ty)),
            Item::Static(item) if is_public(&item.vis) => self.part(&item.ident, |found| found.visit_type(&item.ty)),
            Item::Type(item) => self.part(&item.ident, |found| found.visit_item_type(item)),
            Item::Use(item) if !matches!(item.vis, Visibility::Inherited) || has_glob(&item.tree) => {
                self.part("use", |found| found.visit_use_tree(&item.tree));
            }
            Item::Struct(_) | Item::Impl(_) | Item::Mod(_) => visit::visit_item(self, item),
            _ => {}
        }
    }

    fn visit_item_struct(&mut self, item: &ItemStruct) {
        if is_public(&item.vis) {
            self.part(&item.ident, |found| found.visit_generics(&item.generics));
        }
        // A private type may be seen through a field all the same, once it is handed out.
        for field in item.fields.iter().filter(|field| is_public(&field.vis)) {
            let name = field.ident.as_ref().unwrap_or(&item.ident);
            self.part(name, |found| found.visit_type(&field.ty));
        }
    }

    fn visit_item_impl(&mut self, item: &ItemImpl) {
        self.part("impl", |found| {
            found.visit_generics(&item.generics);
            item.trait_.iter().for_each(|(_, path, _)| found.visit_path(path));
            found.visit_type(&item.self_ty);
        });

        for member in &item.items {
            match member {
                ImplItem::Fn(function) if is_public(&function.vis) => {
                    self.part(&function.sig.ident, |found| found.visit_signature(&function.sig));
                }
                ImplItem::Const(constant) if is_public(&constant.vis) => {
                    self.part(&constant.ident, |found| found.visit_type(&constant.ty));
                }
                ImplItem::Type(own) => self.part(&own.ident, |found| found.visit_type(&own.ty)),
                _ => {}
            }
        }
    }
}

#[test]
fn the_interface_of_the_client_does_not_name_the_messages_of_the_api() {
    let files = files(&["src/client"], "rs");
    let interfaces: Vec<_> = files.iter().map(|(path, text)| (path, Interface::from_text(text))).collect();
    let leaks: Vec<_> = interfaces.iter().filter(|(_, interface)| !interface.leaks.is_empty()).collect();
    let leaks: Vec<_> = leaks.iter().map(|(path, interface)| (path, &interface.leaks)).collect();
    assert!(leaks.is_empty(), "convert these into types of the client, in src/client/views: {leaks:#?}");

    let parts: usize = interfaces.iter().map(|(_, interface)| interface.parts).sum();
    assert!(parts > 400, "only {parts} parts: the search no longer understands the code");
}

#[test]
fn a_message_of_the_api_is_found_in_each_part_of_an_interface() {
    let imports = "use lockkeeper_proto::v1::{self, Busy as Blocked};";
    for leak in [
        "pub use lockkeeper_proto as proto;",
        "pub(crate) use lockkeeper_proto::v1::Busy;",
        "pub(super) type Blocked = lockkeeper_proto::v1::Busy;",
        "use lockkeeper_proto::v1::*;",
        "type Blocked = v1::Busy;",
        "pub fn busy() -> Option<v1::Busy> {}",
        "impl Client { pub async fn busy(&self, of: &[Blocked]) -> Result<(), Error> where Self: Sized {} }",
        "pub struct Error(pub v1::Busy);",
        "pub struct Error { pub busy: Option<Box<v1::Busy>> }",
        "pub struct Error { pub busy: BTreeMap<String, v1::Busy> }",
        "struct Error { pub busy: v1::Busy }",
        "pub enum Error { Other {}, Busy(Box<v1::Busy>) }",
        "pub trait Blocks { fn by(&self) -> v1::Busy; }",
        "pub const NONE: Option<v1::Busy> = None;",
        "impl Client { pub const NONE: Option<v1::Busy> = None; }",
        "impl From<v1::Busy> for Error {}",
        "impl Stream for Watch { type Item = Result<v1::Busy, Error>; }",
        "pub fn messages() -> impl Stream<Item = v1::Busy> {}",
        "mod inner { pub fn busy() -> v1::Busy {} }",
        "#[cfg(test)] mod tests { fn a() {} } pub fn busy() -> v1::Busy {}",
    ] {
        let interface = Interface::from_text(&format!("{imports}\n{leak}"));
        assert_eq!(interface.leaks.len(), 1, "{leak}: {:?}", interface.leaks);
    }

    for inside in [
        "use lockkeeper_proto::v1::Busy;",
        "pub(crate) fn busy() -> Option<v1::Busy> {}",
        "pub struct Error { pub(super) busy: Option<v1::Busy> }",
        "pub struct Error { busy: Option<v1::Busy> }",
        "/// As `v1::Busy`.\npub fn busy() -> Busy { let busy: v1::Busy = ask(); }",
        "#[cfg(test)] mod tests { pub fn busy() -> v1::Busy {} }",
    ] {
        let interface = Interface::from_text(&format!("use lockkeeper_proto::v1;\n{inside}"));
        assert_eq!(interface.leaks, [""; 0], "{inside}");
    }
}
