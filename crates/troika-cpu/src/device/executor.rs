//! Runs a compiled subgraph on the memory of a submission.

use troika_device::{DeviceError, OutOfMemory, Rect, Run, SpaceId};

use crate::compile::{Code, CompiledOp, Executable, Place};
use crate::device::bindings::{self, Mem, Pages, Staged, misfit};
use crate::device::ops::Operands;
use crate::kernels::{Context, KernelError, attention, moe, select};
use crate::machine::Isa;
use crate::runtime::{Lines, PerWorker, Pool};

/// The pool of a queue and the memory its runs share, grown on demand.
pub(crate) struct Executor {
    device: String,
    pool: Pool,
    isa: Isa,
    arena: Lines,
    work: Lines,
    words: Vec<u32>,
    scratch: Lines,
    memory: Vec<Mem>,
    bound: Vec<Rect>,
    pages: Pages,
    /// Values of the current run whose rows lie apart, and room for their rows.
    staged: Vec<Staged>,
    staging: Lines,
    /// Memory spaces besides the host's.
    spaces: Vec<SpaceId>,
}

impl Executor {
    pub fn new(device: String, pool: Pool, isa: Isa, spaces: Vec<SpaceId>) -> Executor {
        Executor {
            device,
            pool,
            isa,
            arena: Lines::default(),
            work: Lines::default(),
            words: Vec::new(),
            scratch: Lines::default(),
            memory: Vec::new(),
            bound: Vec::new(),
            pages: Pages::default(),
            staged: Vec::new(),
            staging: Lines::default(),
            spaces,
        }
    }

    /// Checks a submission against its executable and runs it; `next` runs after it.
    pub fn run(
        &mut self,
        exe: &Executable,
        task: &Run,
        next: Option<&Executable>,
    ) -> Result<(), DeviceError> {
        let b = &*task.bindings;
        bindings::check_counts(exe, b)?;
        bindings::check_rows(exe, task)?;
        bindings::locate(exe, task, &self.spaces, &mut self.bound)?;
        let staging = bindings::staged(exe, task.rows, &self.bound, &mut self.staged);
        self.grow(exe, task, staging)?;
        let _claims = bindings::claim(exe, task, &self.bound, &mut self.pages)?;
        self.resolve(exe, task);
        self.gather(exe, task);
        for (i, op) in exe.ops.iter().enumerate() {
            self.run_op(exe, op, task).map_err(|e| self.failure(exe, op, e))?;
            if task.rows <= select::PREFETCH_MAX_ROWS {
                self.prefetch_weights(exe, i + 1, next);
            }
        }
        for &(slot, output) in &exe.copies {
            let to = exe.inputs.len() + exe.states.len() + output;
            let to = bindings::memory(b, &self.bound, to);
            bindings::copy(&exe.slots[slot], task.rows, self.memory[slot], to);
        }
        for s in self.staged.iter().filter(|s| s.binding >= exe.inputs.len()) {
            let to = bindings::memory(b, &self.bound, s.binding);
            bindings::copy(&exe.slots[s.slot], task.rows, self.memory[s.slot], to);
        }
        Ok(())
    }

    /// Points staged values to their room, and fetches those that are inputs.
    fn gather(&mut self, exe: &Executable, task: &Run) {
        let room = self.staging.as_mut_slice();
        for s in &self.staged {
            let slot = &exe.slots[s.slot];
            let row = slot.row_bytes();
            let room = &mut room[s.at..][..(task.rows * row).div_ceil(4)];
            let mem = Mem { ptr: room.as_mut_ptr().cast(), bytes: task.rows * row, stride: row };
            if s.binding < exe.inputs.len() {
                bindings::copy(slot, task.rows, self.memory[s.slot], mem);
            }
            self.memory[s.slot] = mem;
        }
    }

