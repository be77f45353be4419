//! Verbs: the traits of devices must stay small.

use crate::tidy::source::SourceText;
use crate::tidy::{Tree, Violation};

const RULE: &str = "verbs";
const FOLDER: &str = "crates/troika-device/src/";
/// The limit for the methods of all traits together.
const LIMIT: usize = 20;

/// Counts the methods of the device traits.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut lines: Vec<(&str, usize)> = Vec::new();
    for (file, source) in tree.sources().filter(|(file, _)| file.path.starts_with(FOLDER)) {
        lines.extend(methods(source).into_iter().map(|line| (file.path.as_str(), line)));
    }
    let Some((path, line)) = lines.get(LIMIT - 1) else { return Vec::new() };
    vec![Violation {
        path: path.to_string(),
        line: *line,
        rule: RULE,
        message: format!(
            "the device traits have {} methods, they must stay below {LIMIT}; pass data instead",
            lines.len()
        ),
    }]
}

/// Lines of the methods of all traits outside tests.
fn methods(source: &SourceText) -> Vec<usize> {
    let mut lines = Vec::new();
    let (mut depth, mut inside) = (0_usize, None);
    let mut header = false;
    for (at, token) in source.plain_code() {
        match source.text(token) {
            "trait" if inside.is_none() => header = true,
            ";" if header => header = false,
            "{" => {
                depth += 1;
                if std::mem::take(&mut header) {
                    inside = Some(depth);
                }
            }
            "}" => {
                if inside == Some(depth) {
                    inside = None;
                }
                depth = depth.saturating_sub(1);
            }
            "fn" if inside == Some(depth) && source.word(at + 1) != "(" => lines.push(token.line),
            _ => {}
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    fn device(methods: usize) -> String {
        let list: String = (0..methods).map(|k| format!("    fn m{k}(&self);\n")).collect();
        format!("pub trait Device: Send {{\n{list}}}\nimpl X {{\n    fn n() {{}}\n}}\n")
    }

    #[test]
    fn one_method_too_many_is_found() {
        let clock = "pub trait Clock {\n    fn now(&self) -> u64 { fn inner() {} 0 }\n}\n";
        let files = |n| {
            [
                ("crates/troika-device/src/clock.rs", clock.to_string()),
                ("crates/troika-device/src/device.rs", device(n)),
            ]
        };
        let run = |files: [(&str, String); 2]| {
            places(check, &[(files[0].0, &files[0].1), (files[1].0, &files[1].1)])
        };
        assert!(run(files(18)).is_empty());
        assert_eq!(run(files(19)), ["crates/troika-device/src/device.rs:20"]);
    }
}
