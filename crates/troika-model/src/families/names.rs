//! Maps logical weights to tensors in files.

use std::ops::Range;

use crate::spec::{Attn, Key, Layer, Mamba2, Mixer, ModelSpec, Recipe, WeightRole};

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

/// The places of a bias: a vector beside each place of its weight, or the part of one that belongs to
/// the weight's rows. `None`: this is none, or has tensors of its own.
pub fn beside_weight(names: &dyn TensorNames, spec: &ModelSpec, key: Key) -> Option<Candidates> {
    use WeightRole as W;
    let own = |role: &W| matches!(role, W::Decay | W::ExpertGate | W::ExpertUp | W::ExpertDown);
    let role = key.role.of_bias().filter(|role| !own(role))?;
    let bias = |weight: Recipe| {
        let tensor = format!("{}.bias", weight.tensor.strip_suffix(".weight")?);
        match weight.rows.as_slice() {
            [] => Some(Recipe::whole(tensor)),
            [rows] => Some(Recipe::cols(tensor, rows.start, rows.len())),
            _ => None,
        }
    };
    Some(names.candidates(spec, Key { role, ..key }).into_iter().filter_map(bias).collect())
}

/// Whole tensors, whose names stand in a list with spaces between.
pub fn whole(list: &str) -> Candidates {
    list.split(' ').map(Recipe::whole).collect()
}

/// The rows of q, k or v in a tensor that packs them in this order.
pub fn packed_rows(a: &Attn, role: WeightRole) -> Range<usize> {
    let (q, k) = (a.heads * a.k_dim, a.kv_heads * a.k_dim);
    match role {
        WeightRole::Q => 0..q,
        WeightRole::K => q..q + k,
        _ => q + k..q + k + a.kv_heads * a.v_dim,
    }
}

/// The Mamba-2 of a layer.
pub fn mamba_of(layer: &Layer) -> Option<&Mamba2> {
    if let Some(Mixer::Mamba2(m)) = &layer.mixer { Some(m) } else { layer.beside.as_deref() }
}

/// The rows of a part of Mamba-2's input projection: the gate, what is convolved, the steps.
pub fn mamba_rows(m: &Mamba2, role: WeightRole) -> Range<usize> {
    let (inner, end) = (m.inner(), m.inner() + m.convolved());
    match role {
        WeightRole::MixGate => 0..inner,
        WeightRole::MixIn => inner..end,
        _ => end..end + m.heads,
    }
}

/// The gate of heads' outputs: a head's one number becomes a row for each of its elements.
pub fn gate_rows(a: &Attn, tensor: &str) -> Recipe {
    let per_head = a.gate.is_some_and(|gate| gate.per_head);
    let repeated = |head: usize| std::iter::repeat_n(head..head + 1, a.v_dim);
    let heads = if per_head { a.heads } else { 0 };
    Recipe { rows: (0..heads).flat_map(repeated).collect(), ..Recipe::whole(tensor) }
}

/// Queries, or the gate of heads' outputs, where each head's lie side by side in one tensor.
pub fn beside_queries(a: &Attn, role: WeightRole, tensor: &str) -> Option<Recipe> {
    let start = match role {
        WeightRole::Q => 0,
        WeightRole::AttnGate => a.k_dim,
        _ => return None,
    };
    let first = |head: usize| head * (a.k_dim + a.v_dim) + start;
    let rows = (0..a.heads).map(|h| first(h)..first(h) + a.k_dim).collect();
    a.gate.filter(|gate| gate.with_queries).map(|_| Recipe { rows, ..Recipe::whole(tensor) })
}

/// Parts of names of tensors that are not weights of the decoder: tables and masks that are
/// computed anew, and the vision and audio parts of multimodal models.
const BESIDE: [&str; 16] = [
    // An index that chooses among more keys than the context has.
    "indexer.",
    // Numbers of the description.
    "layer_scalar",
    "layer_output_scale",
    "mlp.act_fn.",
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
