//! A plan's run in modelled time: the tasks that the engine makes of it, in the order in which its
//! scheduler hands them out, on queues that take the time that a cost model says.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use troika_device::{ForwardBatch, LOADER_DEPTH};
use troika_plan::{Phase, Plan, PlanError, Policy, Prefill, SyncMode};
use troika_program::kv::{KvCache, KvLayout, SeqId};
use troika_program::schedule::{Failure, Jobs, Queues, Schedule, TaskList, TaskTimes};
use troika_program::{
    BatchShape, ExpertRows, ExpertSlots, ExpertStep, Handover, ListedGraph, NamedTask, NamedView,
    NamedWork, PackedSet, Program, Slots,
};
use troika_time::{LaneWork, Machine, Sharing, TaskCost, Told, Usage};

use crate::cost::{Mover, PricedRun, QueueCosts};
use crate::request::PredictRequest;

mod ready;
mod tasks;

use tasks::{Dispatched, Grows, List, RunKey, TimedGraph, TimedTask};

/// A plan on devices in modelled time, with one sequence.
pub(crate) struct TimedRun<'a> {
    of: &'a TimedPlan<'a>,
    /// Chunks in flight.
    together: usize,
    handover: Handover,
    queues: TimedQueues<'a>,
    /// The graph of a decoded token.
    token: Option<Rc<Named>>,
    jobs: Jobs<TimedGraph, Never>,
    /// What is routed to shared experts, by their set of buffers and number.
    routings: HashMap<(PackedSet, usize), ExpertRows>,
    /// What the program's caches of experts hold.
    caches: Vec<ExpertSlots>,
    /// Graphs that nobody waits for.
    quiet: Vec<usize>,
    kv: KvCache,
    seq: SeqId,
    /// The number of positions that it is to have.
    until: usize,
}

/// The queues of the plan's devices in modelled time.
struct TimedQueues<'a> {
    machine: Machine<Lane, Shares<'a>>,
    lanes: Vec<u64>,
    reports: Rc<RefCell<Reports>>,
}

/// Modelled queues refuse nothing.
enum Never {}

impl Failure for Never {
    fn skipped() -> Never {
        unreachable!("no graph fails in modelled time")
    }

    fn is_skipped(&self) -> bool {
        match *self {}
    }
}

impl Queues<TimedGraph, Never> for TimedQueues<'_> {
    fn submit(&mut self, list: &TaskList<'_, TimedGraph>) -> Result<bool, Never> {
        let own = List {
            id: list.id,
            numbers: list.tasks.to_vec(),
            graph: list.graph.clone(),
            order: list.order.cloned().unwrap_or_default(),
            base: list.base,
            took: Vec::new(),
        };
        self.machine.submit(self.lanes[list.queue], own);
        Ok(false)
    }

    fn lose(&mut self, _: usize, _: usize) {}

    fn ended(&mut self, _: usize, _: &TimedGraph, _: Option<&Never>, _: &dyn Fn(u32) -> bool) {}
}

impl TimedQueues<'_> {
    /// The next list that is done, with its device. `None` if there will be none.
    fn hear(&mut self) -> Option<(usize, List)> {
        loop {
            if let Some(done) = self.reports.borrow_mut().done.pop_front() {
                return Some(done);
            }
            let Some(next) = self.machine.next_event() else {
                // Nothing will happen any more: the plan takes for ever.
                self.machine.pass_to(u64::MAX);
                return None;
            };
            self.machine.run_until(next);
        }
    }
}

/// Tasks by name, with their order.
struct Named {
    tasks: Vec<NamedTask>,
    schedule: Arc<Schedule>,
}

/// A plan's program, which several runs share.
pub(crate) struct TimedPlan<'a> {
    request: PredictRequest<'a>,
    plan: &'a Plan,
    program: Program,
    slots: Slots,
    /// The plan's devices in the cost model's list.
    devices: Vec<usize>,
    priced: RefCell<Priced>,
    /// Whether prefill and decode run the same code in the same places.
    one: bool,
}

