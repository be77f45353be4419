//! The meaning of each block type's bytes: the scalar reference for kernels.
//!
//! The layouts are the same as in GGUF files (ggml's `block_q*` structures), in little-endian. Only
//! the types with zero points are Troika's own (an f16 scale, a byte, and 16 bytes of nibbles in
//! Q4_0's order for each 32 values), and `F4_G16` (two f16 scales, then NVFP4's nibbles).

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::block_parts::{bits_at, half_at};
use crate::{DType, grids};

pub use crate::block_parts::BlockParts;

impl BlockParts {
    /// Takes a block apart.
    ///
    /// # Panics
    /// If the type is not quantized, or `block` is not one block of it.
    #[inline]
    pub fn take(&mut self, dtype: DType, block: &[u8]) {
        assert_eq!(block.len(), dtype.block_bytes(), "{dtype} block");
        match dtype {
            DType::Q8_0 => q8_0(block, self),
            DType::Q4_0 => q4_0(block, self),
            DType::Q4_1 => q4_1(block, self),
            DType::Q5_0 => q5_0(block, self),
            DType::Q5_1 => q5_1(block, self),
            DType::Q2_K => q2_k(block, self),
            DType::Q3_K => q3_k(block, self),
            DType::Q4_K => q4_k(block, self),
            DType::Q5_K => q5_k(block, self),
            DType::Q6_K => q6_k(block, self),
            DType::IQ2_XXS => grids::iq2_xxs(block, self),
            DType::IQ2_XS => grids::iq2_xs(block, self),
            DType::IQ2_S => grids::iq2_s(block, self),
            DType::IQ3_XXS => grids::iq3_xxs(block, self),
            DType::IQ3_S => grids::iq3_s(block, self),
            DType::IQ1_S => grids::iq1_s(block, self),
            DType::IQ1_M => grids::iq1_m(block, self),
            DType::IQ4_NL => {
                self.scales[0] = half_at(block, 0);
                table(&block[2..], dtype, &mut self.levels[..32]);
            }
            DType::IQ4_XS => iq4_xs(block, self),
            DType::TQ1_0 => tq1_0(block, self),
            DType::TQ2_0 => tq2_0(block, self),
            DType::Q1_0 => q1_0(block, self),
            DType::Q2_0 => q2_0(block, self),
            DType::MXFP4 => {
                self.scales[0] = e8m0_half(block[0]);
                table(&block[1..], dtype, &mut self.levels[..32]);
            }
            DType::NVFP4 => nvfp4(block, self),
            DType::F4_G16 => {
                for (g, qs) in block[4..].chunks_exact(8).enumerate() {
                    self.scales[g] = half_at(block, 2 * g);
                    table(qs, dtype, &mut self.levels[16 * g..]);
                }
            }
            DType::Q4_G32 | DType::Q4_G64 | DType::Q4_G128 => q4_g(block, self),
            DType::I32 | DType::F32 | DType::F16 | DType::BF16 => {
                unreachable!("{dtype} has no blocks")
            }
        }
    }

    /// Takes the scales and minima of a block whose levels are not needed.
    #[inline]
    pub fn take_scales(&mut self, dtype: DType, block: &[u8]) {
        match dtype {
            DType::Q8_0 | DType::Q4_0 => self.scales[0] = half_at(block, 0),
            _ if dtype.has_zero_points() => zero_points(block, self),
            _ => self.take(dtype, block),
        }
    }

    /// The values of a block of `dtype`.
    #[inline]
    pub fn values(&self, dtype: DType, out: &mut [f32]) {
        let len = dtype.group_len();
        for (g, (out, levels)) in out.chunks_mut(len).zip(self.levels.chunks(len)).enumerate() {
            let (scale, min) = (self.scales[g], self.mins[g]);
            if dtype.has_minimum() {
                out.iter_mut().zip(levels).for_each(|(o, l)| *o = scale * f32::from(*l) + min);
            } else {
                out.iter_mut().zip(levels).for_each(|(o, l)| *o = scale * f32::from(*l));
            }
        }
    }
}

