//! A subgraph as an ONNX model: fixed shapes, weights inside. Values are f32, also between
//! products in other formats.

mod int4;
mod ops;
mod quantized;

use std::collections::HashMap;

use troika_device::{DeviceError, WeightData, WeightSource};
use troika_graph::blocks::dequantize;
use troika_graph::{DType, Dim, Op, Rope, Subgraph, Value, ValueId, WeightRef, WeightSlice};

use crate::onnx::{ElementType, OnnxModel};
use crate::provider::Provider;

/// A model with what a caller binds.
pub(crate) struct Emitted {
    /// The model's bytes: equal graphs with equal weights give equal bytes.
    pub bytes: Vec<u8>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    /// The number of rows of all inputs and outputs.
    pub rows: usize,
}

/// An input or output.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub name: String,
    pub dtype: DType,
    pub cols: usize,
}

/// Why a provider does not run an op, or `None`.
pub(crate) fn refusal(op: &Op, provider: Provider) -> Option<&'static str> {
    match op {
        Op::Convert if provider == Provider::OpenVino => {
            Some("its compiler does not round to the nearest")
        }
        Op::KvAppend(_) | Op::Attention(_) => {
            Some("its cache grows while it runs, and a graph of fixed shape cannot follow")
        }
        Op::Outliers { .. } => Some("which columns have outliers is known at run time only"),
        Op::Router(_) => Some("which experts a row needs is known at run time only"),
        Op::Experts(_) => Some("which rows an expert gets is known at run time only"),
        Op::Rope(Rope { long: Some(_), .. }) => {
            Some("its frequencies change with the length of the sequence")
        }
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

/// Writes a graph, of which no op is refused, with its weights.
///
/// # Errors
/// A weight that cannot be read, or a graph that is not static.
pub(crate) fn emit(
    graph: &Subgraph,
    weights: &dyn WeightSource,
    provider: Provider,
) -> Result<Emitted, DeviceError> {
    let wrong = |why: String| DeviceError::Submission { task: graph.name.clone(), why };
    let rows = rows_of(graph).map_err(wrong)?;
    let mut model = OnnxModel::new(&graph.name);
    let port = |kind: &str, i: usize, id: &ValueId| {
        let value = graph.value(*id);
        let cols = value.shape.row_len();
        Port { name: format!("{kind}{i}"), dtype: value.dtype, cols }
    };
    let ports = |kind: &str, ids: &[ValueId]| -> Vec<Port> {
        ids.iter().enumerate().map(|(i, id)| port(kind, i, id)).collect()
    };
    let (inputs, outputs) = (ports("in", &graph.inputs), ports("out", &graph.outputs));
    let mut tensors = HashMap::new();
    for (id, port) in graph.inputs.iter().zip(&inputs) {
        model.input(&port.name, element(port.dtype).map_err(wrong)?, &[rows, port.cols]);
        tensors.insert(*id, port.name.clone());
    }
    let mut emitter = Emitter { graph, weights, provider, rows, model, tensors };
    for node in &graph.nodes {
        // What tells ops of a kind apart.
        let about = match (&node.op, node.outputs.first()) {
            (Op::Linear { weight, .. }, _) => &*graph.weight(*weight).name,
            (_, made) => made.map_or("", |made| &*graph.value(*made).name),
        };
        emitter.model.scope(node.op.name(), about);
        emitter.op(node)?;
    }
    let Emitter { mut model, tensors, .. } = emitter;
    for (id, port) in graph.outputs.iter().zip(&outputs) {
        let made = tensors.get(id).ok_or_else(|| wrong(format!("{} is never made", port.name)))?;
        model.output(&port.name, made, element(port.dtype).map_err(wrong)?, &[rows, port.cols]);
    }
    Ok(Emitted { bytes: model.bytes(), inputs, outputs, rows })
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

/// A graph on its way to ONNX.
struct Emitter<'a> {
    graph: &'a Subgraph,
    weights: &'a dyn WeightSource,
    provider: Provider,
    rows: usize,
    model: OnnxModel,
    /// The tensors of the values so far.
    tensors: HashMap<ValueId, String>,
}

impl Emitter<'_> {
    fn value(&self, id: ValueId) -> &Value {
        self.graph.value(id)
    }

    fn cols(&self, id: ValueId) -> usize {
        self.value(id).shape.row_len()
    }

    fn tensor(&self, id: ValueId) -> Result<String, DeviceError> {
        self.tensors.get(&id).cloned().ok_or_else(|| {
            let why = format!("value {} is read before it is made", self.value(id).name);
            self.wrong(why)
        })
    }

    fn wrong(&self, why: String) -> DeviceError {
        DeviceError::Submission { task: self.graph.name.clone(), why }
    }

    /// The rows of a weight that the graph reads, as stored.
    fn stored(&self, weight: WeightRef) -> Result<WeightData, DeviceError> {
        let decl = self.graph.weight(weight);
        let wrong =
            |why: &str| DeviceError::Weight { name: decl.name.to_string(), why: why.into() };
        let data = self.weights.weight(&decl.name)?;
        if (data.rows, data.cols, data.dtype) != (decl.stored().0, decl.stored().1, decl.dtype) {
            return Err(wrong("has another shape or type than its graph says"));
        }
        let rows = data.rows(decl.stored_rows()).ok_or_else(|| wrong("lacks rows"))?;
        match rows.dtype.row_bytes(rows.rows * rows.cols) == Some(rows.bytes.len()) {
            true => Ok(rows),
            false => Err(wrong("has another number of bytes than its shape needs")),
        }
    }

    /// A weight's numbers, row by row.
    fn read(&self, weight: WeightRef) -> Result<Vec<f32>, DeviceError> {
        let (whole, decl) = (self.stored(weight)?, self.graph.weight(weight));
        let mut values = vec![0.0; whole.rows * whole.cols];
        dequantize(whole.dtype, &whole.bytes, &mut values);
        if let Some(WeightSlice::Cols { .. }) = decl.slice {
            values = values[decl.stored_cols()].to_vec();
        }
        Ok(values)
    }

    /// A weight as a constant `[rows, cols]`.
    fn matrix(&mut self, weight: WeightRef) -> Result<String, DeviceError> {
        let values = self.read(weight)?;
        let decl = self.graph.weight(weight);
        Ok(self.model.floats(&[decl.rows, decl.cols], &values))
    }

    /// A weight of one row as a constant `[cols]`, with something added to each number.
    fn vector(&mut self, weight: WeightRef, plus: f32) -> Result<String, DeviceError> {
        let values: Vec<f32> = self.read(weight)?.iter().map(|v| v + plus).collect();
        Ok(self.model.floats(&[values.len()], &values))
    }
}
