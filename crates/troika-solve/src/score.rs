//! Quick scores, by which the search ranks placements: the runs of one chunk, each as soon as its
//! device is free and its inputs are there. Plans are ranked by what they take ([`super::timed`]).

use std::collections::{HashMap, HashSet};
use std::ops::{Add, Range};
use std::sync::Arc;

use troika_device::SpaceId;
use troika_graph::{DType, Subgraph, WeightDecl};
use troika_model::lower::{ModelPart, SegmentKind};
use troika_plan::{Phase, Plan, PlanDevice, PlanError, Rule, own_space};
use troika_program::{EdgeTypes, Operand, PlacedPiece, PlacedSegment, RowsRun, SegmentValue};

use super::placements::Placements;
use super::request::PredictRequest;
use crate::cost::PricedRun;

/// The time and energy of some runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    pub ns: f64,
    /// For how long the busiest device computes.
    pub busy_ns: f64,
    /// Energy beyond what the idle machine uses.
    pub joules: Option<f64>,
}

impl Add for Spent {
    type Output = Spent;

    fn add(self, other: Spent) -> Spent {
        let joules = self.joules.zip(other.joules).map(|(a, b)| a + b);
        Spent { ns: self.ns + other.ns, busy_ns: self.busy_ns + other.busy_ns, joules }
    }
}

impl Spent {
    /// The time of so many chunks like this one, [`IN_FLIGHT`] of them together: the busiest device
    /// has to compute all of them, and each takes its time.
    pub fn overlapped_ns(self, chunks: usize) -> f64 {
        let each = self.busy_ns.max(self.ns / IN_FLIGHT);
        // No times infinity would be no number.
        if chunks < 2 { self.ns } else { self.ns + (chunks - 1) as f64 * each }
    }
}

/// Chunks in flight, where scores suppose several.
const IN_FLIGHT: f64 = 4.0;

/// A run with its price.
#[derive(Clone, Debug)]
struct Priced {
    device: usize,
    kind: SegmentKind,
    graph: Arc<Subgraph>,
    rows: usize,
    room: usize,
    cached: usize,
    ns: f64,
    joules: Option<f64>,
}

impl Priced {
    fn run(&self) -> PricedRun<'_> {
        let Priced { device, kind, rows, room, cached, .. } = *self;
        PricedRun { device, kind, graph: &self.graph, rows, room, cached }
    }
}

/// RunPrices that were asked for before.
#[derive(Default)]
pub(super) struct RunPrices {
    priced: Vec<Priced>,
    /// By graph, device, rows, room and cached positions. `priced` keeps the graphs alive.
    keys: HashMap<(usize, usize, usize, usize, usize), usize>,
    /// Of two runs, how much each slows the other one down.
    slow: HashMap<[usize; 2], [f64; 2]>,
}

impl RunPrices {
    /// The index of a run's price.
    fn price(
        &mut self,
        request: &PredictRequest<'_>,
        kind: SegmentKind,
        piece: &PlacedPiece,
        run: RowsRun,
        cached: usize,
    ) -> usize {
        let RowsRun { rows, room, .. } = run;
        // Only attention depends on cached positions.
        let cached = if piece.graph.states.is_empty() { 0 } else { cached };
        let device = piece.device;
        let key = (Arc::as_ptr(&piece.graph) as usize, device, rows, room, cached);
        if let Some(known) = self.keys.get(&key) {
            return *known;
        }
        let run = PricedRun { device, kind, graph: &piece.graph, rows, room, cached };
        let ns = request.cost.run_ns(&run);
        // An invalid cost counts as infinite, and so does a graph that is too large.
        let fits = too_large(&piece.graph, &request.devices[device]).is_none();
        let ns = if ns >= 0.0 && fits { ns } else { f64::INFINITY };
        let joules = request.cost.run_j(&run);
        let graph = piece.graph.clone();
        self.priced.push(Priced { device, kind, graph, rows, room, cached, ns, joules });
        self.keys.insert(key, self.priced.len() - 1);
        self.priced.len() - 1
    }

