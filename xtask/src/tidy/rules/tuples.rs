//! Tuples: a function whose parameter is a tuple hides how many arguments it has, and what each is
//! called. A few are left; there must not be more.

use syn::visit::{self, Visit};

use crate::tidy::{Tree, Violation};

/// The limit for functions with such a parameter in the whole workspace.
const LIMIT: usize = 40;

/// The lines of functions with a parameter that is a tuple or a reference to one.
#[derive(Default)]
struct Functions(Vec<usize>);

impl<'ast> Visit<'ast> for Functions {
    fn visit_signature(&mut self, function: &'ast syn::Signature) {
        let is_tuple = |argument: &syn::FnArg| {
            let syn::FnArg::Typed(argument) = argument else { return false };
            let ty = match &*argument.ty {
                syn::Type::Reference(reference) => &*reference.elem,
                ty => ty,
            };
            matches!(ty, syn::Type::Tuple(tuple) if !tuple.elems.is_empty())
        };
        if function.inputs.iter().any(is_tuple) {
            self.0.push(function.fn_token.span.start().line);
        }
        visit::visit_signature(self, function);
    }
}

/// Counts the functions outside tests.
pub fn check(tree: &Tree) -> Vec<Violation> {
    check_with(tree, LIMIT)
}

fn check_with(tree: &Tree, limit: usize) -> Vec<Violation> {
    let mut places = Vec::new();
    for (file, code) in tree.sources() {
        let mut functions = Functions::default();
        functions.visit_file(code);
        places.extend(functions.0.into_iter().map(|line| (&file.path, line)));
    }
    let message = format!(
        "one of {} functions with a tuple as parameter, there may be {limit}; use plain parameters \
         or a struct",
        places.len()
    );
    let violation =
        |(path, line): &(&String, usize)| Violation::new("tuples", path, *line, message.clone());
    if places.len() > limit { places.iter().map(violation).collect() } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::tree;

    #[test]
    fn tuples_are_counted_with_and_without_names() {
        let text = "fn a((x, y): (u8, u8)) {}\nfn b(x: &mut (u8, A<B>)) {}\n\
                    trait T {\n    fn c(&self, x: (u8, u8));\n}\nimpl T for A {\n    \
                    fn d(x: u8, y: &[(u8, u8)], z: (), f: impl Fn(u8, u8)) -> (u8, u8) {}\n}\n\
                    #[cfg(test)]\nfn e(x: (u8, u8)) {}\n";
        let tree = tree(&[("crates/a/src/lib.rs", text)]);
        let lines: Vec<usize> = check_with(&tree, 2).iter().map(|v| v.line).collect();
        assert_eq!(lines, [1, 2, 4]);
        assert!(check_with(&tree, 3).is_empty());
    }
}
