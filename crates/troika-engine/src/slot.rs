//! The memory and task graphs of forward batches in flight together. There are two slots where
//! prefill and decode run in different places.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use troika_device::Buffer;
use troika_plan::Phase;
use troika_program::schedule::Schedule;
use troika_program::{BatchShape, NamedTask, Slots};

use crate::batching::PlannedBatch;
use crate::bind::{Binder, InputSlot, PlacedModel};
use crate::error::EngineError;
use crate::experts::{Dispatchers, PackedBuffers, growth};
use crate::memory::allocate;
use crate::pool::EdgePool;
use crate::schedule::{JobId, Task, TaskGraph};
use troika_program::kv::SeqId;

/// A graph, and the shapes of the batches that it was made for.
struct KnownGraph {
    graph: Arc<TaskGraph>,
    batches: Vec<KnownBatch>,
}

struct KnownBatch {
    /// The rows of each sequence.
    seqs: Vec<Range<usize>>,
    /// Runs of rows whose logits are wanted.
    wanted: Vec<Range<usize>>,
    /// Runs of rows whose states are wanted.
    states: Vec<Range<usize>>,
    /// How many of the largest logits, if not all are.
    top_k: Option<usize>,
}

impl KnownGraph {
    fn new(graph: &Arc<TaskGraph>, batches: &[PlannedBatch]) -> KnownGraph {
        let shape = |batch: &PlannedBatch| KnownBatch {
            seqs: batch.forward.seqs.iter().map(|s| s.rows.clone()).collect(),
            wanted: batch.wanted.iter().map(|(_, rows)| rows.clone()).collect(),
            states: batch.states.iter().map(|(_, rows)| rows.clone()).collect(),
            top_k: batch.top_k,
        };
        KnownGraph { graph: graph.clone(), batches: batches.iter().map(shape).collect() }
    }

    /// Whether batches with the same placement have the same tasks: each sequence has the same
    /// rows, and logits of the same rows are wanted.
    fn serves(&self, batches: &[PlannedBatch]) -> bool {
        let alike = |(known, batch): (&KnownBatch, &PlannedBatch)| {
            let seqs = batch.forward.seqs.iter().map(|s| &s.rows);
            let wanted = batch.wanted.iter().map(|(_, rows)| rows);
            known.seqs.iter().eq(seqs)
                && known.wanted.iter().eq(wanted)
                && known.states.iter().eq(batch.states.iter().map(|(_, rows)| rows))
                && known.top_k == batch.top_k
        };
        self.batches.len() == batches.len() && self.batches.iter().zip(batches).all(alike)
    }
}

/// Forward batches in flight, with their memory.
pub(crate) struct BatchSlot {
    /// Values between segments, one set for each chunk in flight.
    pools: Vec<EdgePool>,
    inputs: Vec<InputSlot>,
    /// Rows on their way through divided experts.
    packed: PackedBuffers,
    pub logits: Buffer,
    /// Graphs by placement and rows. For decode, one for each number of sequences; for prefill only
    /// the latest, since the next one often has its shape.
    graphs: HashMap<(Phase, usize), KnownGraph>,
    /// Batches; the first `used` of them are planned or in flight.
    batches: Vec<PlannedBatch>,
    used: usize,
    /// Their sequences, with the positions to compute.
    pub seqs: Vec<(SeqId, Range<usize>)>,
    /// The job that runs them.
    pub job: Option<JobId>,
    /// When it began.
    pub began: Duration,
    /// The most chunks of one prompt in a graph.
    pub chunks: usize,
}

impl BatchSlot {
    /// Allocates memory for one batch.
    pub fn new(slots: &Arc<Slots>, chunks: usize) -> Result<BatchSlot, EngineError> {
        Ok(BatchSlot {
            pools: vec![EdgePool::new(slots)],
            inputs: Vec::new(),
            packed: PackedBuffers::default(),
            logits: allocate(Some(0), "logits")?,
            graphs: HashMap::new(),
            batches: Vec::new(),
            used: 0,
            seqs: Vec::new(),
            job: None,
            began: Duration::ZERO,
            chunks,
        })
    }

