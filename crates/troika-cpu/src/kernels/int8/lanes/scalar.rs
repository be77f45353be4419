//! Arrays: the meaning of every operation, in plain Rust.

use half::f16;

use super::super::layout::ROWS;
use super::RowLanes;
use crate::machine::instructions::{RegisterWork, apart};

/// No intrinsics.
#[derive(Clone, Copy)]
pub(in super::super) struct Portable;

#[inline(always)]
fn map(f: impl Fn(usize) -> f32) -> [f32; ROWS] {
    std::array::from_fn(f)
}

// SAFETY (of the unsafe blocks): callers promise valid memory; no features are needed.
#[allow(clippy::undocumented_unsafe_blocks)]
impl RowLanes for Portable {
    const WIDE: bool = false;
    // As with the functions that are not inlined: it costs a third of the speed where there is
    // nothing better than these arrays, and spares every build a megabyte and a minute.
    const COMPACT: bool = true;
    type Bytes = [u8; 64];
    type Weight = [u8; 64];
    type Signed = ();
    type Quad = [i8; 4];
    type Sums = [i32; ROWS];
    type Partial = [i32; ROWS];
    type Floats = [f32; ROWS];

    unsafe fn apart<W: RegisterWork>(work: W) {
        unsafe { apart(work) }
    }
    #[inline(always)]
    unsafe fn load(p: *const u8) -> [u8; 64] {
        unsafe { p.cast::<[u8; 64]>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn bits(b: [u8; 64], shift: u32, mask: u8) -> [u8; 64] {
        b.map(|b| (b >> shift) & mask)
    }
    #[inline(never)]
    unsafe fn moved(b: [u8; 64], left: i32, mask: u8) -> [u8; 64] {
        let by = left.unsigned_abs();
        b.map(|b| if left < 0 { b >> by } else { b << by } & mask)
    }
    #[inline(always)]
    unsafe fn or(a: [u8; 64], b: [u8; 64]) -> [u8; 64] {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn store_bytes(b: [u8; 64], p: *mut u8) {
        unsafe { p.cast::<[u8; 64]>().write_unaligned(b) }
    }
    #[inline(always)]
    unsafe fn weight(_: bool, b: [u8; 64]) -> [u8; 64] {
        b
    }
    #[inline(never)]
    unsafe fn less(b: [u8; 64], zero: u8) -> [u8; 64] {
        b.map(|b| b.wrapping_sub(zero))
    }
    #[inline(always)]
    unsafe fn quad(p: *const u8) -> [i8; 4] {
        unsafe { p.cast::<[i8; 4]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn begin(_: bool, correction: i32) -> [i32; ROWS] {
        [correction; ROWS]
    }
    #[inline(always)]
    unsafe fn part(_: bool, sums: [i32; ROWS]) -> [i32; ROWS] {
        sums
    }
    #[inline(never)]
    unsafe fn dot(_: bool, part: [i32; ROWS], w: [u8; 64], x: [i8; 4]) -> [i32; ROWS] {
        std::array::from_fn(|r| {
            let product = |i: usize| i32::from(w[4 * r + i]) * i32::from(x[i]);
            part[r] + product(0) + product(1) + product(2) + product(3)
        })
    }
    #[inline(always)]
    unsafe fn fold(_: bool, _: [i32; ROWS], part: [i32; ROWS]) -> [i32; ROWS] {
        part
    }
    #[inline(always)]
    unsafe fn load_sums(p: *const i32) -> [i32; ROWS] {
        unsafe { p.cast::<[i32; ROWS]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_sums(sums: [i32; ROWS], p: *mut i32) {
        unsafe { p.cast::<[i32; ROWS]>().write_unaligned(sums) }
    }
    #[inline(always)]
    unsafe fn to_floats(sums: [i32; ROWS]) -> [f32; ROWS] {
        map(|i| sums[i] as f32)
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; ROWS] {
        [x; ROWS]
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> [f32; ROWS] {
        unsafe { p.cast::<[f32; ROWS]>().read_unaligned() }
    }
    #[inline(never)]
    unsafe fn load_f16(p: *const u8) -> [f32; ROWS] {
        let halves = unsafe { p.cast::<[f16; ROWS]>().read_unaligned() };
        map(|i| halves[i].to_f32())
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> [f32; ROWS] {
        map(|i| f32::from(unsafe { *p.add(i) }))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> [f32; ROWS] {
        map(|i| f32::from(unsafe { *p.add(i) } as i8))
    }
    #[inline(always)]
    unsafe fn store(f: [f32; ROWS], p: *mut f32) {
        unsafe { p.cast::<[f32; ROWS]>().write_unaligned(f) }
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; ROWS], b: [f32; ROWS]) -> [f32; ROWS] {
        map(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn add(a: [f32; ROWS], b: [f32; ROWS]) -> [f32; ROWS] {
        map(|i| a[i] + b[i])
    }
    #[inline(never)]
    unsafe fn fma(a: [f32; ROWS], b: [f32; ROWS], c: [f32; ROWS]) -> [f32; ROWS] {
        // One rounding, as the vector units do: results do not depend on the instruction set.
        map(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}
