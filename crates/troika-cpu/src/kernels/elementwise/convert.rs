//! Conversion between types of floats.

use std::sync::atomic::{AtomicBool, Ordering};

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::kernels::kv::BEYOND_F16;
use crate::kernels::{ByFloat, Context, ELEMENTS_PER_PART, KernelError, for_floats};

/// Numbers of any float type.
pub type Floats<'a> = ByFloat<&'a [f32], &'a [f16], &'a [bf16]>;

/// Numbers of any float type, to be written.
pub type FloatsMut<'a> = ByFloat<&'a mut [f32], &'a mut [f16], &'a mut [bf16]>;

impl Floats<'_> {
    fn len(&self) -> usize {
        for_floats!(self, x => x.len())
    }

    /// Widens the numbers from `first` on.
    fn widen(&self, first: usize, to: &mut [f32]) {
        let r = first..first + to.len();
        match self {
            Floats::F32(x) => to.copy_from_slice(&x[r]),
            Floats::F16(x) => x[r].convert_to_f32_slice(to),
            Floats::BF16(x) => x[r].convert_to_f32_slice(to),
        }
    }
}

/// Numbers converted at once, on the stack.
const AT_ONCE: usize = 256;

/// Writes the numbers of `x` to `y`, rounded to the nearest, ties to even, where `y` has fewer bits.
///
/// # Errors
/// Numbers that f16 cannot hold (all are written then, too); a panic of a part.
pub fn convert(cx: &mut Context<'_>, x: Floats<'_>, y: FloatsMut<'_>) -> Result<(), KernelError> {
    match y {
        FloatsMut::F32(y) => convert_to(cx, x, y, &|wide, y| y.copy_from_slice(wide)),
        FloatsMut::BF16(y) => convert_to(cx, x, y, &|wide, y| y.convert_from_f32_slice(wide)),
        FloatsMut::F16(y) => {
            let beyond = AtomicBool::new(false);
            convert_to(cx, x, y, &|wide, y| {
                y.convert_from_f32_slice(wide);
                if wide.iter().fold(false, |any, x| any | (x.abs() >= BEYOND_F16)) {
                    beyond.store(true, Ordering::Relaxed);
                }
            })?;
            let why =
                "values exceed the range of f16; use bf16 or f32 for the values between segments";
            if beyond.into_inner() { Err(KernelError::Operand(why.into())) } else { Ok(()) }
        }
    }
}

/// Writes the numbers of `x` to `y` by `put`, some at a time.
fn convert_to<T: Send>(
    cx: &mut Context<'_>,
    x: Floats<'_>,
    y: &mut [T],
    put: &(dyn Fn(&[f32], &mut [T]) + Sync),
) -> Result<(), KernelError> {
    assert!(x.len() == y.len(), "lengths of operands");
    cx.run_rows(y, 1, ELEMENTS_PER_PART, |_, part, y| {
        for (at, y) in part.step_by(AT_ONCE).zip(y.chunks_mut(AT_ONCE)) {
            let mut wide = [0.0; AT_ONCE];
            let wide = &mut wide[..y.len()];
            x.widen(at, wide);
            put(wide, y);
        }
    })
}
