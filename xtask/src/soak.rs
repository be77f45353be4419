//! `cargo xtask soak`: sequences that share an engine for many thousands of steps, and a server whose
//! clients come, go and stall, or are coding agents.

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
    /// The model that coding agents and Open WebUI ask [default: the built-in one]
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// 0: leave them out
    #[arg(long, value_name = "N", default_value_t = 1)]
    agents: u64,
    /// Requests to it that are wrong
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    malformed: u64,
}

/// Builds the command and tests it.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if options.sequences > 0 {
        let mut share = cargo(root, &["test", "-q", "--release", "--workspace"]);
        share.args(["--test", "sequences", "--test", "threads", "--", "--ignored", "--nocapture"]);
        command::run(&mut share, "the test of sequences that share an engine")?;
    }
    if options.server == 0 && options.agents == 0 {
        return Ok(());
    }
    let troika = options.troika.clone().map_or_else(|| build_troika(root), Ok)?;
    let troika = troika.canonicalize().map_err(|e| failed("find", &troika, &e))?;
    if options.server > 0 {
        clients(root, &troika, options)?;
    }
    if options.agents > 0 {
        agents(root, &troika, options)?;
    }
    Ok(())
}

/// The folder that `.ci/NAME` fills.
fn installed(root: &Path, name: &str, what: &[&str]) -> Result<PathBuf> {
    let place = root.join("target").join(name);
    let script = format!(".ci/{name}");
    command::run(Command::new(root.join(&script)).arg(&place).args(what), &script)?;
    Ok(place)
}

/// Sends clients to servers of the command.
fn clients(root: &Path, troika: &Path, options: &Options) -> Result<()> {
    let place = installed(root, "clients", &[])?;
    let mut script = Command::new(place.join("bin/python"));
    script.arg(root.join("tests/clients/soak.py")).arg(troika);
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

/// Gives coding agents and Open WebUI a task each.
fn agents(root: &Path, troika: &Path, options: &Options) -> Result<()> {
    // For Chromium.
    installed(root, "clients", &[])?;
    let place = installed(root, "programs", &["agents"])?;
    let mut script = Command::new(place.join("open-webui/bin/python"));
    script.arg(root.join("tests/clients/coding_agents.py")).arg(troika).arg(&place);
    if let Some(model) = &options.model {
        script.arg("--model").arg(model);
    }
    command::run(script.env("PYTHONDONTWRITEBYTECODE", "1"), "coding_agents.py")
}
