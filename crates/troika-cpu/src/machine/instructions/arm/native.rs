//! The machine's instructions.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Arm;

/// The machine's own.
#[derive(Clone, Copy)]
pub struct Native;

type V = uint8x16_t;

/// A register as other lanes, and back.
macro_rules! view {
    ($to:ident, $from:ident, $type:ty, $view:ident, $back:ident) => {
        #[inline(always)]
        fn $to(v: V) -> $type {
            // SAFETY: every 64-bit ARM processor has NEON.
            unsafe { $view(v) }
        }
        #[inline(always)]
        fn $from(v: $type) -> V {
            // SAFETY: every 64-bit ARM processor has NEON.
            unsafe { $back(v) }
        }
    };
}
view!(f, from_f, float32x4_t, vreinterpretq_f32_u8, vreinterpretq_u8_f32);
view!(u, from_u, uint32x4_t, vreinterpretq_u32_u8, vreinterpretq_u8_u32);
view!(s, from_s, int32x4_t, vreinterpretq_s32_u8, vreinterpretq_u8_s32);
view!(h, from_h, uint16x8_t, vreinterpretq_u16_u8, vreinterpretq_u8_u16);
view!(sh, from_sh, int16x8_t, vreinterpretq_s16_u8, vreinterpretq_u8_s16);
view!(d, from_d, uint64x2_t, vreinterpretq_u64_u8, vreinterpretq_u8_u64);

#[inline(always)]
fn b(v: V) -> int8x16_t {
    // SAFETY: every 64-bit ARM processor has NEON.
    unsafe { vreinterpretq_s8_u8(v) }
}

// Their intrinsics are not stable in Rust (1.95), so they are written in assembly.
macro_rules! product {
    ($name:ident, $feature:literal, $code:literal) => {
        #[inline]
        #[target_feature(enable = $feature)]
        fn $name(sum: V, a: V, b: V) -> V {
            let mut sum = sum;
            // SAFETY: arithmetic on registers, with the feature on.
            unsafe {
                asm!($code, sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags));
            }
            sum
        }
    };
}
product!(sdot, "dotprod", "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b");
product!(usdot, "i8mm", "usdot {sum:v}.4s, {a:v}.16b, {b:v}.16b");
product!(usmmla, "i8mm", "usmmla {sum:v}.4s, {a:v}.16b, {b:v}.16b");

