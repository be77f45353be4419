//! x86: sixteen rows are one register of 512 bits or two of 256. Products come in two strengths:
//! `vpmaddubsw` with `vpmaddwd` (AVX2), and `vpdpbusd` (AVX-VNNI, AVX-512 VNNI).

use std::marker::PhantomData;

use super::super::layout::{QUAD, ROWS};
use super::super::quantize::joined;
use super::RowLanes;
use crate::machine::instructions::RegisterWork;
use crate::machine::instructions::x86::Vector;

/// `R` registers of `V`, multiplied by `P`.
#[derive(Clone, Copy)]
pub(in super::super) struct X86<V, P, const R: usize>(PhantomData<(V, P)>);

/// How bytes are multiplied.
///
/// # Safety
/// All methods need the features of `V` and the instructions of the implementing type.
#[allow(clippy::missing_safety_doc)]
pub(in super::super) trait Products<V: Vector>: Copy {
    /// Whether weights of all eight bits are signed in products.
    const SIGNED: bool;
    /// Whether products need registers besides those of weights, activations and sums.
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
pub(in super::super) struct Maddubs<const SEVEN: bool>;
/// VNNI.
#[derive(Clone, Copy)]
pub(in super::super) struct Dpbusd;

/// Absolute and signed values; the same bytes where they are unsigned.
#[derive(Clone, Copy)]
pub(in super::super) struct Magnitude<T> {
    unsigned: T,
    signed: T,
}

/// Absolute values, and all bits of those bytes that are negative.
///
/// `!x` is `-x - 1`, so a product of a negative weight with `x` is that of its absolute value with
/// `!x`, and the absolute value once more: the latter are added up when weights are widened, and
/// sums of products begin with them. `vpxor` runs on every port of today's processors, `vpsignb`
/// on those alone that multiply: two of three instructions of a product need these then instead of
/// three of four.
#[derive(Clone, Copy)]
pub(in super::super) struct Flipped<T> {
    magnitude: T,
    negative: T,
}

// SAFETY (of the unsafe blocks): callers have the features.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<V: Vector, const SEVEN: bool> Products<V> for Maddubs<SEVEN> {
    const SIGNED: bool = !SEVEN;
    const TEMPORARIES: bool = true;
    type Weight = Magnitude<V::I>;
    type Signed = Flipped<V::I>;

    #[inline(always)]
    unsafe fn weight(b: V::I) -> Magnitude<V::I> {
        Magnitude { unsigned: b, signed: b }
    }
    #[inline(always)]
    unsafe fn signed(b: V::I) -> Magnitude<V::I> {
        Magnitude { unsigned: unsafe { V::vpabsb(b) }, signed: b }
    }
    #[inline(always)]
    unsafe fn store_signed(b: V::I, start: V::I, p: *mut u8, more: *mut u8) -> V::I {
        unsafe {
            let (magnitude, negative) = (V::vpabsb(b), V::vpcmpgtb(V::vpbroadcastb(0), b));
            V::vmovdqu_store(magnitude, p);
            V::vmovdqu_store(negative, more);
            // Two of at most 128 fit 16 bits.
            let pairs = V::vpmaddubsw(magnitude, V::vpand(negative, V::vpbroadcastb(1)));
            V::vpaddd(start, V::vpmaddwd(pairs, V::vpbroadcastw(1)))
        }
    }
    #[inline(always)]
    unsafe fn load_signed(p: *const u8, more: *const u8) -> Flipped<V::I> {
        unsafe { Flipped { magnitude: V::vmovdqu(p), negative: V::vmovdqu(more) } }
    }
    #[inline(always)]
    unsafe fn dot_signed(part: V::I, w: Flipped<V::I>, x: V::I) -> V::I {
        unsafe {
            // |w| <= 128 and -128 <= x ^ negative <= 127: pairs of products fit 16 bits.
            let pairs = V::vpmaddubsw(w.magnitude, V::vpxor(x, w.negative));
            V::vpaddd(part, V::vpmaddwd(pairs, V::vpbroadcastw(1)))
        }
    }
    #[inline(always)]
    unsafe fn part(full: bool, sums: V::I) -> V::I {
        if full { sums } else { unsafe { V::vpbroadcastd(0) } }
    }
    #[inline(always)]
    unsafe fn dot(full: bool, part: V::I, w: Magnitude<V::I>, x: V::I) -> V::I {
        unsafe {
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
    }
    #[inline(always)]
    unsafe fn fold(full: bool, sums: V::I, part: V::I) -> V::I {
        unsafe {
            if full {
                return part;
            }
            V::vpaddd(sums, V::vpmaddwd(part, V::vpbroadcastw(1)))
        }
    }
    #[inline(always)]
    unsafe fn part_split(split: u32) -> V::I {
        unsafe { V::vpbroadcastd(split) }
    }
    #[inline(always)]
    unsafe fn apart<W: RegisterWork>(work: W) {
        unsafe { V::apart(work) }
    }
}

// SAFETY (of the unsafe blocks): callers have the features.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<V: Vector> Products<V> for Dpbusd {
    const SIGNED: bool = false;
    const TEMPORARIES: bool = false;
    type Weight = V::I;
    type Signed = ();

