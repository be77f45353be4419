//! AVX2 with FMA and F16C: eight lanes.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{EXP_MAX, EXP_MIN, EXP_POLY, Kernel, LN2_HIGH, LN2_LOW, Lanes, MAX_LANES};

/// Runs a kernel with the features switched on.
// SAFETY: the caller has detected the features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller detected the features.
    unsafe { kernel.run::<__m256>() }
}

/// The fixed tree of a sum of eight.
// SAFETY: the caller has the features on.
#[inline(always)]
pub(super) unsafe fn sum256(v: __m256) -> f32 {
    // SAFETY: the caller has the features.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// The sums of eight registers, with the tree of [`sum256`].
// SAFETY: the caller has the features on.
#[inline(always)]
pub(super) unsafe fn sums256(v: [__m256; 8]) -> __m256 {
    // SAFETY: the caller has the features.
    unsafe {
        // Registers 0 and 4 share one, so that the sums come out in order.
        let (a, b) = (add_halves(v[0], v[4]), add_halves(v[1], v[5]));
        let (c, d) = (add_halves(v[2], v[6]), add_halves(v[3], v[7]));
        let (ab, cd) = (add_pairs(a, b), add_pairs(c, d));
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x88), _mm256_shuffle_ps(ab, cd, 0xdd))
    }
}

/// Lower and upper half of `x` added, then those of `y`.
// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn add_halves(x: __m256, y: __m256) -> __m256 {
    // SAFETY: the caller has the features.
    unsafe {
        let low = _mm256_permute2f128_ps(x, y, 0x20);
        _mm256_add_ps(low, _mm256_permute2f128_ps(x, y, 0x31))
    }
}

/// The same within each half.
// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn add_pairs(x: __m256, y: __m256) -> __m256 {
    // SAFETY: the caller has the features.
    unsafe { _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x44), _mm256_shuffle_ps(x, y, 0xee)) }
}

