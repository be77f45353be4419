//! Normalisation over groups of columns.

pub mod scalar;

use crate::SharedMut;
use crate::kernels::simd::{Kernel, Lanes, dispatch, load_part, store_part};
use crate::kernels::{Context, KernelError, rows_per_part};

/// A normalisation of groups of `group` columns.
#[derive(Clone, Copy, Debug)]
pub enum Norm<'a> {
    /// `x / sqrt(mean(x^2) + eps) * (offset + weight)`.
    Rms {
        /// `group` elements.
        weight: Option<&'a [f32]>,
        /// Added to the mean square.
        eps: f32,
        /// Added to the weight.
        offset: f32,
    },
    /// `(x - mean) / sqrt(var + eps) * weight + bias`.
    Layer {
        /// `group` elements.
        weight: &'a [f32],
        /// `group` elements.
        bias: Option<&'a [f32]>,
        /// Added to the variance.
        eps: f32,
    },
}

impl Norm<'_> {
    pub(crate) fn check(&self, group: usize) {
        let (a, b) = match self {
            Norm::Rms { weight, .. } => (*weight, None),
            Norm::Layer { weight, bias, .. } => (Some(*weight), *bias),
        };
        let fits = |w: Option<&[f32]>| w.is_none_or(|w| w.len() == group);
        assert!(fits(a) && fits(b), "length of a norm's weight");
    }
}

/// Normalises each group of `group` elements of `x`.
///
/// # Errors
/// A panic of a part.
pub fn norm(
    cx: &mut Context<'_>,
    norm: Norm<'_>,
    x: &[f32],
    y: &mut [f32],
    group: usize,
) -> Result<(), KernelError> {
    norm.check(group);
    assert!(group > 0 && x.len() == y.len(), "lengths of a norm's operands");
    let (lines, step) = (y.len() / group, rows_per_part(group));
    let out = SharedMut::new(y);
    let isa = cx.isa;
    cx.pool.run(lines.div_ceil(step), &|_, part| {
        let r = part * step * group..((part + 1) * step).min(lines) * group;
        // SAFETY: parts are disjoint.
        let y = unsafe { out.slice(r.clone()) };
        dispatch(isa, NormRun { norm, x: &x[r], y, group });
    })?;
    Ok(())
}

struct NormRun<'a> {
    norm: Norm<'a>,
    x: &'a [f32],
    y: &'a mut [f32],
    group: usize,
}

impl Kernel for NormRun<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<V: Lanes>(self) {
        let lines = self.x.chunks_exact(self.group).zip(self.y.chunks_exact_mut(self.group));
        for (x, y) in lines {
            // SAFETY: features by the caller; weights were checked against the group.
            unsafe { line::<V>(self.norm, x, y) }
        }
    }
}

/// Sum of `(x - shift)` or of its squares.
// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn total<V: Lanes>(x: &[f32], shift: f32, square: bool) -> f32 {
    let n = x.len();
    let mut i = 0;
    // SAFETY: loads stay inside `x`.
    unsafe {
        let one = V::splat(1.0);
        let mut acc = [V::splat(0.0); 4];
        let mut chain = 0;
        while i + V::N <= n {
            let v = V::load(x.as_ptr().add(i)).sub(V::splat(shift));
            acc[chain] = v.fma(if square { v } else { one }, acc[chain]);
            chain = (chain + 1) % 4;
            i += V::N;
        }
        let mut sum = acc[0].add(acc[2]).add(acc[1].add(acc[3])).sum();
        for x in &x[i..] {
            let v = x - shift;
            sum += if square { v * v } else { v };
        }
        sum
    }
}

/// Normalises a line.
///
/// # Safety
/// Needs the features of `V`; the norm was checked against the line.
#[inline(always)]
pub(crate) unsafe fn line<V: Lanes>(norm: Norm<'_>, x: &[f32], y: &mut [f32]) {
    let n = x.len() as f32;
    // SAFETY: weights and bias are as long as the line.
    unsafe {
        match norm {
            Norm::Rms { weight, eps, offset } => {
                let scale = 1.0 / (total::<V>(x, 0.0, true) / n + eps).sqrt();
                let w = weight.map(<[f32]>::as_ptr);
                affine::<V>(Affine { x, shift: 0.0, scale, offset, w, b: None }, y);
            }
            Norm::Layer { weight, bias, eps } => {
                let mean = total::<V>(x, 0.0, false) / n;
                let scale = 1.0 / (total::<V>(x, mean, true) / n + eps).sqrt();
                let (w, b) = (Some(weight.as_ptr()), bias.map(<[f32]>::as_ptr));
                affine::<V>(Affine { x, shift: mean, scale, offset: 0.0, w, b }, y);
            }
        }
    }
}

/// `(x - shift) * scale * (offset + w) + b`; no `w`: 1.
struct Affine<'a> {
    x: &'a [f32],
    shift: f32,
    scale: f32,
    offset: f32,
    w: Option<*const f32>,
    b: Option<*const f32>,
}

// SAFETY: the caller has the features on.
#[inline(always)]
unsafe fn affine<V: Lanes>(a: Affine<'_>, y: &mut [f32]) {
    let n = y.len().min(a.x.len());
    let mut i = 0;
    // SAFETY: `w` and `b` are as long as the line.
    unsafe {
        while i < n {
            let rest = (n - i).min(V::N);
            let mut v =
                up_to::<V>(a.x.as_ptr().add(i), rest).sub(V::splat(a.shift)).mul(V::splat(a.scale));
            if let Some(w) = a.w {
                v = v.mul(V::splat(a.offset).add(up_to(w.add(i), rest)));
            }
            if let Some(b) = a.b {
                v = v.add(up_to(b.add(i), rest));
            }
            if rest == V::N {
                v.store(y.as_mut_ptr().add(i));
            } else {
                store_part(v, y.as_mut_ptr().add(i), rest);
            }
            i += V::N;
        }
    }
}

/// All lanes, or the first `n`.
// SAFETY: the caller has the features on, and the pointers reach as far as the operands say.
#[inline(always)]
unsafe fn up_to<V: Lanes>(p: *const f32, n: usize) -> V {
    // SAFETY: the caller has the features and `n` floats.
    unsafe { if n == V::N { V::load(p) } else { load_part(p, n) } }
}
