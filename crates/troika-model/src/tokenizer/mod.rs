//! Tokenizers, from `tokenizer.json` or GGUF metadata, and streaming back to text.

mod charsmap;
mod check;
mod encode;
mod error;
mod fim;
mod gguf;
mod guard;
mod json;
mod marked;
mod pre;
mod shared;
mod spelling;
mod stream;
mod vocab;

pub use encode::Tokenizer;
pub use error::TokenizerError;
pub use fim::{FilePart, FimTokens, Infill};
pub use stream::{Detokenizer, StopMatcher};
