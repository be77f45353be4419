//! Runs a plan: sequences, KV cache, scheduler, sampling.
//!
//! The way of a token: [`Engine::run`] cuts the fed tokens into forward batches, [`schedule`] turns
//! each forward batch into tasks (one per segment), orders them by the buffers they touch and hands
//! them to device queues; the logits come back to the caller, who samples with [`sample::Sampler`].

mod batching;
mod engine;
mod error;
mod history;
mod kv;
mod pool;
mod program;
pub mod sample;
pub mod schedule;

pub use engine::{Engine, EngineMemory, EngineParts, LogitsSink, SequenceInput, WantedLogits};
pub use error::EngineError;
pub use kv::{KvError, SeqId};
