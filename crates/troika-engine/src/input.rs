//! What an engine is fed: tokens for sequences, and which of their logits are wanted.

use crate::kv::SeqId;

/// Which logits of an input are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WantedLogits {
    /// None: the tokens only fill the cache.
    None,
    /// Those after the last token.
    Last,
    /// Those after every token.
    All,
}

/// Tokens to append to a sequence.
#[derive(Clone, Copy, Debug)]
pub struct SequenceInput<'a> {
    /// Which sequence.
    pub seq: SeqId,
    /// The tokens.
    pub tokens: &'a [u32],
    /// Which logits are wanted.
    pub logits: WantedLogits,
}
