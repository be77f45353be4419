//! The files of the project.

use std::collections::HashSet;
use std::path::Path;
use std::process::Command;

use super::source::parse;

/// Larger files are not read.
const READ_LIMIT: u64 = 5_000_000;

/// One file.
pub struct File {
    /// Path from the root, with forward slashes.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// The text, if it is a text file.
    pub text: Option<String>,
    /// Whether it is a test, a benchmark or an example.
    pub test: bool,
    code: Option<syn::File>,
}

/// All files of the project.
pub struct Tree {
    /// Files, ordered by path.
    pub files: Vec<File>,
}

impl Tree {
    /// Loads all files that git tracks or would add.
    pub fn load(root: &Path) -> Result<Tree, String> {
        let mut git = Command::new("git");
        git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
        let listing = git.current_dir(root).output().map_err(|e| format!("cannot run git: {e}"))?;
        let mut raw = Vec::new();
        for path in String::from_utf8_lossy(&listing.stdout).split('\0') {
            let place = root.join(path);
            if let Ok(meta) = place.symlink_metadata()
                && meta.is_file()
            {
                let read = || std::fs::read(&place).map_err(|e| format!("{path}: {e}"));
                let bytes = if meta.len() <= READ_LIMIT { read()? } else { vec![0] };
                let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
                raw.push((path.to_string(), meta.len(), text));
            }
        }
        Tree::new(raw)
    }

    /// The tree of files with these paths, sizes and texts.
    pub fn new(raw: Vec<(String, u64, Option<String>)>) -> Result<Tree, String> {
        let (mut files, mut tests) = (Vec::new(), HashSet::new());
        for (path, size, text) in raw {
            let test = is_test_place(&path);
            let mut code = None;
            if let Some(text) = text.as_deref().filter(|_| path.ends_with(".rs") && !test) {
                let (file, modules) = parse(text).map_err(|e| format!("{path} is no Rust: {e}"))?;
                let folder = folder_of(&path);
                tests.extend(modules.iter().map(|name| format!("{folder}/{name}.rs")));
                tests.extend(modules.iter().map(|name| format!("{folder}/{name}/mod.rs")));
                code = Some(file);
            }
            files.push(File { path, size, text, test, code });
        }
        for file in &mut files {
            file.test |= tests.contains(&file.path);
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.dedup_by(|a, b| a.path == b.path);
        Ok(Tree { files })
    }

    /// Rust files outside tests.
    pub fn sources(&self) -> impl Iterator<Item = (&File, &syn::File)> {
        let plain = self.files.iter().filter(|file| !file.test);
        plain.filter_map(|file| Some((file, file.code.as_ref()?)))
    }
}

fn is_test_place(path: &str) -> bool {
    let folders = ["tests", "benches", "examples", "fuzz"];
    path.split('/').any(|part| folders.contains(&part)) || path.ends_with("/tests.rs")
}

/// The folder of a file's modules.
fn folder_of(path: &str) -> &str {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder,
        _ => path.trim_end_matches(".rs"),
    }
}

#[cfg(test)]
mod tests {
    use crate::tidy::testing::tree;

    #[test]
    fn test_files_are_known_by_place_and_by_declaration() {
        let tree = tree(&[
            ("crates/a/src/lib.rs", "#[cfg(test)]\nmod far;\nmod near;"),
            ("crates/a/src/far.rs", "fn f() {}"),
            ("crates/a/src/near.rs", "fn f() {}"),
            ("crates/a/tests/t.rs", "fn f() {}"),
        ]);
        let tests: Vec<&str> =
            tree.files.iter().filter(|f| f.test).map(|f| f.path.as_str()).collect();
        assert_eq!(tests, ["crates/a/src/far.rs", "crates/a/tests/t.rs"]);
    }
}