    /// Points idle workers to the weights of the next product.
    fn prefetch_weights(&mut self, exe: &Executable, from: usize, next: Option<&Executable>) {
        let ops = exe.ops[from..].iter().chain(next.into_iter().flat_map(|n| &n.ops));
        if let Some(bytes) = ops.map(|s| &s.code).find_map(Code::first_weight) {
            self.pool.prefetch(&bytes[..bytes.len().min(select::PREFETCH_BYTES)]);
        }
    }

    fn failure(&self, exe: &Executable, op: &CompiledOp, e: KernelError) -> DeviceError {
        let why = format!("{}: {e}", op.name);
        match e {
            KernelError::Operand(_) => misfit(exe, why),
            KernelError::Panicked(_) => DeviceError::System {
                device: self.device.clone(),
                why: format!("{}: {why}", exe.name),
            },
        }
    }

    /// Makes room for what a run needs; its size was found to be countable when compiled.
    fn grow(&mut self, exe: &Executable, task: &Run, staging: usize) -> Result<(), DeviceError> {
        let full = |e: OutOfMemory| {
            let what = format!("{} on device {} ({} rows)", exe.name, self.device, task.rows);
            DeviceError::Memory { what, bytes: e.bytes }
        };
        let (rows, threads) = (task.rows, self.pool.threads());
        for op in &exe.attentions {
            self.work.grow(attention::partial_floats(op, &task.forward, threads)).map_err(full)?;
        }
        self.arena.grow(exe.temp_floats * rows).map_err(full)?;
        self.staging.grow(staging).map_err(full)?;
        self.work.grow(exe.work_floats * rows).map_err(full)?;
        self.scratch.grow(exe.worker_floats * threads).map_err(full)?;
        let words = exe.work_words.0 * rows + exe.work_words.1;
        if let Some(more) = words.checked_sub(self.words.len()) {
            let room = self.words.try_reserve_exact(more);
            room.map_err(|_| full(OutOfMemory { bytes: 4 * words }))?;
            self.words.resize(words, 0);
        }
        Ok(())
    }

    /// Finds every value's memory.
    fn resolve(&mut self, exe: &Executable, task: &Run) {
        let arena = self.arena.as_mut_slice();
        let (inputs, states) = (exe.inputs.len(), exe.states.len());
        self.memory.clear();
        for slot in &exe.slots {
            let bound = |at: usize| bindings::memory(&task.bindings, &self.bound, at);
            let mem = match slot.place {
                Place::Input(i) => bound(i),
                Place::State(i) => bound(inputs + i),
                Place::Output(i) => bound(inputs + states + i),
                Place::Temp(at) => {
                    let r = at * task.rows..(at + slot.cols) * task.rows;
                    let room = &mut arena[r];
                    let bytes = room.len() * 4;
                    Mem { ptr: room.as_mut_ptr().cast(), bytes, stride: slot.cols * 4 }
                }
                Place::Nowhere => {
                    Mem { ptr: std::ptr::dangling_mut::<f32>().cast(), bytes: 0, stride: 0 }
                }
            };
            self.memory.push(mem);
        }
    }

    /// Runs one op.
    fn run_op(&mut self, exe: &Executable, op: &CompiledOp, task: &Run) -> Result<(), KernelError> {
        let scratch = self.scratch.as_mut_slice();
        let mut cx = Context {
            pool: &mut self.pool,
            isa: self.isa,
            scratch: PerWorker::new(scratch, exe.worker_floats),
        };
        let mem = Operands { exe, op, memory: &self.memory };
        let mut work = moe::Memory { floats: self.work.as_mut_slice(), words: &mut self.words };
        // SAFETY: an op's results share no memory with each other, nor with what it reads. They
        // are other values: `compile` verified that a value is computed once and is then neither
        // input nor state. `place` gave the values that this very op reads or writes rooms apart,
        // and bindings that are written share no bytes with others (`check_overlap`), nor with
        // what other tasks touch meanwhile: `run` holds claims on them.
        unsafe { mem.run(&mut cx, task, &mut work) }
    }
}
