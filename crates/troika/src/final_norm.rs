//! The norm between the last layer and the head, for sessions that want its results and not logits.

use troika_model::spec::{Key, Norm, WeightRole};

use crate::error::Error;
use crate::floats::floats;
use crate::open::Opened;

pub(crate) struct FinalNorm {
    norm: Norm,
    weight: Vec<f32>,
    /// Empty where there is none.
    bias: Vec<f32>,
}

impl FinalNorm {
    /// That of a model.
    pub fn read(opened: &Opened) -> Result<FinalNorm, Error> {
        let read = |role| floats(&opened.store, Key::model(role));
        let norm = opened.spec.final_norm;
        let bias = match norm {
            Norm::Layer { bias: true, .. } => read(WeightRole::FinalNormBias)?,
            _ => Vec::new(),
        };
        Ok(FinalNorm { norm, weight: read(WeightRole::FinalNorm)?, bias })
    }

    /// Normalizes a row, as the head's graph does.
    pub fn apply(&self, row: &mut [f32]) {
        let len = row.len() as f64;
        let (mean, eps, offset) = match self.norm {
            Norm::Rms { eps, offset } => (0.0, eps, offset),
            Norm::Layer { eps, .. } => {
                (row.iter().map(|x| f64::from(*x)).sum::<f64>() / len, eps, 0.0)
            }
        };
        let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / len;
        let scale = 1.0 / (variance + f64::from(eps)).sqrt();
        for (i, (x, weight)) in row.iter_mut().zip(&self.weight).enumerate() {
            let normal = (f64::from(*x) - mean) * scale;
            let bias = self.bias.get(i).copied().unwrap_or(0.0);
            *x = (normal * f64::from(weight + offset)) as f32 + bias;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FinalNorm, Norm};

    #[test]
    fn rows_are_normalized_by_both_kinds_of_norms() {
        let apply = |norm, bias: &[f32]| {
            let mut row = [1.0f32, 3.0, 5.0, 7.0];
            FinalNorm { norm, weight: vec![1.0, 2.0, 1.0, 0.5], bias: bias.to_vec() }
                .apply(&mut row);
            row
        };
        // The mean square is 21; the mean is 4, the variance 5.
        let (rms, deviation) = (21f32.sqrt(), 5f32.sqrt());
        let near = |got: [f32; 4], want: [f32; 4]| {
            assert!(got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} {want:?}");
        };
        let plain = [1.0, 6.0, 5.0, 3.5].map(|x| x / rms);
        near(apply(Norm::Rms { eps: 0.0, offset: 0.0 }, &[]), plain);
        let offset = [2.0, 9.0, 10.0, 10.5].map(|x| x / rms);
        near(apply(Norm::Rms { eps: 0.0, offset: 1.0 }, &[]), offset);
        let centred = [-3.0, -2.0, 1.0, 1.5].map(|x| x / deviation);
        near(apply(Norm::Layer { eps: 0.0, bias: false }, &[]), centred);
        let shifted = [centred[0] + 1.0, centred[1], centred[2] - 2.0, centred[3]];
        near(apply(Norm::Layer { eps: 0.0, bias: true }, &[1.0, 0.0, -2.0, 0.0]), shifted);
    }
}