impl<'a> TimedPlan<'a> {
    /// Applies a plan. Rules for some lengths may be left out of it; `all_alike` tells whether it
    /// has none.
    pub fn new(
        request: &PredictRequest<'a>,
        plan: &'a Plan,
        all_alike: bool,
    ) -> Result<TimedPlan<'a>, PlanError> {
        let program = Program::new(request.lowered.clone(), plan, request.devices);
        let program = program.map_err(|e| unpriced(&e))?;
        let slots = Slots::new(&program, plan.prefill.chunk + program.padding);
        let place = |name: &String| request.devices.iter().position(|d| d.name == *name);
        let devices = plan.devices.iter().filter_map(place).collect();
        let priced = RefCell::new(Priced::default());
        let one = all_alike && program.one_placement();
        Ok(TimedPlan { request: *request, plan, program, slots, devices, priced, one })
    }

    /// What tasks take, by the number of their code, where a policy goes by it: as a scheduler learns
    /// it from chunks of some lengths, and from as many chunks as are in flight.
    pub fn times(&self, policy: Policy) -> Result<TaskTimes<usize>, PlanError> {
        if !policy.weighs() {
            return Ok(TaskTimes::default());
        }
        let Prefill { chunk, chunks_in_flight, lengths, .. } = &self.plan.prefill;
        let mut run = self.start_unknown(*chunks_in_flight, policy)?;
        let halves = std::iter::successors(Some(*chunk), |rows| Some(rows / 2));
        let rows = halves.take_while(|rows| *rows > 0).chain(lengths.iter().map(|l| l.up_to));
        for rows in rows.chain([chunk * chunks_in_flight]) {
            run.tokens(rows)?;
            run.tokens(1)?;
            run.begin_again()?;
        }
        Ok(if run.now_ns().is_finite() { run.jobs.learnt } else { TaskTimes::default() })
    }

    fn priced_run(&self, key: &RunKey) -> PricedRun<'_> {
        let RunKey { graph, rows, room, cached } = *key;
        let ListedGraph { device, kind, graph, .. } = &self.program.graphs.graphs()[graph];
        PricedRun { device: self.devices[*device], kind: *kind, graph, rows, room, cached }
    }

    /// An empty sequence and its cache.
    fn sequence(&self) -> Result<(KvCache, SeqId), PlanError> {
        // What is predicted may be longer than the plan's context.
        let layout = KvLayout::new(&self.program.lowered, self.plan, 1, None);
        let layout = KvLayout { context: u32::MAX as usize, ..layout };
        let (mut kv, seq) = (KvCache::new(layout).map_err(|e| unpriced(&e))?, SeqId::next());
        kv.open(seq);
        Ok((kv, seq))
    }

    /// Starts a run as the plan says.
    ///
    /// # Errors
    /// The model's cache is larger than can be counted.
    pub fn start(&self) -> Result<TimedRun<'_>, PlanError> {
        self.start_in(self.plan.prefill.chunks_in_flight, self.plan.prefill.policy)
    }

    /// Starts a run with so many chunks in flight, in an order.
    pub fn start_in(&self, together: usize, policy: Policy) -> Result<TimedRun<'_>, PlanError> {
        let mut run = self.start_unknown(together, policy)?;
        run.jobs.learnt = self.times(policy)?;
        Ok(run)
    }

    /// The same where nothing is known of what tasks take.
    fn start_unknown(&self, together: usize, policy: Policy) -> Result<TimedRun<'_>, PlanError> {
        let (request, plan) = (&self.request, self.plan);
        let (kv, seq) = self.sequence()?;
        let reports = Rc::new(RefCell::new(Reports::default()));
        let mut machine = Machine::new(request.devices.len(), Shares(self));
        let mut jobs = Jobs::new(policy, plan.critical_device());
        let mut lanes = Vec::new();
        let mut open = |device: usize, costs: QueueCosts| {
            let (index, blocks) = (lanes.len(), plan.sync == SyncMode::Blocking);
            let lane = Lane { index, costs, blocks, reports: reports.clone() };
            lanes.push(machine.open(device, costs.lane, None, lane));
            reports.borrow_mut().reached.push(0);
        };
        for &device in &self.devices {
            open(device, request.cost.queue(device, &self.devices, plan.sync));
            let caps = &request.devices[device].caps;
            jobs.add_queue(caps.queue_depth, caps.queue_waits);
        }
        // The queues that load experts, as the engine has them behind the devices' own.
        for _ in &self.program.caches {
            let host = self.program.experts.first().map_or(0, |of| self.devices[of.rest.device]);
            let lane = request.cost.queue(host, &self.devices, plan.sync).lane;
            open(host, QueueCosts { lane, submits_waits: true, ..QueueCosts::default() });
            jobs.add_queue(LOADER_DEPTH, false);
        }
        Ok(TimedRun {
            of: self,
            together,
            handover: Handover::default(),
            queues: TimedQueues { machine, lanes, reports },
            jobs,
            routings: HashMap::new(),
            caches: self.program.caches.iter().map(ExpertSlots::new).collect(),
            quiet: Vec::new(),
            token: None,
            kv,
            seq,
            until: 0,
        })
    }
}