    /// How much two runs slow each other down. Copies slow nothing down.
    fn slowdowns(&mut self, request: &PredictRequest<'_>, a: usize, b: usize) -> [f64; 2] {
        let keys = [a, b];
        let [Some(a), Some(b)] = keys.map(|key| self.priced.get(key)) else { return [1.0; 2] };
        *self.slow.entry(keys).or_insert_with(|| {
            let factors = request.cost.slowdowns(&[a.run(), b.run()]);
            [0, 1].map(|at| factors.get(at).map_or(1.0, |f| f.max(1.0)))
        })
    }
}

/// Rows of a sequence that are computed together, and how many are cached before them.
struct ChunkRows {
    cached: usize,
    rows: usize,
    /// Whether its last row has logits.
    last: bool,
}

/// Predicts plans of one model. Caches prices and placements.
pub(super) struct Predictor<'a> {
    pub request: PredictRequest<'a>,
    pub placements: Placements<'a>,
    prices: RunPrices,
    /// The model's layers, and how many of them scores look at: of equal layers only some.
    pub layers: usize,
    layers_seen: usize,
}

/// The number of equal layers that scores look at.
const EQUAL_LAYERS_SEEN: usize = 3;

impl<'a> Predictor<'a> {
    pub fn new(request: &PredictRequest<'a>) -> Predictor<'a> {
        let placements = Placements::new(request.lowered, request.devices);
        let segments = &request.lowered.segments;
        let layers = segments.iter().filter_map(|s| s.layer).max().map_or(0, |l| l + 1);
        let classes: HashSet<_> =
            segments.iter().enumerate().map(|(i, s)| (s.kind, placements.class[i])).collect();
        let kinds: HashSet<_> = segments.iter().map(|s| s.kind).collect();
        let equal = classes.len() == kinds.len();
        let layers_seen = if equal { layers.min(EQUAL_LAYERS_SEEN) } else { layers };
        let prices = RunPrices::default();
        Predictor { request: *request, placements, prices, layers, layers_seen }
    }

    /// The cost of a prompt whose chunks run one after another.
    pub fn prompt(&mut self, plan: &Plan, tokens: usize) -> Result<Spent, PlanError> {
        let chunk = plan.prefill.chunk.max(1);
        let mut sum = Spent { ns: 0.0, busy_ns: 0.0, joules: Some(0.0) };
        for cached in (0..tokens).step_by(chunk) {
            let rows = (tokens - cached).min(chunk);
            let last = cached + rows == tokens;
            sum = sum + self.batch(plan, Phase::Prefill, &ChunkRows { cached, rows, last })?;
        }
        Ok(sum)
    }

    /// The cost of a decoded token.
    pub fn token(&mut self, plan: &Plan, cached: usize) -> Result<Spent, PlanError> {
        self.batch(plan, Phase::Decode, &ChunkRows { cached, rows: 1, last: true })
    }

    fn batch(&mut self, plan: &Plan, phase: Phase, batch: &ChunkRows) -> Result<Spent, PlanError> {
        let segments = &self.request.lowered.segments;
        let types = EdgeTypes::new(self.request.lowered, plan);
        // By class and rule, so that placements are looked up once.
        let mut placed: Vec<PlacedBy<'_>> = Vec::new();
        let mut timeline = Timeline::new(plan, &types, phase, self.request);
        // The number of runs up to the end of each layer.
        let mut passed = vec![0; self.layers_seen];
        let mut first = 0;
        for (index, segment) in segments.iter().enumerate() {
            // Of equal layers, the last one that is looked at stands for the rest.
            if segment.layer.is_some_and(|layer| layer >= self.layers_seen) {
                timeline.left_out = first..timeline.done.len();
                continue;
            }
            first = timeline.done.len();
            // Only the last row needs logits.
            let wanted = match segment.kind.traits().part {
                ModelPart::Head if !batch.last => continue,
                ModelPart::Head => batch.rows - 1..batch.rows,
                _ => 0..batch.rows,
            };
            let rule = plan.rule_for(phase, batch.rows, segment.kind, segment.layer);
            let rule = rule.ok_or_else(|| PlanError::missing(phase.name(), &segment.graph.name))?;
            let class = self.placements.class[index];
            let same = |p: &&PlacedBy<'_>| {
                let edges = types.of(segment, phase);
                p.class == class
                    && std::ptr::eq(p.rule, rule)
                    && types.of(&segments[p.first], phase).eq(edges)
            };
            let here = match placed.iter().find(same) {
                Some(known) => known.segment.clone(),
                None => {
                    let segment = self.placements.of(index, rule, phase, &types)?;
                    placed.push(PlacedBy { class, rule, first: index, segment: segment.clone() });
                    segment
                }
            };
            for run in self.runs(segment.kind, &here, wanted, batch.cached)? {
                timeline.run(&mut self.prices, index, &here, run);
            }
            segment.layer.into_iter().for_each(|layer| passed[layer] = timeline.done.len());
        }
        let up_to = |runs: usize| timeline.spent(&self.prices, runs);
        let all = up_to(timeline.done.len());
        let [.., before, last] = passed[..] else { return Ok(all) };
        let (before, last, left) = (up_to(before), up_to(last), self.layers - self.layers_seen);
        let joules = last.joules.zip(before.joules).map(|(last, before)| last - before);
        let more = |all: f64, each: f64| if left > 0 { all + left as f64 * each } else { all };
        Ok(Spent {
            ns: more(all.ns, last.ns - before.ns),
            busy_ns: more(all.busy_ns, last.busy_ns - before.busy_ns),
            joules: all.joules.zip(joules).map(|(all, each)| more(all, each)),
        })
    }

