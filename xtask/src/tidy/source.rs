//! Rust code as the rules see it: without tests and without documentation.

use syn::visit::Visit;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, ImplItem, Item, Stmt};

/// Parses a file. Also returns the names of the modules in other files that are tests.
pub fn parse(text: &str) -> syn::Result<(syn::File, Vec<String>)> {
    let mut file = syn::parse_file(text)?;
    let mut strip = Strip::default();
    strip.visit_file_mut(&mut file);
    Ok((file, strip.modules))
}

/// Removes tests and documentation.
#[derive(Default)]
struct Strip {
    modules: Vec<String>,
}

impl Strip {
    fn keeps(&mut self, item: &Item) -> bool {
        let test = is_test(attributes(item));
        if let Item::Mod(module) = item
            && test
        {
            self.modules.push(module.ident.to_string());
        }
        !test
    }
}

impl VisitMut for Strip {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| self.keeps(item));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut syn::ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| self.keeps(item));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, item: &mut syn::ItemImpl) {
        item.items.retain(|item| !matches!(item, ImplItem::Fn(f) if is_test(&f.attrs)));
        visit_mut::visit_item_impl_mut(self, item);
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.retain(|s| !matches!(s, Stmt::Item(item) if is_test(attributes(item))));
        visit_mut::visit_block_mut(self, block);
    }

    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        attributes.retain(|a| !a.path().is_ident("doc"));
    }
}

/// Whether an item with these attributes is only built for tests.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| match &a.meta {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let text = list.tokens.to_string();
            text.contains("test") && !text.contains("not")
        }
        _ => false,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    macro_rules! of {
        ($($kind:ident)*) => { match item { $(Item::$kind(i) => &i.attrs,)* _ => &[] } };
    }
    of!(Const Enum Fn Impl Macro Mod Static Struct Trait Type Union Use)
}

/// The name that an item defines.
pub fn name(item: &Item) -> Option<&syn::Ident> {
    Some(match item {
        Item::Const(i) => &i.ident,
        Item::Enum(i) => &i.ident,
        Item::Fn(i) => &i.sig.ident,
        Item::Macro(i) => i.ident.as_ref()?,
        Item::Mod(i) => &i.ident,
        Item::Static(i) => &i.ident,
        Item::Struct(i) => &i.ident,
        Item::Trait(i) => &i.ident,
        Item::Type(i) => &i.ident,
        Item::Union(i) => &i.ident,
        _ => return None,
    })
}

/// The names and string literals of code, with their lines.
#[derive(Default)]
pub struct Words {
    /// In order.
    pub found: Vec<(String, usize)>,
}

impl<'ast> Visit<'ast> for Words {
    fn visit_ident(&mut self, name: &'ast syn::Ident) {
        self.found.push((name.to_string(), name.span().start().line));
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.found.push((text.value(), text.span().start().line));
    }

    /// What macros are called with is not parsed; documentation in it is an attribute.
    fn visit_token_stream(&mut self, tokens: &'ast proc_macro2::TokenStream) {
        use proc_macro2::TokenTree::{Group, Ident, Literal, Punct};
        let mut open = vec![tokens.clone()];
        while let Some(tokens) = open.pop() {
            for tree in tokens {
                let line = tree.span().start().line;
                match tree {
                    Group(g) if g.stream().to_string().starts_with("doc =") => {}
                    Group(g) => open.push(g.stream()),
                    Ident(name) => self.found.push((name.to_string(), line)),
                    Literal(l) => self.found.push((l.to_string(), line)),
                    Punct(_) => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> String {
        let mut words = Words::default();
        words.visit_file(&parse(text).expect("Rust").0);
        words.found.into_iter().map(|(word, _)| word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn tests_and_documentation_are_left_out() {
        let text = "fn a() {} #[cfg(test)] #[allow(x)] mod tests { fn b() { c() } } fn d() {}";
        assert_eq!(words(text), "a d");
        assert_eq!(words("#[cfg(all(test, unix))] use a::{b, c}; /// e\n mod x {}"), "x");
        assert_eq!(words("mod y { #[test] fn t() -> u8 { [1, 2]; 3 } }"), "y");
        assert_eq!(
            words("impl A { #[cfg(test)] fn z() {} } fn b() { #[cfg(test)] use x::y; }"),
            "A b"
        );
        assert_eq!(words("m! { /// e\n fn z(\"w\") {} }"), "m fn z \"w\"");
        assert!(words("#[cfg(not(test))] fn z() {}").ends_with('z'));
    }

    #[test]
    fn test_modules_in_other_files_are_named() {
        assert_eq!(parse("#[cfg(test)] mod far; mod near;").expect("Rust").1, ["far"]);
        assert!(parse("fn f( {").is_err());
    }
}