/// Converts a run of whole blocks (or plain numbers) to f32.
///
/// # Panics
/// If `bytes` is not exactly `dtype.row_bytes(out.len())` long.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.row_bytes(out.len()), "{dtype} row length");
    match dtype {
        DType::F32 => return each(bytes, out, f32::from_le_bytes),
        DType::F16 => return halves(bytes, out),
        DType::BF16 => return each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        DType::I32 => return each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        _ => {}
    }
    let mut parts = BlockParts::default();
    let blocks = bytes.chunks_exact(dtype.block_bytes());
    for (b, o) in blocks.zip(out.chunks_exact_mut(dtype.block_len())) {
        parts.take(dtype, b);
        parts.values(dtype, o);
    }
}

/// Numbers of `N` bytes.
fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (b, o) in bytes.as_chunks().0.iter().zip(out) {
        *o = value(*b);
    }
}

/// f16 numbers, converted in groups to use the processor's instructions.
fn halves(bytes: &[u8], out: &mut [f32]) {
    let mut group = [f16::ZERO; 64];
    for (b, o) in bytes.chunks(2 * group.len()).zip(out.chunks_mut(group.len())) {
        let group = &mut group[..o.len()];
        group.iter_mut().zip(b.as_chunks().0).for_each(|(h, b)| *h = f16::from_le_bytes(*b));
        group.convert_to_f32_slice(o);
    }
}

fn q8_0(b: &[u8], o: &mut BlockParts) {
    o.scales[0] = half_at(b, 0);
    o.levels.iter_mut().zip(&b[2..]).for_each(|(o, &q)| *o = q as i8);
}

/// Low nibbles are the first half of the block, high nibbles the second.
fn nibbles(qs: &[u8], o: &mut [i8], f: impl Fn(usize, u8) -> i8) {
    for (j, &q) in qs.iter().enumerate() {
        o[j] = f(j, q & 15);
        o[j + qs.len()] = f(j + qs.len(), q >> 4);
    }
}

/// Nibbles that stand for the levels of a type.
fn table(qs: &[u8], dtype: DType, o: &mut [i8]) {
    if let Some(codebook) = dtype.codebook() {
        nibbles(qs, o, |_, q| codebook[usize::from(q)]);
    }
}

fn q4_0(b: &[u8], o: &mut BlockParts) {
    o.scales[0] = half_at(b, 0);
    nibbles(&b[2..], &mut o.levels, |_, q| q as i8 - 8);
}

fn q4_1(b: &[u8], o: &mut BlockParts) {
    (o.scales[0], o.mins[0]) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[4..], &mut o.levels, |_, q| q as i8);
}

/// `scale * (q - zero)` in two steps, which are exact: a scale has 11 bits, a zero point eight.
fn q4_g(b: &[u8], o: &mut BlockParts) {
    zero_points(b, o);
    for (g, qs) in b[3..].chunks_exact(16).enumerate() {
        nibbles(qs, &mut o.levels[32 * g..], |_, q| q as i8);
    }
}

fn zero_points(b: &[u8], o: &mut BlockParts) {
    let d = half_at(b, 0);
    o.scales[..4].fill(d);
    o.mins[..4].fill(-(d * f32::from(b[2])));
}

fn q5_0(b: &[u8], o: &mut BlockParts) {
    o.scales[0] = half_at(b, 0);
    let high = bits_at(b, 2);
    nibbles(&b[6..], &mut o.levels, |j, q| (q | ((high >> j & 1) << 4) as u8) as i8 - 16);
}

fn q5_1(b: &[u8], o: &mut BlockParts) {
    (o.scales[0], o.mins[0]) = (half_at(b, 0), half_at(b, 2));
    let high = bits_at(b, 4);
    nibbles(&b[8..], &mut o.levels, |j, q| (q | ((high >> j & 1) << 4) as u8) as i8);
}

