//! Ops on elements, and ops that move columns.

mod convert;
#[allow(clippy::excessive_precision)] // constants as published
mod erf;

use troika_graph::Activation;

use crate::kernels::simd::{Kernel, Lanes, MAX_LANES, dispatch, part_of, put_part, swish, tanh};
use crate::kernels::{Context, ELEMENTS_PER_PART, KernelError, rows_per_part};
use crate::{SharedMut, SharedRef};

pub use convert::{Floats, FloatsMut, convert};
pub use erf::gelu;

/// An op on elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Element {
    /// `act(a)`.
    Activate(Activation),
    /// `act(a) * b`.
    Gate(Activation),
    /// `a + b`.
    Add,
    /// `a * factor`.
    Scale(f32),
    /// `a` between `-limit` and `limit`.
    Clamp(f32),
    /// `cap * tanh(a / cap)`.
    SoftCap(f32),
}

/// Applies an op to `a` and, for those with two operands, `b` of the same length.
///
/// # Errors
/// A panic of a part.
pub fn elementwise(
    cx: &mut Context<'_>,
    op: Element,
    a: &[f32],
    b: Option<&[f32]>,
    y: &mut [f32],
) -> Result<(), KernelError> {
    let len = y.len();
    assert!(a.len() == len && b.is_none_or(|b| b.len() == len), "lengths of operands");
    let isa = cx.isa;
    cx.run_rows(y, 1, ELEMENTS_PER_PART, |_, r, y| {
        let b = b.map_or(&a[r.clone()], |b| &b[r.clone()]);
        dispatch(isa, ElementwiseRun { op, a: &a[r], b, y });
    })
}

/// Rows of numbers, `stride` numbers from one to the next.
#[derive(Clone, Copy, Debug)]
pub struct ElementRows<'a> {
    /// From the first number of the first row to the last one of the last row at least.
    pub data: SharedRef<'a, f32>,
    /// Not less than the numbers of a row.
    pub stride: usize,
}

/// Operands of an op on `rows` rows of `cols` numbers.
pub struct StridedOperands<'a> {
    /// Rows.
    pub rows: usize,
    /// Numbers of a row.
    pub cols: usize,
    /// The first operand.
    pub a: ElementRows<'a>,
    /// The second one, if the op has two.
    pub b: Option<ElementRows<'a>>,
    /// Where results go.
    pub y: SharedMut<'a, f32>,
    /// Numbers from one row of results to the next.
    pub stride: usize,
}

/// As [`elementwise`], on rows that may lie apart.
///
/// # Errors
/// A panic of a part.
///
/// # Panics
/// If operands are shorter than their rows.
///
/// # Safety
/// Meanwhile the rows of `y` are not used otherwise, and the rows of the operands are not written.
/// What lies between rows may be.
pub unsafe fn elementwise_rows(
    cx: &mut Context<'_>,
    op: Element,
    operands: StridedOperands<'_>,
) -> Result<(), KernelError> {
    let StridedOperands { rows, cols, a, b, y, stride } = operands;
    if rows == 0 || cols == 0 {
        return Ok(());
    }
    let b = b.unwrap_or(a);
    let fits = |stride: usize, len: usize| stride >= cols && (rows - 1) * stride + cols <= len;
    let inputs_fit = [&a, &b].into_iter().all(|x| fits(x.stride, x.data.len()));
    assert!(inputs_fit && fits(stride, y.len()), "rows of operands");
    let (isa, per_part) = (cx.isa, rows_per_part(cols));
    cx.pool.run(rows.div_ceil(per_part), &|_, part| {
        for row in part * per_part..((part + 1) * per_part).min(rows) {
            // SAFETY: the row lies inside by the assertion above, and is not written by the caller.
            let read = |x: &ElementRows<'_>| unsafe {
                std::slice::from_raw_parts(x.data.as_ptr().add(row * x.stride), cols)
            };
            // SAFETY: rows do not overlap, and nobody else uses this one.
            let y = unsafe { y.slice(row * stride..row * stride + cols) };
            dispatch(isa, ElementwiseRun { op, a: read(&a), b: read(&b), y });
        }
    })?;
    Ok(())
}

/// An op on slices of equal length.
pub(crate) struct ElementwiseRun<'a> {
    pub op: Element,
    pub a: &'a [f32],
    pub b: &'a [f32],
    pub y: &'a mut [f32],
}

impl Kernel for ElementwiseRun<'_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let n = self.y.len().min(self.a.len()).min(self.b.len());
        for i in (0..n).step_by(V::N) {
            let (a, b) = (part_of::<V>(&self.a[i..n]), part_of(&self.b[i..n]));
            put_part(apply(self.op, a, b), &mut self.y[i..n]);
        }
    }
}

#[inline(always)]
fn apply<V: Lanes>(op: Element, a: V, b: V) -> V {
    match op {
        Element::Activate(act) => activate(act, a, None),
        Element::Gate(act) => activate(act, a, Some(b)),
        Element::Add => a.add(b),
        Element::Scale(f) => a.mul(V::splat(f)),
        Element::Clamp(limit) => a.max(V::splat(-limit)).min(V::splat(limit)),
        Element::SoftCap(cap) => V::splat(cap).mul(tanh(a.div(V::splat(cap)))),
    }
}

