//! The engine: a lowered model, compiled on its devices, with its memory.

use std::mem::swap;
use std::sync::Arc;

use troika_device::{
    Buffer, Clock, Device, ExpertForecast, ExpertStats, Waiting, WeightSource, Weights,
};
use troika_model::lower::{Lowered, StateDecl, WeightShapes, lower};
use troika_model::spec::ModelSpec;
use troika_plan::{Phase, Plan, PlanDevice, SyncMode};
use troika_program::kv::{KvCache, KvLayout, PageCount, SeqId};
use troika_program::schedule::TaskTimes;
use troika_program::{ELEMENT, ExpertCache, ListedGraph, Program, Slots};
use troika_trace::Tracer;

use crate::bind::PlacedModel;
use crate::compile::{CompileControl, CompileWith, CompiledGraph, compile};
use crate::error::EngineError;
use crate::experts::{CachedGraph, DeviceExperts, GroupStats, LastingWeights, SharedStats};
use crate::input::Admission;
use crate::loss::{Elsewhere, Losses};
use crate::mailbox::{EngineHandle, Limits};
use crate::memory::{allocate, allocate_in, owner};
use crate::schedule::Runner;
use crate::sequences::{Rules, Sequences, Sharing};
use crate::slot::BatchSlot;

/// Everything an engine is made from.
pub struct EngineParts<'a> {
    /// The model.
    pub spec: &'a ModelSpec,
    /// Shapes and types of the bound weights.
    pub shapes: WeightShapes<'a>,
    /// The weights themselves.
    pub weights: &'a dyn WeightSource,
    /// The plan; its device names are looked up in `devices`.
    pub plan: Plan,
    /// The available devices.
    pub devices: &'a [Arc<dyn Device>],
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Records spans.
    pub tracer: Tracer,
    /// How sequences share the engine.
    pub sharing: Sharing,
}

/// Bytes the engine holds, besides the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineMemory {
    /// KV cache (reserved; pages are touched as sequences grow).
    pub kv_cache: u64,
    /// The part in use: by open sequences, and by kept prefixes of closed ones.
    pub kv_used: u64,
    /// The part of `kv_used` kept for sequences that begin like earlier ones.
    pub kv_kept: u64,
    /// Bytes of the pages of the KV cache that have memory of the system: those in use, and those
    /// that were and have not been given back ([`Engine::give_back`]).
    pub kv_written: u64,
    /// Pages of the KV cache.
    pub pages: PageCount,
    /// Values between segments.
    pub activations: u64,
    /// Scratch memory of executables.
    pub scratch: u64,
}

/// Runs one model by one plan, for several sequences at once.
pub struct Engine {
    pub(crate) model: PlacedModel,
    pub(crate) runner: Runner,
    pub(crate) seqs: Sequences,
    pub(crate) handle: EngineHandle,
    /// Batches in flight: one slot, or one for decode and one for prefill.
    pub(crate) slots: Vec<BatchSlot>,
    /// The largest logits of the row that is handed out.
    pub(crate) top_k: Vec<(u32, f32)>,
    /// The name of a device that models time only.
    pub(crate) silent: Option<String>,
    /// What happens when a device is lost.
    pub(crate) losses: Losses<Engine>,
    memory: EngineMemory,
}