impl TimedRun<'_> {
    /// The time, in nanoseconds; infinite after a task that no device runs.
    pub fn now_ns(&self) -> f64 {
        let now = self.queues.machine.now();
        // Beyond this, times were cut to what the clock can count.
        if now > u64::MAX / 2 { f64::INFINITY } else { now as f64 }
    }

    /// Goes on with another sequence. What was learnt of tasks stays.
    pub fn begin_again(&mut self) -> Result<(), PlanError> {
        (self.kv, self.seq) = self.of.sequence()?;
        (self.handover, self.token) = (Handover::default(), None);
        self.routings.clear();
        Ok(())
    }

    /// The work so far.
    pub fn usage(&mut self) -> Usage {
        self.queues.machine.usage()
    }

    /// Computes the next tokens of the sequence. The logits of the last one are wanted.
    pub fn tokens(&mut self, count: usize) -> Result<(), PlanError> {
        let decode = self.kv.len(self.seq) > 0 && count == 1;
        let phase = if decode { Phase::Decode } else { Phase::Prefill };
        let slot = Some(phase).filter(|_| !self.of.one);
        let chunks = self.of.program.chunks_at_once(slot, self.together);
        self.until = self.kv.len(self.seq) + count;
        while self.kv.len(self.seq) < self.until {
            let mut forwards = Vec::new();
            while self.kv.len(self.seq) < self.until && forwards.len() < chunks {
                let rows = (self.until - self.kv.len(self.seq)).min(self.of.plan.prefill.chunk);
                let forward = self.kv.next_batch(self.seq, rows);
                forwards.push(forward.map_err(|e| unpriced(&e))?);
            }
            self.batches(phase, &forwards)?;
        }
        Ok(())
    }

    /// Runs forward batches as one graph.
    fn batches(&mut self, phase: Phase, forwards: &[Arc<ForwardBatch>]) -> Result<(), PlanError> {
        let mut copies = Vec::new();
        for forward in forwards {
            copies.extend(self.handover.before(phase, forward, &self.of.program));
        }
        if !copies.is_empty() {
            let schedule = Arc::new(Schedule::of_named(&copies, forwards));
            self.run(&Named { tasks: copies, schedule }, forwards)?;
        }
        let named = match self.token.clone().filter(|_| phase == Phase::Decode) {
            Some(known) => known,
            None => {
                let named = Rc::new(self.named(phase, forwards)?);
                if phase == Phase::Decode {
                    self.token = Some(named.clone());
                }
                named
            }
        };
        self.run(&named, forwards)
    }

    /// The tasks of forward batches. The last row of the last one has logits.
    fn named(&self, phase: Phase, forwards: &[Arc<ForwardBatch>]) -> Result<Named, PlanError> {
        let sets = self.together.min(forwards.len()).max(1);
        let shape = |(chunk, forward): (usize, &Arc<ForwardBatch>)| {
            let rows = forward.rows();
            let last = rows - 1..rows;
            let ends = forward.seqs.iter().any(|s| s.pos + rows == self.until);
            BatchShape {
                phase,
                rows,
                wanted: if ends { vec![last] } else { Vec::new() },
                states: Vec::new(),
                chunk: chunk as u32,
                set: chunk % sets,
                top_k: None,
            }
        };
        let shapes: Vec<BatchShape> = forwards.iter().enumerate().map(shape).collect();
        let made = self.of.program.tasks(&self.of.slots, &shapes);
        let tasks = made.map_err(|e| unpriced(&e))?;
        let mut schedule = Schedule::of_named(&tasks, forwards);
        for (task, named) in (0..).zip(&tasks) {
            if matches!(&named.work, NamedWork::Host(host) if host.step == ExpertStep::Dispatch) {
                schedule.grow(task);
            }
        }
        Ok(Named { tasks, schedule: Arc::new(schedule) })
    }

    /// Runs a graph to its end.
    fn run(&mut self, named: &Named, forwards: &[Arc<ForwardBatch>]) -> Result<(), PlanError> {
        let awaited = &named.schedule.dag.awaited;
        let timed = named.tasks.iter().zip(awaited).map(|(t, a)| self.timed(t, *a, forwards));
        let tasks = timed.collect();
        let graph = TimedGraph { tasks, schedule: named.schedule.clone() };
        self.jobs.begin(Arc::new(graph), false, None, |_| true);
        while !self.has_ended() {
            self.jobs.hand_over(&mut self.queues);
            let Some((device, list)) = self.queues.hear() else {
                self.jobs.clear();
                break;
            };
            self.complete(device, list)?;
        }
        Ok(())
    }

    /// Whether the graph that is waited for has ended.
    fn has_ended(&mut self) -> bool {
        while let Some((job, _)) = self.jobs.take_ended(&mut self.queues) {
            match self.quiet.iter().position(|quiet| *quiet == job) {
                Some(at) => _ = self.quiet.swap_remove(at),
                None => return true,
            }
        }
        false
    }

    /// A task with its price.
    fn timed(&self, task: &NamedTask, awaited: bool, forwards: &[Arc<ForwardBatch>]) -> TimedTask {
        let device = self.of.devices[task.device];
        match &task.work {
            NamedWork::Host(host) => {
                let (experts, rows) = (&self.of.program.experts[host.experts], task.rows.len());
                let bytes = experts.bytes(host.step, rows, self.of.program.packed.cols);
                let dispatch =
                    Dispatched { experts: host.experts, set: host.set, rows, place: host.place };
                let grows = Some(Grows::Dispatched(dispatch));
                let need = self.of.request.cost.moving(Mover::Host, device, bytes);
                TimedTask { grows, ..TimedTask::beside(need, awaited) }
            }
            NamedWork::Copy(copy) => {
                let need = self.of.request.cost.moving(Mover::Copy, device, copy.from.bytes());
                TimedTask::beside(need, awaited)
            }
            NamedWork::Run(run) => {
                let rows = task.rows.len();
                let cached = forwards[task.chunk as usize].seqs.first().map_or(0, |s| s.pos);
                let cached = cached + task.rows.start;
                // Only attention depends on cached positions.
                let stateless = self.of.program.graphs.graphs()[run.graph].graph.states.is_empty();
                let cached = if stateless { 0 } else { cached };
                let key = RunKey { graph: run.graph, rows, room: run.room, cached };
                let row = |v: &NamedView| (rows as u64).saturating_mul(v.row_bytes as u64);
                let written = run.outputs.iter().map(row).sum();
                TimedTask { decodes: rows == 1, ..self.timed_run(&key, written, awaited) }
            }
        }
    }

    /// A run with its price, which writes `written` bytes.
    fn timed_run(&self, key: &RunKey, written: u64, awaited: bool) -> TimedTask {
        let known = self.of.priced.borrow().known.get(key).copied();
        let need = known.unwrap_or_else(|| {
            let need = self.of.request.cost.run(&self.of.priced_run(key));
            let mut priced = self.of.priced.borrow_mut();
            priced.runs.push(*key);
            let need = TaskCost { tag: priced.runs.len(), ..need };
            priced.known.insert(*key, need);
            need
        });
        let key = Some((self.of.program.graphs.graphs()[key.graph].code, key.rows));
        TimedTask { written, key, ..TimedTask::beside(need, awaited) }
    }
}

