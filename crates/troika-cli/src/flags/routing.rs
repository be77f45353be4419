//! Flags about the routing of models with experts.

use std::path::PathBuf;

use clap::Args;

use super::verbs::{ModelArgs, OpenArgs};

/// Texts to try on what another text showed.
#[derive(Args)]
pub struct UnseenArgs {
    /// A text to try the result on, for models with experts; may be repeated [default: the last
    /// quarter of the text, for what the first three show]
    #[arg(long, value_name = "FILE")]
    pub unseen: Vec<PathBuf>,
}

/// `troika train-predictor`.
#[derive(Args)]
#[command(mut_arg("ctx_size", |arg| {
    arg.help("Length of the windows in tokens [default: 512, or the model's context if shorter]")
}))]
pub struct TrainPredictorArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    /// The file of the text; -, or when absent: standard input
    #[arg(short, long, visible_alias = "text", value_name = "FILE", env = "TROIKA_FILE")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub unseen: UnseenArgs,
    /// The predictor to write
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
    /// How often the text is gone through
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub epochs: usize,
    /// Rank of a layer's matrix, where that is smaller and faster than all of it; 0: full
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub rank: usize,
    /// Print one JSON object
    #[arg(long, env = "TROIKA_JSON")]
    pub json: bool,
    #[command(flatten)]
    pub open: OpenArgs,
}