impl Engine {
    /// Lowers and compiles a model. Devices compile in parallel.
    ///
    /// # Errors
    /// A plan that does not fit, a spec that cannot be lowered, a device that refuses a subgraph,
    /// no memory for the KV cache, or that compiling was stopped. Nothing is kept then.
    pub fn new(parts: EngineParts<'_>, control: &CompileControl) -> Result<Engine, EngineError> {
        let devices = planned_devices(&parts)?;
        let EngineParts { spec, shapes, weights, plan, clock, tracer, sharing, .. } = parts;
        let lowered = lower(spec, shapes, plan.lower_options())?;
        // Before weights are packed, which takes long, so that a misfit is reported at once.
        let layout = KvLayout::new(&lowered, &plan, sharing.sequences, sharing.kv_bytes);
        let kv = KvCache::new(layout)?;
        check_memory(&lowered, &plan, &kv)?;
        let known: Vec<PlanDevice> = devices.iter().map(PlanDevice::of).collect();
        let program = Program::new(Arc::new(lowered), &plan, &known)?;
        let cached = program.caches.iter().flat_map(|cache| cache.graphs.iter().copied()).collect();
        let with = CompileWith { weights, control, cached: &cached, clock: &*clock };
        let compiled = compile(&program.graphs, &devices, &with)?;
        let caches = expert_caches(&program, &devices, &compiled, &clock)?;
        let loaded: Vec<Option<Arc<Weights>>> = compiled.into_iter().map(|c| c.weights).collect();
        let scratch = loaded.iter().flatten().map(|w| w.executable().scratch_bytes());
        let states = state_buffers(&kv, &program, &devices)?;
        let memory = EngineMemory {
            kv_cache: states.iter().flatten().map(|b| b.len() as u64).sum(),
            scratch: scratch.max().unwrap_or(0),
            ..EngineMemory::default()
        };
        let slots = Arc::new(Slots::new(&program, plan.prefill.chunk + program.padding));
        let runner = runner(&program, &devices, &plan, (&clock, &tracer))?;
        let rules = Rules::new(&program, &plan, sharing);
        let places: &[Option<Phase>] = match rules.one_placement {
            true => &[None],
            false => &[Some(Phase::Decode), Some(Phase::Prefill)],
        };
        let chunks = |only| program.chunks_at_once(only, plan.prefill.chunks_in_flight);
        let slot = |only: &Option<Phase>| BatchSlot::new(&slots, chunks(*only));
        let silent = devices.iter().find(|d| !d.caps().computes());
        let limits = Limits::new(spec.vocab, kv.fit());
        let group_stats = SharedStats::default();
        Ok(Engine {
            slots: places.iter().map(slot).collect::<Result<_, _>>()?,
            top_k: Vec::new(),
            silent: silent.map(|d| d.name().to_string()),
            losses: Losses { elsewhere: None, leaving: None },
            handle: EngineHandle::new(limits),
            seqs: Sequences::new(rules, kv, spec),
            runner,
            memory,
            model: PlacedModel {
                program,
                devices,
                loaded,
                caches,
                plan,
                states,
                slots,
                clock,
                group_stats,
                tracer,
            },
        })
    }

    /// Says what tasks are expected to take, by the number of their code: policies that weigh tasks
    /// go by it until they have run.
    pub fn expect(&mut self, times: TaskTimes<usize>) {
        let graphs = self.model.program.graphs.graphs().iter().zip(&self.model.loaded);
        let of = |(listed, loaded): (&ListedGraph, &Option<Arc<Weights>>)| {
            Some((loaded.as_ref()?.executable().id(), times.get(&listed.code)?.clone()))
        };
        self.runner.jobs.learnt = graphs.filter_map(of).collect();
    }

    /// The plan that the engine runs.
    pub fn plan(&self) -> &Plan {
        &self.model.plan
    }

    /// Bytes held besides the weights.
    pub fn memory(&self) -> EngineMemory {
        let activations = self.slots.iter().map(BatchSlot::bytes).sum();
        let (kv_used, kv_kept) = (self.seqs.kv.used_bytes(), self.seqs.kv.kept_bytes());
        let (kv_written, pages) = (self.seqs.kv.written_bytes(), self.seqs.kv.held_pages());
        EngineMemory { kv_used, kv_kept, kv_written, pages, activations, ..self.memory }
    }

    /// Evicts kept prefixes until they take at most `kept` bytes, and gives the memory of all pages
    /// that nobody holds back to the system. Does nothing while work is in flight, which may still
    /// read them.
    pub fn give_back(&mut self, kept: u64) {
        self.take_requests();
        if self.slots.iter().any(|slot| slot.job.is_some()) {
            return;
        }
        self.seqs.kv.keep_at_most(kept);
        let states = self.model.program.lowered.states.iter().zip(&self.model.states);
        for (group, rows) in self.seqs.kv.give_back() {
            let all = self.seqs.kv.rows(group).unwrap_or(0).max(1);
            for buffer in states.clone().filter(|(s, _)| s.page_group == group).flat_map(|(_, b)| b)
            {
                let row = buffer.len() / all;
                buffer.give_back(rows.start * row..rows.end * row);
            }
        }
    }

