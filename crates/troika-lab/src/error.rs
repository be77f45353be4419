//! Errors of experiments. Errors of the library are passed on unchanged.

use troika::Error;
use troika::sim::SocError;
use troika_device::{DeviceError, size, size_needed};
use troika_model::lower::LowerError;

/// Why an experiment is impossible.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// An error in the SoC's file.
    #[error(transparent)]
    Soc(#[from] SocError),
    /// A strategy that needs a processor the SoC lacks.
    #[error("strategy {strategy} needs {need}, and SoC {soc} has none")]
    Processor {
        /// The strategy.
        strategy: &'static str,
        /// The processor it needs.
        need: &'static str,
        /// The SoC.
        soc: String,
    },
    /// An ablation without what it needs.
    #[error("the ablation needs {0}")]
    Ablation(&'static str),
    /// A strategy for experts, and a model without any.
    #[error("strategy {strategy} shares experts out, and {model} has none; name another strategy")]
    NoExperts {
        /// The strategy.
        strategy: &'static str,
        /// The model.
        model: String,
    },
    /// A strategy for experts, and an NPU that takes no groups of them.
    #[error(
        "strategy {strategy} has groups of experts on {processor}, which takes none; let it take \
         expert_group (in its SoC's file: only, or refuses)"
    )]
    NoGroups {
        /// The strategy.
        strategy: &'static str,
        /// The processor.
        processor: String,
    },
    /// A SoC that computes values.
    #[error("SoC {0} computes values (numerics = \"on\"); simulations need numerics = \"off\"")]
    Numerics(String),
    /// A co-running game on a SoC without a GPU.
    #[error("SoC {0} has no GPU that could draw frames")]
    NoFrames(String),
    /// No tokens, or too many.
    #[error(
        "the prompt has {prompt} tokens, and {generate} are to be generated: give from 1 to {most} \
         of a prompt, and fewer in all than the context's {context}"
    )]
    Tokens {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens to generate.
        generate: usize,
        /// The longest possible prompt.
        most: usize,
        /// The model's context.
        context: usize,
    },
    /// A time beyond the range of the virtual clock.
    #[error(
        "the modelled times of SoC {0} add up to more than 292 years; look for a rate in its file \
         that is far too small, or a time that is far too large"
    )]
    Years(String),
    /// An unknown strategy.
    #[error("{0}")]
    Strategy(String),
    /// No folder for temporary files.
    #[error("a folder for temporary files cannot be made: {error}; set TMPDIR to one with room")]
    Folder {
        /// Why.
        error: std::io::Error,
    },
    /// An unreadable config file.
    #[error("{file} cannot be read as a config: {why}")]
    ConfigFile {
        /// The file.
        file: String,
        /// Why.
        why: String,
    },
    /// An unknown shape.
    #[error("{name:?} is no known shape; known: {known}")]
    NoPreset {
        /// The name asked for.
        name: String,
        /// The known names.
        known: String,
    },
    /// A type that random weights cannot have.
    #[error("{name:?} asks for a type random weights do not have; they have {known}")]
    NoPresetType {
        /// The shape and type asked for.
        name: String,
        /// The possible types.
        known: String,
    },
    /// Random weights that do not fit into memory.
    #[error(
        "the weights of {name} take {} and {} of memory are free; take a smaller shape or type, as \
         in :Q4_0", size_needed(*need), size(*free)
    )]
    ShapeTooLarge {
        /// The shape and type asked for.
        name: String,
        /// Bytes of weights.
        need: u64,
        /// Bytes of free memory.
        free: u64,
    },
    /// A file that is not a profile and would be overwritten.
    #[error("{file} is there and is no profile; name another file, or remove this one")]
    NoProfile {
        /// The file.
        file: String,
    },
    /// A virtual device that is to be described as one.
    #[error("device {0} is virtual already: its file describes it; name real devices")]
    IsVirtual(String),
    /// A device without measurements.
    #[error("no segment runs as a whole on device {0}, so nothing was measured of it")]
    NotMeasured(String),
    /// A recorded profile that cannot be replayed.
    #[error("the recorded profile cannot be replayed: {0}")]
    Recording(String),
    /// An error of another part.
    #[error(transparent)]
    Other(#[from] Error),
}

impl From<troika_engine::EngineError> for LabError {
    fn from(e: troika_engine::EngineError) -> Self {
        LabError::Other(e.into())
    }
}

impl From<DeviceError> for LabError {
    fn from(e: DeviceError) -> Self {
        LabError::Other(e.into())
    }
}

impl From<LowerError> for LabError {
    fn from(e: LowerError) -> Self {
        troika_engine::EngineError::from(e).into()
    }
}
