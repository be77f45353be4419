//! Which part of an op a piece computes, and what that part is as an op.

use std::ops::Range;

use super::piece::PieceBuilder;
use crate::op::{Attention, Experts, HeadLinear, KvAppend, Op};
use crate::subgraph::WeightRef;

/// Some of the equal units of an op's columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Take {
    pub units: Range<usize>,
    /// All units; divides the columns, heads and groups of the op.
    pub of: usize,
}

impl Take {
    /// All of an op.
    pub fn whole() -> Take {
        Take { units: 0..1, of: 1 }
    }

    /// The part of `n` columns, heads or groups.
    pub fn range(&self, n: usize) -> Range<usize> {
        let each = n / self.of;
        each * self.units.start..each * self.units.end
    }

    fn count(&self, n: usize) -> usize {
        self.range(n).len()
    }
}

/// How a split op reads an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// The columns of its own part.
    Columns,
    /// All columns, whatever its part.
    Whole,
}

/// How a split op reads its `i`th input.
pub(super) fn reads_input(op: &Op, i: usize) -> Reads {
    match (op, i) {
        (Op::Linear { .. }, _) => Reads::Whole,
        // Positions; the gate of one column.
        (Op::Rope(_) | Op::SigmoidGate, 1) => Reads::Whole,
        _ => Reads::Columns,
    }
}

/// How a split op takes its states. Query heads that share one head of the cache all read it.
pub(super) fn reads_states(op: &Op) -> Reads {
    match op {
        Op::Attention(a) if a.kv_heads == 1 => Reads::Whole,
        _ => Reads::Columns,
    }
}

/// The op that computes a part of another, with the weights of the piece it belongs to.
pub(super) fn part_of(op: &Op, take: &Take, b: &mut PieceBuilder<'_>) -> Op {
    match op {
        Op::Embed { table, scale } => Op::Embed { table: b.weight(*table), scale: *scale },
        Op::RmsNorm { weight, eps, offset, group } => Op::RmsNorm {
            weight: weight.map(|w| b.weight(w)),
            eps: *eps,
            offset: *offset,
            group: *group,
        },
        Op::LayerNorm { weight, bias, eps, group } => Op::LayerNorm {
            weight: b.weight(*weight),
            bias: bias.map(|w| b.weight(w)),
            eps: *eps,
            group: *group,
        },
        Op::Linear { weight, bias, acts } => Op::Linear {
            weight: b.weight_rows(*weight, take),
            bias: bias.map(|w| b.weight_cols(w, take)),
            acts: *acts,
        },
        Op::HeadLinear(h) => {
            let heads = &h.weights[take.range(h.weights.len())];
            Op::HeadLinear(HeadLinear { weights: heads.iter().map(|w| b.weight(*w)).collect() })
        }
        Op::KvAppend(k) => Op::KvAppend(KvAppend { width: take.count(k.width), group: k.group }),
        Op::Attention(a) => Op::Attention(Attention {
            heads: take.count(a.heads),
            kv_heads: if a.kv_heads == 1 { 1 } else { take.count(a.kv_heads) },
            sinks: a.sinks.map(|w| b.weight_cols(w, take)),
            ..a.clone()
        }),
        Op::ConcatCols { groups } => Op::ConcatCols { groups: take.count(*groups) },
        Op::Experts(e) => Op::Experts(experts(e, b)),
        Op::Rope(_)
        | Op::Activate(_)
        | Op::Gate(_)
        | Op::Add
        | Op::Scale { .. }
        | Op::Clamp { .. }
        | Op::SoftCap { .. }
        | Op::SigmoidGate
        | Op::SliceCols { .. }
        | Op::Router(_) => op.clone(),
    }
}

fn experts(e: &Experts, b: &mut PieceBuilder<'_>) -> Experts {
    let mut all = |list: &[WeightRef]| list.iter().map(|w| b.weight(*w)).collect();
    Experts {
        gate: all(&e.gate),
        up: all(&e.up),
        down: all(&e.down),
        gate_bias: all(&e.gate_bias),
        up_bias: all(&e.up_bias),
        down_bias: all(&e.down_bias),
        act: e.act,
        acts: e.acts,
    }
}
