//! Applies the plan to a lowered model: for each segment and phase, which device runs which
//! executable on which columns of which values.

use std::ops::Range;
use std::sync::Arc;

use troika_device::{Caps, Device, SpaceId, Weights};
use troika_graph::partition::{Computed, Partition, kv_heads};
use troika_graph::{
    DType, Subgraph, ValueId, bind_static, convert_boundary, limit_rows, restrict_activations,
};
use troika_model::lower::{EdgeId, Lowered, Segment, SegmentKind, StateId};
use troika_plan::{Phase, Plan, Rule, Split, TILE, compiled_rows, own_space};

use crate::compile::{CompileList, CompileWith, compile};
use crate::error::EngineError;
use crate::pieces::{self, Operand, PlacedGraph, StateOperand, ValueTable};
use crate::residency::{Instance, common};

/// A compiled piece of a segment.
pub(crate) struct CompiledPiece {
    /// Index of the device in the plan.
    pub device: usize,
    /// The name in traces.
    pub name: Arc<str>,
    pub inputs: Vec<Operand>,
    pub states: Vec<StateOperand>,
    pub outputs: Vec<Operand>,
    /// By ascending rows; a single entry if shapes are not static.
    codes: Vec<Code>,
    static_shapes: bool,
}

struct Code {
    rows: usize,
    /// Index in [`Program::loaded`].
    loaded: usize,
}

/// One run over some rows.
pub(crate) struct RowsRun {
    /// Index in [`Program::loaded`].
    pub loaded: usize,
    /// Number of rows to compute.
    pub rows: usize,
    /// Number of rows that views need room for: those of the shape if it is static.
    pub room: usize,
}

impl CompiledPiece {
    /// The next run when `left` rows remain; `None` when none do. If other rows follow (`others`),
    /// it avoids padding where the shapes allow that.
    pub fn next_run(&self, left: usize, others: bool) -> Option<RowsRun> {
        let largest = self.codes.last()?;
        let full = self.codes.iter().rfind(|c| c.rows <= left).filter(|_| others);
        let enough = || self.codes.iter().find(|c| c.rows >= left).unwrap_or(largest);
        let fits = full.unwrap_or_else(enough);
        let rows = left.min(fits.rows);
        let room = if self.static_shapes { fits.rows } else { rows };
        (rows > 0).then_some(RowsRun { loaded: fits.loaded, rows, room })
    }
}

/// A range of rows, and the pieces that compute it.
pub(crate) type Area<'a> = (Range<usize>, &'a [CompiledPiece]);

/// A segment as it runs in a phase: its stages in order.
pub(crate) struct PlacedSegment(Vec<PlacedStage>);

/// A stage of a segment, or all of it.
struct PlacedStage {
    /// How the stage is divided into parts.
    partition: Partition,
    /// For each part of the partition that computes whole rows, its pieces.
    wholes: Vec<Vec<CompiledPiece>>,
    /// The pieces of all parts, where they divide the columns.
    columns: Vec<CompiledPiece>,
}

impl PlacedSegment {
    /// Divides rows `0..rows` among the pieces.
    ///
    /// # Errors
    /// A standard length of 0.
    pub fn areas(&self, rows: usize) -> Result<Vec<Area<'_>>, EngineError> {
        let mut all = Vec::new();
        for stage in &self.0 {
            all.extend(stage.areas(rows)?);
        }
        Ok(all)
    }

    /// All pieces.
    pub fn pieces(&self) -> impl Iterator<Item = &CompiledPiece> {
        self.0.iter().flat_map(PlacedStage::pieces)
    }
}

impl PlacedStage {
    fn pieces(&self) -> impl Iterator<Item = &CompiledPiece> {
        self.wholes.iter().flatten().chain(&self.columns)
    }

