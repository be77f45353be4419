//! A crate as modules: the names that each defines, re-exports and uses.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, UseTree};

use super::Tree;
use super::source::name;

/// A module's path below the crate's root, or a name in code.
pub type Path = Vec<String>;

/// The names that a file defines and uses.
#[derive(Debug, Default)]
pub struct Module {
    /// Names of the items in the file.
    items: BTreeSet<String>,
    /// Names imported by `use`, with their origin.
    imports: BTreeMap<String, Path>,
    globs: Vec<Path>,
    /// All paths in code outside tests that begin with `crate`, `self`, `super` or an imported
    /// name, rewritten to begin at `crate`.
    pub paths: Vec<Path>,
}

/// The modules of a crate.
#[derive(Debug)]
pub struct Crate {
    /// By path.
    pub modules: BTreeMap<Path, Module>,
}

impl Crate {
    /// Reads the files of a source folder without test code.
    pub fn read(tree: &Tree, root: &str) -> Crate {
        let mut modules = BTreeMap::new();
        for (file, code) in tree.sources() {
            let below = file.path.strip_prefix(root).and_then(|p| p.strip_prefix('/'));
            let Some(place) = below.map(place) else { continue };
            let mut reader = Reader { module: Module::default(), at: place.clone() };
            reader.visit_file(code);
            modules.insert(place, reader.module);
        }
        Crate { modules }
    }

    /// The module that defines what a path names, and the name. `None` if it is in the same module.
    pub fn definition(&self, from: &Path, path: &Path) -> Option<(Path, String)> {
        let (module, name) = self.resolve(path, 0)?;
        let last = name.or_else(|| module.last().cloned())?;
        (module != *from).then_some((module, last))
    }

    /// Follows re-exported names. The limit ends loops of `use`.
    fn resolve(&self, path: &[String], depth: usize) -> Option<(Path, Option<String>)> {
        let known = |n: &usize| self.modules.contains_key(&path[..*n]);
        let length = (0..=path.len()).rev().find(known)?;
        let (place, rest) = path.split_at(length);
        let Some(name) = rest.first() else { return Some((place.to_vec(), None)) };
        let module = &self.modules[place];
        if module.items.contains(name) || depth > 16 {
            return Some((place.to_vec(), Some(name.clone())));
        }
        if let Some(from) = module.imports.get(name) {
            let whole: Path = from.iter().chain(&rest[1..]).cloned().collect();
            return self.resolve(&whole, depth + 1);
        }
        for glob in &module.globs {
            let whole: Path = glob.iter().chain(rest).cloned().collect();
            let found = self.resolve(&whole, depth + 1);
            let defines =
                |(m, n): &(Path, Option<String>)| n.as_ref().is_none_or(|n| self.defines(m, n));
            if found.as_ref().is_some_and(defines) {
                return found;
            }
        }
        Some((place.to_vec(), Some(name.clone())))
    }

    fn defines(&self, module: &Path, name: &str) -> bool {
        self.modules.get(module).is_some_and(|m| m.items.contains(name))
    }
}

/// The module path of a file in the source folder.
fn place(path: &str) -> Path {
    let mut parts: Path = path.trim_end_matches(".rs").split('/').map(str::to_string).collect();
    let is_folder = |name: &String| matches!(name.as_str(), "mod" | "lib" | "main");
    if parts.last().is_some_and(is_folder) {
        parts.pop();
    }
    parts
}

struct Reader {
    module: Module,
    /// The current module path: the file's path, or a path below it inside a `mod name { ... }`.
    at: Path,
}

impl Reader {
    /// A path rewritten to begin at the crate's root; `None` if it begins elsewhere.
    fn absolute(&self, written: &[String]) -> Option<Path> {
        let mut place = match written.first()?.as_str() {
            "crate" => Path::new(),
            "self" | "super" => self.at.clone(),
            name => {
                let import = self.module.imports.get(name)?;
                return Some(import.iter().chain(&written[1..]).cloned().collect());
            }
        };
        for name in written {
            match name.as_str() {
                "crate" | "self" => {}
                "super" => _ = place.pop(),
                name => place.push(name.to_string()),
            }
        }
        Some(place)
    }

    fn tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) if name.ident == "self" => {
                self.import(before.last().cloned(), before);
            }
            UseTree::Name(name) => self.import(Some(name.ident.to_string()), &with(&name.ident)),
            UseTree::Rename(as_name) => {
                self.import(Some(as_name.rename.to_string()), &with(&as_name.ident));
            }
            UseTree::Glob(_) => {
                let target = self.target(before);
                self.module.globs.extend(target.clone());
                self.module.paths.extend(target);
            }
            UseTree::Group(group) => group.items.iter().for_each(|t| self.tree(before, t)),
        }
    }

    /// The target of a `use`: from the crate's root, or a module or import of this file.
    fn target(&self, written: &[String]) -> Option<Path> {
        self.absolute(written).or_else(|| {
            let child = self.module.items.contains(written.first()?);
            child.then(|| self.at.iter().chain(written).cloned().collect())
        })
    }

    fn import(&mut self, name: Option<String>, written: &[String]) {
        let Some(target) = self.target(written) else { return };
        self.module.paths.push(target.clone());
        if let Some(name) = name {
            self.module.imports.insert(name, target);
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_file(&mut self, file: &'ast syn::File) {
        self.module.items = file.items.iter().filter_map(name).map(ToString::to_string).collect();
        // Imports first, since code may precede them.
        for item in &file.items {
            if let Item::Use(item) = item {
                self.visit_item_use(item);
            }
        }
        for item in file.items.iter().filter(|i| !matches!(i, Item::Use(_))) {
            self.visit_item(item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.content.is_some() {
            self.at.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.at.pop();
        }
    }

    /// Saying who may use an item does not use it.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let written: Path = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if path.leading_colon.is_none() {
            self.module.paths.extend(self.absolute(&written));
        }
        visit::visit_path(self, path);
    }

    /// What macros are called with is not parsed.
    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        let mut found = Vec::new();
        paths_in(tokens.clone(), &mut found);
        // Without a name it says who may use an item, such as `pub(super)`.
        found.retain(|p: &Path| p.iter().any(|n| !matches!(&**n, "crate" | "self" | "super")));
        for written in &found {
            self.module.paths.extend(self.absolute(written));
        }
    }
}

/// Finds the paths in tokens: names with two colons between them.
fn paths_in(tokens: TokenStream, found: &mut Vec<Path>) {
    let (mut path, mut colons) = (Path::new(), 0);
    for tree in tokens {
        match tree {
            TokenTree::Punct(mark) if mark.as_char() == ':' => {
                colons += 1;
                continue;
            }
            TokenTree::Ident(name) => {
                if colons != 2 {
                    found.push(std::mem::take(&mut path));
                }
                path.push(name.to_string());
            }
            other => {
                found.push(std::mem::take(&mut path));
                if let TokenTree::Group(group) = other {
                    paths_in(group.stream(), found);
                }
            }
        }
        colons = 0;
    }
    found.push(path);
}
