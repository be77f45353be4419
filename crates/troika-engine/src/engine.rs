//! The engine: a lowered model, compiled on its devices, with its memory.

use std::collections::HashMap;
use std::sync::Arc;

use troika_device::{Buffer, Clock, Device, Waiting, WeightSource};
use troika_model::lower::{LowerOptions, Lowered, StateDecl, WeightShapes, lower};
use troika_model::spec::ModelSpec;
use troika_plan::{Phase, Plan, SyncMode};
use troika_trace::Tracer;

use crate::batching::{PlannedBatch, plan_batches};
use crate::compile::{CompileControl, CompileWith};
use crate::error::EngineError;
use crate::handover::Handover;
use crate::history::History;
use crate::input::{SequenceInput, WantedLogits};
use crate::kv::{KvCache, SeqId};
use crate::memory::{allocate, allocate_in};
use crate::pool::{ELEMENT, EdgePool, Slots};
use crate::program::Program;
use crate::residency::Instance;
use crate::schedule::{Runner, Task, TaskGraph};
use crate::tasks::{ChunkMemory, ChunkTasks, Shared};

/// Logits kept at once while many rows are wanted.
const LOGITS_BYTES: usize = 64 << 20;
/// Chunks handed to the scheduler at once.
const CHUNKS_AT_ONCE: usize = 64;

/// What an engine is made of.
pub struct EngineParts<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// Shapes and types of the bound weights.
    pub shapes: WeightShapes<'a>,
    /// The weights themselves.
    pub weights: &'a dyn WeightSource,
    /// The plan; its device names are looked up in `devices`.
    pub plan: Plan,
    /// Devices at hand.
    pub devices: &'a [Arc<dyn Device>],
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Spans.
    pub tracer: Tracer,
    /// Sequences that may be open at once, each up to the plan's context.
    pub sequences: usize,
}

/// Receives (index of the input, position, logits) in order.
pub type LogitsSink<'a> = &'a mut dyn FnMut(usize, usize, &[f32]);

/// Bytes the engine holds, besides the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineMemory {
    /// KV cache (reserved; pages are touched as sequences grow).
    pub kv_cache: u64,
    /// Of it, what the open sequences use.
    pub kv_used: u64,
    /// Values between segments.
    pub activations: u64,
    /// Scratch of executables.
    pub scratch: u64,
}

/// Runs one model by one plan.
pub struct Engine {
    lowered: Lowered,
    plan: Plan,
    vocab: usize,
    program: Program,
    runner: Runner,
    kv: KvCache,
    /// For each state, the memory of its instances.
    states: Vec<Vec<(Instance, Buffer)>>,
    handover: Handover,
    /// Values between segments, one set for each chunk in flight.
    pools: Vec<EdgePool>,
    slots: Arc<Slots>,
    inputs: Vec<InputSlot>,
    logits: Buffer,
    /// Graphs of single batches, by phase and rows, which every decoded token uses again.
    graphs: HashMap<(Phase, usize), TaskGraph>,
    memory: EngineMemory,
    history: History,
}

/// Ids and positions of a chunk.
struct InputSlot {
    ids: Buffer,
    positions: Buffer,
}

impl Engine {
    /// Lowers and compiles a model.
    ///
    /// # Errors
    /// A plan that does not fit, a spec that cannot be lowered, a device that refuses a subgraph,
    /// or no memory for the KV cache.
    pub fn new(parts: EngineParts<'_>) -> Result<Engine, EngineError> {
        Engine::compiled(parts, &CompileControl::default())
    }

