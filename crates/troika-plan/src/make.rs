//! Making plans.

use troika_graph::{Acts, DType};
use troika_model::spec::ModelSpec;

use crate::check::MAX_CONTEXT;
use crate::{ModelId, PLAN_VERSION, Placement, Plan, PlanError};

/// What the user asked for.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// Longest sequence wanted; `None`: the model's own.
    pub context: Option<usize>,
    /// Rows of a prompt chunk.
    pub chunk: usize,
    /// Element type of the KV cache.
    pub kv_dtype: DType,
    /// The numbers, beside f32, that products may take activations as.
    pub activations: Vec<Acts>,
}

impl ModelId {
    /// The identity of a model.
    pub fn of(spec: &ModelSpec) -> ModelId {
        ModelId {
            family: spec.family.clone(),
            layers: spec.layers.len(),
            hidden: spec.hidden,
            vocab: spec.vocab,
        }
    }
}

/// Everything on one device.
///
/// # Errors
/// A chunk or context of zero, or a context beyond the model's.
pub fn one_device(
    spec: &ModelSpec,
    device: &str,
    request: &PlanRequest,
) -> Result<Plan, PlanError> {
    let context = request.context.unwrap_or(spec.context.min(MAX_CONTEXT));
    let plan = Plan {
        version: PLAN_VERSION,
        model: ModelId::of(spec),
        strategy: "one device".into(),
        chunk: request.chunk.min(context.max(1)),
        context,
        kv_dtype: request.kv_dtype,
        activations: request.activations.clone(),
        page_len: 32,
        devices: vec![device.to_string()],
        placements: vec![Placement { segment: "*".into(), layers: None, device: 0 }],
    };
    plan.check(spec, &[device])?;
    Ok(plan)
}
