//! What a product adds up, word by word.
//!
//! A *word* is 32 bits of an activation row: an f32, or a pair of bf16. The kernels hold weights
//! as registers with a lane per weight row; a word meets all lanes at once. So an element of the
//! result is one chain of additions in the order of the columns, whatever the lanes.

use std::marker::PhantomData;

use crate::kernels::simd::{Lanes, MAX_LANES, Mac};

/// Single precision, fused where the instruction set can.
pub(crate) struct Float<V>(PhantomData<V>);

impl<V: Lanes> Mac for Float<V> {
    type V = V;
    const PAIRS: bool = false;
    #[inline(always)]
    fn mac(x: V, w: V, acc: V) -> V {
        x.fma(w, acc)
    }
}

/// How a row of weights is read: 32-bit lanes of one or two columns, which meet one or two words.
pub(crate) trait RowReader {
    /// Columns of a lane.
    const COLS: usize;
    /// Words of a lane.
    const WORDS: usize;

    /// Lanes of the columns from `i` on; `i` is a multiple of all lanes' columns.
    ///
    /// # Safety
    /// A row with these columns.
    unsafe fn load<V: Lanes>(row: *const u8, i: usize) -> V;

    /// The last `n` columns, fewer than all lanes', from `i` on, and zeros.
    ///
    /// # Safety
    /// As for `load`.
    unsafe fn tail<V: Lanes>(row: *const u8, i: usize, n: usize) -> V;

    /// What meets word `w` of the lanes.
    #[inline(always)]
    fn word<V: Lanes>(lanes: V, _w: usize) -> V {
        lanes
    }

    /// Words of `cols` columns.
    #[inline(always)]
    fn words(cols: usize) -> usize {
        (cols * Self::WORDS).div_ceil(Self::COLS)
    }
}

/// Two columns of bf16 per lane, used one after the other as f32.
pub(super) struct Halves;
/// Two columns of bf16 per lane, used together.
pub(crate) struct Pairs;

impl RowReader for Halves {
    const COLS: usize = 2;
    const WORDS: usize = 2;
    #[inline(always)]
    unsafe fn load<V: Lanes>(row: *const u8, i: usize) -> V {
        // SAFETY: by the caller.
        unsafe { Pairs::load(row, i) }
    }
    #[inline(always)]
    unsafe fn tail<V: Lanes>(row: *const u8, i: usize, n: usize) -> V {
        // SAFETY: by the caller.
        unsafe { Pairs::tail(row, i, n) }
    }
    #[inline(always)]
    fn word<V: Lanes>(lanes: V, w: usize) -> V {
        if w == 0 { lanes.bf16_low() } else { lanes.bf16_high() }
    }
}

impl RowReader for Pairs {
    const COLS: usize = 2;
    const WORDS: usize = 1;
    #[inline(always)]
    unsafe fn load<V: Lanes>(row: *const u8, i: usize) -> V {
        // SAFETY: the row has these columns, two bytes each.
        unsafe { V::load(row.add(i * 2).cast()) }
    }
    #[inline(always)]
    unsafe fn tail<V: Lanes>(row: *const u8, i: usize, n: usize) -> V {
        let mut buf = [0u32; MAX_LANES];
        // SAFETY: the row has these columns, fewer than the buffer; as bytes, for alignment.
        unsafe {
            let bytes = (n * 2).min(size_of_val(&buf));
            std::ptr::copy_nonoverlapping(row.add(i * 2), buf.as_mut_ptr().cast(), bytes);
            V::load(buf.as_ptr().cast())
        }
    }
}
