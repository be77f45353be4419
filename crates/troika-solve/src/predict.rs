//! Predicts a plan's costs: runs the tasks of a prompt and of a decoded token in modelled time.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use troika_device::SpaceId;
use troika_graph::{DType, Subgraph, WeightSlice};
use troika_model::lower::{Lowered, SegmentKind};

use super::events::{self, SimTask};
use super::placements::Placements;
use super::request::PredictRequest;
use super::timed::TimedPlan;
use super::weights::WeightRows;
use crate::cost::{CostModel, PricedRun};
use troika_plan::own_space;
use troika_plan::{Phase, Plan, PlanError, Rule};
use troika_plan::{PlanDevice, Predicted, PredictedLength};
use troika_program::{EdgeTypes, Operand, Place, PlacedPiece, PlacedSegment, RowsRun};

/// Predicts a plan's costs. The time is infinite if a device cannot run its part.
///
/// # Errors
/// An unknown device, a split that a graph does not allow, or a segment without a rule.
pub fn predict(request: &PredictRequest<'_>, plan: &Plan) -> Result<Predicted, PlanError> {
    let mut predictor = Predictor::new(request);
    let predicted = predictor.exact(plan)?;
    Ok(Predicted { lengths: predictor.lengths(plan)?, ..predicted })
}

/// Bytes of weights on each device.
pub(super) fn weights_on(
    plan: &Plan,
    lowered: &Arc<Lowered>,
    devices: &[PlanDevice],
) -> Result<BTreeMap<String, u64>, PlanError> {
    let request = PredictRequest { lowered, devices, cost: &Free, prompt: 1, generate: 0 };
    let mut predictor = Predictor::new(&request);
    let all = predictor.all();
    Ok(predictor.weight_bytes(plan, &all)?.0)
}

/// A cost model without costs, to count bytes only.
struct Free;

impl CostModel for Free {
    fn source(&self) -> String {
        String::new()
    }

    fn run_ns(&self, _: &PricedRun<'_>) -> f64 {
        0.0
    }

    fn hand_over_ns(&self, _: usize, _: usize, _: troika_plan::SyncMode) -> f64 {
        0.0
    }

    fn copy_ns(&self, _: usize, _: u64) -> f64 {
        0.0
    }
}

/// Other lengths of prompts to predict.
const LENGTHS: [usize; 7] = [32, 64, 128, 256, 512, 1024, 2048];

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

/// Predicts plans of one model. Caches prices and placements.
pub(super) struct Predictor<'a> {
    pub request: PredictRequest<'a>,
    pub placements: Placements<'a>,
    priced: Vec<Priced>,
    /// By graph, device, rows, room and cached positions. `priced` keeps the graphs alive.
    keys: HashMap<(usize, usize, usize, usize, usize), usize>,
    slow: HashMap<Vec<usize>, Vec<f64>>,
}

/// A selection of segments by index, and the number of layers it covers.
#[derive(Clone)]
pub(super) struct Extract {
    pub segments: Vec<usize>,
    pub layers: usize,
}

/// The time and energy of some tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    pub ns: f64,
    /// Energy beyond that of the idle machine.
    pub joules: Option<f64>,
}

