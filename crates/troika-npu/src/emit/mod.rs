//! Subgraphs as graphs that a vendor's compiler takes: fixed shapes, or any number of rows, and weights.
//! The walk over ops is one for all forms of files ([`GraphWriter`]). In ONNX, values are f32, also
//! between products in other formats.

mod attention;
pub(crate) mod blocks;
pub(crate) mod int4;
mod linear;
mod onnx;
mod ops;
mod quantized;
pub(crate) mod verb;

use std::collections::HashMap;
use std::sync::Arc;

use half::f16;
use troika_device::{DeviceError, PackLayout, WeightData, WeightSource};
use troika_graph::blocks::dequantize;
use troika_graph::{
    Attention, DType, Dim, Node, Op, ProductForm, Rope, Subgraph, Value, ValueId, WeightRef,
    WeightSlice,
};

use crate::onnx::{ElementType, OnnxFiles, OnnxModel};
use crate::provider::Provider;
use crate::rewrites::{Rewrite, Rewrites};
use crate::rotation::Rotation;

use verb::{Product, Seen, Verb};

/// The name of an attention's input that says what a row sees.
pub(crate) const MASK: &str = "mask";
/// What it adds to the score of a position that a row does not see. Halves hold it.
pub(crate) const HIDDEN: f32 = -60_000.0;

/// A model with what a caller binds.
pub(crate) struct Emitted<F = Arc<OnnxFiles>> {
    /// The model: equal graphs with equal weights give equal files.
    pub files: F,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// For each input, the graph's input that it is. Cosines and sines follow, then an attention's
    /// keys, values and mask.
    pub of: Vec<usize>,
    pub rotations: Vec<Rotation>,
    /// Inputs of the graph.
    pub bound: usize,
    /// The number of rows of all inputs and outputs of the graph.
    pub rows: usize,
    /// Whether the model takes others, too.
    pub any_rows: bool,
}

/// An input or output.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub name: String,
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
}

impl Port {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.dtype.row_size(self.cols)
    }
}

/// Why a provider does not run an op of a graph, or `None`.
pub(crate) fn refusal(op: &Op, graph: &Subgraph, provider: Provider) -> Option<&'static str> {
    match op {
        // Its results were 12 dB beside the reference.
        Op::Linear { weight, form: Some(ProductForm::Exchanged), .. }
            if provider == Provider::OpenVino && graph.weight(*weight).dtype.is_quantized() =>
        {
            Some("its compiler takes weights of blocks as second operands only: do not exchange it")
        }
        Op::Convert if provider == Provider::OpenVino => {
            Some("its compiler does not round to the nearest")
        }
        Op::Convert if provider == Provider::Qnn => {
            Some("its compiler places no conversion of floats")
        }
        Op::RmsNorm { weight: Some(weight), group, .. } if graph.weight(*weight).cols != *group => {
            Some("its groups have weights of their own")
        }
        Op::DecayingSum(_) | Op::ShortConv(_) | Op::Mamba2(_) | Op::DeltaRule(_) => {
            Some("its state is no cache of positions")
        }
        Op::Rescale(_) | Op::Mix { .. } => Some("it is written for no compiler yet"),
        Op::Outliers { .. } => Some("which columns have outliers is known at run time only"),
        Op::Router(_) => Some("which experts a row needs is known at run time only"),
        Op::Experts(_) => Some("which rows an expert gets is known at run time only"),
        _ => None,
    }
}

/// The number of rows that a static graph is bound to; else what is not bound.
pub(crate) fn rows_of(graph: &Subgraph) -> Result<usize, String> {
    let mut bound = None;
    for id in graph.inputs.iter().chain(&graph.outputs) {
        let value = graph.value(*id);
        let Some(Dim::Fixed(rows)) = value.shape.0.first() else {
            return Err(format!("the number of rows of {} is not bound", value.name));
        };
        if *bound.get_or_insert(*rows) != *rows {
            return Err(format!("{} has {rows} rows, other values have not", value.name));
        }
    }
    bound.ok_or_else(|| "it has no inputs or outputs".into())
}

