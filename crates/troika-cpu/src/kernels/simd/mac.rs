//! Multiplying and adding words: floats, or pairs of bf16.

use super::{Lanes, MAX_LANES};

/// The arithmetic of an instruction set; like [`Lanes`], for those alone that were detected.
pub(crate) trait Mac {
    /// Registers of 32-bit lanes.
    type V: Lanes;
    /// Whether words are pairs of bf16.
    const PAIRS: bool;
    /// Elements of a word.
    const PER_WORD: usize = if Self::PAIRS { 2 } else { 1 };
    /// `acc + x * w`; with pairs, both products.
    fn mac(x: Self::V, w: Self::V, acc: Self::V) -> Self::V;

    /// Words of some elements.
    #[inline(always)]
    fn words(elements: usize) -> usize {
        elements.div_ceil(Self::PER_WORD)
    }

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

/// A kernel over products of pairs.
pub(crate) trait PairsKernel {
    /// Runs; implementations must be `#[inline(always)]`.
    fn run<A: Mac>(self);
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
