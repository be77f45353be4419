//! bf16 weights packed for products of pairs: word `k` of sixteen weight rows side by side.
//!
//! A row alone then reads one stream of memory instead of sixteen, and turns nothing: on two cores
//! of a Zen 5 that is the difference between two thirds of the memory's bandwidth and all of it.
//! Sums are added in the order of all products (`linear`), so the bits are those of weights as they
//! lie in a file.

use troika_graph::DType;

use super::WeightView;
use super::bf16::{PairsKernel, dispatch_pairs};
use super::pack::{WeightBlock, pack};
use super::terms::Mac;
use crate::Isa;

/// Weight rows of a panel.
pub const ROWS: usize = 16;
/// Bytes of a panel of rows of `cols` columns.
pub fn panel_bytes(cols: usize) -> usize {
    cols.div_ceil(2) * ROWS * 4
}

/// Bytes of a packed weight; `None` when they overflow.
pub(crate) fn bytes(rows: usize, cols: usize) -> Option<usize> {
    cols.div_ceil(2).checked_mul(ROWS * 4)?.checked_mul(rows.div_ceil(ROWS))
}

/// Packs rows of `cols` bf16 as panels; rows behind the last one hold anything.
///
/// # Panics
/// If `out` is not 4-byte aligned, or lengths do not fit.
pub fn pack_panels(isa: Isa, rows: &[u8], cols: usize, out: &mut [u8]) {
    let weight =
        WeightView { dtype: DType::BF16, bytes: rows, rows: rows.len() / (2 * cols), cols };
    weight.check();
    assert_eq!(Some(out.len()), bytes(weight.rows, cols), "bytes of panels");
    dispatch_pairs(isa, Pack { weight, out: bytemuck::cast_slice_mut(out) });
}

struct Pack<'a> {
    weight: WeightView<'a>,
    out: &'a mut [f32],
}

impl PairsKernel for Pack<'_> {
    #[inline(always)]
    unsafe fn run<A: Mac>(self) {
        let (weight, len) = (self.weight, self.weight.cols);
        for (i, to) in self.out.chunks_exact_mut(panel_bytes(len) / 4).enumerate() {
            let n = i * ROWS;
            let block = WeightBlock { weight, n, rows: ROWS.min(weight.rows - n), at: 0, len };
            // SAFETY: features by the caller.
            unsafe { pack::<A>(block, to, ROWS, &mut []) }
        }
    }
}
