//! Types of tensors, and what operations' parameters are bound to.

use super::proto::{ConstantDimension, DataType, Dimension, TensorType, ValueType};

/// The type of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MilType {
    pub element: DataType,
    pub dims: Vec<usize>,
}

impl MilType {
    pub fn halves(dims: impl Into<Vec<usize>>) -> MilType {
        MilType { element: DataType::F16, dims: dims.into() }
    }

    pub fn scalar(element: DataType) -> MilType {
        MilType { element, dims: Vec::new() }
    }

    pub fn proto(&self) -> ValueType {
        let size = |d: &usize| ConstantDimension { size: *d as u64 };
        let dimensions = self.dims.iter().map(|d| Dimension { constant: Some(size(d)) }).collect();
        let (data_type, rank) = (self.element as i32, self.dims.len() as i64);
        let tensor_type = Some(TensorType { data_type, rank, dimensions });
        ValueType { tensor_type, state_type: None }
    }
}

/// What an operation's parameter is bound to.
pub(crate) enum Arg<'a> {
    Tensor(&'a str),
    Tensors(Vec<&'a str>),
    Int(i64),
    Ints(Vec<i64>),
    Half(f32),
    Float(f32),
    Bool(bool),
    Bools(Vec<bool>),
    Text(&'static str),
}
