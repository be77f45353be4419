//! Places the experts of a segment: cuts its graph around them and makes the graphs of groups.

use std::sync::Arc;

use troika_device::{Caps, SpaceId};
use troika_graph::partition::{expert_group, single_choices};
use troika_graph::{DType, Subgraph, restrict_activations};
use troika_model::lower::{EdgeId, Segment, SegmentKind};
use troika_plan::{Dispatch, ExpertSplit, Overflow, Phase, Plan, PlanDevice, Rule, own_space};

use crate::error::ProgramError;
use crate::experts::{ExpertRows, GroupGraph, PackedSize, RoutedShape, SharedExperts, graph_bytes};
use crate::pieces::{self, PlacedGraph};
use crate::place::{Placer, Stage};
use crate::placed::{Between, PlacedExperts, PlacedPiece, PlacedSegment};
use crate::program::Program;

impl Placer<'_> {
    /// Divides a segment whose rule shares its experts out.
    pub(crate) fn experts(
        &self,
        segment: &Segment,
        (root, rule): (PlacedGraph, &Rule),
        split: &ExpertSplit,
    ) -> Result<PlacedSegment, ProgramError> {
        let mut between: Vec<Between> = Vec::new();
        let around = pieces::around_experts(&root, &mut between)?;
        let device = self.index(&rule.device);
        let device = device.ok_or_else(|| ProgramError::Unplaced(root.graph.name.clone()))?;
        self.check_router(device)?;
        let own = Rule { split: None, ..rule.clone() };
        let mut stages = Vec::new();
        let mut stage = |root: Option<PlacedGraph>, between: &mut Vec<Between>| {
            if let Some(root) = root {
                let stage = Stage { root, rule: &own, kind: segment.kind, heads: None };
                stages.push(self.stage(stage, between)?);
            }
            Ok::<usize, ProgramError>(stages.len())
        };
        let before = stage(around.before, &mut between)?;
        let beside = stage(around.beside, &mut between)?;
        stage(around.after, &mut between)?;
        let PlacedGraph { graph, inputs, outputs, .. } = around.experts;
        let (Ok(inputs), Some(output)) = (<[_; 3]>::try_from(inputs), outputs.into_iter().next())
        else {
            return Err(ProgramError::Unplaced(graph.name));
        };
        let width = |i: usize| graph.value(graph.inputs[i]).shape.row_len();
        let experts = graph.nodes.iter().find_map(|node| match &node.op {
            troika_graph::Op::Experts(e) => Some(e.gate.len()),
            _ => None,
        });
        let placed = PlacedExperts {
            split: split.clone(),
            pieces: self.graphs_of_experts(&graph, (rule, device), split)?,
            experts: experts.unwrap_or(0),
            top_k: width(1),
            cols: width(0),
            stages: [before, beside],
            inputs,
            output,
            attention: match split.overflow {
                Overflow::Prune => Some(self.around_attention(segment)?),
                Overflow::Cpu | Overflow::Pad => None,
            },
        };
        Ok(PlacedSegment::with_experts(stages, between, placed))
    }

    /// The graphs of all groups, then that of the rule's device.
    fn graphs_of_experts(
        &self,
        graph: &Subgraph,
        (rule, device): (&Rule, usize),
        split: &ExpertSplit,
    ) -> Result<Vec<PlacedPiece>, ProgramError> {
        let alone = |device: usize, graph: Subgraph| {
            let (inputs, states, outputs) = (Vec::new(), Vec::new(), Vec::new());
            self.piece(PlacedGraph { device, graph, inputs, states, outputs }, rule)
        };
        let mut all = Vec::new();
        for (number, group) in (1..).zip(&split.groups) {
            let device = self.index(&group.device);
            let device = device.ok_or_else(|| ProgramError::Unplaced(graph.name.clone()))?;
            // Its device has formats of its own.
            let formats = &self.devices[device].caps.activation_formats;
            let graph = restrict_activations(graph, formats);
            let graph = expert_group(&graph, &group.experts, group.capacity)?;
            let (rows, standby, piece) = (graph.max_rows(), group.standby, alone(device, graph));
            self.check_group(device, &piece.graph, number)?;
            all.push(PlacedPiece { shapes: vec![rows], standby, ..piece });
        }
        all.push(alone(device, single_choices(graph)?));
        Ok(all)
    }

    /// Checks that a device can route rows: it runs functions of the host on the host's memory, and
    /// takes any number of rows from anywhere.
    fn check_router(&self, device: usize) -> Result<(), ProgramError> {
        let device = &self.devices[device];
        let Caps { static_shapes, host_tasks, offset_alignment, .. } = device.caps;
        let on_host = own_space(&device.caps) == SpaceId::HOST;
        match host_tasks && on_host && !static_shapes && offset_alignment <= 1 {
            true => Ok(()),
            false => Err(ProgramError::Routes(device.name.clone())),
        }
    }

    /// The values before and after the attention of a segment's layer.
    fn around_attention(&self, segment: &Segment) -> Result<[usize; 2], ProgramError> {
        let of_layer = |s: &&Segment| s.layer == segment.layer && s.kind == SegmentKind::AttnOut;
        let attention = self.lowered.segments.iter().find(of_layer);
        // The result of attention comes first, what it is added to second.
        let around = attention.and_then(|s| Some([*s.inputs.last()?, *s.outputs.first()?]));
        let plain = |e: &EdgeId| self.types.edge(*e, Phase::Prefill) == DType::F32;
        let around = around.filter(|edges| edges.iter().all(plain));
        let refused = || ProgramError::Saliency(segment.graph.name.clone());
        Ok(around.ok_or_else(refused)?.map(|edge| edge.0))
    }

    /// Checks that a device takes a graph of the size of a group's.
    fn check_group(
        &self,
        device: usize,
        graph: &Subgraph,
        group: usize,
    ) -> Result<(), ProgramError> {
        let PlanDevice { name, caps } = &self.devices[device];
        let bytes = graph_bytes(graph, caps);
        match caps.max_graph_bytes.filter(|most| bytes > *most) {
            None => Ok(()),
            Some(most) => {
                let (segment, device) = (graph.name.clone(), name.clone());
                Err(ProgramError::Group { segment, group, bytes, device, most })
            }
        }
    }
}

