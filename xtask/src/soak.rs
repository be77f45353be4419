//! `cargo xtask soak`: sequences that share an engine for many thousands of steps, and a server whose
//! clients come, go and stall.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Result, build_troika, cargo, failed};

/// Share engines between many sequences at random, and send clients that come, go and stall to a
/// server
#[derive(clap::Args)]
pub struct Options {
    /// Times that the server is killed
    #[arg(long, value_name = "N", default_value_t = 10)]
    kills: u64,
    /// What the clients do
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// The command [default: it is built]
    #[arg(long, value_name = "FILE")]
    troika: Option<PathBuf>,
    /// 0: leave out the tests of sequences that share an engine
    #[arg(long, value_name = "N", default_value_t = 1)]
    sequences: u64,
    /// Minutes of clients at a server; 0: none
    #[arg(long, value_name = "N", default_value_t = 10)]
    server: u64,
    /// Requests to it that are wrong
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    malformed: u64,
}

/// Builds the command and tests it.
///
/// # Errors
/// The command does not build, or a test fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if options.sequences > 0 {
        let mut share = cargo(root, &["test", "-q", "--release", "--workspace"]);
        share.args(["--test", "sequences", "--test", "threads", "--", "--ignored", "--nocapture"]);
        command::run(&mut share, "the test of sequences that share an engine")?;
    }
    if options.server > 0 {
        let troika = options.troika.clone().map_or_else(|| build_troika(root), Ok)?;
        clients(root, &troika, options)?;
    }
    Ok(())
}

/// Sends clients to servers of the command.
fn clients(root: &Path, troika: &Path, options: &Options) -> Result<()> {
    let place = root.join("target/clients");
    command::run(Command::new(root.join(".ci/clients")).arg(&place), ".ci/clients")?;
    let mut script = Command::new(place.join("bin/python"));
    script.arg(root.join("tests/clients/soak.py"));
    script.arg(troika.canonicalize().map_err(|e| failed("find", troika, &e))?);
    for (flag, number) in [
        ("--minutes", options.server),
        ("--malformed", options.malformed),
        ("--kills", options.kills),
        ("--seed", options.seed),
    ] {
        script.args([flag, &number.to_string()]);
    }
    command::run(script.env("PYTHONDONTWRITEBYTECODE", "1"), "soak.py")
}
