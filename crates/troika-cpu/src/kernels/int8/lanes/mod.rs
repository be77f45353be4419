//! Sixteen weight rows side by side, in integers: what the kernels are written over.
//!
//! A register of bytes holds four columns of sixteen rows; a product with four bytes of an
//! activation row adds to sixteen sums. All sums are exact, so every instruction set gives the
//! same bits.

#[cfg(any(target_arch = "aarch64", feature = "emulate"))]
mod neon;
mod scalar;
#[cfg(any(target_arch = "x86_64", all(feature = "emulate", not(target_arch = "aarch64"))))]
pub(super) mod x86;

use std::marker::PhantomData;

use troika_graph::DType;

use super::Int8Part;
use super::format::{Format, with_format};
use crate::Isa;
use crate::machine::Multiply;
use crate::machine::instructions::RegisterWork;
#[cfg(target_arch = "x86_64")]
use crate::machine::instructions::x86::{Ymm, Zmm};
#[cfg(any(target_arch = "x86_64", all(feature = "emulate", not(target_arch = "aarch64"))))]
use x86::{Dpbusd, Maddubs, X86};

/// Weight rows of a register.
pub const ROWS: usize = 16;

/// Registers of an instruction set.
///
/// # Safety
/// All methods need the CPU features of the implementing type; loads and stores need valid
/// memory for what they say and no alignment.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub(super) trait RowLanes: Copy {
    /// Whether a block of six activation rows and 32 weight rows fits the registers.
    const WIDE: bool;
    /// Panels of a block with several activation rows: as many as fit the registers.
    const PANELS: usize = 2;
    /// Whether [`RowLanes::pairs`] exists.
    const PAIRED: bool = false;
    /// Whether the quads of a group are taken in a loop: with few registers the compiler's order
    /// of unrolled products is a poor one.
    const ROLLED: bool = false;
    /// Whether weights of all eight bits are widened to signed bytes.
    const SIGNED: bool = false;
    /// Whether code is to be small instead of fast: loops stay loops, and quads are taken in one
    /// as if [`RowLanes::ROLLED`].
    const COMPACT: bool = false;
    /// 64 unsigned bytes: four columns of sixteen rows.
    type Bytes: Copy;
    /// Bytes made ready for products.
    type Weight: Copy;
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
    /// `a | b << shift`; bits of `b` do not leave their byte.
    unsafe fn join(a: Self::Bytes, b: Self::Bytes, shift: u32) -> Self::Bytes;
    unsafe fn store_bytes(b: Self::Bytes, p: *mut u8);

    /// `full`: all eight bits are used, 128 stands for zero.
    unsafe fn weight(full: bool, b: Self::Bytes) -> Self::Weight;
    /// Bytes less what stands for zero.
    unsafe fn less(b: Self::Bytes, zero: u8) -> Self::Bytes;
    /// Weights of all eight bits, signed.
    unsafe fn signed(_: Self::Bytes) -> Self::Weight {
        unreachable!("weights are widened to unsigned bytes")
    }
    unsafe fn quad(p: *const u8) -> Self::Quad;
    /// All sums at `correction`, which makes up for what stands for zero; types whose products
    /// of full bytes are signed begin at 0.
    unsafe fn begin(full: bool, correction: i32) -> Self::Sums;
    unsafe fn part(full: bool, sums: Self::Sums) -> Self::Partial;
    /// Adds four products per row. Unless `full`, at most as many calls between `part` and
    /// `fold` as [`super::format::Format::SPAN`] says.
    unsafe fn dot(full: bool, part: Self::Partial, w: Self::Weight, x: Self::Quad)
    -> Self::Partial;
    unsafe fn fold(full: bool, sums: Self::Sums, part: Self::Partial) -> Self::Sums;
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
    /// Prefetches a cache line; any address will do.
    unsafe fn prefetch(p: *const u8);
}

/// The trip count of a loop. Where code is to be small, the compiler must not know them: it would
/// unroll.
#[inline(always)]
pub(super) fn trip_count<I: RowLanes>(n: usize) -> usize {
    if I::COMPACT { std::hint::black_box(n) } else { n }
}

/// Which of the integer kernels an instruction set runs.
pub fn name(isa: Isa) -> &'static str {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if isa.is_available() && !has_vnni() => "avx2",
        Isa::Avx512 => "avx512 vnni",
        Isa::Amx(_) => "amx int8",
        _ => isa.name(),
    }
}

