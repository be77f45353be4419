//! The parts of an answer: content, reasoning and calls of tools, found by the markers of the
//! model's own format; and grammars that force calls in it.

mod call;
mod convert;
mod deepseek;
mod format;
mod glm;
mod harmony;
mod hermes;
mod json;
mod lark;
mod list;
mod llama;
mod members;
mod mistral;
mod object;
mod output;
mod phi;
mod qwen_coder;
mod reader;
#[cfg(test)]
mod tests;
mod tool;

pub use format::{CallFormat, Format, ThoughtEnds, ThoughtMarkers};
pub use lark::SpecialToken;
pub use output::Delta;
pub use reader::{Reader, ReaderOptions};
pub use tool::ToolSpec;