    fn areas(&self, rows: usize) -> Result<Vec<Area<'_>>, EngineError> {
        let areas = self.partition.areas(rows)?.into_iter().map(|area| match area.by {
            Computed::Part(part) => (area.rows, self.wholes[part].as_slice()),
            Computed::Columns => (area.rows, self.columns.as_slice()),
        });
        Ok(areas.collect())
    }
}

/// The placement of all segments for chunks of a length bucket.
struct Bucket {
    /// The longest chunk of the bucket.
    up_to: usize,
    /// By the bucket's own rules, then by each alternative that the plan holds for load.
    ways: Vec<Vec<Arc<PlacedSegment>>>,
}

/// Where a batch runs: its phase, its rows, and which of the plan's alternatives.
pub(crate) type Where = (Phase, usize, usize);

/// Which device runs what. Built once, when a model is opened.
pub(crate) struct Program {
    /// The plan's devices, in its order.
    pub devices: Vec<Arc<dyn Device>>,
    /// The values between segments (the model's edges, first) and between pieces.
    pub values: ValueTable,
    /// Whether each value's pieces use disjoint columns: then there is no gain in having all of
    /// them in one buffer.
    pub apart: Vec<bool>,
    /// For each value between pieces, its segment and its placement. A chunk uses one placement of
    /// each segment.
    pub placement_of: Vec<(usize, usize)>,
    /// The instances of each state: in which memory space, with which columns together.
    pub state_instances: Vec<Vec<Instance>>,
    /// For each state, the instances used in prefill and in decode.
    state_homes: Vec<[Vec<usize>; 2]>,
    /// Rows that buffers have beyond a chunk: the most rows that a static shape adds to a run.
    pub padding: usize,
    /// The most bytes of scratch memory that a run needs.
    pub scratch_bytes: u64,
    /// The name of copies in traces.
    pub copy_name: Arc<str>,
    /// Code with a graph's weights, by index. Equal pieces of a segment share an entry.
    pub loaded: Vec<Arc<Weights>>,
    /// By the longest chunk, ascending: the plan's length buckets, then the bucket of full chunks.
    prefill: Vec<Bucket>,
    decode: Vec<Arc<PlacedSegment>>,
}

impl Program {
    /// Compiles each segment where the plan, already checked, places it. After a failure nothing is
    /// kept.
    ///
    /// # Errors
    /// A segment without a device, a segment that its device refuses, or a split that leaves a
    /// device nothing.
    pub fn new(
        lowered: &Lowered,
        plan: &Plan,
        at_hand: &[Arc<dyn Device>],
        with: &CompileWith<'_>,
    ) -> Result<Program, EngineError> {
        let find = |name: &String| at_hand.iter().find(|d| d.name() == name).cloned();
        let mut program = Program {
            devices: plan.devices.iter().filter_map(find).collect(),
            values: ValueTable {
                cols: lowered.edges.iter().map(|e| e.cols).collect(),
                dtypes: edge_types(lowered, plan),
            },
            apart: Vec::new(),
            placement_of: Vec::new(),
            state_instances: vec![Vec::new(); lowered.states.len()],
            state_homes: vec![Default::default(); lowered.states.len()],
            padding: 0,
            scratch_bytes: 0,
            copy_name: "copy".into(),
            loaded: Vec::new(),
            prefill: plan
                .rule_lists(Phase::Prefill)
                .map(|(up_to, _)| {
                    let others = plan.load_rules(up_to).map_or(0, |l| l.others.len());
                    Bucket { up_to, ways: vec![Vec::new(); 1 + others] }
                })
                .collect(),
            decode: Vec::new(),
        };
        let mut list = CompileList::default();
        for i in 0..lowered.segments.len() {
            list.begin_segment();
            program.place_segment((lowered, i), plan, &mut list)?;
        }
        program.find_apart(lowered);
        program.check_used((lowered, plan))?;
        for phase in [Phase::Prefill, Phase::Decode] {
            program.find_states(phase)?;
        }
        program.check_pages(lowered, plan.page_len)?;
        program.loaded = compile(&list, &program.devices, with)?;
        let scratch = program.loaded.iter().map(|w| w.executable().scratch_bytes());
        program.scratch_bytes = scratch.max().unwrap_or(0);
        Ok(program)
    }

