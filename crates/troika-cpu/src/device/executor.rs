//! Runs a compiled subgraph on the memory of a submission.

use std::sync::Arc;

use troika_device::{DeviceError, OutOfMemory, Run, SpaceId};

use crate::compile::{CompiledOp, Loaded};
use crate::device::bindings::{self, Mem, Pages, misfit};
use crate::device::ops::Operands;
use crate::device::options::{CpuOptions, Observer};
use crate::device::prepared::{Known, Prepared};
use crate::kernels::{Context, KernelError, attention, moe, select};
use crate::machine::Isa;
use crate::runtime::{Lines, PerWorker, Pool};

/// A queue's pool and memory, and its knowledge of bindings.
pub(crate) struct Executor {
    machine: Machine,
    known: Known,
    pages: Pages,
    /// Memory spaces besides host memory.
    spaces: Vec<SpaceId>,
}

/// A queue's pool and the memory that its runs share, which grows on demand.
struct Machine {
    device: String,
    pool: Pool,
    isa: Isa,
    observer: Option<Arc<dyn Observer>>,
    arena: Lines,
    work: Lines,
    words: Vec<u32>,
    scratch: Lines,
    /// Memory for values with gaps between rows in their bindings.
    staging: Lines,
    /// How many times `arena` or `staging` was reallocated.
    moves: u64,
}

impl Executor {
    pub fn new(options: &CpuOptions, pool: Pool, isa: Isa) -> Executor {
        let spaces = options.spaces.clone();
        let machine = Machine {
            device: options.name.clone(),
            pool,
            isa,
            observer: options.observer.clone(),
            arena: Lines::default(),
            work: Lines::default(),
            words: Vec::new(),
            scratch: Lines::default(),
            staging: Lines::default(),
            moves: 0,
        };
        Executor { machine, known: Known::default(), pages: Pages::default(), spaces }
    }

    /// Checks and runs a submission; `next` is the weights of the next run.
    pub fn run(
        &mut self,
        exe: &Loaded,
        task: &Run,
        next: Option<&Loaded>,
    ) -> Result<(), DeviceError> {
        bindings::check_forward(exe, task)?;
        let prepared = self.known.prepare(exe, task, &self.spaces)?;
        self.machine.grow(exe, task, prepared.staging)?;
        let _claims = bindings::claim(exe, task, &prepared.bound, &mut self.pages)?;
        // SAFETY: the memory belongs to these bindings, which were checked and are claimed.
        unsafe { self.machine.run(exe, task, prepared, next) }
    }
}

impl Machine {
    /// Runs the ops.
    ///
    /// # Safety
    /// The bindings were prepared for this executable, and their memory is claimed.
    unsafe fn run(
        &mut self,
        exe: &Loaded,
        task: &Run,
        prepared: &mut Prepared,
        next: Option<&Loaded>,
    ) -> Result<(), DeviceError> {
        let b = &*task.bindings;
        if prepared.moves != self.moves {
            prepared.moves = self.moves;
            let (arena, staging) = (self.arena.as_mut_slice(), self.staging.as_mut_slice());
            prepared.resolve(exe, task, arena, staging);
        }
        let Prepared { bound, staged, memory, .. } = &*prepared;
        for s in staged.iter().filter(|s| s.binding < exe.code.inputs.len()) {
            let from = bindings::memory(b, bound, s.binding);
            // SAFETY: the staging memory is this device's own, and nobody's binding.
            unsafe { bindings::copy(&exe.code.slots[s.slot], task.rows, from, memory[s.slot]) };
        }
        for (i, op) in exe.code.ops.iter().enumerate() {
            // SAFETY: by the caller.
            let done = unsafe { self.run_op(exe, op, task, memory) };
            done.map_err(|e| self.failure(exe, op, e))?;
            if task.rows <= select::PREFETCH_MAX_ROWS {
                self.prefetch_weights(exe, i + 1, next);
            }
        }
        for &(slot, output) in &exe.code.copies {
            let to = exe.code.inputs.len() + exe.code.states.len() + output;
            let to = bindings::memory(b, bound, to);
            // SAFETY: written bindings share no bytes with others (`check_overlap`).
            unsafe { bindings::copy(&exe.code.slots[slot], task.rows, memory[slot], to) };
        }
        for s in staged.iter().filter(|s| s.binding >= exe.code.inputs.len()) {
            let to = bindings::memory(b, bound, s.binding);
            // SAFETY: as for the inputs.
            unsafe { bindings::copy(&exe.code.slots[s.slot], task.rows, memory[s.slot], to) };
        }
        Ok(())
    }