/// The largest of eight.
// SAFETY: the caller has the features on.
#[inline(always)]
pub(super) unsafe fn largest256(v: __m256) -> f32 {
    // SAFETY: the caller has the features.
    unsafe {
        let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
}

// SAFETY (of the unsafe blocks): callers have the features and promise valid memory.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for __m256 {
    const N: usize = 8;
    const MANY: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> Self {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bits(p: *const u8, shift: u32, mask: i32) -> Self {
        unsafe { _mm256_cvtepi32_ps(bits(p, shift, mask)) }
    }
    #[inline(always)]
    unsafe fn look_up(p: *const u8, shift: u32, table: &[f32; 16]) -> Self {
        unsafe {
            let index = bits(p, shift, 15);
            let low = _mm256_permutevar8x32_ps(Self::load(table.as_ptr()), index);
            let high = _mm256_permutevar8x32_ps(Self::load(table.as_ptr().add(8)), index);
            // Bit 3 of the index moved to the sign chooses.
            let choose = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
            _mm256_blendv_ps(low, high, choose)
        }
    }
    #[inline(always)]
    unsafe fn splat_f16(p: *const u8) -> Self {
        unsafe { _mm256_cvtph_ps(_mm_set1_epi16(p.cast::<i16>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm256_storeu_ps(p, self) }
    }
    #[inline(always)]
    unsafe fn add(self, o: Self) -> Self {
        unsafe { _mm256_add_ps(self, o) }
    }
    #[inline(always)]
    unsafe fn sub(self, o: Self) -> Self {
        unsafe { _mm256_sub_ps(self, o) }
    }
    #[inline(always)]
    unsafe fn mul(self, o: Self) -> Self {
        unsafe { _mm256_mul_ps(self, o) }
    }
    #[inline(always)]
    unsafe fn div(self, o: Self) -> Self {
        unsafe { _mm256_div_ps(self, o) }
    }
    #[inline(always)]
    unsafe fn min(self, o: Self) -> Self {
        unsafe { _mm256_min_ps(self, o) }
    }
    #[inline(always)]
    unsafe fn max(self, o: Self) -> Self {
        unsafe { _mm256_max_ps(self, o) }
    }
    #[inline(always)]
    unsafe fn fma(self, a: Self, b: Self) -> Self {
        unsafe { _mm256_fmadd_ps(self, a, b) }
    }
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        unsafe {
            // min and max give their second operand when one is NaN.
            let x = _mm256_max_ps(Self::splat(EXP_MIN), _mm256_min_ps(Self::splat(89.0), self));
            let n = _mm256_round_ps(
                x.mul(Self::splat(std::f32::consts::LOG2_E)),
                _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC,
            );
            let r = _mm256_fnmadd_ps(n, Self::splat(LN2_HIGH), x);
            let r = _mm256_fnmadd_ps(n, Self::splat(LN2_LOW), r);
            let mut p = Self::splat(EXP_POLY[0]);
            for c in &EXP_POLY[1..] {
                p = p.fma(r, Self::splat(*c));
            }
            let y = p.fma(r.mul(r), r).add(Self::splat(1.0));
            // Two factors: 2^128 alone does not exist.
            let n = _mm256_cvtps_epi32(n);
            let half = _mm256_srai_epi32(n, 1);
            let y = y.mul(power_of_two(half)).mul(power_of_two(_mm256_sub_epi32(n, half)));
            let tiny = _mm256_cmp_ps(self, Self::splat(EXP_MIN), _CMP_LT_OQ);
            let huge = _mm256_cmp_ps(self, Self::splat(EXP_MAX), _CMP_GT_OQ);
            let y = _mm256_blendv_ps(y, Self::splat(f32::INFINITY), huge);
            _mm256_andnot_ps(tiny, y)
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe { sum256(self) }
    }
    #[inline(always)]
    unsafe fn sums(v: [Self; 8]) -> [f32; 8] {
        let mut out = [0.0; 8];
        unsafe { sums256(v).store(out.as_mut_ptr()) };
        out
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe { largest256(self) }
    }
    #[inline(always)]
    unsafe fn transpose(rows: &mut [Self; MAX_LANES]) {
        unsafe {
            let [a, b, c, d, e, f, g, h, ..] = *rows;
            let (ab, ab2) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd, cd2) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let (ef, ef2) = (_mm256_unpacklo_ps(e, f), _mm256_unpackhi_ps(e, f));
            let (gh, gh2) = (_mm256_unpacklo_ps(g, h), _mm256_unpackhi_ps(g, h));
            let quads = [
                (_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ef, gh, 0x44)),
                (_mm256_shuffle_ps(ab, cd, 0xee), _mm256_shuffle_ps(ef, gh, 0xee)),
                (_mm256_shuffle_ps(ab2, cd2, 0x44), _mm256_shuffle_ps(ef2, gh2, 0x44)),
                (_mm256_shuffle_ps(ab2, cd2, 0xee), _mm256_shuffle_ps(ef2, gh2, 0xee)),
            ];
            for (i, (low, high)) in quads.into_iter().enumerate() {
                rows[i] = _mm256_permute2f128_ps(low, high, 0x20);
                rows[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
            }
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch(p.cast(), _MM_HINT_T1) }
    }
}

/// `2^n` for `-126 <= n <= 127`.
// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn power_of_two(n: __m256i) -> __m256 {
    // SAFETY: the caller has the features.
    unsafe {
        let biased = _mm256_add_epi32(n, _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))
    }
}

/// `(byte >> shift) & mask` of eight bytes.
// SAFETY: the caller has the features on, and the pointers reach as far as the operands say.
#[inline(always)]
unsafe fn bits(p: *const u8, shift: u32, mask: i32) -> __m256i {
    // SAFETY: the caller has the features and eight bytes.
    unsafe {
        let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        let moved = _mm256_srlv_epi32(bytes, _mm256_set1_epi32(shift as i32));
        _mm256_and_si256(moved, _mm256_set1_epi32(mask))
    }
}
