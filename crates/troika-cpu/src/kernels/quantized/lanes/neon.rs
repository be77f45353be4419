//! NEON: sixteen rows are four registers. Products come in three strengths: `smull` (every
//! 64-bit ARM processor), `sdot` (`dotprod`), `usdot` and `usmmla` (`i8mm`).

use std::marker::PhantomData;

use super::super::shape::{QUAD, ROWS};
use super::{RowLanes, trip_count};
use crate::machine::instructions::arm::Arm;
use crate::machine::instructions::{RegisterWork, apart, methods};

/// Sixteen rows.
type Four<A> = [<A as Arm>::V; 4];

/// Four registers of `A`, multiplied by `P`.
#[derive(Clone, Copy)]
pub(crate) struct Neon<A, P>(PhantomData<(A, P)>);

/// How bytes are multiplied.
///
/// # Safety
/// All methods need the instructions of the implementing type.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Products<A: Arm>: Copy {
    /// Whether weights are signed in products, 128 less than their bytes when all bits are used.
    const SIGNED: bool;
    /// Whether [`Products::square`] exists.
    const PAIRED: bool;

    /// Adds four products to each of four sums.
    unsafe fn dot(sum: A::V, w: A::V, x: A::V) -> A::V;

    /// Adds two rows of eight weights times two rows of eight activations.
    unsafe fn square(_sum: A::V, _w: A::V, _x: A::V) -> A::V {
        unreachable!("products of single rows only")
    }
}

/// Products of 16 bits, added in pairs.
#[derive(Clone, Copy)]
pub(crate) struct Smull;
/// `dotprod`.
#[derive(Clone, Copy)]
pub(crate) struct Sdot;
/// `i8mm`.
#[derive(Clone, Copy)]
pub(crate) struct Usmmla;

impl<A: Arm> Products<A> for Smull {
    const SIGNED: bool = true;
    const PAIRED: bool = false;
    #[inline(always)]
    unsafe fn dot(sum: A::V, w: A::V, x: A::V) -> A::V {
        // |w| <= 128 and |x| <= 127: two products fit 16 bits.
        A::sadalp_4s(sum, A::addp_8h(A::smull_8h(w, x), A::smull2_8h(w, x)))
    }
}

impl<A: Arm> Products<A> for Sdot {
    const SIGNED: bool = true;
    const PAIRED: bool = false;
    #[inline(always)]
    unsafe fn dot(sum: A::V, w: A::V, x: A::V) -> A::V {
        // SAFETY: `dotprod` by the caller.
        unsafe { A::sdot(sum, w, x) }
    }
}

impl<A: Arm> Products<A> for Usmmla {
    const SIGNED: bool = false;
    const PAIRED: bool = true;
    #[inline(always)]
    unsafe fn dot(sum: A::V, w: A::V, x: A::V) -> A::V {
        // SAFETY: `i8mm` by the caller.
        unsafe { A::usdot(sum, w, x) }
    }
    #[inline(always)]
    unsafe fn square(sum: A::V, w: A::V, x: A::V) -> A::V {
        // SAFETY: `i8mm` by the caller.
        unsafe { A::usmmla(sum, w, x) }
    }
}

#[inline(always)]
fn each<V: Copy>(f: impl Fn(usize) -> V) -> [V; 4] {
    [f(0), f(1), f(2), f(3)]
}

/// Bytes less 128, which stands for zero: their highest bit flips.
#[inline(always)]
fn less_128<A: Arm>(b: Four<A>) -> Four<A> {
    b.map(|b| A::eor(b, A::dup_16b(128)))
}

/// Four floats of bytes at `p`, widened by `f`.
///
/// # Safety
/// 16 bytes at `p`.
#[inline(always)]
unsafe fn from_bytes<A: Arm>(p: *const u8, f: impl Fn(A::V) -> A::V) -> [A::V; 4] {
    // SAFETY: by the caller.
    each(|i| A::scvtf(f(unsafe { A::ldr_s(p.add(4 * i)) })))
}

