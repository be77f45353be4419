//! From floats to the block types weights are quantized to at load: the inverse of
//! [`crate::blocks::dequantize`].
//!
//! **Q8_0** has a scale for every 32 values. A scale per output channel would save 0.5 bits a
//! weight, but then one outlier among a row's thousands of values coarsens them all: with a step
//! of `max / 127` the error grows with the largest value of what shares a scale, and the largest
//! of 32 normal values lies near 2 standard deviations, that of 4096 near 3.7.
//!
//! **Four bits** with a zero point per group: values are `d * (q - z)`. The step and zero point
//! are searched: of some shrunken and stretched ranges, each with the step that is best for its
//! rounding in the sense of least squares (as ggml's `make_qx_quants` does for symmetric types),
//! the one with the smallest squared error is kept.

use half::{bf16, f16};

use crate::DType;

/// Changes whenever the same floats give other blocks.
pub const VERSION: u32 = 1;

/// Quantizes a run of whole blocks. `false`: some values are NaN or infinite; all of their blocks
/// come out as NaN.
///
/// # Panics
/// If `out` is not exactly `dtype.row_bytes(x.len())` long, or nothing is quantized to `dtype`
/// ([`is_target`]).
#[inline(always)] // so that callers may compile it for instruction sets of their own
pub fn quantize(dtype: DType, x: &[f32], out: &mut [u8]) -> bool {
    assert!(is_target(dtype), "nothing is quantized to {dtype}");
    assert_eq!(Some(out.len()), dtype.row_bytes(x.len()), "{dtype} row length");
    match dtype {
        DType::BF16 => {
            for (x, o) in x.iter().zip(out.as_chunks_mut::<2>().0) {
                *o = bf16::from_f32(*x).to_le_bytes();
            }
            largest(x).is_finite()
        }
        DType::Q8_0 => each(dtype, x, out, q8_0),
        DType::Q4_0 => each(dtype, x, out, q4_0),
        DType::Q4_G32 | DType::Q4_G64 | DType::Q4_G128 => each(dtype, x, out, q4_g),
        _ => unreachable!("checked above"),
    }
}

/// Quantizes block by block.
#[inline(always)]
fn each(dtype: DType, x: &[f32], out: &mut [u8], block: impl Fn(&[f32], &mut [u8])) -> bool {
    let blocks = x.chunks_exact(dtype.block_len()).zip(out.chunks_exact_mut(dtype.block_bytes()));
    let mut finite = true;
    for (x, out) in blocks {
        if largest(x).is_finite() {
            block(x, out);
            continue;
        }
        finite = false;
        out.fill(0);
        // All blocks begin with their scale.
        out[..2].copy_from_slice(&f16::NAN.to_le_bytes());
    }
    finite
}

/// Whether [`quantize`] makes a type.
pub const fn is_target(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::Q8_0 | DType::Q4_0) || dtype.has_zero_points()
}

/// The largest magnitude; NaN counts as larger than anything.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    // As integers, so that the loop is simple enough to be vectorised.
    f32::from_bits(x.iter().fold(0u32, |m, x| m.max(x.to_bits() & 0x7fff_ffff)))
}

/// `1.5 * 2^23`: added to a small number, it leaves the nearest integer in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// A scale as it is stored, and its inverse (0 for no scale).
fn stored(scale: f32) -> (f16, f32) {
    let most = f16::MAX.to_f32();
    let half = f16::from_f32(scale.clamp(-most, most));
    let inverse = 1.0 / half.to_f32();
    (half, if inverse.is_finite() { inverse } else { 0.0 })
}

#[inline(always)]
fn q8_0(x: &[f32], out: &mut [u8]) {
    let (scale, inverse) = stored(largest(x) / 127.0);
    out[..2].copy_from_slice(&scale.to_le_bytes());
    for (x, o) in x.iter().zip(&mut out[2..]) {
        *o = ((x * inverse).clamp(-127.0, 127.0) + MAGIC).to_bits() as u8;
    }
}

/// Ranges tried, in steps: half-widths of the values' range at which a value is cut off, relative
/// to the plain choice.
const STRETCHES: [f32; 12] =
    [0.80, 0.85, 0.88, 0.91, 0.94, 0.97, 1.0, 1.03, 1.06, 1.10, 1.14, 1.20];

/// The nearest of 0..=15 around a zero point, as floats (`q - zero`).
#[inline(always)]
fn steps(x: f32, inverse: f32, zero: f32) -> f32 {
    ((x * inverse).clamp(-zero, 15.0 - zero) + MAGIC) - MAGIC
}

/// The step for a zero point and inverse step, and by how much it lessens the squared error
/// against zeros.
#[inline(always)]
fn fit(x: &[f32], inverse: f32, zero: f32) -> (f32, f32) {
    let (mut xq, mut qq) = (0.0f32, 0.0f32);
    for x in x.as_chunks::<32>().0 {
        let (mut a, mut b) = ([0.0f32; 8], [0.0f32; 8]);
        for x in x.as_chunks::<8>().0 {
            for (i, x) in x.iter().enumerate() {
                let q = steps(*x, inverse, zero);
                a[i] += x * q;
                b[i] += q * q;
            }
        }
        xq += a.iter().sum::<f32>();
        qq += b.iter().sum::<f32>();
    }
    if qq > 0.0 { (xq / qq, xq * xq / qq) } else { (0.0, 0.0) }
}

/// Writes `nibbles` of all groups of 32 in Q4_0's order.
#[inline(always)]
fn put(x: &[f32], inverse: f32, zero: f32, out: &mut [u8]) {
    for (x, out) in x.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<16>().0) {
        for (i, o) in out.iter_mut().enumerate() {
            let q = |x: f32| (steps(x, inverse, zero) + zero) as u8;
            *o = q(x[i]) | q(x[i + 16]) << 4;
        }
    }
}

#[inline(always)]
fn q4_g(x: &[f32], out: &mut [u8]) {
    // The range holds zero: a zero point outside of it would waste steps.
    let low = x.iter().fold(0.0f32, |m, x| m.min(*x));
    let high = x.iter().fold(0.0f32, |m, x| m.max(*x));
    let plain = 15.0 / (high - low);
    let mut best = (0.0f32, 8.0f32, -1.0f32);
    if plain.is_finite() {
        for stretch in STRETCHES {
            let inverse = plain * stretch;
            // Values cut off on both sides alike.
            let middle = 7.5 - 0.5 * (low + high) * inverse;
            for zero in [middle.floor(), middle.floor() + 1.0] {
                let zero = zero.clamp(0.0, 15.0);
                let (step, gain) = fit(x, inverse, zero);
                if gain > best.2 {
                    best = (step, zero, gain);
                }
            }
        }
    }
    let (scale, inverse) = stored(best.0);
    out[..2].copy_from_slice(&scale.to_le_bytes());
    out[2] = best.1 as u8;
    put(x, inverse, best.1, &mut out[3..]);
}

#[inline(always)]
fn q4_0(x: &[f32], out: &mut [u8]) {
    // The end of the range that has one step more belongs to the largest value.
    let signed = x.iter().fold(0.0f32, |m, x| if x.abs() > m.abs() { *x } else { m });
    let plain = -8.0 / signed;
    let mut best = (0.0f32, -1.0f32);
    if plain.is_finite() {
        for stretch in STRETCHES {
            let (step, gain) = fit(x, plain * stretch, 8.0);
            if gain > best.1 {
                best = (step, gain);
            }
        }
    }
    let (scale, inverse) = stored(best.0);
    out[..2].copy_from_slice(&scale.to_le_bytes());
    put(x, inverse, 8.0, &mut out[2..]);
}