// SAFETY (of the unsafe blocks): every 64-bit ARM processor has NEON; callers have the features
// beyond it and promise valid memory.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl Arm for Native {
    type V = V;

    methods! {
        #[inline(always)]
        // Hints: an address that is not mapped is ignored.
        fn prfm(p: *const u8) {
            asm!("prfm pldl1keep, [{p}]", p = in(reg) p.addr(),
                options(nomem, nostack, preserves_flags));
        }
        fn prfm_l2(p: *const u8) {
            asm!("prfm pldl2keep, [{p}]", p = in(reg) p.addr(),
                options(nomem, nostack, preserves_flags));
        }
        unsafe fn ld1(p: *const u8) -> V { vld1q_u8(p) }
        unsafe fn ldr_d(p: *const u8) -> V {
            from_d(vsetq_lane_u64(p.cast::<u64>().read_unaligned(), vdupq_n_u64(0), 0))
        }
        unsafe fn ldr_s(p: *const u8) -> V {
            from_u(vsetq_lane_u32(p.cast::<u32>().read_unaligned(), vdupq_n_u32(0), 0))
        }
        unsafe fn st1(v: V, p: *mut u8) { vst1q_u8(p, v) }
        fn dup_16b(x: u8) -> V { vdupq_n_u8(x) }
        fn dup_4s(x: u32) -> V { from_u(vdupq_n_u32(x)) }
        fn dup_2d(x: u64) -> V { from_d(vdupq_n_u64(x)) }
        fn umov_s(v: V) -> u32 { vgetq_lane_u32(u(v), 0) }
        fn and(x: V, y: V) -> V { vandq_u8(x, y) }
        fn orr(x: V, y: V) -> V { vorrq_u8(x, y) }
        fn eor(x: V, y: V) -> V { veorq_u8(x, y) }
        fn bic(x: V, y: V) -> V { vbicq_u8(x, y) }
        fn bsl(mask: V, x: V, y: V) -> V { vbslq_u8(mask, x, y) }
        fn ushl_16b(v: V, by: V) -> V { vshlq_u8(v, b(by)) }
        fn ushl_4s(v: V, by: V) -> V { from_u(vshlq_u32(u(v), s(by))) }
        fn sshl_4s(v: V, by: V) -> V { from_s(vshlq_s32(s(v), s(by))) }
        fn zip1_4s(x: V, y: V) -> V { from_u(vzip1q_u32(u(x), u(y))) }
        fn zip2_4s(x: V, y: V) -> V { from_u(vzip2q_u32(u(x), u(y))) }
        fn zip1_2d(x: V, y: V) -> V { from_d(vzip1q_u64(d(x), d(y))) }
        fn zip2_2d(x: V, y: V) -> V { from_d(vzip2q_u64(d(x), d(y))) }
        fn uzp1_4s(x: V, y: V) -> V { from_u(vuzp1q_u32(u(x), u(y))) }
        fn uzp2_4s(x: V, y: V) -> V { from_u(vuzp2q_u32(u(x), u(y))) }
        fn tbl(t: V, index: V) -> V { vqtbl1q_u8(t, index) }
        fn uxtl_8h(v: V) -> V { from_h(vmovl_u8(vget_low_u8(v))) }
        fn uxtl_4s(v: V) -> V { from_u(vmovl_u16(vget_low_u16(h(v)))) }
        fn sxtl_8h(v: V) -> V { from_sh(vmovl_s8(vget_low_s8(b(v)))) }
        fn sxtl_4s(v: V) -> V { from_s(vmovl_s16(vget_low_s16(sh(v)))) }
        fn shll_4s(v: V) -> V { from_u(vshll_n_u16::<16>(vget_low_u16(h(v)))) }
        fn add_4s(x: V, y: V) -> V { from_u(vaddq_u32(u(x), u(y))) }
        fn umax_4s(x: V, y: V) -> V { from_u(vmaxq_u32(u(x), u(y))) }
        fn sub_4s(x: V, y: V) -> V { from_u(vsubq_u32(u(x), u(y))) }
        fn smull_8h(x: V, y: V) -> V { from_sh(vmull_s8(vget_low_s8(b(x)), vget_low_s8(b(y)))) }
        fn smull2_8h(x: V, y: V) -> V { from_sh(vmull_high_s8(b(x), b(y))) }
        fn addp_8h(x: V, y: V) -> V { from_sh(vpaddq_s16(sh(x), sh(y))) }
        fn sadalp_4s(sum: V, v: V) -> V { from_s(vpadalq_s16(s(sum), sh(v))) }
        unsafe fn sdot(sum: V, x: V, y: V) -> V { sdot(sum, x, y) }
        unsafe fn usdot(sum: V, x: V, y: V) -> V { usdot(sum, x, y) }
        unsafe fn usmmla(sum: V, x: V, y: V) -> V { usmmla(sum, x, y) }
        fn scvtf(v: V) -> V { from_f(vcvtq_f32_s32(s(v))) }
        fn fcvtns(v: V) -> V { from_s(vcvtnq_s32_f32(f(v))) }
        fn frintn(v: V) -> V { from_f(vrndnq_f32(f(v))) }
        fn fadd(x: V, y: V) -> V { from_f(vaddq_f32(f(x), f(y))) }
        fn fsub(x: V, y: V) -> V { from_f(vsubq_f32(f(x), f(y))) }
        fn fmul(x: V, y: V) -> V { from_f(vmulq_f32(f(x), f(y))) }
        fn fdiv(x: V, y: V) -> V { from_f(vdivq_f32(f(x), f(y))) }
        fn fmin(x: V, y: V) -> V { from_f(vminq_f32(f(x), f(y))) }
        fn fmax(x: V, y: V) -> V { from_f(vmaxq_f32(f(x), f(y))) }
        fn fmla(sum: V, x: V, y: V) -> V { from_f(vfmaq_f32(f(sum), f(x), f(y))) }
        fn faddp(x: V, y: V) -> V { from_f(vpaddq_f32(f(x), f(y))) }
        fn fcmgt(x: V, y: V) -> V { from_u(vcgtq_f32(f(x), f(y))) }
    }

    #[inline(always)]
    fn fcvtl(v: V) -> V {
        let out: V;
        // The intrinsic is newer than the Rust version that this crate requires.
        // SAFETY: arithmetic on registers.
        unsafe {
            asm!("fcvtl {out:v}.4s, {v:v}.4h", out = lateout(vreg) out, v = in(vreg) v,
                options(pure, nomem, nostack, preserves_flags));
        }
        out
    }
}
