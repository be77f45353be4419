//! `troika man`.

use clap::CommandFactory;

use crate::error::CliError;
use crate::flags::{Cli, ManArgs};

/// Writes the manual's pages into a folder: one of the command, and one of each verb.
pub fn run(args: &ManArgs) -> Result<(), CliError> {
    // The pages are the same for all targets.
    let command = Cli::command().long_version(None);
    clap_mangen::generate_to(command, &args.dir).map_err(|e| {
        CliError::Failure(format!("cannot write manual pages to {}: {e}", args.dir.display()))
    })
}
