//! Calibration: what a text shows of the values that products read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use troika_device::WeightSource;
use troika_engine::{EngineError, WantedLogits};
use troika_graph::{CalibrationTensor, InputRange, ScaleOrigin, blocks};
use troika_plan::{Calibration, RoutingTrace, Transitions};
use troika_weights::WeightStore;

use crate::describe::BoundModel;
use crate::devices::{Observer, Routed};
use crate::error::Error;
use crate::options::OpenOptions;
use crate::routing::{RoutingLog, observed, router_graph};
use crate::session_state::lock;

/// What a text showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibrated {
    /// Ranges, outliers and the use of experts.
    pub calibration: Calibration,
    /// The chosen experts of each token.
    pub routing: RoutingTrace,
}

/// Reads a text with a model and finds what [`Calibration`] has. The text is cut into windows of the
/// options' context, whose first token becomes `bos`. Of the inputs, `share` are outliers; `None`:
/// those far above the others. `progress` receives the windows that are done, and all of them, each
/// counted twice; `false` stops.
///
/// # Errors
/// A model that cannot be opened, or no tokens.
pub fn calibrate(
    model: BoundModel,
    options: &OpenOptions,
    tokens: &[u32],
    bos: Option<u32>,
    share: Option<f64>,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Option<Calibrated>, Error> {
    if tokens.is_empty() {
        return Err(Error::ShortText { tokens: 0, window: 1 });
    }
    let log = RoutingLog::new(&model.spec, false);
    let seen = Arc::new(Seen { share, found: Mutex::default(), log });
    let mut calibration = Calibration::new(&model.spec);
    let model = observed(model, options, seen.clone())?;
    let mut windows: Vec<Vec<u32>> = tokens.chunks(model.context()).map(<[u32]>::to_vec).collect();
    windows.iter_mut().for_each(|window| window[0] = bos.unwrap_or(window[0]));
    for pass in 0..2 {
        for (i, window) in windows.iter().enumerate() {
            if !progress(pass * windows.len() + i, 2 * windows.len()) {
                return Ok(None);
            }
            model.fresh_session()?.feed(window, WantedLogits::None, &mut |_, _| {})?;
            if pass == 0 {
                seen.log.end_sequence(window.len());
            }
        }
        seen.next_pass(&model.opened.store)?;
    }
    let routing = seen.log.take().trace;
    calibration.tokens = tokens.len();
    calibration.tensors = seen.tensors();
    for counts in routing.counts(0..routing.tokens()) {
        let counted = counts.counts.iter().map(|n| *n as f32).collect();
        let name = CalibrationTensor::Routed.of(&router_graph(counts.layer));
        calibration.tensors.insert(name, counted);
    }
    calibration.transitions = Transitions::of(&routing);
    Ok(Some(Calibrated { calibration, routing }))
}

/// What was seen so far. The first pass finds ranges, the second one outliers.
struct Seen {
    share: Option<f64>,
    found: Mutex<Found>,
    /// The routing of the first pass.
    log: RoutingLog,
}

#[derive(Default)]
struct Found {
    counting: bool,
    products: BTreeMap<String, Ranges>,
}

/// A product's inputs and results.
#[derive(Default)]
struct Ranges {
    columns: Vec<f32>,
    output: f32,
    /// Rows, and the sum of the reciprocals of their results' mean squares.
    rows: usize,
    inverse_power: f64,
    weights: Vec<f32>,
    /// Inputs as they are, and smoothed by these factors.
    sizes: Sizes,
    smoothed: Sizes,
    factors: Vec<f32>,
}

/// Bins of sizes, four for each halving.
const BINS: usize = 48;
/// The most inputs that may be outliers.
const MOST_OUTLIERS: f64 = 0.03;
/// Computing all inputs apart is worth it if it lowers the natural logarithm of the limit by this
/// much.
const WORTH: f64 = 40.0;

/// How many inputs of each column have a size, as a part of the largest.
#[derive(Default)]
struct Sizes {
    largest: f32,
    counts: Vec<[u32; BINS]>,
}

impl Sizes {
    fn new(columns: &[f32]) -> Sizes {
        let largest = columns.iter().copied().fold(0.0, f32::max);
        Sizes { largest, counts: vec![[0; BINS]; columns.len()] }
    }

    /// A float's exponent and first two bits, less than 1's.
    fn bin(part: f32) -> usize {
        (1.0_f32.to_bits() >> 21).saturating_sub(part.to_bits() >> 21) as usize
    }

    fn add(&mut self, column: usize, x: f32) {
        self.counts[column][Sizes::bin(x.abs() / self.largest).min(BINS - 1)] += 1;
    }

    /// The limit above which inputs are outliers, and how many of each column are: low, so that steps
    /// are fine, with few inputs above it; or with a share of them above it.
    fn outliers(&self, share: Option<f64>) -> (f32, Vec<f32>) {
        let all: u64 = self.counts.iter().flatten().map(|n| u64::from(*n)).sum();
        let of_bin = |bin: usize| self.counts.iter().map(|c| u64::from(c[bin])).sum::<u64>();
        let (mut above, mut best, mut least) = (0, 0, 0.0);
        for bin in 1..BINS {
            above += of_bin(bin) + if bin == 1 { of_bin(0) } else { 0 };
            let part = above as f64 / all.max(1) as f64;
            let cost = match share {
                Some(_) => -(bin as f64),
                None => f64::from(Sizes::edge(bin)).ln() + WORTH * part,
            };
            if part <= share.unwrap_or(MOST_OUTLIERS) && cost < least {
                (best, least) = (bin, cost);
            }
        }
        let above = |c: &[u32; BINS]| c[..=best].iter().sum::<u32>() as f32;
        let counts = self.counts.iter().map(|c| if best == 0 { 0.0 } else { above(c) });
        (self.largest * Sizes::edge(best), counts.collect())
    }

    /// The least part of the largest that is in a bin.
    fn edge(bin: usize) -> f32 {
        f32::from_bits((1.0_f32.to_bits() >> 21).saturating_sub(bin as u32) << 21)
    }
}

impl Seen {
    /// Knows the ranges from now on.
    fn next_pass(&self, store: &WeightStore) -> Result<(), Error> {
        let mut found = lock(&self.found);
        if std::mem::replace(&mut found.counting, true) {
            return Ok(());
        }
        for (weight, r) in &mut found.products {
            r.weights = largest_of_columns(store, weight)?;
            let read = |tensor, _| match tensor {
                CalibrationTensor::InputMax => Ok(r.columns.clone()),
                _ => Ok::<_, Error>(r.weights.clone()),
            };
            let range = InputRange::of(ScaleOrigin::Smoothed, r.columns.len(), read)?;
            (r.sizes, r.smoothed) = (Sizes::new(&r.columns), Sizes::new(&range.columns));
            r.factors = range.factors;
        }
        Ok(())
    }

    fn tensors(&self) -> BTreeMap<String, Vec<f32>> {
        use CalibrationTensor::{
            InputLimit, InputMax, OutputMax, OutputPower, SmoothedLimit, SmoothedOutliers,
            WeightMax,
        };
        let mut found = lock(&self.found);
        let mut all = BTreeMap::new();
        for (weight, r) in std::mem::take(&mut found.products) {
            let power = r.rows as f64 / r.inverse_power.max(f64::MIN_POSITIVE);
            let (limit, outliers) = r.sizes.outliers(self.share);
            let (smoothed, smoothed_outliers) = r.smoothed.outliers(self.share);
            for (tensor, values) in [
                (InputMax, r.columns),
                (InputLimit, vec![limit]),
                (CalibrationTensor::Outliers, outliers),
                (SmoothedLimit, vec![smoothed]),
                (SmoothedOutliers, smoothed_outliers),
                (OutputMax, vec![r.output]),
                (OutputPower, vec![power.min(f64::from(f32::MAX)) as f32]),
                (WeightMax, r.weights),
            ] {
                all.insert(tensor.of(&weight), values);
            }
        }
        all
    }
}

/// The largest magnitude of each column of a weight.
fn largest_of_columns(store: &WeightStore, weight: &str) -> Result<Vec<f32>, Error> {
    let data = store.weight(weight).map_err(EngineError::from)?;
    let (mut values, mut most) = (vec![0.0; data.cols], vec![0.0; data.cols]);
    for row in data.bytes.chunks_exact(data.dtype.row_size(data.cols).max(1)) {
        blocks::dequantize(data.dtype, row, &mut values);
        most.iter_mut().zip(&values).for_each(|(most, w)| *most = larger(*most, *w));
    }
    Ok(most)
}

/// The larger of a known magnitude and a value's, without what is not finite.
fn larger(most: f32, value: f32) -> f32 {
    if value.is_finite() { most.max(value.abs()) } else { most }
}

impl Observer for Seen {
    fn product(&self, weight: &str, x: &[f32], cols: usize, y: &[f32]) {
        let mut found = lock(&self.found);
        let counting = found.counting;
        let r = found.products.entry(weight.to_string()).or_default();
        if counting {
            for row in x.chunks_exact(cols.max(1)) {
                for (i, x) in row.iter().enumerate() {
                    r.sizes.add(i, *x);
                    r.smoothed.add(i, x / r.factors[i]);
                }
            }
            return;
        }
        r.columns.resize(cols, 0.0);
        for row in x.chunks_exact(cols.max(1)) {
            r.columns.iter_mut().zip(row).for_each(|(most, x)| *most = larger(*most, *x));
        }
        r.output = y.iter().copied().fold(r.output, larger);
        let rows = x.len() / cols.max(1);
        for row in y.chunks_exact((y.len() / rows.max(1)).max(1)) {
            let squares: f64 = row.iter().map(|y| f64::from(*y) * f64::from(*y)).sum();
            let inverse = row.len() as f64 / squares.max(f64::MIN_POSITIVE);
            r.inverse_power += if inverse.is_finite() { inverse } else { 0.0 };
        }
        r.rows += rows;
    }

    fn routed(&self, routed: Routed<'_>) {
        let counting = lock(&self.found).counting;
        if !counting {
            self.log.routed(routed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BINS, Sizes};

    /// Sizes of a thousand columns, a hundred inputs each.
    fn sizes(columns: &[f32], tail: &[f32]) -> Sizes {
        let mut sizes = Sizes::new(&[columns, tail].concat());
        for (i, x) in columns.iter().enumerate() {
            (0..100).for_each(|_| sizes.add(i, *x));
        }
        tail.iter().enumerate().for_each(|(i, x)| sizes.add(i, -x));
        sizes
    }

    #[test]
    fn few_inputs_far_above_the_others_are_outliers() {
        assert_eq!(
            [1.0, 0.99, 0.875, 0.5, 0.0].map(Sizes::bin).map(|bin| bin.min(BINS)),
            [0, 1, 1, 4, BINS]
        );
        let mut columns: Vec<f32> = (0..1000).map(|i| 1.0 + (i % 7) as f32 * 0.1).collect();
        let (limit, counts) = sizes(&columns, &[]).outliers(None);
        assert!(limit == 1.6 && counts.iter().all(|n| *n == 0.0), "none is far above: {limit}");
        for (at, value) in [(5, 80.0), (77, 60.0), (500, 9.0)] {
            columns[at] = value;
        }
        let (limit, counts) = sizes(&columns, &[]).outliers(None);
        assert!((1.6..3.0).contains(&limit), "{limit}");
        assert_eq!((counts.iter().sum::<f32>(), counts[77]), (300.0, 100.0));
        let (limit, counts) = sizes(&columns, &[]).outliers(Some(0.002));
        assert!((9.0..60.0).contains(&limit) && counts.iter().sum::<f32>() == 200.0, "{limit}");
        // Single inputs of many columns are as few.
        columns = vec![1.0; 1000];
        let (limit, counts) = sizes(&columns, &[64.0; 200]).outliers(None);
        assert!((1.0..2.5).contains(&limit) && counts.iter().sum::<f32>() == 200.0, "{limit}");
        columns[..200].fill(50.0);
        assert!(sizes(&columns, &[]).outliers(None).0 > 10.0, "too many to be computed apart");
        assert_eq!(Sizes::default().outliers(None), (0.0, Vec::new()));
    }
}
