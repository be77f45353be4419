//! Compiles a subgraph to code that knows the places of its values; weights are loaded separately.

mod experts;
pub(crate) mod fuse;
mod load;
mod memory;
mod on_disk;
pub(crate) mod weights;

use smallvec::smallvec;
use troika_device::DeviceError;
use troika_graph::{
    ActivationFormat, Attention, DType, DecayingSum, DeltaRule, Dim, KvAppend, Mamba2, Node, Op,
    Rescale, Rope, Router, ShortConv, Subgraph, ValueId, WeightDecl, WeightRef, verify,
};

pub(crate) use crate::compile::experts::{ExpertWeights, ExpertsCode};
use crate::compile::fuse::{Floats, Integers, Kinds, fuse};
pub(crate) use crate::compile::load::load;
pub(crate) use crate::compile::memory::ValueMemory;
use crate::compile::memory::place;
pub(crate) use crate::compile::on_disk::ExpertView;
pub(crate) use crate::compile::weights::Loaded;
use crate::compile::weights::{Form, MatrixAt, Needs, OutliersAt, PackedAt, VectorAt};
use crate::kernels::elementwise::{Element, Slice};
use crate::kernels::int8::{Layout, Quantization};
use crate::kernels::recurrence::{delta, short_conv};
use crate::kernels::{attention, int8, linear, rope, router};
use crate::machine::Isa;
use crate::runtime::LINE;

/// A value of the executable.
#[derive(Clone, Debug)]
pub(crate) struct ValueSlot {
    pub place: ValueMemory,
    pub cols: usize,
    pub dtype: DType,
    /// First dimension.
    pub rows: Dim,
    /// Whether it may have gaps between rows: a product's result that no op reads.
    pub strided: bool,
}

impl ValueSlot {
    /// Bytes per row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_size(self.cols)
    }
}

/// An op, with the indices of its loaded weights.
///
/// `Linear` and `PackedLinear` are products with a common input and one output each. `before` is
/// the norm or gate that computes their input, if it is fused with them, or a `CalibratedInput`:
/// what a calibration says of the input. That is a part of products only.
#[derive(Clone, Debug)]
pub(crate) enum Code {
    Embed { table: MatrixAt, scale: f32 },
    RmsNorm { weight: Option<VectorAt>, eps: f32, offset: f32, group: usize },
    LayerNorm { weight: VectorAt, bias: Option<VectorAt>, eps: f32, group: usize },
    Linear { weights: Floats, bf16: bool },
    HeadLinear { weights: Vec<MatrixAt> },
    Outliers(OutliersAt),
    Rope(Rope),
    KvAppend(KvAppend),
    DecayingSum(DecayingSum),
    DeltaRule { op: DeltaRule, rates: VectorAt },
    ShortConv { op: ShortConv, weight: VectorAt, bias: Option<VectorAt> },
    Mamba2 { op: Mamba2, a: VectorAt, d: VectorAt, dt_bias: VectorAt },
    Attention { op: Attention, sinks: Option<VectorAt> },
    Element(Element),
    Convert,
    SigmoidGate,
    Rescale(Rescale, Option<VectorAt>),
    Mix(usize),
    SliceCols(Slice),
    ConcatCols { groups: usize },
    Router { op: Router, bias: Option<VectorAt>, scales: Option<VectorAt> },
    Experts { experts: Vec<ExpertWeights<MatrixAt>>, of: ExpertsCode },
    CalibratedInput(PackedAt),
    PackedLinear { weights: Integers, kinds: Kinds, before: Option<Box<Code>> },
    PackedExperts { experts: Vec<ExpertWeights<PackedAt>>, of: ExpertsCode },
}

impl Code {
    /// Whether it is a product, whose result may have gaps between rows.
    fn is_product(&self) -> bool {
        matches!(self, Code::Linear { .. } | Code::HeadLinear { .. } | Code::PackedLinear { .. })
    }

    /// Whether it works row by row, so that operands and results may have gaps between rows.
    fn is_element(&self) -> bool {
        matches!(self, Code::Element(_))
    }

    /// The page group of its states, if it has any.
    fn page_group(&self) -> Option<usize> {
        match self {
            Code::KvAppend(k) => Some(k.page_group),
            Code::Attention { op, .. } => Some(op.page_group),
            Code::DecayingSum(s) => Some(s.page_group),
            Code::DeltaRule { op, .. } => Some(op.page_group),
            Code::ShortConv { op, .. } => Some(op.page_group),
            Code::Mamba2 { op, .. } => Some(op.page_group),
            _ => None,
        }
    }

