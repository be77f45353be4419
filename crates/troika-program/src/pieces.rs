//! Divides a segment's graph into the pieces that its rule asks for: by columns, and around the ops
//! that a device refuses. Pure: nothing is compiled here.

use std::collections::HashMap;

use troika_graph::partition::{
    self, ColumnSplit, Columns, Partition, PartitionError, Piece, cut_at, split_columns,
};
use troika_graph::{Op, Subgraph, ValueId};
use troika_plan::stage_borders;

use crate::placed::{Between, Operand, SegmentValue, StateOperand};

/// A graph on a device, and its operands.
#[derive(Clone, Debug)]
pub(crate) struct PlacedGraph {
    /// Index of the device.
    pub device: usize,
    pub graph: Subgraph,
    pub inputs: Vec<Operand>,
    pub states: Vec<StateOperand>,
    pub outputs: Vec<Operand>,
}

/// Which device runs an op, given the device it is placed on.
pub(crate) type Taker<'a> = &'a dyn Fn(usize, &str) -> usize;

/// Places a graph on one device, except for the ops that others take over. Neighbouring ops on one
/// device form a piece. Outliers are one by themselves: what follows adds them to a product of
/// another device, at the same time as which they are computed.
pub(crate) fn whole(
    whole: PlacedGraph,
    takes: Taker<'_>,
    values: &mut Vec<Between>,
) -> Result<Vec<PlacedGraph>, PartitionError> {
    let device = whole.device;
    let nodes = &whole.graph.nodes;
    let mut by: Vec<usize> = nodes.iter().map(|n| takes(device, n.op.name())).collect();
    // Only one device may write and read a cache.
    let caches = || (0..nodes.len()).filter(|i| !nodes[*i].states.is_empty());
    if let Some(other) = caches().map(|i| by[i]).find(|d| *d != device) {
        caches().for_each(|i| by[i] = other);
    }
    let outliers = |i: usize| matches!(nodes[i].op, Op::Outliers { .. });
    let ends = |i: &usize| by[*i] != by[i + 1] || outliers(*i) && !outliers(i + 1);
    let borders: Vec<usize> = (0..by.len().saturating_sub(1)).filter(ends).collect();
    if borders.is_empty() {
        let device = by.first().copied().unwrap_or(device);
        return Ok(vec![PlacedGraph { device, ..whole }]);
    }
    let pieces = cut_at(&whole.graph, &borders)?;
    let firsts = std::iter::once(0).chain(borders.iter().map(|b| b + 1));
    let placed = pieces.into_iter().zip(firsts.map(|first| by[first]));
    let mut scope = Scope::new(&whole, values);
    Ok(placed.map(|(piece, device)| scope.bind(piece, device)).collect())
}

/// Cuts a graph into its stages.
pub(crate) fn stages(
    whole: PlacedGraph,
    values: &mut Vec<Between>,
) -> Result<Vec<PlacedGraph>, PartitionError> {
    let borders = stage_borders(&whole.graph);
    if borders.is_empty() {
        return Ok(vec![whole]);
    }
    let pieces = cut_at(&whole.graph, &borders)?;
    let device = whole.device;
    let mut scope = Scope::new(&whole, values);
    Ok(pieces.into_iter().map(|piece| scope.bind(piece, device)).collect())
}

/// A graph cut around its experts; each piece is on the device of the whole graph.
pub(crate) struct AroundExperts {
    pub before: Option<PlacedGraph>,
    pub experts: PlacedGraph,
    pub beside: Option<PlacedGraph>,
    pub after: Option<PlacedGraph>,
}

pub(crate) fn around_experts(
    whole: &PlacedGraph,
    values: &mut Vec<Between>,
) -> Result<AroundExperts, PartitionError> {
    let around = partition::around_experts(&whole.graph)?;
    let mut scope = Scope::new(whole, values);
    let mut bind = |piece| scope.bind(piece, whole.device);
    Ok(AroundExperts {
        before: around.before.map(&mut bind),
        experts: bind(around.experts),
        beside: around.beside.map(&mut bind),
        after: around.after.map(&mut bind),
    })
}

