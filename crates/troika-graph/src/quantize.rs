//! Converts floats to the block types for weights quantized at load: the inverse of
//! [`crate::blocks::dequantize`].
//!
//! **Q8_0** has a scale for every 32 values. One scale per output channel would save 0.5 bits a
//! weight, but a single outlier would then coarsen thousands of values. The step is `max / 127`,
//! and the largest of 32 normal values is near 2 standard deviations, the largest of 4096 near 3.7.
//!
//! **Four bits** with a zero point per group: values are `d * (q - z)`. A search tries several
//! shrunken and stretched ranges. For each it takes the step that is best for its rounding by least
//! squares (like ggml's `make_qx_quants` for symmetric types), and keeps the range with the
//! smallest squared error.

use half::{bf16, f16};

use crate::DType;

/// Must change whenever the same floats give other blocks.
pub const VERSION: u32 = 2;

/// Quantizes a run of whole blocks. Returns `false` if any value is NaN or infinite; its whole
/// block becomes NaN then.
///
/// # Panics
/// If `out` is not exactly `dtype.row_bytes(x.len())` long, or `dtype` is not a target type
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
        _ => each(dtype, x, out),
    }
}

/// A row as blocks of Q8_0 that share a scale, as hardware has it that scales whole channels.
///
/// # Panics
/// If the result is not as long as blocks of the row.
pub fn row_bytes(x: &[f32], out: &mut [u8]) {
    assert_eq!(Some(out.len()), DType::Q8_0.row_bytes(x.len()), "a row of blocks");
    let most = f32::from(i8::MAX);
    let scale = f16::from_f32(largest(x) / most).max(f16::MIN_POSITIVE);
    let blocks = out.chunks_exact_mut(DType::Q8_0.block_bytes());
    for (x, out) in x.chunks_exact(DType::Q8_0.block_len()).zip(blocks) {
        out[..2].copy_from_slice(&scale.to_le_bytes());
        for (x, out) in x.iter().zip(&mut out[2..]) {
            let number = (x / scale.to_f32()).round_ties_even().clamp(-most, most);
            *out = number as i8 as u8;
        }
    }
}

/// A row as numbers of four bits, from -8 to 7, with one scale for all, which is an f16: NaN if a
/// value is no number or infinite. As with blocks, of several ranges the one with the smallest
/// squared error counts.
///
/// # Panics
/// If there are not as many numbers as values.
pub fn row_int4(x: &[f32], numbers: &mut [i8]) -> f32 {
    assert_eq!(x.len(), numbers.len(), "a number for each value");
    let most = largest(x);
    if !most.is_finite() {
        numbers.fill(1);
        return f32::NAN;
    }
    let plain = 7.0 / most;
    // The largest of thousands of values is far out: cutting it off gains more than of 32 or 128.
    let stretch = |i: usize| plain * (0.9 + 0.1 * i as f32);
    let choices: [([f32; LANES], [f32; LANES]); 2] = std::array::from_fn(|i| {
        (std::array::from_fn(|lane| stretch(i * LANES + lane)), [8.0; LANES])
    });
    let best = if plain.is_finite() { search(x, &choices).0 } else { 0.0 };
    let (scale, inverse) = stored(best);
    for (x, number) in x.iter().zip(numbers) {
        *number = steps(*x, inverse, 8.0) as i8;
    }
    // Zeros have any scale; compilers want one above zero.
    if inverse > 0.0 { scale.to_f32() } else { 1.0 }
}

/// Quantizes block by block. Without closures, which would not be compiled for the caller's
/// instruction set.
#[inline(always)]
fn each(dtype: DType, x: &[f32], out: &mut [u8]) -> bool {
    let blocks = x.chunks_exact(dtype.block_len()).zip(out.chunks_exact_mut(dtype.block_bytes()));
    let mut finite = true;
    for (x, out) in blocks {
        if largest(x).is_finite() {
            match dtype {
                DType::Q8_0 => q8_0(x, out),
                DType::Q4_0 => q4_0(x, out),
                _ => q4_g(x, out),
            }
            continue;
        }
        finite = false;
        out.fill(0);
        // Every block begins with its scale.
        out[..2].copy_from_slice(&f16::NAN.to_le_bytes());
    }
    finite
}

/// Whether [`quantize`] supports a type.
pub const fn is_target(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::Q8_0 | DType::Q4_0) || dtype.has_zero_points()
}

/// The largest magnitude; NaN counts as larger than anything.
#[inline(always)]
fn largest(x: &[f32]) -> f32 {
    // Compares as integers, so that the loop can be vectorised.
    f32::from_bits(x.iter().fold(0u32, |m, x| m.max(x.to_bits() & 0x7fff_ffff)))
}

/// The minimum and maximum of some values and zero. A zero point outside their range would waste
/// steps.
#[inline(always)]
fn range(x: &[f32]) -> (f32, f32) {
    let (mut low, mut high) = ([0.0f32; LANES], [0.0f32; LANES]);
    for x in x.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            low[i] = if x[i] < low[i] { x[i] } else { low[i] };
            high[i] = if x[i] > high[i] { x[i] } else { high[i] };
        }
    }
    (low.into_iter().fold(0.0, f32::min), high.into_iter().fold(0.0, f32::max))
}