    /// What the runs of a segment take, one after another, for the first `rows` rows.
    pub fn segment_ns(
        &mut self,
        kind: SegmentKind,
        placed: &PlacedSegment,
        rows: usize,
    ) -> Result<f64, PlanError> {
        let runs = self.runs(kind, placed, 0..rows, 0)?;
        Ok(runs.iter().map(|run| self.prices.priced[run.key].ns).sum())
    }

    /// The priced runs of a segment.
    fn runs(
        &mut self,
        kind: SegmentKind,
        placed: &PlacedSegment,
        rows: Range<usize>,
        cached: usize,
    ) -> Result<Vec<SegmentRun>, PlanError> {
        let areas = placed.areas(rows.len()).map_err(|e| PlanError::Parse(e.to_string()))?;
        let mut runs = Vec::new();
        for area in areas {
            for piece in area.pieces {
                let mut at = area.rows.start;
                let others = area.rows.end < rows.len();
                while let Some(run) = piece.next_run(area.rows.end - at, others) {
                    let first = rows.start + at;
                    let key = self.prices.price(&self.request, kind, piece, run, cached + first);
                    let rows = first..first + run.rows;
                    runs.push(SegmentRun { piece: piece.index, rows, key });
                    at += run.rows;
                }
            }
        }
        Ok(runs)
    }
}

/// Bytes of a graph's weights, if they are more than a device takes in one graph.
pub(super) fn too_large(graph: &Subgraph, device: &PlanDevice) -> Option<u64> {
    let of = |w: &WeightDecl| (w.rows * w.dtype.row_bytes(w.cols).unwrap_or(0)) as u64;
    let bytes = graph.weights.iter().map(of).sum();
    device.caps.max_graph_bytes.is_some_and(|most| bytes > most).then_some(bytes)
}

/// A run of a piece of a segment.
struct SegmentRun {
    /// Index among the segment's pieces.
    piece: usize,
    rows: Range<usize>,
    /// Index of its price.
    key: usize,
}

/// A placement by a rule of the plan at hand.
struct PlacedBy<'a> {
    class: usize,
    rule: &'a Rule,
    /// The first segment that it was looked up for.
    first: usize,
    segment: Arc<PlacedSegment>,
}

/// The run that wrote a part of a value.
#[derive(Clone, Debug)]
struct Producer {
    run: usize,
    space: SpaceId,
    rows: Range<usize>,
    cols: Range<usize>,
}

