//! The files of the project.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::process::Command;

use super::source::SourceText;

/// Larger files are not read.
const READ_LIMIT: u64 = 5_000_000;
/// Folders outside the project, where git cannot tell.
const SKIPPED: &[&str] = &["target", ".git"];

/// One file.
#[derive(Debug)]
pub struct File {
    /// Path from the root, with forward slashes.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// The text, if it is a text file.
    pub text: Option<String>,
    /// The code, if it is Rust.
    pub source: Option<SourceText>,
}

impl File {
    /// The crate's folder name, for a file below `crates`.
    pub fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    /// Whether the path is one of tests, benchmarks or examples.
    fn is_test_place(path: &str) -> bool {
        let folders = ["tests", "benches", "examples", "fuzz"];
        path.split('/').any(|part| folders.contains(&part)) || path.ends_with("/tests.rs")
    }

    /// Whether the file has only test code.
    pub fn is_test(&self) -> bool {
        File::is_test_place(&self.path)
            || self
                .source
                .as_ref()
                .is_some_and(|s| !s.code.is_empty() && s.code.iter().all(|c| c.test))
    }
}

/// All files of the project.
#[derive(Debug)]
pub struct Tree {
    /// Files, ordered by path.
    pub files: Vec<File>,
}

impl Tree {
    /// Loads the project: all files that git tracks or would add, or simply all without git.
    ///
    /// # Errors
    /// A folder or file that cannot be read, or a Rust file that cannot be parsed.
    pub fn load(root: &Path) -> io::Result<Tree> {
        let mut paths = match from_git(root) {
            Some(paths) => paths,
            None => {
                let mut paths = Vec::new();
                walk(root, "", &mut paths)?;
                paths
            }
        };
        paths.sort();
        paths.dedup();
        let mut raw = Vec::new();
        for path in paths {
            if let Ok(meta) = root.join(&path).symlink_metadata()
                && meta.is_file()
            {
                let text = if meta.len() <= READ_LIMIT { read_text(root, &path)? } else { None };
                raw.push((path, meta.len(), text));
            }
        }
        let test_files = test_files(&raw)?;
        let mut files = Vec::with_capacity(raw.len());
        for (path, size, text) in raw {
            let rust = text.as_ref().filter(|_| path.ends_with(".rs"));
            let test = File::is_test_place(&path) || test_files.contains(&path);
            let source = rust.map(|text| read_source(&path, text, test)).transpose()?;
            files.push(File { path, size, text, source });
        }
        Ok(Tree { files })
    }

    /// Rust files.
    pub fn sources(&self) -> impl Iterator<Item = (&File, &SourceText)> {
        self.files.iter().filter_map(|file| Some((file, file.source.as_ref()?)))
    }
}

fn read_source(path: &str, text: &str, test: bool) -> io::Result<SourceText> {
    SourceText::new(text.to_string(), test)
        .map_err(|e| io::Error::other(format!("{path} is no Rust: {e}")))
}

/// The text of a file; `None` if it is not text.
fn read_text(root: &Path, path: &str) -> io::Result<Option<String>> {
    let bytes = std::fs::read(root.join(path))?;
    if bytes.contains(&0) {
        return Ok(None);
    }
    Ok(String::from_utf8(bytes).ok())
}

/// Tracked files, and new ones that git does not ignore.
fn from_git(root: &Path) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let listing = String::from_utf8_lossy(&output.stdout);
    Some(listing.split('\0').filter(|path| !path.is_empty()).map(str::to_string).collect())
}

fn walk(root: &Path, below: &str, paths: &mut Vec<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                walk(root, &path, paths)?;
            }
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

/// Files of `#[cfg(test)] mod name;` declarations.
fn test_files(raw: &[(String, u64, Option<String>)]) -> io::Result<HashSet<String>> {
    let mut found = HashSet::new();
    for (path, _, text) in raw {
        let Some(text) = text.as_ref().filter(|t| path.ends_with(".rs") && t.contains("test"))
        else {
            continue;
        };
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let folder = match name {
            "mod.rs" | "lib.rs" | "main.rs" => folder.to_string(),
            _ => format!("{folder}/{}", name.trim_end_matches(".rs")),
        };
        for module in read_source(path, text, false)?.test_modules() {
            found.insert(format!("{folder}/{module}.rs"));
            found.insert(format!("{folder}/{module}/mod.rs"));
        }
    }
    Ok(found)
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
            ("target/x.rs", "fn f() {}"),
        ]);
        let tests: Vec<&str> =
            tree.files.iter().filter(|f| f.is_test()).map(|f| f.path.as_str()).collect();
        assert_eq!(tests, ["crates/a/src/far.rs", "crates/a/tests/t.rs"]);
        assert_eq!(tree.files.len(), 4);
    }
}
