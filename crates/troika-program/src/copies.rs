//! Counts what a plan copies between memory spaces, by the tasks that would run.

use std::sync::Arc;

use troika_device::SpaceId;
use troika_model::lower::{WeightShapes, lower};
use troika_model::spec::ModelSpec;
use troika_plan::{Phase, Plan, PlanDevice, own_space};

use crate::error::ProgramError;
use crate::handover::Handover;
use crate::kv::{KvCache, KvLayout, SeqId};
use crate::program::Program;
use crate::slots::Slots;
use crate::tasks::{BatchShape, NamedTask, NamedWork};

/// Copies from one memory to another, or within one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyCount {
    /// The device whose memory is read; `None`: host memory.
    pub from: Option<String>,
    /// The device whose memory is written; `None`: host memory.
    pub to: Option<String>,
    /// Number of copies.
    pub count: usize,
    /// Bytes of all copies together.
    pub bytes: u64,
}

/// The copies of one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseCopies {
    /// The phase.
    pub phase: Phase,
    /// Tokens computed at once.
    pub tokens: usize,
    /// Positions that are cached already.
    pub cached: usize,
    /// Copies of the caches, once before these tokens.
    pub handover: Vec<CopyCount>,
    /// Copies of values, in each such run.
    pub values: Vec<CopyCount>,
}

/// Counts what a plan copies for a chunk of a prompt and for a decoded token.
///
/// # Errors
/// Why the plan cannot run: the spec cannot be lowered, or a split leaves a device nothing.
pub fn copies(
    spec: &ModelSpec,
    shapes: WeightShapes<'_>,
    plan: &Plan,
    devices: &[PlanDevice],
) -> Result<Vec<PhaseCopies>, ProgramError> {
    let lowered = lower(spec, shapes, plan.lower_options())?;
    let mut kv = KvCache::new(KvLayout::new(&lowered, plan, 1, None))?;
    let program = Program::new(Arc::new(lowered), plan, devices)?;
    let slots = Slots::new(&program, plan.prefill.chunk + program.padding);
    let chunk = plan.prefill.chunk.min(plan.context.saturating_sub(1)).max(1);
    let mut handover = Handover::default();
    let (seq, mut phases) = (SeqId::next(), Vec::new());
    kv.open(seq);
    for (phase, tokens, cached) in [(Phase::Prefill, chunk, 0), (Phase::Decode, 1, chunk)] {
        if cached + tokens > plan.context {
            // A context of one token leaves nothing to decode.
            break;
        }
        let forward = kv.next_batch(seq, tokens)?;
        let before = handover.before(phase, &forward, &program);
        let last = tokens - 1..tokens;
        let (wanted, states) = (vec![last], Vec::new());
        let batch =
            BatchShape { phase, rows: tokens, wanted, states, chunk: 0, set: 0, top_k: None };
        let tasks = program.tasks(&slots, &[batch])?;
        let (handover, values) = (count(&before, &program), count(&tasks, &program));
        phases.push(PhaseCopies { phase, tokens, cached, handover, values });
    }
    Ok(phases)
}

/// Counts copies by pair of memories, in the order of the first copy of each pair.
fn count(tasks: &[NamedTask], program: &Program) -> Vec<CopyCount> {
    let owner = |space: SpaceId| {
        let owner = program.devices.iter().find(|d| own_space(&d.caps) == space);
        owner.filter(|_| space != SpaceId::HOST).map(|d| d.name.clone())
    };
    let mut counts: Vec<CopyCount> = Vec::new();
    for task in tasks {
        let NamedWork::Copy(copy) = &task.work else { continue };
        let (from, to) = (owner(copy.from.space), owner(copy.to.space));
        let bytes = (copy.to.rows as u64).saturating_mul(copy.to.row_bytes as u64);
        match counts.iter_mut().find(|c| (&c.from, &c.to) == (&from, &to)) {
            Some(known) => {
                known.count += 1;
                known.bytes = known.bytes.saturating_add(bytes);
            }
            None => counts.push(CopyCount { from, to, count: 1, bytes }),
        }
    }
    counts
}
