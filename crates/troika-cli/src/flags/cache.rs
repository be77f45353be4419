//! Flags of `troika cache`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::quant::{DEFAULT_MIB, mib};

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
    /// Read all that is kept and check its hashes; exit code 1 if anything is damaged
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
