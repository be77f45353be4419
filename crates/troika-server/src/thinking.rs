//! A budget of tokens for a thought: when it is spent, the thought is closed.

use std::sync::Arc;

use crate::open_model::InUse;
use troika::model::answer::{Format, ThoughtEnds};

/// How the thoughts of an answer are bounded.
#[derive(Clone)]
pub struct ThinkingBudget {
    host: InUse,
    ends: ThoughtEnds,
    /// The tokens that close a thought, each as a bit alone, 32 tokens to a word.
    closing: Arc<[Vec<u32>]>,
    /// Tokens of thoughts that may still come.
    left: usize,
    thinks: bool,
    /// Whether no thought may begin any more.
    answers: bool,
    /// The end of the text since the start or the last marker.
    tail: Vec<u8>,
    /// The place in `closing` of the token that comes next, while it is written.
    at: Option<usize>,
}

impl ThinkingBudget {
    /// A budget of `left` tokens. The prompt may have `opened` the thought. `None`: the model does
    /// not think, or cannot write what closes a thought. With `tools` calls may follow it.
    pub fn new(
        host: &InUse,
        format: &Format,
        tools: bool,
        opened: bool,
        left: usize,
    ) -> Option<ThinkingBudget> {
        let ends = format.thought_ends(tools)?;
        let closing = host.model.tokenizer()?.encode(&ends.closing, false, true).ok()?;
        let words = host.model.spec().vocab.div_ceil(32);
        let alone = |token: u32| {
            let mut bits = vec![0; words];
            if let Some(word) = bits.get_mut(token as usize / 32) {
                *word = 1 << (token % 32);
            }
            bits
        };
        let closing: Arc<[Vec<u32>]> = closing.into_iter().map(alone).collect();
        let at = (opened && left == 0 && !closing.is_empty()).then_some(0);
        let (host, answers, tail) = (host.clone(), false, Vec::new());
        Some(ThinkingBudget { host, ends, closing, left, thinks: opened, answers, tail, at })
    }

    /// The only token that may come now, a bit for each and 32 to a word; `None`: any may.
    pub fn allowed(&self) -> Option<&[u32]> {
        self.closing.get(self.at?).map(Vec::as_slice)
    }

    pub fn accept(&mut self, token: u32) {
        if let Some(at) = self.at {
            self.at = Some(at + 1).filter(|at| *at < self.closing.len());
            self.thinks = self.at.is_some();
            return;
        }
        if self.answers {
            return;
        }
        let bytes = self.host.model.tokenizer().and_then(|t| t.token_bytes(token));
        self.tail.extend(bytes.unwrap_or_default());
        let marker = if self.thinks { self.ends.close } else { self.ends.open }.as_bytes();
        if self.tail.windows(marker.len()).any(|seen| seen == marker) {
            self.thinks = !self.thinks;
            self.tail.clear();
        } else if self.thinks {
            self.left = self.left.saturating_sub(1);
        } else {
            let begins = marker.starts_with(self.tail.trim_ascii_start());
            self.answers = !begins && !self.ends.anywhere;
        }
        let kept = self.tail.len().saturating_sub(self.ends.open.len().max(self.ends.close.len()));
        self.tail.drain(..kept);
        self.at = (self.thinks && self.left == 0 && !self.closing.is_empty()).then_some(0);
    }
}
