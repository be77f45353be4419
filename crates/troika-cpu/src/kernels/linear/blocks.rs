//! Blocks to f32 in lanes. Each gives the very bits of `troika_graph::blocks`: the same products
//! and differences, none fused.

use troika_graph::DType;

use crate::kernels::simd::Lanes;

/// The values of E2M1, sign in the fourth bit.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Widens whole blocks; `false` for types without a path here.
#[inline(always)]
pub(super) fn widen<V: Lanes>(dtype: DType, from: &[u8], out: &mut [f32]) -> bool {
    macro_rules! each {
        ($t:ident, $f:expr) => {{
            const BYTES: usize = DType::$t.block_bytes();
            const LEN: usize = DType::$t.block_len();
            for (b, o) in from.as_chunks::<BYTES>().0.iter().zip(out.as_chunks_mut::<LEN>().0) {
                $f(b, o)
            }
        }};
    }
    match dtype {
        DType::Q4_1 => each!(Q4_1, q4_1::<V>),
        DType::MXFP4 => each!(MXFP4, mxfp4::<V>),
        DType::Q2_K => each!(Q2_K, q2_k::<V>),
        DType::Q3_K => each!(Q3_K, q3_k::<V>),
        DType::Q4_K => each!(Q4_K, q45_k::<V, false, 144>),
        DType::Q5_K => each!(Q5_K, q45_k::<V, true, 176>),
        DType::Q6_K => each!(Q6_K, q6_k::<V>),
        _ => return false,
    }
    true
}

/// The f16 at `at`, in all lanes.
#[inline(always)]
fn half_at<V: Lanes>(b: &[u8], at: usize) -> V {
    // SAFETY: two bytes.
    unsafe { V::splat_f16(b[at..at + 2].as_ptr()) }
}

#[inline(always)]
fn q4_1<V: Lanes>(b: &[u8; 20], o: &mut [f32; 32]) {
    let o = o.as_mut_ptr();
    // SAFETY: 16 bytes of nibbles from 4 on; 32 results.
    unsafe {
        let (d, m) = (half_at::<V>(b, 0), half_at::<V>(b, 2));
        for i in (0..32).step_by(V::N) {
            let q = V::load_bits(b.as_ptr().add(4 + i % 16), (i as u32 / 16) * 4, 15);
            d.mul(q).add(m).store(o.add(i));
        }
    }
}

#[inline(always)]
fn mxfp4<V: Lanes>(b: &[u8; 17], o: &mut [f32; 32]) {
    let o = o.as_mut_ptr();
    let d = f32::from_bits(if b[0] == 0 { 0x0040_0000 } else { u32::from(b[0]) << 23 });
    // SAFETY: 16 bytes of nibbles from 1 on; 32 results.
    unsafe {
        for i in (0..32).step_by(V::N) {
            let q = V::look_up(b.as_ptr().add(1 + i % 16), (i as u32 / 16) * 4, &E2M1);
            V::splat(d).mul(q).store(o.add(i));
        }
    }
}

/// Where the two-bit values of a group of 16 lie: first byte and shift (Q2_K, Q3_K).
#[inline(always)]
fn quarter(group: usize) -> (usize, u32) {
    (group / 8 * 32 + group % 2 * 16, (group % 8 / 2 * 2) as u32)
}

#[inline(always)]
fn q2_k<V: Lanes>(b: &[u8; 84], o: &mut [f32; 256]) {
    let o = o.as_mut_ptr();
    // SAFETY: 64 bytes of values from 16 on; 16 results per group.
    unsafe {
        let (d, min) = (half_at::<V>(b, 80), half_at::<V>(b, 82));
        for group in 0..16 {
            let (base, shift) = quarter(group);
            let scale = d.mul(V::splat(f32::from(b[group] & 15)));
            let m = min.mul(V::splat(f32::from(b[group] >> 4)));
            for i in (0..16).step_by(V::N) {
                let q = V::load_bits(b.as_ptr().add(16 + base + i), shift, 3);
                scale.mul(q).sub(m).store(o.add(group * 16 + i));
            }
        }
    }
}

