//! Runs work with packed weights on the registers of an instruction set.

use std::marker::PhantomData;

use troika_graph::DType;

use super::format::{Format, with_format};
#[cfg(any(target_arch = "aarch64", test, feature = "emulate"))]
use super::lanes::neon::{Neon, Smull};
#[cfg(target_arch = "x86_64")]
use super::lanes::x86::{Maddubs, X86};
use super::lanes::{RowLanes, scalar};
use crate::Isa;
use crate::machine::instructions::RegisterWork;
#[cfg(target_arch = "aarch64")]
use crate::machine::instructions::arm::Native;
#[cfg(target_arch = "x86_64")]
use crate::machine::instructions::x86::{Ymm, Zmm};

/// Work with panels of a format.
pub(crate) trait PanelWork {
    /// # Safety
    /// Needs the features of `I`, and a weight of the format; the rest as the type says.
    unsafe fn run<I: RowLanes, F: Format>(self);
}

/// Work with registers `I` and a format.
struct PanelRun<W, I, F>(W, PhantomData<(I, F)>);

impl<W: PanelWork, I: RowLanes, F: Format> RegisterWork for PanelRun<W, I, F> {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: by the caller.
        unsafe { self.0.run::<I, F>() }
    }
}

/// Runs work with packed weights of a type and floats.
///
/// # Safety
/// As the work says; the weight is of the type.
pub(crate) unsafe fn run_floats(isa: Isa, weight: DType, work: impl PanelWork) {
    assert!(isa.can_run(), "this machine has no {}", isa.name());
    // SAFETY: the format is the weight's; it was just asked whether the set can run.
    unsafe { with_format!(weight, F => floats_of::<F>(isa, work)) }
}

/// # Safety
/// As for [`run_floats`]; the weight is of the format.
unsafe fn floats_of<F: Format>(isa: Isa, work: impl PanelWork) {
    // SAFETY: by the caller, or detected here.
    unsafe {
        match isa {
            Isa::Scalar => on::<scalar::Portable, F>(work),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => on::<Neon<Native, Smull>, F>(work),
            #[cfg(all(any(test, feature = "emulate"), not(target_arch = "aarch64")))]
            Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => {
                use crate::machine::instructions::arm;
                on::<Neon<arm::Emulated, Smull>, F>(work)
            }
            // Of x86 only products of bytes are emulated.
            #[cfg(all(any(test, feature = "emulate"), not(target_arch = "aarch64")))]
            _ if isa.is_emulated() => on::<scalar::Portable, F>(work),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::AvxVnni => on::<X86<Ymm, Maddubs<false>, 2>, F>(work),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Amx(_) => on::<X86<Zmm, Maddubs<false>, 1>, F>(work),
            #[allow(unreachable_patterns)]
            _ => unreachable!("{} can run here", isa.name()),
        }
    }
}

/// Runs work on registers `I`, with panels of a format.
///
/// # Safety
/// As for [`PanelWork::run`].
#[inline(never)]
pub(crate) unsafe fn on<I: RowLanes, F: Format>(work: impl PanelWork) {
    // SAFETY: by the caller.
    unsafe { I::apart(PanelRun::<_, I, F>(work, PhantomData)) }
}