/// Why a plan cannot be priced.
fn unpriced(e: &impl ToString) -> PlanError {
    PlanError::Unpriced(e.to_string())
}

/// Prices of runs; the tag of a need is the number of its run, and 0 stands for a copy.
#[derive(Default)]
struct Priced {
    runs: Vec<RunKey>,
    known: HashMap<RunKey, TaskCost>,
}

/// How runs slow each other down, by the cost model.
struct Shares<'a>(&'a TimedPlan<'a>);

impl Sharing for Shares<'_> {
    fn shares(&self, running: &[TaskCost]) -> Vec<f64> {
        let Shares(plan) = self;
        let priced = plan.priced.borrow();
        let run = |need: &TaskCost| Some(plan.priced_run(&priced.runs[need.tag.checked_sub(1)?]));
        let all: Vec<_> = running.iter().map(|need| (run(need), *need)).collect();
        plan.request.cost.shares(&all)
    }
}

/// What lanes report, and how far each has come.
#[derive(Default)]
struct Reports {
    /// Lists that are done, by their devices.
    done: VecDeque<(usize, List)>,
    /// By lane: the last signalled number of its tasks.
    reached: Vec<u64>,
}

/// A device's queue in modelled time.
struct Lane {
    index: usize,
    costs: QueueCosts,
    /// Whether those that wait sleep until woken.
    blocks: bool,
    reports: Rc<RefCell<Reports>>,
}

