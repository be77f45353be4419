//! What a product adds up, word by word.
//!
//! A *word* is 32 bits of an activation row: an f32, or a pair of bf16. The kernels hold weights
//! as registers with a lane per weight row; a word meets all lanes at once. So an element of the
//! result is one chain of additions in the order of the columns, whatever the lanes.

use std::marker::PhantomData;

use super::weights::RowLoad;
use crate::kernels::simd::{Lanes, MAX_LANES};

/// The arithmetic of an instruction set.
pub(super) trait Mac {
    /// Registers of 32-bit lanes.
    type V: Lanes;
    /// Whether words are pairs of bf16.
    const PAIRS: bool;
    /// `acc + x * w`; with pairs, both products.
    ///
    /// # Safety
    /// Needs the features of the implementing type.
    unsafe fn mac(x: Self::V, w: Self::V, acc: Self::V) -> Self::V;
}

/// Single precision, fused where the instruction set can.
pub(super) struct Float<V>(PhantomData<V>);

impl<V: Lanes> Mac for Float<V> {
    type V = V;
    const PAIRS: bool = false;
    #[inline(always)]
    unsafe fn mac(x: V, w: V, acc: V) -> V {
        // SAFETY: by the caller.
        unsafe { x.fma(w, acc) }
    }
}

/// How a row of weights is read: 32-bit lanes of one or two columns, which meet one or two words.
pub(super) trait Source {
    /// Columns of a lane.
    const COLS: usize;
    /// Words of a lane.
    const WORDS: usize;

    /// Lanes of the columns from `i` on; `i` is a multiple of all lanes' columns.
    ///
    /// # Safety
    /// Needs the features of `V`, and a row with these columns.
    unsafe fn load<V: Lanes>(row: *const u8, i: usize) -> V;

    /// The last `n` columns, fewer than all lanes', from `i` on, and zeros.
    ///
    /// # Safety
    /// As for `load`.
    unsafe fn tail<V: Lanes>(row: *const u8, i: usize, n: usize) -> V;

    /// What meets word `w` of the lanes.
    ///
    /// # Safety
    /// Needs the features of `V`.
    unsafe fn word<V: Lanes>(lanes: V, w: usize) -> V;

    /// Words of `cols` columns.
    #[inline(always)]
    fn words(cols: usize) -> usize {
        (cols * Self::WORDS).div_ceil(Self::COLS)
    }
}

/// A column per lane, as f32.
pub(super) struct Single<R>(PhantomData<R>);
/// Two columns of bf16 per lane, used one after the other as f32.
pub(super) struct Halves;
/// Two columns of bf16 per lane, used together.
pub(super) struct Pairs;

impl<R: RowLoad> Source for Single<R> {
    const COLS: usize = 1;
    const WORDS: usize = 1;
    #[inline(always)]
    unsafe fn load<V: Lanes>(row: *const u8, i: usize) -> V {
        // SAFETY: by the caller.
        unsafe { R::load(row, i) }
    }
    #[inline(always)]
    unsafe fn tail<V: Lanes>(row: *const u8, i: usize, n: usize) -> V {
        // SAFETY: by the caller.
        unsafe { R::tail(row, i, n) }
    }
    #[inline(always)]
    unsafe fn word<V: Lanes>(lanes: V, _: usize) -> V {
        lanes
    }
}

impl Source for Halves {
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
    unsafe fn word<V: Lanes>(lanes: V, w: usize) -> V {
        // SAFETY: by the caller.
        unsafe { if w == 0 { lanes.bf16_low() } else { lanes.bf16_high() } }
    }
}

impl Source for Pairs {
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
    #[inline(always)]
    unsafe fn word<V: Lanes>(lanes: V, _: usize) -> V {
        lanes
    }
}
