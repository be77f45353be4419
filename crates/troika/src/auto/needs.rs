//! What a model needs on a GPU.

use troika_engine::{EngineError, KvLayout};
use troika_graph::{DType, Subgraph};
use troika_model::lower::{LowerOptions, Lowered, ModelPart, Segment, SegmentKind, lower};
use troika_model::spec::ModelSpec;
use troika_plan::{chunk_of, page_len};
use troika_weights::WeightStore;

use super::choice::{LayerNeeds, ModelNeeds, StateNeeds};
use crate::devices::gpu_row_bytes;
use crate::error::Error;
use crate::options::OpenOptions;
use crate::planning::plan_request;

/// Chunks in flight where several devices compute, each with values of its own.
const IN_FLIGHT: u64 = 4;

impl ModelNeeds {
    /// What a model needs with a new plan by these options.
    pub(crate) fn of(
        spec: &ModelSpec,
        store: &WeightStore,
        options: &OpenOptions,
    ) -> Result<ModelNeeds, Error> {
        let request = &plan_request(spec, store, options);
        let (context, chunk) = (request.context.unwrap_or(spec.context), chunk_of(spec, request));
        let default = if request.single_precision { DType::F32 } else { DType::F16 };
        let kv_dtype = request.kv_dtype.unwrap_or(default);
        let with = LowerOptions { max_rows: chunk, max_kv: context, kv_dtype };
        let lowered = lower(spec, &|key| store.shape(key), with).map_err(EngineError::from)?;
        let part = |wanted: ModelPart| {
            let of_part = |s: &&Segment| s.kind.traits().part == wanted;
            lowered.segments.iter().filter(of_part).map(|s| weights(&s.graph)).sum()
        };
        let layout = KvLayout::of(&lowered, page_len(0, std::iter::empty()), context);
        Ok(ModelNeeds {
            stored: store.bytes(),
            layers: layers(&lowered, spec),
            head: part(ModelPart::Head),
            embed: part(ModelPart::Embed),
            values: values(&lowered, spec, chunk as u64),
            cache: KvLayout {
                chunk,
                sequences: options.sharing.sequences.max(1),
                budget: options.sharing.kv_bytes,
                ..layout
            },
        })
    }
}

/// Bytes of weights as GPUs hold them.
fn weights(graph: &Subgraph) -> u64 {
    graph.weights.iter().map(|w| gpu_row_bytes(w).saturating_mul(w.rows as u64)).sum()
}

fn layers(lowered: &Lowered, spec: &ModelSpec) -> Vec<LayerNeeds> {
    let mut all = vec![LayerNeeds::default(); spec.layers.len()];
    for segment in &lowered.segments {
        let Some(at) = segment.layer else { continue };
        let layer = &mut all[at];
        let (bytes, moe) = (weights(&segment.graph), spec.layers[at].moe());
        match moe.filter(|_| segment.kind == SegmentKind::Experts) {
            Some(moe) => {
                layer.experts += bytes;
                layer.chosen += bytes / moe.experts.max(1) as u64 * moe.top_k as u64;
            }
            None => layer.weights += bytes,
        }
        layer.states.extend(segment.states.iter().map(|id| {
            let state = &lowered.states[id.0];
            StateNeeds { group: state.page_group, row: state.row_bytes() as u64 }
        }));
    }
    all
}

/// Bytes of values between segments and within one, for chunks of some rows.
fn values(lowered: &Lowered, spec: &ModelSpec, rows: u64) -> u64 {
    let logits = lowered.logits().0;
    let widest = lowered.edges[..logits].iter().map(|edge| edge.cols).max().unwrap_or(0) as u64;
    let graphs = lowered.segments.iter().filter(|s| s.layer.is_some()).map(|s| &s.graph);
    let within = graphs.map(|g| g.values.iter().map(|v| 4 * v.shape.row_len() as u64).sum::<u64>());
    let within = within.max().unwrap_or(0);
    let experts = spec.layers.iter().filter_map(|layer| layer.moe());
    let experts = experts.map(|moe| 4 * (moe.top_k * moe.inter) as u64).max().unwrap_or(0);
    let row = within + experts + 4 * IN_FLIGHT * widest;
    rows.saturating_mul(row) + 4 * lowered.edges[logits].cols as u64
}
