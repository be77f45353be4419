//! Cutting fed tokens into steps.

use std::ops::Range;
use std::sync::Arc;

use troika_device::{SeqRows, Step};
use troika_plan::Phase;

use crate::engine::{Feed, Want};
use crate::error::EngineError;
use crate::kv::KvCache;

/// A step with the tokens and wanted rows behind it.
#[derive(Debug)]
pub(crate) struct PlannedStep {
    /// Decode if every sequence of it goes on by one token.
    pub phase: Phase,
    pub step: Arc<Step>,
    pub ids: Vec<i32>,
    pub positions: Vec<i32>,
    /// Runs of rows whose logits are wanted, with the feed they belong to.
    pub wanted: Vec<(usize, Range<usize>)>,
}

impl PlannedStep {
    /// Rows whose logits are wanted.
    pub fn wanted_rows(&self) -> usize {
        self.wanted.iter().map(|(_, r)| r.len()).sum()
    }
}

/// Packs the feeds into steps of at most `chunk` rows, in order, and reserves their KV pages.
pub(crate) fn plan_steps(
    feeds: &[Feed<'_>],
    chunk: usize,
    kv: &mut KvCache,
) -> Result<Vec<PlannedStep>, EngineError> {
    // Asked before chunks are cut: the rest of a prompt is prefill, however short it is.
    let decodes = |f: &Feed<'_>| f.tokens.len() == 1 && kv.len(f.seq) > 0;
    let phases: Vec<Phase> =
        feeds.iter().map(|f| if decodes(f) { Phase::Decode } else { Phase::Prefill }).collect();
    let known: Vec<usize> = feeds.iter().map(|f| kv.len(f.seq) + f.tokens.len()).collect();
    let mut steps = Vec::new();
    let mut parts: Vec<(usize, Range<usize>)> = Vec::new();
    let mut rows = 0;
    for (i, feed) in feeds.iter().enumerate() {
        let mut start = 0;
        while start < feed.tokens.len() {
            let n = (feed.tokens.len() - start).min(chunk - rows);
            parts.push((i, start..start + n));
            start += n;
            rows += n;
            if rows == chunk {
                steps.push(make_step(feeds, (&known, &phases), &std::mem::take(&mut parts), kv)?);
                rows = 0;
            }
        }
    }
    if !parts.is_empty() {
        steps.push(make_step(feeds, (&known, &phases), &parts, kv)?);
    }
    Ok(steps)
}

fn make_step(
    feeds: &[Feed<'_>],
    (known, phases): (&[usize], &[Phase]),
    parts: &[(usize, Range<usize>)],
    kv: &mut KvCache,
) -> Result<PlannedStep, EngineError> {
    let mut step = Step::default();
    let (mut ids, mut positions, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
    for (i, range) in parts {
        let feed = &feeds[*i];
        let pos = kv.len(feed.seq);
        let tables = kv.extend(feed.seq, range.len())?;
        let rows = ids.len()..ids.len() + range.len();
        ids.extend(feed.tokens[range.clone()].iter().map(|&t| t as i32));
        positions.extend((pos..pos + range.len()).map(|p| p as i32));
        let want = match feed.want {
            Want::None => None,
            Want::All => Some(rows.clone()),
            Want::Last => (range.end == feed.tokens.len()).then(|| rows.end - 1..rows.end),
        };
        wanted.extend(want.map(|w| (*i, w)));
        let seq = feed.seq.index() as u64;
        step.seqs.push(SeqRows { seq, rows, pos, known_len: known[*i], tables });
    }
    let decode = parts.iter().all(|(i, _)| phases[*i] == Phase::Decode);
    let phase = if decode { Phase::Decode } else { Phase::Prefill };
    Ok(PlannedStep { phase, step: Arc::new(step), ids, positions, wanted })
}