/// Divides a graph by columns. The pieces are in an order in which they can run; pieces of one
/// stage do not wait for each other.
pub(crate) fn columns(
    whole_graph: &PlacedGraph,
    split: &ColumnSplit,
    parts: &[usize],
    takes: Taker<'_>,
    values: &mut Vec<Between>,
) -> Result<Vec<PlacedGraph>, PartitionError> {
    let partitioned = split_columns(&whole_graph.graph, split)?;
    let mut scope = Scope::new(whole_graph, values);
    let mut place = |piece: Piece| {
        let device = parts[piece.part];
        scope.bind(piece, device)
    };
    let stages = partitioned.stages.into_iter();
    let placed: Vec<Vec<PlacedGraph>> =
        stages.map(|s| s.pieces.into_iter().map(&mut place).collect()).collect();
    let mut all = Vec::new();
    for stage in placed {
        let cut = stage.into_iter().map(|piece| Ok(whole(piece, takes, values)?.into_iter()));
        let mut cut = cut.collect::<Result<Vec<_>, PartitionError>>()?;
        // In turns, as areas of rows.
        while cut.iter().any(|pieces| pieces.len() > 0) {
            all.extend(cut.iter_mut().filter_map(Iterator::next));
        }
    }
    Ok(all)
}

/// The parts of a partition that compute whole rows.
pub(crate) fn whole_parts(partition: &Partition) -> Vec<usize> {
    match partition {
        Partition::Whole { part } => vec![*part],
        Partition::Columns(_) => Vec::new(),
        Partition::Rows { standard, rest, .. } => vec![*standard, *rest],
        Partition::Hybrid { standard, .. } => vec![*standard],
    }
}

/// Resolves the values of a graph while it is divided.
struct Scope<'a> {
    whole: &'a PlacedGraph,
    values: &'a mut Vec<Between>,
    /// Values that pieces pass to each other.
    between: HashMap<ValueId, Operand>,
}

impl<'a> Scope<'a> {
    fn new(whole: &'a PlacedGraph, values: &'a mut Vec<Between>) -> Scope<'a> {
        Scope { whole, values, between: HashMap::new() }
    }

    fn bind(&mut self, piece: Piece, device: usize) -> PlacedGraph {
        let inputs = piece.inputs.iter().map(|c| self.operand(c, true)).collect();
        let outputs = piece.outputs.iter().map(|c| self.operand(c, false)).collect();
        let graph = &self.whole.graph;
        let states = piece.states.iter().filter_map(|c| {
            let of_whole = graph.states.iter().position(|v| *v == c.value)?;
            let StateOperand { state, cols } = &self.whole.states[of_whole];
            let cols = cols.start + c.cols.start..cols.start + c.cols.end;
            Some(StateOperand { state: *state, cols })
        });
        let states = states.collect();
        PlacedGraph { device, graph: piece.graph, inputs, states, outputs }
    }

    /// The operand for some columns of a value. A value that is both input and output of the graph
    /// is read as the input and written as the output.
    fn operand(&mut self, columns: &Columns, read: bool) -> Operand {
        let w = self.whole;
        let find = |ids: &[ValueId], operands: &[Operand]| {
            let at = ids.iter().position(|v| *v == columns.value)?;
            operands.get(at).cloned()
        };
        let input = find(&w.graph.inputs, &w.inputs).filter(|_| read);
        let known = input.or_else(|| find(&w.graph.outputs, &w.outputs));
        let whole = known.unwrap_or_else(|| {
            let value = w.graph.value(columns.value);
            let (cols, dtype) = (value.shape.row_len(), value.dtype);
            let add = || {
                self.values.push(Between { cols, dtype });
                Operand { value: SegmentValue::Between(self.values.len() - 1), cols: 0..cols }
            };
            self.between.entry(columns.value).or_insert_with(add).clone()
        });
        let (first, cols) = (whole.cols.start, &columns.cols);
        Operand { value: whole.value, cols: first + cols.start..first + cols.end }
    }
}
