//! Tokenizers, from `tokenizer.json` or GGUF metadata, and streaming back to text.

mod charsmap;
mod check;
mod encode;
mod error;
mod fim;
mod fim_tokens;
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
pub use fim::{FilePart, Infill};
pub use fim_tokens::FimTokens;
pub use stream::{Detokenizer, StopMatcher};
