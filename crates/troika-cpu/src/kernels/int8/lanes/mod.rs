//! Sixteen weight rows side by side, in integers: what the kernels are written over.
//!
//! A register of bytes holds four columns of sixteen rows; a product with four bytes of an
//! activation row adds to sixteen sums. All sums are exact, so every instruction set gives the
//! same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(any(target_arch = "aarch64", feature = "emulate"))]
mod neon;
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
    /// Panels of a block with several activation rows: as many as fit the registers.
    const PANELS: usize = 2;
    /// Whether [`Rows::pairs`] exists.
    const PAIRED: bool = false;
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
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if vnni::is_available() => "avx512 vnni",
        Isa::Avx512 => "avx2",
        _ => isa.name(),
    }
}

/// Runs a part of a product on the registers of `isa`.
///
/// # Safety
/// As for [`super::tile::run`].
///
/// # Panics
/// If this build cannot run this instruction set on this machine.
pub(super) unsafe fn dispatch(isa: Isa, part: Part<'_>) {
    assert!(isa.can_run(), "this machine has no {}", isa.name());
    // SAFETY: detected above or here; the rest by the caller.
    unsafe {
        match isa {
            Isa::Scalar => super::tile::run::<scalar::Portable>(part),
            #[cfg(all(feature = "emulate", not(target_arch = "aarch64")))]
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => emulate(isa, part),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::run(part),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => neon::run_dot(part),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => neon::run_i8mm(part),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if vnni::is_available() => vnni::run(part),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 => avx2::run(part),
            #[allow(unreachable_patterns)]
            _ => unreachable!("{} can run here", isa.name()),
        }
    }
}

/// Runs a part with the instructions of `isa` in plain Rust.
///
/// # Safety
/// As for [`super::tile::run`].
#[cfg(all(feature = "emulate", not(target_arch = "aarch64")))]
unsafe fn emulate(isa: Isa, part: Part<'_>) {
    use crate::kernels::instructions::arm::Emulated;
    use neon::{Neon, Sdot, Smull, Usmmla};
    // SAFETY: plain Rust needs no features; the rest by the caller.
    unsafe {
        match isa {
            Isa::Neon => super::tile::run::<Neon<Emulated, Smull>>(part),
            Isa::NeonDot => super::tile::run::<Neon<Emulated, Sdot>>(part),
            Isa::NeonI8mm => super::tile::run::<Neon<Emulated, Usmmla>>(part),
            _ => unreachable!("{} is not emulated", isa.name()),
        }
    }
}
