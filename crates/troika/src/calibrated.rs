//! How NPUs compute by a calibration.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use troika_graph::{ActivationFormat, CalibrationTensor, ScaleOrigin, WeightDecl};
use troika_model::lower::Lowered;
use troika_model::spec::ModelSpec;
use troika_plan::{CalibratedProducts, Calibration, SegmentAt};
use troika_weights::WeightStore;

use crate::devices::hot_columns;
use crate::error::Error;

/// How NPUs compute products of whole numbers.
#[derive(Clone, Debug)]
pub struct CalibrationOptions {
    /// What a text showed.
    pub calibration: Arc<Calibration>,
    /// Its file, named in errors.
    pub file: PathBuf,
    /// Bits of activations: 8 or 16.
    pub bits: u8,
    /// What is done with inputs that are much larger than most.
    pub outliers: Outliers,
}

/// What is done with inputs that are much larger than most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outliers {
    /// They decide the scale.
    Kept,
    /// They are clipped, and another device computes what is lost (llm.npu, section 3.3). In this
    /// share of the segments, the ones with the least important outliers, they decide the scale
    /// instead.
    Shadow(f64),
    /// Weights take over a part of their range (SmoothQuant).
    Smoothed,
    /// Each 32 columns have a scale, and products of their own: what an NPU is slow at (llm.npu,
    /// figure 3).
    Groups,
    /// Each row has a scale, and those above 6 are multiplied as floats, as in LLM.int8().
    Rows,
}

impl CalibrationOptions {
    /// Gives weights the calibration.
    ///
    /// # Errors
    /// It is of another model.
    pub fn apply(&self, spec: &ModelSpec, store: &mut WeightStore) -> Result<(), Error> {
        let refuse = |e| Error::of_calibration(&self.file, e);
        self.calibration.check(spec).map_err(refuse)?;
        self.calibration.check_columns(&|name| store.cols(name)).map_err(refuse)?;
        store.set_calibration(self.calibration.tensors.clone());
        Ok(())
    }

    /// The format of products.
    pub fn format(&self) -> ActivationFormat {
        let of_tensor = |scales| ActivationFormat::of_tensor(self.bits, scales);
        match self.outliers {
            Outliers::Kept | Outliers::Shadow(_) => of_tensor(ScaleOrigin::Static),
            Outliers::Smoothed => of_tensor(ScaleOrigin::Smoothed),
            Outliers::Rows => ActivationFormat::by_row(self.bits),
            Outliers::Groups => ActivationFormat::of_columns(self.bits),
        }
    }

    /// The format, and the segments whose outliers are computed apart.
    pub(crate) fn products(&self, lowered: &Lowered) -> CalibratedProducts {
        let format = self.format();
        let exact = match self.outliers {
            Outliers::Shadow(pruned) => important(&self.calibration, lowered, pruned),
            _ => Vec::new(),
        };
        CalibratedProducts { format, digest: Some(self.calibration.digest()), exact }
    }
}

/// The segments of the most important outliers, without the given share of them.
fn important(calibration: &Calibration, lowered: &Lowered, pruned: f64) -> Vec<SegmentAt> {
    let mut all: Vec<_> = lowered
        .segments
        .iter()
        .filter(|s| CalibratedProducts::rounds(s.kind))
        .map(|s| {
            let of = |w: &WeightDecl| calibration.importance(&w.name);
            let importance = s.graph.weights.iter().map(of).fold(0.0, f32::max);
            (importance, (s.kind, s.layer))
        })
        .filter(|(importance, _)| *importance > 1.0)
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let kept = ((1.0 - pruned) * all.len() as f64).round() as usize;
    all.truncate(kept);
    all.into_iter().map(|(_, segment)| segment).collect()
}

/// What computing outliers apart takes in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShadowMemory {
    /// Bytes of the columns of weights that lie in memory, as floats.
    pub hot: u64,
    /// Those of all columns of the same weights.
    pub all: u64,
    /// Bytes of all weights of the model, as stored.
    pub weights: u64,
}

impl ShadowMemory {
    /// What it takes where a share of the segments is left out, the least important ones.
    pub fn of(calibration: &Calibration, lowered: &Lowered, pruned: f64) -> ShadowMemory {
        let important = important(calibration, lowered, pruned);
        let (mut sum, mut known) = (ShadowMemory::default(), HashSet::new());
        for segment in &lowered.segments {
            for weight in &segment.graph.weights {
                if known.insert(weight.name.clone()) {
                    let row = weight.dtype.row_bytes(weight.cols).unwrap_or(0);
                    sum.weights += (weight.rows * row) as u64;
                }
                let counts = calibration.tensor(CalibrationTensor::Outliers, &weight.name);
                let Some(counts) = counts else { continue };
                if important.contains(&(segment.kind, segment.layer)) {
                    let column = (weight.rows * size_of::<f32>()) as u64;
                    sum.hot += hot_columns(counts).len() as u64 * column;
                    sum.all += counts.len() as u64 * column;
                }
            }
        }
        sum
    }
}
