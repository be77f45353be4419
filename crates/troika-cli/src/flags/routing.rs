//! Flags about the routing of models with experts.

use std::path::PathBuf;

use clap::Args;

/// Texts to try on what another text showed.
#[derive(Args)]
pub struct UnseenArgs {
    /// A text to try the result on, for models with experts; may be repeated [default: the last
    /// quarter of the text, for what the first three show]
    #[arg(long, value_name = "FILE")]
    pub unseen: Vec<PathBuf>,
}
