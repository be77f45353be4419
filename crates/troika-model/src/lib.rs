//! Models as data: spec, families, weights, tokenizer, chat template, lowering.

pub mod answer;
pub mod chat;
pub mod families;
pub mod files;
pub mod lower;
mod named;
pub mod presets;
pub mod spec;
pub mod tokenizer;
