//! The parts of segments whose experts are shared out, or whose products are computed apart, as
//! prices tell them apart.

use serde::{Deserialize, Serialize};
use troika_graph::{Node, Op, ProductForm, Subgraph};
use troika_model::lower::SegmentKind;
use troika_model::spec::WeightRole;

/// A part of a segment. Each is priced by measurements of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SegmentPart {
    /// All of a segment, or a share of its columns.
    #[default]
    Whole,
    /// A group of experts.
    Group,
    /// Experts of rows that chose one each.
    Choices,
    /// What comes before, beside and after experts or products, and before a choice of experts.
    Beside,
    /// Products alone, or a share of their columns.
    Products,
    /// Products of the same inputs alone, in one form.
    Form {
        /// The first of their weights.
        of: WeightRole,
        /// The form; `None`: as they are.
        form: Option<ProductForm>,
    },
}

impl SegmentPart {
    /// The name in tables.
    pub fn name(self) -> String {
        let name = match self {
            SegmentPart::Whole => "whole",
            SegmentPart::Group => "groups",
            SegmentPart::Choices => "choices",
            SegmentPart::Beside => "other ops",
            SegmentPart::Products => "products",
            SegmentPart::Form { of, form: None } => return format!("{of:?}"),
            SegmentPart::Form { of, form: Some(form) } => return format!("{of:?}, {form}"),
        };
        name.into()
    }

    /// Whether a kind of segment has products that another device may compute.
    pub fn has_products(kind: SegmentKind) -> bool {
        let t = kind.traits();
        t.by_columns && !t.keeps_state && !t.by_experts
    }

    /// The part that a graph of a kind of segment is, in whatever form.
    pub fn of(kind: SegmentKind, graph: &Subgraph) -> SegmentPart {
        if SegmentPart::has_products(kind) {
            let ops = || graph.nodes.iter().filter(|node| !matches!(node.op, Op::Convert));
            let products = ops().filter(|node| node.op.is_product()).count();
            return match products {
                0 => SegmentPart::Beside,
                _ if products == ops().count() => SegmentPart::Products,
                _ => SegmentPart::Whole,
            };
        }
        let routes = |node: &Node| matches!(node.op, Op::Router(_));
        if kind == SegmentKind::Router && !graph.nodes.iter().any(routes) {
            return SegmentPart::Beside;
        }
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
