//! A sequence in the engine: its tokens, and how far they are computed.

use std::ops::Range;

use troika_model::spec::ModelSpec;
use troika_plan::Phase;

use crate::input::{Admission, WantedLogits};

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has nothing to compute, and waits for tokens.
    Idle,
    /// It has tokens to compute, and waits for pages or its turn: nothing of it is in flight.
    Waiting,
    /// It has tokens to compute, and pages.
    Running,
}

#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// All its tokens, computed or not.
    pub tokens: Vec<u32>,
    /// How many there were before it was fed last.
    pub fed_from: usize,
    /// From which position on logits are still to be handed out.
    pub logits_from: usize,
    /// Runs of positions that were decoded, where decoding is placed otherwise than prefill.
    pub decoded: Vec<Range<usize>>,
    pub priority: i32,
    /// Its place among sequences of its priority.
    pub order: u64,
    pub shares: bool,
    pub stage: Stage,
    /// The positions that are in flight.
    pub in_flight: Option<Range<usize>>,
    pub cancelled: bool,
    pub closed: bool,
    /// It failed together with others, and runs alone, to see whether it was the reason.
    pub alone: bool,
    /// Its last turn, where sequences have turns.
    pub turn: u64,
    /// Until so many of its tokens are computed it is computed a batch at a time, which nobody's
    /// cancellation ends.
    pub steady_until: usize,
    /// Which rotation its cached keys have ([`LongRope::regime`]).
    pub regime: usize,
    /// Whether it was said that it begins.
    pub begun: bool,
}

impl Sequence {
    pub fn new(admission: &Admission, order: u64) -> Sequence {
        Sequence {
            tokens: Vec::new(),
            fed_from: 0,
            logits_from: usize::MAX,
            decoded: Vec::new(),
            priority: admission.priority,
            order,
            shares: admission.shares,
            stage: Stage::Idle,
            in_flight: None,
            cancelled: false,
            closed: false,
            alone: false,
            turn: 0,
            steady_until: 0,
            regime: 0,
            begun: false,
        }
    }

    /// Appends tokens. A single one behind others is decoded.
    pub fn feed(&mut self, tokens: &[u32], logits: WantedLogits, notes_decoding: bool) {
        let from = self.tokens.len();
        if notes_decoding && tokens.len() == 1 && from > 0 {
            match self.decoded.last_mut() {
                Some(last) if last.end == from => last.end += 1,
                _ => self.decoded.push(from..from + 1),
            }
        }
        self.tokens.extend_from_slice(tokens);
        (self.fed_from, self.steady_until) = (from, 0);
        self.logits_from = logits.from(from, self.tokens.len());
        self.stage = Stage::Waiting;
        self.begun = from > 0;
    }

    /// Forgets tokens from `len` on, and what is to be computed.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.decoded.retain_mut(|run| {
            run.end = run.end.min(len);
            run.start < run.end
        });
        self.logits_from = usize::MAX;
        self.stage = Stage::Idle;
        (self.alone, self.steady_until) = (false, 0);
    }

    /// How the token at a position is computed, and up to where others are alike.
    pub fn phase(&self, position: usize, one_placement: bool) -> (Phase, usize) {
        if one_placement {
            // Where it makes no difference, it only says what a batch is: a token or a prompt.
            let single = position > 0 && position + 1 == self.tokens.len();
            return (if single { Phase::Decode } else { Phase::Prefill }, self.tokens.len());
        }
        for run in &self.decoded {
            if position < run.start {
                return (Phase::Prefill, run.start);
            }
            if position < run.end {
                return (Phase::Decode, run.end);
            }
        }
        (Phase::Prefill, self.tokens.len())
    }

    /// Its place among all sequences: smaller ones come first.
    pub fn rank(&self) -> (i64, u64) {
        (-i64::from(self.priority), self.order)
    }
}

/// With longrope, keys are rotated by other frequencies once a sequence is longer than the original
/// context. When a sequence grows past that length its cached keys are of the wrong kind: it is
/// computed again from its tokens, as the reference library does, so that a sequence's numbers
/// depend on its tokens alone and not on how they were fed.
#[derive(Debug)]
pub(crate) struct LongRope {
    /// Lengths beyond which frequencies change, ascending.
    limits: Vec<usize>,
}

impl LongRope {
    pub fn new(spec: &ModelSpec) -> LongRope {
        let ropes = spec.layers.iter().filter_map(|l| l.attn.rope.as_ref()?.long.as_ref());
        let mut limits: Vec<usize> = ropes.map(|long| long.1).collect();
        limits.sort_unstable();
        limits.dedup();
        LongRope { limits }
    }

    /// Which frequencies a sequence of so many tokens has.
    pub fn regime(&self, len: usize) -> usize {
        self.limits.iter().filter(|limit| len > **limit).count()
    }
}