/// A part of a value that a run reads.
struct PartRead<'a> {
    value: (usize, SegmentValue),
    rows: &'a Range<usize>,
    cols: &'a Range<usize>,
    dtype: DType,
}

/// When a run or a copy was.
struct Done {
    device: usize,
    /// Index of its price.
    key: usize,
    start: f64,
    end: f64,
}

/// When devices run what.
struct Timeline<'a> {
    plan: &'a Plan,
    types: &'a EdgeTypes,
    phase: Phase,
    request: PredictRequest<'a>,
    done: Vec<Done>,
    /// The runs of each device.
    of_device: Vec<Vec<usize>>,
    /// The writers of each value.
    producers: HashMap<(usize, SegmentValue), Vec<Producer>>,
    /// Copies of what a run wrote, by memory space.
    copies: HashMap<(usize, SpaceId), usize>,
    /// The runs that stand for the runs of layers that are left out.
    left_out: Range<usize>,
}

/// The key of copies, which have no price.
const UNPRICED: usize = usize::MAX;

impl<'a> Timeline<'a> {
    fn new(
        plan: &'a Plan,
        types: &'a EdgeTypes,
        phase: Phase,
        request: PredictRequest<'a>,
    ) -> Timeline<'a> {
        Timeline {
            plan,
            types,
            phase,
            request,
            done: Vec::new(),
            of_device: vec![Vec::new(); request.devices.len()],
            producers: HashMap::new(),
            copies: HashMap::new(),
            left_out: 0..0,
        }
    }

    /// What the first runs took and used.
    fn spent(&self, prices: &RunPrices, runs: usize) -> Spent {
        let joules = |run: &Done| prices.priced.get(run.key).map_or(Some(0.0), |p| p.joules);
        let runs = &self.done[..runs];
        let ns = runs.iter().map(|run| run.end).fold(0.0, f64::max);
        let mut busy = vec![0.0; self.of_device.len()];
        runs.iter().for_each(|run| busy[run.device] += run.end - run.start);
        let busy_ns = busy.into_iter().fold(0.0, f64::max);
        Spent { ns, busy_ns, joules: runs.iter().map(joules).sum() }
    }

    /// Adds a run of a segment.
    fn run(
        &mut self,
        prices: &mut RunPrices,
        index: usize,
        placed: &PlacedSegment,
        run: SegmentRun,
    ) {
        let Some(piece) = placed.pieces().nth(run.piece) else { return };
        let (device, mut after) = (piece.device, 0.0_f64);
        for operand in &piece.inputs {
            let wanted = PartRead {
                value: self.value(index, operand),
                rows: &run.rows,
                cols: &operand.cols,
                dtype: self.dtype(index, placed, operand),
            };
            after = after.max(self.read(prices, &wanted, device));
        }
        let mut ns = prices.priced[run.key].ns;
        // A single device computes on the caller's thread.
        if self.of_device[device].is_empty() && self.plan.devices.len() > 1 {
            let other = usize::from(device == 0);
            ns += self.request.cost.submit_ns(device, other, self.plan.sync);
        }
        let number = self.push(prices, device, run.key, ns, after);
        for operand in &piece.outputs {
            let value = self.value(index, operand);
            let (space, rows, cols) = (self.space(device), run.rows.clone(), operand.cols.clone());
            let producer = Producer { run: number, space, rows, cols };
            self.producers.entry(value).or_default().push(producer);
        }
    }

    /// Adds a run or a copy that starts after a time. Whatever runs beside it slows it down, and
    /// gets slower itself.
    fn push(
        &mut self,
        prices: &mut RunPrices,
        device: usize,
        key: usize,
        ns: f64,
        after: f64,
    ) -> usize {
        let start =
            self.of_device[device].last().map_or(after, |run| self.done[*run].end.max(after));
        let mut end = start + ns;
        for (_, runs) in self.of_device.iter().enumerate().filter(|(other, _)| *other != device) {
            let first =
                runs.iter().rposition(|run| self.done[*run].end <= start).map_or(0, |at| at + 1);
            let mut later = 0.0;
            for beside in &runs[first..] {
                let beside = &mut self.done[*beside];
                beside.start += later;
                beside.end += later;
                let both = beside.end.min(end) - beside.start.max(start);
                if both > 0.0 && both.is_finite() {
                    let [own, its] = prices.slowdowns(&self.request, key, beside.key);
                    end += both * (own - 1.0);
                    beside.end += both * (its - 1.0);
                    later += both * (its - 1.0);
                }
            }
        }
        self.of_device[device].push(self.done.len());
        self.done.push(Done { device, key, start, end });
        self.done.len() - 1
    }

    /// When a device knows that a run has ended.
    fn told(&self, run: usize, to: usize) -> f64 {
        let Done { device: from, end, .. } = self.done[run];
        let cost = || self.request.cost.hand_over_ns(from, to, self.plan.sync);
        if from == to { end } else { end + cost() }
    }

    /// When a device has a part of a value.
    fn read(&mut self, prices: &mut RunPrices, wanted: &PartRead<'_>, device: usize) -> f64 {
        let (space, mut after) = (self.space(device), 0.0_f64);
        let meet =
            |a: &Range<usize>, b: &Range<usize>| (a.start.max(b.start)..a.end.min(b.end)).len();
        if !self.producers.contains_key(&wanted.value) {
            // Nobody writes ids and positions.
            return self.left_out.clone().map(|run| self.told(run, device)).fold(0.0, f64::max);
        }
        for p in self.producers.get(&wanted.value).cloned().unwrap_or_default() {
            let (rows, cols) = (meet(&p.rows, wanted.rows), meet(&p.cols, wanted.cols));
            if rows.min(cols) == 0 {
                continue;
            }
            let reached = self.request.devices[device].caps.spaces.contains(&p.space);
            let copied = || self.copies.get(&(p.run, space)).copied();
            let run = if reached { Some(p.run) } else { copied() };
            let run = run.unwrap_or_else(|| {
                let bytes = rows * wanted.dtype.row_size(cols);
                let copy = self.copy(prices, &p, device, bytes as u64);
                self.copies.insert((p.run, space), copy);
                copy
            });
            after = after.max(self.told(run, device));
        }
        after
    }

    /// Copies what a run wrote to the memory of a device.
    fn copy(&mut self, prices: &mut RunPrices, from: &Producer, to: usize, bytes: u64) -> usize {
        let (space, wrote, cost) = (self.space(to), self.done[from.run].device, self.request.cost);
        // A device with its own memory copies to and from it; between two such, through the host.
        let by = if space == SpaceId::HOST { wrote } else { to };
        let mut ns = cost.copy_ns(by, bytes);
        if space != SpaceId::HOST && from.space != SpaceId::HOST {
            ns += cost.copy_ns(wrote, bytes);
        }
        let after = self.told(from.run, by);
        self.push(prices, by, UNPRICED, ns, after)
    }

    fn space(&self, device: usize) -> SpaceId {
        own_space(&self.request.devices[device].caps)
    }

    /// The type of a value.
    fn dtype(&self, segment: usize, placed: &PlacedSegment, operand: &Operand) -> DType {
        let s = &self.request.lowered.segments[segment];
        match operand.value {
            SegmentValue::Input(i) => self.types.edge(s.inputs[i], self.phase),
            SegmentValue::Output(i) => self.types.edge(s.outputs[i], self.phase),
            SegmentValue::Between(i) => placed.between[i].dtype,
        }
    }

    fn value(&self, segment: usize, operand: &Operand) -> (usize, SegmentValue) {
        let s = &self.request.lowered.segments[segment];
        match operand.value {
            // Values between segments are identified by their edges.
            SegmentValue::Input(i) => (usize::MAX, SegmentValue::Output(s.inputs[i].0)),
            SegmentValue::Output(i) => (usize::MAX, SegmentValue::Output(s.outputs[i].0)),
            between @ SegmentValue::Between(_) => (segment, between),
        }
    }
}
