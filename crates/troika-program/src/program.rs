//! The plan applied to a lowered model: which device computes which piece of which segment.

use std::ops::Range;
use std::sync::Arc;

use troika_device::SpaceId;
use troika_graph::DType;
use troika_graph::partition::Partition;
use troika_model::lower::Lowered;
use troika_plan::{Overflow, Phase, Plan, PlanDevice, Rule, own_space};

use crate::error::ProgramError;
use crate::experts::{DividedExperts, ExpertCache, GroupGraph, Growing, PackedSize};
use crate::graphs::GraphList;
use crate::place::{Placer, state_instance};
use crate::placed::{PlacedPiece, PlacedSegment, PlacedStage, SegmentValue};
use crate::residency::{Instance, common};
use crate::shapes::{EdgeTypes, shaped};
use crate::used_shares::UsedShares;

/// The most chunks of prompts in one graph.
const CHUNKS_AT_ONCE: usize = 64;

/// The columns and types of values between segments or pieces.
#[derive(Debug, Default)]
pub(crate) struct ValueTable {
    pub cols: Vec<usize>,
    /// Types in prefill and in decode.
    pub dtypes: Vec<[DType; 2]>,
}

impl ValueTable {
    /// The type of a value in a phase.
    pub fn dtype(&self, value: usize, phase: Phase) -> DType {
        self.dtypes[value][phase as usize]
    }
}

/// The placement of a segment in a phase and length bucket.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    pub segment: Arc<PlacedSegment>,
    /// Index of the first value between its pieces among the program's values.
    pub between: usize,
    /// For each piece and shape, the index in the program's list of graphs.
    pub graphs: Arc<Vec<Vec<usize>>>,
    /// Its index in the program's list of divided experts.
    pub experts: Option<usize>,
}

/// The values between the pieces of a placement.
#[derive(Clone, Debug)]
pub(crate) struct BetweenOf {
    /// Index of the segment.
    pub segment: usize,
    /// Indices of the values.
    pub values: Range<usize>,
}

/// The placement of all segments for chunks of a length bucket.
#[derive(Debug)]
struct Bucket {
    /// The longest chunk of the bucket.
    up_to: usize,
    segments: Vec<Placement>,
}

/// Which device runs what.
#[derive(Debug)]
pub struct Program {
    /// The model.
    pub lowered: Arc<Lowered>,
    /// The plan's devices, in its order.
    pub devices: Vec<PlanDevice>,
    /// The graphs that devices compile.
    pub graphs: GraphList,
    /// The instances of each state: in which memory space, with which columns together.
    pub state_instances: Vec<Vec<Instance>>,
    /// Experts that are shared out at run time.
    pub experts: Vec<Arc<DividedExperts>>,
    /// Devices on which groups of them come and go.
    pub caches: Vec<ExpertCache>,
    /// The size of the buffers with the rows that go through them.
    pub packed: PackedSize,
    /// Chunks that fill buffers once which several chunks share.
    pub(crate) filling: usize,
    /// Rows that buffers have beyond a chunk: the most rows that a static shape adds to a run.
    pub padding: usize,
    /// The values between segments (the model's edges, first) and between pieces.
    pub(crate) values: ValueTable,
    /// Whether each value's pieces use disjoint columns: then there is no gain in having all of
    /// them in one buffer.
    pub(crate) apart: Vec<bool>,
    /// The values between the pieces of each placement, in order.
    pub(crate) between: Vec<BetweenOf>,
    /// For each state, the instances used in prefill and in decode.
    pub(crate) state_homes: Vec<[Vec<usize>; 2]>,
    /// By the longest chunk, ascending: the plan's length buckets, then the bucket of full chunks.
    prefill: Vec<Bucket>,
    decode: Vec<Placement>,
}

