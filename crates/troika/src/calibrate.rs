//! Calibration: what a text shows of the values that products read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use troika_engine::WantedLogits;
use troika_graph::CalibrationTensor;
use troika_plan::{Calibration, Strategy, outlier_limit};

use crate::describe::BoundModel;
use crate::devices::{Observer, observed_cpu};
use crate::error::Error;
use crate::open::Model;
use crate::options::OpenOptions;
use crate::session::SessionOptions;

/// Reads tokens of a text with a model and finds what [`Calibration`] has. The text is cut into
/// windows of the options' context. Of the inputs' columns, `share` are outliers; `None`: those
/// far above the others. `progress` receives the windows that are done, and all of them, each
/// counted twice; `false` stops.
///
/// # Errors
/// A model that cannot be opened, or no tokens.
pub fn calibrate(
    model: BoundModel,
    options: &OpenOptions,
    tokens: &[u32],
    share: Option<f64>,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Option<Calibration>, Error> {
    if tokens.is_empty() {
        return Err(Error::ShortText { tokens: 0, window: 1 });
    }
    let seen = Arc::new(Seen { share, found: Mutex::default() });
    let devices = vec![observed_cpu(&options.devices, seen.clone())?];
    let options = OpenOptions {
        activations: Some(Vec::new()),
        calibration: None,
        plan: None,
        solve: None,
        strategy: Strategy::OneDevice,
        ..options.clone()
    };
    let BoundModel { spec, store, .. } = model;
    let mut calibration = Calibration::new(&spec);
    let model = Model::open_bound("calibration", BoundModel { spec, store, devices }, &options)?;
    let windows: Vec<&[u32]> = tokens.chunks(model.context()).collect();
    for pass in 0..2 {
        for (i, window) in windows.iter().enumerate() {
            if !progress(pass * windows.len() + i, 2 * windows.len()) {
                return Ok(None);
            }
            let mut session = model.session_with(SessionOptions { fresh: true, priority: 0 })?;
            session.feed(window, WantedLogits::None, &mut |_, _| {})?;
        }
        seen.next_pass();
    }
    calibration.tokens = tokens.len();
    calibration.tensors = seen.tensors();
    Ok(Some(calibration))
}

/// What was seen so far. The first pass finds ranges, the second one outliers.
struct Seen {
    share: Option<f64>,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    counting: bool,
    products: BTreeMap<String, Ranges>,
    routers: BTreeMap<String, Vec<f32>>,
}

/// A product's inputs and results.
#[derive(Default)]
struct Ranges {
    columns: Vec<f32>,
    output: f32,
    limit: f32,
    outliers: Vec<f32>,
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

    fn tensors(&self) -> BTreeMap<String, Vec<f32>> {
        let mut found = self.found();
        let mut all = BTreeMap::new();
        for (weight, r) in std::mem::take(&mut found.products) {
            all.insert(CalibrationTensor::InputMax.of(&weight), r.columns);
            all.insert(CalibrationTensor::InputLimit.of(&weight), vec![r.limit]);
            all.insert(CalibrationTensor::Outliers.of(&weight), r.outliers);
            all.insert(CalibrationTensor::OutputMax.of(&weight), vec![r.output]);
        }
        for (router, counts) in std::mem::take(&mut found.routers) {
            all.insert(CalibrationTensor::Routed.of(&router), counts);
        }
        all
    }
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
    }

    fn routed(&self, graph: &str, ids: &[i32], experts: usize) {
        let mut found = self.found();
        if found.counting {
            return;
        }
        let counts = found.routers.entry(graph.to_string()).or_default();
        counts.resize(experts, 0.0);
        for id in ids {
            if let Some(count) = usize::try_from(*id).ok().and_then(|id| counts.get_mut(id)) {
                *count += 1.0;
            }
        }
    }
}
