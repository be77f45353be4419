//! The Hub's description of a revision: its commit and files.

use serde::Deserialize;

use super::name::is_safe_path;

/// The most bytes of a description: enough for hundreds of thousands of files.
pub const MAX_BYTES: u64 = 32 << 20;

/// The Hub's description of a revision.
#[derive(Debug, PartialEq, Eq)]
pub struct Listing {
    /// The commit's hash.
    pub commit: String,
    /// File names with sizes, if known.
    pub files: Vec<(String, Option<u64>)>,
}

/// The fields that are read; others are skipped.
#[derive(Deserialize)]
struct Revision {
    sha: Option<String>,
    siblings: Option<Vec<Sibling>>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: Option<String>,
    size: Option<u64>,
}

impl Listing {
    /// Parses a description. Leaves out names that cannot be files here.
    pub fn parse(body: &[u8]) -> Result<Listing, String> {
        let revision: Revision = serde_json::from_slice(body)
            .map_err(|e| format!("its list of files is not the JSON of a hub: {e}"))?;
        let commit = revision.sha.ok_or("no commit is named")?;
        if !is_token(&commit) {
            return Err("the commit's name is malformed".to_string());
        }
        let siblings = revision.siblings.ok_or("no files are named")?;
        let named = |file: Sibling| Some((file.rfilename.filter(|n| is_safe_path(n))?, file.size));
        let mut files: Vec<_> = siblings.into_iter().filter_map(named).collect();
        files.sort();
        files.dedup_by(|later, first| later.0 == first.0);
        Ok(Listing { commit, files })
    }

    /// The names of all files.
    pub fn names(&self) -> Vec<String> {
        self.files.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Bytes of some files, if known.
    pub fn total(&self, names: &[String]) -> Option<u64> {
        names.iter().try_fold(0u64, |sum, name| Some(sum.saturating_add(self.size(name)?)))
    }

    /// A file's size, if known.
    pub fn size(&self, name: &str) -> Option<u64> {
        self.files.iter().find(|(file, _)| file == name).and_then(|(_, size)| *size)
    }
}

/// Whether a text can name a commit or a blob: a hash, or its equivalent on other servers.
pub fn is_token(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    (1..=128).contains(&text.len()) && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_left_out() {
        let names = [
            "config.json",
            "../up",
            "a/../../up",
            "/etc/passwd",
            "a\\b",
            "C:/x",
            "a//b",
            "new\\nline",
            "escape\\u001b[2J",
            "nul\\u0000",
            ".",
            "ünï",
            "sub/m.gguf",
            "config.json",
        ];
        let list: Vec<String> = names
            .iter()
            .map(|n| format!(r#"{{"rfilename":"{}"}}"#, n.replace("a\\b", "a\\\\b")))
            .collect();
        let body = format!(r#"{{"sha":"abc","siblings":[{{}},{}]}}"#, list.join(","));
        let got = Listing::parse(body.as_bytes()).expect("a listing");
        let names: Vec<&str> = got.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["config.json", "sub/m.gguf"]);
    }

    #[test]
    fn other_documents_are_refused() {
        for body in [
            "",
            "<html>",
            "[]",
            "{}",
            r#"{"sha":"abc"}"#,
            r#"{"sha":"../x","siblings":[]}"#,
            r#"{"sha":"","siblings":[]}"#,
            r#"{"sha":"a","siblings":{}}"#,
            r#"{"sha":"a","siblings":[{"rfilename":7}]}"#,
        ] {
            assert!(Listing::parse(body.as_bytes()).is_err(), "{body}");
        }
        let deep = format!(r#"{{"sha":"a","x":{}"#, "[".repeat(100_000));
        assert!(Listing::parse(deep.as_bytes()).is_err());
    }
}
