//! Maps logical weights to tensors in files.

use crate::spec::Recipe;
use crate::spec::{Key, ModelSpec};

/// Candidates for a weight, best first: the first one whose tensor exists is used.
pub type Candidates = Vec<Recipe>;

/// A family's table of tensor names. It only says where a weight would be.
pub trait TensorNames: Send + Sync {
    /// The places where the weight may be.
    fn candidates(&self, spec: &ModelSpec, key: Key) -> Candidates;

    /// The layer of a tensor, from its name.
    fn layer(&self, tensor: &str) -> Option<usize>;

    /// The config key that gives the number of layers.
    fn layers_key(&self) -> &'static str;
}

/// Parts of names of tensors that are not weights of the decoder: tables and masks that are
/// computed anew, and the vision and audio parts of multimodal models.
const BESIDE: [&str; 12] = [
    "rotary_emb.",
    "rope_freqs",
    "rope_factors_",
    "attn_rot_embd",
    "masked_bias",
    "attn.bias",
    "attention.bias",
    "vision",
    "visual",
    "audio",
    "multi_modal_projector",
    "mm_projector",
];

/// Whether a tensor is not a weight of the decoder, by its name.
pub fn needs_no_place(tensor: &str) -> bool {
    BESIDE.iter().any(|part| tensor.contains(part))
}
