//! How NPUs compute by a calibration.

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use troika_graph::{ActivationFormat, CalibrationTensor, ScaleOrigin, WeightDecl};
use troika_model::lower::Lowered;
use troika_model::spec::ModelSpec;
use troika_plan::{CalibratedProducts, Calibration, PlanError, SegmentAt};
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
    /// Weights take over a part of their range, and of what stands out then is clipped as with
    /// [`Outliers::Shadow`].
    SmoothShadow(f64),
    /// Each row has a scale, and those above 6 are multiplied as floats, as in LLM.int8().
    Rows,
}

impl Outliers {
    /// The way that a calibration found to be best; with nothing pruned if it measured none.
    ///
    /// # Errors
    /// It names another.
    pub fn best(calibration: &Calibration) -> Result<Outliers, PlanError> {
        let Some(measured) = &calibration.measured else { return Ok(Outliers::Shadow(0.0)) };
        let wrong = |e: UnknownOutliers| PlanError::Calibration(format!("{e}; calibrate again"));
        measured.best.parse().map_err(wrong)
    }

    /// Where scales come from, but for segments whose outliers are computed apart.
    fn scales(self) -> ScaleOrigin {
        match self {
            Outliers::Kept | Outliers::Shadow(_) => ScaleOrigin::Static,
            Outliers::Smoothed | Outliers::SmoothShadow(_) => ScaleOrigin::Smoothed,
            Outliers::Rows => ScaleOrigin::Dynamic,
        }
    }

    /// The share of the segments whose outliers are not computed apart.
    fn pruned(self) -> f64 {
        match self {
            Outliers::Shadow(pruned) | Outliers::SmoothShadow(pruned) => pruned,
            _ => 1.0,
        }
    }
}

impl fmt::Display for Outliers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outliers::Kept => f.write_str("kept"),
            Outliers::Shadow(pruned) => write!(f, "shadow={pruned}"),
            Outliers::Smoothed => f.write_str("smooth"),
            Outliers::SmoothShadow(pruned) => write!(f, "smooth-shadow={pruned}"),
            Outliers::Rows => f.write_str("rows"),
        }
    }
}

/// A text that names no way to compute with outliers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is none of shadow and smooth-shadow, each also with the share that is pruned as in \
     shadow=0.85, kept, smooth and rows"
)]
pub struct UnknownOutliers(String);

impl FromStr for Outliers {
    type Err = UnknownOutliers;

    fn from_str(text: &str) -> Result<Outliers, UnknownOutliers> {
        let (name, share) = text.split_once('=').unwrap_or((text, "0"));
        let share = share.parse().ok().filter(|s| (0.0..=1.0).contains(s));
        match (name, share) {
            ("shadow", Some(pruned)) => Ok(Outliers::Shadow(pruned)),
            ("smooth-shadow", Some(pruned)) => Ok(Outliers::SmoothShadow(pruned)),
            _ if text == "kept" => Ok(Outliers::Kept),
            _ if text == "smooth" => Ok(Outliers::Smoothed),
            _ if text == "rows" => Ok(Outliers::Rows),
            _ => Err(UnknownOutliers(text.into())),
        }
    }
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
        match self.outliers.scales() {
            ScaleOrigin::Dynamic => ActivationFormat::by_row(self.bits),
            scales => ActivationFormat::of_tensor(self.bits, scales),
        }
    }

    /// The format, and the segments whose outliers are computed apart.
    pub(crate) fn products(&self, lowered: &Lowered) -> CalibratedProducts {
        let format = self.format();
        let exact = important(&self.calibration, lowered, self.outliers);
        let digest = Some(self.calibration.digest());
        CalibratedProducts { format, digest, exact, takers: Vec::new() }
    }
}

/// The segments of the most important outliers, without the share of them that a way prunes.
fn important(calibration: &Calibration, lowered: &Lowered, way: Outliers) -> Vec<SegmentAt> {
    let Some(scales) = way.scales().clipped() else { return Vec::new() };
    let rounded = lowered.segments.iter().filter(|s| CalibratedProducts::rounds(s.kind));
    let mut all: Vec<(f64, SegmentAt)> = rounded
        .map(|s| {
            let of = |w: &WeightDecl| calibration.cost(scales, &w.name);
            (s.graph.weights.iter().map(of).sum(), (s.kind, s.layer))
        })
        .filter(|(cost, _)| *cost > 0.0)
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let kept = ((1.0 - way.pruned()) * all.len() as f64).round() as usize;
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
    /// What a way takes.
    pub fn of(calibration: &Calibration, lowered: &Lowered, way: Outliers) -> ShadowMemory {
        let important = important(calibration, lowered, way);
        let (mut sum, mut known) = (ShadowMemory::default(), HashSet::new());
        for segment in &lowered.segments {
            for weight in &segment.graph.weights {
                if known.insert(weight.name.clone()) {
                    let row = weight.dtype.row_bytes(weight.cols).unwrap_or(0);
                    sum.weights += (weight.rows * row) as u64;
                }
                let counts = match way {
                    Outliers::SmoothShadow(_) => {
                        let range = calibration.range(ScaleOrigin::SmoothedClipped, &weight.name);
                        range.map(|r| r.above())
                    }
                    _ => calibration
                        .tensor(CalibrationTensor::Outliers, &weight.name)
                        .map(<[f32]>::to_vec),
                };
                let Some(counts) = counts else { continue };
                if important.contains(&(segment.kind, segment.layer)) {
                    let column = (weight.rows * size_of::<f32>()) as u64;
                    sum.hot += hot_columns(&counts).len() as u64 * column;
                    sum.all += counts.len() as u64 * column;
                }
            }
        }
        sum
    }
}