impl Program {
    /// Adds the experts of a placement, with the graphs of its pieces.
    pub(crate) fn add_experts(
        &mut self,
        segment: usize,
        placed: &PlacedSegment,
        graphs: &[Vec<usize>],
    ) -> Option<usize> {
        let experts = placed.experts.as_ref()?;
        let (rest, groups) = experts.pieces.split_last()?;
        let graph = |piece: &PlacedPiece| graphs[piece.index].first().copied();
        let group = |piece: &PlacedPiece| {
            let space = own_space(&self.devices[piece.device].caps);
            let name: Arc<str> = piece.name.clone();
            Some(GroupGraph { graph: graph(piece)?, device: piece.device, space, name })
        };
        let shape = RoutedShape {
            experts: experts.experts,
            top_k: experts.top_k,
            // Set when all placements are known.
            rows: 0,
            align: 1,
            pairs: 0,
            most_rest: rest.shapes.last().copied().unwrap_or(1),
        };
        self.experts.push(SharedExperts {
            layer: self.lowered.segments[segment].layer.unwrap_or(0),
            device: rest.device,
            split: experts.split.clone(),
            groups: groups.iter().map(group).collect::<Option<Vec<_>>>()?,
            rest: graph(rest)?,
            rest_name: rest.name.clone(),
            shape,
        });
        Some(self.experts.len() - 1)
    }

    /// Sets the size of packed buffers, which all layers share.
    pub(crate) fn size_experts(&mut self, plan: &Plan) {
        let cols = self.lowered.segments.iter().find(|s| s.kind == SegmentKind::Experts);
        let cols = cols.map_or(0, |s| self.lowered.edges[s.inputs[0].0].cols);
        let align = self.row_alignment(cols);
        let mut size = PackedSize { cols, ..PackedSize::default() };
        for experts in &mut self.experts {
            let pairs = plan.prefill.chunk.saturating_mul(experts.shape.top_k);
            let (pairs, rows) = match experts.split.dispatch {
                Dispatch::PerChunk => (pairs, &mut size.of_chunk),
                Dispatch::LayerMajor => {
                    (pairs.saturating_mul(plan.prefill.chunks_in_flight), &mut size.of_all)
                }
            };
            (experts.shape.pairs, experts.shape.align) = (pairs, align);
            *rows = (*rows).max(ExpertRows::room(&experts.split, pairs, align));
        }
        for experts in &mut self.experts {
            experts.shape.rows = match experts.split.dispatch {
                Dispatch::PerChunk => size.of_chunk,
                Dispatch::LayerMajor => size.of_all,
            };
        }
        self.packed = size;
    }

    /// The number of rows whose multiples begin where all devices of groups can be bound.
    fn row_alignment(&self, cols: usize) -> usize {
        let row = (cols * 4).max(1);
        let groups = self.experts.iter().flat_map(|e| &e.groups);
        let align = groups.map(|g| {
            let multiple = self.devices[g.device].caps.offset_alignment.max(1);
            multiple / common_divisor(multiple, row)
        });
        align.fold(1, |all, one| all / common_divisor(all, one) * one)
    }
}

/// The greatest common divisor.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { common_divisor(b, a % b) }
}
