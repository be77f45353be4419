//! `conformance`: op and model cases, run on any device.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use conformance::golden::REFERENCE_TOLERANCE;
use troika::npu::RuntimePlaces;
use troika::plan::Strategy;
use troika::{DeviceOptions, DeviceSpec, NpuSettings, OpenOptions};

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
        /// Devices, as `troika run --device` takes them; may be repeated, or be a list with commas.
        #[arg(long, value_name = "SPEC", value_delimiter = ',')]
        device: Vec<DeviceSpec>,
        /// How the model is divided over the devices.
        #[arg(long, value_name = "NAME", value_parser = Strategy::parse, default_value = "one-device")]
        strategy: Strategy,
        /// The largest difference from the reference's logits, relative to the largest of them.
        #[arg(long, value_name = "X", default_value_t = REFERENCE_TOLERANCE)]
        tolerance: f32,
    },
}

fn main() -> ExitCode {
    let Command::Golden { dir, device, strategy, tolerance } = Args::parse().command;
    let runtime = RuntimePlaces::of_variables(|name| std::env::var_os(name));
    let npu = NpuSettings { runtime, ..NpuSettings::default() };
    let devices = DeviceOptions { devices: device, npu, ..DeviceOptions::default() };
    let options = OpenOptions { devices, strategy, ..OpenOptions::default() };
    let cases = match conformance::golden::find(&dir) {
        Ok(cases) if !cases.is_empty() => cases,
        found => {
            let why = found.err().map(|e| e.to_string());
            let why = why.unwrap_or_else(|| "no checkpoint with golden outputs is here".into());
            eprintln!("{}: {why}", dir.display());
            return ExitCode::FAILURE;
        }
    };
    let mut failed = 0;
    for case in &cases {
        let (holds, said) = match conformance::golden::check(case, &options) {
            Ok(report) => (report.holds_in_context(tolerance), report.to_string()),
            Err(e) => (false, e.to_string()),
        };
        failed += usize::from(!holds);
        println!("{:<28} {}  {said}", case.name, if holds { "ok  " } else { "FAIL" });
    }
    println!("{} passed, {failed} failed", cases.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