impl<'a> Predictor<'a> {
    pub fn new(request: &PredictRequest<'a>) -> Predictor<'a> {
        let placements = Placements::new(request.lowered, request.devices);
        let (priced, keys, slow) = (Vec::new(), HashMap::new(), HashMap::new());
        Predictor { request: *request, placements, priced, keys, slow }
    }

    /// All segments.
    pub fn all(&self) -> Extract {
        let segments = &self.request.lowered.segments;
        let layers = segments.iter().filter_map(|s| s.layer).max().map_or(0, |l| l + 1);
        Extract { segments: (0..segments.len()).collect(), layers }
    }

    /// A quick prediction, by which plans are ranked.
    pub fn whole(&mut self, plan: &Plan) -> Result<Predicted, PlanError> {
        let (prompt, generate) = (self.request.prompt.max(1), self.request.generate);
        let all = self.all();
        let first_ns = self.prompt(plan, &all, prompt)?.ns;
        let token_ns = self.token(plan, &all, prompt + generate / 2)?.ns;
        self.predicted(plan, first_ns, token_ns, None)
    }

    /// What the plan's run in modelled time takes.
    pub fn exact(&mut self, plan: &Plan) -> Result<Predicted, PlanError> {
        let (prompt, generate) = (self.request.prompt.max(1), self.request.generate);
        let mut run = TimedPlan::new(&self.request, plan)?.start();
        run.tokens(prompt)?;
        let first_ns = run.now_ns();
        let later = generate.saturating_sub(1).max(1);
        for _ in 0..later {
            run.tokens(1)?;
        }
        let end_ns = run.now_ns();
        let token_ns = if end_ns.is_finite() { (end_ns - first_ns) / later as f64 } else { end_ns };
        let joules = self.request.cost.machine_j(&run.usage());
        self.predicted(plan, first_ns, token_ns, joules)
    }

    fn predicted(
        &mut self,
        plan: &Plan,
        first_ns: f64,
        token_ns: f64,
        joules: Option<f64>,
    ) -> Result<Predicted, PlanError> {
        let (prompt, generate) = (self.request.prompt.max(1), self.request.generate);
        let energy_j = match joules {
            Some(joules) => Some(joules),
            None => self.energy_j(plan, (first_ns + token_ns * generate as f64) * 1e-9)?,
        };
        let all = self.all();
        let (weight_bytes, total_bytes) = self.weight_bytes(plan, &all)?;
        Ok(Predicted {
            source: self.request.cost.source(),
            prompt,
            generate,
            ttft_us: first_ns * 1e-3,
            tpot_us: token_ns * 1e-3,
            energy_j: energy_j.filter(|j| j.is_finite()),
            // JSON cannot hold infinity.
            compile_us: (self.compile_ns(plan)? * 1e-3).min(f64::MAX),
            weight_bytes,
            total_bytes,
            lengths: Vec::new(),
        })
    }

    /// Joules of prompt and answer by the energy of each run, in so many seconds.
    fn energy_j(&mut self, plan: &Plan, seconds: f64) -> Result<Option<f64>, PlanError> {
        let (prompt, generate) = (self.request.prompt.max(1), self.request.generate);
        let all = self.all();
        let first = self.prompt(plan, &all, prompt)?;
        let token = self.token(plan, &all, prompt + generate / 2)?;
        let run_j = first.joules.zip(token.joules).map(|(f, t)| f + t * generate as f64);
        let idle = self.request.cost.idle_w().unwrap_or(0.0);
        Ok(run_j.map(|j| j + idle * seconds))
    }

    /// Predictions for prompts of other lengths.
    pub fn lengths(&mut self, plan: &Plan) -> Result<Vec<PredictedLength>, PlanError> {
        let shorter = LENGTHS.into_iter().filter(|n| *n < self.request.prompt);
        let timed = TimedPlan::new(&self.request, plan)?;
        let of = |tokens| {
            let mut run = timed.start();
            run.tokens(tokens)?;
            Ok(PredictedLength { tokens, ttft_us: run.now_ns() * 1e-3 })
        };
        shorter.map(of).collect()
    }

    /// The cost of a prompt in the plan's chunks.
    pub fn prompt(&mut self, plan: &Plan, of: &Extract, tokens: usize) -> Result<Spent, PlanError> {
        let chunk = plan.prefill.chunk.max(1);
        let count = tokens.div_ceil(chunk);
        let chunks = (0..count).map(|i| (i * chunk, (tokens - i * chunk).min(chunk)));
        let chunks: Vec<(usize, usize)> = chunks.collect();
        self.batches(plan, of, Phase::Prefill, &chunks)
    }

    /// The cost of a decoded token.
    pub fn token(&mut self, plan: &Plan, of: &Extract, cached: usize) -> Result<Spent, PlanError> {
        self.batches(plan, of, Phase::Decode, &[(cached, 1)])
    }

    fn batches(
        &mut self,
        plan: &Plan,
        of: &Extract,
        phase: Phase,
        batches: &[(usize, usize)],
    ) -> Result<Spent, PlanError> {
        let (tasks, order) = self.tasks(plan, of, phase, batches)?;
        let ns = self.ends(&tasks, order).into_iter().fold(0.0, f64::max);
        let joules = |t: &SimTask| self.priced.get(t.key).map_or(Some(0.0), |p| p.joules);
        Ok(Spent { ns, joules: tasks.iter().map(joules).sum() })
    }

    /// The tasks of some chunks or of a token, and the order in which devices run them.
    fn tasks(
        &mut self,
        plan: &Plan,
        of: &Extract,
        phase: Phase,
        batches: &[(usize, usize)],
    ) -> Result<(Vec<SimTask>, events::Order), PlanError> {
        let request = self.request;
        let types = EdgeTypes::new(request.lowered, plan);
        let mut tasks = TaskList::new(plan, &types, phase, &request);
        // By class and rule, so that placements are looked up once.
        let mut placed: Vec<PlacedBy<'_>> = Vec::new();
        for (number, &(cached, rows)) in batches.iter().enumerate() {
            let last = number + 1 == batches.len();
            tasks.begin(number);
            for &index in &of.segments {
                let segment = &request.lowered.segments[index];
                if segment.kind == SegmentKind::Head && !last {
                    continue;
                }
                // Only the last row needs logits.
                let range =
                    if segment.kind == SegmentKind::Head { rows - 1..rows } else { 0..rows };
                let rule = plan.rule_for((phase, rows), segment.kind, segment.layer);
                let rule = rule.ok_or_else(|| {
                    let (phase, segment) = (phase.name().into(), segment.graph.name.clone());
                    PlanError::Missing { phase, segment }
                })?;
                let class = self.placements.class(index);
                let same = |p: &&PlacedBy<'_>| {
                    let edges = types.of(segment, phase);
                    p.class == class
                        && std::ptr::eq(p.rule, rule)
                        && types.of(&request.lowered.segments[p.first], phase).eq(edges)
                };
                let here = match placed.iter().find(same) {
                    Some(known) => known.segment.clone(),
                    None => {
                        let here = self.placements.of(index, rule, phase, &types)?;
                        let segment = here.clone();
                        placed.push(PlacedBy { class, rule, first: index, segment });
                        here
                    }
                };
                let runs = self.runs(segment.kind, &here, range, cached)?;
                tasks.segment(index, &here, &self.priced, runs);
            }
        }
        // Queues that can wait for each other get all tasks of a single chunk in program order.
        let waits = |d: &PlanDevice| !plan.devices.contains(&d.name) || d.caps.queue_waits;
        let order = match batches.len() == 1 && request.devices.iter().all(waits) {
            true => events::Order::InOrder,
            false => events::Order::Ready,
        };
        Ok((tasks.tasks, order))
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
                    let key = self.price(kind, piece, run, cached + first);
                    let rows = first..first + run.rows;
                    runs.push(SegmentRun { piece: piece.index, rows, key });
                    at += run.rows;
                }
            }
        }
        Ok(runs)
    }

    fn price(
        &mut self,
        kind: SegmentKind,
        piece: &PlacedPiece,
        run: RowsRun,
        cached: usize,
    ) -> usize {
        let RowsRun { rows, room, .. } = run;
        // Only attention depends on cached positions. For others it matters only if they decode.
        let decoded = usize::from(rows == 1 && cached > 0);
        let cached = if piece.graph.states.is_empty() { decoded } else { cached };
        let graph = Arc::as_ptr(&piece.graph) as usize;
        let key = (graph, piece.device, rows, room, cached);
        if let Some(known) = self.keys.get(&key) {
            return *known;
        }
        let device = piece.device;
        let run = PricedRun { device, kind, graph: &piece.graph, rows, room, cached };
        let ns = self.request.cost.run_ns(&run);
        // An invalid cost counts as infinite, and so does a graph that is too large.
        let most = self.request.devices[device].caps.max_graph_bytes;
        let fits = most.is_none_or(|most| graph_bytes(&piece.graph) <= most);
        let ns = if ns >= 0.0 && fits { ns } else { f64::INFINITY };
        let joules = self.request.cost.run_j(&run);
        let graph = piece.graph.clone();
        self.priced.push(Priced { device, kind, graph, rows, room, cached, ns, joules });
        self.keys.insert(key, self.priced.len() - 1);
        self.priced.len() - 1
    }

    /// The end of each task.
    fn ends(&mut self, tasks: &[SimTask], order: events::Order) -> Vec<f64> {
        let (priced, slow, cost) = (&self.priced, &mut self.slow, self.request.cost);
        let mut slowdowns = |keys: &[usize]| {
            if let Some(known) = slow.get(keys) {
                return known.clone();
            }
            let of = |key: &usize| priced.get(*key).map(Priced::run);
            let runs: Option<Vec<PricedRun<'_>>> = keys.iter().map(of).collect();
            // Copies slow nothing down.
            let mut factors = runs.map_or_else(Vec::new, |runs| cost.slowdowns(&runs));
            factors.resize(keys.len(), 1.0);
            factors.iter_mut().for_each(|f| *f = if *f >= 1.0 { *f } else { 1.0 });
            slow.insert(keys.to_vec(), factors.clone());
            factors
        };
        events::run(tasks, self.request.devices.len(), order, &mut slowdowns)
    }

    /// Bytes of weights on each device, and in total with each form counted once per memory.
    /// Devices that share memory and read the same types share a form.
    pub fn weight_bytes(
        &mut self,
        plan: &Plan,
        of: &Extract,
    ) -> Result<(BTreeMap<String, u64>, u64), PlanError> {
        let devices = self.request.devices;
        let mut by_device = vec![WeightRows::default(); devices.len()];
        let mut forms: HashMap<(SpaceId, &[DType]), WeightRows> = HashMap::new();
        let types = EdgeTypes::new(self.request.lowered, plan);
        for ((phase, _), rules) in plan.all_lists() {
            for &i in &of.segments {
                let s = &self.request.lowered.segments[i];
                let rule = rules.iter().find(|r| r.matches(s.kind, s.layer));
                let Some(rule) = rule else { continue };
                let placed = self.placements.of(i, rule, phase, &types)?;
                for piece in placed.pieces() {
                    let caps = &devices[piece.device].caps;
                    let form =
                        forms.entry((own_space(caps), caps.weight_dtypes.as_slice())).or_default();
                    for w in &piece.graph.weights {
                        let first = match w.slice {
                            Some(WeightSlice::Rows { first, .. }) => first,
                            _ => 0,
                        };
                        let row = w.dtype.row_bytes(w.cols).unwrap_or(0) as u64;
                        let rows = first..first + w.rows;
                        by_device[piece.device].add(i, &w.name, rows.clone(), row);
                        form.add(i, &w.name, rows, row);
                    }
                }
            }
        }
        let named = devices.iter().zip(&by_device).filter(|(_, w)| w.bytes() > 0);
        let named = named.map(|(d, w)| (d.name.clone(), w.bytes())).collect();
        Ok((named, forms.values().map(WeightRows::bytes).sum()))
    }

    fn compile_ns(&mut self, plan: &Plan) -> Result<f64, PlanError> {
        let mut seen: HashMap<(usize, usize, usize), f64> = HashMap::new();
        let types = EdgeTypes::new(self.request.lowered, plan);
        for ((phase, _), rules) in plan.all_lists() {
            for (i, s) in self.request.lowered.segments.iter().enumerate() {
                let rule = rules.iter().find(|r| r.matches(s.kind, s.layer));
                let Some(rule) = rule else { continue };
                let placed = self.placements.of(i, rule, phase, &types)?;
                for p in placed.pieces() {
                    let bakes = self.request.devices[p.device].caps.bakes_weights;
                    // Graphs of one shape share code unless it contains weights.
                    let which = if bakes { i + 1 } else { 0 };
                    for &room in &p.shapes {
                        let graph = Arc::as_ptr(&p.graph) as usize;
                        let key = (graph, room, which);
                        let cost = self.request.cost;
                        seen.entry(key)
                            .or_insert_with(|| cost.compile_ns(p.device, &p.graph, room));
                    }
                }
            }
        }
        Ok(seen.values().sum())
    }
}

