//! Limits: what may not become more. The table of limits in CONTRIBUTING.md is the same.

use syn::visit::{self, Visit};

use crate::tidy::source::Words;
use crate::tidy::{Tree, Violation};

/// What is counted outside tests, and the most that there may be.
const LIMITS: [(&str, usize); 7] = [
    ("functions with a tuple or an array of numbers as parameter", 36),
    ("functions of more than 60 lines", 5),
    ("methods of the traits of `troika-device`, together", 25),
    ("methods of the trait `CostModel`", 11),
    ("checks of a device's kind outside the crates of devices", 1),
    ("public fields of `OpenOptions`", 21),
    ("public fields of `OpenOptions` and the options within", 64),
];

/// Checks the counts, and that CONTRIBUTING.md has the table's rows.
pub fn check(tree: &Tree) -> Vec<Violation> {
    check_with(tree, &LIMITS.map(|(_, most)| most))
}

fn check_with(tree: &Tree, limits: &[usize]) -> Vec<Violation> {
    let mut places = [const { Vec::new() }; 7];
    for (file, code) in tree.sources() {
        let mut found = Found { is_device: file.path.contains("/troika-device/"), of: Vec::new() };
        found.visit_file(code);
        let own = ["-cpu/", "-gpu/", "-npu/", "-sim/", "-device/", "/devices/", "xtask/"];
        if !own.iter().any(|place| file.path.contains(place)) {
            let lines = file.text.iter().flat_map(|text| text.lines().zip(1..));
            found.of.extend(lines.filter(|l| l.0.contains("DeviceKind::")).map(|l| (4, l.1)));
        }
        found.of.into_iter().for_each(|(at, line)| places[at].push((file.path.as_str(), line)));
    }
    [places[5], places[6]] = option_fields(tree);
    let guide = tree.files.iter().find(|f| f.path == "CONTRIBUTING.md");
    let guide = guide.and_then(|f| f.text.as_deref()).unwrap_or_default();
    let mut all = Vec::new();
    for (((what, _), most), places) in LIMITS.iter().zip(limits).zip(places) {
        let row = format!("| {what} | {most} |");
        if !guide.lines().any(|line| line == row) {
            let message = format!("the table of limits lacks the row `{row}`");
            all.push(Violation::new("limits", "CONTRIBUTING.md", 1, message));
        }
        let message = format!("one of {} {what}; there may be {most}", places.len());
        let too_many = places.iter().filter(|_| places.len() > *most);
        all.extend(too_many.map(|(path, line)| Violation::new("limits", path, *line, &*message)));
    }
    all
}

/// The public fields of `OpenOptions`; then those of the types `*Options` and `*Settings`, and of
/// the enums `PlanSource` and `NpuNumbers`, that are named in their types.
fn option_fields(tree: &Tree) -> [Vec<(&str, usize)>; 2] {
    let mut types: Vec<(&str, &syn::Ident, Vec<&syn::Field>)> = Vec::new();
    for (file, code) in tree.sources() {
        for item in &code.items {
            let (name, fields) = match item {
                syn::Item::Struct(of) => {
                    let public = |f: &&syn::Field| matches!(f.vis, syn::Visibility::Public(_));
                    (&of.ident, of.fields.iter().filter(public).collect())
                }
                syn::Item::Enum(of) => {
                    (&of.ident, of.variants.iter().flat_map(|v| &v.fields).collect())
                }
                _ => continue,
            };
            types.push((&file.path, name, fields));
        }
    }
    let (mut names, mut found) = (vec!["OpenOptions".to_string()], Vec::new());
    let (mut own, mut at) = (0, 0);
    while let Some(name) = names.get(at).cloned() {
        at += 1;
        for (path, _, fields) in types.iter().filter(|(_, ident, _)| **ident == name) {
            for field in fields {
                let line = field.ident.as_ref().map_or(1, |name| name.span().start().line);
                found.push((*path, line));
                let mut within = Words::default();
                within.visit_type(&field.ty);
                for (name, _) in within.found {
                    let is_options = ["Options", "Settings", "PlanSource", "NpuNumbers"]
                        .iter()
                        .any(|end| name.ends_with(end));
                    if is_options && !names.contains(&name) {
                        names.push(name);
                    }
                }
            }
        }
        own = own.max(if at == 1 { found.len() } else { 0 });
    }
    [found[..own].to_vec(), found]
}

