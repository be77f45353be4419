//! Sixteen weight rows side by side, in integers: what the kernels are written over.
//!
//! A register of bytes holds four columns of sixteen rows; a product with four bytes of an
//! activation row adds to sixteen sums. All sums are exact, so every instruction set gives the
//! same bits.

#[cfg(any(target_arch = "aarch64", test, feature = "emulate"))]
pub(crate) mod neon;
pub(crate) mod scalar;
#[cfg(any(
    target_arch = "x86_64",
    all(any(test, feature = "emulate"), not(target_arch = "aarch64"))
))]
pub(crate) mod x86;

use super::shape::{QUAD, joined};
use crate::machine::instructions::RegisterWork;

/// Registers of an instruction set.
///
/// # Safety
/// All methods need the CPU features of the implementing type; loads and stores need valid
/// memory for what they say and no alignment.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub(crate) trait RowLanes: Copy {
    /// Whether a block of six activation rows and 32 weight rows fits the registers.
    const WIDE: bool;
    /// Panels of a block with several activation rows: as many as fit the registers.
    const PANELS: usize = 2;
    /// Whether [`RowLanes::pairs`] exists.
    const PAIRED: bool = false;
    /// Whether the quads of a group are taken in a loop: with few registers the compiler's order
    /// of unrolled products is a poor one.
    const ROLLED: bool = false;
    /// Whether weights of all eight bits are widened to [`RowLanes::Signed`].
    const SIGNED: bool = false;
    /// Bytes of a quad of [`RowLanes::Signed`] in memory, a power of two.
    const SIGNED_QUAD: usize = QUAD;
    /// Whether [`RowLanes::pin`] keeps the compiler from changing the order of products, so that
    /// it does without [`RowLanes::ROLLED`].
    const PINNED: bool = false;
    /// Whether code is to be small instead of fast: loops stay loops, and quads are taken in one
    /// as if [`RowLanes::ROLLED`].
    const COMPACT: bool = false;
    /// Whether [`RowLanes::pick`] exists.
    const PICKS: bool = false;
    /// 64 unsigned bytes: four columns of sixteen rows.
    type Bytes: Copy;
    /// Bytes made ready for products.
    type Weight: Copy;
    /// Weights of all eight bits made ready for products as far as can be before it is known with
    /// what.
    type Signed: Copy;
    /// Four signed bytes of an activation row.
    type Quad: Copy;
    /// Sixteen sums.
    type Sums: Copy;
    /// Sums of a few products, added to the others later.
    type Partial: Copy;
    /// Sixteen floats.
    type Floats: Copy;

    /// Runs work with the features switched on, where that can be in a function of its own, which
    /// formats share.
    unsafe fn apart<W: RegisterWork>(work: W);

    unsafe fn load(p: *const u8) -> Self::Bytes;
    /// `(b >> shift) & mask`, byte by byte; the mask has no bits of the neighbour.
    unsafe fn bits(b: Self::Bytes, shift: u32, mask: u8) -> Self::Bytes;
    /// The bits that lie in `mask` when every byte is shifted to the left (to the right if
    /// negative); those that come to lie there are of the same byte.
    unsafe fn moved(b: Self::Bytes, left: i32, mask: u8) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// The bytes of a table of sixteen at these indices, which are below sixteen.
    unsafe fn look_up(table: *const u8, b: Self::Bytes) -> Self::Bytes;
    unsafe fn store_bytes(b: Self::Bytes, p: *mut u8);
    /// Byte `c` of each row, as floats.
    unsafe fn column(b: Self::Bytes, c: usize) -> Self::Floats;
    /// Those of sixteen floats at the four bits from bit `right` on of each row's 32.
    unsafe fn pick(_of: Self::Floats, _b: Self::Bytes, _right: u32) -> Self::Floats {
        unreachable!("bytes are made floats")
    }

    /// `full`: all eight bits are used, 128 stands for zero.
    unsafe fn weight(full: bool, b: Self::Bytes) -> Self::Weight;
    /// Writes a quad of weights of all eight bits as [`RowLanes::Signed`], and adds to `start` what
    /// the sums of its products are to begin with.
    unsafe fn store_signed(_: Self::Bytes, _start: Self::Sums, _: *mut u8) -> Self::Sums {
        unreachable!("weights are widened to unsigned bytes")
    }
    unsafe fn load_signed(_: *const u8) -> Self::Signed {
        unreachable!("weights are widened to unsigned bytes")
    }
    /// Adds four products per row of weights of all eight bits.
    unsafe fn dot_signed(_: Self::Partial, _: Self::Signed, _: Self::Quad) -> Self::Partial {
        unreachable!("weights are widened to unsigned bytes")
    }
    unsafe fn quad(p: *const u8) -> Self::Quad;
    /// All sums at `correction`, which makes up for what stands for zero; types whose products
    /// of full bytes are signed begin at 0.
    unsafe fn begin(full: bool, correction: i32) -> Self::Sums;
    unsafe fn part(full: bool, sums: Self::Sums) -> Self::Partial;
    /// `part` of types that are [`super::format::Format::SPLIT`]; they fold it into sums of 0.
    #[inline(always)]
    unsafe fn part_split(split: u32) -> Self::Partial {
        // SAFETY: by the caller.
        unsafe { Self::part(false, Self::begin(false, joined(split))) }
    }
    /// Adds four products per row.
    unsafe fn dot(full: bool, part: Self::Partial, w: Self::Weight, x: Self::Quad)
    -> Self::Partial;
    unsafe fn fold(full: bool, sums: Self::Sums, part: Self::Partial) -> Self::Sums;
    /// The same sums, there before what is pinned later.
    unsafe fn pin(part: Self::Partial) -> Self::Partial {
        part
    }
    /// The sums, from `begin` on, of `QUADS` (4 or 8) quads of bytes with as many columns of `M`
    /// (even) activation rows: what `begin` (not `full`), `dot` and `fold` give, two rows at a
    /// time.
    unsafe fn pairs<const M: usize, const QUADS: usize>(
        _w: *const u8,
        _xs: [*const u8; M],
        _begin: [i32; M],
    ) -> [Self::Sums; M] {
        unreachable!("rows are multiplied one by one")
    }

    unsafe fn load_sums(p: *const i32) -> Self::Sums;
    unsafe fn store_sums(sums: Self::Sums, p: *mut i32);
    unsafe fn to_floats(sums: Self::Sums) -> Self::Floats;
    unsafe fn splat(x: f32) -> Self::Floats;
    unsafe fn load_f32(p: *const f32) -> Self::Floats;
    unsafe fn load_f16(p: *const u8) -> Self::Floats;
    /// Halves of the numbers of E8M0.
    unsafe fn load_e8m0_half(p: *const u8) -> Self::Floats;
    unsafe fn load_u8(p: *const u8) -> Self::Floats;
    /// The lower half of each byte, or with a shift of 4 the upper half.
    unsafe fn load_u4(p: *const u8, shift: u32) -> Self::Floats;
    unsafe fn load_i8(p: *const u8) -> Self::Floats;
    unsafe fn store(f: Self::Floats, p: *mut f32);
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Prefetches a cache line; any address will do.
    unsafe fn prefetch(p: *const u8);
}

/// The trip count of a loop. Where code is to be small, the compiler must not know them: it would
/// unroll.
#[inline(always)]
pub(crate) fn trip_count<I: RowLanes>(n: usize) -> usize {
    if I::COMPACT { std::hint::black_box(n) } else { n }
}
