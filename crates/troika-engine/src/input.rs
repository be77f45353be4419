//! The input of an engine: tokens for sequences, and which of their logits are wanted.

use troika_plan::Phase;

use crate::error::EngineError;
use troika_program::kv::SeqId;

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
    /// In place of logits, the states behind the last layer after every token, before the final norm.
    States,
    /// So many of the largest ones after the last token, where its device picks them; else all of
    /// these.
    TopK(usize),
}

impl WantedLogits {
    /// The first position of tokens `from..to` whose logits are wanted.
    pub(crate) fn from(self, from: usize, to: usize) -> usize {
        match self {
            WantedLogits::None => usize::MAX,
            WantedLogits::Last | WantedLogits::TopK(_) => to - 1,
            WantedLogits::All | WantedLogits::States => from,
        }
    }

    /// How many of the largest logits are wanted, if not all are.
    pub(crate) fn top_k(self) -> Option<usize> {
        if let WantedLogits::TopK(count) = self { Some(count) } else { None }
    }

    /// The same, but whole rows.
    pub fn whole(self) -> WantedLogits {
        match self {
            WantedLogits::TopK(_) => WantedLogits::Last,
            other => other,
        }
    }
}

/// Tokens to append to a sequence.
#[derive(Clone, Copy, Debug)]
pub struct SequenceInput<'a> {
    /// The sequence to feed.
    pub seq: SeqId,
    /// The tokens; at least one.
    pub tokens: &'a [u32],
    /// Which logits are wanted.
    pub logits: WantedLogits,
    /// Whose placement and turn they get, however many they are.
    pub phase: Phase,
}

impl<'a> SequenceInput<'a> {
    /// Tokens of a prompt.
    pub fn prompt(seq: SeqId, tokens: &'a [u32], logits: WantedLogits) -> SequenceInput<'a> {
        SequenceInput { seq, tokens, logits, phase: Phase::Prefill }
    }

    /// A generated token; or several that were guessed, to be checked by the logits of all, of which
    /// the first ones are kept ([`Next::Keep`]).
    pub fn decode(seq: SeqId, tokens: &'a [u32], logits: WantedLogits) -> SequenceInput<'a> {
        SequenceInput { seq, tokens, logits, phase: Phase::Decode }
    }
}

/// A new sequence.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// Its tokens; empty for a sequence that is fed later.
    pub tokens: Vec<u32>,
    /// Which of their logits are wanted.
    pub logits: WantedLogits,
    /// Sequences of higher priority are computed first; prompts of equal ones take turns.
    pub priority: i32,
    /// Whose it is: prompts take turns by client. Of a client's, the oldest one and the one with the
    /// least left to compute take turns.
    pub client: u64,
    /// Whether it may start from cached pages of sequences with the same beginning, and leave its
    /// own pages to others.
    pub shares: bool,
}

/// How far a prompt is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptProgress {
    /// Its tokens.
    pub total: usize,
    /// The part of them that was cached.
    pub cached: usize,
    /// Those that are in the cache now.
    pub done: usize,
}

/// What [`crate::Engine::step`] reports.
#[derive(Debug)]
pub enum Event<'a> {
    /// A sequence begins. This many of its tokens were cached already.
    Begun {
        /// The sequence.
        seq: SeqId,
        /// Tokens that need not be computed.
        cached: usize,
    },
    /// Logits that were wanted, in the engine's own memory: the receiver may change them.
    Logits {
        /// The sequence.
        seq: SeqId,
        /// The position of the token that these logits follow.
        position: usize,
        /// One for each token of the vocabulary, or the numbers of a state ([`WantedLogits::States`]).
        logits: &'a mut [f32],
        /// Whether they are the last ones wanted: the sequence waits for tokens now.
        last: bool,
    },
    /// The largest logits after the last token, where only these were wanted
    /// ([`WantedLogits::TopK`]) and its device picked them. The sequence waits for tokens now.
    TopK {
        /// The sequence.
        seq: SeqId,
        /// The position of the token that these logits follow.
        position: usize,
        /// Tokens with their logits, the largest first, equal ones by token.
        top_k: &'a [(u32, f32)],
    },
    /// All tokens are cached, and there are no logits to report: none were wanted, or devices model
    /// time only. The sequence waits for tokens now.
    Fed {
        /// The sequence.
        seq: SeqId,
    },
    /// A sequence was cancelled. It keeps what was computed so far, and waits for tokens.
    Cancelled {
        /// The sequence.
        seq: SeqId,
    },
    /// The tokens that a sequence was fed last could not be computed. It is as it was before them,
    /// and waits for tokens.
    Failed {
        /// The sequence.
        seq: SeqId,
        /// Why.
        error: EngineError,
    },
}

impl Event<'_> {
    /// The sequence that it concerns.
    pub fn seq(&self) -> SeqId {
        match self {
            Event::Begun { seq, .. }
            | Event::Logits { seq, .. }
            | Event::TopK { seq, .. }
            | Event::Fed { seq }
            | Event::Cancelled { seq }
            | Event::Failed { seq, .. } => *seq,
        }
    }
}

/// What a sequence does next, said by the receiver of its last logits or of [`Event::Fed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait until it is fed.
    Wait,
    /// Continue with this token; the logits after it are wanted as those after the last ones were.
    Append(u32),
    /// Of the tokens that it was fed last, only the first so many stay, in the cache, too. Continue
    /// with the token `then`, or wait.
    Keep {
        /// How many stay; a larger number than it was fed: all.
        accepted: usize,
        /// The token.
        then: Option<u32>,
    },
    /// It is said later, from any thread ([`crate::EngineHandle::go_on`]). The sequence keeps its
    /// place and its pages; others go on meanwhile.
    Later,
}

/// Receives the events of a step.
pub type OnEvent<'a> = &'a mut dyn FnMut(Event<'_>) -> Next;

/// Receives (index of the input, position, logits) in order.
pub type LogitsSink<'a> = &'a mut dyn FnMut(usize, usize, &[f32]);
