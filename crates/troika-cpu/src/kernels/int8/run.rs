//! Which kernel runs a part of a product: the registers or tiles of an instruction set.

use troika_graph::{ActivationFormat, DType};

use super::quantize::{INT7, Quantization, SEVEN_BITS};
use super::{Int8Part, tile};
use crate::Isa;
use crate::kernels::quantized::dispatch::{PanelWork, on};
use crate::kernels::quantized::format::{self, Format};
#[cfg(any(target_arch = "aarch64", test, feature = "emulate"))]
use crate::kernels::quantized::lanes::neon::{Neon, Sdot, Smull, Usmmla};
#[cfg(any(
    target_arch = "x86_64",
    all(any(test, feature = "emulate"), not(target_arch = "aarch64"))
))]
use crate::kernels::quantized::lanes::x86::{Dpbusd, Maddubs, X86};
use crate::kernels::quantized::lanes::{RowLanes, scalar};
use crate::machine::Multiply;
#[cfg(target_arch = "aarch64")]
use crate::machine::instructions::arm::Native;
#[cfg(all(any(test, feature = "emulate"), not(target_arch = "aarch64")))]
use crate::machine::instructions::x86::Emulated;
#[cfg(target_arch = "x86_64")]
use crate::machine::instructions::x86::{Ymm, Zmm};

/// Whether products with weights that use all of their eight bits need fewer instructions with
/// activations in seven.
pub(crate) fn gains_from_seven_bits(isa: Isa) -> bool {
    let [eight, seven] = [ActivationFormat::INT8, INT7]
        .map(|a| multiply(isa, DType::Q8_0, Quantization::of(DType::Q8_0, a)));
    eight != seven
}

/// The multiply instruction behind products with weights of a type.
pub(crate) fn multiply(isa: Isa, weight: DType, quantization: Quantization) -> Option<Multiply> {
    match isa {
        Isa::Scalar | Isa::Neon => None,
        Isa::NeonDot => Some(Multiply::Int8Dot),
        Isa::NeonI8mm => Some(Multiply::Int8Mmla),
        Isa::AvxVnni => Some(Multiply::Int8AvxVnni),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 if has_vnni() => Some(Multiply::Int8Avx512),
        Isa::Amx(_) => Some(Multiply::Int8Avx512),
        Isa::Avx2 | Isa::Avx512 if !weight.uses_all_bits() => Some(Multiply::Int8SumsAvx2),
        Isa::Avx2 | Isa::Avx512 if quantization.largest <= SEVEN_BITS => Some(Multiply::Int8Avx2),
        Isa::Avx2 | Isa::Avx512 => Some(Multiply::Int8FlipAvx2),
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
pub(crate) fn run_part(isa: Isa, part: Int8Part<'_>) {
    assert!(isa.can_run(), "this machine has no {}", isa.name());
    let weight = part.product.weight.layout.dtype;
    if multiply(isa, weight, part.product.quantization) == Some(Multiply::Int8Avx2) {
        #[cfg(all(any(test, feature = "emulate"), not(target_arch = "aarch64")))]
        if isa.is_emulated() {
            // SAFETY: plain Rust needs no features; weights of this type use all bits.
            return unsafe { emulate_seven_bits(part) };
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: it was just asked whether the set can run; weights of this type use all bits.
        return unsafe { on::<X86<Ymm, Maddubs<true>, 2>, format::Q8_0>(part) };
    }
    // SAFETY: the format is the weight's; it was just asked whether the set can run.
    unsafe { format::with_format!(weight, F => for_format::<F>(isa, part)) }
}

/// A function for each format: as one, they would take the compiler minutes.
///
/// # Safety
/// As for [`tile::run`]; the machine has the instruction set or it is emulated.
unsafe fn for_format<F: Format>(isa: Isa, part: Int8Part<'_>) {
    // SAFETY: by the caller, or detected here.
    unsafe {
        match isa {
            Isa::Scalar => on::<scalar::Portable, F>(part),
            #[cfg(all(any(test, feature = "emulate"), not(target_arch = "aarch64")))]
            _ if isa.is_emulated() => emulate::<F>(isa, part),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => run_smull::<F>(part),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => run_dot::<F>(part),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => run_i8mm::<F>(part),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => on::<X86<Ymm, Dpbusd, 2>, F>(part),
            // Sums on tiles go through memory before they are scaled, which takes longer than the
            // tiles save.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx(_) if has_vnni() => on::<X86<Zmm, Dpbusd, 1>, F>(part),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 => on::<X86<Ymm, Maddubs<false>, 2>, F>(part),
            #[allow(unreachable_patterns)]
            _ => unreachable!("{} can run here", isa.name()),
        }
    }
}

impl PanelWork for Int8Part<'_> {
    #[inline(always)]
    unsafe fn run<I: RowLanes, F: Format>(self) {
        // SAFETY: by the caller.
        unsafe { tile::run::<I, F>(self) }
    }
}

/// A function that runs a part with products of ARM, with their features switched on.
#[cfg(target_arch = "aarch64")]
macro_rules! run_neon {
    ($name:ident, $products:ty, $features:literal) => {
        /// # Safety
        /// As for [`tile::run`]; the machine has the features.
        #[target_feature(enable = $features)]
        unsafe fn $name<F: Format>(part: Int8Part<'_>) {
            // SAFETY: passed on.
            unsafe { tile::run::<Neon<Native, $products>, F>(part) }
        }
    };
}
#[cfg(target_arch = "aarch64")]
run_neon!(run_smull, Smull, "neon");
#[cfg(target_arch = "aarch64")]
run_neon!(run_dot, Sdot, "dotprod");
#[cfg(target_arch = "aarch64")]
run_neon!(run_i8mm, Usmmla, "dotprod,i8mm");

/// Runs a part on AVX2 in plain Rust, with weights of all eight bits and activations in seven.
///
/// # Safety
/// As for [`tile::run`].
#[cfg(all(any(test, feature = "emulate"), not(target_arch = "aarch64")))]
pub(super) unsafe fn emulate_seven_bits(part: Int8Part<'_>) {
    // SAFETY: plain Rust needs no features; the rest by the caller.
    unsafe { on::<X86<Emulated<32>, Maddubs<true>, 2>, format::Q8_0>(part) }
}

/// Runs a part with the instructions of `isa` in plain Rust.
///
/// # Safety
/// As for [`tile::run`].
#[cfg(all(any(test, feature = "emulate"), not(target_arch = "aarch64")))]
pub(super) unsafe fn emulate<F: Format>(isa: Isa, part: Int8Part<'_>) {
    use crate::machine::instructions::arm;
    // SAFETY: plain Rust needs no features; the rest by the caller.
    unsafe {
        match isa {
            Isa::Neon => on::<Neon<arm::Emulated, Smull>, F>(part),
            Isa::NeonDot => on::<Neon<arm::Emulated, Sdot>, F>(part),
            Isa::NeonI8mm => on::<Neon<arm::Emulated, Usmmla>, F>(part),
            Isa::Avx2 => on::<X86<Emulated<32>, Maddubs<false>, 2>, F>(part),
            Isa::AvxVnni => on::<X86<Emulated<32>, Dpbusd, 2>, F>(part),
            Isa::Avx512 | Isa::Amx(_) => on::<X86<Emulated<64>, Dpbusd, 1>, F>(part),
            Isa::Scalar => unreachable!("{} is not emulated", isa.name()),
        }
    }
}
