//! The graphs to measure: each distinct kind of segment, whole and in shares of its columns.

use troika_graph::partition::{ColumnSplit, kv_heads, split_columns};
use troika_graph::{ActivationFormat, Subgraph, convert_products, restrict_activations};
use troika_model::lower::{Lowered, SegmentKind};
use troika_plan::CalibratedProducts;

/// A graph to measure. It stands for all layers with the same shape.
#[derive(Clone, Debug)]
pub struct ProfiledGraph {
    /// Its name in the profile.
    pub name: String,
    /// The kind of segment.
    pub kind: SegmentKind,
    /// Its share of the columns, in 64ths.
    pub share: u32,
    /// The graph of each layer: one code, different weights.
    pub layers: Vec<Subgraph>,
}

/// The shares of columns to measure; those of the second list are held out from the fits.
const FITTED: [u32; 1] = [32];
const HELD_OUT: [u32; 2] = [16, 48];

impl ProfiledGraph {
    /// Whether the fits leave it out.
    pub fn held_out(&self) -> bool {
        HELD_OUT.contains(&self.share)
    }
}

/// The graphs of a model to measure.
pub fn profiled_graphs(lowered: &Lowered, formats: &[ActivationFormat]) -> Vec<ProfiledGraph> {
    let mut all: Vec<ProfiledGraph> = Vec::new();
    for segment in &lowered.segments {
        let of_layer = |k: SegmentKind| {
            lowered.segments.iter().find(|s| s.layer == segment.layer && s.kind == k)
        };
        let heads = match segment.kind {
            SegmentKind::Qkv => of_layer(SegmentKind::Attention).and_then(|s| kv_heads(&s.graph)),
            _ => None,
        };
        let whole = restrict_activations(&segment.graph, formats);
        let converted = formats.iter().find(|f| f.converts_weights());
        let whole = match converted {
            Some(format) if CalibratedProducts::rounds(segment.kind) => {
                convert_products(&whole, *format)
            }
            _ => whole,
        };
        add(&mut all, (segment.kind, 64), (0, whole.clone()));
        for share in FITTED.into_iter().chain(HELD_OUT) {
            let split = ColumnSplit { shares: vec![share, 64 - share], tile: 16, groups: heads };
            let Ok(pieces) = split_columns(&whole, &split) else { continue };
            if !pieces.is_split() {
                continue;
            }
            let of_part = |p: &troika_graph::partition::Piece| p.part == 0;
            let pieces = pieces.stages.into_iter().flat_map(|s| s.pieces).filter(of_part);
            for (stage, piece) in pieces.enumerate() {
                add(&mut all, (segment.kind, share), (stage, piece.graph));
            }
        }
    }
    all
}

/// Adds a graph to those with the same code, or as a new one.
fn add(
    all: &mut Vec<ProfiledGraph>,
    (kind, share): (SegmentKind, u32),
    (stage, graph): (usize, Subgraph),
) {
    let same = |g: &&mut ProfiledGraph| {
        (g.kind, g.share) == (kind, share) && g.layers.iter().take(1).all(|o| o.same_code(&graph))
    };
    if let Some(known) = all.iter_mut().find(same) {
        return known.layers.push(graph);
    }
    let alike = all.iter().filter(|g| (g.kind, g.share) == (kind, share)).count();
    let name = format!("{} {share}/64 stage {stage} shape {alike}", kind.name());
    all.push(ProfiledGraph { name, kind, share, layers: vec![graph] });
}
