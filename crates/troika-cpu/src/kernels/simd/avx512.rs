//! AVX-512 (F, BW, DQ, VL): sixteen lanes.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::avx2::{largest256, sum256, sums256};
use super::sealed::Sealed;
use super::{ByteSums, Kernel, Lanes, MAX_LANES, Mac, PairsKernel, exp_of_rest};
use crate::machine::instructions::methods;

/// To the nearest, ties to even.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

/// Runs a kernel with the features switched on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<F32x16>()
}

/// Runs a kernel over pairs of bf16 with the features switched on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) fn run_pairs<K: PairsKernel>(kernel: K) {
    kernel.run::<PairsX16>()
}

/// Sixteen floats, on a machine with the features of [`run`].
#[derive(Clone, Copy)]
pub(super) struct F32x16(__m512);

impl Sealed for F32x16 {}

/// Products of pairs of bf16, on a machine with the features of [`run_pairs`].
pub(super) struct PairsX16;

// SAFETY (of the unsafe blocks): the features are there where the type is; registers of the same
// size, any bits.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Mac for PairsX16 {
    type V = F32x16;
    const PAIRS: bool = true;
    #[inline(always)]
    fn mac(x: F32x16, w: F32x16, acc: F32x16) -> F32x16 {
        unsafe {
            let pairs = |v: F32x16| std::mem::transmute::<__m512, __m512bh>(v.0);
            F32x16(_mm512_dpbf16_ps(acc.0, pairs(x), pairs(w)))
        }
    }
    #[inline(always)]
    fn pairs(low: F32x16, high: F32x16) -> F32x16 {
        let words = unsafe { _mm512_cvtne2ps_pbh(high.0, low.0) };
        F32x16(unsafe { std::mem::transmute::<__m512bh, __m512>(words) })
    }
    #[inline(always)]
    fn zip(a: F32x16, b: F32x16) -> [F32x16; 2] {
        unsafe {
            let [a, b] = [a, b].map(|v| _mm512_castps_si512(v.0));
            // Element `i` of `a`, element `i` of `b` (32 and more: the second operand).
            let low = _mm512_set_epi16(
                47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                36, 4, 35, 3, 34, 2, 33, 1, 32, 0,
            );
            let high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
            [low, high].map(|at| F32x16(_mm512_castsi512_ps(_mm512_permutex2var_epi16(a, at, b))))
        }
    }
}