/// How to write a graph.
#[derive(Clone, Copy)]
pub(crate) struct EmitOptions<'a> {
    pub provider: Provider,
    pub rewrites: &'a Rewrites,
    /// Cached positions that an attention takes.
    pub positions: usize,
    /// Whether the model takes any number of rows.
    pub any_rows: bool,
}

/// Writes a graph with its weights as ONNX. None of its ops may be refused. What goes into a cache is
/// left to the host. An attention takes cached keys and values, and a mask.
///
/// # Errors
/// A weight that cannot be read, or a graph that is not static.
pub(crate) fn emit(
    graph: &Subgraph,
    weights: &dyn WeightSource,
    options: EmitOptions<'_>,
) -> Result<Emitted, DeviceError> {
    let unwritten = |e: std::io::Error| {
        let why = "its weights cannot be written to the folder for temporary files";
        let why = format!("{why}: {e}; TMPDIR names another one");
        DeviceError::Submission { task: graph.name.clone(), why }
    };
    let model = OnnxModel::new(&graph.name).map_err(unwritten)?;
    let Emitted { files, inputs, outputs, of, rotations, bound, rows, any_rows } =
        written(graph, weights, options, model)?;
    let files = Arc::new(files.files().map_err(unwritten)?);
    Ok(Emitted { files, inputs, outputs, of, rotations, bound, rows, any_rows })
}

/// The same in the form of files that the writer has.
///
/// # Errors
/// As [`emit`].
pub(crate) fn written<W: GraphWriter>(
    graph: &Subgraph,
    weights: &dyn WeightSource,
    options: EmitOptions<'_>,
    mut model: W,
) -> Result<Emitted<W>, DeviceError> {
    let wrong = |why: String| DeviceError::Submission { task: graph.name.clone(), why };
    let rows = rows_of(graph).map_err(wrong)?;
    // Reshaping to zero keeps a dimension.
    let all_rows = if options.any_rows { 0 } else { rows };
    let ports = |name: fn(usize) -> String, ids: &[ValueId]| -> Result<Vec<Port>, DeviceError> {
        let port = |(i, value): (usize, &Value)| {
            element(value.dtype).map_err(wrong)?;
            let (dtype, cols) = (value.dtype, value.shape.row_len());
            Ok(Port { name: name(i), dtype, rows, cols })
        };
        ids.iter().map(|id| graph.value(*id)).enumerate().map(port).collect()
    };
    let all = ports(input_name, &graph.inputs)?;
    let outputs = ports(|i| format!("out{i}"), &graph.outputs)?;
    let read = read_values(graph);
    let of: Vec<usize> = (0..all.len()).filter(|i| read[graph.inputs[*i].0 as usize]).collect();
    let inputs: Vec<Port> = of.iter().map(|i| all[*i].clone()).collect();
    let mut tensors = HashMap::new();
    for (i, port) in of.iter().zip(&inputs) {
        model.input(&port.name, port.dtype, &[all_rows, port.cols]);
        tensors.insert(graph.inputs[*i], port.name.clone());
    }
    let mut emitter = Emitter { inputs, ..Emitter::new(graph, weights, options, model) };
    (emitter.rows, emitter.tensors) = (all_rows, tensors);
    emitter.nodes(rows, |n| n.outputs.iter().any(|id| read[id.0 as usize]))?;
    let Emitter { mut model, mut inputs, rotations, tensors, .. } = emitter;
    for (id, port) in graph.outputs.iter().zip(&outputs) {
        let made = tensors.get(id).ok_or_else(|| wrong(format!("{} is never made", port.name)))?;
        model.output(&port.name, made, port.dtype, &[all_rows, port.cols]);
    }
    inputs.iter_mut().filter(|port| port.rows == 0).for_each(|port| port.rows = rows);
    let (bound, any_rows) = (all.len(), options.any_rows);
    Ok(Emitted { files: model, inputs, outputs, of, rotations, bound, rows, any_rows })
}

/// The name of a graph's input.
pub(crate) fn input_name(i: usize) -> String {
    format!("in{i}")
}

