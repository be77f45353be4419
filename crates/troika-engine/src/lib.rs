//! Runs a plan: sequences, KV cache, scheduler, sampling.
//!
//! The way of a token: [`Engine::run`] cuts the fed tokens into forward batches, [`schedule`] turns
//! each forward batch into tasks (one per piece of a segment), orders them by the views they touch
//! and hands them to device queues; the logits come back to the caller, who samples with [`sample::Sampler`].

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
