//! The flags of `troika serve` and `troika ps`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use troika::Pooling;

use super::open::OpenArgs;
use super::placement::PlanFileArgs;
use super::quant::mib;
use super::sharing::SharingArgs;
use super::types::sequence_count;
use crate::error::CliError;

/// The port of servers.
pub const DEFAULT_PORT: u16 = 8080;

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
            let text = std::fs::read_to_string(file).map_err(|e| CliError::of_file(file, e))?;
            let before = keys.len();
            keys.extend(text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_string));
            if keys.len() == before {
                return Err(CliError::of_file(file, "it holds no key; write one on a line"));
            }
        }
        match keys.iter().any(|key| key.trim().is_empty()) {
            true => Err(CliError::Usage("--api-key is empty; give a key, or leave it out".into())),
            false => Ok(keys),
        }
    }
}

/// `troika serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Models, each a folder, a .gguf file or a Hub id; the first is opened at once, others when they
    /// are asked for [default: the built-in model]
    #[arg(value_name = "MODEL")]
    pub models: Vec<OsString>,
    /// A model, as llama.cpp spells it
    #[arg(short, long = "model", env = "TROIKA_MODEL", conflicts_with = "models")]
    pub model: Option<OsString>,
    /// Names by which clients ask for the models: several of a single model, else one for each in
    /// their order [default: the file's or folder's name, or the Hub id]
    #[arg(short, long = "alias", value_name = "NAME", value_delimiter = ',', env = "TROIKA_ALIAS")]
    pub aliases: Vec<String>,
    /// Offer every .gguf file and every folder with a config.json of this folder, too
    #[arg(long, value_name = "DIR", env = "TROIKA_MODELS_DIR")]
    pub models_dir: Option<PathBuf>,
    /// Refuse requests for a model of another name, where only one is on offer
    #[arg(long, env = "TROIKA_STRICT_MODEL")]
    pub strict_model: bool,
    /// Do not ask the Hub: use what is in its cache (as HF_HUB_OFFLINE=1)
    #[arg(long, env = "TROIKA_OFFLINE")]
    pub offline: bool,
    /// Address to listen at; any but this machine's own needs a key
    #[arg(long, default_value = "127.0.0.1", env = "TROIKA_HOST")]
    pub host: String,
    /// Port; 0: a free one
    #[arg(long, default_value_t = DEFAULT_PORT, env = "TROIKA_PORT")]
    pub port: u16,
    #[command(flatten)]
    pub keys: KeyArgs,
    /// Another name of this server, as clients without a key may call it
    #[arg(long = "allowed-host", value_name = "NAME", value_delimiter = ',')]
    #[arg(env = "TROIKA_ALLOWED_HOST")]
    pub hosts: Vec<String>,
    /// A site whose pages may call this server: its scheme, name and port, as a browser says them;
    /// http://localhost:* for all its ports, * for all sites
    #[arg(long = "allowed-origin", value_name = "ORIGIN", value_delimiter = ',')]
    #[arg(env = "TROIKA_ALLOWED_ORIGIN")]
    pub origins: Vec<String>,
    /// Answers computed at once; others wait
    #[arg(long, visible_alias = "np", value_name = "N", default_value_t = 16)]
    #[arg(value_parser = sequence_count(), env = "TROIKA_PARALLEL")]
    pub parallel: usize,
    /// Which states are an embedding [default: as the model's files say, or the mean]
    #[arg(long, value_name = "P", value_parser = Pooling::ALL.map(Pooling::name))]
    #[arg(env = "TROIKA_POOLING")]
    pub pooling: Option<String>,
    /// Requests that may wait; others are told when to come back
    #[arg(long, value_name = "N", default_value_t = 1024, env = "TROIKA_QUEUE")]
    pub queue: usize,
    /// Highest X-Priority with which a client comes before others; higher ones order its own requests
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i32).range(-10..=10), env = "TROIKA_MAX_PRIORITY")]
    pub max_priority: i32,
    /// Longest request in MiB
    #[arg(long, value_name = "MIB", default_value = "16", value_parser = mib())]
    #[arg(env = "TROIKA_MAX_BODY")]
    pub max_body: u64,
    /// Most tokens of an answer [default: what the context holds]
    #[arg(short = 'n', long, visible_alias = "n-predict", value_name = "N")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    #[arg(env = "TROIKA_MAX_TOKENS")]
    pub max_tokens: Option<usize>,
    /// Most time for an answer in seconds, waiting included
    #[arg(long, value_name = "S", default_value_t = 600.0, value_parser = seconds)]
    #[arg(env = "TROIKA_TIMEOUT")]
    pub timeout: f64,
    /// Close a model that nobody has used for so many seconds; -1: never
    #[arg(long, value_name = "S", default_value_t = 300.0, allow_negative_numbers = true)]
    #[arg(env = "TROIKA_KEEP_ALIVE")]
    pub keep_alive: f64,
    /// Most memory for open models in MiB: others are closed to open one [default: no limit]
    #[arg(long, value_name = "MIB", value_parser = mib(), env = "TROIKA_MEMORY")]
    pub memory: Option<u64>,
    /// How many seconds answers may take to end when the server is stopped
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = seconds)]
    #[arg(env = "TROIKA_GRACE")]
    pub grace: f64,
    /// Print a line for each request when it ends: its path, status, times and tokens
    #[arg(short, long, env = "TROIKA_VERBOSE")]
    pub verbose: bool,
    #[command(flatten)]
    pub sharing: SharingArgs,
    #[command(flatten)]
    pub open: OpenArgs,
    #[command(flatten)]
    pub plan: PlanFileArgs,
}

/// `troika ps`.
#[derive(Args)]
pub struct PsArgs {
    /// Where the server listens
    #[arg(long, value_name = "NAME", default_value = "127.0.0.1", env = "TROIKA_HOST")]
    pub host: String,
    /// Its port
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PORT, env = "TROIKA_PORT")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,
    /// Its keys, of which the first is sent
    #[command(flatten)]
    pub keys: KeyArgs,
    /// Print what the server says as JSON
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
}

/// A time of 0 or more.
fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|s| Duration::try_from_secs_f64(*s).is_ok());
    number.ok_or_else(|| format!("{text:?} is no number of seconds"))
}