/// What is found in a file: the number of the limit, and the line.
struct Found {
    is_device: bool,
    of: Vec<(usize, usize)>,
}

impl<'ast> Visit<'ast> for Found {
    fn visit_signature(&mut self, head: &'ast syn::Signature) {
        if head.inputs.iter().any(hides) {
            self.of.push((0, head.fn_token.span.start().line));
        }
        visit::visit_signature(self, head);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.of.extend(long(&function.sig, &function.block));
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.of.extend(long(&function.sig, &function.block));
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_item_trait(&mut self, of: &'ast syn::ItemTrait) {
        let limit = if self.is_device { Some(2) } else { (of.ident == "CostModel").then_some(3) };
        for item in &of.items {
            if let (Some(limit), syn::TraitItem::Fn(method)) = (limit, item) {
                self.of.push((limit, method.sig.fn_token.span.start().line));
            }
        }
        visit::visit_item_trait(self, of);
    }
}

fn long(head: &syn::Signature, body: &syn::Block) -> Option<(usize, usize)> {
    let first = head.fn_token.span.start().line;
    (body.brace_token.span.close().start().line - first > 60).then_some((1, first))
}

/// Whether an argument is a tuple or an array of numbers, or a reference to one.
fn hides(argument: &syn::FnArg) -> bool {
    let syn::FnArg::Typed(syn::PatType { ty, .. }) = argument else { return false };
    let ty = if let syn::Type::Reference(r) = &**ty { &r.elem } else { ty };
    let numbers = ["usize", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64"];
    match &**ty {
        syn::Type::Tuple(tuple) => !tuple.elems.is_empty(),
        syn::Type::Array(syn::TypeArray { elem, len: syn::Expr::Lit(_), .. }) => {
            matches!(&**elem, syn::Type::Path(p) if numbers.iter().any(|n| p.path.is_ident(n)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn one_too_many_is_found_and_a_row_that_differs() {
        let text = "fn a((x, y): (u8, u8)) {}\nfn b(x: &mut [f32; 4], y: [A; 2], z: ()) {}\n\
                    trait CostModel { fn c(&self, x: &(u8, u8)); fn d(&self); }\n\
                    fn e(k: DeviceKind) -> bool { matches!(k, DeviceKind::Npu) }\n\
                    pub struct OpenOptions { pub a: Option<InnerOptions>, b: bool, pub c: Other }\n\
                    pub struct InnerOptions { pub d: u8 }\npub struct Other { pub e: u8 }\nfn f() {";
        let text = format!("{text}{}}}\n", "\n".repeat(61));
        let rows = super::LIMITS.iter().zip([6, 2, 2, 2, 1, 4, 6]);
        let rows: String = rows.map(|((what, _), most)| format!("| {what} | {most} |\n")).collect();
        let files = ["crates/a/lib.rs", "crates/troika-device/src/lib.rs", "crates/a/tests/t.rs"];
        let files = files.map(|path| (path, &*text));
        let all = [&files[..], &[("CONTRIBUTING.md", &rows)]].concat();
        let tree = crate::tidy::testing::tree(&all);
        assert!(super::check_with(&tree, &[6, 2, 2, 2, 1, 4, 6]).is_empty());
        assert_eq!(
            super::check_with(&tree, &[5, 1, 1, 1, 0, 3, 5]).len(),
            6 + 2 + 2 + 2 + 1 + 4 + 6 + 7
        );
    }
}