    /// The weight that a product reads first.
    pub fn first_weight<'a>(&self, of: &'a Loaded) -> Option<&'a [u8]> {
        match self {
            Code::Linear { weights, .. } => weights.first().map(|w| of.matrix(w.0).view().bytes),
            Code::PackedLinear { weights, .. } => weights.first().map(|w| of.packed(w.0).bytes),
            _ => None,
        }
    }
}

/// An op with its operands, as slot indices.
#[derive(Clone, Debug)]
pub(crate) struct CompiledOp {
    pub code: Code,
    pub name: &'static str,
    pub inputs: Vec<usize>,
    pub states: Vec<usize>,
    pub outputs: Vec<usize>,
}

/// The code of a subgraph, and of all others that differ only in names.
#[derive(Debug, Default)]
pub(crate) struct Executable {
    /// The first of these subgraphs.
    pub graph: Subgraph,
    /// The weights that the ops read.
    pub weights: Needs,
    pub slots: Vec<ValueSlot>,
    pub inputs: Vec<usize>,
    pub states: Vec<usize>,
    /// Whether each state is written.
    pub state_written: Vec<bool>,
    /// The page groups that states are used with: (state, group).
    pub state_groups: Vec<(usize, usize)>,
    pub outputs: Vec<usize>,
    pub ops: Vec<CompiledOp>,
    /// Outputs to copy from another value: (its slot, output binding).
    pub copies: Vec<(usize, usize)>,
    /// The most rows of a run.
    pub max_rows: usize,
    /// Floats in the arena per row.
    pub temp_floats: usize,
    /// Working floats of an op, per row.
    pub work_floats: usize,
    /// Working words of an op: per row, and fixed.
    pub work_words: (usize, usize),
    /// Scratch floats per worker.
    pub worker_floats: usize,
    /// Attention ops, whose memory depends on the forward batch.
    pub attentions: Vec<Attention>,
    /// Whether ops use the forward batch, and with which page groups.
    pub uses_forward_batch: bool,
    pub page_groups: Vec<usize>,
}

impl Executable {
    /// The slots of all bindings: inputs, states, outputs.
    pub fn bound(&self) -> impl Iterator<Item = &usize> {
        self.inputs.iter().chain(&self.states).chain(&self.outputs)
    }

    /// The most bytes that a run needs, except for attention; `None` on overflow.
    pub fn scratch_bytes(&self, threads: usize) -> Option<u64> {
        let row = self.temp_floats.checked_add(self.work_floats)?.checked_add(self.work_words.0)?;
        let rows = row.checked_mul(self.max_rows)?.checked_add(self.work_words.1)?;
        let words = threads.checked_mul(self.worker_floats)?.checked_add(rows)?;
        isize::try_from(words.checked_mul(4)?).ok().map(|bytes| bytes as u64)
    }
}

/// Verifies and compiles a subgraph, so that kernels get consistent operands.
pub(crate) fn compile(device: &str, isa: Isa, graph: &Subgraph) -> Result<Executable, DeviceError> {
    verify(graph)?;
    let mut c = Compiler { device, isa, graph, weights: Needs::default() };
    let ops = graph.nodes.iter().map(|n| c.compile_op(n)).collect::<Result<Vec<_>, _>>()?;
    let ops = fuse(graph, ops);
    let (places, copies, temp_floats) = place(graph, &ops);
    let slot = |(v, place): (&troika_graph::Value, ValueMemory)| ValueSlot {
        place,
        cols: v.shape.row_len(),
        dtype: v.dtype,
        rows: v.shape.0.first().copied().unwrap_or(Dim::Fixed(1)),
        strided: false,
    };
    let index = |ids: &[ValueId]| ids.iter().map(|v| v.0 as usize).collect::<Vec<_>>();
    let written = |s: &ValueId| {
        let writes = |n: &Node| {
            n.states.contains(s) && n.op.page_group().is_some_and(|(_, written)| written)
        };
        graph.nodes.iter().any(writes)
    };
    let mut exe = Executable {
        graph: graph.clone(),
        weights: c.weights,
        slots: graph.values.iter().zip(places).map(slot).collect(),
        inputs: index(&graph.inputs),
        states: index(&graph.states),
        state_written: graph.states.iter().map(written).collect(),
        outputs: index(&graph.outputs),
        copies,
        max_rows: graph.max_rows(),
        temp_floats,
        worker_floats: linear::worker_floats(),
        ..Executable::default()
    };
    for s in &ops {
        needs(&mut exe, s);
    }
    let writers = ops.iter().filter(|s| s.code.is_product() || s.code.is_element());
    for &v in writers.flat_map(|s| &s.outputs) {
        exe.slots[v].strided = !ops.iter().any(|s| s.inputs.contains(&v));
    }
    for &v in &exe.inputs {
        let mut readers = ops.iter().filter(|s| s.inputs.contains(&v));
        exe.slots[v].strided = readers.all(|s| s.code.is_element());
    }
    exe.worker_floats = exe.worker_floats.next_multiple_of(LINE);
    exe.ops = ops;
    Ok(exe)
}