/// The multiply instruction behind products with weights of a type.
pub(crate) fn multiply(isa: Isa, weight: DType) -> Option<Multiply> {
    match isa {
        Isa::Scalar | Isa::Neon => None,
        Isa::NeonDot => Some(Multiply::Int8Dot),
        Isa::NeonI8mm => Some(Multiply::Int8Mmla),
        Isa::AvxVnni => Some(Multiply::Int8AvxVnni),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if has_vnni() => Some(Multiply::Int8Avx512),
        Isa::Amx(_) => Some(Multiply::Int8Amx),
        Isa::Avx2 | Isa::Avx512 if weight == DType::Q8_0 => Some(Multiply::Int8Avx2),
        Isa::Avx2 | Isa::Avx512 => Some(Multiply::Int8SumsAvx2),
    }
}

/// Whether the machine has VNNI besides the AVX-512 sets of [`Isa::Avx512`].
#[cfg(target_arch = "x86_64")]
fn has_vnni() -> bool {
    std::arch::is_x86_feature_detected!("avx512vnni")
}

/// Runs a part of a product on the registers of `isa`.
///
/// # Panics
/// If this build cannot run this instruction set on this machine.
pub(super) fn dispatch(isa: Isa, part: Int8Part<'_>) {
    assert!(isa.can_run(), "this machine has no {}", isa.name());
    // SAFETY: the format is the weight's; it was just asked whether the set can run.
    unsafe { with_format!(part.product.weight.layout.dtype, F => for_format::<F>(isa, part)) }
}

/// A function for each format: as one, they would take the compiler minutes.
///
/// # Safety
/// As for [`super::tile::run`]; the machine has the instruction set or it is emulated.
unsafe fn for_format<F: Format>(isa: Isa, part: Int8Part<'_>) {
    // SAFETY: by the caller, or detected here.
    unsafe {
        match isa {
            Isa::Scalar => on::<scalar::Portable, F>(part),
            #[cfg(all(feature = "emulate", not(target_arch = "aarch64")))]
            _ if isa.is_emulated() => emulate::<F>(isa, part),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::run::<F>(part),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => neon::run_dot::<F>(part),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => neon::run_i8mm::<F>(part),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => on::<X86<Ymm, Dpbusd, 2>, F>(part),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if has_vnni() => on::<X86<Zmm, Dpbusd, 1>, F>(part),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx(_) => super::amx::run_native::<F>(part),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 => on::<X86<Ymm, Maddubs, 2>, F>(part),
            #[allow(unreachable_patterns)]
            _ => unreachable!("{} can run here", isa.name()),
        }
    }
}

/// A part on registers `I`, with weights of a format.
struct PartRun<'a, I, F>(Int8Part<'a>, PhantomData<(I, F)>);

impl<I: RowLanes, F: Format> RegisterWork for PartRun<'_, I, F> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: by the caller.
        unsafe { super::tile::run::<I, F>(self.0) }
    }
}

/// Runs a part on registers `I`.
///
/// # Safety
/// As for [`super::tile::run`].
#[inline(never)]
unsafe fn on<I: RowLanes, F: Format>(part: Int8Part<'_>) {
    // SAFETY: by the caller.
    unsafe { I::apart(PartRun::<I, F>(part, PhantomData)) }
}

/// Runs a part with the instructions of `isa` in plain Rust.
///
/// # Safety
/// As for [`super::tile::run`].
#[cfg(all(feature = "emulate", not(target_arch = "aarch64")))]
pub(super) unsafe fn emulate<F: Format>(isa: Isa, part: Int8Part<'_>) {
    use crate::machine::instructions::{arm, x86 as instructions};
    use instructions::{Emulated, EmulatedTiles};
    use neon::{Neon, Sdot, Smull, Usmmla};
    // SAFETY: plain Rust needs no features; the rest by the caller.
    unsafe {
        match isa {
            Isa::Neon => on::<Neon<arm::Emulated, Smull>, F>(part),
            Isa::NeonDot => on::<Neon<arm::Emulated, Sdot>, F>(part),
            Isa::NeonI8mm => on::<Neon<arm::Emulated, Usmmla>, F>(part),
            Isa::Avx2 => on::<X86<Emulated<32>, Maddubs, 2>, F>(part),
            Isa::AvxVnni => on::<X86<Emulated<32>, Dpbusd, 2>, F>(part),
            Isa::Avx512 => on::<X86<Emulated<64>, Dpbusd, 1>, F>(part),
            Isa::Amx(_) => super::amx::run::<Emulated<64>, EmulatedTiles, F>(part),
            Isa::Scalar => unreachable!("{} is not emulated", isa.name()),
        }
    }
}
