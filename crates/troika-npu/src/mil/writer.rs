//! A function of a program on its way: operations with constants, inputs, states and outputs. All
//! floats are halves.

use std::collections::{BTreeMap, HashMap, HashSet};

use troika_graph::DType;

use super::blob::Blobs;
use super::kept::{Kept, PackageWeights, cache_name};
use super::proto::{
    Argument, Binding, BlobFileValue, Block, Bools, Bytes, DataType, Floats, Function,
    ImmediateValue, Ints, NamedValueType, Operation, StateType, Strings, TensorValue, Value,
    ValueType,
};
use super::types::{Arg, MilType};
use super::verbs;
use crate::emit::verb::Verb;
use crate::emit::{GraphWriter, half_bytes};

/// The opset of iOS 18 and macOS 15, which has states.
const OPSET: &str = "CoreML8";
/// Constants of more bytes are blobs.
const LARGE: usize = 64;
/// The name of the file of weights in a program.
const WEIGHTS: &str = "@model_path/weights/weight.bin";

/// A function in the making.
pub(crate) struct MilWriter<'a> {
    blobs: &'a mut Blobs,
    /// How products' weights are stored.
    pub weights: PackageWeights,
    /// What the function keeps of a sequence; `None`: the host keeps it.
    pub kept: Option<Kept>,
    /// The tensors of the residual stream that are divided; `None`: none is.
    pub divided: Option<HashSet<String>>,
    function: Function,
    block: Block,
    types: HashMap<String, MilType>,
    /// The halves of inputs of floats.
    halved: HashMap<String, String>,
    /// Constants so far, by their bytes.
    constants: HashMap<(DataType, Vec<usize>, Vec<u8>), String>,
    names: usize,
    /// What the names of operations begin with.
    scope: String,
}