impl Priced {
    fn run(&self) -> PricedRun<'_> {
        let Priced { device, kind, rows, room, cached, .. } = *self;
        PricedRun { device, kind, graph: &self.graph, rows, room, cached }
    }
}

/// Bytes of a graph's weights.
fn graph_bytes(graph: &Subgraph) -> u64 {
    let of = |w: &troika_graph::WeightDecl| w.rows * w.dtype.row_bytes(w.cols).unwrap_or(0);
    graph.weights.iter().map(|w| of(w) as u64).sum()
}

/// A run of a piece of a segment.
struct SegmentRun {
    /// Index among the segment's pieces.
    piece: usize,
    rows: Range<usize>,
    /// Index of its price in [`Predictor::priced`].
    key: usize,
}

/// The task that wrote a part of a value.
#[derive(Clone, Debug)]
struct Producer {
    task: usize,
    device: usize,
    space: SpaceId,
    rows: Range<usize>,
    cols: Range<usize>,
}

/// Some columns of a value that a piece reads.
struct ReadValue<'a> {
    at: (usize, Place),
    cols: &'a Range<usize>,
    /// Bytes of an element.
    element: usize,
}

/// A placement by a rule of the plan at hand.
struct PlacedBy<'a> {
    class: usize,
    rule: &'a Rule,
    /// The first segment that it was looked up for.
    first: usize,
    segment: Arc<PlacedSegment>,
}