impl Program {
    /// What tasks become known from that dispatch some experts, by their index.
    pub fn growing(&self, experts: usize) -> Growing {
        let experts = self.experts[experts].clone();
        // The columns of this layer: other layers may have more.
        let size = PackedSize { inner: experts.inner, ..self.packed };
        Growing { experts, size, devices: self.devices.len() }
    }

    /// Places each segment as the plan, already checked, says.
    ///
    /// # Errors
    /// A segment without a device, a split that does not fit a segment or leaves a device nothing,
    /// or a cache in two places.
    pub fn new(
        lowered: Arc<Lowered>,
        plan: &Plan,
        at_hand: &[PlanDevice],
    ) -> Result<Program, ProgramError> {
        let find = |name: &String| at_hand.iter().find(|d| d.name == *name).cloned();
        let types = EdgeTypes::new(&lowered, plan);
        let mut program = Program {
            devices: plan.devices.iter().filter_map(find).collect(),
            graphs: GraphList::default(),
            values: ValueTable {
                cols: lowered.edges.iter().map(|e| e.cols).collect(),
                dtypes: types.all().to_vec(),
            },
            apart: Vec::new(),
            between: Vec::new(),
            state_instances: vec![Vec::new(); lowered.states.len()],
            state_homes: vec![Default::default(); lowered.states.len()],
            experts: Vec::new(),
            caches: Vec::new(),
            packed: PackedSize::default(),
            filling: 1,
            padding: 0,
            prefill: plan
                .rule_lists(Phase::Prefill)
                .map(|(up_to, _)| Bucket { up_to, segments: Vec::new() })
                .collect(),
            decode: Vec::new(),
            lowered: lowered.clone(),
        };
        let devices = program.devices.clone();
        let placer = Placer { lowered: &lowered, devices: &devices, types: &types };
        for i in 0..lowered.segments.len() {
            program.place_segment(i, plan, &placer)?;
        }
        program.padding = program.added_rows();
        program.size_experts(plan);
        program.find_caches(plan)?;
        program.find_apart();
        program.check_used(plan)?;
        for phase in [Phase::Prefill, Phase::Decode] {
            program.find_states(phase)?;
        }
        program.check_pages(plan.page_len)?;
        Ok(program)
    }

    /// Places a segment for prefill of each length and for decode. Equal placements share their
    /// pieces.
    fn place_segment(
        &mut self,
        index: usize,
        plan: &Plan,
        placer: &Placer<'_>,
    ) -> Result<(), ProgramError> {
        self.graphs.segment = self.graphs.graphs().len();
        let segment = &placer.lowered.segments[index];
        let rule = |phase: Phase, rows: usize| {
            let rule = plan.rule_for(phase, rows, segment.kind, segment.layer);
            rule.ok_or_else(|| ProgramError::Unplaced(segment.graph.name.clone()))
        };
        let mut placed: Vec<(&Rule, Placement)> = Vec::new();
        for bucket in 0..self.prefill.len() {
            let rule = rule(Phase::Prefill, self.prefill[bucket].up_to)?;
            let here = match placed.iter().find(|(known, _)| known.places_as(rule)) {
                Some((_, known)) => known.clone(),
                None => self.add(index, placer.place(segment, rule, Phase::Prefill)?),
            };
            placed.push((rule, here.clone()));
            self.prefill[bucket].segments.push(here);
        }
        let rule = rule(Phase::Decode, 1)?;
        let alike = placer.types.alike(segment);
        let known = placed.iter().find(|(known, _)| known.places_as(rule) && alike);
        let here = match known {
            Some((_, known)) => known.clone(),
            None => self.add(index, placer.place(segment, rule, Phase::Decode)?),
        };
        self.decode.push(here);
        Ok(())
    }

