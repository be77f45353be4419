//! Activations in eight or seven bits: 32 values share an f32 scale.

use std::ops::Range;

use smallvec::SmallVec;
use troika_graph::{Activation, ActivationFormat, DType, Rounding};

use crate::SharedMut;
use crate::kernels::elementwise::{self, Element};
use crate::kernels::norm::{self, Norm};
use crate::kernels::quantized::GROUP;
use crate::kernels::quantized::format::{Format, with_format};
use crate::kernels::simd::{Kernel, Lanes, dispatch};
use crate::kernels::{Context, KernelError, rows_per_part};

/// A group: 32 values, the scale, and what the weight's type needs besides:
/// [`ZeroPointCorrection`].
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C)]
pub(super) struct QuantizedGroup {
    pub q: [i8; GROUP],
    pub scale: f32,
    pub zero_point_correction: [u32; 2],
}

/// Floats a group takes.
pub const GROUP_FLOATS: usize = size_of::<QuantizedGroup>() / 4;

/// Floats a row of `cols` activations takes.
pub fn floats(cols: usize) -> usize {
    cols / GROUP * GROUP_FLOATS
}

/// What makes up for a zero point or a minimum: a sum that goes with a group's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroPointCorrection {
    /// i32: `-zero * sum of the values`. It makes up for a weight value other than 0 that stands
    /// for zero.
    Zero {
        /// That value.
        zero: i32,
    },
    /// The same of each sixteen values.
    ZeroOfHalves {
        /// That value.
        zero: i32,
    },
    /// The same of each sixteen values, in two i16 (see [`split`]).
    Split {
        /// That value.
        zero: i32,
    },
    /// f32: `-scale * sum of the values`, for weights with minima.
    Sum,
    /// The same of each sixteen values.
    SumOfHalves,
}

impl ZeroPointCorrection {
    /// What products with weights of a type need.
    pub fn of(dtype: DType) -> ZeroPointCorrection {
        with_format!(dtype, F => match (F::MIN, F::SUBS) {
            (true, 1) => ZeroPointCorrection::Sum,
            (true, _) => ZeroPointCorrection::SumOfHalves,
            (false, 1) => ZeroPointCorrection::Zero { zero: F::ZERO },
            _ if F::SPLIT => ZeroPointCorrection::Split { zero: F::ZERO },
            _ => ZeroPointCorrection::ZeroOfHalves { zero: F::ZERO },
        })
    }
}

/// How activations are quantized for weights of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// The largest magnitude of a value.
    pub(super) largest: i8,
    /// What goes with a group's values.
    pub(super) correction: ZeroPointCorrection,
}

/// Activations in seven bits, for weights that use all eight ([`DType::uses_all_bits`]): two
/// products then fit into 16 bits. With other weights they have eight.
pub const INT7: ActivationFormat = ActivationFormat::by_32_columns(7);

/// The largest magnitude of seven bits. A weight of eight bits is at most 255, and two products
/// fit 16 bits: `2 * 255 * 64 < 2^15`.
pub(super) const SEVEN_BITS: i8 = 64;

impl Quantization {
    /// What products with weights of a type need.
    pub fn of(dtype: DType, activations: ActivationFormat) -> Quantization {
        let seven = activations == INT7 && dtype.uses_all_bits();
        let largest = if seven { SEVEN_BITS } else { i8::MAX };
        Quantization { largest, correction: ZeroPointCorrection::of(dtype) }
    }
}

/// Groups with a smaller largest value are zeros.
const TINY: f32 = 1e-30;

/// Quantizes a group by a largest magnitude: the nearest of `amax / largest` times an integer, ties to
/// even.
#[inline(always)]
pub(super) fn group<V: Lanes>(
    x: &[f32; GROUP],
    amax: f32,
    Quantization { largest, correction }: Quantization,
    out: &mut QuantizedGroup,
) {
    let largest = f32::from(largest);
    let inverse = if amax < TINY { 0.0 } else { largest / amax };
    let sums = V::round_bytes(x, inverse, &mut out.q);
    out.scale = if amax < TINY { 0.0 } else { amax / largest };
    let halves = sums.map(|[a, b]| i32::from(a) + i32::from(b));
    let all = halves[0] + halves[1];
    let scale = -out.scale;
    out.zero_point_correction = match correction {
        ZeroPointCorrection::Zero { zero } => [(-zero * all) as u32, 0],
        ZeroPointCorrection::ZeroOfHalves { zero } => halves.map(|sum| (-zero * sum) as u32),
        ZeroPointCorrection::Split { zero } => sums.map(|s| split(zero, s)),
        ZeroPointCorrection::Sum => [(scale * all as f32).to_bits(), 0],
        ZeroPointCorrection::SumOfHalves => halves.map(|sum| (scale * sum as f32).to_bits()),
    };
}

/// `-zero` times sums of every four values: in the lower half the sum of the first two, in the
/// upper half the sum of the last two.
///
/// A kernel that adds products in pairs, in 16 bits, begins with these. Its sums may overflow on
/// the way. The result does not, for it is a product with weights less `zero`. Eight weights of six
/// bits, less 32, times 127 are at most 32512.
#[inline(always)]
pub(super) fn split(zero: i32, sums: [i16; 2]) -> u32 {
    let [low, high] = sums.map(|s| (-zero * i32::from(s)) as u32 & 0xffff);
    low | high << 16
}