/// Which values the outputs follow from: not what only goes into a cache, and no positions, since
/// the host computes their cosines and sines.
fn read_values(graph: &Subgraph) -> Vec<bool> {
    let mut read = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|id| read[id.0 as usize] = true);
    for node in graph.nodes.iter().rev() {
        if node.outputs.iter().any(|id| read[id.0 as usize]) {
            let count = if matches!(node.op, Op::Rope(_)) { 1 } else { node.inputs.len() };
            node.inputs.iter().take(count).for_each(|id| read[id.0 as usize] = true);
        }
    }
    read
}

/// Whether a value is only added to others and normed, as the sum of layers' results is.
pub(crate) fn is_summed(graph: &Subgraph, value: ValueId) -> bool {
    let sums = |op: &Op| matches!(op, Op::Add | Op::RmsNorm { .. } | Op::LayerNorm { .. });
    let readers = graph.nodes.iter().filter(|n| n.inputs.contains(&value));
    graph.value(value).dtype == DType::F32 && readers.map(|n| &n.op).all(sums)
}

/// The element type of values.
fn element(dtype: DType) -> Result<ElementType, String> {
    match dtype {
        DType::F32 => Ok(ElementType::F32),
        DType::F16 => Ok(ElementType::F16),
        DType::BF16 => Ok(ElementType::Bf16),
        DType::I32 => Ok(ElementType::I32),
        other => Err(format!("values of type {other} cannot be bound")),
    }
}

/// A file's form of graphs.
pub(crate) trait GraphWriter: Sized {
    /// Declares an input.
    fn input(&mut self, name: &str, dtype: DType, dims: &[usize]);

    /// Declares a tensor as an output, under this name.
    fn output(&mut self, name: &str, tensor: &str, dtype: DType, dims: &[usize]);

    /// A constant tensor of floats or halves. Returns its name.
    fn typed(&mut self, halves: bool, dims: &[usize], values: &[f32]) -> String;

    /// A constant tensor of floats. Returns its name.
    fn floats(&mut self, dims: &[usize], values: &[f32]) -> String {
        self.typed(false, dims, values)
    }

    /// Adds a node. Returns its result's name.
    fn verb(&mut self, verb: Verb<'_>, inputs: &[&str]) -> String;

    /// The op that the next nodes compute, and what tells it apart.
    fn scope(&mut self, op: &str, about: &str);

    /// A root mean square norm as one node, where the form has one.
    fn whole_norm(&mut self, x: &str, eps: f32, weight: &str) -> Option<String>;

    /// What the sum of layers' results is divided by, so that no half overflows; `None`: it is not.
    fn divisor(&self) -> Option<f32> {
        None
    }

    /// Whether a tensor is divided by it.
    fn is_divided(&self, _tensor: &str) -> bool {
        false
    }

    /// Notes that a tensor is divided by it.
    fn divided(&mut self, _tensor: &str) {}

    /// Tensors with cosines and sines of positions `[rows, rotary_dim / 2]`, if they are no inputs.
    fn rotation(&mut self, _: &Rope, _rows: usize) -> Option<[String; 2]> {
        None
    }

    /// What an attention sees, if it is none of the inputs.
    ///
    /// # Errors
    /// Keys and values that are never made.
    fn kept(
        _: &mut Emitter<'_, Self>,
        _: &Attention,
        _: &Node,
    ) -> Result<Option<Seen>, DeviceError> {
        Ok(None)
    }

    /// `x * weight^T + bias` in a format of activations.
    ///
    /// # Errors
    /// A weight that cannot be read.
    fn product(e: &mut Emitter<'_, Self>, of: Product<'_>) -> Result<String, DeviceError>;

    /// Rows of a table of weights `[rows, cols]` that indices name.
    ///
    /// # Errors
    /// As [`GraphWriter::product`].
    fn rows_of_table(
        e: &mut Emitter<'_, Self>,
        table: WeightRef,
        ids: &str,
    ) -> Result<String, DeviceError>;
}

/// A graph on its way to a form of files.
pub(crate) struct Emitter<'a, W> {
    pub graph: &'a Subgraph,
    weights: &'a dyn WeightSource,
    pub options: EmitOptions<'a>,
    /// The number of rows; 0 if the model takes any.
    pub rows: usize,
    /// Whether the operands of the op's products are exchanged.
    exchanged: bool,
    /// The rows of a group, if its products see their rows as groups.
    group: Option<usize>,
    pub model: W,
    /// The model's inputs so far.
    inputs: Vec<Port>,
    rotations: Vec<Rotation>,
    /// The tensors of the values so far.
    pub tensors: HashMap<ValueId, String>,
}

