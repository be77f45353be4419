//! From a subgraph to an executable: weights fetched, values given places.

pub(crate) mod fuse;
mod memory;
pub(crate) mod weights;

use smallvec::smallvec;
use troika_device::{DeviceError, PackLayout, WeightBytes, WeightSource};
use troika_graph::{
    ActivationFormat, Attention, DType, Dim, KvAppend, Node, Op, Rope, Router, Subgraph, ValueId,
    WeightRef, verify,
};

use crate::compile::fuse::{Floats, Weights, corrections, fuse};
pub(crate) use crate::compile::memory::Place;
use crate::compile::memory::place;
use crate::compile::weights::{PackedMatrix, mismatch};
use crate::kernels::elementwise::{Element, Slice};
use crate::kernels::linear::WeightView;
use crate::kernels::{attention, int8, linear, moe, rope, router};
use crate::machine::Isa;
use crate::runtime::LINE;

/// A value of the executable.
#[derive(Clone, Debug)]
pub(crate) struct ValueSlot {
    pub name: String,
    pub place: Place,
    pub cols: usize,
    pub dtype: DType,
    /// First dimension.
    pub rows: Dim,
    /// Whether its rows may lie apart: the result of a product that no op reads.
    pub strided: bool,
}

impl ValueSlot {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.cols * self.dtype.block_bytes()
    }
}

/// A weight, kept alive by the executable.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: WeightBytes,
    /// Whether the bytes are [`linear::panels`].
    pub panels: bool,
}

impl Matrix {
    pub fn view(&self) -> WeightView<'_> {
        WeightView { dtype: self.dtype, bytes: &self.bytes, rows: self.rows, cols: self.cols }
    }
}

/// A vector in f32.
#[derive(Clone, Debug)]
pub(crate) struct Vector(WeightBytes);

impl Vector {
    pub fn floats(&self) -> &[f32] {
        // Checked when made.
        bytemuck::try_cast_slice(&self.0).unwrap_or(&[])
    }
}

/// The weights of an expert.
#[derive(Clone, Debug)]
pub(crate) struct ExpertWeights<M> {
    pub gate: M,
    pub up: M,
    pub down: M,
    bias: [Option<Vector>; 3],
}

impl<M> ExpertWeights<M> {
    /// As the kernel takes them, each weight by `view`.
    pub fn view<'a, W>(&'a self, view: impl Fn(&'a M) -> W) -> moe::Expert<'a, W> {
        let bias = self.bias.each_ref().map(|b| b.as_ref().map(Vector::floats));
        moe::Expert { gate: view(&self.gate), up: view(&self.up), down: view(&self.down), bias }
    }
}

/// An op with its weights.
#[derive(Clone, Debug)]
pub(crate) enum Code {
    Embed {
        table: Matrix,
        scale: f32,
    },
    RmsNorm {
        weight: Option<Vector>,
        eps: f32,
        offset: f32,
        group: usize,
    },
    LayerNorm {
        weight: Vector,
        bias: Option<Vector>,
        eps: f32,
        group: usize,
    },
    /// Products of one input; an output each.
    Linear {
        weights: Floats,
        bf16: bool,
    },
    HeadLinear {
        weights: Vec<Matrix>,
    },
    Rope(Rope),
    KvAppend(KvAppend),
    Attention {
        op: Attention,
        sinks: Option<Vector>,
    },
    Element(Element),
    Convert,
    SigmoidGate,
    SliceCols(Slice),
    ConcatCols {
        groups: usize,
    },
    Router(Router),
    Experts {
        experts: Vec<ExpertWeights<Matrix>>,
        act: troika_graph::Activation,
        activations: ActivationFormat,
    },
    /// Products of one input; an output each.
    PackedLinear {
        weights: Weights,
        /// What makes the input of the op's inputs, if it is not the only one itself.
        before: Option<Box<Code>>,
    },
    PackedExperts {
        experts: Vec<ExpertWeights<PackedMatrix>>,
        act: troika_graph::Activation,
    },
}

impl Code {
    /// Whether results are those of products, whose rows may lie apart.
    fn is_product(&self) -> bool {
        matches!(self, Code::Linear { .. } | Code::HeadLinear { .. } | Code::PackedLinear { .. })
    }

