//! The machine's instructions.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::RegisterWork;
use super::vector::{TileConfig, TileRegisters, Vector};

/// 256 bits: AVX2, FMA and F16C, and AVX-VNNI for `vpdpbusd`.
#[derive(Clone, Copy)]
pub(crate) struct Ymm;

/// 512 bits: AVX-512 F, BW, DQ and VL, and VNNI for `vpdpbusd`.
#[derive(Clone, Copy)]
pub(crate) struct Zmm;

/// Instructions that differ between widths by more than their names are written out.
macro_rules! vector {
    ($name:ident, $bytes:literal, $int:ty, $float:ty, $features:literal, $vnni:literal,
     $(fn $method:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)? { $code:expr })*) => {
        // SAFETY (of the unsafe blocks): callers have the features and promise valid memory.
        #[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
        impl Vector for $name {
            type I = $int;
            type F = $float;
            const BYTES: usize = $bytes;

            unsafe fn apart<W: RegisterWork>(work: W) {
                #[target_feature(enable = $features)]
                unsafe fn run<W: RegisterWork>(work: W) {
                    unsafe { work.run() }
                }
                unsafe { run(work) }
            }
            unsafe fn apart_vnni<W: RegisterWork>(work: W) {
                #[target_feature(enable = $features)]
                #[target_feature(enable = $vnni)]
                unsafe fn run<W: RegisterWork>(work: W) {
                    unsafe { work.run() }
                }
                unsafe { run(work) }
            }
            $(
                #[inline(always)]
                unsafe fn $method($($arg: $ty),*) $(-> $out)? {
                    unsafe { $code }
                }
            )*
        }
    };
}

/// Empty assembly that passes a register on. Assembly that is not `pure` keeps its order.
#[target_feature(enable = "avx2")]
#[inline]
fn pin_256(mut v: I2) -> I2 {
    // SAFETY: no instruction but a comment.
    unsafe { asm!("/* {0} */", inout(ymm_reg) v, options(nomem, nostack, preserves_flags)) }
    v
}

type I2 = __m256i;
type F2 = __m256;

vector! { Ymm, 32, __m256i, __m256, "avx2,fma,f16c", "avxvnni",
    fn vmovdqu(p: *const u8) -> I2 { _mm256_loadu_si256(p.cast()) }
    fn vmovdqu_store(v: I2, p: *mut u8) { _mm256_storeu_si256(p.cast(), v) }
    fn vpbroadcastb(x: u8) -> I2 { _mm256_set1_epi8(x as i8) }
    fn vpbroadcastw(x: u16) -> I2 { _mm256_set1_epi16(x as i16) }
    fn vpbroadcastd(x: u32) -> I2 { _mm256_set1_epi32(x as i32) }
    fn vbroadcasti128(p: *const u8) -> I2 { _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast())) }
    fn vpand(a: I2, b: I2) -> I2 { _mm256_and_si256(a, b) }
    fn vpor(a: I2, b: I2) -> I2 { _mm256_or_si256(a, b) }
    fn vpxor(a: I2, b: I2) -> I2 { _mm256_xor_si256(a, b) }
    fn vpcmpgtb(a: I2, b: I2) -> I2 { _mm256_cmpgt_epi8(a, b) }
    fn vpsrlw(v: I2, count: u32) -> I2 { _mm256_srl_epi16(v, _mm_cvtsi32_si128(count as i32)) }
    fn vpsllw(v: I2, count: u32) -> I2 { _mm256_sll_epi16(v, _mm_cvtsi32_si128(count as i32)) }
    fn vpsrld(v: I2, count: u32) -> I2 { _mm256_srl_epi32(v, _mm_cvtsi32_si128(count as i32)) }
    fn vpslld(v: I2, count: u32) -> I2 { _mm256_sll_epi32(v, _mm_cvtsi32_si128(count as i32)) }
    fn vpmaxsd(a: I2, b: I2) -> I2 { _mm256_max_epi32(a, b) }
    fn vpshufb(table: I2, index: I2) -> I2 { _mm256_shuffle_epi8(table, index) }
    fn vpermps(_index: I2, _v: F2) -> F2 { unreachable!("registers of AVX2 have eight floats") }
    fn as_floats(v: I2) -> F2 { _mm256_castsi256_ps(v) }
    fn vpsubb(a: I2, b: I2) -> I2 { _mm256_sub_epi8(a, b) }
    fn vpabsb(v: I2) -> I2 { _mm256_abs_epi8(v) }
    fn vpsignb(a: I2, b: I2) -> I2 { _mm256_sign_epi8(a, b) }
    fn vpmaddubsw(a: I2, b: I2) -> I2 { _mm256_maddubs_epi16(a, b) }
    fn vpmaddwd(a: I2, b: I2) -> I2 { _mm256_madd_epi16(a, b) }
    fn vpaddw(a: I2, b: I2) -> I2 { _mm256_add_epi16(a, b) }
    fn vpaddd(a: I2, b: I2) -> I2 { _mm256_add_epi32(a, b) }
    fn vpdpbusd(sum: I2, a: I2, b: I2) -> I2 { _mm256_dpbusd_avx_epi32(sum, a, b) }
    fn vcvtdq2ps(v: I2) -> F2 { _mm256_cvtepi32_ps(v) }
    fn vcvtph2ps(p: *const u8) -> F2 { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    fn vpmovzxbd(p: *const u8) -> I2 { _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())) }
    fn vpmovsxbd(p: *const u8) -> I2 { _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())) }
    fn vbroadcastss(x: f32) -> F2 { _mm256_set1_ps(x) }
    fn vmovups(p: *const f32) -> F2 { _mm256_loadu_ps(p) }
    fn vmovups_store(v: F2, p: *mut f32) { _mm256_storeu_ps(p, v) }
    fn vmulps(a: F2, b: F2) -> F2 { _mm256_mul_ps(a, b) }
    fn vaddps(a: F2, b: F2) -> F2 { _mm256_add_ps(a, b) }
    fn vfmaddps(a: F2, b: F2, c: F2) -> F2 { _mm256_fmadd_ps(a, b, c) }
    fn prefetcht0(p: *const u8) { _mm_prefetch(p.cast(), _MM_HINT_T0) }
    fn pin(v: I2) -> I2 { pin_256(v) }
}

