//! Runs a plan: sequences, KV cache, scheduler, sampling.
//!
//! The path of a token: [`Engine::step`] packs tokens of sequences into forward batches.
//! [`schedule`] turns each batch into tasks, one per piece of a segment, orders them by the views
//! they use and hands them to queues. The caller samples the logits with [`sample::Sampler`].

mod batching;
mod bind;
mod choose;
mod compile;
mod engine;
mod error;
mod examine;
mod experts;
mod feed;
mod input;
mod loss;
mod mailbox;
mod memory;
mod pool;
pub mod sample;
pub mod schedule;
mod sequence;
mod sequences;
mod slot;
mod step;

pub use compile::{CompileControl, OnCompiled};
pub use engine::{Engine, EngineMemory, EngineParts};
pub use error::EngineError;
pub use examine::examine;
pub use experts::{GroupStats, LastingWeights};
pub use input::{
    Admission, Event, LogitsSink, Next, OnEvent, PromptProgress, SequenceInput, WantedLogits,
};
pub use loss::Elsewhere;
pub use mailbox::EngineHandle;
pub use sequences::Sharing;
pub use troika_program::kv::{GroupLayout, KvError, KvLayout, PageCount, SeqId, largest};
