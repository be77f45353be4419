//! From logical weights to tensors of files.

use crate::spec::Recipe;
use crate::spec::{Key, ModelSpec};

/// Candidates for a weight, best first: the first whose tensor exists in the files is taken.
pub type Candidates = Vec<Recipe>;

/// A family's table of tensor names. Pure: it only says where a weight would be.
pub trait TensorNames: Send + Sync {
    /// Where the weight may be found.
    fn candidates(&self, spec: &ModelSpec, key: Key) -> Candidates;

    /// The layer that a tensor belongs to, by its name.
    fn layer(&self, tensor: &str) -> Option<usize>;

    /// The key of the model's description that says how many layers there are.
    fn layers_key(&self) -> &'static str;
}

/// Parts of names of tensors that files hold beside a decoder's weights: tables and masks that are
/// computed anew, and the parts of multimodal models that read pictures and sounds.
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

/// Whether a tensor is none of a decoder's weights, by its name.
pub fn needs_no_place(tensor: &str) -> bool {
    BESIDE.iter().any(|part| tensor.contains(part))
}
