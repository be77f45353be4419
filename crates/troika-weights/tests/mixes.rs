//! The types of random weights, compared with those that llama-quantize gives to the same matrices.
//! `data/mixes.py` makes `data/mixes.txt` from its source.

#![allow(clippy::unwrap_used)]

use troika_model::spec::{Key, ModelSpec, WeightRole, weight_requirements};
use troika_model::{families, presets};
use troika_weights::{Quant, WeightMix, WeightStore};

/// A shape of `data/mixes.py`: layers, width, inner width, heads, key heads, experts, tied.
fn spec(name: &str) -> ModelSpec {
    let sizes = match name {
        "dense" => [28, 1024, 3072, 16, 8, 0, 1],
        "large" => [32, 4096, 14_336, 32, 8, 0, 0],
        "narrow" => [24, 896, 4864, 14, 2, 0, 1],
        "eight" => [32, 4096, 14_336, 32, 8, 8, 0],
        _ => [20, 2048, 1408, 16, 16, 64, 0],
    };
    let [layers, width, inner, heads, kv, experts, tied] = sizes;
    let preset = if experts > 0 { "qwen3-moe-tiny" } else { "qwen3-0.6b" };
    let mut config = presets::config(preset).unwrap();
    for (field, value) in [
        ("num_hidden_layers", layers),
        ("hidden_size", width),
        ("intermediate_size", inner),
        ("moe_intermediate_size", inner),
        ("num_attention_heads", heads),
        ("num_key_value_heads", kv),
        ("num_experts", experts),
        ("head_dim", width / heads),
        ("vocab_size", 512),
    ] {
        config[field] = value.into();
    }
    config["tie_word_embeddings"] = (tied == 1).into();
    families::from_config(&config).unwrap().spec
}

/// The weights of a tensor that llama-quantize sees as one.
fn keys(spec: &ModelSpec, tensor: &str) -> Vec<Key> {
    use WeightRole as R;
    let of_layers = |role, of_expert| {
        let is_moe = weight_requirements(spec).any(|need| need.key.role == of_expert);
        (0..spec.layers.len())
            .map(|layer| match is_moe {
                true => Key::indexed(layer, of_expert, 1),
                false => Key::layer(layer, role),
            })
            .collect()
    };
    match tensor {
        "token_embd" => vec![Key::model(R::Embed)],
        "output" => vec![Key::model(R::Head)],
        "attn_q" => of_layers(R::Q, R::Sinks),
        "attn_k" => of_layers(R::K, R::Sinks),
        "attn_v" => of_layers(R::V, R::Sinks),
        "attn_output" => of_layers(R::O, R::Sinks),
        "ffn_gate" => of_layers(R::Gate, R::ExpertGate),
        "ffn_up" => of_layers(R::Up, R::ExpertUp),
        "ffn_down" => of_layers(R::Down, R::ExpertDown),
        other => unreachable!("{other}"),
    }
}

#[test]
fn mixes_are_those_of_llama_quantize() {
    let mut seen = 0;
    for line in include_str!("data/mixes.txt").lines() {
        let mut words = line.split(' ');
        let spec = spec(words.next().unwrap());
        let mix = WeightMix::find(words.next().unwrap()).unwrap();
        let store = WeightStore::synthetic_lazy(&spec, mix, 1, Quant::None);
        for tensor in words {
            let (name, runs) = tensor.split_once('=').unwrap();
            let expected = runs.split(',').flat_map(|run| {
                let (dtype, count) = run.split_once('*').unwrap();
                std::iter::repeat_n(dtype, count.parse().unwrap())
            });
            let keys = keys(&spec, name).into_iter();
            let got: Vec<_> = keys.map(|key| store.shape(key).unwrap().dtype.name()).collect();
            assert_eq!(got, expected.collect::<Vec<_>>(), "{line}\n{name}");
        }
        seen += 1;
    }
    assert_eq!(seen, 150);
}

/// Every type and mix, at widths that blocks of 32 or 256 do and do not divide.
#[test]
fn every_type_and_mix_fits_every_width() {
    for mix in WeightMix::all() {
        assert_eq!(WeightMix::find(&mix.name().to_lowercase()), Some(mix));
        for width in [40usize, 96, 576, 1152, 2880, 1024] {
            let mut config = presets::config("qwen3-moe-tiny").unwrap();
            config["hidden_size"] = width.into();
            let spec = families::from_config(&config).unwrap().spec;
            let store = WeightStore::synthetic_lazy(&spec, mix, 1, Quant::None);
            let mut matrices = Vec::new();
            for need in weight_requirements(&spec) {
                let shape = store.shape(need.key).unwrap();
                assert!(shape.dtype.row_bytes(need.cols).is_some(), "{} {need:?}", mix.name());
                if need.rows > 1 {
                    matrices.push(shape.dtype);
                }
            }
            let fits = width.is_multiple_of(mix.base().block_len());
            assert!(!fits || matrices.contains(&mix.base()), "{} {width}", mix.name());
        }
    }
    assert_eq!(WeightMix::find("Q4_K_X"), None);
}
