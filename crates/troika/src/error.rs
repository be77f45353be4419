//! Errors of the facade: those of all parts, unchanged.

use std::path::Path;

use troika_device::DeviceError;
use troika_engine::EngineError;
use troika_engine::sample::{ParamError, SampleError};
use troika_model::chat::ChatError;
use troika_model::families::ConfigError;
use troika_model::tokenizer::TokenizerError;
use troika_plan::{PlanError, ProfileError};
use troika_weights::WeightError;

/// Anything that can go wrong when opening or running a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Files.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// Config, with the model it belongs to.
    #[error("{model}: {error}")]
    Config {
        /// Path.
        model: String,
        /// What is wrong.
        error: ConfigError,
    },
    /// Tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Chat template.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// Plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan of a file, which is at fault.
    #[error("{file}: {error}")]
    PlanFile {
        /// The file.
        file: String,
        /// What is wrong.
        error: Box<Error>,
    },
    /// A profile that cannot be used.
    #[error("{file}: {error}")]
    Profile {
        /// The file.
        file: String,
        /// What is wrong.
        error: ProfileError,
    },
    /// A profile that cannot be read or written.
    #[error("the profile {file}: {error}")]
    ProfileFile {
        /// The file.
        file: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// A file that a profile would replace.
    #[error("{file} is there and is no profile; name another file, or remove this one")]
    NoProfile {
        /// The file.
        file: String,
    },
    /// Nothing is kept for this model and these devices.
    #[error("no profile of this model on these devices is kept ({file}); run troika profile first")]
    NoKeptProfile {
        /// Where it would be.
        file: String,
    },
    /// Engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Sampling.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A sampling parameter out of range.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// A thread that has the engine waits for it.
    #[error(
        "this thread is in the middle of a step of the engine, or holds it: wait for sessions of \
         the model after that, or on another thread"
    )]
    EngineHeld,
    /// Somebody ended it.
    #[error("it was cancelled")]
    Cancelled,
    /// The end of a generation that nobody began.
    #[error("the session generates nothing; start a generation first")]
    NothingBegun,
    /// Text was given to a model without a tokenizer, or with one that could not be read.
    #[error("{0} has no tokenizer that can be used; give token ids instead of text")]
    NoTokenizer(String),
    /// A prompt longer than the context.
    #[error(
        "the prompt has {prompt} tokens, the context holds {context} (the model allows {model}); \
         shorten it or use a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Context in force.
        context: usize,
        /// The model's own context.
        model: usize,
    },
    /// A window perplexity cannot be measured in.
    #[error("windows of {window} tokens cannot be measured; they have 4 up to the model's context")]
    Window {
        /// Tokens asked for.
        window: usize,
    },
    /// A text shorter than a window.
    #[error(
        "the text has {tokens} tokens, a window {window}; give a longer text or use smaller windows"
    )]
    ShortText {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a window.
        window: usize,
    },
    /// Logits that are no numbers.
    #[error("the logits at position {position} are not finite; are the weights damaged?")]
    BadLogits {
        /// Position in the window.
        position: usize,
    },
    /// A shape this build does not know.
    #[error("{name:?} is no known shape; known: {known}")]
    NoPreset {
        /// The name asked for.
        name: String,
        /// Names there are.
        known: String,
    },
    /// A type random weights cannot have.
    #[error("{name:?} asks for a type random weights do not have; they have {known}")]
    NoPresetType {
        /// The shape and type asked for.
        name: String,
        /// Types there are.
        known: String,
    },
    /// Random weights that do not fit the memory.
    #[error(
        "the weights of {name} take {need} MiB and {free} MiB of memory are free; take a smaller \
         shape or type, as in :Q4_0"
    )]
    ShapeTooLarge {
        /// The shape and type asked for.
        name: String,
        /// MiB of weights.
        need: u64,
        /// MiB that are free.
        free: u64,
    },
    /// A template that leaves out what it was given.
    #[error("the chat template makes no text of the prompt; give the prompt without it")]
    NoTextOfTemplate,
    /// A text of which nothing is left.
    #[error("the tokenizer makes no tokens of the prompt; give another text, or token ids")]
    NoTokens,
    /// Nothing to do.
    #[error("the prompt is empty; give some text or token ids")]
    EmptyPrompt,
}

impl Error {
    /// With the name of the plan's file, if there is one and the plan is at fault.
    pub(crate) fn of_plan(self, file: Option<&Path>) -> Error {
        use EngineError as E;
        let at_fault = match &self {
            Error::Plan(_) => true,
            Error::Engine(e) => matches!(
                e,
                E::Plan(_)
                    | E::Unplaced(_)
                    | E::Stages { .. }
                    | E::Partition(_)
                    | E::NothingLeft { .. }
                    | E::TwoHomes(_)
                    | E::StandardLength { .. }
                    | E::Page { .. }
            ),
            _ => false,
        };
        match file {
            Some(file) if at_fault => {
                Error::PlanFile { file: file.display().to_string(), error: Box::new(self) }
            }
            _ => self,
        }
    }
}
