//! Safety: an unsafe function says what its caller must keep, private ones too, unless its trait
//! says it. A safe function has no caller to rest on: whatever is passed to it, its blocks are
//! sound.
//!
//! That each block has a sentence, and where unsafe code may be, are lints.

use syn::visit::{self, Visit};

use crate::tidy::{Tree, Violation};

/// What a sentence says that rests on the caller.
const RESTS: &[&str] = &["caller", "passed on"];
/// How many lines of attributes may be between a sentence and its function.
const REACH: usize = 3;

/// The lines of a function, and whether it is unsafe.
struct Function {
    name: usize,
    last: usize,
    is_unsafe: bool,
}

#[derive(Default)]
struct Functions {
    all: Vec<Function>,
    /// Lines of unsafe functions, and of the trait that declares them.
    asking: Vec<Vec<usize>>,
    /// The line of the trait around.
    declared: Option<usize>,
}

impl Functions {
    fn add(&mut self, sig: &syn::Signature, block: &syn::Block) {
        let (name, last) = (sig.fn_token.span.start().line, block.brace_token.span.close());
        let last = last.start().line;
        self.all.push(Function { name, last, is_unsafe: is_unsafe(sig) });
    }

    fn ask(&mut self, sig: &syn::Signature) {
        if is_unsafe(sig) {
            let line = sig.fn_token.span.start().line;
            self.asking.push([Some(line), self.declared].into_iter().flatten().collect());
        }
    }

    /// The innermost function around a comment, or the one below it.
    fn of(&self, first: usize, last: usize) -> Option<&Function> {
        let around = self.all.iter().filter(|f| f.name < first && last < f.last);
        let below = || self.all.iter().find(|f| f.name > last && f.name <= last + REACH);
        around.max_by_key(|f| f.name).or_else(below)
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.ask(&item.sig);
        self.add(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none() {
            for member in &item.items {
                if let syn::ImplItem::Fn(f) = member {
                    self.ask(&f.sig);
                }
            }
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.declared = Some(item.trait_token.span.start().line);
        visit::visit_item_trait(self, item);
        self.declared = None;
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.ask(&item.sig);
        visit::visit_trait_item_fn(self, item);
    }
}

fn is_unsafe(sig: &syn::Signature) -> bool {
    matches!(sig.safety, syn::Safety::Unsafe(_))
}

/// Whether what stands right above a line has a section on safety.
fn is_documented(lines: &[&str], line: usize) -> bool {
    let is_above = |l: &&&str| {
        let comment = l.trim_start().starts_with("//");
        comment || !l.trim().is_empty() && !l.ends_with(['}', ';', '{'])
    };
    lines[..line - 1].iter().rev().take_while(is_above).any(|l| l.contains("# Safety"))
}

/// Finds unsafe functions that do not say what they ask for, and sentences that rest on the caller
/// of a safe one.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (file, code) in tree.sources() {
        let lines: Vec<&str> = file.text.as_deref().unwrap_or_default().lines().collect();
        let mut functions = Functions::default();
        functions.visit_file(code);
        for places in &functions.asking {
            if !places.iter().any(|line| is_documented(&lines, *line)) {
                let message = "no `# Safety` that says what the caller must keep";
                found.push(Violation::new("safety", &file.path, places[0], message));
            }
        }
        for (at, _) in lines.iter().enumerate().filter(|(_, line)| begins(line)) {
            let goes_on = |line: &&&str| line.trim_start().starts_with("//") && !begins(line);
            let more = lines[at + 1..].iter().take_while(goes_on).count();
            let sentence = lines[at..=at + more].join(" ");
            let rests = RESTS.iter().any(|word| sentence.contains(word));
            let function = functions.of(at + 1, at + 1 + more);
            if rests && function.is_some_and(|f| !f.is_unsafe) {
                let message =
                    "a safe function that rests on its caller; check it, or make it unsafe";
                found.push(Violation::new("safety", &file.path, at + 1, message));
            }
        }
    }
    found
}

fn begins(line: &str) -> bool {
    let text = line.trim_start_matches(['/', ' ']);
    line.contains("//") && (text.starts_with("SAFETY:") || text.starts_with("SAFETY ("))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    #[test]
    fn unsafe_functions_say_what_they_ask_for() {
        let text = "/// # Safety\n/// Valid memory.\n#[inline]\npub unsafe fn f() {}\n\
                    /// Does it.\nunsafe fn g() {}\n/// # Safety\n/// Valid memory;\ntrait T {\n    \
                    unsafe fn h();\n}\nimpl T for A {\n    unsafe fn h() {}\n}\nimpl A {\n    \
                    unsafe fn i() {}\n}\nfn j(f: unsafe fn()) {}\n";
        let found = places(check, &[("crates/troika-cpu/src/a.rs", text)]);
        let lines = [6, 16].map(|l| format!("crates/troika-cpu/src/a.rs:{l}"));
        assert_eq!(found, lines);
    }

    #[test]
    fn safe_functions_do_not_rest_on_their_callers() {
        let text = "fn f(p: [u8; 2]) -> [u8; 2] {\n    if p {\n        // SAFETY: g asks for what\n        \
                    // the caller keeps.\n        unsafe { g() }\n    }\n}\n\
                    // SAFETY: passed on.\n#[inline]\nfn h() { unsafe { g() } }\n\
                    /// # Safety\n/// None.\nunsafe fn i() {\n    // SAFETY: by the caller.\n    \
                    unsafe { g() }\n    let f = |x: u8| {\n        // SAFETY: by the caller.\n        \
                    unsafe { g() }\n    };\n    fn j() {\n        // SAFETY: by the caller of i.\n        \
                    unsafe { g() }\n    }\n}\n\
                    // SAFETY (of the blocks): by callers.\nimpl T for A {\n    unsafe fn k() { unsafe { g() } }\n}\n\
                    fn l() {\n    // SAFETY: checked.\n    unsafe { g() }\n    // The caller is told.\n}\n";
        let found = places(check, &[("crates/troika-cpu/src/a.rs", text)]);
        let lines = [3, 8, 21].map(|l| format!("crates/troika-cpu/src/a.rs:{l}"));
        assert_eq!(found, lines);
    }
}