/// 16 groups of 16. A byte holds four two-bit values, which are 32 elements apart.
fn q2_k(b: &[u8], o: &mut BlockParts) {
    let (scales, qs) = (&b[..16], &b[16..80]);
    let (d, min) = (half_at(b, 80), half_at(b, 82));
    for (group, levels) in o.levels.chunks_exact_mut(16).enumerate() {
        let (half, shift, side) = (group / 8, group % 8 / 2 * 2, group % 2);
        o.scales[group] = d * f32::from(scales[group] & 15);
        o.mins[group] = -(min * f32::from(scales[group] >> 4));
        let base = half * 32 + side * 16;
        for (o, q) in levels.iter_mut().zip(&qs[base..base + 16]) {
            *o = (q >> shift & 3) as i8;
        }
    }
}

/// Like Q2_K, with a third bit in a mask and signed 6-bit scales in 12 bytes.
fn q3_k(b: &[u8], o: &mut BlockParts) {
    let (hmask, qs, packed) = (&b[..32], &b[32..96], &b[96..108]);
    let d = half_at(b, 108);
    for (group, levels) in o.levels.chunks_exact_mut(16).enumerate() {
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        o.scales[group] = d * (f32::from(low | high << 4) - 32.0);
        let (half, shift, side) = (group / 8, group % 8 / 2 * 2, group % 2);
        let base = half * 32 + side * 16;
        for (l, o) in levels.iter_mut().enumerate() {
            let low = qs[base + l] >> shift & 3;
            let high = hmask[side * 16 + l] >> (group / 2) & 1;
            *o = (low | high << 2) as i8 - 4;
        }
    }
}

/// The 6-bit scale and minimum of group `j` of eight, packed in 12 bytes.
fn scale_min(j: usize, packed: &[u8]) -> (f32, f32) {
    let (s, m) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(s), f32::from(m))
}

/// The scales and minima of Q4_K and Q5_K.
fn k_scales(b: &[u8], o: &mut BlockParts) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    for group in 0..8 {
        let (s, m) = scale_min(group, &b[4..16]);
        (o.scales[group], o.mins[group]) = (d * s, -(dmin * m));
    }
}

fn q4_k(b: &[u8], o: &mut BlockParts) {
    k_scales(b, o);
    for (qs, o) in b[16..144].chunks_exact(32).zip(o.levels.chunks_exact_mut(64)) {
        nibbles(qs, o, |_, q| q as i8);
    }
}

fn q5_k(b: &[u8], o: &mut BlockParts) {
    k_scales(b, o);
    let (high, qs) = (&b[16..48], &b[48..176]);
    for (group, levels) in o.levels.chunks_exact_mut(32).enumerate() {
        let qs = &qs[group / 2 * 32..][..32];
        let shift = group % 2 * 4;
        for (l, o) in levels.iter_mut().enumerate() {
            *o = (qs[l] >> shift & 15 | (high[l] >> group & 1) << 4) as i8;
        }
    }
}

fn q6_k(b: &[u8], o: &mut BlockParts) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = half_at(b, 208);
    for (group, levels) in o.levels.chunks_exact_mut(16).enumerate() {
        // Halves of 128; within a half, four quarters of 32 share bytes.
        let (half, quarter, side) = (group / 8, group % 8 / 2, group % 2);
        o.scales[group] = d * f32::from(scales[group] as i8);
        let low = &low[half * 64 + quarter % 2 * 32 + side * 16..][..16];
        let high = &high[half * 32 + side * 16..][..16];
        for (l, o) in levels.iter_mut().enumerate() {
            let q = low[l] >> (quarter / 2 * 4) & 15 | (high[l] >> (quarter * 2) & 3) << 4;
            *o = q as i8 - 32;
        }
    }
}

/// The upper two bits of the scales are in two bytes, the lower four in the next four.
fn iq4_xs(b: &[u8], o: &mut BlockParts) {
    let (d, high) = (half_at(b, 0), u16::from_le_bytes([b[2], b[3]]));
    for (g, qs) in b[8..].chunks_exact(16).enumerate() {
        let low = b[4 + g / 2] >> (g % 2 * 4) & 15;
        let scale = low | ((high >> (2 * g) & 3) as u8) << 4;
        o.scales[g] = d * (f32::from(scale) - 32.0);
        table(qs, DType::IQ4_XS, &mut o.levels[32 * g..]);
    }
}