/// `1.5 * 2^23`: adding it to a small number leaves the nearest integer in the low bits.
const MAGIC: f32 = 12_582_912.0;

/// A scale as stored, and its inverse (0 for no scale).
#[inline(always)]
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

/// The ranges to try: half-widths at which values are cut off, relative to the plain choice.
const STRETCHES: [f32; 12] =
    [0.80, 0.85, 0.88, 0.91, 0.94, 0.97, 1.0, 1.03, 1.06, 1.10, 1.14, 1.20];

/// The nearest of 0..=15 relative to a zero point, as a float (`q - zero`).
#[inline(always)]
fn steps(x: f32, inverse: f32, zero: f32) -> f32 {
    // Comparisons that compile to the machine's minimum and maximum; `clamp` does not.
    let (q, high) = (x * inverse, 15.0 - zero);
    let q = if q > -zero { q } else { -zero };
    let q = if q < high { q } else { high };
    (q + MAGIC) - MAGIC
}

/// The next integer below a small number.
#[inline(always)]
fn floor(x: f32) -> f32 {
    let near = (x + MAGIC) - MAGIC;
    if near > x { near - 1.0 } else { near }
}

/// Number of choices tried at once.
const LANES: usize = 8;

/// Among choices of inverse step and zero point, finds the one with the smallest squared error.
/// Returns (best step for its rounding, zero point).
#[inline(always)]
fn search(x: &[f32], choices: &[([f32; LANES], [f32; LANES])]) -> (f32, f32) {
    // The best choice of each lane: how much it reduces the squared error of zeros, its sums and
    // its zero point.
    let mut gain = [0.0f32; LANES];
    let (mut best_xq, mut best_qq, mut best_zero) = ([0.0; LANES], [1.0; LANES], [8.0; LANES]);
    for (inverse, zero) in choices {
        // One choice per lane, so that no sum crosses lanes.
        let (mut xq, mut qq) = ([0.0f32; LANES], [0.0f32; LANES]);
        for &x in x {
            for i in 0..LANES {
                let q = steps(x, inverse[i], zero[i]);
                xq[i] += x * q;
                qq[i] += q * q;
            }
        }
        for i in 0..LANES {
            // NaN if all values round to zero, which never compares as better.
            let this = xq[i] * xq[i] / qq[i];
            let better = this > gain[i];
            gain[i] = if better { this } else { gain[i] };
            best_xq[i] = if better { xq[i] } else { best_xq[i] };
            best_qq[i] = if better { qq[i] } else { best_qq[i] };
            best_zero[i] = if better { zero[i] } else { best_zero[i] };
        }
    }
    let mut best = 0;
    for i in 1..LANES {
        best = if gain[i] > gain[best] { i } else { best };
    }
    (best_xq[best] / best_qq[best], best_zero[best])
}

/// Writes the nibbles of all groups of 32 in Q4_0's order.
#[inline(always)]
fn put(x: &[f32], inverse: f32, zero: f32, out: &mut [u8]) {
    for (x, out) in x.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<16>().0) {
        for (i, o) in out.iter_mut().enumerate() {
            let (low, high) = (steps(x[i], inverse, zero), steps(x[i + 16], inverse, zero));
            // At most 255, so the low bits are the integer.
            *o = ((low + zero) + 16.0 * (high + zero) + MAGIC).to_bits() as u8;
        }
    }
}

#[inline(always)]
fn q4_g(x: &[f32], out: &mut [u8]) {
    let (low, high) = range(x);
    let plain = 15.0 / (high - low);
    let mut choices = [([0.0f32; LANES], [0.0f32; LANES]); 2 * STRETCHES.len() / LANES];
    for i in 0..STRETCHES.len() {
        let inverse = plain * STRETCHES[i];
        // Cuts off equally on both sides.
        let middle = floor(7.5 - 0.5 * (low + high) * inverse);
        for j in 0..2 {
            let to = &mut choices[(2 * i + j) / LANES];
            to.0[(2 * i + j) % LANES] = inverse;
            to.1[(2 * i + j) % LANES] = (middle + j as f32).clamp(0.0, 15.0);
        }
    }
    let best = if plain.is_finite() { search(x, &choices) } else { (0.0, 8.0) };
    let (scale, inverse) = stored(best.0);
    out[..2].copy_from_slice(&scale.to_le_bytes());
    out[2] = best.1 as u8;
    put(x, inverse, best.1, &mut out[3..]);
}

#[inline(always)]
fn q4_0(x: &[f32], out: &mut [u8]) {
    // The end of the range with one more step belongs to the largest value.
    let (low, high) = range(x);
    let signed = if -low > high { low } else { high };
    let plain = -8.0 / signed;
    let mut choices = [([0.0f32; LANES], [8.0f32; LANES]); STRETCHES.len().div_ceil(LANES)];
    for (i, stretch) in STRETCHES.iter().enumerate() {
        choices[i / LANES].0[i % LANES] = plain * stretch;
    }
    let best = if plain.is_finite() { search(x, &choices) } else { (0.0, 8.0) };
    let (scale, inverse) = stored(best.0);
    out[..2].copy_from_slice(&scale.to_le_bytes());
    put(x, inverse, 8.0, &mut out[2..]);
}
