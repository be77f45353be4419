//! `troika man`.

use std::path::Path;

use clap::CommandFactory;

use crate::error::CliError;
use crate::flags::Cli;

/// Writes the manual's pages into a folder: one of the command, and one of each verb.
pub fn run(dir: &Path) -> Result<(), CliError> {
    // The pages are the same for all targets.
    let command = Cli::command().long_version(None);
    clap_mangen::generate_to(command, dir).map_err(|e| {
        CliError::Failure(format!("cannot write manual pages to {}: {e}", dir.display()))
    })
}
