//! What a calibration says of a product, as tensors beside its weight.

use crate::activation_format::{ActivationFormat, ScaleOrigin};

/// The most columns that may be outliers.
const MOST_OUTLIERS: f64 = 0.03;
/// Computing one more column of a thousand apart is worth it if it lowers the natural logarithm of
/// the limit by this much.
const WORTH: f64 = 0.04;

/// A tensor of a calibration. Weight sources have it under the weight's name with an ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalibrationTensor {
    /// The largest magnitude of each input column: `[1, k]`.
    InputMax,
    /// The magnitude above which inputs are outliers: `[1, 1]`.
    InputLimit,
    /// How many outliers each input column had: `[1, k]`.
    Outliers,
    /// The largest magnitude of the result: `[1, 1]`.
    OutputMax,
    /// The mean square of the result's values, as the harmonic mean over rows: `[1, 1]`.
    OutputPower,
    /// The largest magnitude of the weights of each input column: `[1, k]`.
    WeightMax,
    /// For a router: how many rows chose each expert: `[1, experts]`.
    Routed,
}

impl CalibrationTensor {
    /// Its name, for a weight or a router of some name.
    pub fn of(self, weight: &str) -> String {
        let ending = match self {
            CalibrationTensor::InputMax => "input_max",
            CalibrationTensor::InputLimit => "input_limit",
            CalibrationTensor::Outliers => "outliers",
            CalibrationTensor::OutputMax => "output_max",
            CalibrationTensor::OutputPower => "output_power",
            CalibrationTensor::WeightMax => "weight_max",
            CalibrationTensor::Routed => "routed",
        };
        format!("{weight}.{ending}")
    }
}

/// What a calibration makes of a product's inputs before they are rounded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InputRange {
    /// What each column is divided by, and its weights are multiplied with; empty: nothing.
    pub factors: Vec<f32>,
    /// The largest magnitude of each column after that.
    pub columns: Vec<f32>,
    /// The largest magnitude that is not clipped.
    pub limit: f32,
}

impl InputRange {
    /// The range where scales come from `scales`, by the largest magnitude of each input column and
    /// of its weights, and by the limit of what was not divided.
    pub fn new(scales: ScaleOrigin, mut columns: Vec<f32>, weights: &[f32], limit: f32) -> Self {
        let is_smooth = matches!(scales, ScaleOrigin::Smoothed | ScaleOrigin::SmoothedClipped);
        let factors = if is_smooth { smoothing(&columns, weights) } else { Vec::new() };
        columns.iter_mut().zip(&factors).for_each(|(x, f)| *x /= f);
        let limit = match scales {
            ScaleOrigin::Clipped => limit,
            ScaleOrigin::SmoothedClipped => outlier_limit(&columns, None),
            _ => columns.iter().copied().fold(0.0, f32::max),
        };
        InputRange { factors, columns, limit }
    }

    /// 1 for each column that has magnitudes above the limit, 0 for others.
    pub fn above(&self) -> Vec<f32> {
        self.columns.iter().map(|most| f32::from(u8::from(*most > self.limit))).collect()
    }
}

/// What to divide each input column by and multiply its weights with: `sqrt(max |x|) / sqrt(max
/// |w|)` (SmoothQuant, equation 4, with an exponent of one half).
fn smoothing(inputs: &[f32], weights: &[f32]) -> Vec<f32> {
    let factor = |(x, w): (&f32, &f32)| {
        let factor = (x / w).sqrt();
        if factor.is_finite() && factor > 0.0 { factor } else { 1.0 }
    };
    inputs.iter().zip(weights).map(factor).collect()
}

/// How a format of one scale for all values rounds: to multiples of `step`, from `-most - 1` to
/// `most` of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding {
    /// The scale.
    pub step: f32,
    /// The largest number.
    pub most: f32,
}

impl Rounding {
    /// The rounding that makes `limit` the largest magnitude; `None` for other formats, and for a
    /// limit that is not a positive number.
    pub fn of(format: ActivationFormat, limit: f32) -> Option<Rounding> {
        let whole = format.converted_numbers().filter(|_| limit > 0.0 && limit.is_finite())?;
        let most = ((1_u32 << (whole.bits - 1)) - 1) as f32;
        Some(Rounding { step: limit / most, most })
    }

