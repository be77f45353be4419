//! What of a model's experts is in memory.

use std::sync::{Arc, Mutex};

use troika_device::{Clock, ExpertForecast, lock, size, size_needed};
use troika_model::spec::ModelSpec;
use troika_plan::Prediction;
use troika_trace::{Span, Tracer};
use troika_weights::WeightStore;

use crate::budget::HostMemory;
use crate::error::Error;
use crate::options::{OpenOptions, PredictorOptions};

/// The share of the experts that is in memory however little is free.
const LEAST_SHARE: u64 = 64;

/// Limits the experts in memory to what is asked for, or to what is free if the weights do not fit.
/// Returns what the user should know. To be called before the folder of packed weights is opened.
pub(crate) fn limit_experts(
    store: &mut WeightStore,
    spec: &ModelSpec,
    options: &OpenOptions,
) -> Option<String> {
    let experts = store.expert_bytes();
    if experts == 0 {
        return None;
    }
    if let Some(budget) = options.memory.experts {
        if budget < experts {
            store.limit_experts(budget);
        }
        return None;
    }
    let host = HostMemory::now(options.memory)?;
    let all = store.bytes();
    let rest = all.saturating_sub(experts);
    if all <= host.weights() {
        return None;
    }
    let Some(folder) = &options.cache else {
        return Some(format!(
            "the weights take {}, and {} of memory are free: with a folder to read experts from \
             (--cache-dir, and no --no-cache) they need not all be in memory",
            size_needed(all),
            size(host.free)
        ));
    };
    let cache = options.sharing.kv_bytes.unwrap_or(host.cache(all));
    let count: u64 = spec.layers.iter().filter_map(|l| Some(l.moe()?.experts as u64)).sum();
    // Of small models that is less than one of them.
    let least = (experts / LEAST_SHARE).max(2 * experts / count.max(1));
    let budget = host.experts(rest, cache).max(least);
    store.limit_experts(budget);
    Some(format!(
        "the experts take {}, of which {} fit into the memory that is free: the others are read \
         from {} when tokens choose them (--expert-cache-mib)",
        size_needed(experts),
        size(budget),
        folder.dir().display()
    ))
}

/// Has experts read ahead that a predictor names, where not all are in memory.
pub(crate) fn read_ahead(
    store: &WeightStore,
    spec: &ModelSpec,
    options: &OpenOptions,
) -> Result<(), Error> {
    if let Some(PredictorOptions { file, predictor, .. }) = &options.predictor {
        let file = file.display().to_string();
        predictor.check(spec).map_err(|error| Error::Predictor { file, error })?;
    }
    forecast(options).into_iter().for_each(|forecast| store.set_forecast(forecast));
    Ok(())
}

/// What names experts that will be chosen.
pub(crate) fn forecast(options: &OpenOptions) -> Option<Arc<ExpertForecast>> {
    let PredictorOptions { predictor, named, .. } = options.predictor.as_ref()?.clone();
    let memory: Mutex<Prediction> = Mutex::default();
    Some(Arc::new(move |layer: usize, row: &[f32], expect: &mut dyn FnMut(usize, &[u16])| {
        let Some(next) = predictor.after(layer) else { return };
        let count = named.unwrap_or(next.top_k);
        expect(next.layer, predictor.predict(next.layer, row, count, &mut lock(&memory)));
    }))
}

/// Records waits for experts that are read. They take real time: modelled time has no disk.
pub(crate) fn trace_waits(store: &WeightStore, tracer: &Tracer, clock: &Arc<dyn Clock>) {
    if !tracer.enabled() {
        return;
    }
    let (tracer, clock) = (tracer.clone(), clock.clone());
    store.on_expert_wait(Arc::new(move |layer, waited| {
        let end = clock.now();
        tracer.record(Span {
            name: format!("layer {layer} waits for experts").into(),
            lane: "disk".into(),
            start: end.saturating_sub(waited),
            end,
            args: Vec::new(),
        });
    }));
}