    #[inline(always)]
    unsafe fn weight(b: V::I) -> V::I {
        b
    }
    #[inline(always)]
    unsafe fn signed(_: V::I) -> V::I {
        unreachable!("VNNI takes unsigned weights")
    }
    #[inline(always)]
    unsafe fn store_signed(_: V::I, _: V::I, _: *mut u8, _: *mut u8) -> V::I {
        unreachable!("VNNI takes unsigned weights")
    }
    #[inline(always)]
    unsafe fn load_signed(_: *const u8, _: *const u8) {}
    #[inline(always)]
    unsafe fn dot_signed(_: V::I, (): (), _: V::I) -> V::I {
        unreachable!("VNNI takes unsigned weights")
    }
    #[inline(always)]
    unsafe fn part(_: bool, sums: V::I) -> V::I {
        sums
    }
    #[inline(always)]
    unsafe fn dot(_: bool, part: V::I, w: V::I, x: V::I) -> V::I {
        unsafe { V::vpdpbusd(part, w, x) }
    }
    #[inline(always)]
    unsafe fn fold(_: bool, _: V::I, part: V::I) -> V::I {
        part
    }
    #[inline(always)]
    unsafe fn part_split(split: u32) -> V::I {
        unsafe { V::vpbroadcastd(joined(split) as u32) }
    }
    #[inline(always)]
    unsafe fn apart<W: RegisterWork>(work: W) {
        unsafe { V::apart_vnni(work) }
    }
}

/// An array of `R`. A macro, for closures are compiled without the features.
macro_rules! each {
    ($i:ident, $one:expr) => {{
        let $i = 0;
        let mut all = [$one; R];
        for $i in 1..R {
            all[$i] = $one;
        }
        all
    }};
}

impl<V: Vector, P, const R: usize> X86<V, P, R> {
    const FILLS: () = assert!(R * V::BYTES == QUAD);
}

