//! The messages of Core ML's `Model.proto` and `MIL.proto` that a program of fixed shapes needs. The
//! tags are theirs.

#![allow(missing_docs, reason = "the fields are Core ML's, documented there")]

use std::collections::BTreeMap;

use prost::Message;

/// A package's `model.mlmodel`.
#[derive(Clone, PartialEq, Message)]
pub struct MlModel {
    #[prost(int32, tag = "1")]
    pub specification_version: i32,
    #[prost(message, optional, tag = "2")]
    pub description: Option<ModelDescription>,
    #[prost(message, optional, tag = "502")]
    pub ml_program: Option<Program>,
}

/// What callers see. A package of one function has its features here, others have `functions`.
#[derive(Clone, PartialEq, Message)]
pub struct ModelDescription {
    #[prost(message, repeated, tag = "20")]
    pub functions: Vec<FunctionDescription>,
    #[prost(string, tag = "21")]
    pub default_function_name: String,
    #[prost(message, optional, tag = "100")]
    pub metadata: Option<Metadata>,
}

/// A function's features.
#[derive(Clone, PartialEq, Message)]
pub struct FunctionDescription {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub input: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "3")]
    pub output: Vec<FeatureDescription>,
    #[prost(message, repeated, tag = "6")]
    pub state: Vec<FeatureDescription>,
}

/// An input, output or state.
#[derive(Clone, PartialEq, Message)]
pub struct FeatureDescription {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub short_description: String,
    #[prost(message, optional, tag = "3")]
    pub feature_type: Option<FeatureType>,
}

/// A feature's type: one of both.
#[derive(Clone, PartialEq, Message)]
pub struct FeatureType {
    #[prost(message, optional, tag = "5")]
    pub multi_array_type: Option<ArrayFeatureType>,
    #[prost(message, optional, tag = "8")]
    pub state_type: Option<StateFeatureType>,
}

/// An array. Its types of elements have numbers of their own.
#[derive(Clone, PartialEq, Message)]
pub struct ArrayFeatureType {
    #[prost(int64, repeated, tag = "1")]
    pub shape: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub data_type: i32,
}

/// A state.
#[derive(Clone, PartialEq, Message)]
pub struct StateFeatureType {
    #[prost(message, optional, tag = "1")]
    pub array_type: Option<ArrayFeatureType>,
}

/// Who made a package, and what of.
#[derive(Clone, PartialEq, Message)]
pub struct Metadata {
    #[prost(string, tag = "1")]
    pub short_description: String,
    #[prost(string, tag = "2")]
    pub version_string: String,
    #[prost(string, tag = "3")]
    pub author: String,
    #[prost(btree_map = "string, string", tag = "100")]
    pub user_defined: BTreeMap<String, String>,
}

/// Functions by name.
#[derive(Clone, PartialEq, Message)]
pub struct Program {
    #[prost(int64, tag = "1")]
    pub version: i64,
    #[prost(btree_map = "string, message", tag = "2")]
    pub functions: BTreeMap<String, Function>,
}

/// A function: its block is that of its opset.
#[derive(Clone, PartialEq, Message)]
pub struct Function {
    #[prost(message, repeated, tag = "1")]
    pub inputs: Vec<NamedValueType>,
    #[prost(string, tag = "2")]
    pub opset: String,
    #[prost(btree_map = "string, message", tag = "3")]
    pub block_specializations: BTreeMap<String, Block>,
}

/// Operations in the order in which they run.
#[derive(Clone, PartialEq, Message)]
pub struct Block {
    #[prost(string, repeated, tag = "2")]
    pub outputs: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub operations: Vec<Operation>,
}

/// An operation. A constant's value is its attribute `val`.
#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub inputs: BTreeMap<String, Argument>,
    #[prost(message, repeated, tag = "3")]
    pub outputs: Vec<NamedValueType>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub attributes: BTreeMap<String, Value>,
}

/// What an operation's input is bound to; several for lists.
#[derive(Clone, PartialEq, Message)]
pub struct Argument {
    #[prost(message, repeated, tag = "1")]
    pub arguments: Vec<Binding>,
}

