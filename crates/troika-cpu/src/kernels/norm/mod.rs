//! Normalisation over groups of columns.

use crate::kernels::simd::{Kernel, Lanes, dispatch, part_of, put_part};
use crate::kernels::{Context, KernelError, rows_per_part};

/// A normalisation of groups of `group` columns.
#[derive(Clone, Copy, Debug)]
pub enum Norm<'a> {
    /// `x / sqrt(mean(x^2) + eps) * (offset + weight)`.
    Rms {
        /// `group` elements, or as many for each group of a row.
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
    /// `x * weight`.
    Columns(&'a [f32]),
    /// `x * rms(like) / sqrt(max(mean(x^2), least))`.
    Match {
        /// As many as all of `x`.
        like: &'a [f32],
        /// The least mean square.
        least: f32,
    },
    /// `max(x - mean - deviations * std, 0)`.
    Largest {
        /// Standard deviations from the mean to the least that is kept.
        deviations: f32,
    },
}

impl<'a> Norm<'a> {
    /// The norm of one group of rows, all groups counted.
    fn of_line(self, line: usize, group: usize) -> Norm<'a> {
        match self {
            Norm::Rms { weight: Some(all), eps, offset } if all.len() > group => {
                let weight = Some(&all[line * group % all.len()..][..group]);
                Norm::Rms { weight, eps, offset }
            }
            Norm::Match { like, least } => {
                Norm::Match { like: &like[line * group..][..group], least }
            }
            norm => norm,
        }
    }

    pub(crate) fn check(&self, group: usize) {
        let (a, b) = match self {
            Norm::Rms { weight, .. } => (*weight, None),
            Norm::Layer { weight, bias, .. } => (Some(*weight), *bias),
            Norm::Columns(weight) => (Some(*weight), None),
            Norm::Match { .. } | Norm::Largest { .. } => (None, None),
        };
        // Only the weight of an RMS norm may have numbers for each group of a row.
        let fits = |w: Option<&[f32]>| match self {
            _ if w.is_none_or(|w| w.len() == group) => true,
            Norm::Rms { .. } => w.is_some_and(|w| group > 0 && w.len().is_multiple_of(group)),
            _ => false,
        };
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
    let isa = cx.isa;
    cx.run_rows(y, group, rows_per_part(group), |_, lines, y| {
        let x = &x[lines.start * group..lines.end * group];
        dispatch(isa, NormRun { norm, x, y, group, first: lines.start });
    })
}

struct NormRun<'a> {
    norm: Norm<'a>,
    x: &'a [f32],
    y: &'a mut [f32],
    group: usize,
    /// The first line.
    first: usize,
}

impl Kernel for NormRun<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let lines = self.x.chunks_exact(self.group).zip(self.y.chunks_exact_mut(self.group));
        for (i, (x, y)) in lines.enumerate() {
            line::<V>(self.norm.of_line(self.first + i, self.group), x, y);
        }
    }
}

/// Sum of `(x - shift)` or of its squares.
#[inline(always)]
fn total<V: Lanes>(x: &[f32], shift: f32, square: bool) -> f32 {
    let one = V::splat(1.0);
    let mut acc = [V::splat(0.0); 4];
    let registers = x.chunks_exact(V::N);
    let rest = registers.remainder();
    for (i, x) in registers.enumerate() {
        let v = V::from_slice(x).sub(V::splat(shift));
        acc[i % 4] = v.fma(if square { v } else { one }, acc[i % 4]);
    }
    let mut sum = acc[0].add(acc[2]).add(acc[1].add(acc[3])).sum();
    for x in rest {
        let v = x - shift;
        sum += if square { v * v } else { v };
    }
    sum
}

/// Normalises a line.
#[inline(always)]
pub(crate) fn line<V: Lanes>(norm: Norm<'_>, x: &[f32], y: &mut [f32]) {
    let n = x.len() as f32;
    match norm {
        Norm::Rms { weight: w, eps, offset } => {
            let scale = 1.0 / (total::<V>(x, 0.0, true) / n + eps).sqrt();
            affine::<V>(Affine { x, shift: 0.0, scale, offset, w, b: None }, y);
        }
        Norm::Layer { weight, bias: b, eps } => {
            let mean = total::<V>(x, 0.0, false) / n;
            let scale = 1.0 / (total::<V>(x, mean, true) / n + eps).sqrt();
            affine::<V>(Affine { x, shift: mean, scale, offset: 0.0, w: Some(weight), b }, y);
        }
        Norm::Columns(weight) => {
            let (shift, scale, offset, w, b) = (0.0, 1.0, 0.0, Some(weight), None);
            affine::<V>(Affine { x, shift, scale, offset, w, b }, y);
        }
        Norm::Match { like, least } => {
            let squares = |x| total::<V>(x, 0.0, true) / n;
            let scale = squares(like).sqrt() / squares(x).max(least).sqrt();
            affine::<V>(Affine { x, shift: 0.0, scale, offset: 0.0, w: None, b: None }, y);
        }
        Norm::Largest { deviations } => {
            let mean = total::<V>(x, 0.0, false) / n;
            let shift = mean + deviations * (total::<V>(x, mean, true) / n).sqrt();
            affine::<V>(Affine { x, shift, scale: 1.0, offset: 0.0, w: None, b: None }, y);
            y.iter_mut().for_each(|y| *y = y.max(0.0));
        }
    }
}

/// `(x - shift) * scale * (offset + w) + b`; no `w`: 1. All are as long.
struct Affine<'a> {
    x: &'a [f32],
    shift: f32,
    scale: f32,
    offset: f32,
    w: Option<&'a [f32]>,
    b: Option<&'a [f32]>,
}

#[inline(always)]
fn affine<V: Lanes>(a: Affine<'_>, y: &mut [f32]) {
    for (i, y) in y.chunks_mut(V::N).enumerate() {
        let at = i * V::N..i * V::N + y.len();
        let mut v = part_of::<V>(&a.x[at.clone()]).sub(V::splat(a.shift)).mul(V::splat(a.scale));
        if let Some(w) = a.w {
            v = v.mul(V::splat(a.offset).add(part_of(&w[at.clone()])));
        }
        if let Some(b) = a.b {
            v = v.add(part_of(&b[at]));
        }
        put_part(v, y);
    }
}