    fn add(&mut self, segment: usize, placed: PlacedSegment) -> Placement {
        let first = self.values.cols.len();
        for value in &placed.between {
            self.values.cols.push(value.cols);
            self.values.dtypes.push([value.dtype; 2]);
        }
        self.between.push(BetweenOf { segment, values: first..self.values.cols.len() });
        let kind = self.lowered.segments[segment].kind;
        let list = |piece: &PlacedPiece| {
            let shares = self.devices[piece.device].caps.shares_code(&piece.graph);
            let shape = |rows: &usize| {
                let graph = shaped(&piece.graph, *rows, piece.static_shapes);
                self.graphs.add(piece.device, kind, graph, shares)
            };
            piece.shapes.iter().map(shape).collect()
        };
        let graphs: Vec<Vec<usize>> = placed.pieces().map(list).collect();
        let experts = self.add_experts(segment, &placed, &graphs);
        Placement { segment: Arc::new(placed), between: first, graphs: Arc::new(graphs), experts }
    }

    /// The program's value for one of a segment.
    pub(crate) fn value(&self, segment: usize, placement: &Placement, of: SegmentValue) -> usize {
        let segment = &self.lowered.segments[segment];
        match of {
            SegmentValue::Input(i) => segment.inputs[i].0,
            SegmentValue::Output(i) => segment.outputs[i].0,
            SegmentValue::Between(i) => placement.between + i,
        }
    }

    /// The most rows that a static shape adds to a run: a run takes a shape only if it has more rows
    /// than the next smaller shape.
    fn added_rows(&self) -> usize {
        // The pieces of divided experts have buffers of their own.
        let stages = self.placements().flat_map(|(_, p)| &p.segment.stages);
        let pieces = stages.flat_map(PlacedStage::pieces).filter(|piece| piece.static_shapes);
        let added = pieces.flat_map(|piece| {
            let smaller = std::iter::once(0).chain(piece.shapes.iter().copied());
            piece.shapes.iter().zip(smaller).map(|(rows, n)| rows.saturating_sub(n + 1))
        });
        added.max().unwrap_or(0)
    }

    /// Finds the values whose pieces use the same columns or disjoint ones, never overlapping ones.
    fn find_apart(&mut self) {
        let mut used: Vec<Vec<Range<usize>>> = vec![Vec::new(); self.values.cols.len()];
        let logits = self.lowered.logits().0;
        // The host reads logits whole.
        used[logits].push(0..self.values.cols[logits]);
        for (index, placement) in self.placements() {
            for piece in placement.segment.pieces() {
                for o in piece.inputs.iter().chain(&piece.outputs) {
                    let cols = &mut used[self.value(index, placement, o.value)];
                    if !cols.contains(&o.cols) {
                        cols.push(o.cols.clone());
                    }
                }
            }
            // Rows are routed whole.
            for value in self.routed_values(index, placement) {
                used[value].push(0..self.values.cols[value]);
            }
        }
        let apart = used.into_iter().map(|mut cols| {
            cols.sort_by_key(|c| c.start);
            cols.windows(2).all(|c| c[0].end <= c[1].start)
        });
        self.apart = apart.collect();
    }

    /// The values that divided experts read and write.
    fn routed_values(&self, index: usize, placement: &Placement) -> Vec<usize> {
        let Some(experts) = &placement.segment.experts else { return Vec::new() };
        let operands = experts.inputs.iter().chain([&experts.output]);
        let values = operands.map(|o| self.value(index, placement, o.value));
        values.chain(experts.attention.into_iter().flatten()).collect()
    }

    /// Values that a segment reads beside its inputs.
    pub(crate) fn read_beside(&self, segment: usize) -> impl Iterator<Item = usize> {
        let of_segment = self.placements().filter(move |(index, _)| *index == segment);
        of_segment.flat_map(|(_, p)| p.segment.experts.iter().filter_map(|e| e.attention)).flatten()
    }

