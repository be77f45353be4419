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
mod interrupt;
mod output;
mod parallel;
mod progress;
mod resolve;
mod stats;
mod table;
mod verdict;

use std::process::ExitCode;

use error::CliError;
use flags::Command;

fn main() -> ExitCode {
    troika::exit_when_shortened("troika: ");
    match helper().unwrap_or_else(|| run(flags::parse()?.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if e.is_closed_pipe() => ExitCode::SUCCESS,
        Err(e) => {
            output::note_line(&format!("troika: {e}"));
            ExitCode::from(e.exit_code())
        }
    }
}

/// What another process of this program starts this one for, if one does.
fn helper() -> Option<Result<(), CliError>> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let words: Vec<String> = words.collect();
    let (verb, args) = words.split_first()?;
    Some(match verb.as_str() {
        gpu::FIND_VERB => gpu::find(),
        flags::COMPILE_VERB => troika::npu::serve_compile(args).map_err(CliError::Failure),
        flags::RENDER_VERB => {
            troika::model::chat::serve(allocator::limit).map_err(CliError::Failure)
        }
        _ => return None,
    })
}

fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Run(args) => cmd::run::run(&args),
        Command::Serve(args) => cmd::serve::run(&args),
        Command::Export(args) => cmd::export::run(&args),
        Command::Show(args) => cmd::show::run(&args),
        Command::Tokenize(args) => cmd::tokenize::run(&args),
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Report { trace } => cmd::report::run(&trace),
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
        Command::Ls { json } => cmd::ls::run(json),
        Command::Rm(args) => cmd::rm::run(&args),
        Command::Ps(args) => cmd::ps::run(&args),
        Command::Cache(args) => cmd::cache::run(&args),
        Command::Completions { shell } => cmd::completions::run(shell),
        Command::Man { dir } => cmd::man::run(&dir),
    }
}
