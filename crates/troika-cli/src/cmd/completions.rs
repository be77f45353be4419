//! `troika completions`.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::error::CliError;
use crate::flags::Cli;
use crate::output;

/// Prints a completion script.
pub fn run(shell: Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "troika", &mut script);
    output::write(&String::from_utf8_lossy(&script))
}
