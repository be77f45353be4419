//! 64-bit ARM: NEON, and the products of bytes that came later (`dotprod`, `i8mm`).

#[cfg(any(test, feature = "emulate"))]
mod emulated;
#[cfg(target_arch = "aarch64")]
mod native;

#[cfg(any(test, feature = "emulate"))]
pub use emulated::Emulated;
#[cfg(target_arch = "aarch64")]
pub use native::Native;

/// Instructions on registers of 128 bits, named as in the Arm Architecture Reference Manual
/// (DDI 0487) with the lanes they work on: `_16b`, `_8h`, `_4s`, `_2d`; without, on all bits or
/// on four f32. Lane 0 is the lowest; the widening ones without `2` read the lower half.
///
/// # Safety
/// Loads and stores need valid memory for their size and no alignment; `sdot` needs `dotprod`,
/// `usdot` and `usmmla` need `i8mm`. The others are in every 64-bit ARM processor.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub trait Arm: Copy {
    /// A register.
    type V: Copy;
    /// Whether these are the machine's instructions. Kernels on others are not unrolled, since
    /// compiling that would take minutes.
    const NATIVE: bool = true;

    /// 16 bytes.
    unsafe fn ld1(p: *const u8) -> Self::V;
    /// 8 bytes, then zeros.
    unsafe fn ldr_d(p: *const u8) -> Self::V;
    /// 4 bytes, then zeros.
    unsafe fn ldr_s(p: *const u8) -> Self::V;
    /// 16 bytes.
    unsafe fn st1(v: Self::V, p: *mut u8);
    /// Prefetches a cache line; any address is allowed.
    fn prfm(p: *const u8);
    /// Like [`Arm::prfm`], into the second-level cache.
    fn prfm_l2(p: *const u8);
    fn dup_16b(x: u8) -> Self::V;
    fn dup_4s(x: u32) -> Self::V;
    fn dup_2d(x: u64) -> Self::V;
    /// Lane 0 of four.
    fn umov_s(v: Self::V) -> u32;

    fn and(a: Self::V, b: Self::V) -> Self::V;
    fn orr(a: Self::V, b: Self::V) -> Self::V;
    fn eor(a: Self::V, b: Self::V) -> Self::V;
    /// `a & !b`.
    fn bic(a: Self::V, b: Self::V) -> Self::V;
    /// Bits of `a` where the mask is set, else of `b`.
    fn bsl(mask: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Shifts unsigned lanes left by the lanes of `by`; negative ones shift right.
    fn ushl_16b(v: Self::V, by: Self::V) -> Self::V;
    fn ushl_4s(v: Self::V, by: Self::V) -> Self::V;
    /// Like [`Arm::ushl_4s`], for signed lanes.
    fn sshl_4s(v: Self::V, by: Self::V) -> Self::V;
    fn zip1_4s(a: Self::V, b: Self::V) -> Self::V;
    fn zip2_4s(a: Self::V, b: Self::V) -> Self::V;
    fn zip1_2d(a: Self::V, b: Self::V) -> Self::V;
    fn zip2_2d(a: Self::V, b: Self::V) -> Self::V;
    fn uzp1_4s(a: Self::V, b: Self::V) -> Self::V;
    fn uzp2_4s(a: Self::V, b: Self::V) -> Self::V;
    /// Bytes from a table of 16; 0 for larger indices.
    fn tbl(table: Self::V, index: Self::V) -> Self::V;

    fn uxtl_8h(v: Self::V) -> Self::V;
    fn uxtl_4s(v: Self::V) -> Self::V;
    fn sxtl_8h(v: Self::V) -> Self::V;
    fn sxtl_4s(v: Self::V) -> Self::V;
    /// Four u16, each moved to the upper half of 32 bits.
    fn shll_4s(v: Self::V) -> Self::V;
    fn add_4s(a: Self::V, b: Self::V) -> Self::V;
    fn umax_4s(a: Self::V, b: Self::V) -> Self::V;
    fn sub_4s(a: Self::V, b: Self::V) -> Self::V;

    /// Products of the lower eight signed bytes.
    fn smull_8h(a: Self::V, b: Self::V) -> Self::V;
    /// Products of the upper eight signed bytes.
    fn smull2_8h(a: Self::V, b: Self::V) -> Self::V;
    /// Sums of neighbours: first in `a`, then in `b`.
    fn addp_8h(a: Self::V, b: Self::V) -> Self::V;
    /// Adds sums of neighbouring i16.
    fn sadalp_4s(sum: Self::V, v: Self::V) -> Self::V;
    /// Adds four products of signed bytes to each of four sums.
    unsafe fn sdot(sum: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Like `sdot`, with unsigned bytes in `a`.
    unsafe fn usdot(sum: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Adds the product of matrices: two rows of eight unsigned bytes by two columns of eight
    /// signed ones, to `[a0 b0, a0 b1, a1 b0, a1 b1]`.
    unsafe fn usmmla(sum: Self::V, a: Self::V, b: Self::V) -> Self::V;

    /// Four f16 as f32.
    fn fcvtl(v: Self::V) -> Self::V;
    /// From i32.
    fn scvtf(v: Self::V) -> Self::V;
    /// To the nearest i32, ties to even.
    fn fcvtns(v: Self::V) -> Self::V;
    /// To the nearest whole number, ties to even.
    fn frintn(v: Self::V) -> Self::V;
    fn fadd(a: Self::V, b: Self::V) -> Self::V;
    fn fsub(a: Self::V, b: Self::V) -> Self::V;
    fn fmul(a: Self::V, b: Self::V) -> Self::V;
    fn fdiv(a: Self::V, b: Self::V) -> Self::V;
    /// NaN if one is.
    fn fmin(a: Self::V, b: Self::V) -> Self::V;
    /// NaN if one is.
    fn fmax(a: Self::V, b: Self::V) -> Self::V;
    /// `sum + a * b`, rounded once.
    fn fmla(sum: Self::V, a: Self::V, b: Self::V) -> Self::V;
    /// Sums of neighbours: first in `a`, then in `b`.
    fn faddp(a: Self::V, b: Self::V) -> Self::V;
    /// All bits of a lane where `a > b`.
    fn fcmgt(a: Self::V, b: Self::V) -> Self::V;
}
