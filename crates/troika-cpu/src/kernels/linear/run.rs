//! Which kernel runs a part of a product.

#[cfg(any(target_arch = "x86_64", all(feature = "emulate", not(target_arch = "aarch64"))))]
use super::amx;
#[cfg(any(target_arch = "x86_64", all(feature = "emulate", not(target_arch = "aarch64"))))]
use super::bf16::{self, Instruction};
use super::bf16::{PairsKernel, dispatch_pairs};
use super::terms::{Float, Mac};
use super::{ProductPart, tile};
use crate::Isa;
use crate::kernels::simd::{Kernel, Lanes, dispatch};

/// Runs a part of a product.
pub(crate) fn run_part(isa: Isa, part: ProductPart<'_>) {
    if part.product.pairs { run_pairs(isa, part) } else { dispatch(isa, FloatPart(part)) }
}

struct FloatPart<'a>(ProductPart<'a>);

impl Kernel for FloatPart<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        // SAFETY: features by the caller.
        unsafe { tile::part::<Float<V>>(self.0) }
    }
}

struct PairsPart<'a>(ProductPart<'a>);

impl PairsKernel for PairsPart<'_> {
    #[inline(always)]
    unsafe fn run<A: Mac>(self) {
        // SAFETY: features by the caller.
        unsafe { tile::part::<A>(self.0) }
    }
}

/// Runs a part of a product of pairs: natively where the instruction set can, else in plain Rust.
fn run_pairs(isa: Isa, part: ProductPart<'_>) {
    #[cfg(any(target_arch = "x86_64", all(feature = "emulate", not(target_arch = "aarch64"))))]
    if bf16::instruction(isa) == Instruction::Tiles {
        // SAFETY: features are detected, and who has the instruction set has asked for it.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if bf16::is_native(isa) {
                return run_tiles(part);
            }
            #[cfg(all(feature = "emulate", not(target_arch = "aarch64")))]
            {
                use crate::machine::instructions::x86::EmulatedTiles;
                return amx::part::<bf16::Emulated, EmulatedTiles>(part);
            }
        }
    }
    dispatch_pairs(isa, PairsPart(part));
}

/// # Safety
/// Needs the features, AMX-TILE and AMX-BF16, and the system's permission to use tiles. (Of
/// `Native` only the registers are used.)
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn run_tiles(part: ProductPart<'_>) {
    use crate::machine::instructions::x86::Tmm;
    // SAFETY: by the caller.
    unsafe { amx::part::<bf16::Native, Tmm>(part) }
}
