//! Where a product's sums go.

use super::Product;
use crate::kernels::simd::{Lanes, load_part, store_part};

/// Where the sums of one block of columns go.
pub(super) struct Sink<'a, 'b> {
    pub product: &'b Product<'a>,
    /// First block: sets instead of adding.
    pub first: bool,
    /// Last block: adds the bias.
    pub last: bool,
}

impl Sink<'_, '_> {
    /// Adds the sums of weight rows from `n` on, `count` of them.
    ///
    /// # Safety
    /// `row` is the result row and nobody else writes these elements.
    #[inline(always)]
    pub unsafe fn put<V: Lanes>(&self, row: *mut f32, n: usize, count: usize, sums: V) {
        let bias = if self.last { self.product.bias } else { None };
        // SAFETY: by the caller; a bias has as many elements as a result row (`ProductPart::new`).
        unsafe {
            let y = row.add(n);
            let whole = count >= V::N;
            let load = |p: *const f32| if whole { V::load(p) } else { load_part(p, count) };
            let mut v = if self.first { sums } else { load(y).add(sums) };
            if let Some(bias) = bias {
                v = v.add(load(bias[n..].as_ptr()));
            }
            if whole { v.store(y) } else { store_part(v, y, count) }
        }
    }
}
