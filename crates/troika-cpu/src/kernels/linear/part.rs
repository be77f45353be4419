//! Parts of products, checked when they are made.

use std::ops::Range;

use troika_graph::DType;

use super::{Product, panels, worker_floats};
use crate::Isa;

/// A part of a product: some weight rows, some activation rows. Kernels read and write by pointers
/// what [`ProductPart::new`] found to be there; nothing else makes one.
pub(crate) struct ProductPart<'a> {
    pub(super) product: Product<'a>,
    /// Weight rows.
    pub(super) n: Range<usize>,
    /// Activation rows.
    pub(super) m: Range<usize>,
    /// At least [`worker_floats`].
    pub(super) scratch: &'a mut [f32],
    /// Set where it runs.
    pub(super) isa: Isa,
    /// Keeps other modules from making one.
    _checked: (),
}

impl<'a> ProductPart<'a> {
    /// Checks that the weight's bytes fit its shape, that it has the rows `n`, the activations and
    /// results the rows `m`, and that bias and scratch are long enough.
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
        scratch: &'a mut [f32],
    ) -> ProductPart<'a> {
        let w = &product.weight;
        if product.panels {
            let need = panels::bytes(w.dtype, w.rows, w.cols);
            assert_eq!(Some(w.bytes.len()), need, "bytes of panels");
            assert!(n.start.is_multiple_of(panels::ROWS), "a part begins with a panel");
        } else {
            w.check();
        }
        assert!(!product.pairs || w.dtype == DType::BF16, "pairs meet weights of bf16");
        assert!(n.start <= n.end && n.end <= w.rows, "weight rows of a part");
        assert!(product.bias.is_none_or(|b| b.len() == w.rows), "length of a bias");
        let words = if product.pairs { w.cols.div_ceil(2) } else { w.cols };
        assert!(product.x.has(&m, words), "activation rows of a part");
        assert!(product.y.has(&m, w.rows), "result rows of a part");
        assert!(scratch.len() >= worker_floats(), "scratch of a part");
        ProductPart { product, n, m, scratch, isa: Isa::Scalar, _checked: () }
    }
}
