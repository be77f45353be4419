//! The `troika` command.

#![allow(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout)]

mod allocator;
mod chat;
mod cmd;
mod doctor;
mod error;
mod expert_groups;
mod file;
mod flags;
mod generate;
mod gpu;
mod input;
mod interrupt;
mod memory;
mod output;
mod parallel;
mod progress;
mod prompt;
mod resolve;
mod stats;
mod table;
mod verdict;

use std::process::ExitCode;

use error::CliError;
use flags::Command;

fn main() -> ExitCode {
    troika::exit_when_shortened("troika: ");
    match flags::parse().and_then(|cli| run(cli.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if e.is_closed_pipe() => ExitCode::SUCCESS,
        Err(e) => {
            output::note_line(&format!("troika: {e}"));
            ExitCode::from(e.exit_code())
        }
    }
}

fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Run(args) => cmd::run::run(&args),
        Command::Serve(args) => cmd::serve::run(&args),
        Command::Show(args) => cmd::show::run(&args),
        Command::Tokenize(args) => cmd::tokenize::run(&args),
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Report(args) => cmd::report::run(&args),
        Command::Calibrate(args) => cmd::calibrate::run(&args),
        Command::TrainPredictor(args) => cmd::train_predictor::run(&args),
        Command::Perplexity(args) => cmd::perplexity::run(&args),
        Command::Reproduce(args) => cmd::reproduce::run(&args),
        Command::Simulate(args) => cmd::simulate::run(&args),
        Command::Plan(args) => cmd::plan::run(&args),
        Command::Profile(args) => cmd::profile::run(&args),
        Command::Devices(args) => cmd::devices::run(&args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::Pull(args) => cmd::pull::run(&args),
        Command::Ls(args) => cmd::ls::run(&args),
        Command::Rm(args) => cmd::rm::run(&args),
        Command::Ps(args) => cmd::ps::run(&args),
        Command::Cache(args) => cmd::cache::run(&args),
        Command::Completions(args) => cmd::completions::run(&args),
        Command::Man(args) => cmd::man::run(&args),
        Command::FindGpu => gpu::find(),
        Command::NpuCompile(args) => {
            troika::npu::serve_compile(&args.args).map_err(CliError::Failure)
        }
        Command::ChatRender => {
            troika::model::chat::serve(allocator::limit).map_err(CliError::Failure)
        }
    }
}
