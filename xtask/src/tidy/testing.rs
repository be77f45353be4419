//! Small trees with planted violations.

use super::{Tree, Violation};

/// A tree of these files.
pub fn tree(files: &[(&str, &str)]) -> Tree {
    let raw = files
        .iter()
        .map(|(path, text)| (path.to_string(), text.len() as u64, Some(text.to_string())));
    Tree::new(raw.collect()).expect("tree")
}

/// Runs one rule on these files; violations as `path:line`, in order.
pub fn places(rule: fn(&Tree) -> Vec<Violation>, files: &[(&str, &str)]) -> Vec<String> {
    let mut found = rule(&tree(files));
    found.sort();
    found.iter().map(|v| format!("{}:{}", v.path, v.line)).collect()
}
