//! What an engine is fed: tokens for sequences, and which of their logits are wanted.

use crate::error::EngineError;
use crate::kv::SeqId;

/// Which logits of an input are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WantedLogits {
    /// None: the tokens only fill the cache.
    None,
    /// Those after the last token.
    #[default]
    Last,
    /// Those after every token.
    All,
}

impl WantedLogits {
    /// The position from which on logits are wanted of tokens `from..to`.
    pub(crate) fn from(self, from: usize, to: usize) -> usize {
        match self {
            WantedLogits::None => usize::MAX,
            WantedLogits::Last => to - 1,
            WantedLogits::All => from,
        }
    }
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

/// A new sequence.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// Its tokens; none for a sequence that is fed later.
    pub tokens: Vec<u32>,
    /// Which of their logits are wanted.
    pub logits: WantedLogits,
    /// Sequences of higher priority are computed first; those of equal priority in the order in
    /// which they were admitted.
    pub priority: i32,
    /// Whether it may begin with the cached pages of other sequences that began alike, and leave
    /// its own to others.
    pub shares: bool,
}

/// What [`crate::Engine::step`] hands out.
#[derive(Debug)]
pub enum Event<'a> {
    /// A sequence begins: so many of its tokens were cached already.
    Begun {
        /// Which one.
        seq: SeqId,
        /// Tokens that are not computed.
        cached: usize,
    },
    /// Logits that were wanted, where they lie: whoever gets them may change them.
    Logits {
        /// Which sequence.
        seq: SeqId,
        /// The position of the token after which they are.
        position: usize,
        /// One for each token of the vocabulary.
        logits: &'a mut [f32],
        /// Whether they are the last that were wanted: the sequence waits for tokens now.
        last: bool,
    },
    /// All tokens are cached, and there are no logits to hand out: none were wanted, or devices
    /// only model time. The sequence waits for tokens now.
    Fed {
        /// Which one.
        seq: SeqId,
    },
    /// A sequence was cancelled. It consists of what was computed so far, and waits for tokens.
    Cancelled {
        /// Which one.
        seq: SeqId,
    },
    /// The tokens that a sequence was fed with last could not be computed. It is as it was before
    /// these, and waits for others.
    Failed {
        /// Which one.
        seq: SeqId,
        /// Why.
        error: EngineError,
    },
}

impl Event<'_> {
    /// The sequence it is about.
    pub fn seq(&self) -> SeqId {
        match self {
            Event::Begun { seq, .. }
            | Event::Logits { seq, .. }
            | Event::Fed { seq }
            | Event::Cancelled { seq }
            | Event::Failed { seq, .. } => *seq,
        }
    }
}

/// What a sequence does next, said by whoever got its last logits, or heard that it is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It waits until it is fed.
    Wait,
    /// It goes on with this token, and the logits after it are wanted.
    Append(u32),
}

/// Receives what a step hands out.
pub type OnEvent<'a> = &'a mut dyn FnMut(Event<'_>) -> Next;

/// Receives (index of the input, position, logits) in order.
pub type LogitsSink<'a> = &'a mut dyn FnMut(usize, usize, &[f32]);
