//! Runs a compiled subgraph on the memory of a submission.

use half::f16;
use smallvec::SmallVec;
use troika_device::{Binding, Bindings, Buffer, DeviceError, ReadGuard, Submission, WriteGuard};
use troika_graph::{DType, Dim};

use crate::compile::{Code, Executable, Place, Slot, Step, Vector};
use crate::detect::Isa;
use crate::kernels::kv::{CacheMut, CacheRef};
use crate::kernels::linear::{OutView, Product, RowsView};
use crate::kernels::norm::Norm;
use crate::kernels::{
    Context, KernelError, attention, elementwise, embed, kv, linear, moe, norm, rope, router,
};
use crate::memory::{Lines, PerWorker, SharedMut};
use crate::threads::Pool;

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
}

/// Where a value's bytes are during a run.
#[derive(Clone, Copy)]
struct Mem {
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: pointers are set at the start of a run and used within it, by one queue.
unsafe impl Send for Mem {}

/// An opened buffer.
struct Open<'a> {
    id: usize,
    ptr: *mut u8,
    len: usize,
    _guard: Guard<'a>,
}

#[allow(dead_code)]
enum Guard<'a> {
    Read(ReadGuard<'a>),
    Write(WriteGuard<'a>),
}

/// Most buffers of a submission before its list goes to the heap.
const INLINE: usize = 12;
type Opened<'a> = SmallVec<[Open<'a>; INLINE]>;

fn misfit(exe: &Executable, why: String) -> DeviceError {
    DeviceError::Submission { task: exe.name.clone(), why }
}

fn element_bytes(dtype: DType) -> usize {
    dtype.block_bytes()
}

impl Executor {
    pub fn new(device: String, pool: Pool, isa: Isa) -> Executor {
        Executor {
            device,
            pool,
            isa,
            arena: Lines::default(),
            work: Lines::default(),
            words: Vec::new(),
            scratch: Lines::default(),
            memory: Vec::new(),
        }
    }

    /// Checks a submission against its executable and runs it.
    pub fn run(&mut self, exe: &Executable, task: &Submission) -> Result<(), DeviceError> {
        let b = &*task.bindings;
        check_counts(exe, b)?;
        check_rows(exe, task)?;
        let opened = open(exe, b)?;
        self.grow(exe, task.rows);
        self.resolve(exe, task, &opened)?;
        for step in &exe.steps {
            self.step(exe, step, task).map_err(|e| self.failure(exe, step, e))?;
        }
        for &(slot, output) in &exe.copies {
            copy(exe, &self.memory, (slot, output), b, &opened);
        }
        Ok(())
    }

    fn failure(&self, exe: &Executable, step: &Step, e: KernelError) -> DeviceError {
        let why = format!("{}: {e}", step.name);
        match e {
            KernelError::Operand(_) => misfit(exe, why),
            KernelError::Panicked(_) => DeviceError::System {
                device: self.device.clone(),
                why: format!("{}: {why}", exe.name),
            },
        }
    }

    fn grow(&mut self, exe: &Executable, rows: usize) {
        self.arena.grow(exe.temp_floats * rows);
        self.work.grow(exe.work_floats * rows);
        self.scratch.grow(exe.worker_floats * self.pool.threads());
        let words = exe.work_words.0 * rows + exe.work_words.1;
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
    }

