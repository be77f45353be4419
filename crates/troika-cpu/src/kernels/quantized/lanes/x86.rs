//! x86: sixteen rows are one register of 512 bits or two of 256. Products come in two strengths:
//! `vpmaddubsw` with `vpmaddwd` (AVX2), and `vpdpbusd` (AVX-VNNI, AVX-512 VNNI).

use std::marker::PhantomData;

use super::super::shape::{QUAD, ROWS, joined};
use super::RowLanes;
use crate::machine::instructions::x86::Vector;
use crate::machine::instructions::{RegisterWork, methods};

/// Sixteen rows of integers.
type Ints<V, const R: usize> = [<V as Vector>::I; R];
/// Sixteen floats.
type Floats<V, const R: usize> = [<V as Vector>::F; R];

/// `R` registers of `V`, multiplied by `P`.
#[derive(Clone, Copy)]
pub(crate) struct X86<V, P, const R: usize>(PhantomData<(V, P)>);

/// How bytes are multiplied.
///
/// # Safety
/// All methods need the features of `V` and the instructions of the implementing type.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Products<V: Vector>: Copy {
    /// Whether weights of all eight bits are signed in products.
    const SIGNED: bool;
    /// Whether products need registers besides the ones for weights, activations and sums.
    const TEMPORARIES: bool;
    /// Bytes made ready for products.
    type Weight: Copy;
    /// Signed bytes made ready for products.
    type Signed: Copy;

    /// Weights that are unsigned in products.
    unsafe fn weight(b: V::I) -> Self::Weight;
    /// Weights that are signed.
    unsafe fn signed(b: V::I) -> Self::Weight;
    /// Writes weights that are signed to `p` and, what belongs to them, to `more`. Returns `start`
    /// with what the sums of their products are to begin with.
    unsafe fn store_signed(b: V::I, start: V::I, p: *mut u8, more: *mut u8) -> V::I;
    unsafe fn load_signed(p: *const u8, more: *const u8) -> Self::Signed;
    unsafe fn dot_signed(part: V::I, w: Self::Signed, x: V::I) -> V::I;
    unsafe fn part(full: bool, sums: V::I) -> V::I;
    unsafe fn dot(full: bool, part: V::I, w: Self::Weight, x: V::I) -> V::I;
    unsafe fn fold(full: bool, sums: V::I, part: V::I) -> V::I;
    unsafe fn part_split(split: u32) -> V::I;
    /// Runs work in a function of its own with the features switched on.
    unsafe fn apart<W: RegisterWork>(work: W);
}

/// AVX2. Sums of 16 bits for weights that allow it, else of 32 bits after each product. `SEVEN`:
/// activations have seven bits, so that weights of all eight bits are unsigned.
#[derive(Clone, Copy)]
pub(crate) struct Maddubs<const SEVEN: bool>;
/// VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Dpbusd;

/// Absolute and signed values; the same bytes where they are unsigned.
#[derive(Clone, Copy)]
pub(crate) struct Magnitude<T> {
    unsigned: T,
    signed: T,
}

/// Absolute values, and all bits of those bytes that are negative.
///
/// `!x` is `-x - 1`, so a negative weight times `x` is its absolute value times `!x`, plus the
/// absolute value once more. The added absolute values are summed when weights are widened, and
/// sums of products begin with that. `vpxor` runs on every port of today's processors, `vpsignb` on
/// those alone that multiply: two of three instructions of a product need these then instead of
/// three of four.
#[derive(Clone, Copy)]
pub(crate) struct Flipped<T> {
    magnitude: T,
    negative: T,
}