/// Records the memory that an op needs besides its operands, and the page groups that it uses
/// states with.
fn needs(exe: &mut Executable, op: &CompiledOp) {
    let mut worker = 0;
    if let Some(group) = op.code.page_group() {
        exe.uses_forward_batch = true;
        exe.page_groups.push(group);
        for slot in &op.states {
            let state = exe.states.iter().position(|s| s == slot);
            let used = state.map(|state| (state, group));
            exe.state_groups.extend(used.filter(|u| !exe.state_groups.contains(u)));
        }
    }
    match &op.code {
        Code::Rope(r) => {
            worker = rope::worker_floats(r);
            exe.uses_forward_batch |= r.long.is_some();
        }
        Code::ShortConv { op, .. } => worker = short_conv::worker_floats(op),
        Code::DeltaRule { op, .. } => worker = delta::worker_floats(op),
        Code::Attention { op, .. } => {
            worker = attention::worker_floats(op);
            exe.attentions.push(op.clone());
        }
        Code::PackedLinear { kinds, before, .. } => {
            let cols = exe.slots[op.inputs[0]].cols;
            worker = if before.is_some() { cols } else { 0 };
            exe.work_floats = exe.work_floats.max(int8::floats(cols) * kinds.len());
        }
        // As floats: without instructions for pairs, rounded activations stay floats.
        Code::Linear { bf16: true, .. } => {
            exe.work_floats = exe.work_floats.max(exe.slots[op.inputs[0]].cols);
        }
        Code::Router { op, .. } => worker = router::worker_floats(op),
        Code::Experts { of, .. } | Code::PackedExperts { of, .. } => {
            worker = experts::needs(exe, op, of);
        }
        _ => {}
    }
    exe.worker_floats = exe.worker_floats.max(worker);
}

struct Compiler<'a> {
    device: &'a str,
    isa: Isa,
    graph: &'a Subgraph,
    weights: Needs,
}

