//! The graphs to measure: each distinct kind of segment, whole and in shares of its columns; of
//! experts, groups of them, and what runs beside groups.

use troika_graph::partition::{
    ColumnSplit, around_experts, expert_group, single_choices, split_columns,
};
use troika_graph::{ActivationFormat, Subgraph, convert_products, restrict_activations};
use troika_model::lower::{Lowered, SegmentKind};
use troika_plan::CalibratedProducts;

use crate::segment_part::SegmentPart;

/// A graph to measure. It stands for all layers with the same shape.
#[derive(Clone, Debug)]
pub struct ProfiledGraph {
    /// Its name in the profile.
    pub name: String,
    /// The kind of segment.
    pub kind: SegmentKind,
    /// Which part of it, where experts are shared out.
    pub part: SegmentPart,
    /// Its share of the columns, in 64ths.
    pub share: u32,
    /// The only number of rows that it is measured with; `None`: several.
    pub rows: Option<usize>,
    /// The graph of each layer: one code, different weights.
    pub layers: Vec<Subgraph>,
}

/// Experts of groups to measure, and rows of each.
const GROUPS: [usize; 4] = [1, 4, 8, 16];
const CAPACITIES: [usize; 3] = [16, 64, 256];

/// The shares of columns to measure. Shares of the second list are held out from the fits.
const FITTED: [u32; 1] = [32];
const HELD_OUT: [u32; 2] = [16, 48];

impl ProfiledGraph {
    /// Whether the fits leave it out.
    pub fn held_out(&self) -> bool {
        HELD_OUT.contains(&self.share)
    }
}

/// The graphs of a model to measure on a device of the given formats, the only one or one of
/// `several`.
pub fn profiled_graphs(
    lowered: &Lowered,
    formats: &[ActivationFormat],
    several: bool,
) -> Vec<ProfiledGraph> {
    let mut all: Vec<ProfiledGraph> = Vec::new();
    for segment in &lowered.segments {
        let heads = lowered.heads_behind(segment);
        let whole = restrict_activations(&segment.graph, formats);
        let converted = formats.iter().find(|f| f.converts_weights());
        let whole = match converted {
            Some(format) if CalibratedProducts::rounds(segment.kind) => {
                convert_products(&whole, *format)
            }
            _ => whole,
        };
        add(&mut all, of_share(segment.kind, 64, 0, whole.clone()));
        if several && segment.kind.traits().by_experts {
            parts(&mut all, &whole, converted.copied());
        }
        for share in FITTED.into_iter().chain(HELD_OUT) {
            let split = ColumnSplit { shares: vec![share, 64 - share], tile: 16, groups: heads };
            let Ok(pieces) = split_columns(&whole, &split) else { continue };
            if !pieces.is_split() {
                continue;
            }
            let of_part = |p: &troika_graph::partition::Piece| p.part == 0;
            let pieces = pieces.stages.into_iter().flat_map(|s| s.pieces).filter(of_part);
            for (stage, piece) in pieces.enumerate() {
                add(&mut all, of_share(segment.kind, share, stage, piece.graph));
            }
        }
    }
    all
}

/// Adds the parts of a segment whose experts are shared out.
fn parts(all: &mut Vec<ProfiledGraph>, whole: &Subgraph, converted: Option<ActivationFormat>) {
    let (Ok(around), Ok(choices)) = (around_experts(whole), single_choices(whole)) else { return };
    let mut add = |part, name: String, rows, graph: Subgraph| {
        let (kind, share, layers) = (SegmentKind::Experts, 64, vec![graph]);
        add(all, ProfiledGraph { name, kind, part, share, rows, layers });
    };
    for piece in [around.before, around.beside, around.after].into_iter().flatten() {
        add(SegmentPart::Beside, "beside experts".into(), None, piece.graph);
    }
    add(SegmentPart::Choices, "experts of one choice each".into(), None, choices);
    let experts = around.experts.graph.experts();
    let ids: Vec<usize> = (0..experts.map_or(0, |e| e.gate.len())).collect();
    let most = whole.max_rows().max(CAPACITIES[0]);
    // A layer with fewer experts than that has no group of this size.
    for size in GROUPS.into_iter().filter(|size| *size <= ids.len()) {
        for capacity in CAPACITIES.into_iter().filter(|rows| *rows <= most) {
            let Ok(group) = expert_group(whole, &ids[..size], capacity) else { continue };
            let group = match converted.filter(|f| *f == ActivationFormat::F16) {
                Some(format) => convert_products(&group, format),
                None => group,
            };
            let name = format!("experts in a group of {size} x {capacity}");
            add(SegmentPart::Group, name, Some(size * capacity), group);
        }
    }
}

/// Adds a graph to those with the same code, or as a new one.
fn add(all: &mut Vec<ProfiledGraph>, new: ProfiledGraph) {
    let key = |g: &ProfiledGraph| (g.kind, g.share, g.part, g.rows);
    let same =
        |g: &&mut ProfiledGraph| key(g) == key(&new) && g.layers[0].same_code(&new.layers[0]);
    if let Some(known) = all.iter_mut().find(same) {
        return known.layers.extend(new.layers);
    }
    let alike = all.iter().filter(|g| g.name.starts_with(&new.name)).count();
    all.push(ProfiledGraph { name: format!("{} shape {alike}", new.name), ..new });
}

/// A share of a segment's columns, of one stage.
fn of_share(kind: SegmentKind, share: u32, stage: usize, graph: Subgraph) -> ProfiledGraph {
    let name = format!("{} {share}/64 stage {stage}", kind.name());
    let (part, rows, layers) = (SegmentPart::Whole, None, vec![graph]);
    ProfiledGraph { name, kind, part, share, rows, layers }
}