    /// Places a segment for prefill of each length and for decode. Equal placements share their
    /// compiled pieces.
    fn place_segment(
        &mut self,
        (lowered, index): (&Lowered, usize),
        plan: &Plan,
        list: &mut CompileList,
    ) -> Result<(), EngineError> {
        let segment = &lowered.segments[index];
        let rule = |at: Where| {
            let rule = plan.rule_in(at, segment.kind, segment.layer);
            rule.ok_or_else(|| EngineError::Unplaced(segment.graph.name.clone()))
        };
        let edges = segment.inputs.iter().chain(&segment.outputs);
        let alike = edges.map(|e| self.values.dtypes[e.0]).all(|[p, d]| p == d);
        let of = (segment, attention_of(lowered, segment));
        let mut placed: Vec<(&Rule, Arc<PlacedSegment>)> = Vec::new();
        let behind_edges = |values: &ValueTable| values.cols.len() - lowered.edges.len();
        for bucket in 0..self.prefill.len() {
            for way in 0..self.prefill[bucket].ways.len() {
                let rule = rule((Phase::Prefill, self.prefill[bucket].up_to, way))?;
                let here = match placed.iter().find(|(known, _)| known.places_as(rule)) {
                    Some((_, known)) => known.clone(),
                    None => Arc::new(self.place(of, (rule, Phase::Prefill), list)?),
                };
                let placement = (index, placed.len());
                self.placement_of.resize(behind_edges(&self.values), placement);
                placed.push((rule, here.clone()));
                self.prefill[bucket].ways[way].push(here);
            }
        }
        let rule = rule((Phase::Decode, 1, 0))?;
        let known = placed.iter().find(|(known, _)| known.places_as(rule) && alike);
        let here = match known {
            Some((_, known)) => known.clone(),
            None => Arc::new(self.place(of, (rule, Phase::Decode), list)?),
        };
        self.placement_of.resize(behind_edges(&self.values), (index, placed.len()));
        self.decode.push(here);
        Ok(())
    }

    /// Finds the values whose pieces use the same columns or disjoint ones, never overlapping ones.
    fn find_apart(&mut self, lowered: &Lowered) {
        let mut used: Vec<Vec<Range<usize>>> = vec![Vec::new(); self.values.cols.len()];
        let logits = lowered.logits().0;
        // The host reads logits whole.
        used[logits].push(0..self.values.cols[logits]);
        let segments = self.segments();
        for piece in segments.flat_map(|s| s.pieces()) {
            for o in piece.inputs.iter().chain(&piece.outputs) {
                if !used[o.value].contains(&o.cols) {
                    used[o.value].push(o.cols.clone());
                }
            }
        }
        let apart = used.into_iter().map(|mut cols| {
            cols.sort_by_key(|c| c.start);
            cols.windows(2).all(|c| c[0].end <= c[1].start)
        });
        self.apart = apart.collect();
    }

    /// Finds where each state is used in a phase. Devices may divide its columns, but each column
    /// is in one place.
    fn find_states(&mut self, phase: Phase) -> Result<(), EngineError> {
        let segments = match phase {
            Phase::Prefill => self.of_prefill().cloned().collect(),
            Phase::Decode => self.decode.clone(),
        };
        for piece in segments.iter().flat_map(|s| s.pieces()) {
            for used in &piece.states {
                let instance = self.state_instance(piece.device, used);
                let instances = &mut self.state_instances[used.state];
                let homes = &mut self.state_homes[used.state][phase as usize];
                let known = instances.iter().position(|i| *i == instance);
                if known.is_some_and(|at| homes.contains(&at)) {
                    continue;
                }
                let mut others = homes.iter().map(|at| &instances[*at].cols);
                if others.any(|cols| !common(cols, &used.cols).is_empty()) {
                    return Err(EngineError::TwoHomes(piece.name.to_string()));
                }
                homes.push(known.unwrap_or(instances.len()));
                if known.is_none() {
                    instances.push(instance);
                }
            }
        }
        Ok(())
    }

