//! A piece of a graph: a subgraph, and the place of its operands in the whole graph.

use std::collections::HashMap;
use std::ops::Range;

use super::take::{Reads, Take, reads_input, reads_states};
use crate::op::{ExpertGroup, Op, Rescale};
use crate::shape::{Dim, Shape};
use crate::subgraph::{Node, Subgraph, Value, ValueId};
use crate::verify::{GraphError, verify};
use crate::weight::{WeightDecl, WeightRef, WeightSlice};

/// Some columns of a value of the whole graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Columns {
    /// The value, by its id in the whole graph.
    pub value: ValueId,
    /// Its columns.
    pub cols: Range<usize>,
}

/// A subgraph that computes a part of another one. For its inputs, states and outputs it names the
/// columns of the other's values; the slices in [`Subgraph::weights`] name the rows of weights.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Index of its part in [`super::ColumnSplit::shares`]; for a cut, the piece's own index.
    pub part: usize,
    /// The subgraph, verified.
    pub graph: Subgraph,
    /// What to bind to each input. A value may appear twice: whole for a product, and some columns
    /// for the sum behind it.
    pub inputs: Vec<Columns>,
    /// The same for its states.
    pub states: Vec<Columns>,
    /// The same for its outputs.
    pub outputs: Vec<Columns>,
}

/// A piece under construction.
pub(super) struct PieceBuilder<'g> {
    from: &'g Subgraph,
    piece: Piece,
    values: HashMap<Columns, ValueId>,
    /// By weight, rows, columns and slice.
    weights: HashMap<(WeightRef, usize, usize, Option<WeightSlice>), WeightRef>,
}

impl<'g> PieceBuilder<'g> {
    pub fn new(from: &'g Subgraph, name: String) -> Self {
        let graph = Subgraph { name, ..Subgraph::default() };
        let piece = Piece { graph, ..Piece::default() };
        PieceBuilder { from, piece, values: HashMap::new(), weights: HashMap::new() }
    }

    /// The columns of a value that an op reads or computes for its share.
    fn columns(&self, value: ValueId, take: &Take, reads: Reads) -> Columns {
        let all = self.from.value(value).shape.row_len();
        let cols = if reads == Reads::Whole { 0..all } else { take.range(all) };
        Columns { value, cols }
    }

    /// Adds a value to the piece.
    fn add(&mut self, columns: Columns) -> ValueId {
        let whole = self.from.value(columns.value);
        let first = whole.shape.0.first().copied().unwrap_or(Dim::Fixed(1));
        let (name, dtype) = (whole.name.clone(), whole.dtype);
        let shape = Shape(vec![first, Dim::Fixed(columns.cols.len())]);
        let values = &mut self.piece.graph.values;
        values.push(Value { name, shape, dtype });
        let id = ValueId(values.len() as u32 - 1);
        self.values.insert(columns, id);
        id
    }

    /// A value to read: computed in this piece, or else an input.
    fn read(&mut self, columns: Columns) -> ValueId {
        if let Some(id) = self.values.get(&columns) {
            return *id;
        }
        let id = self.add(columns.clone());
        self.piece.graph.inputs.push(id);
        self.piece.inputs.push(columns);
        id
    }

    fn state(&mut self, columns: Columns) -> ValueId {
        if let Some(id) = self.values.get(&columns) {
            return *id;
        }
        let id = self.add(columns.clone());
        self.piece.graph.states.push(id);
        self.piece.states.push(columns);
        id
    }

    fn declare(&mut self, w: WeightRef, decl: WeightDecl) -> WeightRef {
        let next = WeightRef(self.piece.graph.weights.len() as u32);
        let known = *self.weights.entry((w, decl.rows, decl.cols, decl.slice)).or_insert(next);
        if known == next {
            self.piece.graph.weights.push(decl);
        }
        known
    }

    /// A whole weight.
    pub fn weight(&mut self, w: WeightRef) -> WeightRef {
        self.declare(w, self.from.weight(w).clone())
    }

    /// The part's rows of a matrix.
    pub fn weight_rows(&mut self, w: WeightRef, take: &Take) -> WeightRef {
        let whole = self.from.weight(w);
        let rows = take.range(whole.rows);
        if rows.len() == whole.rows {
            return self.weight(w);
        }
        let first = whole.stored_rows().start + rows.start;
        let slice = Some(WeightSlice::Rows { first, of: whole.stored().0 });
        self.declare(w, WeightDecl { rows: rows.len(), slice, ..whole.clone() })
    }

    /// The part's columns of a vector.
    pub fn weight_cols(&mut self, w: WeightRef, take: &Take) -> WeightRef {
        let whole = self.from.weight(w);
        let cols = take.range(whole.cols);
        if cols.len() == whole.cols {
            return self.weight(w);
        }
        let first = whole.stored_cols().start + cols.start;
        let slice = Some(WeightSlice::Cols { first, of: whole.stored().1 });
        self.declare(w, WeightDecl { cols: cols.len(), slice, ..whole.clone() })
    }

