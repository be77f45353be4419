//! The parts of segments whose experts are shared out, as prices tell them apart.

use serde::{Deserialize, Serialize};
use troika_graph::{Op, Subgraph};
use troika_model::lower::SegmentKind;

/// A part of a segment whose experts are shared out. Each is priced by measurements of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SegmentPart {
    /// All of a segment, or a share of its columns.
    #[default]
    Whole,
    /// A group of experts.
    Group,
    /// Experts of rows that chose one each.
    Choices,
    /// What comes before, beside and after experts.
    Beside,
}

impl SegmentPart {
    /// All parts.
    pub const ALL: [SegmentPart; 4] =
        [SegmentPart::Whole, SegmentPart::Group, SegmentPart::Choices, SegmentPart::Beside];

    /// The part that a graph of a kind of segment is.
    pub fn of(kind: SegmentKind, graph: &Subgraph) -> SegmentPart {
        if !kind.traits().by_experts {
            return SegmentPart::Whole;
        }
        let of_experts = |op: &Op| matches!(op, Op::ExpertGroup(_) | Op::Experts(_));
        let Some(node) = graph.nodes.iter().find(|node| of_experts(&node.op)) else {
            return SegmentPart::Beside;
        };
        let chosen = node.inputs.get(1).map(|ids| graph.value(*ids).shape.row_len());
        match &node.op {
            Op::ExpertGroup(_) => SegmentPart::Group,
            _ if graph.nodes.len() == 1 && chosen == Some(1) => SegmentPart::Choices,
            _ => SegmentPart::Whole,
        }
    }
}

/// Whether it is all of a segment.
pub(crate) fn is_whole(part: &SegmentPart) -> bool {
    *part == SegmentPart::Whole
}