// SAFETY (of the unsafe blocks): callers have the features.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl<V: Vector, const SEVEN: bool> Products<V> for Maddubs<SEVEN> {
    const SIGNED: bool = !SEVEN;
    const TEMPORARIES: bool = true;
    type Weight = Magnitude<V::I>;
    type Signed = Flipped<V::I>;

    methods! {
        #[inline(always)]
        unsafe fn weight(b: V::I) -> Magnitude<V::I> { Magnitude { unsigned: b, signed: b } }
        unsafe fn signed(b: V::I) -> Magnitude<V::I> {
            Magnitude { unsigned: V::vpabsb(b), signed: b }
        }
        unsafe fn store_signed(b: V::I, start: V::I, p: *mut u8, more: *mut u8) -> V::I {
            let (magnitude, negative) = (V::vpabsb(b), V::vpcmpgtb(V::vpbroadcastb(0), b));
            V::vmovdqu_store(magnitude, p);
            V::vmovdqu_store(negative, more);
            // Two of at most 128 fit 16 bits.
            let pairs = V::vpmaddubsw(magnitude, V::vpand(negative, V::vpbroadcastb(1)));
            V::vpaddd(start, V::vpmaddwd(pairs, V::vpbroadcastw(1)))
        }
        unsafe fn load_signed(p: *const u8, more: *const u8) -> Flipped<V::I> {
            Flipped { magnitude: V::vmovdqu(p), negative: V::vmovdqu(more) }
        }
        unsafe fn dot_signed(part: V::I, w: Flipped<V::I>, x: V::I) -> V::I {
            // |w| <= 128 and -128 <= x ^ negative <= 127: pairs of products fit 16 bits.
            let pairs = V::vpmaddubsw(w.magnitude, V::vpxor(x, w.negative));
            V::vpaddd(part, V::vpmaddwd(pairs, V::vpbroadcastw(1)))
        }
        unsafe fn part(full: bool, sums: V::I) -> V::I {
            if full { sums } else { V::vpbroadcastd(0) }
        }
        unsafe fn dot(full: bool, part: V::I, w: Magnitude<V::I>, x: V::I) -> V::I {
            if full {
                // |w| <= 128 and |x| <= 127, or w <= 255 and |x| <= 64: pairs of products fit 16
                // bits.
                let x = if SEVEN { x } else { V::vpsignb(x, w.signed) };
                let pairs = V::vpmaddubsw(w.unsigned, x);
                V::vpaddd(part, V::vpmaddwd(pairs, V::vpbroadcastw(1)))
            } else {
                V::vpaddw(part, V::vpmaddubsw(w.unsigned, x))
            }
        }
        unsafe fn fold(full: bool, sums: V::I, part: V::I) -> V::I {
            if full {
                return part;
            }
            V::vpaddd(sums, V::vpmaddwd(part, V::vpbroadcastw(1)))
        }
        unsafe fn part_split(split: u32) -> V::I { V::vpbroadcastd(split) }
    }

    #[inline(always)]
    unsafe fn apart<W: RegisterWork>(work: W) {
        unsafe { V::apart(work) }
    }
}

// SAFETY (of the unsafe blocks): callers have the features.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl<V: Vector> Products<V> for Dpbusd {
    const SIGNED: bool = false;
    const TEMPORARIES: bool = false;
    type Weight = V::I;
    type Signed = ();

    methods! {
        #[inline(always)]
        unsafe fn weight(b: V::I) -> V::I { b }
        unsafe fn signed(_: V::I) -> V::I { unreachable!("VNNI takes unsigned weights") }
        unsafe fn store_signed(_: V::I, _: V::I, _: *mut u8, _: *mut u8) -> V::I {
            unreachable!("VNNI takes unsigned weights")
        }
        unsafe fn load_signed(_: *const u8, _: *const u8) {}
        unsafe fn dot_signed(_: V::I, (): (), _: V::I) -> V::I {
            unreachable!("VNNI takes unsigned weights")
        }
        unsafe fn part(_: bool, sums: V::I) -> V::I { sums }
        unsafe fn dot(_: bool, part: V::I, w: V::I, x: V::I) -> V::I { V::vpdpbusd(part, w, x) }
        unsafe fn fold(_: bool, _: V::I, part: V::I) -> V::I { part }
        unsafe fn part_split(split: u32) -> V::I { V::vpbroadcastd(joined(split) as u32) }
    }

    #[inline(always)]
    unsafe fn apart<W: RegisterWork>(work: W) {
        unsafe { V::apart_vnni(work) }
    }
}

/// An array of `R`, 1 or 2. A macro, for closures are compiled without the features; without a loop,
/// which would take the compiler longer in each of a kernel's many instructions.
macro_rules! each {
    ($i:ident, $one:expr) => {{
        let $i = 0;
        let mut all = [$one; R];
        if const { R == 2 } {
            let $i = 1;
            all[$i] = $one;
        }
        all
    }};
}

impl<V: Vector, P, const R: usize> X86<V, P, R> {
    const FILLS: () = assert!(R * V::BYTES == QUAD && R <= 2);
}

