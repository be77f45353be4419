//! Records what routers choose, and what they read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use half::bf16;
use half::slice::HalfFloatSliceExt;
use troika_engine::WantedLogits;
use troika_model::spec::{Key, ModelSpec, WeightRole};
use troika_plan::RoutingTrace;

use super::observe::{observed, router_graph};
use crate::describe::BoundModel;
use crate::devices::{Observer, Routed};
use crate::error::Error;
use crate::options::OpenOptions;
use crate::session_state::lock;

/// The routing of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedRouting {
    /// The chosen experts.
    pub trace: RoutingTrace,
    /// By layer of the trace: the inputs of its router, a row for each token; or nothing.
    pub inputs: Vec<Vec<bf16>>,
    /// Columns of such a row.
    pub hidden: usize,
}

impl RecordedRouting {
    /// The input of a layer's router for a token, in 32 bits.
    pub fn input(&self, layer: usize, token: usize, into: &mut Vec<f32>) {
        into.resize(self.hidden, 0.0);
        let rows = self.inputs.get(layer).map(Vec::as_slice).unwrap_or_default();
        if let Some(row) = rows.get(token * self.hidden..(token + 1) * self.hidden) {
            row.convert_to_f32_slice(into);
        }
    }
}

/// Reads texts with a model and records their routing, with the inputs of routers if `inputs`. Each
/// text is cut into windows of the options' context. `progress` receives the windows that are done,
/// and all of them; `false` stops.
///
/// # Errors
/// A model that cannot be opened or has no experts, or a text without tokens.
pub fn record_routing(
    model: BoundModel,
    options: &OpenOptions,
    texts: &[&[u32]],
    inputs: bool,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Option<Vec<RecordedRouting>>, Error> {
    if texts.iter().any(|text| text.is_empty()) {
        return Err(Error::ShortText { tokens: 0, window: 1 });
    }
    let log = Arc::new(RoutingLog::new(&model.spec, inputs));
    if log.is_empty() {
        return Err(Error::NoExperts);
    }
    let model = observed(model, options, log.clone())?;
    let all: usize = texts.iter().map(|text| text.len().div_ceil(model.context())).sum();
    let (mut recorded, mut done) = (Vec::new(), 0);
    for text in texts {
        for window in text.chunks(model.context()) {
            if !progress(done, all) {
                return Ok(None);
            }
            model.fresh_session()?.feed(window, WantedLogits::None, &mut |_, _| {})?;
            log.end_sequence(window.len());
            done += 1;
        }
        recorded.push(log.take());
    }
    progress(all, all);
    Ok(Some(recorded))
}

/// Records routing by the names of graphs and weights. Batches run one after another, so that rows
/// come in the order of tokens.
pub(crate) struct RoutingLog {
    spec: ModelSpec,
    /// Layers of the trace by the names of their routers' graphs.
    graphs: HashMap<String, usize>,
    /// Layers of the trace by the names of their routers' weights, if inputs are recorded.
    weights: HashMap<String, usize>,
    recorded: Mutex<RecordedRouting>,
}

impl RoutingLog {
    pub fn new(spec: &ModelSpec, inputs: bool) -> RoutingLog {
        let recorded = empty(spec);
        let layers = || recorded.trace.layers.iter().map(|l| l.layer).enumerate();
        let graph = |(i, layer)| (router_graph(layer), i);
        let weight = |(i, layer)| (Key::layer(layer, WeightRole::Router).to_string(), i);
        let weights = layers().filter(|_| inputs).map(weight).collect();
        let graphs = layers().map(graph).collect();
        RoutingLog { spec: spec.clone(), graphs, weights, recorded: Mutex::new(recorded) }
    }

    /// Whether the model has no experts.
    pub fn is_empty(&self) -> bool {
        self.graphs.is_empty()
    }

    /// Ends a sequence of `tokens` tokens.
    pub fn end_sequence(&self, tokens: usize) {
        lock(&self.recorded).trace.sequences.push(tokens);
    }

    /// Takes what was recorded so far.
    pub fn take(&self) -> RecordedRouting {
        std::mem::replace(&mut *lock(&self.recorded), empty(&self.spec))
    }
}

fn empty(spec: &ModelSpec) -> RecordedRouting {
    let trace = RoutingTrace::new(spec);
    let inputs = trace.layers.iter().map(|_| Vec::new()).collect();
    RecordedRouting { trace, inputs, hidden: spec.hidden }
}

impl Observer for RoutingLog {
    fn product(&self, weight: &str, x: &[f32], _: usize, _: &[f32]) {
        if let Some(layer) = self.weights.get(weight) {
            let mut recorded = lock(&self.recorded);
            recorded.inputs[*layer].extend(x.iter().copied().map(bf16::from_f32));
        }
    }

    fn routed(&self, routed: Routed<'_>) {
        if let Some(layer) = self.graphs.get(routed.graph) {
            let mut recorded = lock(&self.recorded);
            let ids = routed.ids.iter().map(|id| u16::try_from(*id).unwrap_or(u16::MAX));
            recorded.trace.layers[*layer].ids.extend(ids);
        }
    }
}
