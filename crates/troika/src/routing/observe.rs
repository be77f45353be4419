//! Opens models whose routers are seen.

use std::sync::Arc;

use troika_model::lower::SegmentKind;
use troika_plan::Strategy;

use crate::describe::BoundModel;
use crate::devices::{Observer, observed_cpu};
use crate::error::Error;
use crate::open::Model;
use crate::options::{NpuNumbers, OpenOptions, PlanSource};

/// Opens a model on one CPU device that shows its products of floats and its routers.
pub(crate) fn observed(
    model: BoundModel,
    options: &OpenOptions,
    observer: Arc<dyn Observer>,
) -> Result<Model, Error> {
    let devices = vec![observed_cpu(&options.devices, observer)?];
    let options = OpenOptions {
        activations: Some(Vec::new()),
        npu_numbers: NpuNumbers::Floats,
        npu_decode: None,
        plan: PlanSource::Strategy,
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
