//! What a graph is written with: one list of verbs for all forms of files.

use troika_device::DeviceError;
use troika_graph::{ActivationFormat, DType, WeightRef};

pub(super) type Result<T, E = DeviceError> = std::result::Result<T, E>;

/// What one node of a written graph computes. Operands are tensors of floats unless said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Verb<'a> {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Maximum,
    MatMul,
    Abs,
    Exp,
    Gelu,
    GeluTanh,
    Relu,
    Sigmoid,
    Softplus,
    Sqrt,
    Tanh,
    /// `1 / sqrt(x + epsilon)`.
    Rsqrt(f32),
    Clamp {
        low: f32,
        high: f32,
    },
    /// Over the last dimension, which is kept.
    ReduceMax,
    /// As [`Verb::ReduceMax`].
    ReduceMean,
    /// Over the last dimension.
    Softmax,
    /// Rows of a table, by indices `[rows, 1]` of whole numbers.
    Gather,
    /// The same numbers with other dimensions; one of -1 is whatever is left.
    Reshape(&'a [i64]),
    Transpose(&'a [i64]),
    /// Along an axis, of which negative ones count from the last.
    Concat(i64),
    Slice {
        axis: i64,
        from: usize,
        to: usize,
        step: usize,
    },
    Cast(DType),
    /// `x * weight^T + bias`, where the bias may be missing.
    Linear,
    /// The same of images `[1, k, 1, rows]` and weights `[n, k, 1, 1]`.
    Convolution,
}

/// A product on its way.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    pub x: &'a str,
    pub weight: WeightRef,
    pub bias: Option<WeightRef>,
    pub activations: ActivationFormat,
}

/// What an attention sees: keys `[kv_heads, positions, k_dim]`, values `[kv_heads, positions, v_dim]`,
/// and what is added to scores `[rows, positions]`.
pub(crate) struct Seen {
    pub keys: String,
    pub values: String,
    pub mask: String,
    pub positions: usize,
}
