//! Times of runs by measurements of a real device, in place of peak and bandwidth.

use troika_device::ForwardBatch;
use troika_graph::{Dim, Op, Subgraph};
use troika_time::{FittedTime, RunWork};

use crate::error::SocError;
use crate::fields::Fields;

/// The measured time of graphs that are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRuns {
    /// The names of the ops that they consist of.
    pub ops: Vec<&'static str>,
    /// Their time.
    pub time: FittedTime,
}

impl MeasuredRuns {
    /// Reads a table of a file. Time follows the compiled shapes in steps where they are `fixed`.
    pub(crate) fn read(mut f: Fields<'_>, fixed: bool) -> Result<MeasuredRuns, SocError> {
        let ops = f.words("ops", Op::NAMES)?.unwrap_or_default();
        if ops.is_empty() {
            return Err(f.wrong("ops", "is missing or empty; name the ops of the measured graphs"));
        }
        let terms = [
            f.maybe_figure("fixed_ns")?,
            f.maybe_figure("ns_per_value")?,
            f.maybe_figure("ns_per_weight_byte")?,
            f.maybe_figure("ns_per_product")?,
            f.maybe_figure("ns_per_attended")?,
            f.maybe_figure("ns_per_cache_byte")?,
        ];
        let knee = f.maybe_figure("free_rows")?;
        let rows = f.counts("rows")?.unwrap_or_default();
        let factors = f.rates("factors")?.unwrap_or_default();
        if rows.len() != factors.len() {
            let why = format!("has {} numbers, and rows has {}", factors.len(), rows.len());
            return Err(f.wrong("factors", why));
        }
        let factors = rows.iter().map(|n| *n as f64).zip(factors).collect();
        let time = FittedTime { knee, terms, stairs: fixed, factors };
        if !time.is_sane() {
            let why = "must ascend, and one of the times must be more than 0";
            return Err(f.wrong("rows", why));
        }
        f.finish()?;
        Ok(MeasuredRuns { ops, time })
    }

    /// The measurements whose graphs are most like a graph, if they have an op in common. So pieces
    /// of a graph are priced as the whole.
    pub(crate) fn of<'a>(all: &'a [MeasuredRuns], graph: &Subgraph) -> Option<&'a MeasuredRuns> {
        let mut ops: Vec<&str> = graph.nodes.iter().map(|n| n.op.name()).collect();
        ops.sort_unstable();
        ops.dedup();
        let alike = |m: &MeasuredRuns| {
            let common = ops.iter().filter(|op| m.ops.contains(op)).count();
            common as f64 / (ops.len() + m.ops.len() - common) as f64
        };
        let found = all.iter().rev().max_by(|a, b| alike(a).total_cmp(&alike(b)));
        found.filter(|m| alike(m) > 0.0)
    }

    /// Nanoseconds of a run of a graph on some rows.
    pub(crate) fn ns(&self, graph: &Subgraph, rows: usize, forward: &ForwardBatch) -> f64 {
        let shape = graph.inputs.first().and_then(|id| graph.value(*id).shape.0.first());
        let room = if let Some(Dim::Fixed(room)) = shape { *room } else { rows };
        let padding = room.saturating_sub(forward.rows());
        let mut work = RunWork { attended: 0.0, cache_bytes: 0.0, ..RunWork::of(graph, room, 0) };
        for (i, seq) in forward.seqs.iter().enumerate() {
            // Padding rows count like the last row.
            let padding = if i + 1 == forward.seqs.len() { padding } else { 0 };
            let own = RunWork::of(graph, seq.rows.len() + padding, seq.pos);
            work.attended += own.attended;
            work.cache_bytes += own.cache_bytes;
        }
        self.time.ns(&work)
    }
}
