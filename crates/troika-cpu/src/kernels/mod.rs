//! Kernels, a folder per op. `mod.rs` holds the driver that cuts the op into parts and the
//! kernel over [`simd::Lanes`], which tests check against a plain reference;
//! files named after an instruction set (`avx2.rs`, ...) what is written for that set alone.
//! [`instructions`](crate::machine::instructions) lets such a file run on machines without the set, in tests.

pub mod attention;
pub mod elementwise;
pub mod embed;
pub mod int8;
pub mod kv;
pub mod linear;
pub mod moe;
pub mod norm;
pub mod outliers;
pub mod quantized;
pub mod recurrence;
pub mod rope;
pub mod router;
pub(crate) mod select;
pub mod simd;

use std::ops::Range;

use troika_graph::{ActivationFormat, DType};

use crate::machine::{Isa, Multiply};
use crate::runtime::{Panicked, PerWorker, Pool, SharedMut};

/// Something of floats, by their type.
#[derive(Clone, Copy, Debug)]
pub enum ByFloat<A, B, C> {
    /// Single precision.
    F32(A),
    /// Half precision.
    F16(B),
    /// Half precision with the range of f32.
    BF16(C),
}

/// The same expression for floats of any type.
macro_rules! for_floats {
    ($of:expr, $x:ident => $code:expr) => {
        match $of {
            $crate::kernels::ByFloat::F32($x) => $code,
            $crate::kernels::ByFloat::F16($x) => $code,
            $crate::kernels::ByFloat::BF16($x) => $code,
        }
    };
}
pub(crate) use for_floats;

/// Why a kernel did not finish.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// The operands hold something the op has no meaning for.
    #[error("{0}")]
    Operand(String),
    /// A bug.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// A weight cannot be read.
    #[error("weight {name} {why}")]
    Weight {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
}

/// What kernels run on.
pub struct Context<'a> {
    /// Workers.
    pub pool: &'a mut Pool,
    /// Instruction set.
    pub isa: Isa,
    /// Scratch of each worker; ops say how much they need (`worker_floats`).
    pub scratch: PerWorker<'a>,
}

impl Context<'_> {
    /// Calls `work(scratch, part)` for every part, on all workers.
    pub(crate) fn run(
        &mut self,
        parts: usize,
        work: &(dyn Fn(&mut [f32], usize) + Sync),
    ) -> Result<(), KernelError> {
        Ok(self.scratch.run(self.pool, parts, work)?)
    }

    /// Cuts `out`, rows of `width` elements, into parts of `step` rows; calls
    /// `work(scratch, rows, their elements)` for every part.
    pub(crate) fn run_rows<T: Send>(
        &mut self,
        out: &mut [T],
        width: usize,
        step: usize,
        work: impl Fn(&mut [f32], Range<usize>, &mut [T]) + Sync,
    ) -> Result<(), KernelError> {
        let (rows, out) = (out.len() / width.max(1), SharedMut::new(out));
        self.run(rows.div_ceil(step), &|scratch, part| {
            let rows = part * step..((part + 1) * step).min(rows);
            // SAFETY: every part runs once, and no two have the same rows.
            let out = unsafe { out.slice(rows.start * width..rows.end * width) };
            work(scratch, rows, out);
        })
    }
}

/// What products with weights of a type multiply with on an instruction set, if it is known.
pub fn multiply(isa: Isa, weight: DType, activations: ActivationFormat) -> Option<Multiply> {
    match activations {
        ActivationFormat::Int(_) if weight.is_quantized() => {
            int8::multiply(isa, weight, int8::Quantization::of(weight, activations))
        }
        ActivationFormat::F32 | ActivationFormat::Bf16 => linear::multiply(isa, activations),
        ActivationFormat::Int(_) | ActivationFormat::F16 | ActivationFormat::F16Int4 => None,
    }
}

/// Elements of an element-wise op that one part handles.
pub(crate) const ELEMENTS_PER_PART: usize = 16 << 10;

/// Rows of `cols` elements that one part of a row-wise op handles.
pub(crate) fn rows_per_part(cols: usize) -> usize {
    (ELEMENTS_PER_PART / cols.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::peaks;

    /// What the kernels say they use is something this machine has.
    #[test]
    fn kernels_use_what_is_measured() {
        for isa in Isa::available() {
            for activations in
                [ActivationFormat::F32, ActivationFormat::INT8, int8::INT7, ActivationFormat::Bf16]
            {
                for &dtype in DType::WEIGHTS {
                    let used = multiply(isa, dtype, activations);
                    let here = used.is_none_or(peaks::is_measured);
                    assert!(here, "{isa:?} {dtype} {activations:?}");
                }
            }
            // Every set besides the plain one multiplies floats and bytes with something.
            let float = multiply(isa, DType::F32, ActivationFormat::F32);
            let byte = multiply(isa, DType::Q8_0, ActivationFormat::INT8);
            assert!(isa == Isa::Scalar || float.is_some() && byte.is_some(), "{isa:?}");
        }
    }
}