// SAFETY (of the unsafe blocks): callers have the features and promise valid memory.
#[allow(clippy::undocumented_unsafe_blocks)]
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
    type Bytes = [V::I; R];
    type Weight = [P::Weight; R];
    type Signed = [P::Signed; R];
    type Quad = V::I;
    type Sums = [V::I; R];
    type Partial = [V::I; R];
    type Floats = [V::F; R];

    #[inline(always)]
    unsafe fn apart<W: RegisterWork>(work: W) {
        unsafe { P::apart(work) }
    }
    #[inline(always)]
    unsafe fn load(p: *const u8) -> [V::I; R] {
        const { Self::FILLS };
        unsafe { each!(i, V::vmovdqu(p.add(i * V::BYTES))) }
    }
    #[inline(always)]
    unsafe fn bits(b: [V::I; R], shift: u32, mask: u8) -> [V::I; R] {
        unsafe { each!(i, V::vpand(V::vpsrlw(b[i], shift), V::vpbroadcastb(mask))) }
    }
    #[inline(always)]
    unsafe fn moved(b: [V::I; R], left: i32, mask: u8) -> [V::I; R] {
        unsafe {
            let by = left.unsigned_abs();
            let mask = V::vpbroadcastb(mask);
            match left {
                0 => each!(i, V::vpand(b[i], mask)),
                1.. => each!(i, V::vpand(V::vpsllw(b[i], by), mask)),
                _ => each!(i, V::vpand(V::vpsrlw(b[i], by), mask)),
            }
        }
    }
    #[inline(always)]
    unsafe fn or(a: [V::I; R], b: [V::I; R]) -> [V::I; R] {
        unsafe { each!(i, V::vpor(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn store_bytes(b: [V::I; R], p: *mut u8) {
        for (i, b) in b.into_iter().enumerate() {
            unsafe { V::vmovdqu_store(b, p.add(i * V::BYTES)) }
        }
    }
    #[inline(always)]
    unsafe fn weight(full: bool, b: [V::I; R]) -> [P::Weight; R] {
        if full && P::SIGNED {
            let b = unsafe { Self::less(b, 128) };
            return unsafe { each!(i, P::signed(b[i])) };
        }
        unsafe { each!(i, P::weight(b[i])) }
    }
    #[inline(always)]
    unsafe fn less(b: [V::I; R], zero: u8) -> [V::I; R] {
        unsafe { each!(i, V::vpsubb(b[i], V::vpbroadcastb(zero))) }
    }
    #[inline(always)]
    unsafe fn store_signed(b: [V::I; R], start: [V::I; R], p: *mut u8) -> [V::I; R] {
        unsafe {
            let b = Self::less(b, 128);
            each!(i, {
                let p = p.add(i * V::BYTES);
                P::store_signed(b[i], start[i], p, p.add(QUAD))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_signed(p: *const u8) -> [P::Signed; R] {
        unsafe { each!(i, P::load_signed(p.add(i * V::BYTES), p.add(QUAD + i * V::BYTES))) }
    }
    #[inline(always)]
    unsafe fn dot_signed(part: [V::I; R], w: [P::Signed; R], x: V::I) -> [V::I; R] {
        unsafe { each!(i, P::dot_signed(part[i], w[i], x)) }
    }
    #[inline(always)]
    unsafe fn quad(p: *const u8) -> V::I {
        unsafe { V::vpbroadcastd(p.cast::<u32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn begin(full: bool, correction: i32) -> [V::I; R] {
        let start = if full && P::SIGNED { 0 } else { correction };
        [unsafe { V::vpbroadcastd(start as u32) }; R]
    }
    #[inline(always)]
    unsafe fn part(full: bool, sums: [V::I; R]) -> [V::I; R] {
        unsafe { each!(i, P::part(full, sums[i])) }
    }
    #[inline(always)]
    unsafe fn dot(full: bool, part: [V::I; R], w: [P::Weight; R], x: V::I) -> [V::I; R] {
        unsafe { each!(i, P::dot(full, part[i], w[i], x)) }
    }
    #[inline(always)]
    unsafe fn fold(full: bool, sums: [V::I; R], part: [V::I; R]) -> [V::I; R] {
        unsafe { each!(i, P::fold(full, sums[i], part[i])) }
    }
    #[inline(always)]
    unsafe fn part_split(split: u32) -> [V::I; R] {
        [unsafe { P::part_split(split) }; R]
    }
    #[inline(always)]
    unsafe fn pin(part: [V::I; R]) -> [V::I; R] {
        unsafe { each!(i, V::pin(part[i])) }
    }
    #[inline(always)]
    unsafe fn load_sums(p: *const i32) -> [V::I; R] {
        unsafe { each!(i, V::vmovdqu(p.add(i * ROWS / R).cast())) }
    }
    #[inline(always)]
    unsafe fn store_sums(sums: [V::I; R], p: *mut i32) {
        for (i, sums) in sums.into_iter().enumerate() {
            unsafe { V::vmovdqu_store(sums, p.add(i * ROWS / R).cast()) }
        }
    }
    #[inline(always)]
    unsafe fn to_floats(sums: [V::I; R]) -> [V::F; R] {
        unsafe { each!(i, V::vcvtdq2ps(sums[i])) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [V::F; R] {
        [unsafe { V::vbroadcastss(x) }; R]
    }
    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> [V::F; R] {
        unsafe { each!(i, V::vmovups(p.add(i * ROWS / R))) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> [V::F; R] {
        unsafe { each!(i, V::vcvtph2ps(p.add(i * 2 * ROWS / R))) }
    }
    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> [V::F; R] {
        unsafe { each!(i, V::vcvtdq2ps(V::vpmovzxbd(p.add(i * ROWS / R)))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> [V::F; R] {
        unsafe { each!(i, V::vcvtdq2ps(V::vpmovsxbd(p.add(i * ROWS / R)))) }
    }
    #[inline(always)]
    unsafe fn store(f: [V::F; R], p: *mut f32) {
        for (i, f) in f.into_iter().enumerate() {
            unsafe { V::vmovups_store(f, p.add(i * ROWS / R)) }
        }
    }
    #[inline(always)]
    unsafe fn mul(a: [V::F; R], b: [V::F; R]) -> [V::F; R] {
        unsafe { each!(i, V::vmulps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn add(a: [V::F; R], b: [V::F; R]) -> [V::F; R] {
        unsafe { each!(i, V::vaddps(a[i], b[i])) }
    }
    #[inline(always)]
    unsafe fn fma(a: [V::F; R], b: [V::F; R], c: [V::F; R]) -> [V::F; R] {
        unsafe { each!(i, V::vfmaddps(a[i], b[i], c[i])) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { V::prefetcht0(p) }
    }
}
