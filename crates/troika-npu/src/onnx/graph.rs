//! Building a model: nodes with constants, inputs and outputs of fixed shape.

use prost::Message;

use super::proto::{
    AttributeProto, DimProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, ShapeProto,
    TensorProto, TensorTypeProto, TypeProto, ValueInfoProto,
};

/// The format's version, and the version of its operators.
const IR_VERSION: i64 = 10;
const OPSET: i64 = 21;

/// Element types, with ONNX's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    F32 = 1,
    U8 = 2,
    I8 = 3,
    U16 = 4,
    I32 = 6,
    I64 = 7,
    F16 = 10,
    Bf16 = 16,
    I4 = 22,
}

/// A node's attribute.
pub enum Attribute {
    Int(&'static str, i64),
    Float(&'static str, f32),
    Ints(&'static str, &'static [i64]),
    Text(&'static str, &'static str),
}

impl Attribute {
    fn proto(&self) -> AttributeProto {
        let named = |name: &str, kind| AttributeProto {
            name: name.into(),
            kind,
            ..AttributeProto::default()
        };
        match *self {
            Attribute::Int(name, i) => AttributeProto { i, ..named(name, 2) },
            Attribute::Float(name, f) => AttributeProto { f, ..named(name, 1) },
            Attribute::Ints(name, ints) => AttributeProto { ints: ints.to_vec(), ..named(name, 7) },
            Attribute::Text(name, s) => AttributeProto { s: s.into(), ..named(name, 3) },
        }
    }
}

/// A model in the making. Nodes are added in the order in which they run.
pub struct OnnxModel {
    graph: GraphProto,
    names: usize,
    /// What the names of nodes begin with.
    scope: String,
}

impl OnnxModel {
    /// A model without nodes.
    pub fn new(name: &str) -> OnnxModel {
        let graph = GraphProto { name: name.into(), ..GraphProto::default() };
        OnnxModel { graph, names: 0, scope: String::new() }
    }

    /// The op that the next nodes compute, and what tells it apart: profilers report nodes by name.
    pub fn scope(&mut self, op: &str, about: &str) {
        self.scope = format!("{op}/{about}/");
    }

    /// A name that nothing has yet.
    fn fresh(&mut self, about: &str) -> String {
        self.names += 1;
        format!("{about}.{}", self.names)
    }

    /// Declares an input.
    pub fn input(&mut self, name: &str, element: ElementType, dims: &[usize]) {
        self.graph.input.push(declared(name, element, dims));
    }

    /// Declares a tensor as an output, under this name.
    pub fn output(&mut self, name: &str, tensor: &str, element: ElementType, dims: &[usize]) {
        self.named_node("Identity", &[tensor], name.into(), &[]);
        self.graph.output.push(declared(name, element, dims));
    }

    /// A constant tensor. Returns its name.
    pub fn constant(&mut self, element: ElementType, dims: &[usize], raw_data: Vec<u8>) -> String {
        let name = self.fresh("constant");
        let dims = dims.iter().map(|d| *d as i64).collect();
        let data_type = element as i32;
        self.graph.initializer.push(TensorProto { dims, data_type, name: name.clone(), raw_data });
        name
    }

    /// A constant tensor of floats. Returns its name.
    pub fn floats(&mut self, dims: &[usize], values: &[f32]) -> String {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(ElementType::F32, dims, bytes)
    }

    /// A constant vector of integers, such as a shape. Returns its name.
    pub fn integers(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(ElementType::I64, &[values.len()], bytes)
    }

    /// Adds a node with one result. Returns the result's name.
    pub fn node(&mut self, op: &str, inputs: &[&str], attributes: &[Attribute]) -> String {
        let result = self.fresh(op);
        self.named_node(op, inputs, result.clone(), attributes);
        result
    }

    fn named_node(&mut self, op: &str, inputs: &[&str], result: String, attributes: &[Attribute]) {
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|i| (*i).to_string()).collect(),
            name: format!("{}{result}", self.scope),
            output: vec![result],
            op_type: op.into(),
            attribute: attributes.iter().map(Attribute::proto).collect(),
        });
    }

    /// The model's bytes: the same calls give the same bytes.
    pub fn bytes(self) -> Vec<u8> {
        let opset = OperatorSetIdProto { domain: String::new(), version: OPSET };
        let graph = Some(self.graph);
        ModelProto { ir_version: IR_VERSION, graph, opset_import: vec![opset] }.encode_to_vec()
    }
}

fn declared(name: &str, element: ElementType, dims: &[usize]) -> ValueInfoProto {
    let dim = dims.iter().map(|d| DimProto { value: *d as i64 }).collect();
    let shape = Some(ShapeProto { dim });
    let tensor_type = Some(TensorTypeProto { elem_type: element as i32, shape });
    ValueInfoProto { name: name.into(), value_type: Some(TypeProto { tensor_type }) }
}
