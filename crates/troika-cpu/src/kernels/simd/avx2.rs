//! AVX2 with FMA and F16C: eight lanes.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::sealed::Sealed;
use super::{ByteSums, EXP_MAX, EXP_MIN, Kernel, Lanes, MAX_LANES, exp_of_rest};
use crate::machine::instructions::methods;

/// Runs a kernel with the features switched on.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<F32x8>()
}

/// Eight floats, on a machine with the features of [`run`].
#[derive(Clone, Copy)]
pub(super) struct F32x8(__m256);

impl Sealed for F32x8 {}

/// Sums of signed bytes, as [`ByteSums`] has them.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn byte_sums(bytes: __m256i) -> ByteSums {
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    let sums = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0b01_00_11_10));
    let sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0b10_11_00_01));
    let low = _mm_cvtsi128_si32(_mm256_castsi256_si128(sums));
    let high = _mm_cvtsi128_si32(_mm256_extracti128_si256(sums, 1));
    [low, high].map(|half| [half as i16, (half >> 16) as i16])
}

/// All lanes put together in a fixed tree, by an instruction for one lane and one for four: the
/// lanes of one register, and of eight.
macro_rules! tree {
    ($one:ident, $eight:ident, $wide:ident, $four:ident, $single:ident) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline]
        pub(super) fn $one(v: __m256) -> f32 {
            let four = $four(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
            let two = $four(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32($single(two, _mm_movehdup_ps(two)))
        }

        #[target_feature(enable = "avx2,fma,f16c")]
        #[inline]
        pub(super) fn $eight(v: [__m256; 8]) -> __m256 {
            // The lower halves of `x` and `y` with the upper ones, then the same within each half.
            macro_rules! halves {
                ($x:expr, $y:expr) => {
                    $wide(
                        _mm256_permute2f128_ps($x, $y, 0x20),
                        _mm256_permute2f128_ps($x, $y, 0x31),
                    )
                };
            }
            macro_rules! pairs {
                ($x:expr, $y:expr) => {
                    $wide(_mm256_shuffle_ps($x, $y, 0x44), _mm256_shuffle_ps($x, $y, 0xee))
                };
            }
            // Registers 0 and 4 share one, so that the results come out in order.
            let (a, b) = (halves!(v[0], v[4]), halves!(v[1], v[5]));
            let (c, d) = (halves!(v[2], v[6]), halves!(v[3], v[7]));
            let (ab, cd) = (pairs!(a, b), pairs!(c, d));
            $wide(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xdd))
        }
    };
}
tree!(sum256, sums256, _mm256_add_ps, _mm_add_ps, _mm_add_ss);
tree!(largest256, maxima256, _mm256_max_ps, _mm_max_ps, _mm_max_ss);

impl F32x8 {
    /// The nearest whole numbers, ties to even.
    #[inline(always)]
    fn nearest(self) -> Self {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: the features are there where the type is.
        Self(unsafe { _mm256_round_ps(self.0, NEAREST) })
    }
}

