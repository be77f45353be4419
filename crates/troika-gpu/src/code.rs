//! The code of a subgraph: what runs together, where values lie, and which weights it needs in which
//! form. All of it is data; nothing here touches a device.

use smallvec::SmallVec;
use troika_graph::{Attention, Experts, Op, Subgraph, WeightRef};

use crate::bound::MultiplyCount;
use crate::kernels::{self, FEW, Loc};
use crate::packs::Pack;
use crate::places::PlacedValue;
use crate::units::Unit;

/// The code of a subgraph.
pub(crate) struct Code {
    pub graph: Subgraph,
    /// The graph's values.
    pub values: Vec<PlacedValue>,
    /// The inputs, the states, then the outputs.
    pub bindings: Vec<BoundValue>,
    /// What runs together, in order.
    pub units: Vec<Unit>,
    /// The packs of each node, then those of each unit.
    pub packs: Vec<Vec<Pack>>,
    /// Bytes of a row of each scratch memory (or of all, for values of fixed rows).
    pub scratch: Vec<usize>,
    /// Outputs that repeat another value: (value, output).
    pub repeats: Vec<(usize, usize)>,
    /// The most positions of sequences that take the short frequencies, if there are long ones.
    pub most_short: Option<usize>,
    /// The limit of a binding.
    pub limit: u64,
    /// Whether products of many rows use matrix units.
    pub matrix_units: bool,
}

/// A value that a submission binds.
pub(crate) struct BoundValue {
    pub value: usize,
    pub is_state: bool,
    pub is_written: bool,
    /// The page groups by which a state is read and written.
    pub groups: SmallVec<[usize; 2]>,
}

/// What the dispatches of a submission depend on besides the code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub rows: usize,
    /// Positions of a page in each page group.
    pub page_lens: SmallVec<[usize; 8]>,
    /// All rows, where some of their sequences take the long frequencies.
    pub runs: SmallVec<[RowRun; 2]>,
    /// The most positions that a row sees, or more.
    pub longest: usize,
    /// Whether each row is the only one of its sequence.
    pub one_row_each: bool,
}

/// Rows whose sequences take the same frequencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RowRun {
    pub first: usize,
    pub count: usize,
    pub is_long: bool,
}

/// Words before the records of rows in the batch's words.
pub(crate) const HEAD_WORDS: u32 = 4;
/// Words of a row's record.
pub(crate) const RECORD_WORDS: u32 = 4;

impl Code {
    /// For each value, then each output, that it begins its memory and has no gaps between rows.
    pub fn plain_locs(&self) -> Vec<Loc> {
        let outputs = self.graph.outputs.iter().map(|id| &self.values[id.0 as usize]);
        let plain = |v: &PlacedValue| Loc { offset: 0, stride: v.cols as u32 };
        self.values.iter().chain(outputs).map(plain).collect()
    }

    /// A submission of this number of rows with few positions.
    pub fn plain_shape(&self, rows: usize) -> Shape {
        let groups = self.bindings.iter().flat_map(|b| &b.groups);
        let page_lens = SmallVec::from_elem(16, groups.max().map_or(0, |last| last + 1));
        Shape { rows, page_lens, ..Shape::default() }
    }

    /// Whether sequences' pages are read or written.
    pub fn uses_pages(&self) -> bool {
        self.bindings.iter().any(|b| !b.groups.is_empty())
    }

    /// A value that a node reads.
    pub fn input(&self, node: usize, i: usize) -> usize {
        self.graph.nodes[node].inputs[i].0 as usize
    }

    /// A value that a node computes.
    pub fn output(&self, node: usize, i: usize) -> usize {
        self.graph.nodes[node].outputs[i].0 as usize
    }

    /// The experts of a node, and how many pairs of a row and an expert it computes.
    fn pairs(&self, at: usize, rows: usize) -> Option<(&Experts, usize)> {
        match &self.graph.nodes[at].op {
            Op::Experts(e) => Some((e, rows.saturating_mul(self.values[self.input(at, 1)].cols))),
            Op::ExpertGroup(g) => Some((&g.experts, self.values[self.input(at, 0)].rows_of(rows))),
            _ => None,
        }
    }

    /// Bytes that a node needs between its dispatches.
    pub fn inner_bytes(&self, at: usize, rows: usize, longest: usize) -> usize {
        if let Op::Attention(a) = &self.graph.nodes[at].op {
            return match self.attention_parts(a, rows, longest) {
                1 => 0,
                parts => rows * kernels::part_floats(a, parts) * 4,
            };
        }
        if let Op::DeltaRule(d) = &self.graph.nodes[at].op {
            return kernels::gate_floats(d).saturating_mul(rows).saturating_mul(4);
        }
        self.pairs(at, rows).map_or(0, |(experts, pairs)| {
            pairs.saturating_mul(self.graph.weight(experts.gate[0]).rows).saturating_mul(4)
        })
    }

    /// How many workgroups share the keys of a row: more than one only for few rows, which alone
    /// leave a device idle.
    pub fn attention_parts(&self, a: &Attention, rows: usize, longest: usize) -> u32 {
        let parts = kernels::attention_parts(a, longest);
        let bytes = rows.saturating_mul(kernels::part_floats(a, parts)).saturating_mul(4);
        if rows <= FEW as usize && bytes as u64 <= self.limit { parts } else { 1 }
    }

    /// Multiplications of a node, of all its dispatches together.
    pub fn work(&self, at: usize, rows: usize) -> MultiplyCount {
        let of_row = |list: &[WeightRef]| -> u64 {
            let weights = list.iter().map(|w| self.graph.weight(*w));
            weights.map(|decl| (decl.rows as u64).saturating_mul(decl.cols as u64)).sum()
        };
        let (mut rows_of, mut fixed, mut each) = (rows as u64, 0, 0);
        match &self.graph.nodes[at].op {
            Op::Linear { weight, .. } | Op::Outliers { weight, .. } => fixed = of_row(&[*weight]),
            Op::HeadLinear(h) => fixed = of_row(&h.weights),
            Op::DeltaRule(d) => fixed = d.state().unwrap_or(0) as u64 * 4,
            Op::Mamba2(m) => fixed = m.state().unwrap_or(0) as u64 * 3,
            Op::Attention(a) => each = (a.heads * (a.k_dim + a.v_dim)) as u64,
            _ => {
                if let Some((e, pairs)) = self.pairs(at, rows) {
                    (rows_of, fixed) = (pairs as u64, of_row(&[e.gate[0], e.up[0], e.down[0]]));
                }
            }
        }
        MultiplyCount { fixed: rows_of.saturating_mul(fixed), each: rows_of.saturating_mul(each) }
    }
}
