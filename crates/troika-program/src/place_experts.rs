//! Places the experts of a segment: cuts its graph around them and makes the graphs of groups.

use std::ops::Range;
use std::sync::Arc;

use troika_device::{Caps, SpaceId};
use troika_graph::partition::{
    ColumnSplit, Piece, expert_group, expert_products, single_choices, split_columns,
};
use troika_graph::{DType, Subgraph, ValueId};
use troika_model::lower::{EdgeId, ModelPart, Segment};
use troika_plan::{
    Dispatch, ExpertGroupPlan, ExpertSplit, Overflow, Phase, Plan, PlanDevice, Rule, TILE,
    own_space,
};

use crate::error::ProgramError;
use crate::experts::{
    CachedGroup, DividedExperts, ExpertBuffer, ExpertCache, ExpertRows, GroupGraph, PackedCols,
    PackedSize, RoutedShape, graph_bytes, rows_to_fill,
};
use crate::pieces::{self, PlacedGraph};
use crate::place::{Placer, Stage};
use crate::placed::{Between, PackedOperands, PlacedExperts, PlacedPiece, PlacedSegment};
use crate::program::Program;
use crate::used_shares::nothing_left;
use crate::window::chunks_of_window;

impl Placer<'_> {
    /// Divides a segment whose rule shares its experts out.
    pub(crate) fn experts(
        &self,
        segment: &Segment,
        root: PlacedGraph,
        rule: &Rule,
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
                // The rule's own device computes it.
                let (kind, heads, shared) = (segment.kind, None, false);
                let stage = Stage { root, rule: &own, kind, heads, shared };
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
        let (pieces, packed) = self.graphs_of_experts(&graph, rule, device, split)?;
        let placed = PlacedExperts {
            split: split.clone(),
            pieces,
            packed,
            experts: graph.experts().map_or(0, |e| e.gate.len()),
            top_k: width(1),
            cols: width(0),
            stages: [before, beside],
            inputs,
            output,
            attention: match split.overflow {
                Overflow::Prune => Some(self.around_mixer(segment)?),
                Overflow::Cpu | Overflow::Pad => None,
            },
        };
        Ok(PlacedSegment::new(stages, between, Some(placed)))
    }

    /// The graphs of all groups, then the graph of the rule's device, and the buffers of the
    /// groups.
    fn graphs_of_experts(
        &self,
        graph: &Subgraph,
        rule: &Rule,
        device: usize,
        split: &ExpertSplit,
    ) -> Result<(Vec<PlacedPiece>, Vec<PackedOperands>), ProgramError> {
        // A calibration knows no inputs of single experts.
        let mut rule = rule.clone();
        rule.activations.retain(|format| !format.is_calibrated());
        let alone = |device: usize, graph: Subgraph| {
            let (inputs, states, outputs) = (Vec::new(), Vec::new(), Vec::new());
            self.piece(PlacedGraph { device, graph, inputs, states, outputs }, &rule, true)
        };
        let (mut all, mut packed) = (Vec::new(), Vec::new());
        for (number, group) in split.groups.iter().enumerate() {
            for (device, graph, operands) in self.graphs_of_group(graph, group)? {
                let (rows, piece) = (graph.max_rows(), alone(device, graph));
                let PlanDevice { name, caps } = &self.devices[device];
                let bytes = graph_bytes(&piece.graph, caps);
                if let Some(most) = caps.max_graph_bytes.filter(|most| bytes > *most) {
                    let (group, of) = (number + 1, &piece.graph.name);
                    return Err(ProgramError::NotTaken(format!(
                        "group {group} of the plan's experts in {of} has {bytes} bytes of weights \
                         on device {name}, whose graphs hold {most}; put fewer experts into a group"
                    )));
                }
                all.push(PlacedPiece { shapes: vec![rows], ..piece });
                packed.push(PackedOperands { group: number, ..operands });
            }
        }
        all.push(alone(device, single_choices(graph)?));
        Ok((all, packed))
    }

    /// The graphs of a group with their devices, in an order in which they can run.
    fn graphs_of_group(
        &self,
        graph: &Subgraph,
        group: &ExpertGroupPlan,
    ) -> Result<Vec<(usize, Subgraph, PackedOperands)>, ProgramError> {
        let unplaced = || ProgramError::Unplaced(graph.name.clone());
        let width = |graph: &Subgraph, value: ValueId| graph.value(value).shape.row_len();
        if group.parts.is_empty() {
            let device = self.index(&group.device).ok_or_else(unplaced)?;
            let graph = expert_group(graph, &group.experts, group.capacity)?;
            let of = width(&graph, graph.outputs[0]);
            let writes = PackedCols { buffer: ExpertBuffer::Output, cols: 0..of };
            let reads = ExpertBuffer::Input;
            let operands = PackedOperands { group: 0, part: 0, reads, writes, of };
            return Ok(vec![(device, graph, operands)]);
        }
        let expert = group.experts.first().copied().ok_or_else(unplaced)?;
        let whole = expert_products(graph, expert, group.capacity)?;
        let shares = group.parts.iter().map(|p| p.share).collect();
        let split = split_columns(&whole, &ColumnSplit { shares, tile: TILE, groups: None })?;
        let buffer = |value: ValueId| match value {
            value if whole.inputs.contains(&value) => ExpertBuffer::Input,
            value if whole.outputs.contains(&value) => ExpertBuffer::Output,
            _ => ExpertBuffer::Inner,
        };
        let place = |piece: Piece| {
            let device = self.index(&group.parts[piece.part].device).ok_or_else(unplaced)?;
            let ([reads], [writes]) = (&piece.inputs[..], &piece.outputs[..]) else {
                return Err(unplaced());
            };
            let of = width(&whole, writes.value);
            let reads = buffer(reads.value);
            let writes = PackedCols { buffer: buffer(writes.value), cols: writes.cols.clone() };
            let operands = PackedOperands { group: 0, part: piece.part, reads, writes, of };
            Ok((device, piece.graph, operands))
        };
        let pieces: Vec<Piece> = split.stages.into_iter().flat_map(|s| s.pieces).collect();
        let idle = |part: &usize| pieces.iter().all(|piece| piece.part != *part);
        if let Some(part) = (0..group.parts.len()).find(idle) {
            let widest = whole.weights.iter().map(|w| w.rows).max().unwrap_or(0);
            return Err(nothing_left(&group.parts[part].device, widest));
        }
        pieces.into_iter().map(place).collect()
    }

    /// Checks that a device can route rows: it runs functions of the host on the host's memory, and
    /// takes any number of rows from anywhere.
    fn check_router(&self, device: usize) -> Result<(), ProgramError> {
        let device = &self.devices[device];
        let Caps { static_shapes, host_tasks, offset_alignment, .. } = device.caps;
        let on_host = own_space(&device.caps) == SpaceId::HOST;
        if host_tasks && on_host && !static_shapes && offset_alignment <= 1 {
            return Ok(());
        }
        Err(ProgramError::NotTaken(format!(
            "device {} cannot share experts out: that takes a CPU which runs functions of the host \
             and takes any number of rows; name one as the rule's device",
            device.name
        )))
    }

    /// The values before and after the mixer of a segment's layer.
    fn around_mixer(&self, segment: &Segment) -> Result<[usize; 2], ProgramError> {
        let of_mixer =
            |s: &&Segment| s.layer == segment.layer && s.kind.traits().part == ModelPart::Mixer;
        let last = self.lowered.segments.iter().rfind(of_mixer);
        // The mixer's result comes first, what it is added to second.
        let around = last.and_then(|s| Some([*s.inputs.last()?, *s.outputs.first()?]));
        let plain = |e: &EdgeId| self.types.edge(*e, Phase::Prefill) == DType::F32;
        let around = around.filter(|edges| edges.iter().all(plain));
        let refused = || {
            ProgramError::Misfit(format!(
                "rows of {} cannot be left out by what attention added to them, which is handed on \
                 in 16 bits; leave \"values\" out of the rules, or take another overflow",
                segment.graph.name
            ))
        };
        Ok(around.ok_or_else(refused)?.map(|edge| edge.0))
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
        let (rest, parts) = experts.pieces.split_last()?;
        let graph = |piece: &PlacedPiece| graphs[piece.index].first().copied();
        let mut groups = vec![Vec::new(); experts.split.groups.len()];
        let mut inner = 0;
        for (piece, operands) in parts.iter().zip(&experts.packed) {
            let PackedOperands { group, part, reads, writes, of } = operands.clone();
            if writes.buffer == ExpertBuffer::Inner {
                inner = of;
            }
            let caps = &self.devices[piece.device].caps;
            let apart = writes.cols != (0..of) && !reaches(caps, &writes.cols, of, piece);
            groups[group].push(GroupGraph {
                graph: graph(piece)?,
                device: piece.device,
                space: own_space(caps),
                name: piece.name.clone(),
                reads: vec![reads],
                apart: apart.then_some(part),
                writes,
            });
        }
        let shape = RoutedShape {
            experts: experts.experts,
            top_k: experts.top_k,
            // Set when all placements are known.
            rows: 0,
            align: 1,
            pairs: 0,
            most_rest: rest.shapes.last().copied().unwrap_or(1),
        };
        self.experts.push(Arc::new(DividedExperts {
            layer: self.lowered.segments[segment].layer.unwrap_or(0),
            split: experts.split.clone(),
            cached: vec![None; groups.len()],
            groups,
            inner,
            rest: GroupGraph {
                graph: graph(rest)?,
                device: rest.device,
                space: SpaceId::HOST,
                name: rest.name.clone(),
                reads: vec![ExpertBuffer::Input, ExpertBuffer::Ids, ExpertBuffer::Ones],
                writes: PackedCols { buffer: ExpertBuffer::Output, cols: 0..experts.cols },
                apart: None,
            },
            shape,
        }));
        Some(self.experts.len() - 1)
    }

    /// Finds the groups that come and go.
    ///
    /// # Errors
    /// A cache without room for one group.
    pub(crate) fn find_caches(&mut self, plan: &Plan) -> Result<(), ProgramError> {
        for cache in &plan.expert_caches {
            let device = self.devices.iter().position(|d| d.name == cache.device);
            let device = device.ok_or_else(|| ProgramError::Unplaced(cache.device.clone()))?;
            let caps = &self.devices[device].caps;
            let of = (cache, device, plan.prefill.chunks_in_flight);
            let made = ExpertCache::new(of, caps, &self.experts, &self.graphs)?;
            // All of them fit: nothing comes or goes.
            if made.slots >= made.graphs.len() {
                continue;
            }
            for experts in self.experts.iter_mut().map(Arc::make_mut) {
                for (graphs, cached) in experts.groups.iter().zip(&mut experts.cached) {
                    let group = graphs.first().and_then(|of| made.group(of.graph));
                    if let Some(group) = group.filter(|_| graphs.len() == 1) {
                        *cached = Some(CachedGroup { cache: self.caches.len(), group });
                    }
                }
            }
            self.caches.push(made);
        }
        Ok(())
    }

    /// Sets the size of packed buffers, which all layers share.
    pub(crate) fn size_experts(&mut self, plan: &Plan) {
        let cols = self.lowered.segments.iter().find(|s| s.kind.traits().by_experts);
        let cols = cols.map_or(0, |s| self.lowered.edges[s.inputs[0].0].cols);
        let inner = self.experts.iter().map(|e| e.inner).max().unwrap_or(0);
        let mut size = PackedSize { cols, inner, ..PackedSize::default() };
        let align = self.row_alignment(&size);
        let fill = |e: &Arc<DividedExperts>| rows_to_fill(&e.split, e.shape.experts, e.shape.top_k);
        let gathers = |e: &&Arc<DividedExperts>| e.split.dispatch == Dispatch::LayerMajor;
        let filling = self.experts.iter().filter(gathers).map(fill).max().unwrap_or(1);
        self.filling = filling.div_ceil(plan.prefill.chunk.max(1));
        // Fewer chunks may be one window, and more of them two shorter ones.
        let in_flight = 1..=plan.prefill.chunks_in_flight;
        let window = in_flight.map(|n| chunks_of_window(n, self.filling)).max().unwrap_or(1);
        for experts in self.experts.iter_mut().map(Arc::make_mut) {
            let pairs = plan.prefill.chunk.saturating_mul(experts.shape.top_k);
            let (pairs, rows) = match experts.split.dispatch {
                Dispatch::PerChunk => (pairs, &mut size.of_chunk),
                Dispatch::LayerMajor => (pairs.saturating_mul(window), &mut size.of_window),
            };
            (experts.shape.pairs, experts.shape.align) = (pairs, align);
            *rows = (*rows).max(ExpertRows::room(&experts.split, pairs, align));
        }
        for experts in self.experts.iter_mut().map(Arc::make_mut) {
            experts.shape.rows = match experts.split.dispatch {
                Dispatch::PerChunk => size.of_chunk,
                Dispatch::LayerMajor => size.of_window,
            };
        }
        self.packed = size;
    }

    /// The number of rows whose multiples begin where all devices of groups can be bound.
    fn row_alignment(&self, size: &PackedSize) -> usize {
        let of_layer = |e: &Arc<DividedExperts>| PackedSize { inner: e.inner, ..*size };
        let graphs = self
            .experts
            .iter()
            .flat_map(|e| e.groups.iter().flatten().map(move |graph| (graph, of_layer(e))));
        let align = graphs.flat_map(|(g, size)| {
            let multiple = self.devices[g.device].caps.offset_alignment.max(1);
            let written = g.apart.map_or(g.writes.buffer, ExpertBuffer::Part);
            [g.reads[0], written].map(|buffer| {
                let row = size.row_bytes(buffer).max(1);
                multiple / common_divisor(multiple, row)
            })
        });
        align.fold(1, |all, one| all / common_divisor(all, one) * one)
    }
}

/// Whether a device on the host's memory writes columns of wider rows.
fn reaches(caps: &Caps, cols: &Range<usize>, of: usize, piece: &PlacedPiece) -> bool {
    let span = piece.graph.max_rows().saturating_mul(of * 4) as u64;
    own_space(caps) == SpaceId::HOST
        && caps.strided_rows
        && caps.max_binding_bytes.is_none_or(|most| span <= most)
        && (cols.start * 4).is_multiple_of(caps.offset_alignment.max(1))
}

/// The greatest common divisor.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { common_divisor(b, a % b) }
}
