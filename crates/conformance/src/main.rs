//! `conformance`: op and model cases, run on any device.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use troika::plan::{Policy, Strategy};
use troika::{DeviceOptions, DeviceSpec, OpenOptions};

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
        /// Devices, as [NAME=]cpu[:CORES][@ISA]; may be repeated, or be a list with commas.
        #[arg(long, value_name = "SPEC", value_delimiter = ',')]
        device: Vec<DeviceSpec>,
        /// How the model is divided over the devices.
        #[arg(long, value_name = "NAME", value_parser = Strategy::parse, default_value = "one-device")]
        strategy: Strategy,
        /// The order in which ready segments run.
        #[arg(long, value_name = "NAME", value_parser = policy, default_value = "in-order")]
        policy: Policy,
        /// Prompt chunks under way at once.
        #[arg(long, value_name = "N")]
        chunks_in_flight: Option<usize>,
    },
}

fn policy(name: &str) -> Result<Policy, String> {
    let known = || Policy::ALL.map(Policy::name).join(", ");
    Policy::parse(name).ok_or_else(|| format!("it is none of {}", known()))
}

fn main() -> ExitCode {
    let Command::Golden { dir, device, strategy, policy, chunks_in_flight } = Args::parse().command;
    let devices = DeviceOptions { devices: device, ..DeviceOptions::default() };
    let options =
        OpenOptions { devices, strategy, policy, chunks_in_flight, ..OpenOptions::default() };
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
        let line = match conformance::golden::check(case, &options) {
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