// SAFETY (of the unsafe blocks): the features are there where the type is; callers promise valid
// memory, and slices and arrays are as long.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl Lanes for F32x8 {
    const N: usize = 8;
    const MANY: bool = false;

    methods! {
        #[inline(always)]
        fn splat(x: f32) -> Self { Self(_mm256_set1_ps(x)) }
        unsafe fn load(p: *const f32) -> Self { Self(_mm256_loadu_ps(p)) }
        unsafe fn load_f16(p: *const f16) -> Self {
            Self(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())))
        }
        unsafe fn load_bf16(p: *const bf16) -> Self {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            Self(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)))
        }
        unsafe fn store(self, p: *mut f32) { _mm256_storeu_ps(p, self.0) }
        unsafe fn store_f16(self, p: *mut f16) {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph(self.0, _MM_FROUND_TO_NEAREST_INT))
        }
        fn add(self, o: Self) -> Self { Self(_mm256_add_ps(self.0, o.0)) }
        fn sub(self, o: Self) -> Self { Self(_mm256_sub_ps(self.0, o.0)) }
        fn mul(self, o: Self) -> Self { Self(_mm256_mul_ps(self.0, o.0)) }
        fn div(self, o: Self) -> Self { Self(_mm256_div_ps(self.0, o.0)) }
        fn min(self, o: Self) -> Self { Self(_mm256_min_ps(self.0, o.0)) }
        fn max(self, o: Self) -> Self { Self(_mm256_max_ps(self.0, o.0)) }
        fn fma(self, a: Self, b: Self) -> Self { Self(_mm256_fmadd_ps(self.0, a.0, b.0)) }
        fn exp(self) -> Self {
            // min and max give their second operand when one is NaN.
            let x = Self::splat(EXP_MIN).max(Self::splat(89.0).min(self));
            let n = x.mul(Self::splat(std::f32::consts::LOG2_E)).nearest();
            // Two factors: 2^128 alone does not exist.
            let (y, n) = (exp_of_rest(x, n), _mm256_cvtps_epi32(n.0));
            let half = _mm256_srai_epi32(n, 1);
            let y = y.mul(power_of_two(half)).mul(power_of_two(_mm256_sub_epi32(n, half)));
            let tiny = _mm256_cmp_ps(self.0, Self::splat(EXP_MIN).0, _CMP_LT_OQ);
            let huge = _mm256_cmp_ps(self.0, Self::splat(EXP_MAX).0, _CMP_GT_OQ);
            let y = _mm256_blendv_ps(y.0, Self::splat(f32::INFINITY).0, huge);
            Self(_mm256_andnot_ps(tiny, y))
        }
        fn exp_falling(self) -> Self {
            let x = Self::splat(EXP_MIN).max(self);
            let n = x.mul(Self::splat(std::f32::consts::LOG2_E)).nearest();
            // Powers between -126 and 0 exist.
            let y = exp_of_rest(x, n).mul(power_of_two(_mm256_cvtps_epi32(n.0)));
            Self(_mm256_andnot_ps(_mm256_cmp_ps(self.0, Self::splat(EXP_MIN).0, _CMP_LT_OQ), y.0))
        }
        fn sum(self) -> f32 { sum256(self.0) }
        fn bf16_low(self) -> Self {
            Self(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(self.0), 16)))
        }
        fn bf16_high(self) -> Self {
            Self(_mm256_and_ps(self.0, _mm256_castsi256_ps(_mm256_set1_epi32(-0x1_0000))))
        }
        fn prefetch(p: *const u8) { _mm_prefetch(p.cast(), _MM_HINT_T0) }
        fn prefetch_l2(p: *const u8) { _mm_prefetch(p.cast(), _MM_HINT_T1) }
        fn largest(self) -> f32 { largest256(self.0) }
    }
    #[inline(always)]
    fn largest_magnitude(x: &[f32; 32]) -> f32 {
        unsafe {
            let p = x.as_ptr().cast::<__m256i>();
            let mut most = _mm256_setzero_si256();
            for i in 0..4 {
                let bits = _mm256_loadu_si256(p.add(i));
                most =
                    _mm256_max_epu32(most, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fff_ffff)));
            }
            let m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
            let m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0b01_00_11_10));
            let m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0b10_11_00_01));
            f32::from_bits(_mm_cvtsi128_si32(m) as u32)
        }
    }
    #[inline(always)]
    fn round_bytes(x: &[f32; 32], by: f32, out: &mut [i8; 32]) -> ByteSums {
        unsafe {
            let mut n = [_mm256_setzero_si256(); 4];
            for (i, n) in n.iter_mut().enumerate() {
                let x = _mm256_mul_ps(_mm256_loadu_ps(x.as_ptr().add(8 * i)), _mm256_set1_ps(by));
                let bits = _mm256_castps_si256(_mm256_add_ps(x, _mm256_set1_ps(super::TO_BYTE)));
                *n = _mm256_and_si256(bits, _mm256_set1_epi32(255));
            }
            // Fours of bytes come out as 0 4 8 12 | 1 5 9 13 of sixteen each.
            let bytes = _mm256_packus_epi16(
                _mm256_packus_epi32(n[0], n[1]),
                _mm256_packus_epi32(n[2], n[3]),
            );
            let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), bytes);
            byte_sums(bytes)
        }
    }
    #[inline(always)]
    fn transpose(mut r: [Self; MAX_LANES]) -> [Self; MAX_LANES] {
        unsafe {
            let mut t = r;
            for i in 0..4 {
                t[2 * i].0 = _mm256_unpacklo_ps(r[2 * i].0, r[2 * i + 1].0);
                t[2 * i + 1].0 = _mm256_unpackhi_ps(r[2 * i].0, r[2 * i + 1].0);
            }
            for i in [0, 4] {
                for j in 0..2 {
                    r[i + 2 * j].0 = _mm256_shuffle_ps(t[i + j].0, t[i + 2 + j].0, 0x44);
                    r[i + 2 * j + 1].0 = _mm256_shuffle_ps(t[i + j].0, t[i + 2 + j].0, 0xee);
                }
            }
            for i in 0..4 {
                t[i].0 = _mm256_permute2f128_ps(r[i].0, r[4 + i].0, 0x20);
                t[4 + i].0 = _mm256_permute2f128_ps(r[i].0, r[4 + i].0, 0x31);
            }
            t
        }
    }
    #[inline(always)]
    fn sums(v: [Self; 8]) -> [f32; 8] {
        let mut out = [0.0; 8];
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), sums256(registers(v))) };
        out
    }
    #[inline(always)]
    fn maxima(v: [Self; 8]) -> [f32; 8] {
        let mut out = [0.0; 8];
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), maxima256(registers(v))) };
        out
    }
}

#[inline(always)]
fn registers([a, b, c, d, e, f, g, h]: [F32x8; 8]) -> [__m256; 8] {
    [a.0, b.0, c.0, d.0, e.0, f.0, g.0, h.0]
}

/// `2^n` for `-126 <= n <= 127`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn power_of_two(n: __m256i) -> F32x8 {
    let biased = _mm256_add_epi32(n, _mm256_set1_epi32(127));
    F32x8(_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)))
}