impl<'a> MilWriter<'a> {
    pub fn new(blobs: &'a mut Blobs, weights: PackageWeights) -> MilWriter<'a> {
        MilWriter {
            blobs,
            weights,
            kept: None,
            divided: None,
            function: Function { opset: OPSET.into(), ..Function::default() },
            block: Block::default(),
            types: HashMap::new(),
            halved: HashMap::new(),
            constants: HashMap::new(),
            names: 0,
            scope: String::new(),
        }
    }

    /// The op that the next operations compute, and what tells it apart. Names are identifiers.
    pub fn scoped(&mut self, op: &str, about: &str) {
        let kept = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        self.scope = format!("{op}_{about}_").chars().map(kept).collect();
    }

    /// Declares an input.
    pub fn declare(&mut self, name: &str, of: MilType) {
        self.function.inputs.push(named(name, of.proto()));
        self.types.insert(name.into(), of);
    }

    /// Declares a state.
    pub fn declare_state(&mut self, name: &str, of: MilType) {
        let state = Box::new(StateType { wrapped_type: Some(of.proto()) });
        let of_state = ValueType { tensor_type: None, state_type: Some(state) };
        self.function.inputs.push(named(name, of_state));
        self.types.insert(name.into(), of);
    }

    /// Declares an input of the host's type. Of floats, the halves are what operations take.
    pub fn bound(&mut self, name: &str, dtype: DType, dims: &[usize]) {
        let element = match dtype {
            DType::I32 => DataType::I32,
            DType::F16 => DataType::F16,
            _ => DataType::F32,
        };
        let of = MilType { element, dims: dims.to_vec() };
        self.declare(name, of.clone());
        if element == DataType::F32 {
            // What halves may not hold is divided before.
            let divided = self.divisor().filter(|_| self.is_divided(name)).map(|by| {
                let args = [("x", Arg::Tensor(name)), ("y", Arg::Float(1.0 / by))];
                self.op("mul", &args, of)
            });
            let x = divided.as_deref().unwrap_or(name);
            let args = [("x", Arg::Tensor(x)), ("dtype", Arg::Text("fp16"))];
            let halves = self.op("cast", &args, MilType::halves(dims));
            self.halved.insert(name.into(), halves);
        }
    }

    /// Declares a tensor as an output, under this name and of a type. One that is divided is not there.
    pub fn result_as(&mut self, name: &str, tensor: &str, dtype: DType) {
        let (of, mut x) = (self.type_of(tensor), tensor.to_string());
        let floats = MilType { element: DataType::F32, dims: of.dims.clone() };
        let to_floats = ("dtype", Arg::Text("fp32"));
        let by = self.divisor().filter(|_| self.is_divided(tensor));
        let (kind, other, of) = match (dtype, by) {
            (DType::F32, None) => ("cast", Some(to_floats), floats),
            (DType::F32, Some(by)) => {
                x = self.op("cast", &[("x", Arg::Tensor(&x)), to_floats], floats.clone());
                ("mul", Some(("y", Arg::Float(by))), floats)
            }
            (_, None) => ("identity", None, of),
            (_, Some(by)) => ("mul", Some(("y", Arg::Half(by))), of),
        };
        let args: Vec<_> = std::iter::once(("x", Arg::Tensor(&x))).chain(other).collect();
        self.add(kind, &args, Some((name.to_string(), of)));
        self.block.outputs.push(name.into());
    }

    pub fn type_of(&self, tensor: &str) -> MilType {
        let tensor = self.halved.get(tensor).map_or(tensor, String::as_str);
        self.types.get(tensor).cloned().unwrap_or_else(|| MilType::halves([]))
    }

    pub fn dims(&self, tensor: &str) -> Vec<usize> {
        self.type_of(tensor).dims
    }

    /// The function with the types of its outputs.
    pub fn finish(mut self) -> (Function, Vec<(String, MilType)>) {
        let outputs = self.block.outputs.iter().map(|o| (o.clone(), self.type_of(o))).collect();
        self.function.block_specializations = BTreeMap::from([(OPSET.to_string(), self.block)]);
        (self.function, outputs)
    }

    fn fresh(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{}{kind}_{}", self.scope, self.names)
    }

    /// Adds an operation with one result. Returns its name.
    pub fn op(&mut self, kind: &str, args: &[(&str, Arg<'_>)], result: MilType) -> String {
        let name = self.fresh(kind);
        self.add(kind, args, Some((name.clone(), result)));
        name
    }

    /// The last value of a state.
    pub fn state(&mut self, which: usize, window: Option<usize>) -> String {
        let state = cache_name(which, window);
        let tensor = |kept: &mut Kept| Some(kept.cache(window)?.tensors[which].clone());
        match self.kept.as_mut().and_then(tensor) {
            Some(known) if known != state => known,
            _ => {
                let of = self.type_of(&state);
                self.op("read_state", &[("input", Arg::Tensor(&state))], of)
            }
        }
    }

    /// Writes keys or values of a layer into their state, from a position on. Later reads get what a
    /// second read gives, since compilers may merge reads.
    pub fn update(
        &mut self,
        (which, window): (usize, Option<usize>),
        new: &str,
        layer: usize,
        at: &str,
    ) {
        let (state, size) = (&*cache_name(which, window), self.dims(new));
        let begin = self.ends(&["", "", at, ""], &[layer, 0, 0, 0]);
        let end = self.ends(&["", "", at, ""], &[layer + 1, size[1], size[2], size[3]]);
        let (of, cache) = (self.type_of(state), self.state(which, window));
        let args = [
            ("x", Arg::Tensor(&cache)),
            ("update", Arg::Tensor(new)),
            ("begin", Arg::Tensor(&begin)),
            ("end", Arg::Tensor(&end)),
        ];
        let all = self.op("slice_update", &args, of.clone());
        self.add(
            "write_state",
            &[("input", Arg::Tensor(state)), ("data", Arg::Tensor(&all))],
            None,
        );
        let read = self.op("read_state", &[("input", Arg::Tensor(state))], of);
        let own = self.kept.as_mut().and_then(|kept| kept.cache(window));
        own.into_iter().for_each(|own| own.tensors[which].clone_from(&read));
    }

    fn add(&mut self, kind: &str, args: &[(&str, Arg<'_>)], result: Option<(String, MilType)>) {
        let bound: Vec<_> = args.iter().map(|(n, a)| ((*n).to_string(), self.bind(a))).collect();
        self.push(kind, bound.into_iter().collect(), BTreeMap::new(), result);
    }

    fn push(
        &mut self,
        kind: &str,
        inputs: BTreeMap<String, Argument>,
        mut attributes: BTreeMap<String, Value>,
        result: Option<(String, MilType)>,
    ) {
        let name = result.as_ref().map_or_else(|| self.fresh(kind), |(name, _)| name.clone());
        attributes.insert("name".into(), text(&name));
        let outputs = result.iter().map(|(name, of)| named(name, of.proto())).collect();
        self.types.extend(result);
        self.block.operations.push(Operation { kind: kind.into(), inputs, outputs, attributes });
    }

    fn bind(&mut self, arg: &Arg<'_>) -> Argument {
        let names = match arg {
            Arg::Tensor(name) => vec![self.halved.get(*name).map_or(*name, |h| h).to_string()],
            Arg::Tensors(names) => names.iter().map(|n| (*n).to_string()).collect(),
            Arg::Int(v) => vec![self.integers(&[], &[*v])],
            Arg::Ints(values) => vec![self.integers(&[values.len()], values)],
            Arg::Half(v) => vec![self.halves(&[], &[*v])],
            Arg::Float(v) => {
                let key = (DataType::F32, Vec::new(), v.to_le_bytes().to_vec());
                let floats = Some(Floats { values: vec![*v] });
                let of = MilType::scalar(DataType::F32);
                let floats = TensorValue { floats, ..TensorValue::default() };
                vec![self.constant(key, |_| immediate(&of, floats))]
            }
            Arg::Bool(v) => vec![self.truths(&[], &[*v])],
            Arg::Bools(values) => vec![self.truths(&[values.len()], values)],
            Arg::Text(v) => {
                let key = (DataType::String, Vec::new(), v.as_bytes().to_vec());
                vec![self.constant(key, |_| text(v))]
            }
        };
        let binding = |name| Binding { name: Some(name), value: None };
        Argument { arguments: names.into_iter().map(binding).collect() }
    }

    /// A constant, which is written once.
    fn constant(
        &mut self,
        key: (DataType, Vec<usize>, Vec<u8>),
        value: impl FnOnce(&mut Self) -> Value,
    ) -> String {
        if let Some(known) = self.constants.get(&key) {
            return known.clone();
        }
        let (name, val) = (self.fresh("const"), value(self));
        let of = MilType { element: key.0, dims: key.1.clone() };
        let attributes = BTreeMap::from([("val".to_string(), val)]);
        self.push("const", BTreeMap::new(), attributes, Some((name.clone(), of)));
        self.constants.insert(key, name.clone());
        name
    }

    pub fn integers(&mut self, dims: &[usize], values: &[i64]) -> String {
        let values: Vec<i32> = values.iter().map(|v| *v as i32).collect();
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let of = MilType { element: DataType::I32, dims: dims.to_vec() };
        let ints = TensorValue { ints: Some(Ints { values }), ..TensorValue::default() };
        self.constant((of.element, of.dims.clone(), bytes), |_| immediate(&of, ints))
    }

    fn truths(&mut self, dims: &[usize], values: &[bool]) -> String {
        let bytes = values.iter().map(|v| u8::from(*v)).collect();
        let of = MilType { element: DataType::Bool, dims: dims.to_vec() };
        let bools = Some(Bools { values: values.to_vec() });
        let bools = TensorValue { bools, ..TensorValue::default() };
        self.constant((of.element, of.dims.clone(), bytes), |_| immediate(&of, bools))
    }

    /// A constant tensor of halves.
    pub fn halves(&mut self, dims: &[usize], values: &[f32]) -> String {
        let bytes = half_bytes(values);
        let of = MilType::halves(dims);
        if bytes.len() > LARGE {
            let key = blake3::hash(&bytes).to_string();
            return self.blob(key, of, || bytes);
        }
        let value = Bytes { values: bytes.clone() };
        let value = TensorValue { bytes: Some(value), ..TensorValue::default() };
        self.constant((of.element, of.dims.clone(), bytes), |_| immediate(&of, value))
    }

    /// Whether the file of weights has a blob.
    pub fn knows(&self, key: &str) -> bool {
        self.blobs.known(key).is_some()
    }

    /// A constant in the file of weights, if the file has it.
    pub fn known_blob(&mut self, key: &str, element: DataType, dims: &[usize]) -> Option<String> {
        let of = MilType { element, dims: dims.to_vec() };
        self.knows(key).then(|| self.blob(key.into(), of, Vec::new))
    }

    /// A constant in the file of weights, whose bytes are asked for unless the file has the key.
    pub fn blob(&mut self, key: String, of: MilType, bytes: impl FnOnce() -> Vec<u8>) -> String {
        let value = self.blob_value(&key, &of, bytes);
        self.constant((of.element, of.dims, key.into_bytes()), |_| value)
    }

    /// Such a constant as a value.
    pub fn blob_value(
        &mut self,
        key: &str,
        of: &MilType,
        bytes: impl FnOnce() -> Vec<u8>,
    ) -> Value {
        let offset = self.blobs.known(key).unwrap_or_else(|| {
            self.blobs.add(key.into(), of.element, of.dims.iter().product(), &bytes())
        });
        let blob_file_value = Some(BlobFileValue { file_name: WEIGHTS.into(), offset });
        Value { value_type: Some(of.proto()), immediate_value: None, blob_file_value }
    }

    /// Numbers times the scales of their blocks. Values are bound as they are: no constants.
    pub fn scaled(&mut self, numbers: Value, scales: Value, dims: &[usize]) -> String {
        let bound =
            |value| Argument { arguments: vec![Binding { name: None, value: Some(value) }] };
        let inputs = [("data", bound(numbers)), ("scale", bound(scales))];
        let inputs = inputs.map(|(name, value)| (name.to_string(), value)).into();
        let kind = "constexpr_blockwise_shift_scale";
        let name = self.fresh(kind);
        self.push(kind, inputs, BTreeMap::new(), Some((name.clone(), MilType::halves(dims))));
        name
    }

    /// So many of each dimension, from a tensor's numbers on.
    pub fn sized(&mut self, x: &str, begin: &str, size: &[usize]) -> String {
        let sizes = Arg::Ints(size.iter().map(|n| *n as i64).collect());
        let args = [("x", Arg::Tensor(x)), ("begin", Arg::Tensor(begin)), ("size", sizes)];
        self.op("slice_by_size", &args, MilType { dims: size.to_vec(), ..self.type_of(x) })
    }

    /// Some of each dimension, without the first if it is one.
    pub fn part(&mut self, x: &str, begin: &[usize], end: &[usize], squeeze: bool) -> String {
        let ints = |list: &[usize]| Arg::Ints(list.iter().map(|n| *n as i64).collect());
        let mut dims: Vec<usize> = begin.iter().zip(end).map(|(b, e)| e - b).collect();
        let mut args = vec![("x", Arg::Tensor(x)), ("begin", ints(begin)), ("end", ints(end))];
        if squeeze {
            args.push(("squeeze_mask", Arg::Bools((0..dims.len()).map(|i| i == 0).collect())));
            dims.remove(0);
        }
        let element = self.type_of(x).element;
        self.op("slice_by_index", &args, MilType { element, dims })
    }

    /// Adds what a verb says.
    pub fn written(&mut self, verb: Verb<'_>, inputs: &[&str]) -> String {
        let x = inputs[0];
        let (of, other) = (self.type_of(x), inputs.get(1).map_or(Vec::new(), |y| self.dims(y)));
        let element = match verb {
            Verb::Concat(axis) => return self.joined(inputs, axis),
            Verb::Cast(DType::I32) => DataType::I32,
            Verb::Cast(_) => DataType::F16,
            _ => of.element,
        };
        if matches!(verb, Verb::Cast(_)) && element == of.element {
            return x.to_string();
        }
        let dims = verbs::dims(verb, &of.dims, &other);
        let (kind, names, own) = verbs::operation(verb, &of.dims, &dims);
        let operands = names.iter().zip(inputs).map(|(name, tensor)| (*name, Arg::Tensor(tensor)));
        let args: Vec<_> = operands.chain(own).collect();
        self.op(kind, &args, MilType { element, dims })
    }

    /// Tensors side by side along an axis.
    pub fn joined(&mut self, parts: &[&str], axis: i64) -> String {
        let mut of = self.type_of(parts[0]);
        let rank = of.dims.len() as i64;
        let at = (if axis < 0 { rank + axis } else { axis }) as usize;
        of.dims[at] = parts.iter().map(|p| self.dims(p)[at]).sum();
        let values = ("values", Arg::Tensors(parts.to_vec()));
        let args = [values, ("axis", Arg::Int(axis)), ("interleave", Arg::Bool(false))];
        self.op("concat", &args, of)
    }
}

fn named(name: &str, of: ValueType) -> NamedValueType {
    NamedValueType { name: name.into(), value_type: Some(of) }
}

fn immediate(of: &MilType, tensor: TensorValue) -> Value {
    let immediate_value = Some(ImmediateValue { tensor: Some(tensor) });
    Value { value_type: Some(of.proto()), immediate_value, blob_file_value: None }
}

fn text(value: &str) -> Value {
    let strings = Some(Strings { values: vec![value.into()] });
    let of = MilType::scalar(DataType::String);
    immediate(&of, TensorValue { strings, ..TensorValue::default() })
}
