//! Flags for quantization at load.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::RangedU64ValueParser;
use troika::weights::{CacheFolder, Quant};

use super::types::{QUANTS, one_of};

/// Quantization, and where its result is kept.
#[derive(Args, Clone)]
pub struct QuantArgs {
    /// Quantize float weights when the model is loaded
    #[arg(long, value_parser = one_of(QUANTS), default_value = "none", env = "TROIKA_QUANT")]
    pub quant: Quant,
    /// Folder where quantized weights and profiles are kept for the next start [default: troika in
    /// the system's folder for caches]
    #[arg(long, value_name = "DIR", env = "TROIKA_CACHE_DIR", conflicts_with = "no_cache")]
    pub cache_dir: Option<PathBuf>,
    /// Size that folder may have, in MiB: quantized weights that were not used for longest are
    /// removed
    #[arg(long, value_name = "N", value_parser = mib(), env = "TROIKA_CACHE_MIB")]
    #[arg(default_value_t = DEFAULT_MIB)]
    pub cache_mib: u64,
    /// Do not keep quantized weights
    #[arg(long, env = "TROIKA_NO_CACHE")]
    pub no_cache: bool,
}

impl QuantArgs {
    /// The folder for what is kept.
    pub fn cache(&self) -> Option<CacheFolder> {
        let dir = cache_or_default(self.cache_dir.as_deref()).filter(|_| !self.no_cache)?;
        Some(CacheFolder::new(dir).within(self.cache_mib.saturating_mul(1 << 20)))
    }

    /// The folder of stored profiles, which `--no-cache` leaves as it is.
    pub fn profiles(&self) -> Option<PathBuf> {
        Some(CacheFolder::new(cache_or_default(self.cache_dir.as_deref())?).profiles())
    }
}

/// Enough for several large models, but a fraction of a usual disk.
pub const DEFAULT_MIB: u64 = 64 << 10;

/// Sizes of the cache. To store nothing, use `--no-cache`.
pub fn mib() -> RangedU64ValueParser<u64> {
    RangedU64ValueParser::new().range(1..)
}

/// The given folder, or else one in the system's folder for caches.
pub fn cache_or_default(given: Option<&Path>) -> Option<PathBuf> {
    given.map(Path::to_path_buf).or_else(|| Some(system_cache()?.join("troika")))
}

/// The system's folder for caches.
fn system_cache() -> Option<PathBuf> {
    // An empty or relative path counts as none (XDG Base Directory Specification).
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    if cfg!(windows) {
        folder("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        Some(folder("HOME")?.join("Library/Caches"))
    } else {
        folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))
    }
}