    /// The weight of a norm: the part's columns, unless groups share it.
    fn norm_weight(&mut self, w: WeightRef, group: usize, take: &Take) -> WeightRef {
        if self.from.weight(w).cols == group { self.weight(w) } else { self.weight_cols(w, take) }
    }

    /// Adds a share of an op of the whole graph.
    pub fn node(&mut self, node: &Node, take: &Take) {
        let op = part_of(&node.op, take, self);
        let inputs = node.inputs.iter().enumerate();
        let read = |(i, v): (usize, &ValueId)| {
            let columns = self.columns(*v, take, reads_input(&node.op, i));
            self.read(columns)
        };
        let inputs = inputs.map(read).collect();
        let state = |v: &ValueId| self.state(self.columns(*v, take, reads_states(&node.op)));
        let states = node.states.iter().map(state).collect();
        let output = |v: &ValueId| self.add(self.columns(*v, take, Reads::Columns));
        let outputs = node.outputs.iter().map(output).collect();
        self.piece.graph.nodes.push(Node { op, inputs, states, outputs });
    }

    /// Marks an output: the share of a value that was computed here, or an input.
    pub fn output(&mut self, value: ValueId, take: &Take) {
        let columns = self.columns(value, take, Reads::Columns);
        if self.piece.outputs.contains(&columns) {
            return;
        }
        let id = self.read(columns.clone());
        self.piece.graph.outputs.push(id);
        self.piece.outputs.push(columns);
    }

    /// Verifies and returns the piece.
    pub fn finish(self, part: usize) -> Result<Piece, GraphError> {
        verify(&self.piece.graph)?;
        Ok(Piece { part, ..self.piece })
    }
}

/// The whole graph as a piece.
pub(super) fn whole(graph: &Subgraph, part: usize) -> Piece {
    let all = |ids: &[ValueId]| {
        let columns = |v: &ValueId| Columns { value: *v, cols: 0..graph.value(*v).shape.row_len() };
        ids.iter().map(columns).collect()
    };
    let (inputs, states) = (all(&graph.inputs), all(&graph.states));
    Piece { part, graph: graph.clone(), inputs, states, outputs: all(&graph.outputs) }
}

/// The op that computes a share of another one, with the piece's weights.
fn part_of(op: &Op, take: &Take, b: &mut PieceBuilder<'_>) -> Op {
    let mut op = op.clone();
    match &mut op {
        Op::Embed { table: w, .. } | Op::Rescale(Rescale::Columns(w)) => *w = b.weight(*w),
        Op::RmsNorm { weight, group, .. } => {
            *weight = weight.map(|w| b.norm_weight(w, *group, take));
        }
        Op::LayerNorm { weight, bias, .. } => {
            *weight = b.weight(*weight);
            *bias = bias.map(|w| b.weight(w));
        }
        Op::Linear { weight, bias, .. } => {
            *weight = b.weight_rows(*weight, take);
            *bias = bias.map(|w| b.weight_cols(w, take));
        }
        Op::Outliers { weight, .. } => *weight = b.weight_rows(*weight, take),
        Op::HeadLinear(h) => {
            let heads = &h.weights[take.range(h.weights.len())];
            h.weights = heads.iter().map(|w| b.weight(*w)).collect();
        }
        Op::KvAppend(k) => k.width = take.count(k.width),
        Op::Attention(a) => {
            a.heads = take.count(a.heads);
            a.kv_heads = if a.kv_heads == 1 { 1 } else { take.count(a.kv_heads) };
            a.sinks = a.sinks.map(|w| b.weight_cols(w, take));
        }
        Op::ConcatCols { groups } => *groups = take.count(*groups),
        Op::Experts(e) | Op::ExpertGroup(ExpertGroup { experts: e, .. }) => {
            *e = e.with_lists(|list| list.iter().map(|w| b.weight(*w)).collect());
        }
        Op::Mamba2(m) => {
            [m.a, m.d, m.dt_bias] = [m.a, m.d, m.dt_bias].map(|w| b.weight(w));
        }
        Op::ShortConv(s) => {
            s.weight = b.weight(s.weight);
            s.bias = s.bias.map(|w| b.weight(w));
        }
        Op::DeltaRule(d) => d.rates = b.weight(d.rates),
        Op::Router(r) => {
            r.bias = r.bias.map(|w| b.weight(w));
            r.expert_scales = r.expert_scales.map(|w| b.weight(w));
        }
        Op::Rope(_)
        | Op::Rescale(_)
        | Op::DecayingSum(_)
        | Op::Activate(_)
        | Op::Gate(_)
        | Op::Add
        | Op::Scale { .. }
        | Op::Clamp { .. }
        | Op::SoftCap { .. }
        | Op::Convert
        | Op::SigmoidGate
        | Op::Mix { .. }
        | Op::SliceCols { .. } => {}
    }
    op
}
