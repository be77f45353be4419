//! Translates GGUF metadata to the field names of `config.json`.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use troika_graph::{DType, blocks};

use super::fields::{Result, bad, unsupported};
use super::gguf_mixers::{HYBRIDS, delta_rule, hybrid, kimi_layers};
use crate::spec::{Checkpoint, GgufMeta, GgufValue, ModelSpec};

/// Fields whose name changes but not their value.
const RENAMED: &[(&str, &str)] = &[
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.layer_norm_epsilon", "layer_norm_eps"),
    ("attention.key_length", "head_dim"),
    ("attention.sliding_window", "sliding_window"),
    ("attention.clamp_kqv", "clip_qkv"),
    ("attention.shared_kv_layers", "num_kv_shared_layers"),
    ("embedding_length_per_layer_input", "hidden_size_per_layer_input"),
    ("altup.num_inputs", "altup_num_inputs"),
    ("altup.active_idx", "altup_active_idx"),
    ("attention.q_lora_rank", "q_lora_rank"),
    ("attention.indexer.top_k", "index_topk"),
    ("attention.kv_lora_rank", "kv_lora_rank"),
    ("attn_logit_softcapping", "attn_logit_softcapping"),
    ("final_logit_softcapping", "final_logit_softcapping"),
    ("attention.scale", "attention_multiplier"),
    ("attention.value_scale", "attention_value_scale"),
    ("embedding_scale", "embedding_multiplier"),
    ("residual_scale", "residual_multiplier"),
    ("logit_scale", "logit_scale"),
    ("use_parallel_residual", "use_parallel_residual"),
    ("expert_count", "num_experts"),
    ("expert_group_count", "n_group"),
    ("expert_group_used_count", "topk_group"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
    ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ("expert_shared_count", "n_shared_experts"),
    ("expert_weights_scale", "routed_scaling_factor"),
    ("expert_weights_norm", "norm_topk_prob"),
    ("leading_dense_block_count", "first_k_dense_replace"),
    ("shortconv.l_cache", "conv_L_cache"),
    ("ssm.conv_kernel", "mamba_d_conv"),
    ("ssm.state_size", "mamba_d_state"),
    ("ssm.group_count", "mamba_n_groups"),
    ("ssm.inner_size", "mamba_d_ssm"),
    ("ssm.time_step_rank", "mamba_n_heads"),
    ("full_attention_interval", "full_attention_interval"),
    ("ssm.conv_kernel", "linear_conv_kernel_dim"),
    ("ssm.state_size", "linear_key_head_dim"),
    ("ssm.group_count", "linear_num_key_heads"),
    ("ssm.time_step_rank", "linear_num_value_heads"),
    ("kda.head_dim", "linear_key_head_dim"),
];

fn to_json(v: &GgufValue) -> Value {
    match v {
        GgufValue::Uint(n) => json!(n),
        GgufValue::Int(n) => json!(n),
        GgufValue::Float(n) => json!(n),
        GgufValue::Bool(b) => json!(b),
        GgufValue::Str(s) => json!(s),
        // Per-layer numbers are used where all layers agree; see `uniform`.
        GgufValue::Array(a) => Value::Array(a.iter().map(to_json).collect()),
        GgufValue::Texts(t) => Value::Array(t.iter().map(Value::from).collect()),
    }
}

/// Turns a per-layer list of one repeated value into that value, without copying long lists.
fn uniform(key: &str, v: &GgufValue) -> Result<Value> {
    let list = match v {
        GgufValue::Array(list) => list,
        GgufValue::Texts(_) => return Err(bad(key, "a list of texts", "not a number")),
        v => return Ok(to_json(v)),
    };
    match list.first() {
        Some(first) if list.iter().all(|x| x == first) => Ok(to_json(first)),
        _ => Err(unsupported(format!("{key} that differs between layers"), "one value for all")),
    }
}

/// The config fields of a file, and its family: one of those whose architecture it has.
pub(super) fn config(
    mut family: &'static str,
    meta: &GgufMeta,
    files: &dyn Checkpoint,
) -> Result<(&'static str, Map<String, Value>)> {
    let mut c = Map::new();
    for (from, to) in RENAMED {
        let Some(v) = meta.arch(from) else { continue };
        match v {
            GgufValue::Array(list) if HYBRIDS.contains(&family) => {
                let most = list.iter().filter_map(GgufValue::as_u64).max();
                c.insert((*to).into(), json!(most));
            }
            // Families with a number for each layer read it from the list.
            GgufValue::Array(list) if by_layer(family, from) => {
                let least = list.iter().filter_map(GgufValue::as_u64).min();
                c.insert((*to).into(), json!(least));
                c.insert(format!("{to}_per_layer"), to_json(v));
            }
            v => _ = c.insert((*to).into(), uniform(from, v)?),
        }
    }
    refuse_unusable(files)?;
    refuse_numbers(meta)?;
    let has = |name: &str| files.tensor(name).is_some();
    if family == "llama" && meta.integer("expert_count") > Some(0) {
        family = "mixtral";
    }
    if let Some(embedding) = files.tensor("token_embd.weight") {
        c.insert("vocab_size".into(), json!(embedding.matrix().0));
    }
    c.insert("tie_word_embeddings".into(), json!(!has("output.weight")));
    let biased = ["q", "k", "v"].iter().any(|m| has(&format!("blk.0.attn_{m}.bias")));
    c.insert("attention_bias".into(), json!(biased));
    c.insert("attention_out_bias".into(), json!(has("blk.0.attn_output.bias")));
    c.insert("mlp_bias".into(), json!(has("blk.0.ffn_down.bias")));
    c.insert("lm_head_bias".into(), json!(has("output.bias")));
    c.insert("qk_layernorm".into(), json!(has("blk.0.attn_q_norm.weight")));
    let any = |end: &str| files.names().iter().any(|name| name.ends_with(end));
    c.insert("mamba_conv_bias".into(), json!(any(".ssm_conv1d.bias")));
    c.insert("mamba_rms_norm".into(), json!(any(".ssm_norm.weight")));
    family = by_tensors(family, meta, files, &mut c)?;
    refuse_widths(meta, family)?;
    rope(family, meta, files, &mut c)?;
    family_facts(family, meta, &mut c)?;
    Ok((family, c))
}

/// Tensors whose presence describes the model. One with an unsupported type must not count as
/// absent, since the model would then run but give wrong output.
const TELLING: &str = "output.weight output.bias blk.0.attn_q.bias blk.0.attn_k.bias \
    blk.0.attn_v.bias blk.0.attn_output.bias blk.0.ffn_down.bias rope_freqs.weight \
    rope_factors_long.weight rope_factors_short.weight";

fn refuse_unusable(files: &dyn Checkpoint) -> Result<()> {
    for name in TELLING.split(' ') {
        if let Some(kind) = files.unusable(name) {
            let supported = "F32, F16, BF16 and the block types of the documentation";
            return Err(unsupported(format!("tensor {name} of type {kind}"), supported));
        }
    }
    for name in TELLING.split(' ').filter(|name| name.starts_with("rope_")) {
        if files.tensor(name).is_some() && floats(files, name).is_none() {
            return Err(unsupported(format!("tensor {name}"), "up to 65536 factors in F32"));
        }
    }
    Ok(())
}

/// Checks that numbers under the architecture's keys are finite. Otherwise a non-finite one would
/// count as absent.
fn refuse_numbers(meta: &GgufMeta) -> Result<()> {
    let Some(arch) = meta.architecture() else { return Ok(()) };
    for (key, value) in &meta.0 {
        let own = key.strip_prefix(arch).is_some_and(|rest| rest.starts_with('.'));
        match value {
            GgufValue::Float(n) if own && !n.is_finite() => {
                return Err(bad(key, n, "not a finite number"));
            }
            GgufValue::Str(text) if own && NUMBERS.split(' ').any(|n| key.ends_with(n)) => {
                return Err(bad(key, format!("{text:?}"), "not a number"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Suffixes of keys with numeric values.
const NUMBERS: &str = ".rope.freq_base .rope.freq_base_swa .rope.dimension_count \
    .rope.scaling.factor .rope.scaling.attn_factor .rope.scaling.original_context_length \
    .rope.scaling.yarn_log_multiplier .attention.key_length .attention.value_length";

/// Only latent attention has keys and values of different widths.
fn refuse_widths(meta: &GgufMeta, family: &str) -> Result<()> {
    let keys = meta.integer("attention.key_length");
    if let Some((k, v)) = keys.zip(meta.integer("attention.value_length"))
        && k != v
        && !LATENT.contains(&family)
        && family != "mimo_v2_flash"
    {
        let what = format!("attention.value_length {v} beside attention.key_length {k}");
        return Err(unsupported(what, "equal widths of keys and values"));
    }
    Ok(())
}

/// Families that always rotate whole heads, whatever their config says.
const WHOLE_HEADS: [&str; 2] = ["gemma3_text", "phimoe"];

/// Rope base, partial rotation and scaling.
fn rope(
    family: &str,
    meta: &GgufMeta,
    files: &dyn Checkpoint,
    c: &mut Map<String, Value>,
) -> Result<()> {
    let mut p = Map::new();
    // llama.cpp's default if the file has none.
    p.insert("rope_theta".into(), json!(meta.number("rope.freq_base").unwrap_or(10_000.0)));
    let original = meta.number("rope.scaling.original_context_length");
    original.map(|n| p.insert("original_max_position_embeddings".into(), json!(n as u64)));
    scaling(meta, &mut p)?;
    if let (Some(long), Some(short)) =
        (floats(files, "rope_factors_long.weight"), floats(files, "rope_factors_short.weight"))
    {
        p.insert("rope_type".into(), json!("longrope"));
        p.insert("long_factor".into(), json!(long));
        p.insert("short_factor".into(), json!(short));
        let attention = meta.number("rope.scaling.attn_factor");
        attention.map(|a| p.insert("attention_factor".into(), json!(a)));
    }
    let field = |name: &str| c.get(name).and_then(Value::as_f64);
    let from_width = || Some(field("hidden_size")? / field("num_attention_heads")?);
    let head_dim = field("head_dim").or_else(from_width);
    // Always set, since a family's default may be less than the whole head.
    if let Some(head_dim) = head_dim {
        let dims = meta.number("rope.dimension_count").unwrap_or(head_dim);
        // In latent attention the rotated part of a head has its own width.
        if dims > head_dim && !c.contains_key("kv_lora_rank") {
            let problem = format!("more than the {head_dim} dimensions of a head");
            return Err(bad("rope.dimension_count", dims, problem));
        }
        // Slightly more than the ratio, so that the product does not round down.
        p.insert("partial_rotary_factor".into(), json!(((dims + 1e-3) / head_dim).min(1.0)));
        if dims < head_dim && WHOLE_HEADS.contains(&family) {
            let what = format!("rope.dimension_count {dims} in heads of {head_dim}");
            return Err(unsupported(what, "rope on whole heads in this architecture"));
        }
    }
    c.insert("rope_parameters".into(), Value::Object(p));
    Ok(())
}

/// The fields of linear and yarn scaling.
fn scaling(meta: &GgufMeta, p: &mut Map<String, Value>) -> Result<()> {
    match meta.arch("rope.scaling.type").and_then(GgufValue::as_str) {
        Some("yarn") => {
            for (from, to) in [
                ("rope.scaling.factor", "factor"),
                ("rope.scaling.yarn_attn_factor", "attention_factor"),
                ("rope.scaling.yarn_beta_fast", "beta_fast"),
                ("rope.scaling.yarn_beta_slow", "beta_slow"),
            ] {
                meta.number(from).map(|n| p.insert(to.into(), json!(n)));
            }
            p.insert("rope_type".into(), json!("yarn"));
        }
        // A factor without a type is linear, also under its old name.
        Some("linear") | None => {
            let factor =
                meta.number("rope.scaling.factor").or_else(|| meta.number("rope.scale_linear"));
            if let Some(factor) = factor.filter(|f| *f != 0.0) {
                p.insert("rope_type".into(), json!("linear"));
                p.insert("factor".into(), json!(factor));
            }
        }
        Some("none" | "longrope") => {}
        Some(other) => {
            let what = format!("rope.scaling.type {other:?}");
            return Err(unsupported(what, "none, linear, yarn, longrope"));
        }
    }
    Ok(())
}

/// The values of a small f32 tensor.
fn floats(files: &dyn Checkpoint, name: &str) -> Option<Vec<f32>> {
    let t = files.tensor(name)?;
    let n = t.shape.iter().product::<usize>();
    if t.dtype != DType::F32 || n > 1 << 16 {
        return None;
    }
    let mut out = vec![0.0; n];
    blocks::dequantize(t.dtype, &t.bytes, &mut out);
    Some(out)
}

/// Facts that files of some architectures omit.
fn family_facts(family: &str, meta: &GgufMeta, c: &mut Map<String, Value>) -> Result<()> {
    let number = |name: &str| c.get(name).and_then(Value::as_u64).unwrap_or(0);
    let layers = number("num_hidden_layers");
    let (heads, hidden) = (number("num_attention_heads").max(1), number("hidden_size"));
    match family {
        "qwen3_moe" => {
            c.entry("norm_topk_prob").or_insert(json!(true));
            expert_widths(c);
        }
        "qwen2_moe" => expert_widths(c),
        "mistral" | "mixtral" | "exaone4" => {
            c.entry("sliding_window").or_insert(Value::Null);
        }
        // Only the 27B models scale by hidden / heads; the file does not say so.
        "gemma2" => scale_by(c, (layers == 46).then(|| json!(hidden / heads))),
        "gemma3_text" => {
            scale_by(c, (layers == 62).then(|| json!(hidden / heads)));
            gemma3_ropes(meta, c);
        }
        "gemma3n_text" | "gemma4_text" => gemma4(meta, c),
        "apertus" => {
            for name in ["alpha_p", "alpha_n", "beta", "eps"] {
                let list = meta.get(&format!("xielu.{name}")).map(to_json);
                list.map(|list| c.insert(format!("xielu_{name}"), list));
            }
        }
        "gpt_oss" => {
            // The model's own config does not truncate the correction range; files do not say.
            if let Some(Value::Object(p)) = c.get_mut("rope_parameters") {
                p.insert("truncate".into(), json!(false));
            }
        }
        family if LATENT.contains(&family) => deepseek(family, meta, c)?,
        "qwen3_next" | "qwen3_5" | "qwen3_5_moe" => delta_rule(meta, c)?,
        "olmo3" | "mellum" | "laguna" | "mimo_v2_flash" => ropes_by_kind(family, meta, c),
        "ministral3" => temperature(meta, c),
        family if HYBRIDS.contains(&family) => hybrid(family, meta, layers, c),
        "granite_swa" => rope_pattern(meta, c),
        // The files do not say; all that are published have it.
        "afmoe" => _ = c.insert("mup_enabled".into(), json!(true)),
        _ => {}
    }
    window_pattern(meta, layers, c);
    Ok(())
}

/// Which layers have the window: a list, or a number n for "all but every n-th" (0: all).
fn window_pattern(meta: &GgufMeta, layers: u64, c: &mut Map<String, Value>) {
    let kind = |local: bool| json!(if local { "sliding_attention" } else { "full_attention" });
    let types = match meta.arch("attention.sliding_window_pattern") {
        Some(GgufValue::Array(list)) => {
            let local = |v: &GgufValue| v.as_bool().unwrap_or(v.as_u64().unwrap_or(0) > 0);
            let most = usize::try_from(layers).unwrap_or(usize::MAX).min(1 << 16);
            // Heads that predict several tokens are counted as layers. Of another number of
            // entries at most one is beyond the layers, so that it is refused.
            let heads = meta.integer("nextn_predict_layers").unwrap_or(0);
            let counted = list.len() as u64 == layers.saturating_add(heads);
            list.iter().take(most + usize::from(!counted)).map(|v| kind(local(v))).collect()
        }
        Some(v) => match v.as_u64() {
            // More layers than any model has are refused when they are read.
            Some(n) => (0..layers.min(1 << 16)).map(|i| kind(n == 0 || (i + 1) % n != 0)).collect(),
            None => return,
        },
        None => return,
    };
    c.insert("layer_types".into(), Value::Array(types));
}

/// Which layers use positions; all do if the file does not say.
fn rope_pattern(meta: &GgufMeta, c: &mut Map<String, Value>) {
    let Some(GgufValue::Array(list)) = meta.arch("attention.rope_pattern") else { return };
    let base = c["rope_parameters"]["rope_theta"].clone();
    let with = |v: &GgufValue| v.as_bool().unwrap_or(v.as_u64().unwrap_or(0) > 0);
    let bases = list.iter().take(1 << 16).map(|v| if with(v) { base.clone() } else { json!(0.0) });
    c.insert("layer_rope_theta".into(), bases.collect());
}

/// Older files omit the experts' widths: derives them.
fn expert_widths(c: &mut Map<String, Value>) {
    let Some(inter) = c.get("intermediate_size").and_then(Value::as_u64) else { return };
    let used = c.get("num_experts_per_tok").and_then(Value::as_u64).unwrap_or(1).max(1);
    c.entry("moe_intermediate_size").or_insert(json!(inter / used));
    c.entry("shared_expert_intermediate_size").or_insert(json!(inter));
}

fn scale_by(c: &mut Map<String, Value>, scalar: Option<Value>) {
    let head_dim = c.get("head_dim").cloned().unwrap_or(json!(256));
    c.insert("query_pre_attn_scalar".into(), scalar.unwrap_or(head_dim));
}

/// Gemma 3 scales only the global rope; local layers have their own base.
fn gemma3_ropes(meta: &GgufMeta, c: &mut Map<String, Value>) {
    let local = meta.number("rope.freq_base_swa").unwrap_or(10_000.0);
    let mut global = c.get("rope_parameters").cloned().unwrap_or(json!({}));
    if meta.arch("rope.freq_base").is_none() {
        global["rope_theta"] = json!(1e6);
    }
    let ropes = json!({"full_attention": global, "sliding_attention": {"rope_theta": local}});
    c.insert("rope_parameters".into(), ropes);
}

/// Gemma 4: the width of heads, and the base of ropes, are those of layers that see the whole
/// context; those with a window have others.
fn gemma4(meta: &GgufMeta, c: &mut Map<String, Value>) {
    let global = c.get("rope_parameters").and_then(|p| p.get("rope_theta")).cloned();
    let local = meta.number("rope.freq_base_swa").unwrap_or(10_000.0);
    let ropes = json!({"full_attention": {"rope_theta": global}, "sliding_attention": {"rope_theta": local}});
    c.insert("rope_parameters".into(), ropes);
    if let Some(width) = meta.integer("attention.key_length_swa") {
        let global = c.insert("head_dim".into(), json!(width));
        c.insert("global_head_dim".into(), global.unwrap_or(Value::Null));
    }
}

/// Families of latent attention.
const LATENT: [&str; 5] = ["deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_linear", "youtu"];

/// Families whose layers may differ in their numbers of heads, or widths of feed-forwards.
fn by_layer(family: &str, key: &str) -> bool {
    let heads = key.contains("head_count");
    let all = heads || key == "feed_forward_length";
    heads && matches!(family, "kimi_linear" | "laguna" | "mimo_v2_flash")
        || all && matches!(family, "gemma3n_text" | "gemma4_text")
}

/// What only the tensors say: the family among those of one architecture, and which layers are
/// dense.
fn by_tensors(
    family: &'static str,
    meta: &GgufMeta,
    files: &dyn Checkpoint,
    c: &mut Map<String, Value>,
) -> Result<&'static str> {
    let has = |name: &str| files.tensor(name).is_some();
    // Heads that predict several tokens are counted as layers.
    let heads = meta.integer("nextn_predict_layers").unwrap_or(0);
    if let Some(n) = c.get("num_hidden_layers").and_then(Value::as_u64) {
        c.insert("num_hidden_layers".into(), json!(n.saturating_sub(heads)));
    }
    let layers = c.get("num_hidden_layers").and_then(Value::as_u64).unwrap_or(0).min(1 << 12);
    let is_sparse = |i: u64| has(&format!("blk.{i}.ffn_gate_inp.weight"));
    let biased =
        |i: u64| ["exp_probs_b.bias", "exp_probs_b"].iter().any(|n| has(&format!("blk.{i}.{n}")));
    let family = match family {
        "olmo2" if meta.arch("attention.sliding_window").is_some() => "olmo3",
        "deepseek_v2" if (0..layers).any(biased) => "deepseek_v3",
        "deepseek_v2" if meta.integer("expert_count").unwrap_or(0) == 0 => "youtu",
        other => other,
    };
    let from_tensors = FROM_TENSORS.split(' ').any(|known| known == family);
    if from_tensors {
        let kind = |i| json!(if is_sparse(i) { "sparse" } else { "dense" });
        c.insert("mlp_layer_types".into(), (0..layers).map(kind).collect());
        c.insert("use_qk_norm".into(), json!(has("blk.0.attn_q_norm.weight")));
    }
    if family == "gemma4_text" {
        let lacks_values =
            |i| has(&format!("blk.{i}.attn_k.weight")) && !has(&format!("blk.{i}.attn_v.weight"));
        c.insert("attention_k_eq_v".into(), json!((0..layers).any(lacks_values)));
        c.insert("enable_moe_block".into(), json!((0..layers).any(is_sparse)));
        // Those of NVFP4 are multiplied into the weights.
        let [down, scale] = ["weight", "scale"].map(|n| format!("blk.0.ffn_down_exps.{n}"));
        let is_own = files.tensor(&down).is_none_or(|t| t.dtype != DType::NVFP4);
        c.insert("expert_scales".into(), json!(is_own && has(&scale)));
    }
    if family == "gemma3n_text" {
        // Minus infinity, where all gates count, becomes null.
        let scales = meta.arch("activation_sparsity_scale").map(to_json);
        scales.map(|list| c.insert("activation_sparsity_scale".into(), list));
        let down = files.tensor("blk.0.laurel_l.weight");
        down.map(|down| c.insert("laurel_rank".into(), json!(down.matrix().0)));
    }
    let function = meta.integer("expert_gating_func");
    let expected = if family == "ernie4_5_moe" { 1 } else { 2 };
    if family == "cohere2_moe" {
        let name = if function == Some(1) { "softmax" } else { "sigmoid" };
        c.insert("expert_selection_fn".into(), json!(name));
    } else if let Some(other) = function.filter(|f| *f != expected)
        && from_tensors
    {
        return Err(unsupported(format!("expert_gating_func {other}"), expected.to_string()));
    }
    Ok(family)
}

/// Families with sparse layers where the file has routers.
const FROM_TENSORS: &str = "deepseek_v3 deepseek_v32 glm4_moe ernie4_5_moe hy_v3 minimax_m2 \
    exaone_moe cohere2_moe dots1 afmoe kimi_linear laguna mimo_v2_flash";

/// Layers with a window have a rope of their own, which is not scaled.
fn ropes_by_kind(family: &str, meta: &GgufMeta, c: &mut Map<String, Value>) {
    let global = c.get("rope_parameters").cloned().unwrap_or(json!({}));
    let base = meta.number("rope.freq_base_swa").map(|base| json!(base));
    let mut local = json!({"rope_theta": base.as_ref().or(global.get("rope_theta"))});
    let width = c.get("head_dim").and_then(Value::as_f64);
    local["partial_rotary_factor"] = match (meta.number("rope.dimension_count_swa"), width) {
        (Some(dims), Some(width)) => json!(((dims + 1e-3) / width).min(1.0)),
        _ => global.get("partial_rotary_factor").cloned().unwrap_or(json!(1.0)),
    };
    let ropes = json!({"full_attention": global, "sliding_attention": local});
    c.insert("rope_parameters".into(), ropes);
    if family == "mimo_v2_flash" {
        c.insert("v_head_dim".into(), json!(meta.integer("attention.value_length")));
    }
}

/// Queries that grow with their positions.
fn temperature(meta: &GgufMeta, c: &mut Map<String, Value>) {
    let Some(Value::Object(p)) = c.get_mut("rope_parameters") else { return };
    if let Some(beta) = meta.number("attention.temperature_scale") {
        p.insert("llama_4_scaling_beta".into(), json!(beta));
    }
    if let Some(all) = meta.number("rope.scaling.yarn_log_multiplier") {
        p.insert("mscale".into(), json!(all));
        p.insert("mscale_all_dim".into(), json!(all));
    }
}

fn deepseek(family: &str, meta: &GgufMeta, c: &mut Map<String, Value>) -> Result<()> {
    match meta.integer("expert_gating_func") {
        None | Some(0 | 1) => {}
        Some(2) if matches!(family, "deepseek_v3" | "deepseek_v32" | "kimi_linear") => {}
        Some(other) => {
            return Err(unsupported(format!("expert_gating_func {other}"), "1 (softmax)"));
        }
    }
    if meta.arch("attention.temperature_scale").is_some() {
        return Err(unsupported("attention.temperature_scale", "files without it"));
    }
    let rope = meta.integer("rope.dimension_count").unwrap_or(64);
    let width = |of: &str, default| {
        let length = |of: &str| meta.integer(&format!("attention.{of}"));
        length(&format!("{of}_length_mla")).or(length(&format!("{of}_length"))).unwrap_or(default)
    };
    let (key, value) = (width("key", 192), width("value", 128));
    let nope = key.checked_sub(rope).ok_or_else(|| {
        bad("attention.key_length_mla", key, format!("less than rope.dimension_count {rope}"))
    })?;
    c.insert("qk_rope_head_dim".into(), json!(rope));
    c.insert("qk_nope_head_dim".into(), json!(nope));
    c.insert("v_head_dim".into(), json!(value));
    // The file counts heads of the compressed form; the model has as many as query heads.
    c.remove("num_key_value_heads");
    c.remove("head_dim");
    if family == "kimi_linear" {
        kimi_layers(meta, c)?;
    }
    for flag in ["attention_bias", "mlp_bias"] {
        c.insert(flag.into(), json!(false));
    }
    c.entry("q_lora_rank").or_insert(Value::Null);
    if let (Some(groups), Some(best)) =
        (meta.integer("expert_group_count"), meta.integer("expert_group_used_count"))
        && groups > 1
    {
        c.insert("topk_method".into(), json!("group_limited_greedy"));
        c.insert("n_group".into(), json!(groups));
        c.insert("topk_group".into(), json!(best));
    }
    if let Some(Value::Object(p)) = c.get_mut("rope_parameters") {
        p.remove("partial_rotary_factor");
        // Stored as 0.1 * mscale_all_dim. mscale itself is not stored; in all published models it
        // is equal.
        let log = meta.number("rope.scaling.yarn_log_multiplier");
        if let Some(m) = log.filter(|m| *m != 0.0) {
            // Rounded to a config's digits, since the file stores a single-precision product.
            let m = (m * 10.0 * 1e5).round() / 1e5;
            p.insert("mscale".into(), json!(m));
            p.insert("mscale_all_dim".into(), json!(m));
        }
    }
    Ok(())
}

/// Llama 3's frequency factors are in a tensor: each divides one frequency.
pub(super) fn apply_rope_factors(spec: &mut ModelSpec, files: &dyn Checkpoint) -> Result<()> {
    let Some(factors) = floats(files, "rope_freqs.weight") else { return Ok(()) };
    let of_global = spec.family == "gemma4_text";
    // Layers that shared a list of frequencies share the new one.
    let mut made: Option<[Arc<[f32]>; 2]> = None;
    for layer in &mut spec.layers {
        let attn = layer.attention_mut();
        // Gemma 4's are for layers without a window.
        let attn = attn.filter(|a| !(of_global && a.window.is_some()));
        let Some(rope) = attn.and_then(|a| a.rope.as_mut()) else { continue };
        let freqs = &rope.freqs.inv_freq;
        if let Some([_, new]) = made.as_ref().filter(|[old, _]| Arc::ptr_eq(old, freqs)) {
            rope.freqs.inv_freq = new.clone();
            continue;
        }
        if freqs.len() != factors.len() || factors.iter().any(|f| !f.is_finite() || *f <= 0.0) {
            let problem = format!("not {} positive factors", freqs.len());
            return Err(bad("rope_freqs.weight", format!("{} values", factors.len()), problem));
        }
        let new: Arc<[f32]> = freqs.iter().zip(&factors).map(|(f, d)| f / d).collect();
        made = Some([std::mem::replace(&mut rope.freqs.inv_freq, new.clone()), new]);
    }
    Ok(())
}
