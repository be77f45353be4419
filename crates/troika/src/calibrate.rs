//! Calibration: what a text shows of the values that products read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use troika_device::WeightSource;
use troika_engine::{EngineError, WantedLogits};
use troika_graph::{CalibrationTensor, blocks, outlier_limit};
use troika_plan::{Calibration, RoutingTrace, Transitions};
use troika_weights::WeightStore;

use crate::describe::BoundModel;
use crate::devices::{Observer, Routed};
use crate::error::Error;
use crate::options::OpenOptions;
use crate::routing::{RoutingLog, observed, router_graph};
use crate::session::SessionOptions;

/// What a text showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibrated {
    /// Ranges, outliers and the use of experts.
    pub calibration: Calibration,
    /// The chosen experts of each token.
    pub routing: RoutingTrace,
}

/// What is read, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct CalibrationText<'a> {
    /// Tokens of a text.
    pub tokens: &'a [u32],
    /// The token that replaces the first one of each window, as sequences begin with it.
    pub bos: Option<u32>,
    /// The share of the inputs' columns that are outliers; `None`: those far above the others.
    pub share: Option<f64>,
}

/// Reads a text with a model and finds what [`Calibration`] has. The text is cut into windows of the
/// options' context. `progress` receives the windows that are done, and all of them, each
/// counted twice; `false` stops.
///
/// # Errors
/// A model that cannot be opened, or no tokens.
pub fn calibrate(
    model: BoundModel,
    options: &OpenOptions,
    CalibrationText { tokens, bos, share }: CalibrationText<'_>,
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
            let mut session = model.session_with(SessionOptions { fresh: true, priority: 0 })?;
            session.feed(window, WantedLogits::None, &mut |_, _| {})?;
            if pass == 0 {
                seen.log.end_sequence(window.len());
            }
        }
        seen.next_pass();
    }
    let routing = seen.log.take().trace;
    calibration.tokens = tokens.len();
    calibration.tensors = seen.tensors(&model.opened.store)?;
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
    limit: f32,
    outliers: Vec<f32>,
    /// Rows, and the sum of the reciprocals of their results' mean squares.
    rows: usize,
    inverse_power: f64,
}

impl Seen {
    fn found(&self) -> std::sync::MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_pass(&self) {
        let mut found = self.found();
        found.counting = true;
        for ranges in found.products.values_mut() {
            ranges.limit = outlier_limit(&ranges.columns, self.share);
            ranges.outliers.resize(ranges.columns.len(), 0.0);
        }
    }

    fn tensors(&self, store: &WeightStore) -> Result<BTreeMap<String, Vec<f32>>, Error> {
        let mut found = self.found();
        let mut all = BTreeMap::new();
        for (weight, r) in std::mem::take(&mut found.products) {
            all.insert(CalibrationTensor::InputMax.of(&weight), r.columns);
            all.insert(CalibrationTensor::InputLimit.of(&weight), vec![r.limit]);
            all.insert(CalibrationTensor::Outliers.of(&weight), r.outliers);
            all.insert(CalibrationTensor::OutputMax.of(&weight), vec![r.output]);
            let power = r.rows as f64 / r.inverse_power.max(f64::MIN_POSITIVE);
            let power = power.min(f64::from(f32::MAX)) as f32;
            all.insert(CalibrationTensor::OutputPower.of(&weight), vec![power]);
            let columns = largest_of_columns(store, &weight)?;
            all.insert(CalibrationTensor::WeightMax.of(&weight), columns);
        }
        Ok(all)
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
        let mut found = self.found();
        let counting = found.counting;
        let r = found.products.entry(weight.to_string()).or_default();
        if counting {
            for row in x.chunks_exact(cols.max(1)) {
                for (count, x) in r.outliers.iter_mut().zip(row) {
                    *count += f32::from(u8::from(x.abs() > r.limit));
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
        let counting = self.found().counting;
        if !counting {
            self.log.routed(routed);
        }
    }
}
