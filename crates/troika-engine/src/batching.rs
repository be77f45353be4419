//! Cutting fed tokens into forward batches.

use std::ops::Range;
use std::sync::Arc;

use troika_device::{ForwardBatch, SeqRows};
use troika_plan::Phase;

use crate::error::EngineError;
use crate::input::{SequenceInput, WantedLogits};
use crate::kv::KvCache;

/// A forward batch with the tokens and wanted rows behind it.
#[derive(Debug)]
pub(crate) struct PlannedBatch {
    /// Decode if every sequence of it goes on by one token.
    pub phase: Phase,
    pub forward: Arc<ForwardBatch>,
    pub ids: Vec<i32>,
    pub positions: Vec<i32>,
    /// Runs of rows whose logits are wanted, with the input they belong to.
    pub wanted: Vec<(usize, Range<usize>)>,
}

impl PlannedBatch {
    /// Rows whose logits are wanted.
    pub fn wanted_rows(&self) -> usize {
        self.wanted.iter().map(|(_, r)| r.len()).sum()
    }
}

/// Packs the inputs into forward batches of at most `chunk` rows, in order, and reserves their KV
/// pages.
pub(crate) fn plan_batches(
    inputs: &[SequenceInput<'_>],
    chunk: usize,
    kv: &mut KvCache,
) -> Result<Vec<PlannedBatch>, EngineError> {
    // Asked before chunks are cut: the rest of a prompt is prefill, however short it is.
    let decodes = |f: &SequenceInput<'_>| f.tokens.len() == 1 && kv.len(f.seq) > 0;
    let phases: Vec<Phase> =
        inputs.iter().map(|f| if decodes(f) { Phase::Decode } else { Phase::Prefill }).collect();
    let known: Vec<usize> = inputs.iter().map(|f| kv.len(f.seq) + f.tokens.len()).collect();
    let mut batches = Vec::new();
    let mut parts: Vec<(usize, Range<usize>)> = Vec::new();
    let mut rows = 0;
    for (i, input) in inputs.iter().enumerate() {
        let mut start = 0;
        while start < input.tokens.len() {
            let n = (input.tokens.len() - start).min(chunk - rows);
            parts.push((i, start..start + n));
            start += n;
            rows += n;
            if rows == chunk {
                batches.push(make_batch(
                    inputs,
                    (&known, &phases),
                    &std::mem::take(&mut parts),
                    kv,
                )?);
                rows = 0;
            }
        }
    }
    if !parts.is_empty() {
        batches.push(make_batch(inputs, (&known, &phases), &parts, kv)?);
    }
    Ok(batches)
}

fn make_batch(
    inputs: &[SequenceInput<'_>],
    (known, phases): (&[usize], &[Phase]),
    parts: &[(usize, Range<usize>)],
    kv: &mut KvCache,
) -> Result<PlannedBatch, EngineError> {
    let mut forward = ForwardBatch::default();
    let (mut ids, mut positions, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for (i, range) in parts {
        let input = &inputs[*i];
        let pos = kv.len(input.seq);
        let tables = kv.extend(input.seq, range.len())?;
        let rows = ids.len()..ids.len() + range.len();
        ids.extend(input.tokens[range.clone()].iter().map(|&t| t as i32));
        positions.extend((pos..pos + range.len()).map(|p| p as i32));
        let want = match input.logits {
            WantedLogits::None => None,
            WantedLogits::All => Some(rows.clone()),
            WantedLogits::Last => (range.end == input.tokens.len()).then(|| rows.end - 1..rows.end),
        };
        wanted.extend(want.map(|w| (*i, w)));
        let seq = input.seq.index() as u64;
        forward.seqs.push(SeqRows { seq, rows, pos, known_len: known[*i], tables });
    }
    let decode = parts.iter().all(|(i, _)| phases[*i] == Phase::Decode);
    let phase = if decode { Phase::Decode } else { Phase::Prefill };
    Ok(PlannedBatch { phase, forward: Arc::new(forward), ids, positions, wanted })
}
