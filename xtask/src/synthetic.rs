//! `cargo xtask synthetic`: a GGUF model of a known shape with random weights, of any size: one tensor
//! is in memory at a time.

use std::path::PathBuf;

use crate::command::{Result, whole};
use crate::peers::gguf::Kind;
use crate::peers::shapes::{self, Content};

/// Write a GGUF model of a known shape with random weights, for measuring speed
#[derive(clap::Args)]
pub struct Options {
    /// The shape: qwen3-0.6b, qwen3-moe-1b, qwen3-moe-tiny, qwen3-moe-wide, llama-3.2-1b,
    /// qwen3-30b-a3b, olmoe-1b-7b
    shape: String,
    /// The file to write
    out: PathBuf,
    /// Type of the matrices: bf16, q8_0 or q4_0
    #[arg(long = "type", default_value = "q4_0")]
    kind: String,
    /// Choose experts by Zipf's law with this exponent, in another order in each layer
    #[arg(long)]
    zipf: Option<f32>,
}

/// Writes the file.
///
/// # Errors
/// An unknown shape or type, a file that cannot be written.
pub fn run(options: &Options) -> Result<()> {
    let kind = match options.kind.as_str() {
        "bf16" => Kind::BF16,
        "q8_0" => Kind::Q8_0,
        "q4_0" => Kind::Q4_0,
        other => return Err(format!("unknown type {other}; there are bf16, q8_0 and q4_0")),
    };
    let content = Content { kind, zipf: options.zipf };
    whole(&options.out, |part| shapes::write_as(&options.shape, content, part))
}