impl<'a, W: GraphWriter> Emitter<'a, W> {
    /// A graph of which nothing is written.
    pub fn new(
        graph: &'a Subgraph,
        weights: &'a dyn WeightSource,
        options: EmitOptions<'a>,
        model: W,
    ) -> Emitter<'a, W> {
        Emitter {
            graph,
            weights,
            options,
            rows: 0,
            exchanged: false,
            group: None,
            model,
            inputs: Vec::new(),
            rotations: Vec::new(),
            tensors: HashMap::new(),
        }
    }

    pub fn weights(&self) -> &'a dyn WeightSource {
        self.weights
    }

    /// Writes the nodes that are kept, for so many rows.
    ///
    /// # Errors
    /// As [`emit`].
    pub fn nodes(&mut self, rows: usize, keep: impl Fn(&Node) -> bool) -> Result<(), DeviceError> {
        let graph = self.graph;
        for node in graph.nodes.iter().filter(|n| keep(n)) {
            // What tells ops of a kind apart.
            let about = match (&node.op, node.outputs.first()) {
                (Op::Linear { weight, .. }, _) => &*graph.weight(*weight).name,
                (_, made) => made.map_or("", |made| &*graph.value(*made).name),
            };
            self.model.scope(node.op.name(), about);
            self.formed(&node.op, rows).op(node)?;
        }
        Ok(())
    }

    /// For an op of so many rows, in its form.
    fn formed(&mut self, op: &Op, rows: usize) -> &mut Self {
        self.exchanged = op.form() == Some(ProductForm::Exchanged);
        // Groups would have to be padded, too.
        let pads = self.options.rewrites.has(Rewrite::MultiplesOf16);
        self.group = op.form().and_then(|form| form.group(rows)).filter(|_| !pads);
        self
    }

    pub fn value(&self, id: ValueId) -> &Value {
        self.graph.value(id)
    }

    fn cols(&self, id: ValueId) -> usize {
        self.value(id).shape.row_len()
    }

    /// An input `[rows, cols]` that the graph does not have.
    fn extra(&mut self, name: &str, dtype: DType, rows: usize, cols: usize) -> String {
        self.model.input(name, dtype, &[rows, cols]);
        self.inputs.push(Port { name: name.into(), dtype, rows, cols });
        if dtype == DType::F16 { self.one(Verb::Cast(DType::F32), name) } else { name.into() }
    }

    pub fn tensor(&self, id: ValueId) -> Result<String, DeviceError> {
        self.tensors.get(&id).cloned().ok_or_else(|| {
            let why = format!("value {} is read before it is made", self.value(id).name);
            self.wrong(why)
        })
    }

    pub fn wrong(&self, why: String) -> DeviceError {
        DeviceError::Submission { task: self.graph.name.clone(), why }
    }

    /// The rows of a weight that the graph reads, as stored: a copy, so that none of its file stays
    /// in memory.
    pub fn stored(&self, weight: WeightRef) -> Result<WeightData, DeviceError> {
        let decl = self.graph.weight(weight);
        let (dtype, cols, rows) = (decl.dtype, decl.stored().1, decl.stored_rows());
        let layout = PackLayout { name: "rows", rows: 1, panel: dtype.row_size(cols), keep: false };
        let copy = |data: &WeightData, out: &mut [u8]| {
            if (data.dtype, data.cols, data.bytes.len()) != (dtype, cols, out.len()) {
                let why = "has another shape or type than its graph says".into();
                return Err(DeviceError::Weight { name: decl.name.to_string(), why });
            }
            out.copy_from_slice(&data.bytes);
            Ok(())
        };
        let bytes = self.weights.packed_rows(&decl.name, rows.clone(), layout, &copy)?.bytes;
        Ok(WeightData { dtype, rows: rows.len(), cols, bytes })
    }

    /// A weight's numbers, row by row.
    pub fn read(&self, weight: WeightRef) -> Result<Vec<f32>, DeviceError> {
        let (whole, decl) = (self.stored(weight)?, self.graph.weight(weight));
        let mut values = vec![0.0; whole.rows * whole.cols];
        dequantize(whole.dtype, &whole.bytes, &mut values);
        if let Some(WeightSlice::Cols { .. }) = decl.slice {
            values = values[decl.stored_cols()].to_vec();
        }
        Ok(values)
    }

    /// The error for a number that no graph computes with.
    pub fn damaged(&self, weight: WeightRef, number: f32) -> DeviceError {
        let name = self.graph.weight(weight).name.to_string();
        let why =
            format!("has {number}, which graphs do not hold; the model's file may be damaged");
        DeviceError::Weight { name, why }
    }

    /// A weight of one row as a constant `[cols]`, with something added to each number.
    pub fn vector(&mut self, weight: WeightRef, plus: f32) -> Result<String, DeviceError> {
        let values: Vec<f32> = self.read(weight)?.iter().map(|v| v + plus).collect();
        values.iter().find(|v| !v.is_finite()).map_or(Ok(()), |v| Err(self.damaged(weight, *v)))?;
        Ok(self.model.floats(&[values.len()], &values))
    }
}

