//! Assigns a stage to each op, and how it is computed there: some columns by each part, all of it
//! by each part, or all of it by one part.

use std::collections::HashMap;

use super::take::{Reads, reads_input, reads_states};
use crate::op::Op;
use crate::subgraph::{Node, Subgraph, ValueId};

/// Which parts compute an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Each part computes some columns.
    Split,
    /// Each part that reads the result computes all of it, which is cheaper than waiting.
    Copied,
    /// One part computes all of it.
    Alone,
}

/// The stage of an op, and how it is computed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpStage {
    pub stage: usize,
    pub mode: Mode,
}

/// How a value is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Split(Reads),
    Copied,
    Alone,
}

/// The first stage in which a reader can use a value. Within the same stage, it can only use its
/// own part's results.
fn found(made: Option<OpStage>, reader: Reader) -> usize {
    let Some(OpStage { stage, mode }) = made else { return 0 };
    let same = match mode {
        Mode::Split => reader == Reader::Split(Reads::Columns),
        Mode::Copied => reader != Reader::Split(Reads::Columns),
        Mode::Alone => reader == Reader::Alone,
    };
    if same { stage } else { stage + 1 }
}

/// The number of equal column groups that an op computes independently, each from the same columns
/// of its operands. `None` if it needs whole rows, or no columns of its inputs.
pub(super) fn groups(graph: &Subgraph, node: &Node) -> Option<usize> {
    let cols = |v: &ValueId| graph.value(*v).shape.row_len();
    let input = node.inputs.first().map_or(0, cols);
    match &node.op {
        Op::Linear { weight, .. } | Op::Outliers { weight, .. } => Some(graph.weight(*weight).rows),
        Op::RmsNorm { group, .. } | Op::LayerNorm { group, .. } => Some(input / group),
        Op::HeadLinear(h) => Some(h.weights.len()),
        Op::Rope(r) => Some(input / r.head_dim),
        Op::KvAppend(k) => Some(k.width),
        Op::Attention(a) => Some(if a.kv_heads == 1 { a.heads } else { a.kv_heads }),
        Op::SliceCols { group, .. } => Some(input / group),
        Op::ConcatCols { groups } => Some(*groups),
        Op::Activate(_)
        | Op::Gate(_)
        | Op::Add
        | Op::Scale { .. }
        | Op::Clamp { .. }
        | Op::SoftCap { .. }
        | Op::Convert
        | Op::SigmoidGate => Some(input),
        Op::Embed { .. }
        | Op::Rescale(_)
        | Op::Mix { .. }
        | Op::DecayingSum(_)
        | Op::DeltaRule(_)
        | Op::ShortConv(_)
        | Op::Mamba2(_)
        | Op::Router(_)
        | Op::Experts(_)
        | Op::ExpertGroup(_) => None,
    }
    .filter(|n| *n > 1)
}

/// Whether an op can never be split: its weights have no columns of the result, it needs whole
/// rows, or it is a product of one column or head.
fn never(graph: &Subgraph, node: &Node) -> bool {
    match &node.op {
        Op::Embed { .. }
        | Op::DecayingSum(_)
        | Op::DeltaRule(_)
        | Op::ShortConv(_)
        | Op::Mamba2(_)
        | Op::Experts(_)
        | Op::ExpertGroup(_)
        | Op::Router(_)
        | Op::Linear { .. }
        | Op::Outliers { .. }
        | Op::Attention(_)
        | Op::HeadLinear(_) => groups(graph, node).is_none(),
        _ => false,
    }
}

/// Assigns stages to ops one by one.
struct Assigner<'g> {
    graph: &'g Subgraph,
    /// The stage of the op that made each value.
    values: HashMap<ValueId, OpStage>,
    /// The stage of the last op that used each state.
    states: HashMap<ValueId, OpStage>,
}

/// Assigns stages to all ops; `whole` says which of them must not be split.
pub(super) fn assign(graph: &Subgraph, whole: &[bool]) -> Vec<OpStage> {
    let mut p = Assigner { graph, values: HashMap::new(), states: HashMap::new() };
    let mut places = Vec::with_capacity(graph.nodes.len());
    for (node, whole) in graph.nodes.iter().zip(whole) {
        let place = p.one(node, *whole);
        p.values.extend(node.outputs.iter().map(|v| (*v, place)));
        p.states.extend(node.states.iter().map(|v| (*v, place)));
        places.push(place);
    }
    keep_what_is_not_shared(graph, &mut places);
    places
}

