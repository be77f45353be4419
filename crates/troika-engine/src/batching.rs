//! Forward batches: rows of one or several sequences that are computed at once.

use std::ops::Range;
use std::sync::Arc;

use troika_device::{ForwardBatch, SeqRows};
use troika_plan::Phase;

use crate::error::EngineError;
use crate::input::WantedLogits;
use troika_program::kv::{KvCache, SeqId};

/// A forward batch with the tokens and wanted rows behind it. It keeps its memory from one use to
/// the next.
#[derive(Debug, Default)]
pub(crate) struct PlannedBatch {
    /// The phase whose placement all rows use: decode if every sequence adds a single token.
    pub phase: Phase,
    pub forward: Arc<ForwardBatch>,
    /// A second one for the next use: devices and graphs may still hold the last.
    spare: Arc<ForwardBatch>,
    pub ids: Vec<i32>,
    pub positions: Vec<i32>,
    /// Runs of rows whose logits are wanted, with the sequence they belong to.
    pub wanted: Vec<(SeqId, Range<usize>)>,
    /// Likewise runs of rows whose states behind the last layer are wanted.
    pub states: Vec<(SeqId, Range<usize>)>,
    /// How many of the largest logits of these rows are handed out, if not all are.
    pub top_k: Option<usize>,
    /// Sequence entries kept for reuse, with their page tables.
    unused: Vec<SeqRows>,
}

/// The tokens of a sequence to compute next.
pub(crate) struct NewRows<'a> {
    pub seq: SeqId,
    pub tokens: &'a [u32],
    /// Their positions in the sequence.
    pub positions: Range<usize>,
    /// Number of tokens the sequence has, cached or not.
    pub known_len: usize,
    /// The first position whose logits are wanted.
    pub logits_from: usize,
    /// What is wanted from there on.
    pub wanted: WantedLogits,
    pub phase: Phase,
}

impl PlannedBatch {
    /// Removes all rows.
    pub fn clear(&mut self) {
        std::mem::swap(&mut self.forward, &mut self.spare);
        match Arc::get_mut(&mut self.forward) {
            Some(forward) => self.unused.append(&mut forward.seqs),
            // A graph of another shape still holds it.
            None => self.forward = Arc::default(),
        }
        self.phase = Phase::Decode;
        self.ids.clear();
        self.positions.clear();
        self.wanted.clear();
        self.states.clear();
        self.top_k = None;
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Rows of the output that are wanted; a state has room in `of_state` of them.
    pub fn wanted_rows(&self, of_state: usize) -> usize {
        let rows =
            |runs: &[(SeqId, Range<usize>)]| -> usize { runs.iter().map(|r| r.1.len()).sum() };
        rows(&self.wanted) + rows(&self.states) * of_state
    }

    /// Appends rows and reserves their places in the cache.
    ///
    /// # Errors
    /// The cache's error; nothing is appended then.
    pub fn push(&mut self, rows: &NewRows<'_>, kv: &mut KvCache) -> Result<(), EngineError> {
        let (first, count) = (self.ids.len(), rows.positions.len());
        let mut seq = self.unused.pop().unwrap_or_default();
        if let Err(e) = kv.extend(rows.seq, count, &mut seq.tables) {
            self.unused.push(seq);
            return Err(e.into());
        }
        (seq.seq, seq.rows) = (rows.seq.number(), first..first + count);
        (seq.pos, seq.known_len) = (rows.positions.start, rows.known_len);
        // Nobody else holds it: `clear` made sure of that.
        Arc::make_mut(&mut self.forward).seqs.push(seq);
        if rows.phase == Phase::Prefill {
            self.phase = Phase::Prefill;
        }
        self.ids.extend(rows.tokens.iter().map(|&t| t as i32));
        self.positions.extend(rows.positions.clone().map(|p| p as i32));
        let from = rows.logits_from.max(rows.positions.start);
        if from < rows.positions.end {
            let run = (rows.seq, first + (from - rows.positions.start)..first + count);
            if rows.wanted == WantedLogits::States {
                self.states.push(run);
                return Ok(());
            }
            // All rows of a batch get the same number.
            let top_k = rows.wanted.top_k();
            self.top_k = match self.wanted.is_empty() {
                true => top_k,
                false => self.top_k.zip(top_k).map(|(a, b)| a.max(b)),
            };
            self.wanted.push(run);
        }
        Ok(())
    }
}