/// Digits to base 3 from the top: a byte is a fraction of 256, and each multiplication by 3 lifts
/// the next digit out of it.
fn tq1_0(b: &[u8], o: &mut BlockParts) {
    o.scales[..8].fill(half_at(b, 52));
    let mut levels = o.levels.iter_mut();
    for (bytes, digits) in [(&b[..32], 5), (&b[32..48], 5), (&b[48..52], 4)] {
        for n in 0..digits {
            for (byte, level) in bytes.iter().zip(&mut levels) {
                let rest = byte.wrapping_mul([1, 3, 9, 27, 81][n]);
                *level = ((u16::from(rest) * 3) >> 8) as i8 - 1;
            }
        }
    }
}

fn tq2_0(b: &[u8], o: &mut BlockParts) {
    o.scales[..8].fill(half_at(b, 64));
    for (i, o) in o.levels.iter_mut().enumerate() {
        *o = (b[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) as i8 - 1;
    }
}

fn q1_0(b: &[u8], o: &mut BlockParts) {
    o.scales[..4].fill(half_at(b, 0));
    for (i, o) in o.levels[..128].iter_mut().enumerate() {
        *o = (b[2 + i / 8] >> (i % 8) & 1) as i8 * 2 - 1;
    }
}

fn q2_0(b: &[u8], o: &mut BlockParts) {
    o.scales[..2].fill(half_at(b, 0));
    for (i, o) in o.levels[..64].iter_mut().enumerate() {
        *o = (b[2 + i / 4] >> (i % 4 * 2) & 3) as i8 - 1;
    }
}

/// Half of `2^(e - 127)`, for use with the doubled values, so that no exponent overflows.
pub fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

/// Half of an E4M3 number, for use with the doubled values. Signs are ignored; as in ggml, 0x7f
/// (NaN) is zero.
fn e4m3_half(x: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(x >> 3 & 15), u32::from(x & 7));
    match exponent {
        _ if x == 0x7f => 0.0,
        0 => mantissa as f32 / 1024.0,
        _ => f32::from_bits((exponent + 127 - 8) << 23 | mantissa << 20),
    }
}

fn nvfp4(b: &[u8], o: &mut BlockParts) {
    for (g, qs) in b[4..].chunks_exact(8).enumerate() {
        o.scales[g] = e4m3_half(b[g]);
        table(qs, DType::NVFP4, &mut o.levels[16 * g..]);
    }
}

/// Multiplies NVFP4 blocks with a number, as [`DType::F4_G16`]. Returns whether all scales are
/// finite.
///
/// # Panics
/// If `out` has not the bytes of as many values as `blocks`.
pub fn scaled_nvfp4(blocks: &[u8], factor: f32, out: &mut [u8]) -> bool {
    assert_eq!(blocks.len() / 36 * 40, out.len(), "bytes of as many values");
    let mut finite = true;
    for (from, to) in blocks.chunks_exact(36).zip(out.chunks_exact_mut(40)) {
        let (scales, levels) = from.split_at(4);
        let halves = scales.chunks_exact(2).zip(levels.chunks_exact(16));
        for ((scales, levels), to) in halves.zip(to.chunks_exact_mut(20)) {
            for (g, scale) in scales.iter().enumerate() {
                let scale = f16::from_f32(e4m3_half(*scale) * factor);
                finite &= scale.is_finite();
                to[2 * g..][..2].copy_from_slice(&scale.to_le_bytes());
            }
            to[4..].copy_from_slice(levels);
        }
    }
    finite
}