    /// The instance with a device's columns of a state.
    pub fn state_instance(&self, device: usize, used: &StateOperand) -> Instance {
        Instance { space: own_space(self.devices[device].caps()), cols: used.cols.clone() }
    }

    /// Which of a state's instances a phase uses.
    pub fn state_homes(&self, phase: Phase, state: usize) -> &[usize] {
        &self.state_homes[state][phase as usize]
    }

    /// Whether both phases run the same code in the same places.
    pub fn one_placement(&self) -> bool {
        let [Bucket { ways, .. }] = self.prefill.as_slice() else { return false };
        let [prefill] = ways.as_slice() else { return false };
        prefill.iter().zip(&self.decode).all(|(p, d)| Arc::ptr_eq(p, d))
    }

    /// How many devices compute in a slot: those of one phase, or of both.
    pub fn computing(&self, only: Option<Phase>) -> usize {
        let prefill = self.of_prefill().filter(|_| only != Some(Phase::Decode));
        let decode = self.decode.iter().filter(|_| only != Some(Phase::Prefill));
        let pieces = prefill.chain(decode).flat_map(|segment| segment.pieces());
        let mut devices: Vec<usize> = pieces.map(|piece| piece.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices.len()
    }

    /// Whether no device computes for both phases.
    pub fn phases_are_apart(&self) -> bool {
        (0..self.devices.len()).all(|d| {
            let uses = |s: &Arc<PlacedSegment>| s.pieces().any(|piece| piece.device == d);
            !(self.of_prefill().any(uses) && self.decode.iter().any(uses))
        })
    }

    /// Whether a device computes in decode.
    pub fn decodes_on(&self, device: usize) -> bool {
        self.decode.iter().flat_map(|s| s.pieces()).any(|piece| piece.device == device)
    }

    /// All segments in each of their prefill placements.
    fn of_prefill(&self) -> impl Iterator<Item = &Arc<PlacedSegment>> {
        self.prefill.iter().flat_map(|bucket| bucket.ways.iter().flatten())
    }

    /// Whether a row's result depends on its index in the batch, or on the batch's length: devices
    /// with different numerics share rows, or the plan goes by length or by load.
    pub fn rows_matter(&self) -> bool {
        if self.prefill.len() > 1 || self.prefill.iter().any(|bucket| bucket.ways.len() > 1) {
            return true;
        }
        let mut stages = self.of_prefill().chain(&self.decode).flat_map(|segment| &segment.0);
        stages.any(|stage| {
            let by_rows =
                !matches!(stage.partition, Partition::Whole { .. } | Partition::Columns(_));
            let mut ids = stage.pieces().map(|p| &self.devices[p.device].caps().numerics);
            let first = ids.next();
            by_rows && ids.any(|id| Some(id) != first)
        })
    }

    /// The placement of a segment in a forward batch.
    pub fn placed(&self, (phase, rows, way): Where, segment: usize) -> &Arc<PlacedSegment> {
        match phase {
            Phase::Prefill => {
                let last = self.prefill.len() - 1;
                let bucket = self.prefill.iter().position(|bucket| rows <= bucket.up_to);
                &self.prefill[bucket.unwrap_or(last)].ways[way][segment]
            }
            Phase::Decode => &self.decode[segment],
        }
    }

    /// All segments in each of their placements.
    fn segments(&self) -> impl Iterator<Item = &Arc<PlacedSegment>> {
        self.of_prefill().chain(&self.decode)
    }

    /// Checks that each device of a split by columns has some columns of a segment, unless it refuses
    /// ops.
    fn check_used(&self, (lowered, plan): (&Lowered, &Plan)) -> Result<(), EngineError> {
        let mut used = vec![false; self.devices.len()];
        let mut widest = 0;
        for (at, placed) in self.places() {
            for (segment, placed) in lowered.segments.iter().zip(placed) {
                let rule = plan.rule_in(at, segment.kind, segment.layer);
                let split = rule.and_then(|r| r.split.as_ref());
                if split.is_none_or(|split| split.parts().is_empty()) {
                    continue;
                }
                placed.pieces().for_each(|piece| used[piece.device] = true);
                let rows = segment.graph.weights.iter().map(|w| w.rows);
                widest = rows.fold(widest, usize::max);
            }
        }
        for share in plan.all_rules().filter_map(|r| r.split.as_ref()).flat_map(Split::parts) {
            let d = self.index(&share.device);
            let refuses =
                plan.all_rules().flat_map(|r| &r.refused).any(|r| r.device == share.device);
            if !refuses && !d.is_some_and(|d| used[d]) {
                // Shares are rounded to tiles of the widest product: half of one is enough.
                let least = (500 / (widest / TILE).max(2) + 1) as f64 / 1e3;
                let (device, most) = (share.device.clone(), 1.0 - least);
                return Err(EngineError::NothingLeft { device, least, most });
            }
        }
        Ok(())
    }

    /// All segments in each place, with the place.
    fn places(&self) -> impl Iterator<Item = (Where, &[Arc<PlacedSegment>])> {
        let of_prefill = self.prefill.iter().flat_map(|bucket| {
            let ways = bucket.ways.iter().enumerate();
            ways.map(|(way, placed)| ((Phase::Prefill, bucket.up_to, way), placed.as_slice()))
        });
        of_prefill.chain([((Phase::Decode, 1, 0), self.decode.as_slice())])
    }

    /// The device whose queue copies between two spaces: the owner of a space other than the
    /// host's, or else the device that needs the copy.
    pub fn copier(&self, from: SpaceId, to: SpaceId, wanted_by: usize) -> usize {
        let owner = |space| self.devices.iter().position(|d| own_space(d.caps()) == space);
        let foreign = [from, to].into_iter().find(|s| *s != SpaceId::HOST);
        foreign.and_then(owner).unwrap_or(wanted_by)
    }

    fn index(&self, name: &str) -> Option<usize> {
        self.devices.iter().position(|d| d.name() == name)
    }

    fn place(
        &mut self,
        (segment, heads): (&Segment, Option<usize>),
        (rule, phase): (&Rule, Phase),
        list: &mut CompileList,
    ) -> Result<PlacedSegment, EngineError> {
        let graph = restrict_activations(&segment.graph, &rule.activations);
        let graph = convert_edges(&graph, segment, (&self.values.dtypes, phase));
        let cols = |v: usize| Operand { value: v, cols: 0..self.values.cols[v] };
        let state = |(s, v): (&StateId, &ValueId)| {
            let cols = 0..segment.graph.value(*v).shape.row_len();
            StateOperand { state: s.0, cols }
        };
        let root = PlacedGraph {
            device: 0,
            graph,
            inputs: segment.inputs.iter().map(|e| cols(e.0)).collect(),
            states: segment.states.iter().zip(&segment.graph.states).map(state).collect(),
            outputs: segment.outputs.iter().map(|e| cols(e.0)).collect(),
        };
        let Some(Split::Stages { stages }) = &rule.split else {
            let stage = self.place_stage((root, segment.kind, heads), rule, list)?;
            return Ok(PlacedSegment(vec![stage]));
        };
        let graphs = pieces::stages(root, &mut self.values)?;
        if graphs.len() != stages.len() {
            let (segment, has) = (segment.graph.name.clone(), graphs.len());
            return Err(EngineError::Stages { segment, has, says: stages.len() });
        }
        let mut placed = Vec::new();
        for (graph, stage) in graphs.into_iter().zip(stages) {
            let (device, split) = (stage.device.clone(), stage.split.clone());
            let rule = Rule { device, split, ..rule.clone() };
            placed.push(self.place_stage((graph, segment.kind, heads), &rule, list)?);
        }
        Ok(PlacedSegment(placed))
    }

    fn place_stage(
        &mut self,
        (root, kind, heads): (PlacedGraph, SegmentKind, Option<usize>),
        rule: &Rule,
        list: &mut CompileList,
    ) -> Result<PlacedStage, EngineError> {
        let (partition, parts) = rule.partition(heads);
        let unplaced = || EngineError::Unplaced(root.graph.name.clone());
        let parts: Option<Vec<usize>> = parts.iter().map(|name| self.index(name)).collect();
        let parts = parts.ok_or_else(unplaced)?;
        let names: Vec<String> = self.devices.iter().map(|d| d.name().to_string()).collect();
        let takes = |device: usize, op: &str| {
            let by = rule.device_of(&names[device], kind, op);
            names.iter().position(|n| n == by).unwrap_or(device)
        };
        let on = |device| PlacedGraph { device, ..root.clone() };
        let mut placed = PlacedStage { wholes: Vec::new(), columns: Vec::new(), partition };
        let alone = pieces::whole_parts(&placed.partition);
        for (part, device) in parts.iter().enumerate() {
            let mut whole = Vec::new();
            if alone.contains(&part) {
                let pieces = pieces::whole(on(*device), &takes, &mut self.values)?;
                whole = self.list_all(pieces, rule, list);
            }
            placed.wholes.push(whole);
        }
        if let Some(split) = placed.partition.columns() {
            let mut pieces = pieces::columns(&root, (split, &parts), &takes, &mut self.values)?;
            if !self.states_are_apart(&pieces) {
                let owner = self.index(&rule.device).ok_or_else(unplaced)?;
                pieces = pieces::whole(on(owner), &takes, &mut self.values)?;
            }
            placed.columns = self.list_all(pieces, rule, list);
        }
        self.check_lengths(rule, &placed)?;
        Ok(placed)
    }

    /// Whether no column of a state is needed in two places. It is where all query heads share one
    /// head of the cache.
    fn states_are_apart(&self, pieces: &[PlacedGraph]) -> bool {
        let uses = pieces.iter().flat_map(|p| p.states.iter().map(move |s| (p.device, s)));
        let uses: Vec<(usize, &StateOperand)> = uses.collect();
        uses.iter().enumerate().all(|(i, (device, used))| {
            let here = self.state_instance(*device, used);
            let before = uses[..i].iter().filter(|(_, o)| o.meets(used));
            before.map(|(other, o)| self.state_instance(*other, o)).all(|there| there == here)
        })
    }

    /// Devices bind caches in slabs of whole pages: checks that one page fits.
    fn check_pages(&self, lowered: &Lowered, page_len: usize) -> Result<(), EngineError> {
        for piece in self.segments().flat_map(|s| s.pieces()) {
            let device = &self.devices[piece.device];
            for used in &piece.states {
                let state = &lowered.states[used.state];
                let cols = self.state_instance(piece.device, used).cols.len();
                let position = (cols * state.dtype.block_bytes()) as u64;
                let bytes = position.saturating_mul(page_len as u64);
                if device.caps().slab_pages(bytes).is_none() {
                    let fit = device.caps().slab_pages(position).unwrap_or(0);
                    return Err(EngineError::Page {
                        device: device.name().to_string(),
                        state: state.name.clone(),
                        page_len,
                        bytes,
                        // Page lengths are powers of two.
                        fit: fit.checked_ilog2().map_or(0, |log| 1 << log),
                    });
                }
            }
        }
        Ok(())
    }

    /// Checks that standard lengths need no padding by static shapes, since other rows follow them.
    fn check_lengths(&self, rule: &Rule, placed: &PlacedStage) -> Result<(), EngineError> {
        let lengths = rule.split.as_ref().map_or(&[][..], Split::lengths);
        for &length in lengths {
            for piece in placed.areas(length)?.iter().flat_map(|a| a.1) {
                let mut left = length;
                while let Some(run) = piece.next_run(left, true) {
                    if run.rows < run.room {
                        let device = self.devices[piece.device].name().to_string();
                        let rows = piece.codes.iter().map(|c| c.rows).collect();
                        return Err(EngineError::StandardLength { device, length, rows });
                    }
                    left -= run.rows;
                }
            }
        }
        Ok(())
    }

    fn list_all(
        &mut self,
        pieces: Vec<PlacedGraph>,
        rule: &Rule,
        list: &mut CompileList,
    ) -> Vec<CompiledPiece> {
        pieces.into_iter().map(|p| self.list(p, rule, list)).collect()
    }

    /// Adds a piece to the list of graphs to compile.
    fn list(&mut self, p: PlacedGraph, rule: &Rule, list: &mut CompileList) -> CompiledPiece {
        let caps = self.devices[p.device].caps();
        let code = |graph: Subgraph| {
            let rows = graph.max_rows();
            Code { rows, loaded: list.add(p.device, graph, caps.bakes_weights) }
        };
        let codes: Vec<Code> =
            shapes(&p.graph, caps, rule.row_buckets.as_deref()).into_iter().map(code).collect();
        if caps.static_shapes {
            // A run takes a shape only if it has more rows than the next smaller shape.
            let smaller = std::iter::once(0).chain(codes.iter().map(|c| c.rows));
            let added = codes.iter().zip(smaller).map(|(c, n)| c.rows.saturating_sub(n + 1));
            self.padding = added.fold(self.padding, usize::max);
        }
        CompiledPiece {
            device: p.device,
            name: p.graph.name.as_str().into(),
            inputs: p.inputs,
            states: p.states,
            outputs: p.outputs,
            codes,
            static_shapes: caps.static_shapes,
        }
    }
}

/// The type of each edge in each phase: that of the rule for the segment that computes it, unless
/// it has no floats or the host reads it.
pub(crate) fn edge_types(lowered: &Lowered, plan: &Plan) -> Vec<[DType; 2]> {
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
    types
}

/// A segment's graph for the types of its edges in a phase.
pub(crate) fn convert_edges(
    graph: &Subgraph,
    segment: &Segment,
    (types, phase): (&[[DType; 2]], Phase),
) -> Subgraph {
    let of = |edges: &[EdgeId]| -> Vec<DType> {
        edges.iter().map(|e| types[e.0][phase as usize]).collect()
    };
    convert_boundary(graph, &of(&segment.inputs), &of(&segment.outputs))
}

/// The number of key/value heads after a segment of query, key and value projections.
fn attention_of(lowered: &Lowered, segment: &Segment) -> Option<usize> {
    let of_layer = |s: &&Segment| s.layer == segment.layer && s.kind == SegmentKind::Attention;
    let attention = lowered.segments.iter().find(of_layer)?;
    (segment.kind == SegmentKind::Qkv).then(|| kv_heads(&attention.graph))?
}

/// The graphs for the numbers of rows that a device compiles for, or that the plan states instead:
/// one graph for all, or one each.
pub(crate) fn shapes(graph: &Subgraph, caps: &Caps, buckets: Option<&[usize]>) -> Vec<Subgraph> {
    let of = |rows: usize| match caps.static_shapes {
        true => bind_static(graph, rows),
        false if rows < graph.max_rows() => limit_rows(graph, rows),
        false => graph.clone(),
    };
    compiled_rows(graph, caps, buckets).into_iter().map(of).collect()
}