// SAFETY (of the unsafe blocks): callers have the features and promise valid memory.
#[allow(clippy::undocumented_unsafe_blocks, unused_unsafe)]
impl<V: Vector, P: Products<V>, const R: usize> RowLanes for X86<V, P, R> {
    // VNNI: of 32 registers of 512 bits, 24 hold the sums of four activation rows with three panels;
    // of 16 registers of 256 bits, twelve hold integer sums of six with one. AVX2 needs more
    // registers for products: eight hold the sums of four rows with one panel. (Five rows, and six
    // or eight with half a panel and all sums in registers, are as fast within 3 %, measured on a
    // Cascade Lake.)
    const WIDE: bool = !P::TEMPORARIES;
    const PANELS: usize = if R == 1 { 3 } else { 1 };
    const ROLLED: bool = R == 2;
    const SIGNED: bool = P::SIGNED;
    const SIGNED_QUAD: usize = if P::SIGNED { 2 * QUAD } else { QUAD };
    const PINNED: bool = P::TEMPORARIES;
    const COMPACT: bool = !V::NATIVE;
    const PICKS: bool = R == 1;
    type Bytes = Ints<V, R>;
    type Weight = [P::Weight; R];
    type Signed = [P::Signed; R];
    type Quad = V::I;
    type Sums = Ints<V, R>;
    type Partial = Ints<V, R>;
    type Floats = Floats<V, R>;

    #[inline(always)]
    unsafe fn apart<W: RegisterWork>(work: W) {
        unsafe { P::apart(work) }
    }