#[inline(always)]
fn q3_k<V: Lanes>(b: &[u8; 110], o: &mut [f32; 256]) {
    let o = o.as_mut_ptr();
    let packed = &b[96..108];
    // SAFETY: 32 bytes of high bits, then 64 of low ones; 16 results per group.
    unsafe {
        let d = half_at::<V>(b, 108);
        for group in 0..16 {
            let low = packed[group % 8] >> (group / 8 * 4) & 15;
            let high = packed[8 + group % 4] >> (group / 4 * 2) & 3;
            let scale = d.mul(V::splat(f32::from(low | high << 4) - 32.0));
            let (base, shift) = quarter(group);
            for i in (0..16).step_by(V::N) {
                let high = V::load_bits(b.as_ptr().add(group % 2 * 16 + i), group as u32 / 2, 1);
                let low = V::load_bits(b.as_ptr().add(32 + base + i), shift, 3);
                let q = high.fma(V::splat(4.0), low).sub(V::splat(4.0));
                scale.mul(q).store(o.add(group * 16 + i));
            }
        }
    }
}

/// The 6-bit scale and minimum of group `j` of eight, packed in 12 bytes.
#[inline(always)]
fn scale_min(j: usize, p: &[u8]) -> [u8; 2] {
    if j < 4 {
        [p[j] & 63, p[j + 4] & 63]
    } else {
        [p[j + 4] & 15 | p[j - 4] >> 6 << 4, p[j + 4] >> 4 | p[j] >> 6 << 4]
    }
}

/// Q4_K, and Q5_K with a fifth bit in 32 bytes before the nibbles.
#[inline(always)]
fn q45_k<V: Lanes, const FIFTH: bool, const BYTES: usize>(b: &[u8; BYTES], o: &mut [f32; 256]) {
    const { assert!(BYTES == if FIFTH { 176 } else { 144 }) };
    let o = o.as_mut_ptr();
    let (packed, start) = (&b[4..16], if FIFTH { 48 } else { 16 });
    // SAFETY: 128 bytes of nibbles from `start` on; 32 results per group.
    unsafe {
        let (d, dmin) = (half_at::<V>(b, 0), half_at::<V>(b, 2));
        for group in 0..8 {
            let [s, m] = scale_min(group, packed).map(f32::from);
            let (s, m) = (d.mul(V::splat(s)), dmin.mul(V::splat(m)));
            let (base, shift) = (start + group / 2 * 32, (group as u32 % 2) * 4);
            for i in (0..32).step_by(V::N) {
                let mut q = V::load_bits(b.as_ptr().add(base + i), shift, 15);
                if FIFTH {
                    let high = V::load_bits(b.as_ptr().add(16 + i), group as u32, 1);
                    q = high.fma(V::splat(16.0), q);
                }
                s.mul(q).sub(m).store(o.add(group * 32 + i));
            }
        }
    }
}

#[inline(always)]
fn q6_k<V: Lanes>(b: &[u8; 210], o: &mut [f32; 256]) {
    let o = o.as_mut_ptr();
    // SAFETY: 128 bytes of low nibbles, 64 of high bits; 16 results per group.
    unsafe {
        let d = half_at::<V>(b, 208);
        for group in 0..16 {
            // Halves of 128; within a half, four quarters of 32 share bytes.
            let (half, quarter, side) = (group / 8, group % 8 / 2, group % 2);
            let scale = d.mul(V::splat(f32::from(b[192 + group] as i8)));
            let low = half * 64 + quarter % 2 * 32 + side * 16;
            let high = 128 + half * 32 + side * 16;
            for i in (0..16).step_by(V::N) {
                let low = V::load_bits(b.as_ptr().add(low + i), quarter as u32 / 2 * 4, 15);
                let high = V::load_bits(b.as_ptr().add(high + i), quarter as u32 * 2, 3);
                let q = high.fma(V::splat(16.0), low).sub(V::splat(32.0));
                scale.mul(q).store(o.add(group * 16 + i));
            }
        }
    }
}
