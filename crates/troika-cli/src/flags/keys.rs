//! The flags that name a server's keys.

use std::path::PathBuf;

use clap::Args;

use crate::error::CliError;

/// Keys of a server.
#[derive(Args)]
pub struct KeyArgs {
    /// A key of the server, which clients send; may be repeated (ps sends the first)
    #[arg(long = "api-key", value_name = "KEY", env = "TROIKA_API_KEY", hide_env_values = true)]
    #[arg(value_delimiter = ',')]
    keys: Vec<String>,
    /// A file of keys, one a line
    #[arg(long, value_name = "FILE", env = "TROIKA_API_KEY_FILE")]
    api_key_file: Option<PathBuf>,
}

impl KeyArgs {
    /// All keys.
    ///
    /// # Errors
    /// An empty key, or a file that cannot be read or has none.
    pub fn all(&self) -> Result<Vec<String>, CliError> {
        let mut keys = self.keys.clone();
        if let Some(file) = &self.api_key_file {
            let wrong = |why: String| CliError::Failure(format!("{}: {why}", file.display()));
            let text = std::fs::read_to_string(file).map_err(|e| wrong(e.to_string()))?;
            let before = keys.len();
            keys.extend(text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_string));
            if keys.len() == before {
                return Err(wrong("it holds no key; write one on a line".into()));
            }
        }
        match keys.iter().any(|key| key.trim().is_empty()) {
            true => Err(CliError::Usage("--api-key is empty; give a key, or leave it out".into())),
            false => Ok(keys),
        }
    }
}
