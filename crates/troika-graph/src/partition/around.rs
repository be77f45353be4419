//! Cuts a graph around its experts.

use super::PartitionError;
use super::cut::piece;
use super::piece::Piece;
use crate::op::Op;
use crate::shape::Dim;
use crate::subgraph::Subgraph;
use crate::verify::verify;

/// A graph cut around its [`crate::Experts`].
#[derive(Clone, Debug, PartialEq)]
pub struct AroundExperts {
    /// What the experts need first.
    pub before: Option<Piece>,
    /// The experts alone.
    pub experts: Piece,
    /// What neither needs the experts nor is needed by them, such as a shared expert.
    pub beside: Option<Piece>,
    /// What needs the experts.
    pub after: Option<Piece>,
}

/// Cuts a graph into its experts and what comes before, beside and after them.
///
/// # Errors
/// A malformed graph; no experts.
pub fn around_experts(graph: &Subgraph) -> Result<AroundExperts, PartitionError> {
    verify(graph)?;
    let is_experts = |i: &usize| matches!(graph.nodes[*i].op, Op::Experts(_));
    let Some(at) = (0..graph.nodes.len()).find(is_experts) else {
        return Err(no_experts(&graph.name));
    };
    let reads = |a: usize, b: usize| {
        graph.nodes[a].inputs.iter().any(|v| graph.nodes[b].outputs.contains(v))
    };
    // Ops are in execution order: needs point back, uses forward.
    let mut before: Vec<usize> = Vec::new();
    for i in (0..at).rev() {
        if reads(at, i) || before.iter().any(|later| reads(*later, i)) {
            before.push(i);
        }
    }
    before.reverse();
    let mut after: Vec<usize> = Vec::new();
    for i in at + 1..graph.nodes.len() {
        if reads(i, at) || after.iter().any(|earlier| reads(i, *earlier)) {
            after.push(i);
        }
    }
    let rest = |i: &usize| *i != at && !before.contains(i) && !after.contains(i);
    let beside: Vec<usize> = (0..graph.nodes.len()).filter(rest).collect();
    let some = |ops: &[usize], index: usize| {
        (!ops.is_empty()).then(|| piece(graph, index, ops)).transpose()
    };
    Ok(AroundExperts {
        before: some(&before, 0)?,
        experts: piece(graph, 1, &[at])?,
        beside: some(&beside, 2)?,
        after: some(&after, 3)?,
    })
}

fn no_experts(graph: &str) -> PartitionError {
    PartitionError::Ops(format!("{graph} has no experts to share out"))
}

/// The experts of a graph for rows that have chosen one each: as many rows as all pairs of a row
/// and an expert. What it computes for a pair, with a weight of 1, is the pair's part of a sum.
///
/// # Errors
/// A malformed graph; no experts.
pub fn single_choices(graph: &Subgraph) -> Result<Subgraph, PartitionError> {
    let Piece { mut graph, .. } = around_experts(graph)?.experts;
    let [_, ids, weights] = graph.inputs[..] else {
        return Err(no_experts(&graph.name));
    };
    let choices = graph.value(ids).shape.row_len();
    for id in [ids, weights] {
        graph.values[id.0 as usize].shape.0.truncate(1);
        graph.values[id.0 as usize].shape.0.push(Dim::Fixed(1));
    }
    for value in &mut graph.values {
        if let Some(Dim::Rows(most)) = value.shape.0.first_mut() {
            *most = most.saturating_mul(choices);
        }
    }
    verify(&graph)?;
    Ok(graph)
}
