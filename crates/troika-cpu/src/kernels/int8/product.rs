//! What the kernels compute.

use super::quantize::Quantization;
use crate::kernels::linear::{OutView, RowsView};
use crate::kernels::quantized::PackedView;

/// A product: quantized rows times the transpose of a packed weight.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// The weight.
    pub weight: PackedView<'a>,
    /// Added to each row.
    pub bias: Option<&'a [f32]>,
    /// The activations, [`super::floats`] floats a row.
    pub x: RowsView<'a>,
    /// How they were quantized, for this weight.
    pub quantization: Quantization,
    /// Where results go.
    pub y: OutView<'a>,
}
