//! Rows of weights as lanes of f32.

use half::{bf16, f16};
use troika_graph::{DType, blocks};

use super::WeightView;
use crate::kernels::simd::{Lanes, MAX_LANES};

/// Loads lanes from a row of some type.
pub(crate) trait RowLoad {
    /// Lanes `i..i + N` of the row at `row`; `i` is a multiple of `N`.
    ///
    /// # Safety
    /// A row with these elements.
    unsafe fn load<V: Lanes>(row: *const u8, i: usize) -> V;

    /// The last `n < N` elements, from `i` on, and zeros.
    ///
    /// # Safety
    /// As for `load`.
    #[inline(always)]
    unsafe fn tail<V: Lanes>(_row: *const u8, _i: usize, _n: usize) -> V {
        unreachable!("rows of blocks have no tail")
    }
}

/// Plain f32.
pub(crate) struct F32Row;
/// Plain f16.
pub(crate) struct F16Row;
/// Plain bf16.
pub(crate) struct Bf16Row;

/// Rows of plain numbers, by the load of [`Lanes`].
macro_rules! plain_rows {
    ($row:ident, $number:ty, $load:ident) => {
        impl RowLoad for $row {
            #[inline(always)]
            unsafe fn load<V: Lanes>(row: *const u8, i: usize) -> V {
                // SAFETY: the row has these elements.
                unsafe { V::$load(row.add(i * size_of::<$number>()).cast()) }
            }
            #[inline(always)]
            unsafe fn tail<V: Lanes>(row: *const u8, i: usize, n: usize) -> V {
                const SIZE: usize = size_of::<$number>();
                let mut buf = [<$number>::default(); MAX_LANES];
                // SAFETY: the row has these elements, fewer than the buffer.
                unsafe {
                    // As bytes: the row may be unaligned.
                    let (from, bytes) = (row.add(i * SIZE), n.min(MAX_LANES) * SIZE);
                    std::ptr::copy_nonoverlapping(from, buf.as_mut_ptr().cast(), bytes);
                    V::$load(buf.as_ptr())
                }
            }
        }
    };
}
plain_rows!(F32Row, f32, load);
plain_rows!(F16Row, f16, load_f16);
plain_rows!(Bf16Row, bf16, load_bf16);

/// Columns `k..k + out.len()` of row `n` as f32, whole blocks.
#[inline(always)]
pub(super) fn widen<V: Lanes>(w: &WeightView<'_>, n: usize, k: usize, out: &mut [f32]) {
    let (len, bytes) = (w.dtype.block_len(), w.dtype.block_bytes());
    assert!(k.is_multiple_of(len) && out.len().is_multiple_of(len), "whole blocks of a row");
    let start = n * w.row_bytes() + k / len * bytes;
    let from = &w.bytes[start..start + out.len() / len * bytes];
    // SAFETY: `from` holds exactly the elements of `out`.
    unsafe {
        match w.dtype {
            DType::F16 => widen_row::<V, F16Row>(from.as_ptr(), out),
            DType::BF16 => widen_row::<V, Bf16Row>(from.as_ptr(), out),
            // Products have them in panels.
            other => blocks::dequantize(other, from, out),
        }
    }
}

/// A row's elements as f32.
///
/// # Safety
/// The row has as many elements as `out`.
#[inline(always)]
unsafe fn widen_row<V: Lanes, R: RowLoad>(row: *const u8, out: &mut [f32]) {
    let whole = out.len() / V::N * V::N;
    let rest = out.len() - whole;
    let to = out.as_mut_ptr();
    let mut i = 0;
    // SAFETY: by the caller.
    unsafe {
        while i < whole {
            R::load::<V>(row, i).store(to.add(i));
            i += V::N;
        }
        if rest > 0 {
            let tail = R::tail::<V>(row, whole, rest);
            crate::kernels::simd::store_part(tail, to.add(whole), rest);
        }
    }
}
