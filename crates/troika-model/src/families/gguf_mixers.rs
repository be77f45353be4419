//! What GGUF files say of mixers that do not attend.

use serde_json::{Map, Value, json};

use super::fields::{Result, bad, not_in_gguf};
use crate::spec::{GgufMeta, GgufValue};

/// The name of layers of the delta rule.
const LINEAR: &str = "linear_attention";
/// The name of layers that attend.
const FULL: &str = "full_attention";

/// Families of which some layers do not attend.
pub(super) const HYBRIDS: [&str; 4] = ["lfm2", "lfm2_moe", "granitemoehybrid", "nemotron_h"];

/// The kinds of layers, from their numbers of key/value heads and widths of feed-forwards.
pub(super) fn hybrid(family: &str, meta: &GgufMeta, layers: u64, c: &mut Map<String, Value>) {
    let layers = usize::try_from(layers).unwrap_or(usize::MAX).min(1 << 12);
    let some = |key: &str, i: usize| match meta.arch(key) {
        Some(GgufValue::Array(list)) => list.get(i).and_then(GgufValue::as_u64) > Some(0),
        v => v.and_then(GgufValue::as_u64) > Some(0),
    };
    let mixers_alone = family == "nemotron_h";
    let feeds = if meta.integer("expert_count") > Some(0) { "moe" } else { "mlp" };
    let recurrence = if family.starts_with("lfm") { "conv" } else { "mamba" };
    let kind = |i| match () {
        () if some("attention.head_count_kv", i) => FULL,
        () if mixers_alone && some("feed_forward_length", i) => feeds,
        () => recurrence,
    };
    let kinds: Vec<&str> = (0..layers).map(kind).collect();
    let field = if mixers_alone { "layers_block_type" } else { "layer_types" };
    c.insert(field.into(), json!(kinds));
    let rope = meta.arch("rope.scaling.finetuned").and_then(GgufValue::as_bool);
    let positions = if rope == Some(false) { "nope" } else { "rope" };
    c.insert("position_embedding_type".into(), json!(positions));
    c.insert("mlp_hidden_act".into(), json!("relu2"));
}

/// A number that a file must have.
fn needed(meta: &GgufMeta, key: &str) -> Result<u64> {
    meta.integer(key).ok_or_else(|| not_in_gguf(key))
}

/// The delta rule's layers and sizes, of which no key may be absent.
pub(super) fn delta_rule(meta: &GgufMeta, c: &mut Map<String, Value>) -> Result<()> {
    for key in ["ssm.conv_kernel", "ssm.state_size", "ssm.group_count"] {
        needed(meta, key)?;
    }
    let (all, heads) = (needed(meta, "ssm.inner_size")?, needed(meta, "ssm.time_step_rank")?);
    if heads == 0 || !all.is_multiple_of(heads) {
        return Err(bad("ssm.inner_size", all, format!("not a multiple of {heads} heads")));
    }
    c.insert("linear_value_head_dim".into(), json!(all / heads));
    if let Some(GgufValue::Array(list)) = meta.arch("attention.recurrent_layers") {
        let layers = c.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0);
        let kind = |v: &GgufValue| if v.as_bool() == Some(true) { LINEAR } else { FULL };
        // Heads that predict several tokens are no layers.
        let kinds = list.iter().take(usize::try_from(layers).unwrap_or(usize::MAX).min(1 << 16));
        c.insert("layer_types".into(), kinds.map(|v| json!(kind(v))).collect());
    }
    Ok(())
}

/// Which layers of Kimi Linear attend: those of the delta rule count no heads of keys.
pub(super) fn kimi_layers(meta: &GgufMeta, c: &mut Map<String, Value>) -> Result<()> {
    for key in ["ssm.conv_kernel", "kda.head_dim"] {
        needed(meta, key)?;
    }
    let heads = c.get("num_key_value_heads_per_layer").and_then(Value::as_array);
    let kind = |n: &Value| json!(if n.as_u64() == Some(0) { LINEAR } else { FULL });
    let kinds: Option<Value> = heads.map(|heads| heads.iter().map(kind).collect());
    kinds.map(|kinds| c.insert("layer_types".into(), kinds));
    Ok(())
}