impl Assigner<'_> {
    /// The first stage in which a reader can use all operands.
    fn ready(&self, node: &Node, reader: impl Fn(Reads) -> Reader) -> usize {
        let inputs = node.inputs.iter().enumerate();
        let inputs = inputs
            .map(|(i, v)| found(self.values.get(v).copied(), reader(reads_input(&node.op, i))));
        let reads = reads_states(&node.op);
        let states = node.states.iter();
        let states = states.map(|v| found(self.states.get(v).copied(), reader(reads)));
        inputs.chain(states).max().unwrap_or(0)
    }

    fn one(&self, node: &Node, whole: bool) -> OpStage {
        let alone = self.ready(node, |_| Reader::Alone);
        let append = matches!(node.op, Op::KvAppend(_));
        if whole || never(self.graph, node) || (append && !self.heads_are_known(node)) {
            return OpStage { stage: alone, mode: Mode::Alone };
        }
        match &node.op {
            Op::Linear { .. }
            | Op::Outliers { .. }
            | Op::HeadLinear(_)
            | Op::Attention(_)
            | Op::KvAppend(_) => {
                OpStage { stage: self.ready(node, Reader::Split), mode: Mode::Split }
            }
            _ => self.cheap(node, alone),
        }
    }

    /// The stage of a cheap op: with the columns of a split op before it, or else with each reader
    /// of its result.
    fn cheap(&self, node: &Node, alone: usize) -> OpStage {
        let split = self.ready(node, Reader::Split);
        let follows = |v: &ValueId| {
            let made = self.values.get(v);
            made.is_some_and(|p| p.mode == Mode::Split && p.stage == split)
        };
        let groups = groups(self.graph, node).is_some();
        if groups && (node.inputs.iter().any(follows) || self.leads(node)) {
            return OpStage { stage: split, mode: Mode::Split };
        }
        let copied = self.ready(node, |_| Reader::Copied);
        let stage = copied.min(alone);
        OpStage { stage, mode: if copied <= alone { Mode::Copied } else { Mode::Alone } }
    }

    /// Whether an op computes, from the graph's inputs, a value that is only read by ops split by
    /// heads. Each part then needs its own columns of it.
    fn leads(&self, node: &Node) -> bool {
        let by_heads = |n: &Node| match n.op {
            Op::Attention(_) | Op::HeadLinear(_) => !never(self.graph, n),
            Op::KvAppend(_) => self.heads_are_known(n),
            _ => false,
        };
        let made = |v: &ValueId| self.values.contains_key(v);
        let reads = |n: &&Node| n.inputs.iter().any(|v| node.outputs.contains(v));
        let mut readers = self.graph.nodes.iter().filter(reads).peekable();
        let leaves = node.outputs.iter().any(|v| self.graph.outputs.contains(v));
        !node.inputs.iter().any(made)
            && !leaves
            && readers.peek().is_some()
            && readers.all(by_heads)
    }

    /// Whether the graph has all attentions that read the cache written by an op, and they agree on
    /// a number of heads above one.
    fn heads_are_known(&self, append: &Node) -> bool {
        let heads = |n: &Node| match &n.op {
            Op::Attention(a) if n.states.iter().any(|s| append.states.contains(s)) => {
                Some(a.kv_heads)
            }
            _ => None,
        };
        let mut heads = self.graph.nodes.iter().filter_map(heads);
        let first = heads.next();
        first.is_some_and(|n| n > 1) && heads.all(|n| Some(n) == first)
    }
}

/// Gives ops to one part if no split op of their stage depends on their results.
fn keep_what_is_not_shared(graph: &Subgraph, places: &mut [OpStage]) {
    for i in (0..places.len()).rev() {
        if places[i].mode != Mode::Copied {
            continue;
        }
        let node = &graph.nodes[i];
        let later = graph.nodes.iter().zip(places.iter()).skip(i + 1);
        let mut readers = later.filter(|(n, p)| {
            p.stage == places[i].stage && n.inputs.iter().any(|v| node.outputs.contains(v))
        });
        if !readers.any(|(_, p)| matches!(p.mode, Mode::Split | Mode::Copied)) {
            places[i].mode = Mode::Alone;
        }
    }
}
