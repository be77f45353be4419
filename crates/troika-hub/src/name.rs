//! Parses the names of models.

use super::HubError;
use super::options::ENDPOINT;

/// The default revision.
pub const MAIN: &str = "main";

/// Which files of a repository to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The default choice.
    Default,
    /// The GGUF file of this quantization.
    Tag(String),
    /// This GGUF file.
    File(String),
}

/// A model on the Hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoSpec {
    /// The name as the user wrote it.
    pub model: String,
    /// `owner/name`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Which files.
    pub wanted: Wanted,
}

impl RepoSpec {
    /// The repository's folder in a cache, as the Hub's tools name it.
    pub fn folder(&self) -> String {
        format!("models--{}", self.repo.replace('/', "--"))
    }

    /// Parses `owner/name[@REVISION][:TAG or :FILE]`; `@REVISION` may also be at the end.
    ///
    /// # Errors
    /// Names that look like paths, and invalid parts.
    pub fn parse(model: &str) -> Result<RepoSpec, HubError> {
        // As Ollama writes names of the Hub, and as a browser shows them.
        let hosts = ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"];
        let name = hosts.iter().find_map(|host| model.strip_prefix(host)).unwrap_or(model);
        let (left, right) = match name.split_once(':') {
            Some((left, right)) => (left, Some(right)),
            None => (name, None),
        };
        let (repo, before) = cut_revision(left);
        let (choice, after) = match right.map(cut_revision) {
            Some((choice, after)) => (Some(choice), after),
            None => (None, None),
        };
        let missing = |advice: &str| {
            Err(HubError::Missing(format!("{model}: no such file or folder{advice}")))
        };
        if is_of_ollama(repo, choice) {
            return missing(&format!(
                "; if it is Ollama's name of a model, take the one of the Hugging Face Hub, which is \
                 written owner/name or owner/name:Q4_K_M: {ENDPOINT}/models?search={repo}+gguf \
                 lists them"
            ));
        }
        if looks_like_path(name, repo, choice.is_some()) {
            return missing(" (a model on the Hugging Face Hub is written owner/name)");
        }
        let bad = |why: &str| {
            let forms = "a model is written owner/name, owner/name:TAG or owner/name@REVISION";
            HubError::of(model, format!("{why}; {forms}"))
        };
        if !repo.split('/').all(is_plain_name) {
            return Err(bad(&format!("`{repo}` is not a name on the Hub")));
        }
        if before.is_some() && after.is_some() {
            return Err(bad("two revisions are named"));
        }
        let revision = before.or(after).unwrap_or(MAIN);
        if !is_safe_path(revision) {
            return Err(bad(&format!("`{revision}` is not a revision")));
        }
        let wanted = match choice {
            None => Wanted::Default,
            Some(file) if file.to_lowercase().ends_with(".gguf") && is_safe_path(file) => {
                Wanted::File(file.to_string())
            }
            Some(tag) if is_plain_name(tag) => Wanted::Tag(tag.to_string()),
            Some(other) => {
                return Err(bad(&format!("`{other}` is neither a tag nor a .gguf file")));
            }
        };
        let [model, repo, revision] = [model, repo, revision].map(str::to_string);
        Ok(RepoSpec { model, repo, revision, wanted })
    }
}

fn cut_revision(text: &str) -> (&str, Option<&str>) {
    text.split_once('@').map_or((text, None), |(name, revision)| (name, Some(revision)))
}

/// Whether a name has the form of Ollama's own: `name` or `name:tag`.
fn is_of_ollama(repo: &str, choice: Option<&str>) -> bool {
    let is_file = |ending| repo.to_lowercase().ends_with(ending);
    let is_name = is_plain_name(repo) && repo.len() > 1 && choice.is_none_or(is_plain_name);
    is_name && !is_file(".gguf") && !is_file(".safetensors")
}

/// Whether the user more likely meant a path that does not exist.
fn looks_like_path(model: &str, repo: &str, has_choice: bool) -> bool {
    let lower = repo.to_lowercase();
    let is_file = lower.ends_with(".gguf") || lower.ends_with(".safetensors");
    model.starts_with(['.', '/', '~'])
        || model.ends_with('/')
        || model.contains('\\')
        || repo.matches('/').count() != 1
        || (is_file && !has_choice)
}

