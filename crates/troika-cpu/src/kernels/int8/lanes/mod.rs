//! Sixteen weight rows side by side, in integers: what the kernels are written over.
//!
//! A register of bytes holds four columns of sixteen rows; a product with four bytes of an
//! activation row adds to sixteen sums. All sums are exact, so every instruction set gives the
//! same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod vnni;

use super::tile::Part;
use crate::Isa;

/// Weight rows of a register.
pub const ROWS: usize = 16;

/// Registers of an instruction set.
///
/// # Safety
/// All methods need the CPU features of the implementing type; loads and stores need valid
/// memory for what they say and no alignment.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub(super) trait Rows: Copy {
    /// Whether a block of six activation rows and 32 weight rows fits the registers.
    const WIDE: bool;
    /// 64 unsigned bytes: four columns of sixteen rows.
    type Bytes: Copy;
    /// Bytes made ready for products.
    type Weight: Copy;
    /// Four signed bytes of an activation row.
    type Quad: Copy;
    /// Sixteen sums.
    type Sums: Copy;
    /// Sums of a few products, added to the others later.
    type Part: Copy;
    /// Sixteen floats.
    type Floats: Copy;

    unsafe fn load(p: *const u8) -> Self::Bytes;
    /// `(b >> shift) & mask`, byte by byte; the mask has no bits of the neighbour.
    unsafe fn bits(b: Self::Bytes, shift: u32, mask: u8) -> Self::Bytes;
    /// `a | b << shift`; bits of `b` do not leave their byte.
    unsafe fn join(a: Self::Bytes, b: Self::Bytes, shift: u32) -> Self::Bytes;
    unsafe fn store_bytes(b: Self::Bytes, p: *mut u8);

    /// `full`: all eight bits are used, 128 stands for zero.
    unsafe fn weight(full: bool, b: Self::Bytes) -> Self::Weight;
    unsafe fn quad(p: *const u8) -> Self::Quad;
    /// All sums at `correction`, which makes up for what stands for zero; types whose products
    /// of full bytes are signed begin at 0.
    unsafe fn begin(full: bool, correction: i32) -> Self::Sums;
    unsafe fn part(sums: Self::Sums) -> Self::Part;
    /// Adds four products per row. Unless `full`, at most as many calls between `part` and
    /// `fold` as [`super::format::Format::SPAN`] says.
    unsafe fn dot(full: bool, part: Self::Part, w: Self::Weight, x: Self::Quad) -> Self::Part;
    unsafe fn fold(full: bool, sums: Self::Sums, part: Self::Part) -> Self::Sums;

    unsafe fn to_floats(sums: Self::Sums) -> Self::Floats;
    unsafe fn splat(x: f32) -> Self::Floats;
    unsafe fn load_f32(p: *const f32) -> Self::Floats;
    unsafe fn load_f16(p: *const u8) -> Self::Floats;
    unsafe fn load_u8(p: *const u8) -> Self::Floats;
    unsafe fn load_i8(p: *const u8) -> Self::Floats;
    unsafe fn store(f: Self::Floats, p: *mut f32);
    unsafe fn mul(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    unsafe fn add(a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// Asks for a cache line; any address will do.
    unsafe fn prefetch(p: *const u8);
}

/// Which of the integer kernels an instruction set runs.
pub fn name(isa: Isa) -> &'static str {
    match isa {
        Isa::Scalar => "scalar",
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if vnni::is_available() => "avx512 vnni",
        _ => "avx2",
    }
}

/// Runs a part of a product on the registers of `isa`.
///
/// # Safety
/// As for [`super::tile::run`].
///
/// # Panics
/// If the machine does not have this instruction set.
pub(super) unsafe fn dispatch(isa: Isa, part: Part<'_>) {
    assert!(isa.is_available(), "this machine has no {}", isa.name());
    // SAFETY: detected above or here; the rest by the caller.
    unsafe {
        match isa {
            Isa::Scalar => super::tile::run::<scalar::Portable>(part),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if vnni::is_available() => vnni::run(part),
            #[cfg(target_arch = "x86_64")]
            _ => avx2::run(part),
            #[cfg(not(target_arch = "x86_64"))]
            _ => super::tile::run::<scalar::Portable>(part),
        }
    }
}
