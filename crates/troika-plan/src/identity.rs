//! What a plan file is of: its version, and the model that it is for.

use serde::{Deserialize, Serialize};
use troika_model::spec::ModelSpec;

/// The version of plan files that this build reads and writes.
pub const PLAN_VERSION: u32 = 2;

/// The facts of a model that a plan must agree with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelId {
    /// The family.
    pub family: String,
    /// Number of layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The size of the vocabulary.
    pub vocab: usize,
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
