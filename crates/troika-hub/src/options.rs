//! Settings of the Hub, the environment variables they come from, and what looks at a model before its
//! weights are fetched.

use std::fmt;
use std::path::{Path, PathBuf};

/// The default address of the Hub.
pub const ENDPOINT: &str = "https://huggingface.co";

/// What is there of a model before its weights are.
#[derive(Clone, Copy, Debug)]
pub struct Glimpse<'a> {
    /// The model as the user named it.
    pub model: &'a str,
    /// The folder with the small files of a model in safetensors, or a file with the first bytes of a
    /// GGUF file.
    pub place: &'a Path,
    /// Bytes of the whole GGUF file; `None`: a model in safetensors.
    pub gguf: Option<u64>,
    /// Bytes of all files of the model, if the Hub tells.
    pub bytes: Option<u64>,
}

/// What is said of a model that was looked at: a line for the user, or nothing where the first bytes
/// are too few to tell; or a part of a sentence that says why it is of no use.
pub type Verdict = Result<Option<String>, String>;

/// Settings for finding models. The default has no cache; see [`HubOptions::from_env`].
#[derive(Clone, Default)]
pub struct HubOptions {
    /// The cache folder (`HF_HUB_CACHE`, else `HF_HOME/hub`, else below the user's cache).
    pub cache_dir: Option<PathBuf>,
    /// The token (`HF_TOKEN`, else the file that a login wrote).
    pub token: Option<String>,
    /// Whether to use only the cache (`HF_HUB_OFFLINE`).
    pub offline: bool,
    /// The Hub's address (`HF_ENDPOINT`); `None`: the public one.
    pub endpoint: Option<String>,
    /// Looks at a model before its weights are fetched; `None`: every model is fetched.
    pub look: Option<fn(&Glimpse<'_>) -> Verdict>,
    /// Whether it is looked at, and its weights are not fetched.
    pub only_look: bool,
}

impl fmt::Debug for HubOptions {
    /// Keeps the token and a password in the address out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubOptions")
            .field("cache_dir", &self.cache_dir)
            .field("token", &self.token.as_ref().map(|_| "..."))
            .field("offline", &self.offline)
            .field("endpoint", &self.endpoint.as_deref().map(without_user))
            .finish()
    }
}

impl HubOptions {
    /// Settings from this process's environment.
    #[expect(clippy::disallowed_methods, reason = "the Hub's own variables are read here alone")]
    pub fn from_env() -> HubOptions {
        HubOptions::from_lookup(&|name| std::env::var(name).ok())
    }

    /// Settings from variables found by `lookup`. Empty ones count as unset. Reads the token file
    /// if no variable has the token.
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> HubOptions {
        let var = |name: &str| lookup(name).map(|v| v.trim().to_string()).filter(|v| !v.is_empty());
        let user = var("HOME").or_else(|| var("USERPROFILE")).map(PathBuf::from);
        let path = |name: &str| var(name).map(|value| expand(&value, user.as_deref()));
        let home = path("HF_HOME").or_else(|| {
            let cache = path("XDG_CACHE_HOME").or_else(|| Some(user.as_ref()?.join(".cache")));
            Some(cache?.join("huggingface"))
        });
        let cache_dir = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(home.as_ref()?.join("hub")));
        let token_file = path("HF_TOKEN_PATH").or_else(|| Some(home.as_ref()?.join("token")));
        HubOptions {
            cache_dir,
            token: var("HF_TOKEN")
                .or_else(|| var("HUGGING_FACE_HUB_TOKEN"))
                .or_else(|| read_token(&token_file?)),
            offline: var("HF_HUB_OFFLINE").is_some_and(|value| is_yes(&value)),
            endpoint: var("HF_ENDPOINT").map(|url| url.trim_end_matches('/').to_string()),
            look: None,
            only_look: false,
        }
    }

    /// The Hub's address without a slash at its end.
    pub(super) fn endpoint(&self) -> &str {
        self.endpoint.as_deref().unwrap_or(ENDPOINT).trim_end_matches('/')
    }
}

/// An address without the user and password before its host. Removes everything up to the last `@`,
/// since a password may contain any character.
pub(super) fn without_user(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    match rest.rsplit_once('@') {
        Some((_, host)) if scheme.is_empty() => host.to_string(),
        Some((_, host)) => format!("{scheme}://{host}"),
        None => url.to_string(),
    }
}

/// Replaces a leading `~` by the user's folder.
fn expand(value: &str, user: Option<&Path>) -> PathBuf {
    match (value.strip_prefix('~').map(|rest| rest.strip_prefix('/').unwrap_or(rest)), user) {
        (Some(rest), Some(user)) if value == "~" || value.starts_with("~/") => user.join(rest),
        _ => PathBuf::from(value),
    }
}

fn read_token(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_string()).filter(|token| !token.is_empty())
}

/// Whether a variable counts as true, by the Hub's own rules.
fn is_yes(value: &str) -> bool {
    ["1", "true", "yes", "on"].contains(&value.to_lowercase().as_str())
}
