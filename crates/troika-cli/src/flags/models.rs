//! Flags of the verbs for models in the Hub's cache, and for what earlier starts stored.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::quant::{DEFAULT_MIB, mib};

/// `troika pull`.
#[derive(Args)]
pub struct PullArgs {
    /// Hub ids such as Qwen/Qwen3-0.6B, owner/name:Q4_K_M or owner/name:file.gguf;
    /// @REVISION behind them is a branch, tag or commit
    #[arg(value_name = "MODEL", required = true)]
    pub models: Vec<String>,
    /// Of a repository with several models, fetch the best one that fits into free memory; without
    /// this, they are listed
    #[arg(short, long)]
    pub yes: bool,
    /// Ask the Hub whether a model that is here has changed, and fetch what is new
    #[arg(long, alias = "update")]
    pub refresh: bool,
    /// Print a JSON list, an object for each model
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
}

/// `troika rm`.
#[derive(Args)]
pub struct RmArgs {
    /// Names as troika ls lists them: owner/name for all of a repository, owner/name:Q4_K_M for one
    /// GGUF model of it, owner/name@REVISION for one revision
    #[arg(value_name = "MODEL", required = true)]
    pub models: Vec<String>,
    /// Do not ask
    #[arg(short, long, short_alias = 'f', alias = "force")]
    pub yes: bool,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
}

/// `troika cache`.
#[derive(Args)]
pub struct CacheArgs {
    #[command(subcommand)]
    pub verb: CacheVerb,
    /// The folder [default: troika in the system's folder for caches]
    #[arg(long, value_name = "DIR", env = "TROIKA_CACHE_DIR", global = true)]
    pub cache_dir: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON", global = true)]
    pub json: bool,
}

/// What to do with it.
#[derive(Subcommand)]
pub enum CacheVerb {
    /// List what is kept, what was used last first
    Ls,
    /// Read all that is kept but packages, and check its hashes; exit code 1 if anything is damaged
    Verify,
    /// Remove what no start will use, then what was used longest ago until the rest fits
    Prune {
        /// Size the folder may have, in MiB
        #[arg(long, value_name = "N", value_parser = mib(), env = "TROIKA_CACHE_MIB")]
        #[arg(default_value_t = DEFAULT_MIB)]
        cache_mib: u64,
    },
    /// Remove all that is kept
    Clear,
}
