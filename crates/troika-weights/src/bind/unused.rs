//! Tensors in the files that no weight uses. A model with fewer layers or parts than its files
//! would run but give wrong output.

use std::collections::{BTreeMap, HashSet};

use troika_graph::DType;
use troika_model::families::{DescribedModel, needs_no_place};
use troika_model::spec::{Checkpoint, Key, WeightRole, weight_requirements};

use crate::bind::bound::Bound;
use crate::bind::source::ValueSource;
use crate::error::shown;

/// What the name of a packed matrix ends with.
const CODES: [&str; 4] = ["qweight", "weight_packed", "weight", "_blocks"];
/// What the names of tensors end with that belong to it. Scales of inputs are for devices that
/// compute in the checkpoint's own format.
const COMPANIONS: &str = "qzeros scales biases g_idx weight_scale weight_scale_inv weight_shape \
    weight_zero_point weight_g_idx input_scale input_global_scale _scales";

/// Parts of names of a head that predicts several tokens.
const HEADS: [&str; 3] = ["eh_proj", "nextn.", "mtp."];

/// A warning about a head that predicts several tokens, one about tensors of layers that the model lacks, and one about all other unused tensors.
pub(crate) fn warnings(
    model: &DescribedModel,
    bound: &[Bound],
    files: &dyn Checkpoint,
) -> Vec<String> {
    let mut left = left_over(model, bound, files);
    if left.is_empty() {
        return Vec::new();
    }
    let layers = model.spec.layers.len();
    let (file, mut out) = (files.origin(""), Vec::new());
    let is_head = |name: &str| HEADS.iter().any(|part| name.contains(part));
    let heads = left.iter().filter(|name| is_head(name));
    let heads: HashSet<usize> = heads.filter_map(|name| model.names.layer(name)).collect();
    let all = left.len();
    left.retain(|name| {
        let of_head = |layer| layer >= layers && heads.contains(&layer);
        !is_head(name) && !model.names.layer(name).is_some_and(of_head)
    });
    if left.len() < all {
        out.push(format!("{file}: its head that predicts several tokens (MTP) is not used"));
    }
    let mut beyond: BTreeMap<usize, &str> = BTreeMap::new();
    left.retain(|name| match model.names.layer(name) {
        Some(layer) if layer >= layers => {
            beyond.entry(layer).or_insert(name);
            false
        }
        _ => true,
    });
    if let (Some((first, name)), Some((last, _))) =
        (beyond.first_key_value(), beyond.last_key_value())
    {
        let which = match first == last {
            true => format!("layer {first}"),
            false => format!("layers {first} to {last}"),
        };
        let (key, plural) = (model.names.layers_key(), if layers == 1 { "" } else { "s" });
        out.push(format!(
            "{file}: the tensors of {which} are not used, such as {}, because {key} says that the \
             model has {layers} layer{plural} (numbered from 0); if it has more, correct {key}",
            shown(name)
        ));
    }
    match left.as_slice() {
        [] => {}
        [one] => out.push(format!(
            "{file}: tensor {} is not used, because the model's description has no place for it",
            shown(one)
        )),
        [first, ..] => out.push(format!(
            "{file}: {} tensors are not used, such as {}, because the model's description has no \
             place for them",
            left.len(),
            shown(first)
        )),
    }
    out
}

/// Names of unused tensors that would have an effect, sorted.
fn left_over<'a>(
    model: &DescribedModel,
    bound: &'a [Bound],
    files: &'a dyn Checkpoint,
) -> Vec<&'a str> {
    let mut used: HashSet<&str> = bound.iter().map(|b| b.tensor.as_str()).collect();
    // Tensors that accompany a packed matrix.
    let packed = bound.iter().filter(|b| matches!(b.source, ValueSource::Packed(_)));
    let base = |name: &'a str| CODES.iter().find_map(|end| name.strip_suffix(end));
    used.extend(packed.filter_map(|b| base(&b.tensor)));
    let of_packed = |name: &str| {
        let mut bases = COMPANIONS.split(' ').filter_map(|end| name.strip_suffix(end));
        bases.any(|base| used.contains(base))
    };
    // Those of NVFP4 in GGUF files.
    let nvfp4 = bound.iter().filter(|b| matches!(b.shape.dtype, DType::NVFP4 | DType::F4_G16));
    let nvfp4: HashSet<&str> = nvfp4.filter_map(|b| b.tensor.strip_suffix(".weight")).collect();
    let of_nvfp4 = |name: &str| {
        let base = name.strip_suffix(".scale").or_else(|| name.strip_suffix(".input_scale"));
        base.is_some_and(|base| nvfp4.contains(base))
    };
    // Packing tools write a bias of zeros for each layer, needed or not.
    let is_zero = |name: &str| files.tensor(name).is_some_and(|t| t.bytes.iter().all(|&b| b == 0));
    let all = files.names().into_iter();
    let mut left: Vec<&str> = all
        .filter(|name| !used.contains(name) && !needs_no_place(name))
        .filter(|name| !of_packed(name) && !of_nvfp4(name))
        .filter(|name| !(name.ends_with(".bias") && is_zero(name)))
        .collect();
    if left.is_empty() {
        return left;
    }
    // The same weights in another form: a head beside the embedding it is tied to, or a projection
    // both separate and packed with others.
    let mut known = HashSet::new();
    let needs = weight_requirements(&model.spec).map(|need| need.key);
    let head = Key::model(WeightRole::Head);
    // Files have projections also of layers that use the keys and values of others.
    let layers = model.spec.layers.iter().enumerate();
    let shares = layers.filter(|(_, l)| l.attention().is_some_and(|a| !a.has_kv()));
    let roles = [WeightRole::K, WeightRole::V, WeightRole::KNorm];
    let shared = shares.flat_map(|(i, _)| roles.map(|role| Key::layer(i, role)));
    for key in needs.chain(model.spec.tied.then_some(head)).chain(shared) {
        known.extend(model.names.candidates(&model.spec, key).into_iter().map(|r| r.tensor));
    }
    left.retain(|name| !known.contains(*name));
    left
}
