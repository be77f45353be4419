//! Routing of models with experts: recorded on texts, predicted, and pruned.

mod evaluate;
mod low_rank;
mod prune;
mod record;
mod train;

pub use evaluate::{PredictedRecall, predictor_recall};
pub use prune::{PruneBy, Pruning, pruned_perplexity};
pub(crate) use record::RoutingLog;
pub use record::{RecordedRouting, record_routing};
pub use train::{PredictorTraining, router_weights, train_predictor};

use std::sync::Arc;

use troika_model::lower::SegmentKind;
use troika_plan::Strategy;

use crate::describe::BoundModel;
use crate::devices::{Observer, observed_cpu};
use crate::error::Error;
use crate::open::Model;
use crate::options::OpenOptions;

/// Opens a model on one CPU device that shows its products of floats and its routers.
pub(crate) fn observed(
    model: BoundModel,
    options: &OpenOptions,
    observer: Arc<dyn Observer>,
) -> Result<Model, Error> {
    let devices = vec![observed_cpu(&options.devices, observer)?];
    let options = OpenOptions {
        activations: Some(Vec::new()),
        calibration: None,
        plan: None,
        solve: None,
        strategy: Strategy::OneDevice,
        ..options.clone()
    };
    let BoundModel { spec, store, .. } = model;
    Model::open_bound("observed", BoundModel { spec, store, devices }, &options)
}

/// The name of the graph that a layer's router is in.
pub(crate) fn router_graph(layer: usize) -> String {
    format!("layer {layer} {}", SegmentKind::Router.name())
}

/// A number that looks random, by two others (splitmix64).
fn mixed(value: u64, seed: u64) -> u64 {
    let mut z = value.wrapping_add(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_add(1);
    z = z.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
