//! The sequence that stays cached between requests.

use troika_engine::{Engine, EngineError, SeqId, SequenceInput, WantedLogits};

/// A sequence of the engine and the tokens in its cache, so that a longer prompt with the same
/// start is not computed again.
#[derive(Debug, Default)]
pub(crate) struct CachedSequence {
    seq: Option<SeqId>,
    tokens: Vec<u32>,
}

impl CachedSequence {
    /// Tokens in the cache.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Cuts the sequence back to what it shares with a prompt and returns how many tokens that is.
    /// At least one token of the prompt is left to compute, for its logits.
    pub fn keep_shared(&mut self, engine: &mut Engine, prompt: &[u32]) -> usize {
        let seq = self.id(engine);
        let shared = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let kept = engine.truncate(seq, shared.min(prompt.len().saturating_sub(1)));
        self.tokens.truncate(kept);
        kept
    }

    /// Appends tokens and keeps the logits after the last one, where they are wanted.
    ///
    /// # Errors
    /// As [`Engine::run`]; tokens that were cached before may be gone then.
    pub fn feed(
        &mut self,
        engine: &mut Engine,
        tokens: &[u32],
        logits: Option<&mut Vec<f32>>,
    ) -> Result<(), EngineError> {
        let seq = self.id(engine);
        let input = [SequenceInput { seq, tokens, logits: WantedLogits::Last }];
        let result = match logits {
            Some(logits) => engine.run(&input, &mut |_, _, row| {
                logits.clear();
                logits.extend_from_slice(row);
            }),
            None => engine.run_unread(&input),
        };
        match result {
            Ok(()) => self.tokens.extend_from_slice(tokens),
            Err(_) => self.tokens.truncate(engine.len(seq)),
        }
        result
    }

    /// Closes the sequence and forgets its tokens.
    pub fn close(&mut self, engine: &mut Engine) {
        if let Some(seq) = self.seq.take() {
            engine.close(seq);
        }
        self.tokens.clear();
    }

    /// The engine's name of it; it is opened when it is first needed.
    fn id(&mut self, engine: &mut Engine) -> SeqId {
        *self.seq.get_or_insert_with(|| engine.open())
    }
}
