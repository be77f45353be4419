//! The share of an op that a piece computes, and the parts of its operands that it reads.

use std::ops::Range;

use crate::op::Op;

/// A range of the equal units of an op's columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Take {
    pub units: Range<usize>,
    /// Number of all units; divides the op's columns, heads and groups.
    pub of: usize,
}

impl Take {
    /// The whole op.
    pub fn whole() -> Take {
        Take { units: 0..1, of: 1 }
    }

    /// The range of `n` columns, heads or groups.
    pub fn range(&self, n: usize) -> Range<usize> {
        let each = n / self.of;
        each * self.units.start..each * self.units.end
    }

    /// The number of columns, heads or groups out of `n`.
    pub fn count(&self, n: usize) -> usize {
        self.range(n).len()
    }
}

/// How a split op reads an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// Only the columns of its own part.
    Columns,
    /// All columns.
    Whole,
}

/// How a split op reads its `i`th input.
pub(super) fn reads_input(op: &Op, i: usize) -> Reads {
    match (op, i) {
        (Op::Linear { .. } | Op::Outliers { .. }, _) => Reads::Whole,
        // Positions, or a gate of one column.
        (Op::Rope(_) | Op::SigmoidGate, 1) => Reads::Whole,
        _ => Reads::Columns,
    }
}

/// How a split op uses its states. Query heads with a common cache head all read it.
pub(super) fn reads_states(op: &Op) -> Reads {
    match op {
        Op::Attention(a) if a.kv_heads == 1 => Reads::Whole,
        _ => Reads::Columns,
    }
}
