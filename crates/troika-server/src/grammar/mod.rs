//! Structured output: which tokens may come next, so that an answer is JSON of a schema, matches a
//! regular expression or a grammar, or is one of some texts.

mod constrain;
mod error;
mod kept;
mod mask;
mod measure;
mod pool;
mod schema;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use constrain::Constrain;
pub use kept::KeptGrammars;
pub use mask::{Grammar, Mask};
pub use schema::HeldSchema;
pub use vocabulary::Vocabulary;
