//! What a calibration says of a product, as tensors beside its weight.

use crate::activation_format::ActivationFormat;

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
            CalibrationTensor::Routed => "routed",
        };
        format!("{weight}.{ending}")
    }
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
    use super::Rounding;
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
}