impl LaneWork for Lane {
    type List = List;
    type Task = ();
    type Signal = u64;
    type Error = std::convert::Infallible;

    fn tasks(&self, list: &List) -> usize {
        list.numbers.len()
    }

    fn next_wait(&self, list: &List, _: usize) -> usize {
        list.numbers.len()
    }

    fn settled(&self, list: &List, task: usize) -> Result<bool, Self::Error> {
        let reached = &self.reports.borrow().reached;
        let mut waits = list.order.waits.iter().filter(|w| w.task as usize == task);
        Ok(waits.all(|w| reached[w.on.queue as usize] >= list.base + w.on.value))
    }

    fn submitted_early(&self, list: &List, task: usize) -> bool {
        !self.costs.submits_waits || (!self.blocks && list.task(task).decodes)
    }

    fn begin(&mut self, list: &List, task: usize) -> Result<(TaskCost, ()), Self::Error> {
        Ok((list.task(task).need, ()))
    }

    fn end(
        &mut self,
        list: &mut List,
        task: usize,
        (): (),
        span: Range<u64>,
    ) -> Result<Told<u64>, Self::Error> {
        list.took.push((list.numbers[task], span.end - span.start));
        let done = task as u64 + 1;
        let written = list.task(task).written as f64;
        let written = self.costs.told_bytes_per_ns.map_or(0, |rate| (written / rate).ceil() as u64);
        let told = self.costs.tells_all || list.task(task).awaited;
        Ok(Told {
            after_ns: if told { self.costs.told_ns.saturating_add(written) } else { 0 },
            signal: list.order.signals.contains(&done).then_some(list.base + done),
            blocks: self.blocks,
        })
    }

    fn signal(&mut self, done: u64) {
        self.reports.borrow_mut().reached[self.index] = done;
    }

    fn finish(&mut self, list: List, _: Result<(), Self::Error>) {
        self.reports.borrow_mut().done.push_back((self.index, list));
    }
}
