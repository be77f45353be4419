//! The meaning of each block type's bytes: the scalar reference for kernels.
//!
//! The layouts are the same as in GGUF files (ggml's `block_q*` structures), in little-endian. Only
//! the types with zero points are Troika's own: an f16 scale, a byte, and 16 bytes of nibbles in
//! Q4_0's order for each 32 values.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::DType;

/// Converts a run of whole blocks (or plain numbers) to f32.
///
/// # Panics
/// If `bytes` is not exactly `dtype.row_bytes(out.len())` long.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.row_bytes(out.len()), "{dtype} row length");
    let block: fn(&[u8], &mut [f32]) = match dtype {
        DType::F32 => return each(bytes, out, f32::from_le_bytes),
        DType::F16 => return halves(bytes, out),
        DType::BF16 => return each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        DType::I32 => return each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        DType::Q8_0 => q8_0,
        DType::Q4_0 => q4_0,
        DType::Q4_1 => q4_1,
        DType::Q5_0 => q5_0,
        DType::Q5_1 => q5_1,
        DType::Q2_K => q2_k,
        DType::Q3_K => q3_k,
        DType::Q4_K => q4_k,
        DType::Q5_K => q5_k,
        DType::Q6_K => q6_k,
        DType::MXFP4 => mxfp4,
        DType::Q4_G32 | DType::Q4_G64 | DType::Q4_G128 => q4_g,
    };
    let blocks = bytes.chunks_exact(dtype.block_bytes());
    for (b, o) in blocks.zip(out.chunks_exact_mut(dtype.block_len())) {
        block(b, o);
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

fn half_at(b: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

fn q8_0(b: &[u8], o: &mut [f32]) {
    let d = half_at(b, 0);
    o.iter_mut().zip(&b[2..]).for_each(|(o, &q)| *o = d * f32::from(q as i8));
}

/// Low nibbles are the first half of the block, high nibbles the second.
fn nibbles(qs: &[u8], o: &mut [f32], f: impl Fn(usize, u8) -> f32) {
    for (j, &q) in qs.iter().enumerate() {
        o[j] = f(j, q & 15);
        o[j + qs.len()] = f(j + qs.len(), q >> 4);
    }
}

fn q4_0(b: &[u8], o: &mut [f32]) {
    let d = half_at(b, 0);
    nibbles(&b[2..], o, |_, q| d * (f32::from(q) - 8.0));
}

fn q4_1(b: &[u8], o: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    nibbles(&b[4..], o, |_, q| d * f32::from(q) + m);
}

fn bits_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// `scale * (q - zero)`, exact in f32: a scale has 11 bits, the difference at most 8.
fn q4_g(b: &[u8], o: &mut [f32]) {
    let (d, zero) = (half_at(b, 0), f32::from(b[2]));
    for (qs, o) in b[3..].chunks_exact(16).zip(o.chunks_exact_mut(32)) {
        nibbles(qs, o, |_, q| d * (f32::from(q) - zero));
    }
}

fn q5_0(b: &[u8], o: &mut [f32]) {
    let (d, high) = (half_at(b, 0), bits_at(b, 2));
    nibbles(&b[6..], o, |j, q| {
        let q = u32::from(q) | (high >> j & 1) << 4;
        d * (q as f32 - 16.0)
    });
}

fn q5_1(b: &[u8], o: &mut [f32]) {
    let (d, m, high) = (half_at(b, 0), half_at(b, 2), bits_at(b, 4));
    nibbles(&b[8..], o, |j, q| d * (u32::from(q) | (high >> j & 1) << 4) as f32 + m);
}

/// 16 groups of 16. A byte holds four two-bit values, which are 32 elements apart.
fn q2_k(b: &[u8], o: &mut [f32]) {
    let (scales, qs) = (&b[..16], &b[16..80]);
    let (d, min) = (half_at(b, 80), half_at(b, 82));
    for (group, o) in o.chunks_exact_mut(16).enumerate() {
        let (half, shift, side) = (group / 8, group % 8 / 2 * 2, group % 2);
        let scale = d * f32::from(scales[group] & 15);
        let m = min * f32::from(scales[group] >> 4);
        let base = half * 32 + side * 16;
        for (o, q) in o.iter_mut().zip(&qs[base..base + 16]) {
            *o = scale * f32::from(q >> shift & 3) - m;
        }
    }
}

/// Like Q2_K, with a third bit in a mask and signed 6-bit scales in 12 bytes.
fn q3_k(b: &[u8], o: &mut [f32]) {
    let (hmask, qs, packed) = (&b[..32], &b[32..96], &b[96..108]);
    let d = half_at(b, 108);
    for (group, o) in o.chunks_exact_mut(16).enumerate() {
        let low = packed[group % 8] >> (group / 8 * 4) & 15;
        let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        let scale = d * (f32::from(low | high << 4) - 32.0);
        let (half, shift, side) = (group / 8, group % 8 / 2 * 2, group % 2);
        let base = half * 32 + side * 16;
        for (l, o) in o.iter_mut().enumerate() {
            let low = qs[base + l] >> shift & 3;
            let high = hmask[side * 16 + l] >> (group / 2) & 1;
            *o = scale * (f32::from(low | high << 2) - 4.0);
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

fn q4_k(b: &[u8], o: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let (packed, qs) = (&b[4..16], &b[16..144]);
    for (group, o) in o.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_min(group, packed);
        let (s, m) = (d * s, dmin * m);
        let qs = &qs[group / 2 * 32..][..32];
        let shift = group % 2 * 4;
        o.iter_mut().zip(qs).for_each(|(o, q)| *o = s * f32::from(q >> shift & 15) - m);
    }
}

fn q5_k(b: &[u8], o: &mut [f32]) {
    let (d, dmin) = (half_at(b, 0), half_at(b, 2));
    let (packed, high, qs) = (&b[4..16], &b[16..48], &b[48..176]);
    for (group, o) in o.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_min(group, packed);
        let (s, m) = (d * s, dmin * m);
        let qs = &qs[group / 2 * 32..][..32];
        let shift = group % 2 * 4;
        for (l, o) in o.iter_mut().enumerate() {
            let q = qs[l] >> shift & 15 | (high[l] >> group & 1) << 4;
            *o = s * f32::from(q) - m;
        }
    }
}

fn q6_k(b: &[u8], o: &mut [f32]) {
    let (low, high, scales) = (&b[..128], &b[128..192], &b[192..208]);
    let d = half_at(b, 208);
    for (group, o) in o.chunks_exact_mut(16).enumerate() {
        // Halves of 128; within a half, four quarters of 32 share bytes.
        let (half, quarter, side) = (group / 8, group % 8 / 2, group % 2);
        let scale = d * f32::from(scales[group] as i8);
        let low = &low[half * 64 + quarter % 2 * 32 + side * 16..][..16];
        let high = &high[half * 32 + side * 16..][..16];
        for (l, o) in o.iter_mut().enumerate() {
            let q = low[l] >> (quarter / 2 * 4) & 15 | (high[l] >> (quarter * 2) & 3) << 4;
            *o = scale * (f32::from(q) - 32.0);
        }
    }
}

/// Twice the values of E2M1, with the sign in the fourth bit (OCP Microscaling Formats, table 5).
/// As in ggml, minus zero is zero.
const E2M1_DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Half of `2^(e - 127)`, for use with the doubled values, so that no exponent overflows.
fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 })
}

fn mxfp4(b: &[u8], o: &mut [f32]) {
    let d = e8m0_half(b[0]);
    nibbles(&b[1..], o, |_, q| d * E2M1_DOUBLED[usize::from(q)]);
}