    /// The value that stands for `x`.
    pub fn round(&self, x: f32) -> f32 {
        (x / self.step).round_ties_even().clamp(-self.most - 1.0, self.most) * self.step
    }

    /// What clipping takes from `x`: nothing up to the limit.
    pub fn clipped(&self, x: f32) -> f32 {
        let number = (x / self.step).round_ties_even();
        let inside = -self.most - 1.0 <= number && number <= self.most;
        if inside { 0.0 } else { x - self.round(x) }
    }
}

/// The magnitude above which inputs are outliers, by the largest magnitude of each column: low, so
/// that steps are fine, with few columns above it; or with a given share of the columns.
pub fn outlier_limit(columns: &[f32], share: Option<f64>) -> f32 {
    let mut sorted = columns.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    if let Some(share) = share {
        return sorted[((sorted.len() as f64 * share).ceil() as usize).min(last)];
    }
    let most = (sorted.len() as f64 * MOST_OUTLIERS) as usize;
    let price = WORTH * 1e3 / sorted.len() as f64;
    let size = |above: usize| f64::from(sorted[above].max(f32::MIN_POSITIVE)).ln();
    let cost = |above: &usize| size(*above) + *above as f64 * price;
    let above = (0..=most.min(last)).min_by(|a, b| cost(a).total_cmp(&cost(b)));
    above.map_or(0.0, |at| sorted[at])
}

#[cfg(test)]
mod tests {
    use super::{InputRange, Rounding, outlier_limit};
    use crate::{ActivationFormat, ScaleOrigin};

    #[test]
    fn what_is_rounded_and_what_is_clipped_add_up() {
        let clipped = ActivationFormat::of_tensor(8, ScaleOrigin::Clipped);
        let r = Rounding::of(clipped, 2.54).unwrap();
        assert!((r.step - 0.02).abs() < 1e-9 && r.most == 127.0);
        for x in [0.0, 0.011, -1.5, 2.54, 2.549] {
            assert_eq!(r.clipped(x), 0.0, "{x}");
            assert!((r.round(x) - x).abs() <= 0.5 * r.step + 1e-6, "{x}");
        }
        for x in [2.6, -50.0, 400.0] {
            assert!((r.round(x) + r.clipped(x) - x).abs() < 1e-4, "{x}");
            assert_eq!(r.round(x), if x > 0.0 { 127.0 } else { -128.0 } * r.step);
        }
        assert_eq!(Rounding::of(clipped, 0.0), None);
        assert_eq!(Rounding::of(clipped, f32::NAN), None);
        assert_eq!(Rounding::of(ActivationFormat::INT8, 1.0), None);
    }

    #[test]
    fn few_columns_far_above_the_others_are_outliers() {
        let mut columns: Vec<f32> = (0..1000).map(|i| 1.0 + (i % 7) as f32 * 0.1).collect();
        assert_eq!(outlier_limit(&columns, None), 1.6, "none is far above");
        for (at, value) in [(5, 80.0), (77, 60.0), (500, 9.0)] {
            columns[at] = value;
        }
        assert_eq!(outlier_limit(&columns, None), 1.6);
        assert_eq!(outlier_limit(&columns, Some(0.001)), 60.0, "one of a thousand");
        columns[..200].fill(50.0);
        assert!(outlier_limit(&columns, None) > 10.0, "too many to be computed apart");
        assert_eq!((outlier_limit(&[], None), outlier_limit(&[0.0; 8], None)), (0.0, 0.0));
    }

    #[test]
    fn smoothing_gives_inputs_and_weights_one_range() {
        let of =
            |scales| InputRange::new(scales, vec![8.0, 0.5, 0.0, 1.0], &[2.0, 2.0, 1.0, 0.0], 3.0);
        let smooth = of(ScaleOrigin::Smoothed);
        assert_eq!((&smooth.factors[..], smooth.limit), (&[2.0, 0.5, 1.0, 1.0][..], 4.0));
        for (x, f, w) in [(8.0, smooth.factors[0], 2.0), (0.5, smooth.factors[1], 2.0)] {
            assert_eq!(x / f, w * f, "the divided input is as large as the multiplied weight");
        }
        assert_eq!((of(ScaleOrigin::Static).limit, of(ScaleOrigin::Clipped).limit), (8.0, 3.0));
        assert!(of(ScaleOrigin::Static).factors.is_empty());
    }
}
