//! Runs one op: finds its operands and calls its kernel.

use smallvec::SmallVec;
use troika_device::{DeviceError, ExpertsOnDisk, Run};
use troika_graph::{ActivationFormat, DType, Rescale};

use crate::compile::{Code, CompiledOp, ExpertView, ExpertWeights, ExpertsCode, Loaded};
use crate::device::bindings::Mem;
use crate::device::options::{Observer, Routed};
use crate::kernels::elementwise::{Element, ElementRows, StridedOperands};
use crate::kernels::kv::{CacheMut, CacheRef, CacheRows};
use crate::kernels::linear::{OutView, Product, RowsView};
use crate::kernels::norm::Norm;
use crate::kernels::recurrence::{delta, mamba2, short_conv};
use crate::kernels::{
    ByFloat, Context, KernelError, attention, elementwise, embed, int8, kv, linear, moe, norm,
    outliers, recurrence, rope, router,
};
use crate::runtime::{SharedMut, SharedRef};

/// The operands of an op.
pub(crate) struct Operands<'a> {
    pub exe: &'a Loaded,
    pub op: &'a CompiledOp,
    pub memory: &'a [Mem],
    /// Sees products and routers.
    pub observer: Option<&'a dyn Observer>,
}

/// Memory with the floats of a type.
macro_rules! of_type {
    ($dtype:expr, $memory:expr) => {
        match $dtype {
            DType::F16 => ByFloat::F16($memory),
            DType::BF16 => ByFloat::BF16($memory),
            _ => ByFloat::F32($memory),
        }
    };
}

/// The parameters of a norm.
fn norm_of<'a>(code: &Code, of: &'a Loaded) -> Option<Norm<'a>> {
    match code {
        Code::RmsNorm { weight, eps, offset, .. } => {
            Some(Norm::Rms { weight: of.vector_if(*weight), eps: *eps, offset: *offset })
        }
        Code::LayerNorm { weight, bias, eps, .. } => {
            Some(Norm::Layer { weight: of.vector(*weight), bias: of.vector_if(*bias), eps: *eps })
        }
        _ => None,
    }
}

