//! Flags that say how several sequences share a model.

use clap::Args;
use clap::builder::RangedU64ValueParser;
use troika::engine::Sharing;

/// How sequences share a model.
#[derive(Args)]
pub struct SharingArgs {
    /// Rows that are computed at once, at most, while sequences decode: a token of each, and of
    /// prompts what is left. More of them end a prompt sooner, fewer delay decoding less
    #[arg(short, long, value_name = "N", env = "TROIKA_BATCH_SIZE")]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    pub batch_size: Option<usize>,
    /// Memory of the KV cache in MiB: sequences that do not fit wait, and one that fills it by
    /// itself ends there [default: what all of them need, at most a quarter of the memory that the
    /// weights leave free]
    #[arg(long, value_name = "MIB", env = "TROIKA_KV_SIZE")]
    #[arg(value_parser = RangedU64ValueParser::<u64>::new().range(1..=1 << 40))]
    pub kv_size: Option<u64>,
}

impl SharingArgs {
    /// The library's options for a number of sequences.
    pub fn sharing(&self, sequences: usize) -> Sharing {
        let default = Sharing::default();
        Sharing {
            sequences,
            kv_bytes: self.kv_size.map(|mib| mib.saturating_mul(1 << 20)),
            rows_per_step: self.batch_size.unwrap_or(default.rows_per_step),
        }
    }
}