    /// What was routed to divided experts so far.
    pub fn group_stats(&self) -> GroupStats {
        self.model.group_stats.with(|stats| stats.clone())
    }

    /// Says where the weights of experts come from that a device loads when tokens choose them, and
    /// what names such experts before.
    pub fn load_experts(&self, source: &LastingWeights, forecast: Option<&Arc<ExpertForecast>>) {
        for cache in &self.model.caches {
            cache.load_from(source, forecast);
        }
    }

    /// What became of experts that come and go on devices, by their names.
    pub fn expert_stats(&self) -> Vec<(String, ExpertStats)> {
        let of = |cache: &Arc<DeviceExperts>| {
            (self.model.devices[cache.of.device].name().to_string(), cache.stats())
        };
        self.model.caches.iter().map(of).collect()
    }

    /// Tokens of prompts that were computed so far.
    pub fn read_tokens(&self) -> u64 {
        self.seqs.read
    }

    /// How often a sequence lost its pages to another one and was computed again.
    pub fn preemptions(&self) -> u64 {
        self.seqs.preemptions
    }

    /// The lowered model.
    pub fn lowered(&self) -> &Arc<Lowered> {
        &self.model.program.lowered
    }

    /// The name of a device that models time only, if there is one: there are no logits to read
    /// then.
    pub fn silent(&self) -> Option<&str> {
        self.silent.as_deref()
    }

    /// A handle for requests from any thread.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// Opens an empty sequence that shares no cached pages with others.
    pub fn open(&mut self) -> SeqId {
        let seq = SeqId::next();
        self.handle.lock().open(seq);
        self.seqs.admit(seq, &Admission::default());
        seq
    }

    /// Closes a sequence and frees its pages. Does nothing if it is closed already.
    pub fn close(&mut self, seq: SeqId) {
        // An error means that it is closed already, as wanted.
        let _ = self.handle.close(seq);
        self.take_requests();
    }

    /// Number of tokens of a sequence.
    pub fn len(&self, seq: SeqId) -> usize {
        self.seqs.all.get(&seq).map_or(0, |s| s.tokens.len())
    }

    /// Whether a sequence has no tokens.
    pub fn is_empty(&self, seq: SeqId) -> bool {
        self.len(seq) == 0
    }

    /// Removes a sequence's tokens from `len` on. Earlier positions that a sliding window dropped,
    /// or that were rotated for a longer sequence, are computed again when it continues.
    ///
    /// # Errors
    /// The sequence is closed or has tokens to compute.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), EngineError> {
        self.take_requests();
        let before = self.handle.lock().truncate(seq, len)?;
        if len < before {
            self.seqs.truncate(seq, len);
        }
        Ok(())
    }

    /// Checks the bookkeeping of the cache: each page is free or in use, and its count of users is
    /// right.
    ///
    /// # Errors
    /// What is wrong.
    pub fn audit(&self) -> Result<(), String> {
        self.seqs.kv.audit()
    }
}

impl Engine {
    /// Says what makes an engine of the same model, for sequences as long, when a device is lost:
    /// it takes over all sequences, which are computed anew from their tokens. Without, sequences
    /// fail with the error.
    pub fn on_loss(&mut self, elsewhere: Elsewhere<Engine>) {
        self.losses.elsewhere = Some(elsewhere);
    }

    /// Takes the place of this engine's model and devices; sequences stay, and are computed anew.
    /// Nothing may be in flight.
    pub(crate) fn take_over(&mut self, mut other: Engine) {
        swap(&mut self.model, &mut other.model);
        swap(&mut self.runner, &mut other.runner);
        swap(&mut self.slots, &mut other.slots);
        swap(&mut self.silent, &mut other.silent);
        swap(&mut self.memory, &mut other.memory);
        self.seqs.take_over(&mut other.seqs);
    }
}

impl Drop for Engine {
    /// Stops what is in flight and refuses further requests.
    fn drop(&mut self) {
        let mut inbox = self.handle.lock();
        inbox.end();
        inbox.in_flight.iter().for_each(|running| running.canceller.cancel());
        drop(inbox);
        while self.runner.wait().is_some() {}
    }
}

