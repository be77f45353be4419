//! Building a model: nodes with constants, inputs and outputs. Large constants go to a file beside
//! the model's, so that no runtime has a copy of them, and a model may have more than 2 GB.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use prost::Message;
use tempfile::TempDir;

use super::proto::{
    AttributeProto, DimProto, EntryProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    ShapeProto, TensorProto, TensorTypeProto, TypeProto, ValueInfoProto,
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
    U4 = 21,
    I4 = 22,
}

/// The name of the file with large constants.
const DATA: &str = "weights.bin";
/// Constants of more bytes go there. Compilers see the numbers of smaller ones.
const LARGE: usize = 4096;
/// Where constants begin there: a multiple that can be mapped.
const PAGE: u64 = 4096;

/// A node's attribute.
pub enum Attribute<'a> {
    Int(&'static str, i64),
    Float(&'static str, f32),
    Ints(&'static str, &'a [i64]),
    Text(&'static str, &'static str),
}

impl Attribute<'_> {
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
    data: Data,
}

/// The file with large constants.
struct Data {
    folder: TempDir,
    file: File,
    hash: blake3::Hasher,
    /// Bytes so far.
    at: u64,
    /// The first error.
    failed: std::io::Result<()>,
}

impl Data {
    /// Adds a constant. Returns where it begins.
    fn add(&mut self, bytes: &[u8]) -> u64 {
        let start = self.at.next_multiple_of(PAGE);
        self.hash.update(bytes);
        self.at = start + bytes.len() as u64;
        if self.failed.is_ok() {
            let found = self.file.seek(SeekFrom::Start(start));
            self.failed = found.and_then(|_| self.file.write_all(bytes));
        }
        start
    }
}

/// A model in files.
pub struct OnnxFiles {
    folder: TempDir,
    /// A hash of all of it: the same calls give the same.
    pub hash: blake3::Hash,
}

impl OnnxFiles {
    /// The model's file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("model.onnx")
    }

    /// The folder with both files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Deletes them. Where the system cannot delete what is mapped, dropping this does.
    pub fn delete(&self) {
        let _ = std::fs::remove_dir_all(self.folder());
    }
}

impl OnnxModel {
    /// A model without nodes.
    ///
    /// # Errors
    /// There is no file for its constants.
    pub fn new(name: &str) -> std::io::Result<OnnxModel> {
        let graph = GraphProto { name: name.into(), ..GraphProto::default() };
        let folder = tempfile::tempdir()?;
        let file = File::create_new(folder.path().join(DATA))?;
        let data = Data { folder, file, hash: blake3::Hasher::new(), at: 0, failed: Ok(()) };
        Ok(OnnxModel { graph, names: 0, scope: String::new(), data })
    }

    /// The op that the next nodes compute, and what tells it apart: profilers report nodes by name.
    pub fn scoped(&mut self, op: &str, about: &str) {
        self.scope = format!("{op}/{about}/");
    }

    /// A name that nothing has yet.
    fn fresh(&mut self, about: &str) -> String {
        self.names += 1;
        format!("{about}.{}", self.names)
    }

    /// Declares an input.
    pub fn declare(&mut self, name: &str, element: ElementType, dims: &[usize]) {
        self.graph.input.push(declared(name, element, dims));
    }

    /// Declares a tensor as an output, under this name.
    pub fn declare_output(
        &mut self,
        name: &str,
        tensor: &str,
        element: ElementType,
        dims: &[usize],
    ) {
        self.named_node("Identity", &[tensor], name.into(), &[]);
        self.graph.output.push(declared(name, element, dims));
    }

    /// A constant tensor. Returns its name.
    pub fn constant(&mut self, element: ElementType, dims: &[usize], raw_data: Vec<u8>) -> String {
        let dims = dims.iter().map(|d| *d as i64).collect();
        let (data_type, name) = (element as i32, self.fresh("constant"));
        let mut tensor = TensorProto { dims, data_type, name, ..TensorProto::default() };
        let name = tensor.name.clone();
        if raw_data.len() > LARGE {
            let (start, len) = (self.data.add(&raw_data).to_string(), raw_data.len().to_string());
            let entries = [("location", DATA.into()), ("offset", start), ("length", len)];
            let entry = |(key, value): (&str, String)| EntryProto { key: key.into(), value };
            tensor.external_data = entries.map(entry).into();
            tensor.data_location = 1;
        } else {
            tensor.raw_data = raw_data;
        }
        self.graph.initializer.push(tensor);
        name
    }

    /// A constant vector of integers, such as a shape. Returns its name.
    pub fn integers(&mut self, values: &[i64]) -> String {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.constant(ElementType::I64, &[values.len()], bytes)
    }

    /// Adds a node with one result. Returns the result's name.
    pub fn node(&mut self, op: &str, inputs: &[&str], attributes: &[Attribute<'_>]) -> String {
        let result = self.fresh(op);
        self.named_node(op, inputs, result.clone(), attributes);
        result
    }

    fn named_node(
        &mut self,
        op: &str,
        inputs: &[&str],
        result: String,
        attributes: &[Attribute<'_>],
    ) {
        self.graph.node.push(NodeProto {
            input: inputs.iter().map(|i| (*i).to_string()).collect(),
            name: format!("{}{result}", self.scope),
            output: vec![result],
            op_type: op.into(),
            attribute: attributes.iter().map(Attribute::proto).collect(),
        });
    }

    /// The model in files.
    pub fn files(self) -> std::io::Result<OnnxFiles> {
        let opset = OperatorSetIdProto { domain: String::new(), version: OPSET };
        let graph = Some(self.graph);
        let model = ModelProto { ir_version: IR_VERSION, graph, opset_import: vec![opset] };
        let model = model.encode_to_vec();
        let Data { folder, mut hash, failed, .. } = self.data;
        failed?;
        let files = OnnxFiles { folder, hash: hash.update(&model).finalize() };
        std::fs::write(files.path(), &model)?;
        Ok(files)
    }
}

fn declared(name: &str, element: ElementType, dims: &[usize]) -> ValueInfoProto {
    // Zero stands for any number of rows.
    let dim = |d: &usize| {
        let param = if *d == 0 { "rows" } else { "" };
        DimProto { value: *d as i64, param: param.into() }
    };
    let dim = dims.iter().map(dim).collect();
    let shape = Some(ShapeProto { dim });
    let tensor_type = Some(TensorTypeProto { elem_type: element as i32, shape });
    ValueInfoProto { name: name.into(), value_type: Some(TypeProto { tensor_type }) }
}
