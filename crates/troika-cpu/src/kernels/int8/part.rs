//! Products, and parts of them, checked when they are made.

use std::ops::Range;

use super::quantize::{Quantization, floats};
use crate::kernels::linear::{OutView, RowsView};
use crate::kernels::quantized::wide::SCRATCH;
use crate::kernels::quantized::{GROUP, PackedView, ROWS};

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

/// A part of a product: some weight rows, some activation rows. Kernels read and write by pointers
/// what [`Int8Part::new`] found to be there; nothing else makes one.
pub(crate) struct Int8Part<'a> {
    pub(super) product: Product<'a>,
    /// Weight rows, from the first row of a panel on.
    pub(super) n: Range<usize>,
    /// Activation rows.
    pub(super) m: Range<usize>,
    /// Weight row that belongs to the first column of the results.
    pub(super) origin: usize,
    /// At least [`SCRATCH`] floats.
    pub(super) scratch: &'a mut [f32],
    /// Keeps other modules from making one.
    _checked: (),
}

impl<'a> Int8Part<'a> {
    /// Checks that the weight's bytes fit its layout, that it has the rows `n`, the activations and
    /// results the rows `m`, and that bias and scratch are long enough. Results begin with weight
    /// row `origin`.
    ///
    /// # Safety
    /// While the part is there, nobody else accesses the results of these rows.
    ///
    /// # Panics
    /// If something does not fit.
    #[inline]
    pub unsafe fn new(
        product: Product<'a>,
        n: Range<usize>,
        m: Range<usize>,
        origin: usize,
        scratch: &'a mut [f32],
    ) -> Int8Part<'a> {
        let layout = &product.weight.layout;
        assert_eq!(product.weight.bytes.len(), layout.bytes(), "bytes of a packed weight");
        assert!(!layout.stored, "panels of a part");
        let panels =
            n.start.is_multiple_of(ROWS) && (n.end.is_multiple_of(ROWS) || n.end == layout.rows);
        assert!(n.start <= n.end && n.end <= layout.rows && panels, "weight rows of a part");
        assert!(origin <= n.start, "first row of the results");
        assert!(product.bias.is_none_or(|b| b.len() == layout.rows), "length of a bias");
        let width = floats(layout.cols);
        assert!(layout.cols.is_multiple_of(GROUP), "columns of a part");
        assert!(product.x.has(&m, width), "activation rows of a part");
        assert!(product.y.has(&m, n.end - origin), "result rows of a part");
        assert!(scratch.len() >= SCRATCH, "scratch of a part");
        Int8Part { product, n, m, origin, scratch, _checked: () }
    }
}