/// Whether it is a single-part name that the Hub allows.
fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=96).contains(&name.len())
        && name.chars().all(plain)
        && !name.starts_with(['.', '-'])
        && !name.contains("..")
}

/// Whether it is a relative path that needs no escaping in a URL. File names from the Hub are also
/// checked with this.
pub fn is_safe_path(path: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+=@,~()".contains(c);
    path.len() <= 512
        && path
            .split('/')
            .all(|part| !part.is_empty() && part != "." && part != ".." && part.chars().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(model: &str) -> (String, String, Wanted) {
        let spec = RepoSpec::parse(model).expect(model);
        (spec.repo, spec.revision, spec.wanted)
    }

    #[test]
    fn names_with_tags_files_and_revisions() {
        let of = |r: &str, v: &str, w: Wanted| (r.to_string(), v.to_string(), w);
        let tag = |t: &str| Wanted::Tag(t.to_string());
        let file = |f: &str| Wanted::File(f.to_string());
        assert_eq!(parse("a/b"), of("a/b", "main", Wanted::Default));
        assert_eq!(parse("a/b.c-1_2@v1.0"), of("a/b.c-1_2", "v1.0", Wanted::Default));
        assert_eq!(parse("a/b@refs/pr/1"), of("a/b", "refs/pr/1", Wanted::Default));
        assert_eq!(parse("a/b:q4_k_m"), of("a/b", "main", tag("q4_k_m")));
        assert_eq!(parse("a/b@x:Q8_0"), of("a/b", "x", tag("Q8_0")));
        assert_eq!(parse("a/b:Q8_0@x"), of("a/b", "x", tag("Q8_0")));
        assert_eq!(parse("a/b:sub/m.gguf"), of("a/b", "main", file("sub/m.gguf")));
        assert_eq!(parse("a/b.gguf:m.GGUF"), of("a/b.gguf", "main", file("m.GGUF")));
    }

    #[test]
    fn mistyped_paths_are_missing_files() {
        let paths = [
            "",
            "./foo",
            "../a/b",
            "/a/b",
            "~/a",
            "foo",
            "foo.gguf",
            "a/foo.gguf",
            "a/b/",
            "a/b/c",
            "a\\b",
            "C:\\models\\a",
            "a/model.safetensors",
            "foo:Q4_K_M",
        ];
        for path in paths {
            assert!(matches!(RepoSpec::parse(path), Err(HubError::Missing(_))), "{path}");
        }
    }

    #[test]
    fn names_of_ollama_lead_to_the_hub() {
        for (name, search) in
            [("llama3.2:1b", "llama3.2"), ("qwen3", "qwen3"), ("foo:Q4_K_M", "foo")]
        {
            let told = RepoSpec::parse(name).expect_err(name).to_string();
            assert!(told.starts_with(&format!("{name}: no such file or folder; if it")), "{told}");
            let link = format!("https://huggingface.co/models?search={search}+gguf lists them");
            assert!(told.ends_with(&link) && told.contains(" owner/name:Q4_K_M"), "{told}");
        }
        for host in ["hf.co/", "https://huggingface.co/"] {
            let spec = RepoSpec::parse(&format!("{host}a/b:Q8_0")).expect(host);
            assert_eq!((spec.repo.as_str(), &spec.wanted), ("a/b", &Wanted::Tag("Q8_0".into())));
        }
    }

    #[test]
    fn malformed_parts_are_told() {
        let names = [
            "a/b c",
            "a/..",
            "a/.b",
            "a/-b",
            "a/b:",
            "a/b@",
            "a/b@../x",
            "a/b:../x.gguf",
            "a/é",
            "a/b@x:Q4@y",
            "a/b:x y",
            "a/b?c=d",
        ];
        for name in names {
            let why = RepoSpec::parse(name).expect_err(name).to_string();
            assert!(why.contains("a model is written owner/name, owner"), "{why}");
        }
    }

    #[test]
    fn paths_from_outside_stay_below_their_folder() {
        for path in ["..", "a/../b", "/a", "a//b", "a\\b", "", "a/./b", "a b", "a#b", "a%2e"] {
            assert!(!is_safe_path(path), "{path}");
        }
        assert!(is_safe_path("BF16/model-00001-of-00002.gguf"));
    }
}