/// Another operation's result, or a value: one of both.
#[derive(Clone, PartialEq, Message)]
pub struct Binding {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Value>,
}

/// A name with its type.
#[derive(Clone, PartialEq, Message)]
pub struct NamedValueType {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub value_type: Option<ValueType>,
}

/// A tensor's type, or a state's: one of both.
#[derive(Clone, PartialEq, Message)]
pub struct ValueType {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
    #[prost(message, optional, boxed, tag = "5")]
    pub state_type: Option<Box<StateType>>,
}

/// Elements of a [`DataType`], and dimensions; none for scalars and texts.
#[derive(Clone, PartialEq, Message)]
pub struct TensorType {
    #[prost(int32, tag = "1")]
    pub data_type: i32,
    #[prost(int64, tag = "2")]
    pub rank: i64,
    #[prost(message, repeated, tag = "3")]
    pub dimensions: Vec<Dimension>,
}

/// What a state holds.
#[derive(Clone, PartialEq, Message)]
pub struct StateType {
    #[prost(message, optional, tag = "1")]
    pub wrapped_type: Option<ValueType>,
}

/// A dimension.
#[derive(Clone, PartialEq, Message)]
pub struct Dimension {
    #[prost(message, optional, tag = "1")]
    pub constant: Option<ConstantDimension>,
}

/// A known dimension.
#[derive(Clone, PartialEq, Message)]
pub struct ConstantDimension {
    #[prost(uint64, tag = "1")]
    pub size: u64,
}

/// A value that is here or in the file of weights: one of both.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(message, optional, tag = "2")]
    pub value_type: Option<ValueType>,
    #[prost(message, optional, tag = "3")]
    pub immediate_value: Option<ImmediateValue>,
    #[prost(message, optional, tag = "5")]
    pub blob_file_value: Option<BlobFileValue>,
}

/// A value that is here.
#[derive(Clone, PartialEq, Message)]
pub struct ImmediateValue {
    #[prost(message, optional, tag = "1")]
    pub tensor: Option<TensorValue>,
}

/// Where its blob's header begins, in a file.
#[derive(Clone, PartialEq, Message)]
pub struct BlobFileValue {
    #[prost(string, tag = "1")]
    pub file_name: String,
    #[prost(uint64, tag = "2")]
    pub offset: u64,
}

/// Elements: one of all. Halves are bytes, the lower first.
#[derive(Clone, PartialEq, Message)]
pub struct TensorValue {
    #[prost(message, optional, tag = "1")]
    pub floats: Option<Floats>,
    #[prost(message, optional, tag = "2")]
    pub ints: Option<Ints>,
    #[prost(message, optional, tag = "3")]
    pub bools: Option<Bools>,
    #[prost(message, optional, tag = "4")]
    pub strings: Option<Strings>,
    #[prost(message, optional, tag = "7")]
    pub bytes: Option<Bytes>,
}

/// Floats.
#[derive(Clone, PartialEq, Message)]
pub struct Floats {
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
}

/// Whole numbers.
#[derive(Clone, PartialEq, Message)]
pub struct Ints {
    #[prost(int32, repeated, tag = "1")]
    pub values: Vec<i32>,
}

/// Truths.
#[derive(Clone, PartialEq, Message)]
pub struct Bools {
    #[prost(bool, repeated, tag = "1")]
    pub values: Vec<bool>,
}

/// Texts.
#[derive(Clone, PartialEq, Message)]
pub struct Strings {
    #[prost(string, repeated, tag = "1")]
    pub values: Vec<String>,
}

/// Bytes.
#[derive(Clone, PartialEq, Message)]
pub struct Bytes {
    #[prost(bytes = "vec", tag = "1")]
    pub values: Vec<u8>,
}

/// Types of elements, with MIL's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum DataType {
    Bool = 1,
    String = 2,
    F16 = 10,
    F32 = 11,
    I8 = 21,
    I32 = 23,
    I4 = 25,
    U4 = 35,
}

/// The number of a type of elements among features.
pub const FEATURE_F32: i32 = 65568;
/// See [`FEATURE_F32`].
pub const FEATURE_F16: i32 = 65552;
/// See [`FEATURE_F32`].
pub const FEATURE_I32: i32 = 131_104;
