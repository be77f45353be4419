//! Cuts a graph between ops.

use super::PartitionError;
use super::piece::{Piece, PieceBuilder};
use super::take::Take;
use crate::builder::SubgraphBuilder;
use crate::dtype::DType;
use crate::op::{ExpertGroup, Op};
use crate::subgraph::{Subgraph, ValueId};
use crate::verify::verify;
use crate::weight::WeightRef;

/// Cuts a graph after each of several ops in ascending order. Gives one more piece than there are
/// cuts.
///
/// Values that cross become outputs of one piece and inputs of the next. Inputs, states and weights
/// belong to each piece that uses them; an output of the graph that is one of its inputs stays with
/// the first.
///
/// # Errors
/// A malformed graph, no op after one of them, or ops that are not in ascending order.
pub fn cut_at(graph: &Subgraph, after: &[usize]) -> Result<Vec<Piece>, PartitionError> {
    verify(graph)?;
    let ops = graph.nodes.len();
    if let Some(&op) = after.iter().find(|op| **op >= ops.saturating_sub(1)) {
        let why = format!("{} has {ops} ops: it cannot be cut after op {op}", graph.name);
        return Err(PartitionError::Ops(why));
    }
    if !after.is_sorted_by(|a, b| a < b) {
        let why = format!("{}: ops to cut after are not in ascending order", graph.name);
        return Err(PartitionError::Ops(why));
    }
    let starts = std::iter::once(0).chain(after.iter().map(|op| op + 1));
    let ends = after.iter().map(|op| op + 1).chain([ops]);
    let pieces = starts.zip(ends).enumerate();
    pieces.map(|(i, (start, end))| piece(graph, i, &(start..end).collect::<Vec<_>>())).collect()
}

/// The feed-forwards of some of the experts of a graph's [`crate::Experts`], by their ids, each on
/// `capacity` rows: a graph with an [`ExpertGroup`] of a symbol of as many rows as all have.
///
/// # Errors
/// A malformed graph; experts whose weights it does not have; no experts or no rows.
pub fn expert_group(
    graph: &Subgraph,
    experts: &[usize],
    capacity: usize,
) -> Result<Subgraph, PartitionError> {
    verify(graph)?;
    let first = experts.first().copied().unwrap_or(0);
    let e = graph.experts().ok_or_else(|| missing(graph, first))?;
    if experts.is_empty() || capacity == 0 {
        let what = if experts.is_empty() { "number of a group's experts" } else { "capacity" };
        return Err(PartitionError::Zero { what });
    }
    if let Some(id) = experts.iter().find(|id| **id >= e.gate.len()) {
        return Err(missing(graph, *id));
    }
    let rows = experts.len().saturating_mul(capacity);
    let name = format!("{} [{} experts of {capacity} rows]", graph.name, experts.len());
    let mut b = SubgraphBuilder::new(name, rows);
    let op = e.with_lists(|list| {
        let some = experts.iter().filter_map(|id| list.get(*id));
        some.map(|w| b.weight(graph.weight(*w).clone())).collect()
    });
    let cols = graph.weight(e.gate[0]).cols;
    let x = b.input("packed rows", cols, DType::F32);
    let y = b.op("expert rows", Op::ExpertGroup(ExpertGroup { experts: op, capacity }), &[x], cols);
    b.output(y);
    Ok(b.finish()?)
}

/// The feed-forward of one of the experts of a graph's [`crate::Experts`], by its id, on `capacity`
/// rows: as products of their own, which can be split by columns. The results have the same bits as
/// [`expert_group`]'s.
///
/// # Errors
/// A malformed graph; an expert whose weights it does not have; no rows.
pub fn expert_products(
    graph: &Subgraph,
    expert: usize,
    capacity: usize,
) -> Result<Subgraph, PartitionError> {
    verify(graph)?;
    let e = graph.experts().filter(|e| expert < e.gate.len());
    let e = e.ok_or_else(|| missing(graph, expert))?;
    if capacity == 0 {
        return Err(PartitionError::Zero { what: "capacity" });
    }
    let name = format!("{} [expert {expert}, {capacity} rows]", graph.name);
    let mut b = SubgraphBuilder::new(name, capacity);
    let product = |b: &mut SubgraphBuilder, name, x, lists: [&[WeightRef]; 2]| {
        let [weights, biases] = lists;
        let weight = graph.weight(weights[expert]).clone();
        let rows = weight.rows;
        let weight = b.weight(weight);
        let bias = biases.get(expert).map(|w| b.weight(graph.weight(*w).clone()));
        let (activations, form) = (e.activations, None);
        b.op(name, Op::Linear { weight, bias, activations, form }, &[x], rows)
    };
    let x = b.input("packed rows", graph.weight(e.gate[expert]).cols, DType::F32);
    let gate = product(&mut b, "gate", x, [&e.gate, &e.gate_bias]);
    let up = product(&mut b, "up", x, [&e.up, &e.up_bias]);
    let inner = b.cols(gate);
    let inner = b.op("inner", Op::Gate(e.act), &[gate, up], inner);
    let y = product(&mut b, "expert rows", inner, [&e.down, &e.down_bias]);
    b.output(y);
    Ok(b.finish()?)
}

fn missing(graph: &Subgraph, expert: usize) -> PartitionError {
    PartitionError::Ops(format!("{} has no expert {expert} to compute in a group", graph.name))
}

/// The piece of some ops, in execution order. The first one also has the outputs of the graph that
/// are its inputs.
pub(super) fn piece(
    graph: &Subgraph,
    index: usize,
    ops: &[usize],
) -> Result<Piece, PartitionError> {
    let mut b = PieceBuilder::new(graph, format!("{} [cut {index}]", graph.name));
    let whole = Take::whole();
    ops.iter().for_each(|i| b.node(&graph.nodes[*i], &whole));
    let others = || (0..graph.nodes.len()).filter(|i| !ops.contains(i));
    let used = |v: &ValueId| {
        graph.outputs.contains(v) || others().any(|i| graph.nodes[i].inputs.contains(v))
    };
    let computed = ops.iter().flat_map(|i| &graph.nodes[*i].outputs);
    computed.filter(|v| used(v)).for_each(|v| b.output(*v, &whole));
    if index == 0 {
        let passed = graph.outputs.iter().filter(|v| graph.inputs.contains(v));
        passed.for_each(|v| b.output(*v, &whole));
    }
    Ok(b.finish(index)?)
}