/// Queues on all devices, and behind these those that load experts.
fn runner(
    program: &Program,
    devices: &[Arc<dyn Device>],
    plan: &Plan,
    (clock, tracer): (&Arc<dyn Clock>, &Tracer),
) -> Result<Runner, EngineError> {
    let policy = (plan.prefill.policy, plan.critical_device());
    let loaders: Vec<usize> = program.caches.iter().map(|cache| cache.device).collect();
    let mut runner = Runner::new(devices, &loaders, policy, clock, tracer.clone())?;
    runner.set_waiting(match plan.sync {
        SyncMode::Predicted => Waiting::Poll,
        SyncMode::Blocking => Waiting::Block,
    });
    Ok(runner)
}

/// The caches of experts that come and go. The queues that load them are behind the devices'.
fn expert_caches(
    program: &Program,
    devices: &[Arc<dyn Device>],
    compiled: &[CompiledGraph],
    clock: &Arc<dyn Clock>,
) -> Result<Vec<Arc<DeviceExperts>>, EngineError> {
    let of_cache = |cache: &ExpertCache| {
        let graph = |at: &usize| CachedGraph {
            graph: program.graphs.graphs()[*at].graph.clone(),
            code: compiled[*at].code.clone(),
        };
        let graphs = cache.graphs.iter().map(graph).collect();
        let device = devices[cache.device].clone();
        DeviceExperts::new(cache, device, graphs, clock.clone()).map(Arc::new)
    };
    program.caches.iter().map(of_cache).collect()
}

/// The plan's devices in its order, if it fits the model and them.
fn planned_devices(parts: &EngineParts<'_>) -> Result<Vec<Arc<dyn Device>>, EngineError> {
    let EngineParts { plan, devices, .. } = parts;
    let names: Vec<&str> = devices.iter().map(|d| d.name()).collect();
    plan.check(parts.spec, &names)?;
    let find = |name: &str| devices.iter().find(|d| d.name() == name);
    plan.check_shapes(&|name| find(name).is_some_and(|d| d.caps().static_shapes))?;
    plan.check_hosts(&|name| find(name).is_some_and(|d| d.caps().host_tasks))?;
    Ok(plan.devices.iter().filter_map(|name| find(name).cloned()).collect())
}

/// Checks that there is memory for the cache and for the widest value.
fn check_memory(lowered: &Lowered, plan: &Plan, kv: &KvCache) -> Result<(), EngineError> {
    for state in &lowered.states {
        allocate(state_bytes(state, state.width, kv), "the KV cache")?;
    }
    allocate(plan.prefill.chunk.checked_mul(widest(lowered)), "activations")?;
    Ok(())
}

fn state_buffers(
    kv: &KvCache,
    program: &Program,
    devices: &[Arc<dyn Device>],
) -> Result<Vec<Vec<Buffer>>, EngineError> {
    let instances = program.lowered.states.iter().zip(&program.state_instances);
    let buffers = instances.map(|(state, instances)| {
        let buffer = |instance: &troika_program::Instance| {
            let (space, needed) = (instance.space, state_bytes(state, instance.cols.len(), kv));
            let bytes = needed.unwrap_or(usize::MAX) as u64;
            // Devices bind a state as a whole; those that model time, slab by slab.
            if let Some(device) = owner(space, devices).filter(|d| d.clock().is_none())
                && let Some(most) = device.caps().max_binding_bytes.filter(|most| bytes > *most)
            {
                let device = device.name().into();
                return Err(EngineError::CacheBinding { device, bytes, most });
            }
            allocate_in(space, needed, "the KV cache", devices)
        };
        instances.iter().map(buffer).collect()
    });
    buffers.collect()
}

/// Bytes of some columns of a state; `None` on overflow.
fn state_bytes(state: &StateDecl, cols: usize, kv: &KvCache) -> Option<usize> {
    kv.rows(state.page_group)?.checked_mul(state.dtype.row_bytes(cols)?)
}

/// Bytes of a row of the widest value between segments.
fn widest(lowered: &Lowered) -> usize {
    lowered.edges[..lowered.logits().0].iter().map(|e| e.cols * ELEMENT).max().unwrap_or(0)
}
