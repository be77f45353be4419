//! Tokens of sequences, kept where a model's numbers depend on how long a sequence will be.

use troika_model::spec::ModelSpec;

use crate::input::SequenceInput;
use crate::kv::SeqId;

/// With longrope, keys are rotated by other frequencies once a sequence is longer than the
/// original context. When a sequence grows past that length its cached keys are of the wrong kind:
/// it is computed again from its tokens, as the reference library does, so that a sequence's
/// numbers depend on its tokens alone and not on how they were fed.
#[derive(Debug)]
pub(crate) struct History {
    /// Lengths beyond which frequencies change.
    limits: Vec<usize>,
    tokens: Vec<Vec<u32>>,
}

impl History {
    pub fn new(spec: &ModelSpec) -> History {
        let ropes = spec.layers.iter().filter_map(|l| l.attn.rope.as_ref()?.long.as_ref());
        let mut limits: Vec<usize> = ropes.map(|long| long.1).collect();
        limits.sort_unstable();
        limits.dedup();
        History { limits, tokens: Vec::new() }
    }

    /// All tokens of an input's sequence, to be computed again, when the input takes it past a
    /// limit.
    pub fn recompute_tokens(&self, input: &SequenceInput<'_>, cached: usize) -> Option<Vec<u32>> {
        let end = cached + input.tokens.len();
        let crosses = cached > 0 && self.limits.iter().any(|&l| cached <= l && end > l);
        let old = self.tokens.get(input.seq.index()).filter(|_| crosses)?;
        Some(old.iter().chain(input.tokens).copied().collect())
    }

    /// Whether cutting a sequence leaves keys of the wrong kind.
    pub fn changes(&self, from: usize, to: usize) -> bool {
        self.limits.iter().any(|&l| from > l && to <= l)
    }

    pub fn append(&mut self, seq: SeqId, tokens: &[u32]) {
        if self.limits.is_empty() {
            return;
        }
        if self.tokens.len() <= seq.index() {
            self.tokens.resize(seq.index() + 1, Vec::new());
        }
        self.tokens[seq.index()].extend_from_slice(tokens);
    }

    pub fn truncate(&mut self, seq: SeqId, len: usize) {
        if let Some(tokens) = self.tokens.get_mut(seq.index()) {
            tokens.truncate(len);
        }
    }
}
