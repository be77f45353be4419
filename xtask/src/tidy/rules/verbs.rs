//! Verbs: the traits of devices must stay small.

use syn::visit::Visit;

use crate::tidy::{Tree, Violation};

const FOLDER: &str = "crates/troika-device/src/";
/// The limit for the methods of all traits together.
const LIMIT: usize = 25;

/// The lines of methods that traits declare.
#[derive(Default)]
struct Methods(Vec<usize>);

impl<'ast> Visit<'ast> for Methods {
    fn visit_trait_item_fn(&mut self, method: &'ast syn::TraitItemFn) {
        self.0.push(method.sig.fn_token.span.start().line);
    }
}

/// Counts the methods of the device traits.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut places: Vec<(&str, usize)> = Vec::new();
    for (file, code) in tree.sources().filter(|(file, _)| file.path.starts_with(FOLDER)) {
        let mut methods = Methods::default();
        methods.visit_file(code);
        places.extend(methods.0.into_iter().map(|line| (file.path.as_str(), line)));
    }
    let Some((path, line)) = places.get(LIMIT - 1) else { return Vec::new() };
    let message = format!(
        "the device traits have {} methods, they must stay below {LIMIT}; pass data instead",
        places.len()
    );
    vec![Violation::new("verbs", path, *line, message)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    #[test]
    fn one_method_too_many_is_found() {
        let clock = "pub trait Clock {\n    fn now(&self) -> u64 { fn inner() {} 0 }\n}\n";
        let found = |methods: usize| {
            let list: String = (0..methods).map(|k| format!("    fn m{k}(&self);\n")).collect();
            let device =
                format!("pub trait Device: Send {{\n{list}}}\nimpl X {{\n    fn n() {{}}\n}}\n");
            let device = ("crates/troika-device/src/device.rs", device.as_str());
            places(check, &[("crates/troika-device/src/clock.rs", clock), device])
        };
        assert!(found(LIMIT - 2).is_empty());
        assert_eq!(found(LIMIT - 1), [format!("crates/troika-device/src/device.rs:{LIMIT}")]);
    }
}
