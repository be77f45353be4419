//! Which part of an op a piece computes, and what of its operands that part reads.

use std::ops::Range;

use crate::op::Op;

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

    /// How many of `n` columns, heads or groups.
    pub fn count(&self, n: usize) -> usize {
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
