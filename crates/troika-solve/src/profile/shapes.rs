//! The graphs to measure: each distinct kind of segment, whole and in shares of its columns; where a
//! device computes products only, these and the other ops apart; of experts, groups of them, and
//! what runs beside groups.

use troika_graph::partition::{
    ColumnSplit, around_experts, cut_at, expert_group, single_choices, split_columns,
};
use troika_graph::{
    ActivationFormat, Op, ProductForm, Subgraph, convert_products, form_products,
    restrict_activations,
};
use troika_model::lower::{Lowered, ModelPart, SegmentKind};
use troika_plan::{CalibratedProducts, stage_borders};

use crate::forms::Products;
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

/// Which parts of segments are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apart<'a> {
    /// Experts apart from what is beside them: there are several devices.
    pub experts: bool,
    /// Products apart from other ops: there is an NPU, which may take nothing else.
    pub products: bool,
    /// The forms in which products are measured besides: this device may gain from them.
    pub forms: &'a [ProductForm],
}

/// The graphs of a model to measure on a device of the given formats.
pub fn profiled_graphs(
    lowered: &Lowered,
    formats: &[ActivationFormat],
    apart: Apart<'_>,
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
        if apart.experts && segment.kind.traits().by_experts {
            parts(&mut all, &whole, converted.copied());
        }
        // What an NPU takes of a router.
        let choice = whole.nodes.iter().position(|n| matches!(n.op, Op::Router(_)));
        if let Some(at) = choice.filter(|at| apart.experts && *at > 0)
            && let Ok([before, _]) = cut_at(&whole, &[at - 1]).as_deref()
        {
            let of = of_share(segment.kind, 64, 0, before.graph.clone());
            let name = "before choices".into();
            add(&mut all, ProfiledGraph { name, part: SegmentPart::Beside, ..of });
        }
        if apart.products && SegmentPart::has_products(segment.kind) {
            stages(&mut all, segment.kind, &whole);
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
    // At the end, since graphs of all devices are measured in turns.
    let part = if apart.products { SegmentPart::Products } else { SegmentPart::Whole };
    let has =
        |g: &&ProfiledGraph| g.part == part && g.share == 64 && SegmentPart::has_products(g.kind);
    if !apart.forms.is_empty() {
        let formed = |g: &ProfiledGraph| forms(g, apart.forms);
        all.extend(all.iter().filter(has).flat_map(formed).collect::<Vec<_>>());
    }
    all
}

/// The products of a segment in each form, and as they are. A head has one row, so no groups.
fn forms(of: &ProfiledGraph, forms: &[ProductForm]) -> Vec<ProfiledGraph> {
    let is_head = of.kind.traits().part == ModelPart::Head;
    let forms = forms.iter().filter(|form| !is_head || **form == ProductForm::Exchanged);
    let forms: Vec<_> = [None].into_iter().chain(forms.map(|form| Some(*form))).collect();
    let layers: Vec<Vec<Products>> = of.layers.iter().map(Products::of).collect();
    let stages = 0..layers.first().map_or(0, Vec::len);
    let formed = |stage: usize, form: Option<ProductForm>| {
        let stages = || layers.iter().filter_map(|stages| stages.get(stage));
        let part = SegmentPart::Form { of: *stages().next()?.roles.first()?, form };
        let layers = stages().map(|p| form_products(&p.graph, |_| form)).collect();
        let name = format!("{}: {}", of.name, part.name());
        Some(ProfiledGraph { name, part, layers, ..of.clone() })
    };
    let all = stages.flat_map(|stage| forms.iter().map(move |form| (stage, *form)));
    all.filter_map(|(stage, form)| formed(stage, form)).collect()
}

/// Adds a segment's products and its other ops; products in shares of their columns, too.
fn stages(all: &mut Vec<ProfiledGraph>, kind: SegmentKind, whole: &Subgraph) {
    let Ok(pieces) = cut_at(whole, &stage_borders(whole)) else { return };
    for (stage, piece) in pieces.into_iter().enumerate() {
        let part = SegmentPart::of(kind, &piece.graph);
        let mut add = |share: u32, graph: Subgraph| {
            let name = format!("{} {} {share}/64 stage {stage}", kind.name(), part.name());
            add(all, ProfiledGraph { part, name, ..of_share(kind, share, stage, graph) });
        };
        let halves =
            ColumnSplit { shares: vec![FITTED[0], 64 - FITTED[0]], tile: 16, groups: None };
        let half =
            split_columns(&piece.graph, &halves).ok().filter(|_| part == SegmentPart::Products);
        let half = half.into_iter().flat_map(|half| half.stages).flat_map(|stage| stage.pieces);
        half.filter(|p| p.part == 0).for_each(|p| add(FITTED[0], p.graph));
        add(64, piece.graph);
    }
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
            let group = match converted.filter(ActivationFormat::is_halves) {
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
