//! AVX-512 with VNNI: sixteen rows are one register, four products per row one `vpdpbusd`.

use std::arch::x86_64::*;

use super::super::tile::{self, Part};
use super::Rows;

/// Whether the machine has VNNI beside the AVX-512 sets of [`crate::Isa::Avx512`].
pub(super) fn is_available() -> bool {
    std::arch::is_x86_feature_detected!("avx512vnni")
}

/// Runs a part with the features switched on.
///
/// # Safety
/// As for [`tile::run`]; the machine has AVX-512 F, BW, DQ, VL and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn run(part: Part<'_>) {
    // SAFETY: passed on.
    unsafe { tile::run::<Vnni>(part) }
}

/// One 512-bit register.
#[derive(Clone, Copy)]
pub(super) struct Vnni;

// SAFETY (of the unsafe blocks): callers have the features and promise valid memory.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Rows for Vnni {
    const WIDE: bool = true;
    type Bytes = __m512i;
    type Weight = __m512i;
    type Quad = __m512i;
    type Sums = __m512i;
    type Part = __m512i;
    type Floats = __m512;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn bits(b: __m512i, shift: u32, mask: u8) -> __m512i {
        unsafe {
            let moved = _mm512_srl_epi16(b, _mm_cvtsi32_si128(shift as i32));
            _mm512_and_si512(moved, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    unsafe fn join(a: __m512i, b: __m512i, shift: u32) -> __m512i {
        unsafe { _mm512_or_si512(a, _mm512_sll_epi16(b, _mm_cvtsi32_si128(shift as i32))) }
    }
    #[inline(always)]
    unsafe fn store_bytes(b: __m512i, p: *mut u8) {
        unsafe { _mm512_storeu_si512(p.cast(), b) }
    }
    #[inline(always)]
    unsafe fn weight(_: bool, b: __m512i) -> __m512i {
        b
    }
    #[inline(always)]
    unsafe fn quad(p: *const u8) -> __m512i {
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn begin(_: bool, correction: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(correction) }
    }
    #[inline(always)]
    unsafe fn part(sums: __m512i) -> __m512i {
        sums
    }
    #[inline(always)]
    unsafe fn dot(_: bool, part: __m512i, w: __m512i, x: __m512i) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(part, w, x) }
    }
    #[inline(always)]
    unsafe fn fold(_: bool, _: __m512i, part: __m512i) -> __m512i {
        part
    }
    #[inline(always)]
    unsafe fn to_floats(sums: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(sums) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn store(f: __m512, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, f) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch(p.cast(), _MM_HINT_T0) }
    }
}
