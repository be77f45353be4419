//! The engine: a lowered model, compiled on its devices, with its memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use troika_device::{Buffer, Clock, Device, Waiting, WeightSource};
use troika_model::lower::{LowerOptions, Lowered, StateDecl, WeightShapes, lower};
use troika_model::spec::ModelSpec;
use troika_plan::{Phase, Plan, SyncMode};
use troika_trace::Tracer;

use crate::compile::{CompileControl, CompileWith};
use crate::error::EngineError;
use crate::handover::Handover;
use crate::input::{Admission, Event};
use crate::kv::{GroupLayout, KvCache, KvLayout, SeqId};
use crate::loads::Loads;
use crate::mailbox::{EngineHandle, Limits};
use crate::memory::{allocate, allocate_in};
use crate::pool::{ELEMENT, Slots};
use crate::program::Program;
use crate::residency::Instance;
use crate::schedule::Runner;
use crate::sequence::{LongRope, Sequence};
use crate::slot::{BatchSlot, PlacedModel};

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
    /// How sequences share it.
    pub sharing: Sharing,
}

/// How sequences share an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// Sequences that are computed at once, at most; others wait.
    pub sequences: usize,
    /// Bytes of the KV cache; `None`: what `sequences` sequences of the whole context need.
    pub kv_bytes: Option<u64>,
    /// Rows that a step computes, at most, while sequences decode: their own, and those of prompts
    /// beside them. More of them end a prompt sooner, fewer delay decoding less.
    pub rows_per_step: usize,
}

impl Default for Sharing {
    /// One sequence.
    fn default() -> Sharing {
        Sharing { sequences: 1, kv_bytes: None, rows_per_step: 128 }
    }
}

/// Bytes the engine holds, besides the weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineMemory {
    /// KV cache (reserved; pages are touched as sequences grow).
    pub kv_cache: u64,
    /// Of it, what is used: by open sequences, and by what was kept of closed ones.
    pub kv_used: u64,
    /// Of that, what is kept for sequences that begin like earlier ones.
    pub kv_kept: u64,
    /// Values between segments.
    pub activations: u64,
    /// Scratch of executables.
    pub scratch: u64,
}

