//! Rows of weights as lanes of f32.

use half::{bf16, f16};
use troika_graph::blocks;

use super::WeightView;
use super::terms::RowReader;
use crate::kernels::simd::{Lanes, MAX_LANES};

/// Plain f32.
pub(crate) struct F32Row;
/// Plain f16.
pub(crate) struct F16Row;
/// Plain bf16.
pub(crate) struct Bf16Row;

/// Rows of plain numbers, by the load of [`Lanes`]: a column per lane, as f32.
macro_rules! plain_rows {
    ($row:ident, $number:ty, $load:ident) => {
        impl RowReader for $row {
            const COLS: usize = 1;
            const WORDS: usize = 1;
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
pub(super) fn widen(w: &WeightView<'_>, n: usize, k: usize, out: &mut [f32]) {
    let (len, bytes) = (w.dtype.block_len(), w.dtype.block_bytes());
    assert!(k.is_multiple_of(len) && out.len().is_multiple_of(len), "whole blocks of a row");
    let start = n * w.row_bytes() + k / len * bytes;
    blocks::dequantize(w.dtype, &w.bytes[start..start + out.len() / len * bytes], out);
}