/// Numbers as halves.
pub(crate) fn half_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use troika_device::{
        DeviceError, PackFn, PackLayout, Packed, WeightBytes, WeightData, WeightSource,
    };
    use troika_graph::{
        ActivationFormat, Attention, DType, Dim, Op, ProductForm, Shape, Subgraph, SubgraphBuilder,
        WeightDecl, bind_static, convert_products, form_products,
    };

    use super::{EmitOptions, emit};
    use crate::onnx::ModelProto;
    use crate::provider::Provider;
    use crate::rewrites::Rewrites;

    /// Weights of zeros.
    struct Zeros(Vec<WeightDecl>);

    impl WeightSource for Zeros {
        fn weight(&self, name: &str) -> Result<WeightData, DeviceError> {
            let decl = self.0.iter().find(|d| &*d.name == name).unwrap();
            let bytes = WeightBytes::owned(vec![0; 4 * decl.rows * decl.cols]);
            Ok(WeightData { dtype: DType::F32, rows: decl.rows, cols: decl.cols, bytes })
        }

        fn packed(
            &self,
            name: &str,
            layout: PackLayout<'_>,
            pack: PackFn<'_>,
        ) -> Result<Packed, DeviceError> {
            let data = self.weight(name)?;
            let mut bytes = vec![0; layout.bytes(data.rows).unwrap()];
            pack(&data, &mut bytes)?;
            Ok(Packed { bytes: WeightBytes::owned(bytes), stored: false })
        }
    }

    fn normed_product() -> Subgraph {
        let mut b = SubgraphBuilder::new("normed product", 8);
        let x = b.input("x", 20, DType::F32);
        let gain = b.weight(WeightDecl::whole("gain".into(), 1, 20, DType::F32));
        let norm = Op::RmsNorm { weight: Some(gain), eps: 1e-6, offset: 0.0, group: 20 };
        let x = b.op("normed", norm, &[x], 20);
        let weight = b.weight(WeightDecl::whole("w".into(), 17, 20, DType::F32));
        let activations = ActivationFormat::F32;
        let y = b.op("y", Op::Linear { weight, bias: None, activations, form: None }, &[x], 17);
        b.output(y);
        bind_static(&b.finish().unwrap(), 8)
    }

    fn attention() -> Subgraph {
        let mut b = SubgraphBuilder::new("attention", 8);
        let q = b.input("q", 4 * 5, DType::F32);
        let shape = Shape(vec![Dim::KvLen(24), Dim::Fixed(2 * 5)]);
        let caches = ["k", "v"].map(|name| b.state(name, shape.clone(), DType::F16));
        let op = Attention {
            heads: 4,
            kv_heads: 2,
            k_dim: 5,
            v_dim: 5,
            scale: 1.0,
            window: None,
            softcap: None,
            sinks: None,
            value_in_key: false,
            page_group: 0,
            activations: ActivationFormat::F32,
        };
        let y = b.attention(op, q, &caches);
        b.output(y);
        bind_static(&b.finish().unwrap(), 8)
    }

    /// How often each operator is in a written graph, and the sizes of its inputs and weights.
    fn written(graph: &Subgraph, rewrites: &str) -> (impl Fn(&str) -> usize, Vec<Vec<i64>>) {
        let all = rewrites.split(',').filter(|r| !r.is_empty()).map(|r| r.parse().unwrap());
        let rewrites = Rewrites(all.collect());
        let provider = Provider::Reference;
        let options = EmitOptions { provider, rewrites: &rewrites, positions: 24, any_rows: false };
        let files = emit(graph, &Zeros(graph.weights.clone()), options).unwrap().files;
        let bytes = std::fs::read(files.path()).unwrap();
        let graph = ModelProto::decode(&*bytes).unwrap().graph.unwrap();
        let inputs = graph.input.iter().map(|input| {
            let tensor = input.value_type.as_ref().unwrap().tensor_type.as_ref().unwrap();
            tensor.shape.as_ref().unwrap().dim.iter().map(|d| d.value).collect()
        });
        let weights = graph.initializer.iter().map(|w| w.dims.clone());
        let sizes = inputs.chain(weights).collect();
        let ops: Vec<String> = graph.node.iter().map(|n| n.op_type.clone()).collect();
        (move |op: &str| ops.iter().filter(|o| *o == op).count(), sizes)
    }

    #[test]
    fn rows_of_four_bits_are_numbers_unless_floats_are_asked_for() {
        let graph = convert_products(&normed_product(), ActivationFormat::F16Int4);
        let ops = |rewrites| ["DequantizeLinear", "Gemm", "Conv"].map(written(&graph, rewrites).0);
        assert_eq!(ops(""), [1, 1, 0]);
        assert_eq!(ops("linear-as-conv"), [0, 0, 1]);
        let exchanged = form_products(&graph, |_| Some(ProductForm::Exchanged));
        assert_eq!(["DequantizeLinear", "MatMul"].map(written(&exchanged, "").0), [0, 1]);
    }

    #[test]
    fn rewrites_change_what_is_written() {
        let norm = normed_product();
        let (count, sizes) = written(&norm, "");
        assert_eq!(["Pow", "Sqrt", "Gemm", "Conv"].map(count), [1, 1, 1, 0]);
        assert!(sizes.contains(&vec![17, 20]));
        assert_eq!(["Pow", "Sqrt"].map(written(&norm, "pow-to-mul").0), [0, 1]);
        let folded = written(&norm, "fold-epsilon").0;
        assert_eq!(["Pow", "Sqrt", "SimplifiedLayerNormalization"].map(folded), [0, 0, 1]);
        assert_eq!(["Gemm", "Conv"].map(written(&norm, "linear-as-conv").0), [0, 1]);
        let (_, sizes) = written(&norm, "multiples-of-16");
        assert!(sizes.contains(&vec![32, 32]) && !sizes.contains(&vec![17, 20]));
        let grouped = |rows| {
            let graph = form_products(&norm, |_| Some(ProductForm::Groups(rows)));
            ["Gemm", "MatMul", "Reshape"].map(written(&graph, "").0)
        };
        assert_eq!([4, 3, 8].map(grouped), [[0, 1, 2], [1, 0, 0], [1, 0, 0]]);
        let attention = attention();
        let (count, sizes) = written(&attention, "");
        assert_eq!(["Softmax", "Add"].map(count), [1, 1]);
        assert!(sizes.contains(&vec![24, 10]) && sizes.contains(&vec![8, 24]));
        assert_eq!(["Softmax", "Add"].map(written(&attention, "slice-q=8:4").0), [4, 4]);
        assert_eq!(["Softmax", "Add"].map(written(&attention, "slice-q=9:4").0), [1, 1]);
        assert_eq!(["Softmax", "Add"].map(written(&attention, "guard-values").0), [1, 2]);
        let (_, sizes) = written(&attention, "pad-cache");
        assert!(sizes.contains(&vec![32, 16]) && sizes.contains(&vec![8, 32]));
    }
}
