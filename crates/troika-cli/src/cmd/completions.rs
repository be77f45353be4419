//! `troika completions`.

use clap::CommandFactory;

use crate::error::CliError;
use crate::flags::{Cli, CompletionArgs};
use crate::output;

/// Prints a completion script.
pub fn run(args: &CompletionArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "troika", &mut script);
    output::write(&String::from_utf8_lossy(&script))
}