    /// Finds where each state is used in a phase. Devices may divide its columns, but each column
    /// is in one place.
    fn find_states(&mut self, phase: Phase) -> Result<(), ProgramError> {
        let lowered = self.lowered.clone();
        let placements: Vec<(usize, Placement)> = match phase {
            Phase::Prefill => self.of_prefill().map(|(i, p)| (i, p.clone())).collect(),
            Phase::Decode => self.decode.iter().cloned().enumerate().collect(),
        };
        for (index, placement) in &placements {
            for piece in placement.segment.pieces() {
                for used in &piece.states {
                    let state = lowered.segments[*index].states[used.state].0;
                    let instance = state_instance(&self.devices[piece.device], used);
                    let instances = &mut self.state_instances[state];
                    let homes = &mut self.state_homes[state][phase as usize];
                    let known = instances.iter().position(|i| *i == instance);
                    if known.is_some_and(|at| homes.contains(&at)) {
                        continue;
                    }
                    let mut others = homes.iter().map(|at| &instances[*at].cols);
                    if others.any(|cols| !common(cols, &used.cols).is_empty()) {
                        return Err(ProgramError::Misfit(format!(
                            "the plan has {} use a cache in one place that another segment of the \
                             phase uses in another; place or split both alike",
                            piece.name
                        )));
                    }
                    homes.push(known.unwrap_or(instances.len()));
                    if known.is_none() {
                        instances.push(instance);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether both phases run the same code in the same places.
    pub fn one_placement(&self) -> bool {
        let [prefill] = self.prefill.as_slice() else { return false };
        let mut both = prefill.segments.iter().zip(&self.decode);
        both.all(|(p, d)| Arc::ptr_eq(&p.segment, &d.segment))
    }

    /// How many devices compute in a phase, or in both.
    pub fn computing(&self, only: Option<Phase>) -> usize {
        let prefill = self.of_prefill().filter(|_| only != Some(Phase::Decode)).map(|(_, p)| p);
        let decode = self.decode.iter().filter(|_| only != Some(Phase::Prefill));
        let pieces = prefill.chain(decode).flat_map(|p| p.segment.pieces());
        let mut devices: Vec<usize> = pieces.map(|piece| piece.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices.len()
    }

    /// The most chunks of one prompt in a graph: more than one where several devices compute in a
    /// phase, or in both, and so overlap.
    pub fn chunks_at_once(&self, only: Option<Phase>, in_flight: usize) -> usize {
        // A chunk frees pages that earlier chunks in flight still read. Within a graph,
        // dependencies order this; a graph beside it must not get such pages.
        let keeps = only.is_none() || !self.lowered.page_groups.iter().any(|kind| kind.forgets());
        if in_flight > 1 && keeps && self.computing(only) > 1 { CHUNKS_AT_ONCE } else { 1 }
    }

    /// Whether no device computes for both phases.
    pub fn phases_are_apart(&self) -> bool {
        (0..self.devices.len()).all(|d| {
            let uses = |p: &Placement| p.segment.pieces().any(|piece| piece.device == d);
            !(self.of_prefill().any(|(_, p)| uses(p)) && self.decode.iter().any(uses))
        })
    }

    /// All segments in each of their prefill placements, with their indices.
    fn of_prefill(&self) -> impl Iterator<Item = (usize, &Placement)> {
        self.prefill.iter().flat_map(|bucket| bucket.segments.iter().enumerate())
    }

    /// All segments in each of their placements, with their indices.
    fn placements(&self) -> impl Iterator<Item = (usize, &Placement)> {
        self.of_prefill().chain(self.decode.iter().enumerate())
    }

    /// Whether a row's result depends on its index in the batch, or on the batch's length: devices
    /// with different numerics share rows, or the plan goes by length.
    pub fn rows_matter(&self) -> bool {
        if self.prefill.len() > 1 {
            return true;
        }
        if self.experts.iter().any(|experts| self.rows_matter_for(experts)) {
            return true;
        }
        let mut stages = self.placements().flat_map(|(_, p)| &p.segment.stages);
        stages.any(|stage| {
            let by_rows =
                !matches!(stage.partition, Partition::Whole { .. } | Partition::Columns(_));
            let mut ids = stage.pieces().map(|p| &self.devices[p.device].caps.numerics);
            let first = ids.next();
            by_rows && ids.any(|id| Some(id) != first)
        })
    }

    /// Whether the other rows of a batch can change how an expert computes a row.
    fn rows_matter_for(&self, experts: &DividedExperts) -> bool {
        let own = &self.devices[experts.rest.device].caps.numerics;
        let differs = |g: &GroupGraph| self.devices[g.device].caps.numerics != *own;
        let mut graphs = experts.groups.iter().flatten();
        experts.split.overflow == Overflow::Prune || graphs.any(differs)
    }

    /// Numbers of a row of the output.
    pub fn output_cols(&self) -> usize {
        self.lowered.edges[self.lowered.logits().0].cols
    }

    /// Numbers of the state behind the last layer.
    pub fn state_cols(&self) -> usize {
        self.lowered.edges[self.lowered.last_state().0].cols
    }

    /// Their type where a phase's batches compute it.
    pub fn state_dtype(&self, phase: Phase) -> DType {
        self.values.dtype(self.lowered.last_state().0, phase)
    }

    /// Rows of the output that have room for a state.
    pub fn rows_of_state(&self) -> usize {
        self.state_cols().div_ceil(self.output_cols())
    }

    /// The placement of a segment in a forward batch of some rows.
    pub(crate) fn placed(&self, phase: Phase, rows: usize, segment: usize) -> &Placement {
        match phase {
            Phase::Prefill => {
                let last = self.prefill.len() - 1;
                let bucket = self.prefill.iter().position(|bucket| rows <= bucket.up_to);
                &self.prefill[bucket.unwrap_or(last)].segments[segment]
            }
            Phase::Decode => &self.decode[segment],
        }
    }

    fn check_used(&self, plan: &Plan) -> Result<(), ProgramError> {
        let mut used = UsedShares::new(plan, &self.devices);
        let of_prefill = self.prefill.iter().map(|b| ((Phase::Prefill, b.up_to), &b.segments));
        for ((phase, rows), placed) in of_prefill.chain([((Phase::Decode, 1), &self.decode)]) {
            for (segment, placed) in self.lowered.segments.iter().zip(placed) {
                if let Some(rule) = plan.rule_for(phase, rows, segment.kind, segment.layer) {
                    used.see(rule, &placed.segment, &segment.graph);
                }
            }
        }
        used.check()
    }

    /// The device whose queue copies between two spaces: the owner of a space other than the
    /// host's, or else the device that needs the copy.
    pub(crate) fn copier(&self, from: SpaceId, to: SpaceId, wanted_by: usize) -> usize {
        let owner = |space| self.devices.iter().position(|d| own_space(&d.caps) == space);
        let foreign = [from, to].into_iter().find(|s| *s != SpaceId::HOST);
        foreign.and_then(owner).unwrap_or(wanted_by)
    }

    /// Devices bind caches in slabs of whole pages: checks that one page fits.
    fn check_pages(&self, page_len: usize) -> Result<(), ProgramError> {
        for (index, placement) in self.placements() {
            for piece in placement.segment.pieces() {
                let device = &self.devices[piece.device];
                for used in &piece.states {
                    let state = self.lowered.segments[index].states[used.state];
                    let state = &self.lowered.states[state.0];
                    let position = state.dtype.row_size(used.cols.len()) as u64;
                    let rows = self.lowered.page_groups[state.page_group].page_rows(page_len);
                    let bytes = position.saturating_mul(rows as u64);
                    if device.caps.slab_pages(bytes).is_none() {
                        let fit = device.caps.slab_pages(position).unwrap_or(0);
                        // Page lengths are powers of two.
                        let fit = fit.checked_ilog2().map_or(0_u64, |log| 1 << log);
                        return Err(ProgramError::Misfit(format!(
                            "the plan's pages of {page_len} positions have {bytes} bytes in {}, \
                             more than device {} binds at once; set page_len to {fit} or less",
                            state.name, device.name
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}
