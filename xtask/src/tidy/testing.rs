//! Small trees with planted violations.

use super::{Tree, Violation};

/// Writes files to a temporary folder and loads them.
pub fn tree(files: &[(&str, &str)]) -> Tree {
    let folder = tempfile::tempdir().expect("temporary folder");
    for (path, text) in files {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("folder");
        std::fs::write(path, text).expect("file");
    }
    Tree::load(folder.path()).expect("tree")
}

/// Runs one rule on these files; violations as `path:line`, in order.
pub fn places(rule: fn(&Tree) -> Vec<Violation>, files: &[(&str, &str)]) -> Vec<String> {
    let mut found = rule(&tree(files));
    found.sort();
    found.iter().map(|v| format!("{}:{}", v.path, v.line)).collect()
}
