//! x86: sixteen rows are one register of 512 bits or two of 256. Products come in two strengths:
//! `vpmaddubsw` with `vpmaddwd` (AVX2), and `vpdpbusd` (AVX-VNNI, AVX-512 VNNI).

use std::marker::PhantomData;

use super::super::layout::{QUAD, ROWS};
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
    /// Bytes made ready for products.
    type Weight: Copy;

    /// Weights that are unsigned in products.
    unsafe fn weight(b: V::I) -> Self::Weight;
    /// Weights that are signed.
    unsafe fn signed(b: V::I) -> Self::Weight;
    unsafe fn part(full: bool, sums: V::I) -> V::I;
    unsafe fn dot(full: bool, part: V::I, w: Self::Weight, x: V::I) -> V::I;
    unsafe fn fold(full: bool, sums: V::I, part: V::I) -> V::I;
    /// Runs work in a function of its own with the features switched on.
    unsafe fn apart<W: RegisterWork>(work: W);
}

/// AVX2. Sums of 16 bits for weights that allow it, else of 32 bits after each product.
#[derive(Clone, Copy)]
pub(in super::super) struct Maddubs;
/// VNNI.
#[derive(Clone, Copy)]
pub(in super::super) struct Dpbusd;

/// Absolute and signed values; the same bytes where they are unsigned.
#[derive(Clone, Copy)]
pub(in super::super) struct Magnitude<T> {
    unsigned: T,
    signed: T,
}

// SAFETY (of the unsafe blocks): callers have the features.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<V: Vector> Products<V> for Maddubs {
    const SIGNED: bool = true;
    type Weight = Magnitude<V::I>;

    #[inline(always)]
    unsafe fn weight(b: V::I) -> Magnitude<V::I> {
        Magnitude { unsigned: b, signed: b }
    }
    #[inline(always)]
    unsafe fn signed(b: V::I) -> Magnitude<V::I> {
        Magnitude { unsigned: unsafe { V::vpabsb(b) }, signed: b }
    }
    #[inline(always)]
    unsafe fn part(full: bool, sums: V::I) -> V::I {
        if full { sums } else { unsafe { V::vpbroadcastd(0) } }
    }
    #[inline(always)]
    unsafe fn dot(full: bool, part: V::I, w: Magnitude<V::I>, x: V::I) -> V::I {
        unsafe {
            if full {
                // |w| <= 128 and |x| <= 127: pairs of products fit 16 bits.
                let pairs = V::vpmaddubsw(w.unsigned, V::vpsignb(x, w.signed));
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
    unsafe fn apart<W: RegisterWork>(work: W) {
        unsafe { V::apart(work) }
    }
}

// SAFETY (of the unsafe blocks): callers have the features.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<V: Vector> Products<V> for Dpbusd {
    const SIGNED: bool = false;
    type Weight = V::I;

    #[inline(always)]
    unsafe fn weight(b: V::I) -> V::I {
        b
    }
    #[inline(always)]
    unsafe fn signed(_: V::I) -> V::I {
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

    /// Sixteen sums from memory.
    ///
    /// # Safety
    /// Needs the features of `V` and sixteen numbers at `p`.
    #[inline(always)]
    pub unsafe fn load_sums(p: *const i32) -> [V::I; R] {
        // SAFETY: by the caller.
        unsafe { each!(i, V::vmovdqu(p.add(i * ROWS / R).cast())) }
    }
}

// SAFETY (of the unsafe blocks): callers have the features and promise valid memory.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<V: Vector, P: Products<V>, const R: usize> RowLanes for X86<V, P, R> {
    // VNNI: of 32 registers of 512 bits, 24 hold the sums of four activation rows with three panels;
    // of 16 registers of 256 bits, twelve hold integer sums of six with one. AVX2 needs more
    // registers for products: eight hold the sums of four rows with one panel.
    const WIDE: bool = !P::SIGNED;
    const PANELS: usize = if R == 1 { 3 } else { 1 };
    const ROLLED: bool = R == 2;
    const SIGNED: bool = P::SIGNED;
    const COMPACT: bool = !V::NATIVE;
    type Bytes = [V::I; R];
    type Weight = [P::Weight; R];
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
    unsafe fn join(a: [V::I; R], b: [V::I; R], shift: u32) -> [V::I; R] {
        unsafe { each!(i, V::vpor(a[i], V::vpsllw(b[i], shift))) }
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
            return unsafe { Self::signed(Self::less(b, 128)) };
        }
        unsafe { each!(i, P::weight(b[i])) }
    }
    #[inline(always)]
    unsafe fn less(b: [V::I; R], zero: u8) -> [V::I; R] {
        unsafe { each!(i, V::vpsubb(b[i], V::vpbroadcastb(zero))) }
    }
    #[inline(always)]
    unsafe fn signed(b: [V::I; R]) -> [P::Weight; R] {
        unsafe { each!(i, P::signed(b[i])) }
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