    /// Bytes of the values between segments.
    pub fn bytes(&self) -> u64 {
        self.pools.iter().map(EdgePool::bytes).sum::<u64>() + self.packed.bytes()
    }

    /// The batches that are planned or in flight.
    pub fn batches(&self) -> &[PlannedBatch] {
        &self.batches[..self.used]
    }

    /// Rows of batches that read prompts, together with what sequences decode in them.
    pub fn prompt_rows(&self) -> usize {
        let of_prompts = self.batches().iter().filter(|batch| batch.phase == Phase::Prefill);
        of_prompts.map(PlannedBatch::rows).sum()
    }

    /// Removes all batches.
    pub fn clear(&mut self) {
        self.used = 0;
        self.seqs.clear();
    }

    /// The batch that gets the next rows.
    pub fn last_batch(&mut self) -> Option<&mut PlannedBatch> {
        self.batches[..self.used].last_mut()
    }

    /// Adds an empty batch.
    pub fn add_batch(&mut self) {
        if self.used == self.batches.len() {
            self.batches.push(PlannedBatch::default());
        }
        self.batches[self.used].clear();
        self.used += 1;
    }

    /// Notes that positions of a sequence are to be computed.
    pub fn note(&mut self, seq: SeqId, positions: Range<usize>) {
        match self.seqs.iter_mut().find(|(s, _)| *s == seq) {
            Some((_, known)) => known.end = positions.end,
            None => self.seqs.push((seq, positions)),
        }
    }

    /// How many positions of a sequence are computed although some batches were left out.
    pub fn done(&self, seq: SeqId, left_out: &[u32]) -> Option<usize> {
        let parts = self.batches().iter().enumerate().flat_map(|(i, batch)| {
            let of = batch.forward.seqs.iter().filter(move |s| s.seq == seq.number());
            of.map(move |s| (i as u32, s.pos + s.rows.len()))
        });
        parts.take_while(|(i, _)| !left_out.contains(i)).last().map(|(_, end)| end)
    }

    /// The graph of the planned batches, with their inputs filled in.
    pub fn graph(&mut self, model: &PlacedModel) -> Result<Arc<TaskGraph>, EngineError> {
        self.reserve(model)?;
        for (slot, s) in self.inputs.iter().zip(&self.batches[..self.used]) {
            slot.ids.write()?.as_mut_slice::<i32>()[..s.ids.len()].copy_from_slice(&s.ids);
            slot.positions.write()?.as_mut_slice::<i32>()[..s.ids.len()]
                .copy_from_slice(&s.positions);
        }
        for batch in &mut self.batches[..self.used] {
            let (phase, rows) = (batch.phase, batch.rows());
            let picked = |wanted| model.program.top_k(phase, rows, wanted);
            batch.top_k = batch.top_k.and_then(picked);
        }
        let batches = &self.batches[..self.used];
        // Between batches of several sequences, pages may change hands: their tasks then wait for
        // each other in other ways.
        let alone = |b: &PlannedBatch| b.forward.seqs.len() == 1;
        let [first, ..] = batches else { return self.made(model) };
        if batches.len() > 1 && !(batches.iter().all(alone) && self.seqs.len() == 1) {
            return self.made(model);
        }
        let key = (first.phase, batches.iter().map(PlannedBatch::rows).sum());
        if let Some(known) = self.graphs.get_mut(&key)
            && known.serves(batches)
            // Nobody holds the graph unless it is in flight.
            && let Some(graph) = Arc::get_mut(&mut known.graph)
        {
            graph.set_forward_batches(|chunk| batches.get(chunk).map(|b| &b.forward));
            return Ok(known.graph.clone());
        }
        let graph = self.made(model)?;
        if key.0 == Phase::Prefill {
            // Chunks have many lengths: keep the graph of the latest only.
            self.graphs.retain(|(phase, _), _| *phase != Phase::Prefill);
        }
        self.graphs.insert(key, KnownGraph::new(&graph, &self.batches[..self.used]));
        Ok(graph)
    }