type I5 = __m512i;
type F5 = __m512;

vector! { Zmm, 64, __m512i, __m512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c", "avx512vnni",

    fn vmovdqu(p: *const u8) -> I5 { _mm512_loadu_si512(p.cast()) }
    fn vmovdqu_store(v: I5, p: *mut u8) { _mm512_storeu_si512(p.cast(), v) }
    fn vpbroadcastb(x: u8) -> I5 { _mm512_set1_epi8(x as i8) }
    fn vpbroadcastw(x: u16) -> I5 { _mm512_set1_epi16(x as i16) }
    fn vpbroadcastd(x: u32) -> I5 { _mm512_set1_epi32(x as i32) }
    fn vbroadcasti128(p: *const u8) -> I5 { _mm512_broadcast_i32x4(_mm_loadu_si128(p.cast())) }
    fn vpand(a: I5, b: I5) -> I5 { _mm512_and_si512(a, b) }
    fn vpor(a: I5, b: I5) -> I5 { _mm512_or_si512(a, b) }
    fn vpxor(a: I5, b: I5) -> I5 { _mm512_xor_si512(a, b) }
    fn vpcmpgtb(_a: I5, _b: I5) -> I5 { unreachable!("AVX-512 compares into masks") }
    fn vpsrlw(v: I5, count: u32) -> I5 { _mm512_srl_epi16(v, _mm_cvtsi32_si128(count as i32)) }
    fn vpsllw(v: I5, count: u32) -> I5 { _mm512_sll_epi16(v, _mm_cvtsi32_si128(count as i32)) }
    fn vpsrld(v: I5, count: u32) -> I5 { _mm512_srl_epi32(v, _mm_cvtsi32_si128(count as i32)) }
    fn vpslld(v: I5, count: u32) -> I5 { _mm512_sll_epi32(v, _mm_cvtsi32_si128(count as i32)) }
    fn vpmaxsd(a: I5, b: I5) -> I5 { _mm512_max_epi32(a, b) }
    fn vpshufb(table: I5, index: I5) -> I5 { _mm512_shuffle_epi8(table, index) }
    fn vpermps(index: I5, v: F5) -> F5 { _mm512_permutexvar_ps(index, v) }
    fn as_floats(v: I5) -> F5 { _mm512_castsi512_ps(v) }
    fn vpsubb(a: I5, b: I5) -> I5 { _mm512_sub_epi8(a, b) }
    fn vpabsb(v: I5) -> I5 { _mm512_abs_epi8(v) }
    fn vpsignb(_a: I5, _b: I5) -> I5 { unreachable!("AVX-512 has no vpsignb") }
    fn vpmaddubsw(a: I5, b: I5) -> I5 { _mm512_maddubs_epi16(a, b) }
    fn vpmaddwd(a: I5, b: I5) -> I5 { _mm512_madd_epi16(a, b) }
    fn vpaddw(a: I5, b: I5) -> I5 { _mm512_add_epi16(a, b) }
    fn vpaddd(a: I5, b: I5) -> I5 { _mm512_add_epi32(a, b) }
    fn vpdpbusd(sum: I5, a: I5, b: I5) -> I5 { _mm512_dpbusd_epi32(sum, a, b) }
    fn vcvtdq2ps(v: I5) -> F5 { _mm512_cvtepi32_ps(v) }
    fn vcvtph2ps(p: *const u8) -> F5 { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    fn vpmovzxbd(p: *const u8) -> I5 { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
    fn vpmovsxbd(p: *const u8) -> I5 { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
    fn vbroadcastss(x: f32) -> F5 { _mm512_set1_ps(x) }
    fn vmovups(p: *const f32) -> F5 { _mm512_loadu_ps(p) }
    fn vmovups_store(v: F5, p: *mut f32) { _mm512_storeu_ps(p, v) }
    fn vmulps(a: F5, b: F5) -> F5 { _mm512_mul_ps(a, b) }
    fn vaddps(a: F5, b: F5) -> F5 { _mm512_add_ps(a, b) }
    fn vfmaddps(a: F5, b: F5, c: F5) -> F5 { _mm512_fmadd_ps(a, b, c) }
    fn prefetcht0(p: *const u8) { _mm_prefetch(p.cast(), _MM_HINT_T0) }
    fn pin(v: I5) -> I5 { v }
}

/// The tiles of the thread. The compiler does not know or use them. Assembly that is not `pure`
/// keeps its order, so each instruction sees the earlier results.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tmm;

/// One instruction per tile number.
macro_rules! each_tile {
    ($t:expr, $before:literal, $after:literal, $($operands:tt)*) => {
        match $t {
            0 => asm!(concat!($before, "tmm0", $after), $($operands)*),
            1 => asm!(concat!($before, "tmm1", $after), $($operands)*),
            2 => asm!(concat!($before, "tmm2", $after), $($operands)*),
            3 => asm!(concat!($before, "tmm3", $after), $($operands)*),
            4 => asm!(concat!($before, "tmm4", $after), $($operands)*),
            5 => asm!(concat!($before, "tmm5", $after), $($operands)*),
            6 => asm!(concat!($before, "tmm6", $after), $($operands)*),
            _ => asm!(concat!($before, "tmm7", $after), $($operands)*),
        }
    };
}

// The intrinsics are not stable in Rust (1.95). Operands are in Intel's order: the sums, then A,
// then B.
// SAFETY (of the unsafe blocks): callers have the features, a configuration and valid memory.
#[allow(clippy::undocumented_unsafe_blocks)]
impl TileRegisters for Tmm {
    #[inline(always)]
    unsafe fn ldtilecfg(&mut self, config: &TileConfig) {
        unsafe {
            asm!("ldtilecfg [{p}]", p = in(reg) std::ptr::from_ref(config),
                options(readonly, nostack, preserves_flags));
        }
    }
    #[inline(always)]
    unsafe fn tilerelease(&mut self) {
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) }
    }
    #[inline(always)]
    unsafe fn tilezero<const T: u8>(&mut self) {
        unsafe {
            each_tile!(T, "tilezero ", "", options(nomem, nostack, preserves_flags));
        }
    }
    #[inline(always)]
    unsafe fn tileloadd<const T: u8>(&mut self, p: *const u8, stride: usize) {
        unsafe {
            each_tile!(T, "tileloadd ", ", [{p} + {stride}*1]", p = in(reg) p,
                stride = in(reg) stride, options(readonly, nostack, preserves_flags));
        }
    }
    #[inline(always)]
    unsafe fn tilestored<const T: u8>(&mut self, p: *mut u8, stride: usize) {
        unsafe {
            each_tile!(T, "tilestored [{p} + {stride}*1], ", "", p = in(reg) p,
                stride = in(reg) stride, options(nostack, preserves_flags));
        }
    }
    #[inline(always)]
    unsafe fn tdpbf16ps<const C: u8, const A: u8, const B: u8>(&mut self) {
        unsafe {
            match (C, A, B) {
                (0, 4, 6) => {
                    asm!("tdpbf16ps tmm0, tmm4, tmm6", options(nomem, nostack, preserves_flags))
                }
                (1, 4, 7) => {
                    asm!("tdpbf16ps tmm1, tmm4, tmm7", options(nomem, nostack, preserves_flags))
                }
                (2, 5, 6) => {
                    asm!("tdpbf16ps tmm2, tmm5, tmm6", options(nomem, nostack, preserves_flags))
                }
                (3, 5, 7) => {
                    asm!("tdpbf16ps tmm3, tmm5, tmm7", options(nomem, nostack, preserves_flags))
                }
                (c, a, b) => unreachable!("tiles {c}, {a} and {b} are not multiplied"),
            }
        }
    }
}
