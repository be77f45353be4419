//! What a text showed of a model's values: ranges, outliers and the use of experts. A JSON file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use troika_graph::{CalibrationTensor, InputRange, ScaleOrigin};
use troika_model::spec::ModelSpec;

use crate::error::PlanError;
use crate::identity::ModelId;
use crate::json::fault;
use crate::routing::{ExpertUse, Transitions};

/// The version of calibration files.
const CALIBRATION_VERSION: u32 = 2;
/// Hexadecimal digits of a digest: enough that no two are equal by chance.
const DIGEST_DIGITS: usize = 32;
/// A calibration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// The format's version.
    pub version: u32,
    /// The model.
    pub model: ModelId,
    /// Tokens of the text.
    pub tokens: usize,
    /// What was found, by the names of [`CalibrationTensor`].
    pub tensors: BTreeMap<String, Vec<f32>>,
    /// Which experts followed which from layer to layer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Transitions>,
    /// What ways to compute with outliers cost; `None` if that was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<MeasuredOutliers>,
}

/// What ways to compute with outliers cost on a text that chose nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredOutliers {
    /// The way that is taken where none is asked for, as `--outliers` names it.
    pub best: String,
    /// Tokens that were scored.
    pub tokens: usize,
    /// The perplexity of floats.
    pub floats: f64,
    /// Each way, as `--outliers` names it, with its perplexity, in the order of measuring.
    pub ways: Vec<(String, f64)>,
}

