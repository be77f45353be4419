//! Errors of the command, with their exit codes: 2 for usage, 1 for failure, 130 after Ctrl-C. A
//! file's contents do not count as usage, whatever flag names the file: models, plans, profiles,
//! SoCs and configs that cannot be used are failures.

use std::fmt::Display;
use std::io;
use std::path::Path;

use troika::device::DeviceError;
use troika::engine::{EngineError, KvError};
use troika::plan::PlanError;
use troika::program::ProgramError;
use troika::sim::SocError;
use troika_lab::LabError;

/// Why the command ends.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// An invalid flag or argument.
    #[error("{0}")]
    Usage(String),
    /// A failed operation.
    #[error("{0}")]
    Failure(String),
    /// Ctrl-C.
    #[error("{0}")]
    Interrupted(String),
    /// The answer cannot be written.
    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
    /// A model cannot be found by its name.
    #[error(transparent)]
    Hub(#[from] troika_hub::HubError),
    /// An impossible experiment.
    #[error(transparent)]
    Lab(LabError),
    /// The library's errors.
    #[error("{0}{named}", named = flags(.0))]
    Troika(#[from] troika::Error),
    /// Text for a command that needs a tokenizer.
    #[error("{0} has no tokenizer that can be used; take a model with one")]
    NoTokenizer(String),
    /// An error about the context of a plan, which no flag beside the plan can change.
    #[error("{0} (the context is the plan's; troika plan -c makes one with another)")]
    InPlan(troika::Error),
}

/// The flag for the context.
const CONTEXT: &str = " (-c)";

/// The flags that an error of the library concerns, since the library knows no flags.
fn flags(error: &troika::Error) -> &'static str {
    use troika::Error as E;
    match error {
        E::PlanFile { error, .. } => match **error {
            // Other faults must be fixed in the file.
            E::Plan(PlanError::Device { .. }) => flags(error),
            _ => "",
        },
        E::NoTokenizer(_) | E::NoTokens => " (--prompt-ids)",
        E::NoTextOfTemplate => " (--raw)",
        E::EmptyPrompt => " (-p, -f, --prompt-ids)",
        E::PromptTooLong { context, model, .. } if context == model => "",
        E::PromptTooLong { .. } | E::Window { .. } | E::ShortText { .. } => CONTEXT,
        E::Engine(EngineError::Kv(KvError::Context { .. })) => CONTEXT,
        E::Engine(EngineError::Kv(KvError::Budget { .. })) => " (--kv-size)",
        E::Plan(PlanError::Range { what, .. }) => match *what {
            "the context" => " (-c; of bench, -d with -p or -n)",
            "the chunk length" => " (--ubatch-size)",
            "the length of prompts" => " (--for)",
            _ => "",
        },
        E::Plan(PlanError::TooLong { .. }) => " (--for, -c)",
        E::Engine(EngineError::CompileTime { .. }) => " (--compile-timeout)",
        E::Engine(EngineError::Program(ProgramError::NothingLeft { .. })) => " (--strategy)",
        E::Plan(PlanError::Device { .. } | PlanError::Strategy { .. }) => " (--device)",
        _ => "",
    }
}

/// The exit code of an error of the library.
fn of_library(error: &troika::Error) -> u8 {
    use troika::Error as E;
    match error {
        E::Param(_) | E::EmptyPrompt | E::Plan(_) => 2,
        E::Engine(EngineError::Program(ProgramError::NothingLeft { .. })) => 2,
        // The code that shells use for commands ended by Ctrl-C.
        E::Engine(EngineError::CompileCancelled { .. }) => 130,
        _ => 1,
    }
}

/// The exit code of an error of an experiment.
fn of_lab(error: &LabError) -> u8 {
    use LabError as E;
    match error {
        E::Soc(SocError::Unknown(_)) | E::Asked(_) => 2,
        E::Other(e) => of_library(e),
        _ => 1,
    }
}

impl From<DeviceError> for CliError {
    fn from(error: DeviceError) -> CliError {
        CliError::Troika(error.into())
    }
}

impl From<LabError> for CliError {
    fn from(error: LabError) -> CliError {
        match error {
            LabError::Other(e) => CliError::Troika(e),
            e => CliError::Lab(e),
        }
    }
}

impl CliError {
    /// A file that cannot be used.
    pub fn of_file(file: &Path, why: impl Display) -> CliError {
        CliError::Failure(format!("{}: {why}", file.display()))
    }

    /// The error for a given plan: messages that name -c otherwise name the plan.
    pub fn in_plan(self, is_given: bool) -> CliError {
        match self {
            CliError::Troika(e) if is_given && flags(&e) == CONTEXT => CliError::InPlan(e),
            e => e,
        }
    }

    /// Whether the reader of the output has gone, which is not an error.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, CliError::Stdout(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            CliError::Usage(_) => 2,
            CliError::Lab(e) => of_lab(e),
            CliError::Troika(e) => of_library(e),
            CliError::Interrupted(_) => 130,
            _ => 1,
        }
    }
}
