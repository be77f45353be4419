//! Errors of the facade; errors of the parts are passed on unchanged.

use std::path::Path;

use troika_device::{DeviceError, size, size_needed};
use troika_engine::EngineError;
use troika_engine::sample::{ParamError, SampleError};
use troika_model::chat::ChatError;
use troika_model::families::ConfigError;
use troika_model::tokenizer::TokenizerError;
use troika_plan::{PlanError, RoutingFileError};
use troika_program::ProgramError;
use troika_solve::ProfileError;
use troika_weights::WeightError;

/// Anything that can go wrong when opening or running a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error in a model's files.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// An error in a model's config.
    #[error("{model}: {error}")]
    Config {
        /// Path.
        model: String,
        /// What is wrong.
        error: ConfigError,
    },
    /// An error of the tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// An error of the chat template.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// An error in the plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An error in a plan file.
    #[error("{file}: {error}")]
    PlanFile {
        /// The file.
        file: String,
        /// What is wrong.
        error: Box<Error>,
    },
    /// A calibration that cannot be used.
    #[error("{file}: {error}")]
    Calibration {
        /// The file.
        file: String,
        /// What is wrong.
        error: PlanError,
    },
    /// A routing predictor that cannot be used.
    #[error("{file}: {error}")]
    Predictor {
        /// The file.
        file: String,
        /// What is wrong.
        error: RoutingFileError,
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
    /// There is no stored profile for this model and these devices.
    #[error("no profile of this model on these devices is kept ({file}); run troika profile first")]
    NoKeptProfile {
        /// The expected path.
        file: String,
    },
    /// A limit of memory for a device that is not there.
    #[error("--device-memory: there is no device {name}; the devices are {known}")]
    NoDeviceToLimit {
        /// The name.
        name: String,
        /// The names of the devices.
        known: String,
    },
    /// Weights that do not fit into memory.
    #[error(
        "the weights take {}, and {} of memory are free; {advice}",
        size_needed(*needed), size(*free)
    )]
    TooLarge {
        /// Bytes of the weights.
        needed: u64,
        /// Bytes of memory that are free.
        free: u64,
        /// What makes them fit.
        advice: String,
    },
    /// A package that cannot be written.
    #[error(transparent)]
    Package(#[from] crate::devices::npu::mil::PackageError),
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An error of a device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An error in sampling.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// A sampling parameter out of range.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// A thread that holds the engine waits for it.
    #[error(
        "this thread is in the middle of a step of the engine, or holds it: wait for sessions of \
         the model after that, or on another thread"
    )]
    EngineHeld,
    /// The request was cancelled.
    #[error("it was cancelled")]
    Cancelled,
    /// A generation was finished that was never started.
    #[error("the session generates nothing; start a generation first")]
    NothingBegun,
    /// Text was given, but the model has no usable tokenizer.
    #[error("{0} has no tokenizer that can be used; give token ids instead of text")]
    NoTokenizer(String),
    /// A prompt longer than the context.
    #[error(
        "the prompt has {prompt} tokens, the context holds {context} (the model allows {model}); \
         shorten it{}", if context < model {
            " or use a larger context, which needs more memory for the KV cache"
        } else { "" }
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// The context in use.
        context: usize,
        /// The model's own context.
        model: usize,
    },
    /// A text that cannot fit the context, whatever its tokens are.
    #[error(
        "the text has {bytes} bytes, and the {context} tokens of the context have at most \
         {longest} each; shorten it"
    )]
    TextTooLong {
        /// Bytes of the text.
        bytes: usize,
        /// The context in use.
        context: usize,
        /// Bytes of the vocabulary's longest token.
        longest: usize,
    },
    /// A window length for which perplexity cannot be measured.
    #[error("windows of {window} tokens cannot be measured; they have 4 up to the model's context")]
    Window {
        /// Tokens per window asked for.
        window: usize,
    },
    /// A question about experts of a model that has none.
    #[error("the model has no experts, so nothing is routed; give a model with experts")]
    NoExperts,
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
    /// Logits that are NaN or infinite.
    #[error("the logits at position {position} are not finite; are the weights damaged?")]
    BadLogits {
        /// Position in the window.
        position: usize,
    },
    /// A chat template that produces no text.
    #[error("the chat template makes no text of the prompt; give the prompt without it")]
    NoTextOfTemplate,
    /// A text that yields no tokens.
    #[error("the tokenizer makes no tokens of the prompt; give another text, or token ids")]
    NoTokens,
    /// An empty prompt.
    #[error("the prompt is empty; give some text or token ids")]
    EmptyPrompt,
}

impl Error {
    /// An error of a calibration's file.
    pub(crate) fn of_calibration(file: &Path, error: PlanError) -> Error {
        Error::Calibration { file: file.display().to_string(), error }
    }

    /// A profile's file that cannot be read or written.
    pub fn profile_file(file: &Path, error: std::io::Error) -> Error {
        Error::ProfileFile { file: file.display().to_string(), error }
    }

    /// Adds the plan's file name, if there is one and the plan is at fault.
    pub(crate) fn of_plan(self, file: Option<&Path>) -> Error {
        use EngineError as E;
        let at_fault = match &self {
            Error::Plan(_) => true,
            Error::Engine(E::Program(e)) => !matches!(e, ProgramError::Lower(_)),
            Error::Engine(e) => matches!(e, E::Plan(_)),
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
