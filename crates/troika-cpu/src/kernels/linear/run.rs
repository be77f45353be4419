//! Which kernel runs a part of a product.

use super::bf16::dispatch_pairs;
use super::terms::Float;
use super::{ProductPart, tile};
#[cfg(any(
    target_arch = "x86_64",
    all(any(test, feature = "emulate"), not(target_arch = "aarch64"))
))]
use super::{amx, bf16};
use crate::Isa;
use crate::kernels::quantized::PackedView;
use crate::kernels::quantized::dispatch::run_floats;
use crate::kernels::quantized::float::OneRow;
use crate::kernels::select;
use crate::kernels::simd::{Kernel, Lanes, Mac, PairsKernel, dispatch};
#[cfg(target_arch = "x86_64")]
use crate::machine::instructions::x86::Tmm;

/// Runs a part of a product.
pub(crate) fn run_part(isa: Isa, part: ProductPart<'_>) {
    if let Some(weight) = part.product.packed() {
        return run_packed(isa, weight, part);
    }
    if part.product.pairs { run_pairs(isa, part) } else { dispatch(isa, part) }
}

/// Whether lanes multiply and add with one rounding, as products of one row with packed weights do.
fn is_fused(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => false,
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => true,
        _ => !isa.is_emulated(),
    }
}

/// A quantized weight in panels: one row meets it as it lies, several meet blocks of floats.
fn run_packed(isa: Isa, weight: PackedView<'_>, part: ProductPart<'_>) {
    let ProductPart { product, n, m, scratch, .. } = part;
    if m.len() == 1 && is_fused(isa) {
        let x = product.x.row(m.start, weight.layout.cols());
        let y = product.y.at(m.start, weight.layout.rows());
        let row = OneRow { weight, n, x, y, bias: product.bias };
        // SAFETY: `ProductPart::new` checked rows and lengths, and had the promise that nobody else
        // writes the results.
        return unsafe { run_floats(isa, weight.layout.dtype, row) };
    }
    for from in n.clone().step_by(select::MAX_PANEL) {
        let n = from..(from + select::MAX_PANEL).min(n.end);
        // SAFETY: these rows are a part of those of a part, which are no one else's.
        let mut part = unsafe { ProductPart::new(product, n, m.clone(), &mut *scratch) };
        part.isa = isa;
        dispatch(isa, part);
    }
}

impl Kernel for ProductPart<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        tile::part::<Float<V>>(self)
    }
}

impl PairsKernel for ProductPart<'_> {
    #[inline(always)]
    fn run<A: Mac>(self) {
        tile::part::<A>(self)
    }
}

/// On the machine's tiles.
#[cfg(target_arch = "x86_64")]
struct TilesPart<'a>(ProductPart<'a>);

#[cfg(target_arch = "x86_64")]
impl<'a> TilesPart<'a> {
    /// # Safety
    /// The machine has AMX-TILE and AMX-BF16, and the system lets this process use tiles.
    unsafe fn new(part: ProductPart<'a>) -> Self {
        TilesPart(part)
    }
}

#[cfg(target_arch = "x86_64")]
impl Kernel for TilesPart<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        // SAFETY: promised when this was made.
        unsafe { amx::part::<V, Tmm>(self.0) }
    }
}

/// Runs a part of a product of pairs: natively where the instruction set can, else in plain Rust.
fn run_pairs(isa: Isa, part: ProductPart<'_>) {
    #[cfg(any(
        target_arch = "x86_64",
        all(any(test, feature = "emulate"), not(target_arch = "aarch64"))
    ))]
    if bf16::instruction(isa) == bf16::Instruction::Tiles {
        #[cfg(target_arch = "x86_64")]
        if bf16::is_native(isa) {
            // SAFETY: such an `Isa` comes from `Amx::detect`, which found and asked for both.
            return dispatch(isa, unsafe { TilesPart::new(part) });
        }
        #[cfg(all(any(test, feature = "emulate"), not(target_arch = "aarch64")))]
        {
            use crate::kernels::simd::Portable;
            use crate::machine::instructions::x86::EmulatedTiles;
            // SAFETY: plain Rust needs no features.
            return unsafe { amx::part::<Portable, EmulatedTiles>(part) };
        }
    }
    dispatch_pairs(isa, part);
}
