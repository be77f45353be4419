//! Activations in eight bits: 32 values share an f32 scale.

use troika_graph::DType;

use super::layout::{GROUP, zero};
use crate::SharedMut;
use crate::kernels::simd::{Kernel, Lanes, dispatch};
use crate::kernels::{Context, KernelError, rows_per_part};

/// A group: 32 values, the scale, and what the weight's type needs beside: [`Extra`].
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C)]
pub(super) struct Group {
    pub q: [i8; GROUP],
    pub scale: f32,
    pub extra: [u32; 2],
}

/// Floats a group takes.
pub const GROUP_FLOATS: usize = size_of::<Group>() / 4;

/// Floats a row of `cols` activations takes.
pub fn floats(cols: usize) -> usize {
    cols / GROUP * GROUP_FLOATS
}

/// Sums that go with a group's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// i32: `-zero * sum of the values`, of 32 or of each 16 of them. It makes up for a weight
    /// value other than 0 that stands for zero.
    Zero {
        /// That value.
        zero: i32,
        /// Whether of each half.
        halves: bool,
    },
    /// f32: `-scale * sum of the values`, for weights with minima.
    Sum,
}

impl Extra {
    /// What products with weights of a type need.
    pub fn of(dtype: DType) -> Extra {
        match dtype {
            DType::Q4_K | DType::Q5_K => Extra::Sum,
            _ if dtype.has_zero_points() => Extra::Sum,
            _ => Extra::Zero { zero: zero(dtype), halves: dtype == DType::Q6_K },
        }
    }
}

/// Groups with a smaller largest value are zeros.
const TINY: f32 = 1e-30;

/// Quantizes a group: the nearest of `amax / 127` times an integer, ties to even.
///
/// # Safety
/// Needs the features of `V`.
#[inline(always)]
pub(super) unsafe fn group<V: Lanes>(x: &[f32; GROUP], extra: Extra, out: &mut Group) {
    // SAFETY: by the caller; both are a group's.
    let (amax, sums) = unsafe {
        let amax = V::largest_magnitude(x);
        let inverse = if amax < TINY { 0.0 } else { 127.0 / amax };
        (amax, V::round_bytes(x, inverse, &mut out.q))
    };
    out.scale = if amax < TINY { 0.0 } else { amax / 127.0 };
    out.extra = match extra {
        Extra::Zero { zero, halves: true } => sums.map(|s| (-zero * s) as u32),
        Extra::Zero { zero, halves: false } => [(-zero * (sums[0] + sums[1])) as u32, 0],
        Extra::Sum => [(-out.scale * (sums[0] + sums[1]) as f32).to_bits(), 0],
    };
}

struct Run<'a> {
    x: &'a [f32],
    extra: Extra,
    out: &'a mut [Group],
}

impl Kernel for Run<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        for (x, out) in self.x.as_chunks::<GROUP>().0.iter().zip(self.out) {
            // SAFETY: features by the caller.
            unsafe { group::<V>(x, self.extra, out) }
        }
    }
}

/// Quantizes rows of `cols` activations (a multiple of 32) into [`floats`] floats each.
///
/// # Errors
/// A panic of a part.
///
/// # Panics
/// If the result's length is another.
pub fn quantize(
    cx: &mut Context<'_>,
    (x, cols): (&[f32], usize),
    extra: Extra,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let rows = x.len() / cols.max(1);
    assert!(cols.is_multiple_of(GROUP) && out.len() == rows * floats(cols), "quantized rows");
    let each = rows_per_part(cols);
    let (isa, out) = (cx.isa, SharedMut::new(out));
    cx.pool.run(rows.div_ceil(each), &|_, part| {
        let rows = part * each..(part * each + each).min(rows);
        // SAFETY: each part has its own rows.
        let out = unsafe { out.slice(rows.start * floats(cols)..rows.end * floats(cols)) };
        let x = &x[rows.start * cols..rows.end * cols];
        dispatch(isa, Run { x, extra, out: bytemuck::cast_slice_mut(out) });
    })?;
    Ok(())
}