/// `act(g)`, or `act(g) * u`.
#[inline(always)]
pub(crate) fn activate<V: Lanes>(act: Activation, g: V, u: Option<V>) -> V {
    let (y, u) = match act {
        Activation::Silu => (swish(g, V::splat(1.0)), u),
        Activation::Gelu => (each(g, gelu), u),
        Activation::GeluTanh => {
            // x/2 * (1 + tanh(z)) = x * sigmoid(2z), z = sqrt(2/pi) * (x + 0.044715 x^3).
            let cubic = g.mul(g).fma(V::splat(0.071_354_816), V::splat(1.595_769_2));
            (swish(g, cubic), u)
        }
        Activation::Relu => (g.max(V::splat(0.0)), u),
        Activation::ReluSquared => {
            let positive = g.max(V::splat(0.0));
            (positive.mul(positive), u)
        }
        Activation::Sigmoid => {
            let minus = V::splat(0.0).sub(g);
            (V::splat(1.0).div(V::splat(1.0).add(minus.exp())), u)
        }
        Activation::Softplus => (each(g, |x| x.max(0.0) + (-x.abs()).exp().ln_1p()), u),
        Activation::Xielu { alpha_p, alpha_n } => {
            let (zero, positive) = (V::splat(0.0), g.max(V::splat(0.0)));
            let power = g.min(V::splat(-1e-6)).exp().sub(V::splat(1.0));
            let negative = power.sub(g.min(zero)).mul(V::splat(alpha_n));
            let line = g.fma(V::splat(0.5), negative);
            (positive.mul(positive).fma(V::splat(alpha_p), line), u)
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let top = V::splat(limit);
            let u = match u {
                Some(u) => u.max(V::splat(-limit)).min(top),
                None => V::splat(0.0),
            };
            (swish(g.min(top), V::splat(alpha)), Some(u.add(V::splat(1.0))))
        }
    };
    u.map_or(y, |u| y.mul(u))
}

/// A function applied lane by lane.
#[inline(always)]
fn each<V: Lanes>(x: V, f: impl Fn(f32) -> f32) -> V {
    let mut buf = [0.0; MAX_LANES];
    x.write_to(&mut buf);
    for v in &mut buf[..V::N] {
        *v = f(*v);
    }
    V::from_slice(&buf)
}

/// `x * sigmoid(g)` with one `g` per row of `cols`.
///
/// # Errors
/// A panic of a part.
pub fn sigmoid_gate(
    cx: &mut Context<'_>,
    x: &[f32],
    g: &[f32],
    y: &mut [f32],
    cols: usize,
) -> Result<(), KernelError> {
    each_row(cx, y, cols, &|row, y| {
        let s = 1.0 / (1.0 + (-g[row]).exp());
        y.iter_mut().zip(&x[row * cols..][..cols]).for_each(|(y, x)| *y = x * s);
    })
}

/// `y_i = x_(i mod n) + sum_j c_(i n + j) x_j` of `n` streams; `cols` is the width of `x`.
///
/// # Errors
/// A panic of a part.
pub fn mix(
    cx: &mut Context<'_>,
    streams: usize,
    x: &[f32],
    c: &[f32],
    y: &mut [f32],
    cols: usize,
) -> Result<(), KernelError> {
    let (width, sums) = (cols / streams, c.len() / streams / (x.len() / cols).max(1));
    each_row(cx, y, width, &|line, y| {
        let x = &x[line / sums * cols..][..cols];
        y.copy_from_slice(&x[line % sums % streams * width..][..width]);
        for (c, x) in c[line * streams..].iter().zip(x.chunks_exact(width)) {
            y.iter_mut().zip(x).for_each(|(y, x)| *y += c * x);
        }
    })
}

/// Columns kept of each group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Group width.
    pub group: usize,
    /// First kept column.
    pub start: usize,
    /// Kept columns.
    pub len: usize,
}

/// Keeps some columns of each group; `cols` is the width of `x`.
///
/// # Errors
/// A panic of a part.
pub fn slice_cols(
    cx: &mut Context<'_>,
    slice: Slice,
    x: &[f32],
    y: &mut [f32],
    cols: usize,
) -> Result<(), KernelError> {
    let Slice { group, start, len } = slice;
    each_row(cx, y, cols / group * len, &|row, y| {
        let groups = x[row * cols..][..cols].chunks_exact(group);
        for (x, y) in groups.zip(y.chunks_exact_mut(len)) {
            y.copy_from_slice(&x[start..start + len]);
        }
    })
}

/// Joins groups of two values: `a` and `b` with their widths.
///
/// # Errors
/// A panic of a part.
pub fn concat_cols(
    cx: &mut Context<'_>,
    groups: usize,
    a: &[f32],
    b: &[f32],
    [a_cols, b_cols]: [usize; 2],
    y: &mut [f32],
) -> Result<(), KernelError> {
    let (a_len, b_len) = (a_cols / groups, b_cols / groups);
    each_row(cx, y, a_cols + b_cols, &|row, y| {
        for (g, y) in y.chunks_exact_mut(a_len + b_len).enumerate() {
            y[..a_len].copy_from_slice(&a[row * a_cols + g * a_len..][..a_len]);
            y[a_len..].copy_from_slice(&b[row * b_cols + g * b_len..][..b_len]);
        }
    })
}

/// Calls `f(row, y_row)` for rows of `cols` elements, in parallel.
pub(crate) fn each_row(
    cx: &mut Context<'_>,
    y: &mut [f32],
    cols: usize,
    f: &(dyn Fn(usize, &mut [f32]) + Sync),
) -> Result<(), KernelError> {
    if cols == 0 {
        return Ok(());
    }
    cx.run_rows(y, cols, rows_per_part(cols), |_, rows, y| {
        rows.zip(y.chunks_exact_mut(cols)).for_each(|(row, y)| f(row, y));
    })
}