    methods! {
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Ints<V, R> {
            const { Self::FILLS };
            each!(i, V::vmovdqu(p.add(i * V::BYTES)))
        }
        unsafe fn bits(b: Ints<V, R>, shift: u32, mask: u8) -> Ints<V, R> {
            each!(i, V::vpand(V::vpsrlw(b[i], shift), V::vpbroadcastb(mask)))
        }
        unsafe fn moved(b: Ints<V, R>, left: i32, mask: u8) -> Ints<V, R> {
            let by = left.unsigned_abs();
            let mask = V::vpbroadcastb(mask);
            match left {
                0 => each!(i, V::vpand(b[i], mask)),
                1.. => each!(i, V::vpand(V::vpsllw(b[i], by), mask)),
                _ => each!(i, V::vpand(V::vpsrlw(b[i], by), mask)),
            }
        }
        unsafe fn or(a: Ints<V, R>, b: Ints<V, R>) -> Ints<V, R> { each!(i, V::vpor(a[i], b[i])) }
        unsafe fn look_up(table: *const u8, b: Ints<V, R>) -> Ints<V, R> {
            let table = V::vbroadcasti128(table);
            each!(i, V::vpshufb(table, b[i]))
        }
        unsafe fn column(b: Ints<V, R>, c: usize) -> Floats<V, R> {
            each!(i, V::vcvtdq2ps(match c {
                0 => V::vpand(b[i], V::vpbroadcastd(255)),
                3 => V::vpsrld(b[i], 24),
                _ => V::vpand(V::vpsrld(b[i], 8 * c as u32), V::vpbroadcastd(255)),
            }))
        }
        unsafe fn pick(of: Floats<V, R>, b: Ints<V, R>, right: u32) -> Floats<V, R> {
            each!(i, V::vpermps(V::vpsrld(b[i], right), of[i]))
        }
        unsafe fn store_bytes(b: Ints<V, R>, p: *mut u8) {
            each!(i, V::vmovdqu_store(b[i], p.add(i * V::BYTES)));
        }
        unsafe fn weight(full: bool, b: Ints<V, R>) -> Self::Weight {
            if full && P::SIGNED {
                return each!(i, P::signed(V::vpsubb(b[i], V::vpbroadcastb(128))));
            }
            each!(i, P::weight(b[i]))
        }
        unsafe fn store_signed(b: Ints<V, R>, start: Ints<V, R>, p: *mut u8) -> Ints<V, R> {
            each!(i, {
                let (p, b) = (p.add(i * V::BYTES), V::vpsubb(b[i], V::vpbroadcastb(128)));
                P::store_signed(b, start[i], p, p.add(QUAD))
            })
        }
        unsafe fn load_signed(p: *const u8) -> Self::Signed {
            each!(i, P::load_signed(p.add(i * V::BYTES), p.add(QUAD + i * V::BYTES)))
        }
        unsafe fn dot_signed(part: Ints<V, R>, w: Self::Signed, x: V::I) -> Ints<V, R> {
            each!(i, P::dot_signed(part[i], w[i], x))
        }
        unsafe fn quad(p: *const u8) -> V::I { V::vpbroadcastd(p.cast::<u32>().read_unaligned()) }
        unsafe fn begin(full: bool, correction: i32) -> Ints<V, R> {
            let start = if full && P::SIGNED { 0 } else { correction };
            [V::vpbroadcastd(start as u32); R]
        }
        unsafe fn part(full: bool, sums: Ints<V, R>) -> Ints<V, R> {
            each!(i, P::part(full, sums[i]))
        }
        unsafe fn dot(full: bool, part: Ints<V, R>, w: Self::Weight, x: V::I) -> Ints<V, R> {
            each!(i, P::dot(full, part[i], w[i], x))
        }
        unsafe fn fold(full: bool, sums: Ints<V, R>, part: Ints<V, R>) -> Ints<V, R> {
            each!(i, P::fold(full, sums[i], part[i]))
        }
        unsafe fn part_split(split: u32) -> Ints<V, R> { [P::part_split(split); R] }
        unsafe fn pin(part: Ints<V, R>) -> Ints<V, R> { each!(i, V::pin(part[i])) }
        unsafe fn load_sums(p: *const i32) -> Ints<V, R> { Self::load(p.cast()) }
        unsafe fn store_sums(sums: Ints<V, R>, p: *mut i32) { Self::store_bytes(sums, p.cast()) }
        unsafe fn to_floats(sums: Ints<V, R>) -> Floats<V, R> { each!(i, V::vcvtdq2ps(sums[i])) }
        unsafe fn splat(x: f32) -> Floats<V, R> { [V::vbroadcastss(x); R] }
        unsafe fn load_f32(p: *const f32) -> Floats<V, R> {
            each!(i, V::vmovups(p.add(i * ROWS / R)))
        }
        unsafe fn load_f16(p: *const u8) -> Floats<V, R> {
            each!(i, V::vcvtph2ps(p.add(i * 2 * ROWS / R)))
        }
        unsafe fn load_e8m0_half(p: *const u8) -> Floats<V, R> {
            // An exponent less by one, and the two subnormal numbers.
            let small = V::vpbroadcastd(0x00a0_0000);
            let less = V::vpbroadcastd((1u32 << 23).wrapping_neg());
            each!(i, {
                let e = V::vpmovzxbd(p.add(i * ROWS / R));
                let small = V::vpaddd(V::vpslld(e, 21), small);
                V::as_floats(V::vpaddd(V::vpmaxsd(V::vpslld(e, 23), small), less))
            })
        }
        unsafe fn load_u8(p: *const u8) -> Floats<V, R> {
            each!(i, V::vcvtdq2ps(V::vpmovzxbd(p.add(i * ROWS / R))))
        }
        unsafe fn load_u4(p: *const u8, shift: u32) -> Floats<V, R> {
            let mask = V::vpbroadcastd(15);
            each!(i, {
                let bytes = V::vpmovzxbd(p.add(i * ROWS / R));
                V::vcvtdq2ps(V::vpand(V::vpsrlw(bytes, shift), mask))
            })
        }
        unsafe fn load_i8(p: *const u8) -> Floats<V, R> {
            each!(i, V::vcvtdq2ps(V::vpmovsxbd(p.add(i * ROWS / R))))
        }
        unsafe fn store(f: Floats<V, R>, p: *mut f32) {
            each!(i, V::vmovups_store(f[i], p.add(i * ROWS / R)));
        }
        unsafe fn mul(a: Floats<V, R>, b: Floats<V, R>) -> Floats<V, R> {
            each!(i, V::vmulps(a[i], b[i]))
        }
        unsafe fn add(a: Floats<V, R>, b: Floats<V, R>) -> Floats<V, R> {
            each!(i, V::vaddps(a[i], b[i]))
        }
        unsafe fn fma(a: Floats<V, R>, b: Floats<V, R>, c: Floats<V, R>) -> Floats<V, R> {
            each!(i, V::vfmaddps(a[i], b[i], c[i]))
        }
        unsafe fn prefetch(p: *const u8) { V::prefetcht0(p) }
    }
}
