//! What a product adds up, word by word.
//!
//! A *word* is 32 bits of an activation row: an f32, or a pair of bf16. The kernels hold weights
//! as registers with a lane per weight row; a word meets all lanes at once. So an element of the
//! result is one chain of additions in the order of the columns, whatever the lanes.

use std::marker::PhantomData;

use super::weights::RowLoad;
use crate::kernels::simd::{Lanes, MAX_LANES};

/// The arithmetic of an instruction set; like [`Lanes`], for those alone that were detected.
pub(crate) trait Mac {
    /// Registers of 32-bit lanes.
    type V: Lanes;
    /// Whether words are pairs of bf16.
    const PAIRS: bool;
    /// `acc + x * w`; with pairs, both products.
    fn mac(x: Self::V, w: Self::V, acc: Self::V) -> Self::V;

    /// Words of consecutive floats, two to a word: first `low`, then `high`, each rounded to the
    /// nearest bf16, ties to even. For pairs only.
    #[inline(always)]
    fn pairs(low: Self::V, high: Self::V) -> Self::V {
        let mut floats = [0f32; 2 * MAX_LANES];
        let mut words = [0u32; MAX_LANES];
        low.write_to(&mut floats);
        high.write_to(&mut floats[Self::V::N..]);
        for (w, f) in words.iter_mut().zip(floats.as_chunks::<2>().0) {
            *w = nearest(f[0]) | nearest(f[1]) << 16;
        }
        Self::V::from_bits(words)
    }

    /// Two rows of bf16, two elements to a word, as words of an element of `a` and one of `b`: the
    /// elements of the lower half of the words, then the others. For pairs only.
    #[inline(always)]
    fn zip(a: Self::V, b: Self::V) -> [Self::V; 2] {
        let (a, b) = (a.to_bits(), b.to_bits());
        let mut out = [[0u32; MAX_LANES]; 2];
        for i in 0..2 * Self::V::N {
            let half = |w: u32| w >> (16 * (i % 2)) & 0xffff;
            out[i / Self::V::N][i % Self::V::N] = half(a[i / 2]) | half(b[i / 2]) << 16;
        }
        out.map(Self::V::from_bits)
    }
}

/// The nearest bf16, ties to even; NaN stays NaN. (`vcvtneps2bf16` would flush denormals, which
/// the products do anyway.)
#[inline(always)]
pub(crate) fn nearest(x: f32) -> u32 {
    let bits = x.to_bits();
    // What wraps around is NaN, which is not rounded.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

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

/// A column per lane, as f32.
pub(crate) struct Single<R>(PhantomData<R>);
/// Two columns of bf16 per lane, used one after the other as f32.
pub(super) struct Halves;
/// Two columns of bf16 per lane, used together.
pub(crate) struct Pairs;

impl<R: RowLoad> RowReader for Single<R> {
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
}

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

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn every_kind_of_number_is_rounded_without_overflow() {
        // NaN of all ones would wrap around when it is rounded, which a debug build checks.
        for bits in [u32::MAX, 0x7fff_ffff, 0x7f80_0001, 0xff80_0001, 0xffff_8000] {
            let rounded = f32::from_bits(nearest(f32::from_bits(bits)) << 16);
            assert!(rounded.is_nan() && rounded.is_sign_negative() == (bits >> 31 == 1));
        }
        for x in [0.0, -0.0, 1.0, f32::MAX, f32::MIN, f32::INFINITY, 1e-45, 257.0 / 256.0] {
            assert_eq!(nearest(x), u32::from(half::bf16::from_f32(x).to_bits()), "{x}");
        }
    }
}
