//! What a calibration says of a product, as tensors beside its weight.

use crate::activation_format::{ActivationFormat, ScaleOrigin};

/// A tensor of a calibration. Weight sources have it under the weight's name with an ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalibrationTensor {
    /// The largest magnitude of each input column: `[1, k]`.
    InputMax,
    /// The magnitude above which inputs are outliers: `[1, 1]`.
    InputLimit,
    /// How many outliers each input column had: `[1, k]`.
    Outliers,
    /// The limit of inputs that were smoothed ([`ScaleOrigin::Smoothed`]): `[1, 1]`.
    SmoothedLimit,
    /// The outliers of inputs that were smoothed: `[1, k]`.
    SmoothedOutliers,
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
    /// The outliers of inputs whose scales come from `scales`.
    pub fn outliers(scales: ScaleOrigin) -> CalibrationTensor {
        match scales.is_smoothed() {
            true => CalibrationTensor::SmoothedOutliers,
            false => CalibrationTensor::Outliers,
        }
    }

    /// Its name, for a weight or a router of some name.
    pub fn of(self, weight: &str) -> String {
        let ending = match self {
            CalibrationTensor::InputMax => "input_max",
            CalibrationTensor::InputLimit => "input_limit",
            CalibrationTensor::Outliers => "outliers",
            CalibrationTensor::SmoothedLimit => "smoothed_limit",
            CalibrationTensor::SmoothedOutliers => "smoothed_outliers",
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
    /// The largest magnitude of each column after that; empty where a limit alone counts.
    pub columns: Vec<f32>,
    /// The largest magnitude that is not clipped.
    pub limit: f32,
}

impl InputRange {
    /// The range of a weight of `cols` columns where scales come from `scales`, by the tensors of its
    /// calibration, which `read` gives with their lengths.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn of<E>(
        scales: ScaleOrigin,
        cols: usize,
        read: impl Fn(CalibrationTensor, usize) -> Result<Vec<f32>, E>,
    ) -> Result<InputRange, E> {
        let mut range = InputRange::default();
        if scales == ScaleOrigin::Clipped {
            let limit = read(CalibrationTensor::InputLimit, 1)?;
            return Ok(InputRange { limit: largest(&limit), ..range });
        }
        range.columns = read(CalibrationTensor::InputMax, cols)?;
        if scales.is_smoothed() {
            range.factors = smoothing(&range.columns, &read(CalibrationTensor::WeightMax, cols)?);
            range.columns.iter_mut().zip(&range.factors).for_each(|(x, f)| *x /= f);
        }
        range.limit = match scales {
            ScaleOrigin::SmoothedClipped => largest(&read(CalibrationTensor::SmoothedLimit, 1)?),
            _ => largest(&range.columns),
        };
        Ok(range)
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().copied().fold(0.0, f32::max)
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

#[cfg(test)]
mod tests {
    use super::{CalibrationTensor, InputRange, Rounding};
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
    fn smoothing_gives_inputs_and_weights_one_range() {
        let read = |tensor, _| match tensor {
            CalibrationTensor::InputMax => Ok(vec![8.0, 0.5, 0.0, 1.0]),
            CalibrationTensor::WeightMax => Ok(vec![2.0, 2.0, 1.0, 0.0]),
            CalibrationTensor::InputLimit => Ok(vec![3.0]),
            other => Err(other),
        };
        let of = |scales| InputRange::of(scales, 4, read);
        let smooth = of(ScaleOrigin::Smoothed).unwrap();
        assert_eq!((&smooth.factors[..], smooth.limit), (&[2.0, 0.5, 1.0, 1.0][..], 4.0));
        for (x, f, w) in [(8.0, smooth.factors[0], 2.0), (0.5, smooth.factors[1], 2.0)] {
            assert_eq!(x / f, w * f, "the divided input is as large as the multiplied weight");
        }
        let kept = of(ScaleOrigin::Static).unwrap();
        assert_eq!((kept.limit, &kept.factors[..]), (8.0, &[][..]));
        assert_eq!(of(ScaleOrigin::Clipped).unwrap().limit, 3.0);
        assert_eq!(of(ScaleOrigin::SmoothedClipped), Err(CalibrationTensor::SmoothedLimit));
    }
}
