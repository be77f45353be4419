//! `conformance`: op and model cases, run on any device.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Checks Troika against reference outputs")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Checks a folder of checkpoints with golden.safetensors, or of NAME.gguf + NAME.safetensors.
    Golden {
        /// The folder (searched one level deep).
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let Command::Golden { dir } = Args::parse().command;
    let cases = match conformance::golden::find(&dir) {
        Ok(cases) if cases.is_empty() => {
            eprintln!("{}: no checkpoint with golden outputs in this folder", dir.display());
            return ExitCode::FAILURE;
        }
        Ok(cases) => cases,
        Err(e) => {
            eprintln!("{}: {e}", dir.display());
            return ExitCode::FAILURE;
        }
    };
    let mut failed = 0;
    for case in &cases {
        let line = match conformance::golden::check(case) {
            Ok(r) if r.holds() => format!("ok    {r}"),
            Ok(r) => {
                failed += 1;
                format!("FAIL  {r}")
            }
            Err(e) => {
                failed += 1;
                format!("FAIL  {e}")
            }
        };
        println!("{:<28} {line}", case.name);
    }
    println!("{} passed, {failed} failed", cases.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