// SAFETY (of the unsafe blocks): callers have the features and promise valid memory.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl<A: Arm, P: Products<A>> RowLanes for Neon<A, P> {
    // Of 32 registers, 24 hold the sums of six activation rows with one panel.
    const WIDE: bool = true;
    const PANELS: usize = 1;
    const PAIRED: bool = P::PAIRED;
    const SIGNED: bool = P::SIGNED;
    const COMPACT: bool = !A::NATIVE;
    type Bytes = Four<A>;
    type Weight = Four<A>;
    type Signed = Four<A>;
    type Quad = A::V;
    type Sums = Four<A>;
    type Partial = Four<A>;
    type Floats = Four<A>;

    #[inline(always)]
    unsafe fn apart<W: RegisterWork>(work: W) {
        // The caller has checked the machine's features.
        unsafe { if A::NATIVE { work.run() } else { apart(work) } }
    }

    methods! {
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Four<A> { each(|i| A::ld1(p.add(16 * i))) }
        unsafe fn bits(b: Four<A>, shift: u32, mask: u8) -> Four<A> {
            let right = A::dup_16b(0u8.wrapping_sub(shift as u8));
            each(|i| A::and(A::ushl_16b(b[i], right), A::dup_16b(mask)))
        }
        unsafe fn moved(b: Four<A>, left: i32, mask: u8) -> Four<A> {
            let by = A::dup_16b(left as u8);
            each(|i| A::and(A::ushl_16b(b[i], by), A::dup_16b(mask)))
        }
        unsafe fn prefetch(p: *const u8) { A::prfm(p) }
        unsafe fn or(a: Four<A>, b: Four<A>) -> Four<A> { each(|i| A::orr(a[i], b[i])) }
        unsafe fn look_up(table: *const u8, b: Four<A>) -> Four<A> {
            let table = A::ld1(table);
            b.map(|b| A::tbl(table, b))
        }
        unsafe fn column(b: Four<A>, c: usize) -> Four<A> {
            let (right, mask) = (A::dup_4s((8 * c as u32).wrapping_neg()), A::dup_4s(255));
            b.map(|b| A::scvtf(A::and(A::ushl_4s(b, right), mask)))
        }
        unsafe fn store_bytes(b: Four<A>, p: *mut u8) {
            for (i, b) in b.into_iter().enumerate() {
                A::st1(b, p.add(16 * i))
            }
        }
        unsafe fn weight(full: bool, b: Four<A>) -> Four<A> {
            if full && P::SIGNED { less_128::<A>(b) } else { b }
        }
        unsafe fn store_signed(b: Four<A>, start: Four<A>, p: *mut u8) -> Four<A> {
            Self::store_bytes(less_128::<A>(b), p);
            start
        }
        unsafe fn load_signed(p: *const u8) -> Four<A> { Self::load(p) }
        unsafe fn dot_signed(part: Four<A>, w: Four<A>, x: A::V) -> Four<A> {
            Self::dot(true, part, w, x)
        }
        unsafe fn quad(p: *const u8) -> A::V { A::dup_4s(p.cast::<u32>().read_unaligned()) }
        unsafe fn begin(full: bool, correction: i32) -> Four<A> {
            [A::dup_4s(if full && P::SIGNED { 0 } else { correction as u32 }); 4]
        }
        unsafe fn part(_: bool, sums: Four<A>) -> Four<A> { sums }
        unsafe fn dot(_: bool, part: Four<A>, w: Four<A>, x: A::V) -> Four<A> {
            each(|i| P::dot(part[i], w[i], x))
        }
        unsafe fn fold(_: bool, _: Four<A>, part: Four<A>) -> Four<A> { part }
        unsafe fn load_sums(p: *const i32) -> Four<A> { Self::load(p.cast()) }
        unsafe fn store_sums(sums: Four<A>, p: *mut i32) { Self::store_bytes(sums, p.cast()) }
        unsafe fn to_floats(sums: Four<A>) -> Four<A> { sums.map(A::scvtf) }
        unsafe fn splat(x: f32) -> Four<A> { [A::dup_4s(x.to_bits()); 4] }
        unsafe fn load_f32(p: *const f32) -> Four<A> { each(|i| A::ld1(p.add(4 * i).cast())) }
        unsafe fn load_f16(p: *const u8) -> Four<A> { each(|i| A::fcvtl(A::ldr_d(p.add(8 * i)))) }
        unsafe fn load_e8m0_half(p: *const u8) -> Four<A> {
            // An exponent less by one, and the two subnormal numbers.
            let small = A::dup_4s(0x00a0_0000);
            let less = A::dup_4s((1u32 << 23).wrapping_neg());
            each(|i| {
                let e = A::uxtl_4s(A::uxtl_8h(A::ldr_s(p.add(4 * i))));
                let small = A::add_4s(A::ushl_4s(e, A::dup_4s(21)), small);
                A::add_4s(A::umax_4s(A::ushl_4s(e, A::dup_4s(23)), small), less)
            })
        }
        unsafe fn load_u8(p: *const u8) -> Four<A> {
            from_bytes::<A>(p, |v| A::uxtl_4s(A::uxtl_8h(v)))
        }
        unsafe fn load_u4(p: *const u8, shift: u32) -> Four<A> {
            let (right, mask) = (A::dup_4s(shift.wrapping_neg()), A::dup_4s(15));
            from_bytes::<A>(p, |v| A::and(A::ushl_4s(A::uxtl_4s(A::uxtl_8h(v)), right), mask))
        }
        unsafe fn load_i8(p: *const u8) -> Four<A> {
            from_bytes::<A>(p, |v| A::sxtl_4s(A::sxtl_8h(v)))
        }
        unsafe fn store(f: Four<A>, p: *mut f32) {
            for (i, f) in f.into_iter().enumerate() {
                A::st1(f, p.add(4 * i).cast())
            }
        }
        unsafe fn mul(a: Four<A>, b: Four<A>) -> Four<A> { each(|i| A::fmul(a[i], b[i])) }
        unsafe fn add(a: Four<A>, b: Four<A>) -> Four<A> { each(|i| A::fadd(a[i], b[i])) }
        unsafe fn fma(a: Four<A>, b: Four<A>, c: Four<A>) -> Four<A> {
            each(|i| A::fmla(c[i], a[i], b[i]))
        }
    }

    #[inline(always)]
    unsafe fn pairs<const M: usize, const QUADS: usize>(
        w: *const u8,
        xs: [*const u8; M],
        begin: [i32; M],
    ) -> [Four<A>; M] {
        // `squares[m / 2][i]`: weight rows `2 i` and `2 i + 1` with activation rows `m`, `m + 1`.
        let start = |m: usize| u64::from(begin[m] as u32) | u64::from(begin[m + 1] as u32) << 32;
        let mut squares = [[A::dup_2d(0); ROWS / 2]; M];
        for (m, square) in squares[..M / 2].iter_mut().enumerate() {
            *square = [A::dup_2d(start(2 * m)); ROWS / 2];
        }
        // Sixteen columns of two activation rows, four quads, at a time.
        for c in 0..QUADS / 4 {
            let mut x = [[A::dup_2d(0); M]; 2];
            for m in 0..trip_count::<Self>(M / 2) {
                let a = unsafe { A::ld1(xs[2 * m].add(16 * c)) };
                let b = unsafe { A::ld1(xs[2 * m + 1].add(16 * c)) };
                (x[0][m], x[1][m]) = (A::zip1_2d(a, b), A::zip2_2d(a, b));
            }
            for (half, x) in x.iter().enumerate() {
                for i in 0..trip_count::<Self>(4) {
                    let at = (4 * c + 2 * half) * QUAD + 16 * i;
                    let a = unsafe { A::ld1(w.add(at)) };
                    let b = unsafe { A::ld1(w.add(at + QUAD)) };
                    let rows = [A::zip1_4s(a, b), A::zip2_4s(a, b)];
                    for m in 0..trip_count::<Self>(M / 2) {
                        for (j, row) in rows.into_iter().enumerate() {
                            let sum = &mut squares[m][2 * i + j];
                            *sum = unsafe { P::square(*sum, row, x[m]) };
                        }
                    }
                }
            }
        }
        std::array::from_fn(|m| {
            let s = &squares[m / 2];
            each(|i| {
                let (a, b) = (s[2 * i], s[2 * i + 1]);
                if m % 2 == 0 { A::uzp1_4s(a, b) } else { A::uzp2_4s(a, b) }
            })
        })
    }
}