    /// Lets idle workers prefetch the weights of the next product.
    fn prefetch_weights<'a>(&mut self, exe: &'a Loaded, from: usize, next: Option<&'a Loaded>) {
        let first = |of: &'a Loaded, from: usize| {
            of.code.ops[from..].iter().find_map(|op| op.code.first_weight(of))
        };
        if let Some(bytes) = first(exe, from).or_else(|| first(next?, 0)) {
            self.pool.prefetch(&bytes[..bytes.len().min(select::PREFETCH_BYTES)]);
        }
    }

    fn failure(&self, exe: &Loaded, op: &CompiledOp, e: KernelError) -> DeviceError {
        let why = format!("{}: {e}", op.name);
        match e {
            KernelError::Operand(_) => misfit(exe, why),
            KernelError::Weight { name, why } => DeviceError::Weight { name, why },
            KernelError::Panicked(_) => DeviceError::System {
                device: self.device.clone(),
                why: format!("{}: {why}", exe.name),
            },
        }
    }

    /// Allocates what a run needs; compiling has checked that the size does not overflow.
    fn grow(&mut self, exe: &Loaded, task: &Run, staging: usize) -> Result<(), DeviceError> {
        let full = |e: OutOfMemory| {
            let what = format!("{} on device {} ({} rows)", exe.name, self.device, task.rows);
            DeviceError::Memory { what, bytes: e.bytes }
        };
        let (rows, threads) = (task.rows, self.pool.threads());
        for op in &exe.code.attentions {
            self.work.grow(attention::partial_floats(op, &task.forward, threads)).map_err(full)?;
        }
        // Counted first, since a failed allocation leaves no memory.
        self.moves += 1;
        let moved = self.arena.grow(exe.code.temp_floats * rows).map_err(full)?;
        if !(self.staging.grow(staging).map_err(full)? || moved) {
            self.moves -= 1;
        }
        self.work.grow(exe.code.work_floats * rows).map_err(full)?;
        self.scratch.grow(exe.code.worker_floats * threads).map_err(full)?;
        let words = exe.code.work_words.0 * rows + exe.code.work_words.1;
        if let Some(more) = words.checked_sub(self.words.len()) {
            let room = self.words.try_reserve_exact(more);
            room.map_err(|_| full(OutOfMemory { bytes: 4 * words }))?;
            self.words.resize(words, 0);
        }
        Ok(())
    }

    /// Runs one op.
    ///
    /// # Safety
    /// As for [`Machine::run`]; `memory` belongs to the bindings and to this device.
    unsafe fn run_op(
        &mut self,
        exe: &Loaded,
        op: &CompiledOp,
        task: &Run,
        memory: &[Mem],
    ) -> Result<(), KernelError> {
        let scratch = PerWorker::new(self.scratch.as_mut_slice(), exe.code.worker_floats);
        let mut cx = Context { pool: &mut self.pool, isa: self.isa, scratch };
        let mem = Operands { exe, op, memory, observer: self.observer.as_deref() };
        let mut work = moe::Memory { floats: self.work.as_mut_slice(), words: &mut self.words };
        // SAFETY: an op's results share no memory with each other, nor with what it reads. They
        // are other values: `compile` verified that a value is computed once and is then neither
        // input nor state. `place` gave the values that this very op reads or writes rooms apart,
        // and bindings that are written share no bytes with others (`check_overlap`), nor with
        // what other tasks touch meanwhile: the caller holds claims on them.
        unsafe { mem.run(&mut cx, task, &mut work) }
    }
}
