//! Runs a plan: sequences, KV cache, scheduler, sampling.
//!
//! The path of a token: [`Engine::step`] packs tokens of sequences into forward batches.
//! [`schedule`] turns each batch into tasks, one per piece of a segment, orders them by the views
//! they use and hands them to queues. The caller samples the logits with [`sample::Sampler`].

mod batching;
mod choose;
mod compile;
mod copies;
mod decide;
mod engine;
mod error;
mod examine;
mod feed;
mod handover;
mod input;
mod kv;
mod loads;
mod mailbox;
mod memory;
mod pieces;
mod pool;
mod program;
mod residency;
pub mod sample;
pub mod schedule;
mod sequence;
mod slot;
mod step;
mod tasks;

pub use compile::{CompileControl, OnCompiled};
pub use copies::{CopyCount, PhaseCopies, copies};
pub use engine::{Engine, EngineMemory, EngineParts, Sharing};
pub use error::{EngineError, GrowError};
pub use examine::examine;
pub use input::{Admission, Event, LogitsSink, Next, OnEvent, SequenceInput, WantedLogits};
pub use kv::{KvError, SeqId};
pub use loads::Decisions;
pub use mailbox::EngineHandle;