/// Runs one model by one plan, for several sequences at once.
pub struct Engine {
    pub(crate) model: PlacedModel,
    pub(crate) runner: Runner,
    pub(crate) kv: KvCache,
    pub(crate) handover: Handover,
    pub(crate) handle: EngineHandle,
    pub(crate) sequences: HashMap<SeqId, Sequence>,
    /// Sequences with tokens to compute, by rank.
    pub(crate) queue: Vec<SeqId>,
    /// What is to be handed out.
    pub(crate) events: VecDeque<Event<'static>>,
    /// Sequences admitted so far.
    pub(crate) orders: u64,
    /// How often a sequence lost its pages to another one.
    pub(crate) preemptions: u64,
    /// Where sequences have turns: the number of the last one, and of the last one of prompts.
    pub(crate) last_turn: u64,
    pub(crate) prompts_turn: u64,
    /// What may be in flight at once: one place, or one for decoding and one for prompts.
    pub(crate) slots: Vec<BatchSlot>,
    pub(crate) sharing: Sharing,
    /// Whether prefill and decode run the same code in the same places.
    pub(crate) one_placement: bool,
    /// Whether no device computes for both phases.
    pub(crate) phases_are_apart: bool,
    /// Whether numbers depend on which row of a batch a token is: rows are shared out between
    /// devices that compute differently. A batch is then of one sequence.
    pub(crate) rows_matter: bool,
    /// Whether cached pages may serve several sequences: all devices have them in one place, and
    /// compute the same whatever a prompt begins with.
    pub(crate) shares_pages: bool,
    /// The name of a device that only models time.
    pub(crate) silent: Option<String>,
    pub(crate) longrope: LongRope,
    pub(crate) loads: Loads,
    memory: EngineMemory,
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
        let kv = KvCache::new(kv_layout(&lowered, &plan, parts.sharing))?;
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
        let one_placement = program.one_placement();
        let places: &[Option<Phase>] = match one_placement {
            true => &[None],
            false => &[Some(Phase::Decode), Some(Phase::Prefill)],
        };
        let slot = |only: &Option<Phase>| BatchSlot::new(&slots, program.computing(*only) > 1);
        let silent = program.devices.iter().find(|d| !d.caps().computes());
        let limits = Limits::new(parts.spec.vocab, kv.fit());
        Ok(Engine {
            slots: places.iter().map(slot).collect::<Result<_, _>>()?,
            one_placement,
            phases_are_apart: program.phases_are_apart(),
            rows_matter: program.rows_matter(),
            shares_pages: program.state_instances.iter().all(|i| i.len() == 1)
                && !program.rows_matter(),
            silent: silent.map(|d| d.name().to_string()),
            runner,
            kv,
            handover: Handover::default(),
            handle: EngineHandle::new(limits),
            sequences: HashMap::new(),
            queue: Vec::new(),
            events: VecDeque::new(),
            orders: 0,
            preemptions: 0,
            last_turn: 0,
            prompts_turn: 0,
            sharing: Sharing { sequences: parts.sharing.sequences.max(1), ..parts.sharing },
            longrope: LongRope::new(parts.spec),
            loads: Loads::new(program.devices.len()),
            memory,
            model: PlacedModel { lowered, program, plan, states, slots, vocab: parts.spec.vocab },
        })
    }

    /// The plan in force.
    pub fn plan(&self) -> &Plan {
        &self.model.plan
    }

    /// Bytes held.
    pub fn memory(&self) -> EngineMemory {
        let activations = self.slots.iter().map(BatchSlot::bytes).sum();
        let (kv_used, kv_kept) = (self.kv.used_bytes(), self.kv.kept_bytes());
        EngineMemory { kv_used, kv_kept, activations, ..self.memory }
    }

    /// How often a sequence had to leave its pages to another one, and was computed again.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// The subgraphs that run.
    pub fn lowered(&self) -> &Lowered {
        &self.model.lowered
    }

    /// The name of a device that only models time, if there is one: then there are no logits to
    /// read.
    pub fn silent(&self) -> Option<&str> {
        self.silent.as_deref()
    }

    /// What any thread may ask of this engine.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// Opens an empty sequence, which neither uses cached pages of others nor leaves them its own.
    pub fn open(&mut self) -> SeqId {
        let seq = SeqId::next();
        self.handle.lock().open(seq);
        self.admit_now(seq, &Admission::default());
        seq
    }

    /// Closes a sequence and frees its pages. One that was closed before is left alone.
    pub fn close(&mut self, seq: SeqId) {
        // It may be closed already, which is what was wanted.
        let _ = self.handle.close(seq);
        self.take_requests();
    }

    /// Tokens of a sequence.
    pub fn len(&self, seq: SeqId) -> usize {
        self.sequences.get(&seq).map_or(0, |s| s.tokens.len())
    }

    /// Whether a sequence has no tokens.
    pub fn is_empty(&self, seq: SeqId) -> bool {
        self.len(seq) == 0
    }

    /// Forgets a sequence's tokens from `len` on. What a sliding window has dropped of those
    /// before, or what was rotated for a longer sequence, is computed again when it goes on.
    ///
    /// # Errors
    /// A sequence that is closed, or has tokens to compute.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), EngineError> {
        self.take_requests();
        let before = self.handle.lock().truncate(seq, len)?;
        if len < before {
            self.truncate_now(seq, len);
        }
        Ok(())
    }

    /// Checks the accounts of the cache: each page is free or used, and used as often as it is
    /// counted.
    ///
    /// # Errors
    /// What does not add up.
    pub fn audit(&self) -> Result<(), String> {
        self.kv.audit()
    }
}

impl Drop for Engine {
    /// Ends what is in flight, and refuses what comes later.
    fn drop(&mut self) {
        let mut inbox = self.handle.lock();
        inbox.end();
        inbox.in_flight.iter().filter(|f| !f.seqs.is_empty()).for_each(|f| f.canceller.cancel());
        drop(inbox);
        while self.runner.wait().is_some() {}
    }
}

/// What the cache holds.
fn kv_layout(lowered: &Lowered, plan: &Plan, sharing: Sharing) -> KvLayout {
    let bytes = |group: usize| {
        let of_group = lowered.states.iter().filter(|s| s.page_group == group);
        of_group.map(|s| state_row(s) as u64).sum()
    };
    let groups = lowered.page_groups.iter().enumerate();
    KvLayout {
        page_len: plan.page_len,
        context: plan.context,
        chunk: plan.prefill.chunk,
        groups: groups
            .map(|(i, window)| GroupLayout { window: *window, position_bytes: bytes(i) })
            .collect(),
        sequences: sharing.sequences.max(1),
        budget: sharing.kv_bytes,
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
