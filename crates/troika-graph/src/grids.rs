//! Block types whose values are points of a grid (ggml's IQ1, IQ2 and IQ3).
//!
//! `grids.bin` has the grids of ggml (`ggml-common.h`), a byte for each coordinate: those of
//! IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, then the one that IQ1_S and IQ1_M share.
//! `tests/data/blocks.py` makes it from the `gguf` Python package.

use crate::block_parts::{BlockParts, bits_at, half_at};

const GRIDS: &[u8; 33_792] = include_bytes!("grids.bin");

/// Where each grid begins.
const IQ2_XXS: usize = 0;
const IQ2_XS: usize = IQ2_XXS + 256 * 8;
const IQ2_S: usize = IQ2_XS + 512 * 8;
const IQ3_XXS: usize = IQ2_S + 1024 * 8;
const IQ3_S: usize = IQ3_XXS + 256 * 4;
const IQ1: usize = IQ3_S + 512 * 4;

/// A point of the grid that begins at `grid`, with the signs of eight bits.
#[inline(always)]
fn signed<const N: usize>(grid: usize, index: usize, signs: u8, to: &mut [i8]) {
    let point = &GRIDS[grid + N * index..][..N];
    for (j, (o, p)) in to.iter_mut().zip(point).enumerate() {
        *o = if signs >> j & 1 == 1 { -(*p as i8) } else { *p as i8 };
    }
}

/// Eight signs. Seven are stored; the number of minus signs is even.
fn even(signs: u32) -> u8 {
    let seven = signs as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// The scales `d * (0.5 + s) * quarter` of 4 bits.
fn scale(d: f32, s: u32, factor: f32) -> f32 {
    d * (0.5 + s as f32) * factor
}

/// Two scales of 4 bits for each 32 elements.
fn scales_of_sixteen(d: f32, packed: &[u8], o: &mut BlockParts) {
    for (g, s) in o.scales.iter_mut().enumerate() {
        *s = scale(d, u32::from(packed[g / 2] >> (g % 2 * 4) & 15), 0.25);
    }
}

/// Four grid indices for each 32 elements, then four signs of seven bits and a scale.
pub(crate) fn iq2_xxs(b: &[u8], o: &mut BlockParts) {
    let d = half_at(b, 0);
    for (g, b) in b[2..].chunks_exact(8).enumerate() {
        let signs = bits_at(b, 4);
        o.scales[g] = scale(d, signs >> 28, 0.25);
        for (l, to) in o.levels[32 * g..][..32].chunks_exact_mut(8).enumerate() {
            signed::<8>(IQ2_XXS, usize::from(b[l]), even(signs >> (7 * l)), to);
        }
    }
}

/// Words of a 9-bit index and seven signs.
pub(crate) fn iq2_xs(b: &[u8], o: &mut BlockParts) {
    scales_of_sixteen(half_at(b, 0), &b[66..74], o);
    for (word, to) in b[2..66].as_chunks().0.iter().zip(o.levels.chunks_exact_mut(8)) {
        let word = u16::from_le_bytes(*word);
        signed::<8>(IQ2_XS, usize::from(word & 511), even(u32::from(word >> 9)), to);
    }
}

/// Indices whose two upper bits lie apart, and signs of eight bits.
pub(crate) fn iq2_s(b: &[u8], o: &mut BlockParts) {
    scales_of_sixteen(half_at(b, 0), &b[74..82], o);
    let (low, signs, high) = (&b[2..34], &b[34..66], &b[66..74]);
    for (l, to) in o.levels.chunks_exact_mut(8).enumerate() {
        let index = usize::from(low[l]) | usize::from(high[l / 4] >> (l % 4 * 2) & 3) << 8;
        signed::<8>(IQ2_S, index, signs[l], to);
    }
}

/// Indices of points with four coordinates, then signs and scales as in IQ2_XXS.
pub(crate) fn iq3_xxs(b: &[u8], o: &mut BlockParts) {
    let d = half_at(b, 0);
    for (g, (index, word)) in b[2..66].chunks_exact(8).zip(b[66..].chunks_exact(4)).enumerate() {
        let word = bits_at(word, 0);
        o.scales[g] = scale(d, word >> 28, 0.5);
        for (l, to) in o.levels[32 * g..][..32].chunks_exact_mut(4).enumerate() {
            let signs = even(word >> (7 * (l / 2))) >> (l % 2 * 4);
            signed::<4>(IQ3_XXS, usize::from(index[l]), signs, to);
        }
    }
}

/// Indices whose upper bit lies apart, signs of eight bits, and scales of four bits for 32 elements.
pub(crate) fn iq3_s(b: &[u8], o: &mut BlockParts) {
    let d = half_at(b, 0);
    let (low, high, signs, scales) = (&b[2..66], &b[66..74], &b[74..106], &b[106..110]);
    for (g, o) in o.scales[..8].iter_mut().enumerate() {
        *o = d * (1.0 + 2.0 * f32::from(scales[g / 2] >> (g % 2 * 4) & 15));
    }
    for (l, to) in o.levels.chunks_exact_mut(4).enumerate() {
        let index = usize::from(low[l]) | usize::from(high[l / 8] >> (l % 8) & 1) << 8;
        signed::<4>(IQ3_S, index, signs[l / 2] >> (l % 2 * 4), to);
    }
}

/// Eight times the coordinates of a point, plus or minus one: ggml adds an eighth.
#[inline(always)]
fn shifted(index: usize, minus: bool, to: &mut [i8]) {
    let shift = if minus { -1 } else { 1 };
    for (o, p) in to.iter_mut().zip(&GRIDS[IQ1 + 8 * index..][..8]) {
        *o = 8 * (*p as i8) + shift;
    }
}

/// Words with the upper three bits of four indices, a scale, and the direction of the shift.
pub(crate) fn iq1_s(b: &[u8], o: &mut BlockParts) {
    let d = half_at(b, 0);
    for (g, word) in b[34..].as_chunks().0.iter().enumerate() {
        let word = u16::from_le_bytes(*word);
        o.scales[g] = d * f32::from(2 * (word >> 12 & 7) + 1) / 8.0;
        for (l, to) in o.levels[32 * g..][..32].chunks_exact_mut(8).enumerate() {
            let index = usize::from(b[2 + 4 * g + l]) | usize::from(word >> (3 * l) & 7) << 8;
            shifted(index, word >> 15 == 1, to);
        }
    }
}

fn iq1_m_words(b: &[u8]) -> [u16; 4] {
    std::array::from_fn(|i| u16::from_le_bytes([b[48 + 2 * i], b[49 + 2 * i]]))
}

/// The scale of a block of IQ1_M.
pub(crate) fn iq1_m_scale(b: &[u8]) -> f32 {
    let bits = iq1_m_words(b).iter().rev().fold(0, |bits, word| bits << 4 | word >> 12);
    half::f16::from_bits(bits).to_f32()
}

/// The upper bits and shifts of indices in nibbles. Four words have four scales of three bits each,
/// and in their upper nibbles the f16 scale of the block.
pub(crate) fn iq1_m(b: &[u8], o: &mut BlockParts) {
    let (words, d) = (iq1_m_words(b), iq1_m_scale(b));
    for (g, o) in o.scales.iter_mut().enumerate() {
        *o = d * f32::from(2 * (words[g / 4] >> (g % 4 * 3) & 7) + 1) / 8.0;
    }
    for (l, to) in o.levels.chunks_exact_mut(8).enumerate() {
        let high = b[32 + l / 2] >> (l % 2 * 4);
        shifted(usize::from(b[l]) | usize::from(high & 7) << 8, high & 8 == 8, to);
    }
}
