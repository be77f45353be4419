//! The norm between the last layer and the head, for sessions that want its results and not logits.

use troika_device::WeightSource;
use troika_graph::blocks;
use troika_model::spec::{Key, Norm, WeightRole};

use crate::error::Error;
use crate::open::Opened;

pub(crate) struct FinalNorm {
    norm: Norm,
    weight: Vec<f32>,
    /// Empty where there is none.
    bias: Vec<f32>,
}

impl FinalNorm {
    /// That of a model.
    ///
    /// # Errors
    /// A weight that cannot be read.
    pub fn read(opened: &Opened) -> Result<FinalNorm, Error> {
        let read = |role| {
            let data = opened.store.weight(&Key::model(role).to_string())?;
            let mut values = vec![0.0; data.rows * data.cols];
            blocks::dequantize(data.dtype, &data.bytes, &mut values);
            Ok::<_, Error>(values)
        };
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
