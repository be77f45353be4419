//! The parts of an answer: content, reasoning and calls of tools, found by the markers of the
//! model's own format; and grammars that force calls in it.

mod bare;
mod call;
mod convert;
mod format;
mod forms;
mod harmony;
mod json;
mod lark;
mod literals;
mod llama;
mod mistral;
mod named;
mod objects;
mod output;
mod reader;
mod tags;
#[cfg(test)]
mod tests;
mod thoughts;
mod tool;

pub use format::Format;
pub use forms::CallFormat;
pub use lark::SpecialToken;
pub use output::Delta;
pub use reader::{Reader, ReaderOptions};
pub use thoughts::{ThoughtEnds, ThoughtMarkers};
pub use tool::ToolSpec;