    /// As [`Engine::new`], for a caller that watches the compiling, or ends it. Graphs of different
    /// devices are compiled at the same time.
    ///
    /// # Errors
    /// As [`Engine::new`], or that the compiling was ended; nothing is left behind then.
    pub fn compiled(
        parts: EngineParts<'_>,
        control: &CompileControl,
    ) -> Result<Engine, EngineError> {
        let plan = parts.plan;
        let names: Vec<&str> = parts.devices.iter().map(|d| d.name()).collect();
        plan.check(parts.spec, &names)?;
        let find = |name: &str| parts.devices.iter().find(|d| d.name() == name);
        plan.check_shapes(&|name| find(name).is_some_and(|d| d.caps().static_shapes))?;
        let options = LowerOptions {
            max_rows: plan.prefill.chunk,
            max_kv: plan.context,
            kv_dtype: plan.kv_dtype,
        };
        let lowered = lower(parts.spec, parts.shapes, options)?;
        let mut memory = EngineMemory::default();
        // Before weights are packed, which takes long: what does not fit is said at once.
        let kv = KvCache::new(
            &lowered.page_groups,
            plan.page_len,
            plan.context,
            plan.prefill.chunk,
            parts.sequences.max(1),
        )?;
        for state in &lowered.states {
            allocate(state_bytes(state, state.width, &kv), "the KV cache")?;
        }
        allocate(plan.prefill.chunk.checked_mul(widest(&lowered)), "activations")?;
        let with = CompileWith { weights: parts.weights, control, clock: &*parts.clock };
        let program = Program::new(&lowered, &plan, parts.devices, &with)?;
        let states = state_buffers(&lowered, &kv, &program)?;
        memory.kv_cache = states.iter().flatten().map(|(_, b)| b.len() as u64).sum();
        memory.scratch = program.scratch_bytes;
        let rows = plan.prefill.chunk + program.padding;
        let slots = Arc::new(Slots::new(&lowered, &program, rows));
        let pools = vec![EdgePool::new(&slots)?];
        let mut runner = Runner::new(
            &program.devices,
            (plan.prefill.policy, plan.critical_device()),
            &parts.clock,
            parts.tracer,
        )?;
        runner.set_waiting(match plan.sync {
            SyncMode::Predicted => Waiting::Poll,
            SyncMode::Blocking => Waiting::Block,
        });
        Ok(Engine {
            vocab: parts.spec.vocab,
            lowered,
            plan,
            program,
            runner,
            kv,
            states,
            handover: Handover::default(),
            pools,
            slots,
            inputs: Vec::new(),
            logits: allocate(Some(0), "logits")?,
            graphs: HashMap::new(),
            memory,
            history: History::new(parts.spec),
        })
    }

    /// The plan in force.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Bytes held.
    pub fn memory(&self) -> EngineMemory {
        let used = self.lowered.states.iter().map(|s| self.kv.used(s.page_group) * state_row(s));
        let activations = self.pools.iter().map(EdgePool::bytes).sum();
        EngineMemory { kv_used: used.sum::<usize>() as u64, activations, ..self.memory }
    }

    /// The subgraphs that run.
    pub fn lowered(&self) -> &Lowered {
        &self.lowered
    }

    /// Opens an empty sequence.
    pub fn open(&mut self) -> SeqId {
        self.kv.open()
    }

    /// Closes a sequence and frees its pages.
    pub fn close(&mut self, seq: SeqId) {
        self.kv.close(seq);
        self.handover.truncate(seq, 0);
        self.history.truncate(seq, 0);
    }

    /// Tokens of a sequence in the cache.
    pub fn len(&self, seq: SeqId) -> usize {
        self.kv.len(seq)
    }

    /// Whether a sequence has no cached tokens.
    pub fn is_empty(&self, seq: SeqId) -> bool {
        self.kv.len(seq) == 0
    }