    /// Whether operands and results are taken row by row, which may lie apart.
    fn is_element(&self) -> bool {
        matches!(self, Code::Element(_))
    }

    /// The weight a product reads first.
    pub fn first_weight(&self) -> Option<&[u8]> {
        match self {
            Code::Linear { weights, .. } => weights.first().map(|w| &*w.0.bytes),
            Code::PackedLinear { weights, .. } => weights.first().map(|w| w.0.view().bytes),
            _ => None,
        }
    }
}

/// An op with its operands, as indices of slots.
#[derive(Clone, Debug)]
pub(crate) struct CompiledOp {
    pub code: Code,
    pub name: &'static str,
    pub inputs: Vec<usize>,
    pub states: Vec<usize>,
    pub outputs: Vec<usize>,
}

/// A subgraph ready to run.
#[derive(Debug)]
pub(crate) struct Executable {
    pub name: String,
    pub slots: Vec<ValueSlot>,
    pub inputs: Vec<usize>,
    pub states: Vec<usize>,
    /// Whether a state is written.
    pub state_written: Vec<bool>,
    /// By which groups' page tables states are used: (state, group).
    pub state_groups: Vec<(usize, usize)>,
    pub outputs: Vec<usize>,
    pub ops: Vec<CompiledOp>,
    /// Outputs that hold another place's value: (slot it is in, output binding).
    pub copies: Vec<(usize, usize)>,
    /// Most rows of a run.
    pub max_rows: usize,
    /// Arena floats per row.
    pub temp_floats: usize,
    /// Working floats of an op, per row.
    pub work_floats: usize,
    /// Working words of an op: per row, and besides.
    pub work_words: (usize, usize),
    /// Scratch floats per worker.
    pub worker_floats: usize,
    /// Attentions: how much they need depends on the forward batch.
    pub attentions: Vec<Attention>,
    /// Whether ops look at the forward batch, and the page groups they use.
    pub uses_forward_batch: bool,
    pub page_groups: Vec<usize>,
}

impl Executable {
    /// Bytes a run needs at most, attentions apart; `None` when there are more than addresses.
    pub fn scratch_bytes(&self, threads: usize) -> Option<u64> {
        let row = self.temp_floats.checked_add(self.work_floats)?.checked_add(self.work_words.0)?;
        let rows = row.checked_mul(self.max_rows)?.checked_add(self.work_words.1)?;
        let words = threads.checked_mul(self.worker_floats)?.checked_add(rows)?;
        isize::try_from(words.checked_mul(4)?).ok().map(|bytes| bytes as u64)
    }
}

/// Compiles a subgraph, which is verified first: what kernels are handed fits together.
pub(crate) fn compile(
    (device, isa): (&str, Isa),
    graph: &Subgraph,
    weights: &dyn WeightSource,
) -> Result<Executable, DeviceError> {
    verify(graph)?;
    let c = Compiler { device, isa, graph, weights };
    let ops = graph.nodes.iter().map(|n| c.compile_op(n)).collect::<Result<Vec<_>, _>>()?;
    let ops = fuse(graph, ops);
    let (places, copies, temp_floats) = place(graph, &ops);
    let slot = |(v, place): (&troika_graph::Value, Place)| ValueSlot {
        name: v.name.clone(),
        place,
        cols: v.shape.row_len(),
        dtype: v.dtype,
        rows: v.shape.0.first().copied().unwrap_or(Dim::Fixed(1)),
        strided: false,
    };
    let index = |ids: &[ValueId]| ids.iter().map(|v| v.0 as usize).collect::<Vec<_>>();
    let written = |s: &ValueId| {
        let writes = |n: &Node| matches!(n.op, Op::KvAppend(_)) && n.states.contains(s);
        graph.nodes.iter().any(writes)
    };
    let mut exe = Executable {
        name: graph.name.clone(),
        slots: graph.values.iter().zip(places).map(slot).collect(),
        inputs: index(&graph.inputs),
        states: index(&graph.states),
        state_written: graph.states.iter().map(written).collect(),
        state_groups: Vec::new(),
        outputs: index(&graph.outputs),
        ops: Vec::new(),
        copies,
        max_rows: graph.max_rows(),
        temp_floats,
        work_floats: 0,
        work_words: (0, 0),
        worker_floats: linear::worker_floats(),
        attentions: Vec::new(),
        uses_forward_batch: false,
        page_groups: Vec::new(),
    };
    for s in &ops {
        needs(&mut exe, s);
        states_of(&mut exe, s);
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

/// Notes by which tables an op uses states.
fn states_of(exe: &mut Executable, op: &CompiledOp) {
    let group = match &op.code {
        Code::KvAppend(k) => k.page_group,
        Code::Attention { op, .. } => op.page_group,
        _ => return,
    };
    for slot in &op.states {
        let state = exe.states.iter().position(|s| s == slot);
        let used = state.map(|state| (state, group));
        exe.state_groups.extend(used.filter(|u| !exe.state_groups.contains(u)));
    }
}

/// Notes what experts of some columns and inner width need.
fn needs_of_experts(
    exe: &mut Executable,
    op: &CompiledOp,
    (k, inter): (usize, usize),
    activations: ActivationFormat,
    experts: usize,
) -> usize {
    let top_k = exe.slots[op.inputs[1]].cols;
    exe.work_floats = exe.work_floats.max(moe::floats((1, top_k), k, inter, activations));
    let words = moe::words(0, experts);
    exe.work_words = (exe.work_words.0.max(top_k), exe.work_words.1.max(words));
    moe::worker_floats()
}

/// Notes what an op needs besides its operands.
fn needs(exe: &mut Executable, op: &CompiledOp) {
    let mut worker = 0;
    match &op.code {
        Code::Rope(r) => {
            worker = rope::worker_floats(r);
            exe.uses_forward_batch |= r.long.is_some();
        }
        Code::KvAppend(k) => {
            exe.uses_forward_batch = true;
            exe.page_groups.push(k.page_group);
        }
        Code::Attention { op, .. } => {
            worker = attention::worker_floats(op);
            exe.uses_forward_batch = true;
            exe.page_groups.push(op.page_group);
            exe.attentions.push(op.clone());
        }
        Code::PackedLinear { weights, before } => {
            worker = int8::scratch_floats();
            if before.is_some() {
                worker = worker.max(exe.slots[op.inputs[0]].cols);
            }
            let each = weights.first().map_or(0, |w| int8::floats(w.0.view().layout.cols));
            exe.work_floats = exe.work_floats.max(each * corrections(weights).len());
        }
        Code::PackedExperts { experts, .. } => {
            let gate = experts[0].gate.view().layout;
            let shape = (gate.cols, gate.rows);
            worker = needs_of_experts(exe, op, shape, ActivationFormat::Int8, experts.len());
        }
        // As floats: where the products of pairs are missing, rounded activations stay floats.
        Code::Linear { weights, bf16: true } => {
            exe.work_floats = exe.work_floats.max(weights[0].0.cols);
        }
        Code::Router(r) => worker = router::worker_floats(r),
        Code::Experts { experts, activations, .. } => {
            let gate = &experts[0].gate;
            worker = needs_of_experts(exe, op, (gate.cols, gate.rows), *activations, experts.len());
        }
        _ => {}
    }
    exe.worker_floats = exe.worker_floats.max(worker);
}

pub(crate) struct Compiler<'a> {
    device: &'a str,
    isa: Isa,
    pub graph: &'a Subgraph,
    pub weights: &'a dyn WeightSource,
}

impl Compiler<'_> {
    pub fn refuse<T>(&self, op: &str, why: impl Into<String>) -> Result<T, DeviceError> {
        Err(DeviceError::Unsupported {
            device: self.device.into(),
            op: op.into(),
            graph: self.graph.name.clone(),
            why: why.into(),
        })
    }

    fn matrix(&self, w: WeightRef) -> Result<Matrix, DeviceError> {
        let decl = self.graph.weight(w);
        let data = self.weights.weight(&decl.name)?;
        let wrong = |why: String| Err(DeviceError::Weight { name: decl.name.to_string(), why });
        if ((data.rows, data.cols), data.dtype) != (decl.stored(), decl.dtype) {
            return wrong(mismatch(&data, decl));
        }
        let need = data.dtype.row_bytes(data.cols).and_then(|r| r.checked_mul(data.rows));
        if need != Some(data.bytes.len()) {
            return wrong(format!("{} bytes do not hold it", data.bytes.len()));
        }
        let Some(data) = data.rows(decl.stored_rows()).filter(|d| d.cols == decl.cols) else {
            return wrong("is a vector, of which only all columns can be taken here".into());
        };
        let aligned = match data.dtype {
            DType::F32 => bytemuck::try_cast_slice::<u8, f32>(&data.bytes).is_ok(),
            DType::F16 | DType::BF16 => bytemuck::try_cast_slice::<u8, u16>(&data.bytes).is_ok(),
            _ => true,
        };
        if !aligned {
            return wrong("is not aligned to its element size".into());
        }
        Ok(Matrix {
            dtype: data.dtype,
            rows: data.rows,
            cols: data.cols,
            bytes: data.bytes,
            panels: false,
        })
    }

    /// A bf16 weight as panels, packed once for all that use it.
    fn panels(&self, w: WeightRef) -> Result<Matrix, DeviceError> {
        let decl = self.graph.weight(w);
        let (rows, cols, dtype) = (decl.rows, decl.cols, decl.dtype);
        let panel = linear::panels::panel_bytes(cols);
        let form = PackLayout { name: "bf16 pairs", rows: linear::panels::ROWS, panel };
        let bytes = self.pack(decl, form, &|raw, out| {
            linear::panels::pack_panels(self.isa, raw, cols, out);
        })?;
        Ok(Matrix { dtype, rows, cols, bytes, panels: true })
    }

    /// A vector, converted once to f32. Of a vector of which the graph reads some columns, these.
    fn vector(&self, w: WeightRef) -> Result<Vector, DeviceError> {
        let decl = self.graph.weight(w);
        let (_, all_cols) = decl.stored();
        let form = PackLayout { name: "f32", rows: 1, panel: 4 * all_cols };
        let bytes = self.pack(decl, form, &|raw, out| {
            troika_graph::blocks::dequantize(decl.dtype, raw, bytemuck::cast_slice_mut(out));
        })?;
        let wrong = |why: String| DeviceError::Weight { name: decl.name.to_string(), why };
        let cols = decl.stored_cols();
        let bytes = bytes.slice(4 * cols.start..4 * cols.end);
        let bytes = bytes.ok_or_else(|| wrong("does not have the columns".into()))?;
        match bytemuck::try_cast_slice::<u8, f32>(&bytes) {
            Ok(_) => Ok(Vector(bytes)),
            Err(e) => Err(wrong(e.to_string())),
        }
    }

    pub fn vector_if(&self, w: &Option<WeightRef>) -> Result<Option<Vector>, DeviceError> {
        w.map(|w| self.vector(w)).transpose()
    }

    fn compile_op(&self, node: &Node) -> Result<CompiledOp, DeviceError> {
        let index = |ids: &[ValueId]| ids.iter().map(|v| v.0 as usize).collect();
        Ok(CompiledOp {
            code: self.code(node)?,
            name: node.op.name(),
            inputs: index(&node.inputs),
            states: index(&node.states),
            outputs: index(&node.outputs),
        })
    }

    fn code(&self, node: &Node) -> Result<Code, DeviceError> {
        Ok(match &node.op {
            Op::Embed { table, scale } => {
                Code::Embed { table: self.matrix(*table)?, scale: *scale }
            }
            Op::RmsNorm { weight, eps, offset, group } => Code::RmsNorm {
                weight: self.vector_if(weight)?,
                eps: *eps,
                offset: *offset,
                group: *group,
            },
            Op::LayerNorm { weight, bias, eps, group } => Code::LayerNorm {
                weight: self.vector(*weight)?,
                bias: self.vector_if(bias)?,
                eps: *eps,
                group: *group,
            },
            Op::Linear { weight, bias, activations: ActivationFormat::Int8 } => {
                let weights = smallvec![(self.packed(*weight)?, self.vector_if(bias)?)];
                Code::PackedLinear { weights, before: None }
            }
            Op::Linear { weight, bias, activations } => {
                let bf16 = *activations == ActivationFormat::Bf16;
                let panels = bf16 && linear::bf16::has_panels(self.isa);
                let matrix = if panels { self.panels(*weight)? } else { self.matrix(*weight)? };
                Code::Linear { weights: smallvec![(matrix, self.vector_if(bias)?)], bf16 }
            }
            Op::HeadLinear(h) => Code::HeadLinear {
                weights: h.weights.iter().map(|w| self.matrix(*w)).collect::<Result<_, _>>()?,
            },
            Op::Rope(r) => Code::Rope(r.clone()),
            Op::KvAppend(k) => Code::KvAppend(k.clone()),
            Op::Attention(a) => Code::Attention { op: a.clone(), sinks: self.vector_if(&a.sinks)? },
            Op::Activate(act) => Code::Element(Element::Activate(*act)),
            Op::Gate(act) => Code::Element(Element::Gate(*act)),
            Op::Add => Code::Element(Element::Add),
            Op::Scale { factor } => Code::Element(Element::Scale(*factor)),
            Op::Clamp { limit } => Code::Element(Element::Clamp(*limit)),
            Op::SoftCap { cap } => Code::Element(Element::SoftCap(*cap)),
            Op::Convert => Code::Convert,
            Op::SigmoidGate => Code::SigmoidGate,
            Op::SliceCols { group, start, len } => {
                Code::SliceCols(Slice { group: *group, start: *start, len: *len })
            }
            Op::ConcatCols { groups } => Code::ConcatCols { groups: *groups },
            Op::Router(r) => Code::Router(r.clone()),
            Op::Experts(e) => self.experts(node, e)?,
        })
    }

    /// The weights of all experts, each matrix by `matrix`.
    pub fn expert_weights<M>(
        &self,
        e: &troika_graph::Experts,
        matrix: impl Fn(WeightRef) -> Result<M, DeviceError>,
    ) -> Result<Vec<ExpertWeights<M>>, DeviceError> {
        let bias = |list: &[WeightRef], i: usize| self.vector_if(&list.get(i).copied());
        let expert = |i: usize| {
            Ok(ExpertWeights {
                gate: matrix(e.gate[i])?,
                up: matrix(e.up[i])?,
                down: matrix(e.down[i])?,
                bias: [bias(&e.gate_bias, i)?, bias(&e.up_bias, i)?, bias(&e.down_bias, i)?],
            })
        };
        (0..e.gate.len()).map(expert).collect()
    }

    fn experts(&self, node: &Node, e: &troika_graph::Experts) -> Result<Code, DeviceError> {
        let top_k = self.graph.value(node.inputs[1]).shape.row_len();
        let pairs = self.graph.max_rows().checked_mul(top_k);
        if pairs.is_none_or(|pairs| u32::try_from(pairs).is_err()) {
            return self.refuse("experts", format!("{top_k} experts a row are too many to count"));
        }
        if e.activations == ActivationFormat::Int8 {
            return self.packed_experts(e);
        }
        let experts = self.expert_weights(e, |w| self.matrix(w))?;
        Ok(Code::Experts { experts, act: e.act, activations: e.activations })
    }
}
