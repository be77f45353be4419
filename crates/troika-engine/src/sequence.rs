//! A sequence in the engine: its tokens, and which of them are computed.

use std::ops::Range;

use troika_model::spec::ModelSpec;
use troika_plan::Phase;

use crate::input::{Admission, WantedLogits};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It has nothing to compute and waits for tokens.
    #[default]
    Idle,
    /// It has tokens to compute and waits for pages or its turn: nothing of it is in flight.
    Waiting,
    /// It has tokens to compute, and pages.
    Running,
    /// All is computed, and the receiver has not said yet what it does next.
    Choosing,
}

/// The smallest comes first: the highest priority, then the order of admission.
pub(crate) type Rank = (i64, u64);

#[derive(Clone, Debug, Default)]
pub(crate) struct Sequence {
    /// All its tokens, computed or not.
    pub tokens: Vec<u32>,
    /// How many tokens it had before it was last fed.
    pub fed_from: usize,
    /// The phase of what it was last fed.
    pub phase: Phase,
    /// The first position whose logits are still to be handed out.
    pub logits_from: usize,
    /// What was wanted when it was last fed.
    pub wanted: WantedLogits,
    /// Ranges of positions that were decoded, where decode and prefill are placed differently.
    pub decoded: Vec<Range<usize>>,
    pub priority: i32,
    /// Whose it is.
    pub client: u64,
    /// The turn in which it last got rows as a prompt.
    pub served: u64,
    /// Its place among sequences of equal priority.
    pub order: u64,
    pub shares: bool,
    pub stage: Stage,
    /// The positions in flight.
    pub in_flight: Option<Range<usize>>,
    pub cancelled: bool,
    pub closed: bool,
    /// It failed together with others. It is tried alone to see whether it was the cause.
    pub alone: bool,
    /// The number of its last turn, where sequences take turns.
    pub turn: u64,
    /// Until this many of its tokens are computed, it is computed one batch at a time, so that no
    /// other sequence's cancellation stops it.
    pub steady_until: usize,
    /// Which RoPE frequencies its cached keys use ([`LongRope::regime`]).
    pub regime: usize,
    /// Whether [`Event::Begun`](crate::Event::Begun) was handed out.
    pub begun: bool,
}

impl Sequence {
    pub fn new(admission: &Admission, order: u64) -> Sequence {
        Sequence {
            logits_from: usize::MAX,
            wanted: WantedLogits::None,
            priority: admission.priority,
            client: admission.client,
            order,
            shares: admission.shares,
            ..Sequence::default()
        }
    }

    /// Appends tokens.
    pub fn feed(
        &mut self,
        tokens: &[u32],
        logits: WantedLogits,
        phase: Phase,
        notes_decoding: bool,
    ) {
        let (from, to) = (self.tokens.len(), self.tokens.len() + tokens.len());
        if notes_decoding && phase == Phase::Decode {
            match self.decoded.last_mut() {
                Some(last) if last.end == from => last.end = to,
                _ => self.decoded.push(from..to),
            }
        }
        self.tokens.extend_from_slice(tokens);
        (self.fed_from, self.phase, self.steady_until) = (from, phase, 0);
        self.logits_from = logits.from(from, to);
        self.wanted = logits;
        self.stage = Stage::Waiting;
        self.begun = from > 0;
    }

    /// Removes tokens from `len` on, and the wish for logits.
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

    /// The phase of a position, and up to where the following positions have the same one.
    pub fn phase(&self, position: usize, one_placement: bool) -> (Phase, usize) {
        if one_placement {
            // What was computed before counts as a prompt if it is computed again.
            let again = position < self.fed_from;
            return (if again { Phase::Prefill } else { self.phase }, self.tokens.len());
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

    /// Whether it has a place among those that are computed at once.
    pub fn has_place(&self) -> bool {
        matches!(self.stage, Stage::Running | Stage::Choosing)
    }

    /// Its rank among all sequences.
    pub fn rank(&self) -> Rank {
        (-i64::from(self.priority), self.order)
    }
}

/// With longrope, keys use other frequencies once a sequence exceeds the original context. When a
/// sequence grows past that length, its cached keys are wrong, and it is computed again from its
/// tokens, as the reference library does. So its numbers depend on its tokens alone, not on how
/// they were fed.
#[derive(Debug)]
pub(crate) struct LongRope {
    /// Lengths beyond which frequencies change, ascending.
    limits: Vec<usize>,
}

impl LongRope {
    pub fn new(spec: &ModelSpec) -> LongRope {
        let ropes = spec.layers.iter().filter_map(|l| l.attention()?.rope.as_ref()?.long.as_ref());
        let mut limits: Vec<usize> = ropes.map(|long| long.1).collect();
        limits.sort_unstable();
        limits.dedup();
        LongRope { limits }
    }

    /// Which frequencies a sequence of this length uses.
    pub fn regime(&self, len: usize) -> usize {
        self.limits.iter().filter(|limit| len > **limit).count()
    }
}