impl Calibration {
    /// An empty calibration of a model.
    pub fn new(spec: &ModelSpec) -> Calibration {
        let (version, model) = (CALIBRATION_VERSION, ModelId::of(spec));
        let (tensors, transitions, measured) = Default::default();
        Calibration { version, model, tokens: 0, tensors, transitions, measured }
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn from_json(text: &str) -> Result<Calibration, PlanError> {
        let read: Result<Calibration, _> = serde_json::from_str(text);
        let read = read.map_err(|e| PlanError::Invalid(fault(&e)))?;
        let refuse = |why: String| Err(PlanError::Invalid(why));
        if read.version != CALIBRATION_VERSION {
            let found = read.version;
            return refuse(format!(
                "it has version {found}, and {CALIBRATION_VERSION} is known; calibrate again"
            ));
        }
        let wrong = |(_, values): &(&String, &Vec<f32>)| {
            values.is_empty() || values.iter().any(|v| !v.is_finite() || *v < 0.0)
        };
        match read.tensors.iter().find(wrong) {
            Some((name, _)) => {
                refuse(format!("{name} has something else than magnitudes; calibrate again"))
            }
            None => Ok(read),
        }
    }

    /// The file's text.
    pub fn to_json(&self) -> String {
        // Numbers and names only: nothing in it can fail.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// A hash of what it says, in hexadecimal digits: the same for the same model and numbers.
    pub fn digest(&self) -> String {
        blake3::hash(self.to_json().as_bytes()).to_hex()[..DIGEST_DIGITS].to_string()
    }

    /// What it shows of outliers.
    pub fn summary(&self) -> OutlierSummary {
        let ending = CalibrationTensor::Outliers.of("");
        let counted: Vec<(&str, &[f32])> = self
            .tensors
            .iter()
            .filter_map(|(name, counts)| Some((name.strip_suffix(&ending)?, counts.as_slice())))
            .collect();
        let hot: Vec<f64> = counted.iter().filter_map(|(_, counts)| hot_share(counts)).collect();
        let all = || counted.iter().flat_map(|(_, counts)| counts.iter());
        let mut layers: Vec<LayerOutliers> = Vec::new();
        for (weight, counts) in &counted {
            let name = weight.rsplit_once('.').map_or(*weight, |(layer, _)| layer).to_string();
            if layers.iter().all(|l| l.layer != name) {
                layers.push(LayerOutliers { layer: name.clone(), ..LayerOutliers::default() });
            }
            let Some(layer) = layers.iter_mut().find(|l| l.layer == name) else { continue };
            layer.columns += counts.len();
            layer.outlier_columns += counts.iter().filter(|n| **n > 0.0).count();
            layer.outliers += counts.iter().copied().map(f64::from).sum::<f64>();
            layer.most = layer.most.max(hot_share(counts).unwrap_or(0.0));
        }
        layers.sort_by_key(|l| (number(&l.layer).unwrap_or(usize::MAX), l.layer.clone()));
        OutlierSummary {
            layers,
            products: counted.len(),
            columns: all().count(),
            outlier_columns: all().filter(|n| **n > 0.0).count(),
            hot_share: hot.iter().fold(0.0, |sum, share| sum + share) / hot.len().max(1) as f64,
        }
    }

    /// How often the experts of each layer were chosen, in the layers' order.
    pub fn routing(&self) -> Vec<ExpertUse> {
        let ending = CalibrationTensor::Routed.of("");
        let of = |(name, counts): (&String, &Vec<f32>)| {
            let layer = number(name.strip_suffix(&ending)?)?;
            Some(ExpertUse { layer, counts: counts.iter().copied().map(f64::from).collect() })
        };
        let mut all: Vec<ExpertUse> = self.tensors.iter().filter_map(of).collect();
        all.sort_by_key(|of| of.layer);
        all
    }

    /// Checks that it is of a model.
    ///
    /// # Errors
    /// It is of another one.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), PlanError> {
        let need = ModelId::of(spec);
        if self.model == need {
            return Ok(());
        }
        Err(PlanError::Invalid(format!(
            "it is for {}, and the model is {need}; calibrate this model",
            self.model
        )))
    }

    /// Checks that columns are counted as a model's weights have them.
    ///
    /// # Errors
    /// A tensor of another length than its weight's rows.
    pub fn check_columns(&self, of: &dyn Fn(&str) -> Option<usize>) -> Result<(), PlanError> {
        for tensor in [CalibrationTensor::InputMax, CalibrationTensor::Outliers] {
            let ending = tensor.of("");
            for (name, values) in &self.tensors {
                let weight = name.strip_suffix(&ending);
                let Some(columns) = weight.and_then(of).filter(|n| *n != values.len()) else {
                    continue;
                };
                return Err(PlanError::Invalid(format!(
                    "{name} has {} columns, and the weight has {columns}; calibrate this model",
                    values.len()
                )));
            }
        }
        Ok(())
    }

    /// A tensor of a weight or router.
    pub fn tensor(&self, tensor: CalibrationTensor, of: &str) -> Option<&[f32]> {
        self.tensors.get(&tensor.of(of)).map(Vec::as_slice)
    }

    /// What the outliers of a weight's inputs cost where they decide the scale: the power of the
    /// coarser rounding, by that of the result; 0 if nothing is known of the weight.
    pub fn cost(&self, scales: ScaleOrigin, weight: &str) -> f64 {
        let read = |tensor, _| self.tensor(tensor, weight).map(<[f32]>::to_vec).ok_or(());
        let of = |tensor| read(tensor, 0).unwrap_or_default();
        let Ok(range) = InputRange::of(scales, 0, read) else { return 0.0 };
        let [power] = of(CalibrationTensor::OutputPower)[..] else { return 0.0 };
        let square = |x: f32| f64::from(x) * f64::from(x);
        let factor = |i: usize| range.factors.get(i).copied().unwrap_or(1.0);
        let weights = of(CalibrationTensor::WeightMax);
        let carried: f64 = weights.iter().enumerate().map(|(i, w)| square(w * factor(i))).sum();
        let columns =
            if scales.is_smoothed() { range.columns } else { of(CalibrationTensor::InputMax) };
        let largest = columns.into_iter().fold(0.0, f32::max);
        let coarser = square(largest) - square(range.limit);
        coarser.max(0.0) * carried / f64::from(power.max(f32::MIN_POSITIVE))
    }

    /// llm.npu's importance of the outliers of a weight's inputs (section 3.3): the largest input by
    /// the limit, whatever carries the rounding on; 0 if nothing is known of the weight.
    pub fn importance(&self, weight: &str) -> f64 {
        let largest = |tensor| {
            let values = self.tensor(tensor, weight).unwrap_or_default();
            f64::from(values.iter().copied().fold(0.0, f32::max))
        };
        let limit = largest(CalibrationTensor::InputLimit);
        if limit > 0.0 { largest(CalibrationTensor::InputMax) / limit } else { 0.0 }
    }
}

/// The outliers of all products.
#[derive(Clone, Debug, PartialEq)]
pub struct OutlierSummary {
    /// Products.
    pub products: usize,
    /// Input columns of all products.
    pub columns: usize,
    /// Those that had outliers.
    pub outlier_columns: usize,
    /// The share of a product's columns that have 80 % of its outliers, in the mean over products.
    pub hot_share: f64,
    /// By layer, in order.
    pub layers: Vec<LayerOutliers>,
}

/// The outliers of a layer's products.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LayerOutliers {
    /// The layer, as names of weights begin.
    pub layer: String,
    /// Input columns of its products.
    pub columns: usize,
    /// Those that had outliers.
    pub outlier_columns: usize,
    /// Values that are outliers, of all tokens of the text.
    pub outliers: f64,
    /// The share of a product's columns that have 80 % of its outliers, in the product where it is
    /// largest.
    pub most: f64,
}

/// The number in a name.
fn number(name: &str) -> Option<usize> {
    name.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok()
}

/// The share of columns that have 80 % of the outliers; `None` without outliers.
fn hot_share(counts: &[f32]) -> Option<f64> {
    let mut sorted: Vec<f64> = counts.iter().copied().map(f64::from).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let all: f64 = sorted.iter().sum();
    let mut had = 0.0;
    let before = |n: &&f64| {
        let more = had < 0.8 * all;
        had += **n;
        more
    };
    (all > 0.0).then(|| sorted.iter().take_while(before).count() as f64 / sorted.len() as f64)
}
