//! A subgraph becomes code, or is refused.

use smallvec::SmallVec;
use troika_graph::{Op, Subgraph, ValueId, verify};

use crate::code::{BoundValue, Code, Shape};
use crate::emit::Emitter;
use crate::kernels::{FEW, KernelError, Loc, unsupported};
use crate::packs::{Pack, packs};
use crate::places::{Places, places};
use crate::units::units;

impl Code {
    /// Compiles a verified graph.
    ///
    /// # Errors
    /// The first op that has no kernel, with the reason.
    pub fn new(graph: &Subgraph, limit: u64) -> Result<Code, (usize, String)> {
        let (code, refusals) = Code::examine(graph, limit);
        let first = refusals.into_iter().enumerate().find_map(|(i, why)| Some((i, why?)));
        first.map_or(Ok(code), Err)
    }

    /// The code of a verified graph, and why each op is refused, if it is.
    pub fn examine(graph: &Subgraph, limit: u64) -> (Code, Vec<Option<String>>) {
        let asked: Vec<_> = graph.nodes.iter().map(|node| packs(graph, node, limit)).collect();
        let mut refusals: Vec<Option<String>> =
            asked.iter().map(|packs| packs.as_ref().err().map(ToString::to_string)).collect();
        let units = units(graph);
        let of_units = units.iter().map(|unit| match unit.vectors(graph) {
            list if list.is_empty() => Vec::new(),
            list => vec![Pack::joined(list)],
        });
        let of_nodes = asked.into_iter().map(Result::unwrap_or_default);
        let Places { values, scratch, repeats } = places(graph, &units);
        let most_short = graph.nodes.iter().find_map(|node| match &node.op {
            Op::Rope(rope) => rope.long.as_ref().map(|(_, most_short)| *most_short),
            _ => None,
        });
        let code = Code {
            packs: of_nodes.chain(of_units).collect(),
            bindings: bindings(graph),
            graph: graph.clone(),
            values,
            units,
            scratch,
            repeats,
            most_short,
            limit,
            matrix_units: false,
        };
        let (shape, locs) = (code.plain_shape(graph.max_rows().max(1)), code.plain_locs());
        for (node, refusal) in refusals.iter_mut().enumerate().filter(|(_, r)| r.is_none()) {
            *refusal = code.refusal(node, &shape, &locs);
        }
        (code, refusals)
    }

    /// Why a node cannot run with the most rows, if so.
    fn refusal(&self, at: usize, shape: &Shape, locs: &[Loc]) -> Option<String> {
        let (node, limit) = (&self.graph.nodes[at], self.limit);
        for id in node.inputs.iter().chain(&node.states).chain(&node.outputs) {
            let value = &self.values[id.0 as usize];
            let bytes = value.row_bytes().saturating_mul(value.rows_of(shape.rows)) as u64;
            if bytes > limit {
                let name = &value.name;
                return Some(format!(
                    "value {name} has {bytes} bytes, and a binding at most {limit}"
                ));
            }
        }
        let inner = self.inner_bytes(at, shape.rows, 0) as u64;
        if inner > limit {
            return Some(format!(
                "it needs {inner} bytes between its dispatches, and a binding has at most {limit}"
            ));
        }
        Emitter::new(self, shape, locs).node(at).err().map(|e| e.to_string())
    }
}

/// The values that submissions bind.
fn bindings(graph: &Subgraph) -> Vec<BoundValue> {
    let bound = |id: &ValueId, is_written| BoundValue {
        value: id.0 as usize,
        is_state: false,
        is_written,
        groups: SmallVec::new(),
    };
    let state = |id: &ValueId| {
        let mut state = BoundValue { is_state: true, ..bound(id, false) };
        for node in graph.nodes.iter().filter(|node| node.states.contains(id)) {
            let Some((group, is_written)) = node.op.page_group() else { continue };
            state.is_written |= is_written;
            state.groups.push(group);
        }
        state.groups.sort_unstable();
        state.groups.dedup();
        state
    };
    let inputs = graph.inputs.iter().map(|id| bound(id, false));
    let outputs = graph.outputs.iter().map(|id| bound(id, true));
    inputs.chain(graph.states.iter().map(state)).chain(outputs).collect()
}

/// The names of the kernels that a run of a graph dispatches, in order. `positions` are the
/// most that a row sees. Up to eight rows count as rows of different sequences. No device is needed.
///
/// # Errors
/// A graph that is malformed, or an op that has no kernel.
pub fn kernels_of(
    graph: &Subgraph,
    rows: usize,
    positions: usize,
) -> Result<Vec<&'static str>, KernelError> {
    verify(graph).or_else(unsupported)?;
    let code = Code::new(graph, u64::MAX).or_else(|(_, why)| unsupported(why))?;
    let one_row_each = rows <= FEW as usize;
    let shape = Shape { longest: positions, one_row_each, ..code.plain_shape(rows) };
    let dispatches = Emitter::all(&code, &shape, &code.plain_locs())?;
    Ok(dispatches.iter().map(|placed| placed.dispatch.spec.name).collect())
}