    /// Finds every value's memory and checks its size.
    fn resolve(
        &mut self,
        exe: &Executable,
        task: &Submission,
        opened: &Opened<'_>,
    ) -> Result<(), DeviceError> {
        let arena = self.arena.as_mut_slice();
        self.memory.clear();
        for slot in &exe.slots {
            let mem = match slot.place {
                Place::Input(i) => bound(exe, slot, &task.bindings.inputs[i], opened, task.rows)?,
                Place::State(i) => bound(exe, slot, &task.bindings.states[i], opened, task.rows)?,
                Place::Output(i) => bound(exe, slot, &task.bindings.outputs[i], opened, task.rows)?,
                Place::Temp(at) => {
                    let r = at * task.rows..(at + slot.cols) * task.rows;
                    let room = &mut arena[r];
                    Mem { ptr: room.as_mut_ptr().cast(), bytes: room.len() * 4 }
                }
                Place::Nowhere => Mem { ptr: std::ptr::dangling_mut::<f32>().cast(), bytes: 0 },
            };
            self.memory.push(mem);
        }
        for &(_, output) in &exe.copies {
            let slot = &exe.slots[exe.outputs[output]];
            bound_as(exe, slot, &task.bindings.outputs[output], opened, task.rows)?;
        }
        check_overlap(exe, &self.memory)
    }

    /// Runs one op.
    fn step(
        &mut self,
        exe: &Executable,
        step: &Step,
        task: &Submission,
    ) -> Result<(), KernelError> {
        let scratch = self.scratch.as_mut_slice();
        let mut cx = Context {
            pool: &mut self.pool,
            isa: self.isa,
            scratch: PerWorker::new(scratch, exe.worker_floats),
        };
        let mem = Operands { exe, step, memory: &self.memory };
        let mut work = moe::Memory { floats: self.work.as_mut_slice(), words: &mut self.words };
        // SAFETY: an op's results share no memory with its operands: places of values alive at
        // once are disjoint, and so are written bindings (`check_overlap`).
        unsafe { mem.run(&mut cx, task, &mut work) }
    }
}

fn check_counts(exe: &Executable, b: &Bindings) -> Result<(), DeviceError> {
    let need = (exe.inputs.len(), exe.states.len(), exe.outputs.len());
    let got = (b.inputs.len(), b.states.len(), b.outputs.len());
    if need != got {
        let why = format!("binds {got:?} inputs, states and outputs; needs {need:?}");
        return Err(misfit(exe, why));
    }
    Ok(())
}

fn check_rows(exe: &Executable, task: &Submission) -> Result<(), DeviceError> {
    for s in exe.slots.iter().filter(|s| !matches!(s.place, Place::State(_))) {
        let fits = match s.rows {
            Dim::Rows(most) => task.rows <= most,
            Dim::Fixed(n) | Dim::KvLen(n) => task.rows == n,
        };
        if !fits {
            return Err(misfit(exe, format!("{} rows do not fit value {}", task.rows, s.name)));
        }
    }
    if !exe.uses_step {
        return Ok(());
    }
    let mut next = 0;
    for s in &task.step.seqs {
        let tables = exe.groups.iter().all(|g| s.tables.get(*g).is_some_and(|t| t.page_len > 0));
        if s.rows.start != next || s.rows.end < next || !tables {
            return Err(misfit(exe, "sequences have gaps, or lack page tables".into()));
        }
        next = s.rows.end;
    }
    if next != task.rows {
        return Err(misfit(exe, format!("{} rows, but sequences have {next}", task.rows)));
    }
    Ok(())
}