/// What is quantized: rows as they are, or made just before, so that they never go to memory.
#[derive(Clone, Copy)]
pub enum ActivationRows<'a> {
    /// Rows.
    Plain(&'a [f32]),
    /// Each row of these, normalised.
    Norm(Norm<'a>, &'a [f32]),
    /// The op of these gates and values.
    Gate(Activation, [&'a [f32]; 2]),
    /// Rows that share a scale of a calibration.
    Calibrated(&'a CalibratedInput, &'a [f32]),
}

/// What a calibration says of a product's input.
#[derive(Clone, Debug)]
pub struct CalibratedInput {
    /// How it is rounded.
    pub rounding: Rounding,
    /// What its columns are divided by first; empty: nothing.
    pub factors: Vec<f32>,
}

impl CalibratedInput {
    /// A row, divided and clipped.
    fn row(&self, x: &[f32], line: &mut [f32]) {
        let Rounding { step, most } = self.rounding;
        line.copy_from_slice(x);
        line.iter_mut().zip(&self.factors).for_each(|(x, f)| *x /= f);
        line.iter_mut().for_each(|x| *x = x.clamp((-most - 1.0) * step, most * step));
    }
}

impl ActivationRows<'_> {
    fn len(&self) -> usize {
        match self {
            ActivationRows::Plain(x)
            | ActivationRows::Norm(_, x)
            | ActivationRows::Calibrated(_, x)
            | ActivationRows::Gate(_, [x, _]) => x.len(),
        }
    }

    fn check(&self, cols: usize) {
        match self {
            ActivationRows::Plain(_) | ActivationRows::Calibrated(..) => {}
            ActivationRows::Norm(norm, _) => norm.check(cols),
            ActivationRows::Gate(_, [gate, up]) => {
                assert_eq!(gate.len(), up.len(), "gates and values")
            }
        }
    }
}

/// Rows and where they go, in one or several kinds.
struct QuantizeRun<'a, 'o> {
    from: ActivationRows<'a>,
    rows: Range<usize>,
    cols: usize,
    /// Room for a row that is made.
    line: &'a mut [f32],
    /// Where the rows go, quantized each way.
    to: &'a mut [(Quantization, &'o mut [f32])],
}

impl Kernel for QuantizeRun<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let (cols, width) = (self.cols, floats(self.cols));
        let largest = match self.from {
            ActivationRows::Calibrated(input, _) => Some(input.rounding.step * input.rounding.most),
            _ => None,
        };
        for (i, row) in self.rows.enumerate() {
            let at = row * cols..(row + 1) * cols;
            let x = match self.from {
                ActivationRows::Plain(x) => &x[at],
                ActivationRows::Norm(norm, x) => {
                    norm::line::<V>(norm, &x[at], &mut self.line[..cols]);
                    &self.line[..cols]
                }
                ActivationRows::Gate(act, [a, b]) => {
                    let (a, b, y) = (&a[at.clone()], &b[at], &mut self.line[..cols]);
                    elementwise::ElementwiseRun { op: Element::Gate(act), a, b, y }.run::<V>();
                    &self.line[..cols]
                }
                ActivationRows::Calibrated(input, x) => {
                    input.row(&x[at], &mut self.line[..cols]);
                    &self.line[..cols]
                }
            };
            for (quantization, to) in &mut *self.to {
                let to = &mut to[i * width..(i + 1) * width];
                for (x, out) in x.as_chunks().0.iter().zip(bytemuck::cast_slice_mut(to)) {
                    let amax = largest.unwrap_or_else(|| V::largest_magnitude(x));
                    group::<V>(x, amax, *quantization, out);
                }
            }
        }
    }
}

/// Quantizes rows of `cols` activations (a multiple of 32) into [`floats`] floats each, once for
/// every kind asked for. Rows that are made need `cols` floats of scratch.
///
/// # Errors
/// A panic of a part.
///
/// # Panics
/// If a result's length is another.
pub fn quantize(
    cx: &mut Context<'_>,
    from: ActivationRows<'_>,
    cols: usize,
    to: &mut [(Quantization, &mut [f32])],
) -> Result<(), KernelError> {
    let rows = from.len() / cols.max(1);
    let fits = to.iter().all(|(_, out)| out.len() == rows * floats(cols));
    assert!(cols.is_multiple_of(GROUP) && fits, "quantized rows");
    from.check(cols);
    let each = rows_per_part(cols);
    let to: SmallVec<[_; 2]> = to.iter_mut().map(|(e, out)| (*e, SharedMut::new(out))).collect();
    let (isa, width) = (cx.isa, floats(cols));
    cx.run(rows.div_ceil(each), &|line, part| {
        let rows = part * each..(part * each + each).min(rows);
        let at = rows.start * width..rows.end * width;
        // SAFETY: every part runs once, and no two have the same rows.
        let own = to.iter().map(|(e, out)| (*e, unsafe { out.slice(at.clone()) }));
        let mut to: SmallVec<[_; 2]> = own.collect();
        dispatch(isa, QuantizeRun { from, rows, cols, line, to: &mut to });
    })
}
