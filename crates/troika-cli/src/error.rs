//! Errors of the command, with their exit codes: 2 for usage, 1 for failure, 130 after Ctrl-C.

use std::io;

use troika::engine::{EngineError, KvError};
use troika::plan::PlanError;

/// What ends the command.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A flag or argument that makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Something that did not work.
    #[error("{0}")]
    Failure(String),
    /// Ctrl-C.
    #[error("{0}")]
    Interrupted(&'static str),
    /// Writing the answer.
    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
    /// Finding a model by name.
    #[error(transparent)]
    Hub(#[from] troika_hub::HubError),
    /// A simulation that is not possible.
    #[error(transparent)]
    Simulate(#[from] troika::SimulateError),
    /// The library's errors.
    #[error("{0}{named}", named = flags(.0))]
    Troika(#[from] troika::Error),
    /// Text for a verb that takes nothing else.
    #[error("{0} has no tokenizer that can be used; take a model with one")]
    NoTokenizer(String),
    /// An error about a context that a plan says: no flag beside the plan can change it.
    #[error("{0} (the context is the plan's; troika plan -c makes one with another)")]
    InPlan(troika::Error),
}

/// The flag of the context.
const CONTEXT: &str = " (-c)";

/// The flags that an error of the library is about; it does not know of any.
fn flags(error: &troika::Error) -> &'static str {
    use troika::Error as E;
    match error {
        E::PlanFile { error, .. } => match **error {
            // What else is wrong is to be changed in the file.
            E::Plan(PlanError::Device { .. }) => flags(error),
            _ => "",
        },
        E::NoTokenizer(_) => " (--prompt-ids)",
        E::NoTextOfTemplate => " (--raw)",
        E::NoTokens => " (--prompt-ids)",
        E::EmptyPrompt => " (-p, -f, --prompt-ids)",
        E::PromptTooLong { .. } | E::Window { .. } | E::ShortText { .. } => CONTEXT,
        E::Engine(EngineError::Kv(KvError::Context { .. })) => CONTEXT,
        E::Engine(EngineError::Kv(KvError::Budget { .. })) => " (--kv-size)",
        E::Plan(PlanError::Range { what, .. }) => match *what {
            "the context" => " (-c; of bench, -d with -p or -n)",
            "the chunk length" => " (--ubatch-size)",
            "chunks in flight" => " (--chunks-in-flight)",
            "the length of prompts" => " (--for-prompt)",
            "the count of generated tokens" => " (--for-gen)",
            _ => "",
        },
        E::Engine(EngineError::CompileTime { .. }) => " (--compile-timeout)",
        E::Plan(PlanError::Device { .. } | PlanError::Strategy { .. }) => " (--device)",
        _ => "",
    }
}

impl CliError {
    /// The error where a plan was given: what would name -c without one names the plan.
    pub fn in_plan(self, is_given: bool) -> CliError {
        match self {
            CliError::Troika(e) if is_given && flags(&e) == CONTEXT => CliError::InPlan(e),
            e => e,
        }
    }

    /// Whoever read the output went away: not an error.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, CliError::Stdout(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        use troika::Error as E;
        match self {
            CliError::Usage(_) | CliError::Simulate(_) => 2,
            CliError::Troika(E::Param(_) | E::EmptyPrompt | E::Plan(_) | E::PlanFile { .. }) => 2,
            CliError::Troika(E::NoPreset { .. } | E::NoPresetType { .. }) => 2,
            CliError::Interrupted(_) => 130,
            // As a shell reports what Ctrl-C ended.
            CliError::Troika(E::Engine(EngineError::CompileCancelled { .. })) => 130,
            _ => 1,
        }
    }
}