/// Opens every buffer once: for writing if any of its bindings is written.
fn open<'a>(exe: &Executable, b: &'a Bindings) -> Result<Opened<'a>, DeviceError> {
    let mut want: SmallVec<[(&'a Buffer, bool); INLINE]> = SmallVec::new();
    let states = b.states.iter().zip(&exe.state_written).map(|(s, w)| (s, *w));
    let all = b.inputs.iter().map(|i| (i, false)).chain(states);
    for (binding, write) in all.chain(b.outputs.iter().map(|o| (o, true))) {
        match want.iter_mut().find(|w| w.0.id() == binding.buffer.id()) {
            Some(w) => w.1 |= write,
            None => want.push((&binding.buffer, write)),
        }
    }
    let mut opened = Opened::new();
    for (buffer, write) in want {
        let (id, len) = (buffer.id(), buffer.len());
        opened.push(if write {
            let mut guard = buffer.write()?;
            Open { id, ptr: guard.as_mut_ptr(), len, _guard: Guard::Write(guard) }
        } else {
            let guard = buffer.read()?;
            Open { id, ptr: guard.as_ptr().cast_mut(), len, _guard: Guard::Read(guard) }
        });
    }
    Ok(opened)
}

/// The memory of a bound value. States take all the bytes there are.
fn bound(
    exe: &Executable,
    slot: &Slot,
    binding: &Binding,
    opened: &Opened<'_>,
    rows: usize,
) -> Result<Mem, DeviceError> {
    if !matches!(slot.place, Place::State(_)) {
        return bound_as(exe, slot, binding, opened, rows);
    }
    let all = binding.buffer.len().saturating_sub(binding.offset);
    let row = (slot.cols * element_bytes(slot.dtype)).max(1);
    at(exe, slot, binding, opened, all / row * row)
}

/// The memory of a value of `rows` rows at a binding.
fn bound_as(
    exe: &Executable,
    slot: &Slot,
    binding: &Binding,
    opened: &Opened<'_>,
    rows: usize,
) -> Result<Mem, DeviceError> {
    at(exe, slot, binding, opened, rows * slot.cols * element_bytes(slot.dtype))
}

fn at(
    exe: &Executable,
    slot: &Slot,
    binding: &Binding,
    opened: &Opened<'_>,
    bytes: usize,
) -> Result<Mem, DeviceError> {
    let open = opened.iter().find(|o| o.id == binding.buffer.id());
    let end = binding.offset.checked_add(bytes);
    match (open, end) {
        (Some(open), Some(end))
            if end <= open.len && binding.offset.is_multiple_of(element_bytes(slot.dtype)) =>
        {
            // SAFETY: the offset lies inside the buffer.
            Ok(Mem { ptr: unsafe { open.ptr.add(binding.offset) }, bytes })
        }
        _ => Err(misfit(
            exe,
            format!(
                "value {} needs {bytes} bytes at {}, its buffer has {}",
                slot.name,
                binding.offset,
                binding.buffer.len()
            ),
        )),
    }
}

/// Written bindings may share a buffer with others, but no bytes.
fn check_overlap(exe: &Executable, memory: &[Mem]) -> Result<(), DeviceError> {
    let range = |i: usize| {
        let m = memory[i];
        m.ptr as usize..m.ptr as usize + m.bytes
    };
    let written_states = exe.states.iter().zip(&exe.state_written).filter(|s| *s.1).map(|s| *s.0);
    let placed = exe.outputs.iter().copied();
    let placed = placed.filter(|o| matches!(exe.slots[*o].place, Place::Output(_)));
    for w in written_states.chain(placed) {
        let a = range(w);
        let all = exe.inputs.iter().chain(&exe.states).chain(&exe.outputs);
        for other in all.filter(|o| **o != w) {
            let b = range(*other);
            if a.start < b.end && b.start < a.end {
                let (a, b) = (&exe.slots[w].name, &exe.slots[*other].name);
                return Err(misfit(exe, format!("values {a} and {b} overlap in memory")));
            }
        }
    }
    Ok(())
}

/// Copies a value to a second place it is wanted at.
fn copy(
    exe: &Executable,
    memory: &[Mem],
    (slot, output): (usize, usize),
    b: &Bindings,
    opened: &Opened<'_>,
) {
    let binding = &b.outputs[output];
    let from = memory[slot];
    if let Some(open) = opened.iter().find(|o| o.id == binding.buffer.id())
        && exe.slots[slot].place != Place::Nowhere
    {
        // SAFETY: `resolve` checked that both ranges lie inside their buffers, and the target's
        // buffer is open for writing. `copy` allows overlap.
        unsafe { std::ptr::copy(from.ptr, open.ptr.add(binding.offset), from.bytes) }
    }
}

/// The operands of a step.
struct Operands<'a> {
    exe: &'a Executable,
    step: &'a Step,
    memory: &'a [Mem],
}

