//! The modules of a crate and what they import, read from its source by `syn`. Tests are left out; so is what stands in macros.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use syn::{
    Attribute, Item, ItemMod, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

/// The path of a module from the root of its crate: empty for the root.
pub(crate) type ModulePath = Vec<String>;

/// A name that a module imports, and from where, as written.
struct Import {
    path: Vec<String>,
    /// `None`: everything that the path has.
    name: Option<String>,
}

/// What a file of a crate has.
#[derive(Default)]
struct Module {
    children: BTreeSet<String>,
    /// Names of the items that it defines.
    defined: BTreeSet<String>,
    imports: Vec<Import>,
    /// Other paths in its code.
    paths: Vec<Vec<String>>,
}

/// The modules of one crate.
pub(crate) struct Modules(BTreeMap<ModulePath, Module>);

pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
            || attribute.path().is_ident("test")
    })
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "syn's list of items is open: the others define nothing that is looked for"
)]
impl Visit<'_> for Module {
    fn visit_item(&mut self, item: &Item) {
        let (attributes, name) = match item {
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Mod(item) => (&item.attrs, None),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Impl(item) => (&item.attrs, None),
            _ => return visit::visit_item(self, item),
        };
        if is_test(attributes) {
            return;
        }
        self.defined.extend(name.map(ToString::to_string));
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &ItemMod) {
        // The content of an inline module counts as that of its file.
        if item.content.is_some() {
            return visit::visit_item_mod(self, item);
        }
        self.children.insert(item.ident.to_string());
    }

    fn visit_item_use(&mut self, item: &ItemUse) {
        // A private import is as good as a public one: a child can name it by `super`.
        let _: &Visibility = &item.vis;
        collect(&item.tree, &mut Vec::new(), &mut self.imports);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        if path.segments.len() > 1 {
            self.paths.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

/// Adds what a tree of imports names below this prefix.
fn collect(tree: &UseTree, prefix: &mut Vec<String>, imports: &mut Vec<Import>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            collect(&path.tree, prefix, imports);
            prefix.pop();
        }
        UseTree::Name(name) if name.ident == "self" => {
            imports.push(Import { path: prefix.clone(), name: prefix.last().cloned() });
        }
        UseTree::Name(name) => {
            let path = [&prefix[..], &[name.ident.to_string()]].concat();
            imports.push(Import { path, name: Some(name.ident.to_string()) });
        }
        UseTree::Rename(renamed) => {
            let path = [&prefix[..], &[renamed.ident.to_string()]].concat();
            imports.push(Import { path, name: Some(renamed.rename.to_string()) });
        }
        UseTree::Glob(_) => imports.push(Import { path: prefix.clone(), name: None }),
        UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, prefix, imports)),
    }
}

impl Modules {
    /// Reads a crate from the file of its root.
    pub(crate) fn read(root: &Path) -> Self {
        let mut modules = Self(BTreeMap::new());
        modules.add(Vec::new(), root, root.parent().expect("a file lies in a directory"));
        modules
    }

    /// Reads a module and those below it, whose files lie in `below`.
    fn add(&mut self, path: ModulePath, file: &Path, below: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut module = Module::default();
        module.visit_file(&syntax);

        let children = module.children.clone();
        self.0.insert(path.clone(), module);
        for child in children {
            let directory = below.join(&child);
            let inside = directory.join("mod.rs");
            let file = if inside.exists() { inside } else { below.join(format!("{child}.rs")) };
            // A file elsewhere, by an attribute, is generated or belongs to the tests.
            if file.exists() {
                self.add([&path[..], &[child]].concat(), &file, &directory);
            }
        }
    }

    /// The module in which a path, written in this module, ends. `None`: outside of the crate, or unknown.
    fn resolve(&self, from: &ModulePath, path: &[String], depth: usize) -> Option<ModulePath> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.clone(),
            "super" => from.split_last()?.1.to_vec(),
            child if self.0[from].children.contains(child) => [&from[..], &[child.to_owned()]].concat(),
            _ => return None,
        };
        while let Some((next, after)) = rest.split_first() {
            if next == "super" {
                at.pop()?;
            } else if self.0.get(&at)?.children.contains(next) {
                at.push(next.clone());
            } else {
                return self.owner(&at, next, depth);
            }
            rest = after;
        }
        self.0.contains_key(&at).then_some(at)
    }

    /// The module that defines a name which this module has: itself, or the one from which it imports the name.
    fn owner(&self, at: &ModulePath, name: &str, depth: usize) -> Option<ModulePath> {
        let module = self.0.get(at)?;
        if module.defined.contains(name) || depth == 0 {
            return Some(at.clone());
        }
        for import in &module.imports {
            let is_it = import.name.as_deref().is_none_or(|imported| imported == name);
            let Some(target) = is_it.then(|| self.resolve(at, &import.path, depth - 1)).flatten() else { continue };
            let has_it = import.name.is_some() || self.0[&target].defined.contains(name);
            if has_it {
                return Some(target);
            }
        }
        Some(at.clone())
    }

    /// The imports between the modules that this one declares. What lies below one of them counts as its own.
    pub(crate) fn edges_below(&self, parent: &ModulePath) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let depth = parent.len() + 1;
        let mut edges = BTreeMap::<_, BTreeSet<_>>::new();
        for (from, module) in &self.0 {
            if from.len() < depth || !from.starts_with(parent) {
                continue;
            }
            let written = module.imports.iter().map(|import| &import.path).chain(&module.paths);
            let targets = written.filter_map(|path| self.resolve(from, path, 8));
            let inside = targets.filter(|to| to.len() >= depth && to.starts_with(parent));
            let others = inside.map(|to| to[..depth].to_vec()).filter(|to| *to != from[..depth]);
            edges.entry(from[..depth].to_vec()).or_default().extend(others);
        }
        edges
    }

    /// The names of the crate's own modules and of Lockkeeper's crates with which the paths of a module begin.
    pub(crate) fn top_level_names(&self, module: &ModulePath) -> BTreeSet<String> {
        let module = &self.0[module];
        let written = module.imports.iter().map(|import| &import.path).chain(&module.paths);
        let names = written.filter_map(|path| match path.first()?.as_str() {
            "crate" => path.get(1).cloned(),
            first => first.strip_prefix("lockkeeper_").map(str::to_owned),
        });
        names.collect()
    }

    /// All modules.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &ModulePath> {
        self.0.keys()
    }
}