    /// Forgets a sequence's tokens from `len` on. Returns how many are kept: `len`, or 0 when a
    /// sliding window has already dropped what continuing there would need, or the kept keys were
    /// rotated for a longer sequence.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> usize {
        let len = if self.history.changes(self.kv.len(seq), len) { 0 } else { len };
        let kept = self.kv.truncate(seq, len);
        self.handover.truncate(seq, kept);
        self.history.truncate(seq, kept);
        kept
    }

    /// Appends tokens to sequences and hands over the wanted logits.
    ///
    /// # Errors
    /// An empty input, a sequence fed twice, an unknown token, too long a sequence or logits that
    /// no device computes (all before any work); a full cache or a failing device (the sequences
    /// are then as before the call, or empty).
    pub fn run(
        &mut self,
        inputs: &[SequenceInput<'_>],
        sink: LogitsSink<'_>,
    ) -> Result<(), EngineError> {
        let silent = self.program.devices.iter().find(|d| !d.caps().computes());
        if let Some(device) = silent
            && inputs.iter().any(|f| f.logits != WantedLogits::None)
        {
            return Err(EngineError::NoNumerics(device.name().to_string()));
        }
        self.run_inputs(inputs, Some(sink))
    }

    /// As [`Engine::run`], but nobody reads the logits: for measurements of devices that only
    /// model time.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn run_unread(&mut self, inputs: &[SequenceInput<'_>]) -> Result<(), EngineError> {
        self.run_inputs(inputs, None)
    }

    fn run_inputs(
        &mut self,
        inputs: &[SequenceInput<'_>],
        mut sink: Option<LogitsSink<'_>>,
    ) -> Result<(), EngineError> {
        self.check(inputs)?;
        let before: Vec<usize> = inputs.iter().map(|f| self.kv.len(f.seq)).collect();
        let recomputed: Vec<Option<Vec<u32>>> = inputs
            .iter()
            .zip(&before)
            .map(|(f, &len)| self.history.recompute_tokens(f, len))
            .collect();
        let mut whole = inputs.to_vec();
        for (f, tokens) in whole.iter_mut().zip(&recomputed) {
            if let Some(tokens) = tokens {
                self.kv.truncate(f.seq, 0);
                self.handover.truncate(f.seq, 0);
                f.tokens = tokens;
            }
        }
        let reads = sink.is_some();
        let mut take = |input: usize, pos: usize, logits: &[f32]| match &mut sink {
            Some(sink) if pos >= before[input] => sink(input, pos, logits),
            _ => {}
        };
        let result = self.run_checked(&whole, reads.then_some(&mut take));
        for ((f, len), recomputed) in inputs.iter().zip(before).zip(&recomputed) {
            match result {
                Ok(()) => self.history.append(f.seq, f.tokens),
                // What was cached is gone, and what was to replace it may not have been computed.
                Err(_) if recomputed.is_some() => _ = self.truncate(f.seq, 0),
                Err(_) => _ = self.truncate(f.seq, len),
            }
        }
        result
    }

    fn check(&self, inputs: &[SequenceInput<'_>]) -> Result<(), EngineError> {
        for (i, f) in inputs.iter().enumerate() {
            if inputs[..i].iter().any(|other| other.seq == f.seq) {
                return Err(EngineError::Twice);
            }
            if f.tokens.is_empty() {
                return Err(EngineError::Empty);
            }
            if let Some(&id) = f.tokens.iter().find(|&&t| t as usize >= self.vocab) {
                return Err(EngineError::Token { id, vocab: self.vocab });
            }
            self.kv.fits(f.seq, f.tokens.len())?;
        }
        Ok(())
    }

    fn run_checked(
        &mut self,
        inputs: &[SequenceInput<'_>],
        mut sink: Option<LogitsSink<'_>>,
    ) -> Result<(), EngineError> {
        let batches = plan_batches(inputs, self.plan.prefill.chunk, &mut self.kv)?;
        let budget = (LOGITS_BYTES / (self.vocab * 4)).max(1);
        let mut rest = batches.as_slice();
        while !rest.is_empty() {
            let mut wanted = rest[0].wanted_rows();
            let mut n = 1;
            while n < rest.len().min(CHUNKS_AT_ONCE) && wanted + rest[n].wanted_rows() <= budget {
                wanted += rest[n].wanted_rows();
                n += 1;
            }
            self.run_batches(&rest[..n], wanted)?;
            if let Some(sink) = &mut sink {
                self.read_logits(&rest[..n], *sink)?;
            }
            rest = &rest[n..];
        }
        Ok(())
    }

    /// Runs some forward batches whose logits fit the logits buffer together.
    fn run_batches(&mut self, batches: &[PlannedBatch], wanted: usize) -> Result<(), EngineError> {
        self.reserve(batches.len(), wanted)?;
        self.hand_over(batches)?;
        for (slot, s) in self.inputs.iter().zip(batches) {
            slot.ids.write()?.as_mut_slice::<i32>()[..s.ids.len()].copy_from_slice(&s.ids);
            slot.positions.write()?.as_mut_slice::<i32>()[..s.ids.len()]
                .copy_from_slice(&s.positions);
        }
        let [s] = batches else {
            let graph = self.graph(batches)?;
            return self.runner.run(&graph);
        };
        // Decoding repeats one shape: every row wanted. Its graph is made once.
        let rows = s.forward.rows();
        if s.wanted_rows() != rows {
            let graph = self.graph(batches)?;
            return self.runner.run(&graph);
        }
        let key = (s.phase, rows);
        let mut graph = match self.graphs.remove(&key) {
            Some(graph) => graph,
            None => self.graph(std::slice::from_ref(s))?,
        };
        graph.set_forward_batch(&s.forward);
        let result = self.runner.run(&graph);
        self.graphs.insert(key, graph);
        result
    }

    /// Fetches cached positions that other devices have filled.
    fn hand_over(&mut self, batches: &[PlannedBatch]) -> Result<(), EngineError> {
        let copies = self.handover_tasks(batches)?;
        if copies.is_empty() { Ok(()) } else { self.runner.run(&TaskGraph::new(copies)) }
    }

    fn handover_tasks(&mut self, batches: &[PlannedBatch]) -> Result<Vec<Task>, EngineError> {
        let mut copies = Vec::new();
        for batch in batches {
            let states = (self.states.as_slice(), self.lowered.states.as_slice());
            copies.extend(self.handover.before(batch, &self.program, states)?);
        }
        Ok(copies)
    }

    /// Makes the tasks that hand caches over before some tokens are computed, and those that
    /// compute them, as [`Engine::run`] does. Nothing runs, but the tokens count as cached.
    pub(crate) fn tasks_without_running(
        &mut self,
        inputs: &[SequenceInput<'_>],
    ) -> Result<(Vec<Task>, Vec<Task>), EngineError> {
        self.check(inputs)?;
        let batches = plan_batches(inputs, self.plan.prefill.chunk, &mut self.kv)?;
        self.reserve(batches.len(), batches.iter().map(PlannedBatch::wanted_rows).sum())?;
        Ok((self.handover_tasks(&batches)?, self.tasks(&batches)?))
    }

    /// Makes input slots and logits memory.
    fn reserve(&mut self, slots: usize, wanted: usize) -> Result<(), EngineError> {
        let padding = self.program.padding;
        let need = (wanted + padding).checked_mul(self.vocab).and_then(|n| n.checked_mul(4));
        if need.is_none_or(|need| self.logits.len() < need) {
            self.logits = allocate(need, "logits")?;
            self.graphs.clear();
        }
        let chunk = self.plan.prefill.chunk + padding;
        while self.pools.len() < slots.min(self.plan.prefill.chunks_in_flight) {
            self.pools.push(EdgePool::new(&self.slots)?);
        }
        while self.inputs.len() < slots {
            let ids = allocate(chunk.checked_mul(4), "token ids")?;
            let positions = allocate(chunk.checked_mul(4), "positions")?;
            self.inputs.push(InputSlot { ids, positions });
        }
        Ok(())
    }

    fn graph(&mut self, batches: &[PlannedBatch]) -> Result<TaskGraph, EngineError> {
        Ok(TaskGraph::new(self.tasks(batches)?))
    }

    fn tasks(&mut self, batches: &[PlannedBatch]) -> Result<Vec<Task>, EngineError> {
        let shared = Shared {
            lowered: &self.lowered,
            program: &self.program,
            states: &self.states,
            logits: &self.logits,
        };
        let (mut tasks, mut logits_row) = (Vec::new(), 0);
        let pools = self.pools.len();
        for (chunk, batch) in batches.iter().enumerate() {
            let InputSlot { ids, positions } = &self.inputs[chunk];
            // Chunks are dealt to the pools in turn.
            let memory = ChunkMemory { pool: &mut self.pools[chunk % pools], ids, positions };
            let made = ChunkTasks::new(&shared, memory, batch, chunk).make(logits_row)?;
            tasks.extend(made.0);
            logits_row = made.1;
        }
        Ok(tasks)
    }

    fn read_logits(
        &self,
        batches: &[PlannedBatch],
        sink: LogitsSink<'_>,
    ) -> Result<(), EngineError> {
        let guard = self.logits.read()?;
        let mut rows = guard.as_slice::<f32>().chunks_exact(self.vocab);
        for s in batches {
            for (input, range) in &s.wanted {
                for row in range.clone() {
                    if let Some(logits) = rows.next() {
                        sink(*input, s.positions[row] as usize, logits);
                    }
                }
            }
        }
        Ok(())
    }
}

fn state_buffers(
    lowered: &Lowered,
    kv: &KvCache,
    program: &Program,
) -> Result<Vec<Vec<(Instance, Buffer)>>, EngineError> {
    let instances = lowered.states.iter().zip(&program.state_instances);
    let buffers = instances.map(|(state, instances)| {
        let buffer = |instance: &Instance| {
            let bytes = state_bytes(state, instance.cols.len(), kv);
            let buffer = allocate_in((instance.space, bytes), "the KV cache", &program.devices)?;
            Ok((instance.clone(), buffer))
        };
        instances.iter().map(buffer).collect()
    });
    buffers.collect()
}

/// Bytes of some columns of a state; `None` for more than can be counted.
fn state_bytes(state: &StateDecl, cols: usize, kv: &KvCache) -> Option<usize> {
    kv.positions(state.page_group)?.checked_mul(cols.checked_mul(state.dtype.block_bytes())?)
}

/// Bytes of a row of the widest value between segments.
fn widest(lowered: &Lowered) -> usize {
    let inner = lowered.edges.iter().filter(|e| e.cols < lowered.edges[lowered.logits().0].cols);
    inner.map(|e| e.cols * ELEMENT).max().unwrap_or(0)
}

/// Bytes of a cached position.
fn state_row(state: &StateDecl) -> usize {
    state.width * state.dtype.block_bytes()
}