    /// A new graph of the planned batches.
    fn made(&mut self, model: &PlacedModel) -> Result<Arc<TaskGraph>, EngineError> {
        let shape = |(chunk, batch): (usize, &PlannedBatch)| BatchShape {
            phase: batch.phase,
            rows: batch.forward.rows(),
            wanted: joined(batch.wanted.iter().map(|(_, rows)| rows.clone())),
            states: joined(batch.states.iter().map(|(_, rows)| rows.clone())),
            chunk: chunk as u32,
            // Chunks use the pools in turn.
            set: chunk % self.pools.len(),
            top_k: batch.top_k,
        };
        let shapes: Vec<BatchShape> = self.batches().iter().enumerate().map(shape).collect();
        let named = model.program.tasks(&model.slots, &shapes)?;
        let forwards: Vec<_> = self.batches().iter().map(|b| b.forward.clone()).collect();
        let schedule = Schedule::of_named(&named, &forwards);
        let (tasks, dispatchers) = self.bind(model, &named)?;
        let graph = TaskGraph::of(tasks, schedule);
        if dispatchers.is_empty() {
            return Ok(Arc::new(graph));
        }
        let growing: Vec<u32> = dispatchers.keys().copied().collect();
        Ok(Arc::new(graph.growing(&growing, growth(dispatchers))))
    }

    /// Binds tasks of the planned batches to memory. Also returns what becomes known by them.
    pub fn bind(
        &mut self,
        model: &PlacedModel,
        named: &[NamedTask],
    ) -> Result<(Vec<Task>, Dispatchers), EngineError> {
        let mut binder = Binder {
            model,
            pools: &mut self.pools,
            inputs: &self.inputs,
            logits: &self.logits,
            staging: HashMap::new(),
            packed: &mut self.packed,
            dispatchers: HashMap::new(),
        };
        let batches = &self.batches;
        let forward = |task: &NamedTask| &batches[task.chunk as usize].forward;
        let all = (0..).zip(named).map(|(number, task)| binder.task(number, task, forward(task)));
        let tasks = all.collect::<Result<Vec<Task>, EngineError>>()?;
        Ok((tasks, binder.dispatchers))
    }

    /// Allocates inputs and logits for the planned batches.
    fn reserve(&mut self, model: &PlacedModel) -> Result<(), EngineError> {
        let padding = model.program.padding;
        let of_state = model.program.rows_of_state();
        let wanted: usize = self.batches().iter().map(|b| b.wanted_rows(of_state)).sum();
        let row = model.program.output_cols() * 4;
        let need = (wanted + padding).checked_mul(row);
        if need.is_none_or(|need| self.logits.len() < need) {
            self.logits = allocate(need, "logits")?;
            // Known graphs are bound to what is shorter, here and in the pools.
            self.graphs.clear();
        }
        let chunk = model.plan.prefill.chunk + padding;
        while self.pools.len() < self.used.min(model.plan.prefill.chunks_in_flight) {
            self.pools.push(EdgePool::new(&model.slots));
        }
        self.pools.iter_mut().for_each(|pool| pool.reserve_logits(wanted + padding));
        while self.inputs.len() < self.used {
            let ids = allocate(chunk.checked_mul(4), "token ids")?;
            let positions = allocate(chunk.checked_mul(4), "positions")?;
            self.inputs.push(InputSlot { ids, positions });
        }
        Ok(())
    }
}

/// Joins runs that touch, so that neighbouring rows share one task.
fn joined(runs: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for run in runs {
        match out.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => out.push(run),
        }
    }
    out
}
