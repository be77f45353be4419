//! Families: configs and GGUF metadata give the right description, or an error sentence.

#![allow(clippy::panic, clippy::unwrap_used)]

mod defaults;
mod gguf;
mod golden;
mod names;
mod refusals;
mod rope;

use std::path::PathBuf;

use serde_json::{Value, json};
use troika_model::families::{DescribedModel, from_config};
use troika_model::spec::{Ffn, Mlp, ModelSpec, Moe, Norm};

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

fn dense(spec: &ModelSpec, layer: usize) -> Mlp {
    match &spec.layers[layer].ffn {
        Ffn::Dense(m) => *m,
        Ffn::Moe(_) => panic!("layer {layer} has experts"),
    }
}

fn moe(spec: &ModelSpec, layer: usize) -> &Moe {
    match &spec.layers[layer].ffn {
        Ffn::Moe(m) => m,
        Ffn::Dense(_) => panic!("layer {layer} is dense"),
    }
}

/// Windows of all layers.
fn windows(spec: &ModelSpec) -> Vec<Option<usize>> {
    spec.layers.iter().map(|l| l.attn.window).collect()
}

/// Whether layers use rope.
fn ropes(spec: &ModelSpec) -> Vec<bool> {
    spec.layers.iter().map(|l| l.attn.rope.is_some()).collect()
}