/// Makes bytes a block of finite values: gives them a scale, or the nearest that the type has, and
/// where it has minima those that put the middle of its levels at zero.
pub fn set_scale(dtype: DType, block: &mut [u8], scale: f32) {
    let double = 2.0 * scale.abs();
    match dtype {
        DType::MXFP4 => block[0] = ((double.to_bits() + (1 << 22)) >> 23).min(254) as u8,
        DType::NVFP4 => {
            let normal = double >= 1.0 / 64.0;
            let rounded = (double.to_bits().saturating_add(1 << 19) >> 20).wrapping_sub(120 << 3);
            let bits = if normal { rounded } else { (double * 512.0).round() as u32 };
            block[..4].fill(bits.min(0x7e) as u8);
        }
        DType::F4_G16 => {
            let half = f16::from_f32(scale).to_le_bytes();
            block[..4].copy_from_slice(&[half, half].concat());
        }
        DType::IQ1_M => {
            let bits = f16::from_f32(scale).to_bits();
            for part in 0..4 {
                let high = &mut block[49 + 2 * part];
                *high = *high & 15 | ((bits >> (4 * part) & 15) as u8) << 4;
            }
        }
        _ => {
            let Some(at) = dtype.scale_at() else { return };
            block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
            let minimum = match dtype {
                DType::Q4_1 => -7.5 * scale,
                DType::Q5_1 => -15.5 * scale,
                DType::Q2_K => 1.5 * scale,
                DType::Q4_K => 7.5 * scale,
                DType::Q5_K => 15.5 * scale,
                _ if dtype.has_zero_points() => return block[2] = 8,
                _ => return,
            };
            block[at + 2..at + 4].copy_from_slice(&f16::from_f32(minimum).to_le_bytes());
        }
    }
}

/// Makes bytes blocks ([`set_scale`]), equal scales of either sign, so that the root mean square of
/// values is about `size`.
pub fn set_scales(dtype: DType, bytes: &mut [u8], size: f32) {
    let (mut parts, mut values, mut squares) = (BlockParts::default(), [0.0; 256], 0.0);
    let values = &mut values[..dtype.block_len()];
    // Enough that random scales of groups even out.
    let some = 16384 / values.len();
    for block in bytes.chunks_exact_mut(dtype.block_bytes()).take(some) {
        set_scale(dtype, block, 1.0);
        parts.take(dtype, block);
        parts.values(dtype, values);
        squares += values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    }
    let blocks = (bytes.len() / dtype.block_bytes()).min(some);
    let scale = size / (squares / (blocks * values.len()).max(1) as f64).sqrt() as f32;
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        let sign = if block[dtype.block_bytes() / 2] & 1 == 0 { 1.0 } else { -1.0 };
        set_scale(dtype, block, sign * scale);
    }
}

/// What the scales of a block, and its minima less than zero, are whole multiples of, in types whose
/// groups have numbers for that; else the block's scale.
pub fn units(dtype: DType, block: &[u8]) -> [f32; 2] {
    let d = match dtype.scale_at() {
        Some(at) => half_at(block, at),
        None if dtype == DType::IQ1_M => grids::iq1_m_scale(block),
        None => 0.0,
    };
    let part = match dtype {
        DType::IQ3_XXS => 0.25,
        DType::IQ2_XXS | DType::IQ2_XS | DType::IQ2_S | DType::IQ1_S | DType::IQ1_M => 0.125,
        _ => 1.0,
    };
    match (dtype, dtype.scale_at()) {
        (DType::Q2_K | DType::Q4_K | DType::Q5_K, Some(at)) => [d, half_at(block, at + 2)],
        _ => [d * part, d],
    }
}

/// Whether a block's scale, or what its minima are multiplied with, is infinite or NaN.
pub fn has_infinite_scale(dtype: DType, block: &[u8]) -> bool {
    let infinite = |at: usize| !half_at(block, at).is_finite();
    match (dtype, dtype.scale_at()) {
        // The standard says that it is NaN; ggml computes with it.
        (DType::MXFP4, _) => block[0] == 0xff,
        (DType::F4_G16, _) => infinite(0) || infinite(2),
        (DType::IQ1_M, _) => block[53] & 0xc0 == 0xc0 && block[55] & 0x70 == 0x70,
        (_, Some(at)) => {
            infinite(at) || dtype.has_minimum() && !dtype.has_zero_points() && infinite(at + 2)
        }
        (_, None) => false,
    }
}