fn floats(v: &Option<Vector>) -> Option<&[f32]> {
    v.as_ref().map(Vector::floats)
}

impl<'a> Operands<'a> {
    /// # Safety
    /// The memory is not written while the result lives.
    unsafe fn read<T: bytemuck::AnyBitPattern>(&self, slot: usize) -> &'a [T] {
        let m = self.memory[slot];
        // SAFETY: inside an opened buffer or the arena; alignment was checked or is a line's.
        unsafe { std::slice::from_raw_parts(m.ptr.cast(), m.bytes / size_of::<T>()) }
    }

    /// # Safety
    /// The memory is not accessed otherwise while the result lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn write<T: bytemuck::Pod>(&self, slot: usize) -> &'a mut [T] {
        let m = self.memory[slot];
        // SAFETY: as for `read`; buffers of written values are open for writing.
        unsafe { std::slice::from_raw_parts_mut(m.ptr.cast(), m.bytes / size_of::<T>()) }
    }

    /// # Safety
    /// As for `read`.
    unsafe fn input<T: bytemuck::AnyBitPattern>(&self, i: usize) -> &'a [T] {
        // SAFETY: by the caller.
        unsafe { self.read(self.step.inputs[i]) }
    }

    /// # Safety
    /// As for `write`.
    #[allow(clippy::mut_from_ref)]
    unsafe fn output<T: bytemuck::Pod>(&self, i: usize) -> &'a mut [T] {
        // SAFETY: by the caller.
        unsafe { self.write(self.step.outputs[i]) }
    }

    fn cols(&self, i: usize) -> usize {
        self.exe.slots[self.step.inputs[i]].cols
    }

    /// # Safety
    /// As for `read`.
    unsafe fn cache(&self, i: usize) -> CacheRef<'a> {
        let slot = self.step.states[i];
        // SAFETY: by the caller.
        unsafe {
            match self.exe.slots[slot].dtype {
                DType::F16 => CacheRef::F16(self.read::<f16>(slot)),
                _ => CacheRef::F32(self.read(slot)),
            }
        }
    }

    /// # Safety
    /// Results share no memory with operands.
    unsafe fn run(
        &self,
        cx: &mut Context<'_>,
        task: &Submission,
        work: &mut moe::Memory<'_>,
    ) -> Result<(), KernelError> {
        // SAFETY: by the caller.
        unsafe {
            match &self.step.code {
                Code::Embed { table, scale } => {
                    embed::embed(cx, table.view(), *scale, self.input(0), self.output(0))
                }
                Code::RmsNorm { weight, eps, offset, group } => {
                    let norm = Norm::Rms { weight: floats(weight), eps: *eps, offset: *offset };
                    norm::norm(cx, norm, self.input(0), self.output(0), *group)
                }
                Code::LayerNorm { weight, bias, eps, group } => {
                    let (weight, bias) = (weight.floats(), floats(bias));
                    let norm = Norm::Layer { weight, bias, eps: *eps };
                    norm::norm(cx, norm, self.input(0), self.output(0), *group)
                }
                Code::Linear { .. } | Code::HeadLinear { .. } => self.linear(cx, task.rows),
                Code::Rope(r) => {
                    let x = (self.input(0), self.input(1));
                    rope::rope(cx, r, &task.step, x, (self.output(0), self.cols(0)))
                }
                Code::KvAppend(k) => self.append(cx, task, k),
                Code::Attention { op, sinks } => {
                    let keys = self.cache(0);
                    let values = if op.value_in_key { keys } else { self.cache(1) };
                    let (sinks, q, step) = (floats(sinks), self.input(0), &*task.step);
                    let x = attention::Operands { op, sinks, q, keys, values, step };
                    attention::attention(cx, x, self.output(0))
                }
                Code::Router(r) => {
                    router::router(cx, r, self.input(0), self.output(0), self.output(1))
                }
                Code::Experts { .. } => self.experts(cx, work),
                _ => self.columns(cx),
            }
        }
    }

    /// Ops on elements and columns.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn columns(&self, cx: &mut Context<'_>) -> Result<(), KernelError> {
        // SAFETY: by the caller.
        unsafe {
            match &self.step.code {
                Code::Element(op) => {
                    let b = (self.step.inputs.len() > 1).then(|| self.input(1));
                    elementwise::elementwise(cx, *op, self.input(0), b, self.output(0))
                }
                Code::SigmoidGate => elementwise::sigmoid_gate(
                    cx,
                    self.input(0),
                    self.input(1),
                    self.output(0),
                    self.cols(0),
                ),
                Code::SliceCols(s) => {
                    elementwise::slice_cols(cx, *s, self.input(0), self.output(0), self.cols(0))
                }
                Code::ConcatCols { groups } => elementwise::concat_cols(
                    cx,
                    *groups,
                    (self.input(0), self.cols(0)),
                    (self.input(1), self.cols(1)),
                    self.output(0),
                ),
                _ => Ok(()),
            }
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn linear(&self, cx: &mut Context<'_>, rows: usize) -> Result<(), KernelError> {
        // SAFETY: by the caller.
        let (x, y) = unsafe { (self.input::<f32>(0), self.output::<f32>(0)) };
        let y = SharedMut::new(y);
        let k = self.cols(0);
        let n = self.exe.slots[self.step.outputs[0]].cols;
        match &self.step.code {
            Code::Linear { weight, bias } => linear::linear(cx, rows, 1, &|_| Product {
                weight: weight.view(),
                bias: floats(bias),
                x: RowsView::dense(x, k),
                y: OutView::dense(y, n),
            }),
            Code::HeadLinear { weights } => {
                let heads = weights.len().max(1);
                linear::linear(cx, rows, weights.len(), &|h| Product {
                    weight: weights[h].view(),
                    bias: None,
                    x: RowsView { offset: h * (k / heads), ..RowsView::dense(x, k) },
                    y: OutView { offset: h * (n / heads), ..OutView::dense(y, n) },
                })
            }
            _ => Ok(()),
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn append(
        &self,
        cx: &mut Context<'_>,
        task: &Submission,
        k: &troika_graph::KvAppend,
    ) -> Result<(), KernelError> {
        let slot = self.step.states[0];
        // SAFETY: by the caller.
        unsafe {
            let cache = match self.exe.slots[slot].dtype {
                DType::F16 => CacheMut::F16(self.write(slot)),
                _ => CacheMut::F32(self.write(slot)),
            };
            kv::append(cx, &task.step, k.group, (self.input(0), k.width), cache)
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn experts(
        &self,
        cx: &mut Context<'_>,
        work: &mut moe::Memory<'_>,
    ) -> Result<(), KernelError> {
        let Code::Experts { experts, act } = &self.step.code else { return Ok(()) };
        let expert = |i: usize| {
            let e = &experts[i];
            let [g, u, d] = &e.bias;
            moe::Expert {
                gate: e.gate.view(),
                up: e.up.view(),
                down: e.down.view(),
                bias: [floats(g), floats(u), floats(d)],
            }
        };
        let k = self.cols(0);
        // SAFETY: by the caller.
        let pairs = unsafe { self.input::<i32>(1) }.len();
        let inter = expert(0).gate.rows;
        let floats = &mut work.floats[..moe::floats(pairs, k, inter)];
        let words = &mut work.words[..moe::words(pairs, experts.len())];
        // SAFETY: by the caller.
        unsafe {
            let x = moe::Operands {
                experts: experts.len(),
                expert: &expert,
                act: *act,
                x: self.input(0),
                k,
                inter,
                ids: self.input(1),
                weights: self.input(2),
                top_k: self.cols(1),
            };
            moe::experts(cx, x, moe::Memory { floats, words }, self.output(0))
        }
    }
}