impl Compiler<'_> {
    fn refuse<T>(&self, op: &str, why: impl Into<String>) -> Result<T, DeviceError> {
        let (device, graph) = (self.device.into(), self.graph.name.clone());
        Err(DeviceError::Unsupported { device, op: op.into(), graph, why: why.into() })
    }

    /// Refuses formats that the kernels do not make.
    fn made(&self, op: &str, activations: ActivationFormat) -> Result<(), DeviceError> {
        let made = [ActivationFormat::INT8, int8::INT7];
        if made.contains(&activations) {
            return Ok(());
        }
        let made = made.map(|f| f.to_string()).join(" and ");
        self.refuse(op, format!("its activations are {activations}, the kernels make {made}"))
    }

    fn vector_if(&mut self, w: Option<WeightRef>) -> Option<VectorAt> {
        w.map(|w| self.weights.vector(w))
    }

    /// A weight for the integer kernels.
    fn packed(&mut self, w: WeightRef) -> Result<PackedAt, DeviceError> {
        let decl = self.graph.weight(w);
        let (rows, cols, dtype) = (decl.rows, decl.cols, decl.dtype);
        let Some(layout) = Layout::new(dtype, rows, cols) else {
            let why = format!("{rows}x{cols} {dtype} has no integer path");
            return Err(DeviceError::Weight { name: decl.name.to_string(), why });
        };
        Ok(self.weights.packed(w, Form::Packed(layout)))
    }

    /// A product in bytes with one scale for all inputs and one for each row of the weight.
    fn calibrated(
        &mut self,
        weight: WeightRef,
        bias: Option<WeightRef>,
        activations: ActivationFormat,
    ) -> Result<Code, DeviceError> {
        let WeightDecl { rows, cols, .. } = *self.graph.weight(weight);
        let layout = Layout::new(DType::Q8_0, rows, cols);
        let Some((layout, format)) = layout.zip(activations.converted_numbers()) else {
            return self.refuse("linear", format!("{cols} columns are not in groups of 32"));
        };
        let packed = self.weights.packed(weight, Form::RowBytes(layout, format));
        let kind = Quantization::of(DType::Q8_0, ActivationFormat::INT8);
        let weights = smallvec![(packed, self.vector_if(bias), kind)];
        let before = Some(Box::new(Code::CalibratedInput(packed)));
        Ok(Code::PackedLinear { weights, kinds: smallvec![kind], before })
    }

    /// A weight for products with f32, packed where that is best.
    fn matrix(&mut self, w: WeightRef) -> MatrixAt {
        let panels = linear::panels::serve(self.isa, self.graph.weight(w).dtype);
        self.weights.matrix(w, panels)
    }

    fn compile_op(&mut self, node: &Node) -> Result<CompiledOp, DeviceError> {
        let [inputs, states, outputs] = [&node.inputs, &node.states, &node.outputs]
            .map(|ids| ids.iter().map(|v| v.0 as usize).collect());
        Ok(CompiledOp { code: self.code(node)?, name: node.op.name(), inputs, states, outputs })
    }

    fn code(&mut self, node: &Node) -> Result<Code, DeviceError> {
        Ok(match &node.op {
            Op::Embed { table, scale } => {
                Code::Embed { table: self.weights.matrix(*table, false), scale: *scale }
            }
            &Op::RmsNorm { weight, eps, offset, group } => {
                Code::RmsNorm { weight: self.vector_if(weight), eps, offset, group }
            }
            &Op::LayerNorm { weight, bias, eps, group } => {
                let (weight, bias) = (self.weights.vector(weight), self.vector_if(bias));
                Code::LayerNorm { weight, bias, eps, group }
            }
            Op::Linear { weight, bias, activations, .. } if activations.is_tensor_bytes() => {
                self.calibrated(*weight, *bias, *activations)?
            }
            Op::Linear { weight, bias, activations, .. }
                if matches!(activations, ActivationFormat::Int(_)) || activations.is_halves() =>
            {
                self.made("linear", *activations)?;
                let packed = self.packed(*weight)?;
                let kind = Quantization::of(self.graph.weight(*weight).dtype, *activations);
                let weights = smallvec![(packed, self.vector_if(*bias), kind)];
                Code::PackedLinear { weights, kinds: smallvec![kind], before: None }
            }
            Op::Linear { weight, bias, activations, .. } => {
                let bf16 = *activations == ActivationFormat::Bf16;
                let matrix = self.matrix(*weight);
                Code::Linear { weights: smallvec![(matrix, self.vector_if(*bias))], bf16 }
            }
            Op::HeadLinear(h) => {
                Code::HeadLinear { weights: h.weights.iter().map(|w| self.matrix(*w)).collect() }
            }
            Op::Outliers { weight, activations } => {
                Code::Outliers(self.weights.outliers(*weight, *activations))
            }
            Op::Rope(r) => Code::Rope(r.clone()),
            Op::KvAppend(k) => Code::KvAppend(k.clone()),
            Op::DecayingSum(s) => Code::DecayingSum(s.clone()),
            Op::Mamba2(m) => {
                let [a, d, dt_bias] = [m.a, m.d, m.dt_bias].map(|w| self.weights.vector(w));
                Code::Mamba2 { op: m.clone(), a, d, dt_bias }
            }
            Op::DeltaRule(d) => {
                Code::DeltaRule { op: d.clone(), rates: self.weights.vector(d.rates) }
            }
            Op::ShortConv(s) => {
                let (weight, bias) = (self.weights.vector(s.weight), self.vector_if(s.bias));
                Code::ShortConv { op: s.clone(), weight, bias }
            }
            Op::Attention(a) => Code::Attention { op: a.clone(), sinks: self.vector_if(a.sinks) },
            Op::Activate(act) => Code::Element(Element::Activate(*act)),
            Op::Gate(act) => Code::Element(Element::Gate(*act)),
            Op::Add => Code::Element(Element::Add),
            Op::Scale { factor } => Code::Element(Element::Scale(*factor)),
            Op::Clamp { limit } => Code::Element(Element::Clamp(*limit)),
            Op::SoftCap { cap } => Code::Element(Element::SoftCap(*cap)),
            Op::Convert => Code::Convert,
            Op::SigmoidGate => Code::SigmoidGate,
            Op::Rescale(r) => Code::Rescale(*r, self.vector_if(node.op.weights().pop())),
            Op::Mix { streams } => Code::Mix(*streams),
            Op::SliceCols { group, start, len } => {
                Code::SliceCols(Slice { group: *group, start: *start, len: *len })
            }
            Op::ConcatCols { groups } => Code::ConcatCols { groups: *groups },
            Op::Router(r) => {
                let (bias, scales) = (self.vector_if(r.bias), self.vector_if(r.expert_scales));
                Code::Router { op: r.clone(), bias, scales }
            }
            Op::Experts(e) => self.experts(node, e, None)?,
            Op::ExpertGroup(g) => self.experts(node, &g.experts, Some(g.capacity))?,
        })
    }
}
