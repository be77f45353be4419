//! A segment's graph as a device compiles it: for the types of its edges, and for numbers of rows.

use troika_device::Caps;
use troika_graph::{DType, Subgraph, bind_static, convert_boundary, limit_rows};
use troika_model::lower::{EdgeId, Lowered, Segment};
use troika_plan::{Phase, Plan, compiled_rows};

/// The type of each edge in each phase. It is the type in the rule for the segment that computes
/// the edge, unless the edge has no floats or the host reads it.
#[derive(Clone, Debug)]
pub struct EdgeTypes(Vec<[DType; 2]>);

impl EdgeTypes {
    /// The types that a plan asks for.
    pub fn new(lowered: &Lowered, plan: &Plan) -> EdgeTypes {
        let mut types: Vec<[DType; 2]> = lowered.edges.iter().map(|e| [e.dtype; 2]).collect();
        for segment in &lowered.segments {
            for phase in [Phase::Prefill, Phase::Decode] {
                let Some(rule) = plan.rule(phase, segment.kind, segment.layer) else { continue };
                for edge in segment.outputs.iter().filter(|e| **e != lowered.logits()) {
                    if lowered.edges[edge.0].dtype == DType::F32 {
                        types[edge.0][phase as usize] = rule.values;
                    }
                }
            }
        }
        EdgeTypes(types)
    }

    /// A segment's graph for the types of its edges in a phase.
    pub fn convert(&self, graph: &Subgraph, segment: &Segment, phase: Phase) -> Subgraph {
        let of = |edges: &[EdgeId]| -> Vec<DType> {
            edges.iter().map(|e| self.edge(*e, phase)).collect()
        };
        convert_boundary(graph, &of(&segment.inputs), &of(&segment.outputs))
    }

    /// The types of a segment's inputs, then of its outputs.
    pub fn of(&self, segment: &Segment, phase: Phase) -> impl Iterator<Item = DType> {
        segment.inputs.iter().chain(&segment.outputs).map(move |e| self.edge(*e, phase))
    }

    /// The type of an edge.
    pub fn edge(&self, edge: EdgeId, phase: Phase) -> DType {
        self.0[edge.0][phase as usize]
    }

    /// Whether all edges of a segment have the same types in both phases.
    pub(crate) fn alike(&self, segment: &Segment) -> bool {
        self.of(segment, Phase::Prefill).eq(self.of(segment, Phase::Decode))
    }

    /// The types of all edges, in prefill and in decode.
    pub(crate) fn all(&self) -> &[[DType; 2]] {
        &self.0
    }
}

/// The graphs for the numbers of rows that a device compiles for, or that the plan states instead:
/// one graph for all, or one each.
pub fn shapes(graph: &Subgraph, caps: &Caps, buckets: Option<&[usize]>) -> Vec<Subgraph> {
    let rows = compiled_rows(graph, caps, buckets).into_iter();
    rows.map(|rows| shaped(graph, rows, caps.static_shapes)).collect()
}

/// A graph for a number of rows: exactly that number if the shape is static, else at most that
/// number.
pub(crate) fn shaped(graph: &Subgraph, rows: usize, static_shape: bool) -> Subgraph {
    match static_shape {
        true => bind_static(graph, rows),
        false if rows < graph.max_rows() => limit_rows(graph, rows),
        false => graph.clone(),
    }
}