// SAFETY (of the unsafe blocks): the features are there where the type is; callers promise valid
// memory, and slices and arrays are as long.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl Lanes for F32x16 {
    const N: usize = 16;
    const MANY: bool = true;

    methods! {
        #[inline(always)]
        fn splat(x: f32) -> Self { Self(_mm512_set1_ps(x)) }
        unsafe fn load(p: *const f32) -> Self { Self(_mm512_loadu_ps(p)) }
        unsafe fn load_f16(p: *const f16) -> Self {
            Self(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())))
        }
        unsafe fn load_bf16(p: *const bf16) -> Self {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)))
        }
        unsafe fn store(self, p: *mut f32) { _mm512_storeu_ps(p, self.0) }
        unsafe fn store_f16(self, p: *mut f16) {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph(self.0, NEAREST))
        }
        fn add(self, o: Self) -> Self { Self(_mm512_add_ps(self.0, o.0)) }
        fn sub(self, o: Self) -> Self { Self(_mm512_sub_ps(self.0, o.0)) }
        fn mul(self, o: Self) -> Self { Self(_mm512_mul_ps(self.0, o.0)) }
        fn div(self, o: Self) -> Self { Self(_mm512_div_ps(self.0, o.0)) }
        fn min(self, o: Self) -> Self { Self(_mm512_min_ps(self.0, o.0)) }
        fn max(self, o: Self) -> Self { Self(_mm512_max_ps(self.0, o.0)) }
        fn fma(self, a: Self, b: Self) -> Self { Self(_mm512_fmadd_ps(self.0, a.0, b.0)) }
        fn exp(self) -> Self {
            // min and max give their second operand when one is NaN.
            let x = Self::splat(-104.0).max(Self::splat(89.0).min(self));
            let n = _mm512_roundscale_ps(x.mul(Self::splat(std::f32::consts::LOG2_E)).0, NEAREST);
            Self(_mm512_scalef_ps(exp_of_rest(x, Self(n)).0, n))
        }
        fn sum(self) -> f32 {
            sum256(_mm256_add_ps(_mm512_castps512_ps256(self.0), _mm512_extractf32x8_ps(self.0, 1)))
        }
        fn bf16_low(self) -> Self {
            Self(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(self.0), 16)))
        }
        fn bf16_high(self) -> Self {
            Self(_mm512_and_ps(self.0, _mm512_castsi512_ps(_mm512_set1_epi32(-0x1_0000))))
        }
        fn prefetch(p: *const u8) { _mm_prefetch(p.cast(), _MM_HINT_T0) }
        fn prefetch_l2(p: *const u8) { _mm_prefetch(p.cast(), _MM_HINT_T1) }
        fn largest(self) -> f32 {
            let high = _mm512_extractf32x8_ps(self.0, 1);
            largest256(_mm256_max_ps(_mm512_castps512_ps256(self.0), high))
        }
    }
    #[inline(always)]
    fn largest_magnitude(x: &[f32; 32]) -> f32 {
        unsafe {
            let p = x.as_ptr();
            let bits = _mm512_set1_epi32(0x7fff_ffff);
            let low = _mm512_and_si512(_mm512_loadu_si512(p.cast()), bits);
            let high = _mm512_and_si512(_mm512_loadu_si512(p.add(16).cast()), bits);
            f32::from_bits(_mm512_reduce_max_epu32(_mm512_max_epu32(low, high)))
        }
    }
    #[inline(always)]
    fn round_bytes(x: &[f32; 32], by: f32, out: &mut [i8; 32]) -> ByteSums {
        unsafe {
            let mut halves = [_mm_setzero_si128(); 2];
            for (i, half) in halves.iter_mut().enumerate() {
                let x = _mm512_mul_ps(_mm512_loadu_ps(x.as_ptr().add(16 * i)), _mm512_set1_ps(by));
                let bits = _mm512_castps_si512(_mm512_add_ps(x, _mm512_set1_ps(super::TO_BYTE)));
                *half = _mm512_cvtepi32_epi8(bits);
            }
            let bytes = _mm256_set_m128i(halves[1], halves[0]);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes);
            super::avx2::byte_sums(bytes)
        }
    }
    #[inline(always)]
    fn transpose(mut r: [Self; MAX_LANES]) -> [Self; MAX_LANES] {
        unsafe {
            let mut t = r;
            for i in 0..8 {
                t[2 * i].0 = _mm512_unpacklo_ps(r[2 * i].0, r[2 * i + 1].0);
                t[2 * i + 1].0 = _mm512_unpackhi_ps(r[2 * i].0, r[2 * i + 1].0);
            }
            for i in [0, 4, 8, 12] {
                for j in 0..2 {
                    r[i + 2 * j].0 = _mm512_shuffle_ps(t[i + j].0, t[i + 2 + j].0, 0x44);
                    r[i + 2 * j + 1].0 = _mm512_shuffle_ps(t[i + j].0, t[i + 2 + j].0, 0xee);
                }
            }
            // Each holds one column of four rows in each of its quarters: 4 x 4 quarters.
            for i in 0..4 {
                t[i].0 = _mm512_shuffle_f32x4(r[i].0, r[4 + i].0, 0x88);
                t[4 + i].0 = _mm512_shuffle_f32x4(r[i].0, r[4 + i].0, 0xdd);
                t[8 + i].0 = _mm512_shuffle_f32x4(r[8 + i].0, r[12 + i].0, 0x88);
                t[12 + i].0 = _mm512_shuffle_f32x4(r[8 + i].0, r[12 + i].0, 0xdd);
            }
            for i in 0..4 {
                r[i].0 = _mm512_shuffle_f32x4(t[i].0, t[8 + i].0, 0x88);
                r[8 + i].0 = _mm512_shuffle_f32x4(t[i].0, t[8 + i].0, 0xdd);
                r[4 + i].0 = _mm512_shuffle_f32x4(t[4 + i].0, t[12 + i].0, 0x88);
                r[12 + i].0 = _mm512_shuffle_f32x4(t[4 + i].0, t[12 + i].0, 0xdd);
            }
            r
        }
    }
    #[inline(always)]
    fn sums(v: [Self; 8]) -> [f32; 8] {
        let mut out = [0.0; 8];
        unsafe {
            let mut halves = [_mm256_setzero_ps(); 8];
            for (h, v) in halves.iter_mut().zip(v) {
                *h = _mm256_add_ps(_mm512_castps512_ps256(v.0), _mm512_extractf32x8_ps(v.0, 1));
            }
            _mm256_storeu_ps(out.as_mut_ptr(), sums256(halves));
        }
        out
    }
}
