//! Hygiene: no paths of a single machine, no package servers, no notes to self, no large files.

use crate::tidy::{File, Tree, Violation};

const RULE: &str = "hygiene";
const SIZE_LIMIT: u64 = 5_000_000;

/// Folders in the root of a single machine's file system.
const MACHINE_PATHS: &[&str] = &["/work/", "/home/", "/root/"];
/// Package servers. A lock file may name its own.
const HOSTS: &[&str] =
    &["crates.io", "pypi.org", "pythonhosted.org", "npmjs.org", "proxy.golang.org"];
const NOTES: &[&str] = &["TODO", "FIXME", "XXX"];

/// Data with texts from elsewhere.
const DATA: &[&str] = &["models/", "tests/golden/"];
/// Files that contain the words they look for.
const NAMES_THEM: &[&str] = &["xtask/src/tidy/"];

/// Checks every text file.
pub fn check(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in &tree.files {
        let is_below = |places: &[&str]| places.iter().any(|place| file.path.starts_with(place));
        if is_below(DATA) {
            continue;
        }
        if file.size > SIZE_LIMIT {
            let message = format!("{} bytes; large data belongs below models/", file.size);
            found.push(Violation::new(RULE, &file.path, 1, message));
        }
        if is_below(NAMES_THEM) {
            continue;
        }
        for (at, line) in file.text.as_deref().unwrap_or_default().lines().enumerate() {
            let judged = judge(file, line);
            found.extend(judged.map(|m| Violation::new(RULE, &file.path, at + 1, m)));
        }
    }
    found
}

fn judge(file: &File, line: &str) -> Option<String> {
    let path = MACHINE_PATHS.iter().find(|path| {
        line.match_indices(**path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            before.is_none_or(|c| !c.is_alphanumeric() && !matches!(c, '_' | '-' | '.' | '}' | '~'))
        })
    });
    if let Some(path) = path {
        return Some(format!("names a path below `{path}`, which is one machine's"));
    }
    let lock = file.path.ends_with("Cargo.lock");
    if let Some(host) = HOSTS.iter().find(|host| !lock && line.contains(**host)) {
        return Some(format!("names the package server `{host}`"));
    }
    let note = NOTES.iter().find(|note| has_word(line, note))?;
    Some(format!("`{note}`: do it, or file it"))
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::testing::places;

    #[test]
    fn paths_servers_and_notes_are_found() {
        let text = "see /work/x\n\"/home/me\"\nhttps://example.com/home/x\n\
                    TODO: more\nTODOS MYXXX\ncargo from crates.io\n$HOME/work/x\n";
        let found = places(
            check,
            &[
                ("README.md", text),
                ("models/a/tokenizer.json", text),
                ("Cargo.lock", "crates.io"),
                ("xtask/src/tidy/notes.md", text),
            ],
        );
        assert_eq!(found, ["README.md:1", "README.md:2", "README.md:4", "README.md:6"]);
    }

    #[test]
    fn large_files_are_data() {
        let text = "a".repeat(5_000_001);
        let found = places(check, &[("a.bin", &text), ("models/a.bin", &text)]);
        assert_eq!(found, ["a.bin:1"]);
    }
}
