//! Families: configs and GGUF metadata give the right description, or an error sentence.

#![allow(clippy::panic, clippy::unwrap_used)]

mod changes;
mod defaults;
mod gguf;
mod golden;
mod names;
mod refusals;
mod rope;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Value, json};
use troika_graph::DType;
use troika_model::families::{DescribedModel, from_config};
use troika_model::lower::{LowerOptions, SegmentKind, WeightShape, lower, segment_kinds, segments};
use troika_model::spec::{
    Attn, Key, Mlp, ModelSpec, Moe, Norm, WeightRequirement, weight_requirements,
};

/// A folder of the repository's test data.
fn data(kind: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests").join(kind)
}

/// The config of a golden checkpoint.
fn golden(name: &str) -> Value {
    let path = data("golden").join(name).join("config.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A small Llama.
fn llama() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 131072
    })
}

/// A config with some fields changed; `null` stays as null.
fn with(mut config: Value, changes: Value) -> Value {
    let changes = changes.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(changes);
    config
}

/// A config without some fields.
fn without(mut config: Value, fields: &[&str]) -> Value {
    let object = config.as_object_mut().unwrap();
    object.retain(|k, _| !fields.contains(&k.as_str()));
    config
}

fn model(config: &Value) -> DescribedModel {
    from_config(config).unwrap_or_else(|e| panic!("{e}: {config}"))
}

fn spec(config: &Value) -> ModelSpec {
    model(config).spec
}

/// The error sentence for a config.
fn refusal(config: &Value) -> String {
    match from_config(config) {
        Ok(m) => panic!("accepted as {:?}", m.spec),
        Err(e) => e.to_string(),
    }
}

fn rms(eps: f32, offset: f32) -> Norm {
    Norm::Rms { eps, offset }
}

fn attn(spec: &ModelSpec, layer: usize) -> &Attn {
    spec.layers[layer].attention().unwrap()
}

fn dense(spec: &ModelSpec, layer: usize) -> Mlp {
    *spec.layers[layer].dense().unwrap()
}

fn moe(spec: &ModelSpec, layer: usize) -> &Moe {
    spec.layers[layer].moe().unwrap()
}

/// Windows of all layers.
fn windows(spec: &ModelSpec) -> Vec<Option<usize>> {
    spec.layers.iter().map(|l| l.attention().unwrap().window).collect()
}

/// Whether layers use rope.
fn ropes(spec: &ModelSpec) -> Vec<bool> {
    spec.layers.iter().map(|l| l.attention().unwrap().rope.is_some()).collect()
}

#[test]
fn a_layer_may_lack_its_mixer_or_its_feed_forward() {
    let mut s = spec(&llama());
    let layer = s.layers[0].clone();
    s.layers = vec![layer.clone(), layer];
    (s.layers[0].mixer, s.layers[0].attn_pre) = (None, None);
    (s.layers[1].ffn, s.layers[1].ffn_pre) = (None, None);
    let shape =
        |n: WeightRequirement| WeightShape { rows: n.rows, cols: n.cols, dtype: DType::F32 };
    let needs: BTreeMap<Key, _> = weight_requirements(&s).map(|n| (n.key, shape(n))).collect();
    let options = LowerOptions { max_rows: 8, max_kv: 64, kv_dtype: DType::F32 };
    let l = lower(&s, &|key| needs.get(&key).copied(), options).unwrap();
    let made: Vec<_> = l.segments.iter().map(|s| (s.kind, s.layer)).collect();
    assert_eq!(made, segments(&s));
    use SegmentKind::{Attention, AttnOut, Embed, Ffn, Head, Qkv};
    assert_eq!(segment_kinds(&s), [Embed, Qkv, Attention, AttnOut, Ffn, Head]);
    assert_eq!(made[1..5].iter().map(|s| s.1).collect::<Vec<_>>(), [0, 1, 1, 1].map(Some));
    // Each passes the residual stream on, and no weight is asked for in vain.
    assert_eq!(l.segments[1].inputs, l.segments[0].outputs);
    assert_eq!(l.segments[5].inputs, l.segments[4].outputs);
    let used = l.segments.iter().flat_map(|s| &s.graph.weights).map(|w| w.name.to_string());
    let used: BTreeSet<String> = used.collect();
    assert_eq!(used, needs.keys().map(Key::to_string).collect());
}