impl<'a> Operands<'a> {
    /// # Safety
    /// The memory is not written while the result lives.
    unsafe fn read<T: bytemuck::AnyBitPattern>(&self, slot: usize) -> &'a [T] {
        let m = self.memory[slot];
        // SAFETY: inside an opened buffer or the arena; alignment was checked or is a line's.
        unsafe { std::slice::from_raw_parts(m.ptr.cast(), m.bytes / size_of::<T>()) }
    }

    /// A state to read, while others may write rows that the op does not use.
    ///
    /// # Safety
    /// The rows that the op names are not written while the result lives.
    unsafe fn shared<T: Copy>(&self, slot: usize) -> SharedRef<'a, T> {
        let m = self.memory[slot];
        // SAFETY: as for `read`.
        unsafe { SharedRef::from_raw(m.ptr.cast(), m.bytes / size_of::<T>()) }
    }

    /// Memory; others may use other rows or columns of it.
    ///
    /// # Safety
    /// What is accessed through the result is not accessed otherwise meanwhile.
    unsafe fn part<T>(&self, slot: usize) -> SharedMut<'a, T> {
        let m = self.memory[slot];
        // SAFETY: as for `output`.
        unsafe { SharedMut::from_raw(m.ptr.cast(), m.bytes / size_of::<T>()) }
    }

    /// The memory of a product's result.
    ///
    /// # Safety
    /// As for `part`.
    unsafe fn result(&self, i: usize) -> OutView<'a> {
        let slot = self.op.outputs[i];
        let stride = self.memory[slot].stride / size_of::<f32>();
        // SAFETY: by the caller.
        OutView::dense(unsafe { self.part(slot) }, stride)
    }

    /// # Safety
    /// As for `read`.
    unsafe fn input<T: bytemuck::AnyBitPattern>(&self, i: usize) -> &'a [T] {
        // SAFETY: by the caller.
        unsafe { self.read(self.op.inputs[i]) }
    }

    /// # Safety
    /// The memory is not accessed otherwise while the result lives.
    #[allow(clippy::mut_from_ref)]
    unsafe fn output<T: bytemuck::Pod>(&self, i: usize) -> &'a mut [T] {
        let m = self.memory[self.op.outputs[i]];
        // SAFETY: as for `read`; buffers of written values are open for writing.
        unsafe { std::slice::from_raw_parts_mut(m.ptr.cast(), m.bytes / size_of::<T>()) }
    }

    fn cols(&self, i: usize) -> usize {
        self.exe.code.slots[self.op.inputs[i]].cols
    }

    /// # Safety
    /// As for `read`.
    unsafe fn cache(&self, i: usize) -> CacheRef<'a> {
        let slot = self.op.states[i];
        // SAFETY: by the caller.
        unsafe { of_type!(self.exe.code.slots[slot].dtype, self.shared(slot)) }
    }

    /// Runs the op.
    ///
    /// # Safety
    /// Results share no memory with operands.
    pub unsafe fn run(
        &self,
        cx: &mut Context<'_>,
        task: &Run,
        work: &mut moe::Memory<'_>,
    ) -> Result<(), KernelError> {
        let exe = self.exe;
        // SAFETY: by the caller.
        unsafe {
            match &self.op.code {
                Code::Embed { table, scale } => {
                    let table = exe.matrix(*table).view();
                    embed::embed(cx, table, *scale, self.input(0), self.output(0))
                }
                code @ (Code::RmsNorm { group, .. } | Code::LayerNorm { group, .. }) => {
                    let Some(norm) = norm_of(code, exe) else { return Ok(()) };
                    norm::norm(cx, norm, self.input(0), self.output(0), *group)
                }
                Code::Linear { .. } | Code::HeadLinear { .. } => {
                    self.linear(cx, task.rows, work.floats)?;
                    self.observe();
                    Ok(())
                }
                Code::Outliers(weight) => {
                    outliers::outliers(cx, exe.outliers(*weight), self.input(0), self.output(0))
                }
                Code::Rope(r) => {
                    let (x, positions) = (self.input(0), self.input(1));
                    rope::rope(cx, r, &task.forward, x, positions, self.output(0))
                }
                Code::KvAppend(k) => self.append(cx, task, k),
                Code::DecayingSum(s) => {
                    let rows = CacheRows::shared(self.part(self.op.states[0]));
                    let (x, y) = (self.input(0), self.output(0));
                    recurrence::decaying_sum(cx, &task.forward, s, rows, x, y)
                }
                Code::ShortConv { op, weight, bias } => {
                    let state = CacheRows::shared(self.part(self.op.states[0]));
                    let (weight, bias) = (exe.vector(*weight), exe.vector_if(*bias));
                    let (forward, x) = (&*task.forward, self.input(0));
                    let x = short_conv::Operands { op, weight, bias, forward, state, x };
                    short_conv::short_conv(cx, x, self.output(0))
                }
                Code::Mamba2 { op, a, d, dt_bias } => {
                    let state = CacheRows::shared(self.part(self.op.states[0]));
                    let [a, d, dt_bias] = [a, d, dt_bias].map(|w| exe.vector(*w));
                    let (forward, x, dt) = (&*task.forward, self.input(0), self.input(1));
                    let x = mamba2::Operands { op, a, d, dt_bias, forward, state, x, dt };
                    mamba2::mamba2(cx, x, self.output(0))
                }
                Code::DeltaRule { op, rates } => {
                    let rows = CacheRows::shared(self.part(self.op.states[0]));
                    let [v, q, k, decay, beta] = std::array::from_fn(|i| self.input(i));
                    let rates = exe.vector(*rates);
                    let x = delta::Operands { v, q, k, decay, beta, rates };
                    delta::delta_rule(cx, &task.forward, op, rows, x, self.output(0))
                }
                Code::Attention { op, sinks } => {
                    let keys = self.cache(0);
                    let values = if op.value_in_key { keys } else { self.cache(1) };
                    let (sinks, q, forward) =
                        (exe.vector_if(*sinks), self.input(0), &*task.forward);
                    let pairs = op.activations == ActivationFormat::Bf16
                        && linear::bf16::gains_from_pairs(cx.isa);
                    let x = attention::Operands { op, sinks, q, keys, values, forward, pairs };
                    attention::attention(cx, x, work.floats, self.output(0))
                }
                Code::Router { op, bias, scales } => {
                    let (bias, scales) = (exe.vector_if(*bias), exe.vector_if(*scales));
                    let of = router::Choice { op, bias, scales };
                    router::router(cx, of, self.input(0), self.output(0), self.output(1))?;
                    if let Some(observer) = self.observer {
                        let (graph, experts) = (&*exe.name, op.experts);
                        let (ids, weights) = (self.read(self.op.outputs[0]), self.output(1));
                        observer.routed(Routed { graph, experts, ids, weights });
                    }
                    Ok(())
                }
                Code::Experts { experts, of } => self.experts(cx, of, experts, work),
                Code::PackedLinear { .. } => self.packed_linear(cx, task.rows, work.floats),
                Code::PackedExperts { experts, of } => self.experts(cx, of, experts, work),
                Code::Element(op) => self.element(cx, *op, task.rows),
                _ => self.columns(cx),
            }
        }
    }

    /// Element-wise ops, on rows that may have gaps between them.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn element(
        &self,
        cx: &mut Context<'_>,
        op: Element,
        rows: usize,
    ) -> Result<(), KernelError> {
        let y = self.op.outputs[0];
        let mut operands = self.op.inputs.iter().chain([&y]);
        let dense =
            |slot: &usize| self.memory[*slot].stride == self.exe.code.slots[*slot].row_bytes();
        // SAFETY: by the caller.
        unsafe {
            if operands.all(dense) {
                let b = (self.op.inputs.len() > 1).then(|| self.input(1));
                return elementwise::elementwise(cx, op, self.input(0), b, self.output(0));
            }
            let stride = |slot: usize| self.memory[slot].stride / size_of::<f32>();
            let operand = |i: usize| {
                let slot = self.op.inputs[i];
                ElementRows { data: self.shared(slot), stride: stride(slot) }
            };
            let (a, b) = (operand(0), (self.op.inputs.len() > 1).then(|| operand(1)));
            let (cols, stride) = (self.exe.code.slots[y].cols, stride(y));
            let operands = StridedOperands { rows, cols, a, b, y: self.part(y), stride };
            elementwise::elementwise_rows(cx, op, operands)
        }
    }

    /// Ops that move or weight columns.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn columns(&self, cx: &mut Context<'_>) -> Result<(), KernelError> {
        // SAFETY: by the caller.
        unsafe {
            match &self.op.code {
                Code::SigmoidGate => {
                    let (x, g, y) = (self.input(0), self.input(1), self.output(0));
                    elementwise::sigmoid_gate(cx, x, g, y, self.cols(0))
                }
                Code::Rescale(rescale, weight) => {
                    let norm = match *rescale {
                        Rescale::Columns(_) => {
                            Norm::Columns(self.exe.vector_if(*weight).unwrap_or(&[]))
                        }
                        Rescale::Match { least } => Norm::Match { like: self.input(1), least },
                        Rescale::Largest { deviations } => Norm::Largest { deviations },
                    };
                    norm::norm(cx, norm, self.input(0), self.output(0), self.cols(0))
                }
                Code::Mix(streams) => {
                    let (x, c, y) = (self.input(0), self.input(1), self.output(0));
                    elementwise::mix(cx, *streams, x, c, y, self.cols(0))
                }
                Code::Convert => {
                    let dtype = |slot: usize| self.exe.code.slots[slot].dtype;
                    let x = of_type!(dtype(self.op.inputs[0]), self.input(0));
                    let y = of_type!(dtype(self.op.outputs[0]), self.output(0));
                    elementwise::convert(cx, x, y)
                }
                Code::SliceCols(s) => {
                    elementwise::slice_cols(cx, *s, self.input(0), self.output(0), self.cols(0))
                }
                Code::ConcatCols { groups } => {
                    let (a, b, cols) = (self.input(0), self.input(1), [self.cols(0), self.cols(1)]);
                    elementwise::concat_cols(cx, *groups, a, b, cols, self.output(0))
                }
                _ => Ok(()),
            }
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn linear(
        &self,
        cx: &mut Context<'_>,
        rows: usize,
        work: &mut [f32],
    ) -> Result<(), KernelError> {
        // SAFETY: by the caller.
        let x = unsafe { self.input::<f32>(0) };
        let k = self.cols(0);
        // SAFETY: by the caller; an op's results are values apart.
        let output = |i| unsafe { self.result(i) };
        match &self.op.code {
            Code::Linear { weights, bf16 } => {
                let input = linear::Input::new(cx, x, k, *bf16, work)?;
                let outputs: SmallVec<[_; 3]> = (0..weights.len()).map(output).collect();
                let (x, pairs) = (RowsView::dense(input.data, input.width), input.pairs);
                let product = |i: usize| {
                    let (weight, bias) = weights[i];
                    let (matrix, bias) = (self.exe.matrix(weight), self.exe.vector_if(bias));
                    let (weight, panels) = (matrix.view(), matrix.panels);
                    Product { weight, bias, x, y: outputs[i], pairs, panels }
                };
                // SAFETY: each product has an output of its own.
                unsafe { linear::linear(cx, rows, weights.len(), &product) }
            }
            Code::HeadLinear { weights } => {
                let heads = weights.len().max(1);
                let (y, n) = (output(0), self.exe.code.slots[self.op.outputs[0]].cols);
                let product = |h: usize| {
                    let matrix = self.exe.matrix(weights[h]);
                    let (weight, panels) = (matrix.view(), matrix.panels);
                    let x = RowsView { offset: h * (k / heads), ..RowsView::dense(x, k) };
                    let y = OutView { offset: h * (n / heads), ..y };
                    Product { weight, bias: None, x, y, pairs: false, panels }
                };
                // SAFETY: each head has columns of its own: `n / heads` of them, as its weight has
                // rows.
                unsafe { linear::linear(cx, rows, weights.len(), &product) }
            }
            _ => Ok(()),
        }
    }

    /// Shows products of floats to who observes.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn observe(&self) {
        let (Some(observer), Code::Linear { weights, .. }) = (self.observer, &self.op.code) else {
            return;
        };
        for ((weight, _), y) in weights.iter().zip(&self.op.outputs) {
            // SAFETY: by the caller.
            let (x, y) = unsafe { (self.input(0), self.read(*y)) };
            observer.product(self.exe.matrix_name(*weight), x, self.cols(0), y);
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn packed_linear(
        &self,
        cx: &mut Context<'_>,
        rows: usize,
        work: &mut [f32],
    ) -> Result<(), KernelError> {
        let Code::PackedLinear { weights, kinds, before } = &self.op.code else {
            return Ok(());
        };
        let k = self.cols(0);
        let width = int8::floats(k);
        let work = &mut work[..rows * width * kinds.len()];
        let room = work.chunks_exact_mut((rows * width).max(1));
        let mut to: SmallVec<[_; 2]> = kinds.iter().copied().zip(room).collect();
        // SAFETY: by the caller.
        let x = unsafe { self.rows_of(before.as_deref()) };
        int8::quantize(cx, x, k, &mut to)?;
        drop(to);
        let work = &*work;
        let mut products: SmallVec<[int8::Product<'_>; 3]> = SmallVec::new();
        for (i, (weight, bias, quantization)) in weights.iter().enumerate() {
            let (weight, quantization) = (self.exe.packed(*weight), *quantization);
            let kind = kinds.iter().position(|k| *k == quantization).unwrap_or(0);
            let x = RowsView::dense(&work[kind * rows * width..(kind + 1) * rows * width], width);
            // SAFETY: by the caller.
            let y = unsafe { self.result(i) };
            let bias = self.exe.vector_if(*bias);
            products.push(int8::Product { weight, bias, x, quantization, y });
        }
        // SAFETY: each product has an output of its own.
        unsafe { int8::linear(cx, rows, &products) }
    }

    /// The rows that a product quantizes.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn rows_of(&self, before: Option<&'a Code>) -> int8::ActivationRows<'a> {
        // SAFETY: by the caller.
        unsafe {
            if let Some(norm) = before.and_then(|code| norm_of(code, self.exe)) {
                return int8::ActivationRows::Norm(norm, self.input(0));
            }
            if let Some(Code::CalibratedInput(at)) = before
                && let Some(input) = self.exe.input(*at)
            {
                return int8::ActivationRows::Calibrated(input, self.input(0));
            }
            match before {
                Some(Code::Element(Element::Gate(act))) => {
                    int8::ActivationRows::Gate(*act, [self.input(0), self.input(1)])
                }
                _ => int8::ActivationRows::Plain(self.input(0)),
            }
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn append(
        &self,
        cx: &mut Context<'_>,
        task: &Run,
        k: &troika_graph::KvAppend,
    ) -> Result<(), KernelError> {
        let slot = self.op.states[0];
        // SAFETY: by the caller.
        unsafe {
            let dtype = self.exe.code.slots[slot].dtype;
            let cache: CacheMut<'_> = of_type!(dtype, CacheRows::shared(self.part(slot)));
            let done = kv::append(cx, &task.forward, k.page_group, self.input(0), k.width, cache);
            done.map_err(|e| match e {
                KernelError::Operand(why) => {
                    KernelError::Operand(format!("{}: {why}", self.exe.value_name(slot)))
                }
                panicked => panicked,
            })
        }
    }

    /// # Safety
    /// As for `run`.
    unsafe fn experts<M: ExpertView>(
        &self,
        cx: &mut Context<'_>,
        of: &ExpertsCode,
        experts: &[ExpertWeights<M>],
        work: &mut moe::Memory<'_>,
    ) -> Result<(), KernelError> {
        if let Some(disk) = self.exe.experts_on_disk(of.number) {
            // SAFETY: by the caller.
            return unsafe { self.experts_on_disk(cx, of, experts, disk, work) };
        }
        let expert: &(dyn Fn(usize) -> moe::Expert<'a, M::View<'a>> + Sync) =
            &|e| experts[e].view(self.exe, None);
        // SAFETY: by the caller.
        let ((x, memory), y) =
            unsafe { (self.operands_of_experts(of, expert, work), self.output(0)) };
        match of.capacity {
            Some(capacity) => moe::group(cx, x, capacity, memory, y),
            None => moe::experts(cx, x, memory, y),
        }
    }

    /// Experts; some are read from disk while others are computed.
    ///
    /// # Safety
    /// As for `run`.
    unsafe fn experts_on_disk<M: ExpertView>(
        &self,
        cx: &mut Context<'_>,
        of: &ExpertsCode,
        experts: &[ExpertWeights<M>],
        disk: &dyn ExpertsOnDisk,
        work: &mut moe::Memory<'_>,
    ) -> Result<(), KernelError> {
        // Their weights come with each wave.
        let expert: &(dyn Fn(usize) + Sync) = &|_| ();
        // SAFETY: by the caller.
        let ((x, memory), y) =
            unsafe { (self.operands_of_experts(of, expert, work), self.output(0)) };
        let y: &mut [f32] = y;
        let tokens = y.len() / x.k.max(1);
        let row = Some(x.x).filter(|_| tokens == 1);
        let mut chosen: Vec<(u32, u32)> = Vec::new();
        let mut arrange = |used: &mut [u32], rows: &[u32]| {
            chosen.extend(used.iter().map(|e| (*e, rows[*e as usize])));
            disk.choose(&mut chosen, tokens, row);
            used.iter_mut().zip(&chosen).for_each(|(e, (chosen, _))| *e = *chosen);
        };
        let mut run = moe::ExpertRun::new(x, memory, y.len(), &mut arrange)?;
        let mut place = vec![0; experts.len()];
        let (mut taken, mut left) = (Vec::new(), &chosen[..]);
        while !left.is_empty() {
            taken.clear();
            disk.take(left, &mut taken).map_err(unreadable)?;
            let (wave, rest) = left.split_at(taken.len().min(left.len()));
            wave.iter().enumerate().for_each(|(i, (e, _))| place[*e as usize] = i);
            let expert = |e: usize| experts[e].view(self.exe, Some(&taken[place[e]]));
            run.wave(cx, &expert, wave.len())?;
            left = rest;
        }
        run.finish(cx, y)
    }

    /// # Safety
    /// As for `run`.
    unsafe fn operands_of_experts<'m, E>(
        &self,
        of: &ExpertsCode,
        expert: &'m (dyn Fn(usize) -> E + Sync),
        work: &'m mut moe::Memory<'_>,
    ) -> (moe::Operands<'m, E>, moe::Memory<'m>)
    where
        'a: 'm,
    {
        let k = self.cols(0);
        let ExpertsCode { count: experts, capacity, inter, act, activations, .. } = *of;
        // SAFETY: by the caller.
        let (x, (top_k, ids, weights)): (&[f32], (_, &[i32], &[f32])) = unsafe {
            let chosen = match capacity {
                Some(_) => (1, &[][..], &[][..]),
                None => (self.cols(1), self.input(1), self.input(2)),
            };
            (self.input(0), chosen)
        };
        let rows = x.len() / k.max(1);
        let floats = &mut work.floats[..moe::floats(rows, top_k, k, inter, activations)];
        let words = &mut work.words[..moe::words(rows * top_k, experts)];
        let x =
            moe::Operands { experts, expert, act, x, activations, k, inter, ids, weights, top_k };
        (x, moe::Memory { floats, words })
    }
}

/// A weight that cannot be read, as an op's error.
fn unreadable(e: DeviceError) -> KernelError {
    match e {
        DeviceError::Weight { name, why } => KernelError::Weight { name, why },
        other => KernelError::Weight { name: "of an expert".into(), why: other.to_string() },
    }
}