/// Builds the list of tasks in program order.
struct TaskList<'a> {
    plan: &'a Plan,
    types: &'a EdgeTypes,
    phase: Phase,
    request: &'a PredictRequest<'a>,
    tasks: Vec<SimTask>,
    /// The writers of each value in the current chunk.
    producers: HashMap<(usize, Place), Vec<Producer>>,
    /// Copies of what a task wrote, by memory space.
    copies: HashMap<(usize, SpaceId), usize>,
    /// The last tasks that used the states of a segment.
    states: HashMap<usize, Vec<usize>>,
    /// The tasks of the previous segment.
    previous: Vec<usize>,
    /// The last tasks of each chunk.
    ends: Vec<Vec<usize>>,
    /// Devices used by the current chunk.
    used: Vec<bool>,
}

/// The key of copies, which have no price.
const UNPRICED: usize = usize::MAX;

impl<'a> TaskList<'a> {
    fn new(
        plan: &'a Plan,
        types: &'a EdgeTypes,
        phase: Phase,
        request: &'a PredictRequest<'a>,
    ) -> TaskList<'a> {
        TaskList {
            plan,
            types,
            phase,
            request,
            tasks: Vec::new(),
            producers: HashMap::new(),
            copies: HashMap::new(),
            states: HashMap::new(),
            previous: Vec::new(),
            ends: Vec::new(),
            used: vec![false; request.devices.len()],
        }
    }

    /// Starts a chunk.
    fn begin(&mut self, number: usize) {
        self.ends.push(std::mem::take(&mut self.previous));
        self.producers.clear();
        if number == 0 {
            self.ends.clear();
            self.used.fill(false);
        }
    }

    /// Adds the tasks of a segment.
    fn segment(
        &mut self,
        index: usize,
        placed: &PlacedSegment,
        priced: &[Priced],
        runs: Vec<SegmentRun>,
    ) {
        let pieces: Vec<&PlacedPiece> = placed.pieces().collect();
        let mut current = Vec::new();
        for run in runs {
            let piece = pieces[run.piece];
            let mut after = self.waits_for_room();
            for operand in &piece.inputs {
                let value = ReadValue {
                    at: self.value(index, operand),
                    cols: &operand.cols,
                    element: self.element(index, placed, operand),
                };
                self.read(&value, piece.device, &run.rows, &mut after);
            }
            if !piece.graph.states.is_empty() {
                let lag = |list: &TaskList<'_>, t: usize| list.lag(t, piece.device);
                let before = self.states.get(&index).cloned().unwrap_or_default();
                after.extend(before.into_iter().map(|t| (t, lag(self, t))));
            }
            let mut ns = priced[run.key].ns;
            // A single device computes on the caller's thread.
            let several = self.plan.devices.len() > 1;
            if !std::mem::replace(&mut self.used[piece.device], true) && several {
                ns += self.request.cost.submit_ns(piece.device);
            }
            let task = self.push(piece.device, ns, run.key, after);
            for operand in &piece.outputs {
                let value = self.value(index, operand);
                let space = own_space(&self.request.devices[piece.device].caps);
                let (rows, cols) = (run.rows.clone(), operand.cols.clone());
                let producer = Producer { task, device: piece.device, space, rows, cols };
                self.producers.entry(value).or_default().push(producer);
            }
            current.push((task, !piece.graph.states.is_empty()));
        }
        let with_states: Vec<usize> = current.iter().filter(|t| t.1).map(|t| t.0).collect();
        if !with_states.is_empty() {
            self.states.insert(index, with_states);
        }
        self.previous = current.into_iter().map(|t| t.0).collect();
    }

    /// The last tasks of the chunk whose buffers this one reuses.
    fn waits_for_room(&self) -> Vec<(usize, f64)> {
        let in_flight = self.plan.prefill.chunks_in_flight.max(1);
        let of = self.ends.len().checked_sub(in_flight);
        let tasks = of.and_then(|i| self.ends.get(i)).filter(|_| self.phase == Phase::Prefill);
        tasks.into_iter().flatten().map(|t| (*t, 0.0)).collect()
    }

    fn push(&mut self, device: usize, ns: f64, key: usize, after: Vec<(usize, f64)>) -> usize {
        let mut single: Vec<(usize, f64)> = Vec::with_capacity(after.len());
        for (task, lag) in after {
            match single.iter_mut().find(|(t, _)| *t == task) {
                Some((_, known)) => *known = known.max(lag),
                None => single.push((task, lag)),
            }
        }
        self.tasks.push(SimTask { device, ns, key, after: single });
        self.tasks.len() - 1
    }

    /// The delay from the end of a task to the start of a waiting one on another device.
    fn lag(&self, task: usize, to: usize) -> f64 {
        let from = self.tasks[task].device;
        if from == to { 0.0 } else { self.request.cost.hand_over_ns(from, to, self.plan.sync) }
    }

    /// Bytes of an element of a value.
    fn element(&self, segment: usize, placed: &PlacedSegment, operand: &Operand) -> usize {
        let s = &self.request.lowered.segments[segment];
        let dtype = match operand.place {
            Place::Input(i) => self.types.edge(s.inputs[i], self.phase),
            Place::Output(i) => self.types.edge(s.outputs[i], self.phase),
            Place::Between(i) => placed.between[i].dtype,
        };
        dtype.block_bytes()
    }

    fn value(&self, segment: usize, operand: &Operand) -> (usize, Place) {
        let s = &self.request.lowered.segments[segment];
        match operand.place {
            // Values between segments are identified by their edges.
            Place::Input(i) => (usize::MAX, Place::Output(s.inputs[i].0)),
            Place::Output(i) => (usize::MAX, Place::Output(s.outputs[i].0)),
            between @ Place::Between(_) => (segment, between),
        }
    }

    /// The tasks that a device must wait for to read some rows of a value.
    fn read(
        &mut self,
        value: &ReadValue<'_>,
        device: usize,
        rows: &Range<usize>,
        after: &mut Vec<(usize, f64)>,
    ) {
        if [Lowered::IDS.0, Lowered::POSITIONS.0]
            .map(|e| (usize::MAX, Place::Output(e)))
            .contains(&value.at)
        {
            return;
        }
        let Some(producers) = self.producers.get(&value.at).cloned() else {
            // The layer that writes it was left out, so the previous tasks stand for it.
            let before = self.previous.clone();
            after.extend(before.into_iter().map(|t| (t, self.lag(t, device))));
            return;
        };
        let meet =
            |a: &Range<usize>, b: &Range<usize>| (a.start.max(b.start)..a.end.min(b.end)).len();
        for p in producers {
            let (n, cols) = (meet(&p.rows, rows), meet(&p.cols, value.cols));
            if n == 0 || cols == 0 {
                continue;
            }
            let caps = &self.request.devices[device].caps;
            if caps.spaces.contains(&p.space) {
                after.push((p.task, self.lag(p.task, device)));
                continue;
            }
            let bytes = (n * cols * value.element) as u64;
            let copy = self.copy(&p, device, bytes);
            after.push((copy, self.lag(copy, device)));
        }
    }

    /// Copies what a task wrote to the memory of a device, once.
    fn copy(&mut self, from: &Producer, to: usize, bytes: u64) -> usize {
        let space = own_space(&self.request.devices[to].caps);
        if let Some(known) = self.copies.get(&(from.task, space)) {
            return *known;
        }
        // A device with its own memory copies to and from it; between two such, through the host.
        let by = if space == SpaceId::HOST { from.device } else { to };
        let cost = self.request.cost;
        let mut ns = cost.copy_ns(by, bytes);
        if space != SpaceId::HOST && from.space != SpaceId::HOST {
            ns += cost.copy_ns(from.device, bytes);
        }
        let lag = self.lag(from.task, by);
        let task = self.push(by, ns, UNPRICED, vec![(from.task, lag)]);
        self.copies.insert((from.task, space), task);
        task
    }
}
