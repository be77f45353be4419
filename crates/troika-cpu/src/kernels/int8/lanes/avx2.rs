//! AVX2: sixteen rows are a pair of registers; products by `vpmaddubsw` and `vpmaddwd`.

use std::arch::x86_64::*;

use super::super::tile::{self, Part};
use super::Rows;

/// Runs a part with the features switched on.
///
/// # Safety
/// As for [`tile::run`]; the machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run(part: Part<'_>) {
    // SAFETY: passed on.
    unsafe { tile::run::<Avx2>(part) }
}

/// A pair of 256-bit registers.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

type Pair = [__m256i; 2];

/// Bytes as they are or, when all eight bits are used, less 128: absolute and signed values.
#[derive(Clone, Copy)]
pub(super) struct Weight {
    unsigned: Pair,
    signed: Pair,
}

// SAFETY (of the unsafe blocks): callers have the features and promise valid memory.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Rows for Avx2 {
    const WIDE: bool = false;
    type Bytes = Pair;
    type Weight = Weight;
    type Quad = __m256i;
    type Sums = Pair;
    type Part = Pair;
    type Floats = [__m256; 2];

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Pair {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn bits(b: Pair, shift: u32, mask: u8) -> Pair {
        unsafe {
            let (count, mask) = (_mm_cvtsi32_si128(shift as i32), _mm256_set1_epi8(mask as i8));
            [
                _mm256_and_si256(_mm256_srl_epi16(b[0], count), mask),
                _mm256_and_si256(_mm256_srl_epi16(b[1], count), mask),
            ]
        }
    }
    #[inline(always)]
    unsafe fn join(a: Pair, b: Pair, shift: u32) -> Pair {
        unsafe {
            let count = _mm_cvtsi32_si128(shift as i32);
            [
                _mm256_or_si256(a[0], _mm256_sll_epi16(b[0], count)),
                _mm256_or_si256(a[1], _mm256_sll_epi16(b[1], count)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(b: Pair, p: *mut u8) {
        unsafe {
            _mm256_storeu_si256(p.cast(), b[0]);
            _mm256_storeu_si256(p.add(32).cast(), b[1]);
        }
    }
    #[inline(always)]
    unsafe fn weight(full: bool, b: Pair) -> Weight {
        if !full {
            return Weight { unsigned: b, signed: b };
        }
        unsafe {
            let flip = _mm256_set1_epi8(-128);
            let signed = [_mm256_xor_si256(b[0], flip), _mm256_xor_si256(b[1], flip)];
            let unsigned = [_mm256_abs_epi8(signed[0]), _mm256_abs_epi8(signed[1])];
            Weight { unsigned, signed }
        }
    }
    #[inline(always)]
    unsafe fn quad(p: *const u8) -> __m256i {
        unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn begin(full: bool, correction: i32) -> Pair {
        unsafe { [_mm256_set1_epi32(if full { 0 } else { correction }); 2] }
    }
    #[inline(always)]
    unsafe fn part(_: Pair) -> Pair {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn dot(full: bool, part: Pair, w: Weight, x: __m256i) -> Pair {
        let mut out = part;
        for i in 0..2 {
            out[i] = unsafe {
                if full {
                    // |w| <= 128 and |x| <= 127: pairs of products fit 16 bits.
                    let x = _mm256_sign_epi8(x, w.signed[i]);
                    let pairs = _mm256_maddubs_epi16(w.unsigned[i], x);
                    let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                    _mm256_add_epi32(part[i], quads)
                } else {
                    _mm256_add_epi16(part[i], _mm256_maddubs_epi16(w.unsigned[i], x))
                }
            };
        }
        out
    }
    #[inline(always)]
    unsafe fn fold(full: bool, sums: Pair, part: Pair) -> Pair {
        let mut out = sums;
        for i in 0..2 {
            out[i] = unsafe {
                let add =
                    if full { part[i] } else { _mm256_madd_epi16(part[i], _mm256_set1_epi16(1)) };
                _mm256_add_epi32(sums[i], add)
            };
        }
        out
    }
    #[inline(always)]
    unsafe fn to_floats(s: Pair) -> [__m256; 2] {
        unsafe { [_mm256_cvtepi32_ps(s[0]), _mm256_cvtepi32_ps(s[1])] }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> [__m256; 2] {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> [__m256; 2] {
        unsafe {
            let half = |i: usize| _mm256_cvtph_ps(_mm_loadu_si128(p.add(16 * i).cast()));
            [half(0), half(1)]
        }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> [__m256; 2] {
        unsafe {
            let low = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let high = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> [__m256; 2] {
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8).cast()));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn store(f: [__m256; 2], p: *mut f32) {
        unsafe {
            _mm256_storeu_ps(p, f[0]);
            _mm256_storeu_ps(p.add(8), f[1]);
        }
    }
    #[inline(always)]
    unsafe fn mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn fma(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch(p.cast(), _MM_HINT_T0) }
    }
}
