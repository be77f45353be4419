//! Arrays: the meaning of every operation, in plain Rust.

use half::f16;

use super::super::shape::ROWS;
use super::RowLanes;
use crate::machine::instructions::{RegisterWork, apart, methods};

type Bytes = [u8; 64];
type Quad = [i8; 4];
type Sums = [i32; ROWS];
type Floats = [f32; ROWS];

/// No intrinsics.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

#[inline(always)]
fn map(f: impl Fn(usize) -> f32) -> [f32; ROWS] {
    std::array::from_fn(f)
}

// SAFETY (of the unsafe blocks): callers promise valid memory; no features are needed.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl RowLanes for Portable {
    const WIDE: bool = false;
    // As with the functions that are not inlined: it costs a third of the speed where there is
    // nothing better than these arrays, and spares every build a megabyte and a minute.
    const COMPACT: bool = true;
    type Bytes = Bytes;
    type Weight = Bytes;
    type Signed = ();
    type Quad = Quad;
    type Sums = Sums;
    type Partial = Sums;
    type Floats = Floats;

    unsafe fn apart<W: RegisterWork>(work: W) {
        unsafe { apart(work) }
    }

    methods! {
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Bytes { p.cast::<Bytes>().read_unaligned() }
        unsafe fn or(a: Bytes, b: Bytes) -> Bytes { std::array::from_fn(|i| a[i] | b[i]) }
        unsafe fn column(b: Bytes, c: usize) -> Floats { map(|i| f32::from(b[4 * i + c])) }
        unsafe fn store_bytes(b: Bytes, p: *mut u8) { p.cast::<Bytes>().write_unaligned(b) }
        unsafe fn weight(_: bool, b: Bytes) -> Bytes { b }
        unsafe fn quad(p: *const u8) -> Quad { p.cast::<Quad>().read_unaligned() }
        unsafe fn begin(_: bool, correction: i32) -> Sums { [correction; ROWS] }
        unsafe fn part(_: bool, sums: Sums) -> Sums { sums }
        unsafe fn fold(_: bool, _: Sums, part: Sums) -> Sums { part }
        unsafe fn load_sums(p: *const i32) -> Sums { p.cast::<Sums>().read_unaligned() }
        unsafe fn store_sums(sums: Sums, p: *mut i32) { p.cast::<Sums>().write_unaligned(sums) }
        unsafe fn to_floats(sums: Sums) -> Floats { map(|i| sums[i] as f32) }
        unsafe fn splat(x: f32) -> Floats { [x; ROWS] }
        unsafe fn load_f32(p: *const f32) -> Floats { p.cast::<Floats>().read_unaligned() }
        unsafe fn load_u8(p: *const u8) -> Floats { map(|i| f32::from(*p.add(i))) }
        unsafe fn load_u4(p: *const u8, shift: u32) -> Floats {
            map(|i| f32::from(*p.add(i) >> shift & 15))
        }
        unsafe fn load_i8(p: *const u8) -> Floats { map(|i| f32::from(*p.add(i) as i8)) }
        unsafe fn store(f: Floats, p: *mut f32) { p.cast::<Floats>().write_unaligned(f) }
        unsafe fn mul(a: Floats, b: Floats) -> Floats { map(|i| a[i] * b[i]) }
        unsafe fn add(a: Floats, b: Floats) -> Floats { map(|i| a[i] + b[i]) }
        unsafe fn prefetch(_: *const u8) {}
    }

    methods! {
        #[inline(never)]
        unsafe fn bits(b: Bytes, shift: u32, mask: u8) -> Bytes { b.map(|b| (b >> shift) & mask) }
        unsafe fn moved(b: Bytes, left: i32, mask: u8) -> Bytes {
            let by = left.unsigned_abs();
            b.map(|b| if left < 0 { b >> by } else { b << by } & mask)
        }
        unsafe fn dot(_: bool, part: Sums, w: Bytes, x: Quad) -> Sums {
            std::array::from_fn(|r| {
                let product = |i: usize| i32::from(w[4 * r + i]) * i32::from(x[i]);
                part[r] + product(0) + product(1) + product(2) + product(3)
            })
        }
        unsafe fn look_up(table: *const u8, b: Bytes) -> Bytes {
            b.map(|b| *table.add(usize::from(b)))
        }
        unsafe fn load_e8m0_half(p: *const u8) -> Floats {
            map(|i| troika_graph::blocks::e8m0_half(*p.add(i)))
        }
        unsafe fn load_f16(p: *const u8) -> Floats {
            let halves = p.cast::<[f16; ROWS]>().read_unaligned();
            map(|i| halves[i].to_f32())
        }
        unsafe fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
            // One rounding, as the vector units do: results do not depend on the instruction set.
            map(|i| a[i].mul_add(b[i], c[i]))
        }
    }
}
