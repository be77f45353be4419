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
    /// Whether each 32 columns have a scale, and products of their own, instead of one for all: what
    /// an NPU is slow at (llm.npu, figure 3). Outliers are kept.
    pub groups: bool,
}

/// What is done with inputs that are much larger than most. As text: `kept`, `smooth`, `rows`, or
/// `shadow` and `smooth-shadow`, each also with the share that is pruned as in `shadow=0.85`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outliers {
    /// Where scales come from: the largest input, after weights took over a part of its range
    /// (SmoothQuant), or each row, where inputs above 6 are multiplied as floats (LLM.int8()).
    pub scales: ScaleOrigin,
    /// The share of the segments, those that bear it best, in which outliers decide the scale. In
    /// others they are clipped, and another device computes what is lost (llm.npu, section 3.3).
    pub pruned: f64,
}

impl Outliers {
    /// Names, with what is pruned where no share is given.
    const NAMES: [(&str, Outliers); 5] = [
        ("kept", Outliers { scales: ScaleOrigin::Static, pruned: 1.0 }),
        ("smooth", Outliers { scales: ScaleOrigin::Smoothed, pruned: 1.0 }),
        ("rows", Outliers { scales: ScaleOrigin::Dynamic, pruned: 1.0 }),
        ("shadow", Outliers { scales: ScaleOrigin::Static, pruned: 0.0 }),
        ("smooth-shadow", Outliers { scales: ScaleOrigin::Smoothed, pruned: 0.0 }),
    ];

    /// The way that a calibration found to be best; with nothing pruned if it measured none.
    ///
    /// # Errors
    /// It names another.
    pub fn best(calibration: &Calibration) -> Result<Outliers, PlanError> {
        let best = calibration.measured.as_ref().map_or("shadow", |m| &m.best);
        best.parse().map_err(|e| PlanError::Invalid(format!("{e}; calibrate again")))
    }
}

impl fmt::Display for Outliers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.pruned >= 1.0;
        let is = |(_, o): &&(_, Outliers)| (o.scales, o.pruned >= 1.0) == (self.scales, all);
        f.write_str(Outliers::NAMES.iter().find(is).map_or("", |(name, _)| name))?;
        if all { Ok(()) } else { write!(f, "={}", self.pruned) }
    }
}

impl FromStr for Outliers {
    type Err = String;

    fn from_str(text: &str) -> Result<Outliers, String> {
        let (name, share) = text.split_once('=').map_or((text, None), |(n, s)| (n, Some(s)));
        let known = Outliers::NAMES.iter().find(|(known, _)| *known == name);
        let known = known.filter(|(_, o)| share.is_none() || o.pruned < 1.0);
        let pruned = share.map(|s| s.parse().ok().filter(|s| (0.0..=1.0).contains(s)));
        match (known, pruned) {
            (Some((_, way)), None) => Ok(*way),
            (Some((_, way)), Some(Some(pruned))) => Ok(Outliers { pruned, ..*way }),
            _ => Err(format!(
                "{text:?} is none of shadow and smooth-shadow, each also with the share that is \
                 pruned as in shadow=0.85, kept, smooth and rows"
            )),
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
        match self.outliers.scales {
            ScaleOrigin::Dynamic => ActivationFormat::by_row(self.bits),
            _ if self.groups => ActivationFormat::of_columns(self.bits),
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

/// The outliers of a segment's inputs, and what becomes of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SegmentOutliers {
    /// The segment.
    pub at: SegmentAt,
    /// llm.npu's importance, of the product where it is largest ([`Calibration::importance`]).
    pub importance: f64,
    /// What decides ([`Calibration::cost`]), of all its products.
    pub cost: f64,
    /// Whether they decide the scale, as they cost too little to be computed apart.
    pub pruned: bool,
}

impl SegmentOutliers {
    /// Those of the segments that have any, the costliest first, by what a way prunes.
    pub fn of(calibration: &Calibration, lowered: &Lowered, way: Outliers) -> Vec<SegmentOutliers> {
        let Some(scales) = way.scales.clipped() else { return Vec::new() };
        let rounded = lowered.segments.iter().filter(|s| CalibratedProducts::rounds(s.kind));
        let all = rounded.map(|s| {
            let cost = |w: &WeightDecl| calibration.cost(scales, &w.name);
            let importance = |w: &WeightDecl| calibration.importance(&w.name);
            let weights = s.graph.weights.iter();
            SegmentOutliers {
                at: (s.kind, s.layer),
                importance: weights.clone().map(importance).fold(0.0, f64::max),
                cost: weights.map(cost).sum(),
                pruned: false,
            }
        });
        let mut all: Vec<SegmentOutliers> = all.filter(|s| s.cost > 0.0).collect();
        all.sort_by(|a, b| b.cost.total_cmp(&a.cost));
        let kept = ((1.0 - way.pruned) * all.len() as f64).round() as usize;
        all.iter_mut().skip(kept).for_each(|s| s.pruned = true);
        all
    }
}

/// The segments of the most important outliers, without the share of them that a way prunes.
fn important(calibration: &Calibration, lowered: &Lowered, way: Outliers) -> Vec<SegmentAt> {
    let all = SegmentOutliers::of(calibration, lowered, way).into_iter();
    all.filter(|s| !s.pruned).map(|s| s.at).collect()
}

/// What computing outliers apart takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ShadowCost {
    /// Bytes of the columns of weights that lie in memory, as floats.
    pub hot: u64,
    /// Those of all columns of the same weights.
    pub all: u64,
    /// Bytes of all weights of the model, as stored.
    pub weights: u64,
    /// Multiplications of the outliers of the calibration's text.
    pub outliers: f64,
    /// Those of the products whose inputs are rounded.
    pub products: f64,
}

impl ShadowCost {
    /// What a way takes.
    pub fn of(calibration: &Calibration, lowered: &Lowered, way: Outliers) -> ShadowCost {
        let important = important(calibration, lowered, way);
        let counted = CalibrationTensor::outliers(way.scales);
        let (mut sum, mut known) = (ShadowCost::default(), HashSet::new());
        for segment in &lowered.segments {
            for weight in &segment.graph.weights {
                if known.insert(weight.name.clone()) {
                    let row = weight.dtype.row_bytes(weight.cols).unwrap_or(0);
                    sum.weights += (weight.rows * row) as u64;
                }
                let counts = calibration.tensor(counted, &weight.name);
                let Some(counts) = counts else { continue };
                let rows = (weight.rows * calibration.tokens) as f64;
                sum.products += rows * counts.len() as f64;
                if important.contains(&(segment.kind, segment.layer)) {
                    let column = (weight.rows * size_of::<f32>()) as u64;
                    let values: f64 = counts.iter().copied().map(f64::from).sum();
                    sum.outliers += values * weight.rows as f64;
                    sum.hot += hot_columns(counts).len() as u64 * column;
                    sum.all += counts.len() as u64 * column;
                }
            }
        }
        sum
    }
}
