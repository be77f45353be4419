//! A budget of tokens for a thought: when it is spent, the thought is closed.

use crate::open_model::InUse;
use troika::model::answer::{Format, ThoughtEnds};

/// How the thoughts of an answer are bounded.
#[derive(Clone)]
pub struct ThinkingBudget {
    host: InUse,
    ends: ThoughtEnds,
    /// The tokens that close a thought.
    closing: Vec<u32>,
    /// Tokens of thoughts that may still come.
    left: usize,
    thinks: bool,
    /// Whether no thought may begin any more.
    answers: bool,
    /// The end of the text since the start or the last marker.
    tail: Vec<u8>,
    /// The place in `closing` of the token that comes next, while it is written.
    at: Option<usize>,
    /// A bit for that token alone, 32 tokens to a word.
    only: Vec<u32>,
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
        let mut budget = ThinkingBudget {
            host: host.clone(),
            ends,
            closing,
            left,
            thinks: opened,
            answers: false,
            tail: Vec::new(),
            at: None,
            only: vec![0; host.model.spec().vocab.div_ceil(32)],
        };
        budget.begin_to_close();
        Some(budget)
    }

    /// The only token that may come now, a bit for each and 32 to a word; `None`: any may.
    pub fn allowed(&self) -> Option<&[u32]> {
        self.at.map(|_| self.only.as_slice())
    }

    /// A token was generated.
    pub fn accept(&mut self, token: u32) {
        if let Some(at) = self.at {
            self.at = Some(at + 1).filter(|at| *at < self.closing.len());
            self.thinks = self.at.is_some();
            return self.allow();
        }
        let bytes = self.host.model.tokenizer().and_then(|t| t.token_bytes(token));
        self.tail.extend(bytes.unwrap_or_default());
        let marker = if self.thinks { self.ends.close } else { self.ends.open }.as_bytes();
        if self.tail.windows(marker.len()).any(|seen| seen == marker) && !self.answers {
            self.thinks = !self.thinks;
            self.tail.clear();
        } else if self.thinks {
            self.left = self.left.saturating_sub(1);
        } else {
            let begins = marker.starts_with(self.tail.trim_ascii_start());
            self.answers |= !begins && !self.ends.anywhere;
        }
        let kept = self.tail.len().saturating_sub(self.ends.open.len().max(self.ends.close.len()));
        self.tail.drain(..kept);
        self.begin_to_close();
    }

    fn begin_to_close(&mut self) {
        if self.thinks && self.left == 0 && !self.closing.is_empty() {
            self.at = Some(0);
            self.allow();
        }
    }

    fn allow(&mut self) {
        self.only.fill(0);
        let Some(token) = self.at.and_then(|at| self.closing.get(at)) else { return };
        let token = *token as usize;
        if let Some(word) = self.only.get_mut(token / 32) {
            *word |= 1 << (token % 32);
        }
    }
}
