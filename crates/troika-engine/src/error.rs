//! Errors of the engine.

use troika_device::{AccessError, DeviceError};
use troika_model::lower::LowerError;
use troika_plan::{PlanError, Refusal};
use troika_program::ProgramError;

use troika_program::kv::{KvError, SeqId};

/// What can go wrong while running a model.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The KV cache of all sequences is more than a device binds.
    #[error(
        "the KV cache of all sequences takes {bytes} bytes in a layer, and device {device} binds \
         at most {most} at once; compute fewer sequences at once (--parallel), or use a smaller \
         context (-c) or KV cache (--kv-size)"
    )]
    CacheBinding {
        /// Device name.
        device: String,
        /// Bytes of a layer's keys or values.
        bytes: u64,
        /// What it binds.
        most: u64,
    },
    /// A device was lost, and nothing else could go on in its place.
    #[error("{0}")]
    NotLeft(String),
    /// A device refused an op only while compiling, or all ops of a graph.
    #[error("{error}")]
    Refused {
        /// What a planner can avoid.
        refusals: Box<[Refusal]>,
        /// The device's error.
        error: DeviceError,
    },
    /// The model could not be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The plan does not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The KV cache refused.
    #[error(transparent)]
    Kv(#[from] KvError),
    /// A token id outside the vocabulary.
    #[error("token id {id} is outside the model's vocabulary of {vocab}")]
    Token {
        /// The id.
        id: u32,
        /// Vocabulary size.
        vocab: usize,
    },
    /// An empty input.
    #[error("the prompt is empty; give at least one token")]
    Empty,
    /// Logits were requested from a device that models time only.
    #[error(
        "device {0} computes nothing (its numerics are off): there are no logits to read; set \
         numerics = \"on\" in the file that describes it"
    )]
    NoNumerics(String),
    /// A sequence was fed while it still has tokens to compute.
    #[error("sequence {0} is fed again before it is through; join the tokens or wait")]
    Twice(SeqId),
    /// The engine was closed.
    #[error("the engine is closed; open the model again")]
    Ended,
    /// The plan cannot be applied to the model on these devices.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// Compiling was cancelled.
    #[error("compiling was cancelled when {done} of {all} steps were done")]
    CompileCancelled {
        /// Finished steps.
        done: usize,
        /// All steps: codes to make plus graphs whose weights to load.
        all: usize,
    },
    /// Compiling exceeded its time limit.
    #[error(
        "compiling takes longer than {limit:?}: the time was up at {segment} on device {device}, \
         with {done} of {all} steps done; allow more time or place it on another device"
    )]
    CompileTime {
        /// The device that was compiling.
        device: String,
        /// What it compiled.
        segment: String,
        /// The time limit.
        limit: std::time::Duration,
        /// Finished steps.
        done: usize,
        /// All steps: codes to make plus graphs whose weights to load.
        all: usize,
    },
    /// A scheduling fault.
    #[error(transparent)]
    Busy(#[from] AccessError),
    /// Tasks that no graph may have, or that all wait for each other: a sentence.
    #[error("{0}")]
    Tasks(String),
}
