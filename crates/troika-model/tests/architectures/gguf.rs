//! GGUF metadata gives the same descriptions; absent values have llama.cpp's meaning.

use std::collections::BTreeMap;

use troika_device::WeightBytes;
use troika_graph::{DType, RopeStyle};
use troika_model::families::{DescribedModel, from_config, from_gguf, numbers_in_files};
use troika_model::spec::{
    Checkpoint, Ffn, GgufMeta, GgufValue, Key, Layer, Mixer, ModelSpec, Recipe, RopeSpec,
    StoredTensor, WeightRole,
};
use troika_weights::{FileSource, open};

use crate::{attn, data, golden, moe, ropes, windows};

/// Tensors without a file, and names of tensors with an unsupported type.
#[derive(Default)]
struct Tensors(BTreeMap<String, StoredTensor>, Vec<&'static str>);

impl Checkpoint for Tensors {
    fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.0.get(name)
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    fn origin(&self, _: &str) -> String {
        "test.gguf".into()
    }

    fn unusable(&self, name: &str) -> Option<&str> {
        self.1.contains(&name).then_some("IQ4_XS")
    }
}

/// A small model: its metadata and tensors.
struct Gguf {
    arch: &'static str,
    meta: GgufMeta,
    tensors: Tensors,
}

fn gguf(arch: &'static str) -> Gguf {
    let mut g = Gguf { arch, meta: GgufMeta::default(), tensors: Tensors::default() };
    g.meta.0.insert("general.architecture".into(), GgufValue::Str(arch.into()));
    let ints = [
        ("block_count", 4),
        ("context_length", 8192),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ];
    let g = ints.into_iter().fold(g, |g, (k, v)| g.set(k, GgufValue::Uint(v)));
    g.set("attention.layer_norm_rms_epsilon", GgufValue::Float(1e-5)).tensor(
        "token_embd.weight",
        &[100, 64],
        None,
    )
}

impl Gguf {
    fn set(mut self, key: &str, value: GgufValue) -> Gguf {
        self.meta.0.insert(format!("{}.{key}", self.arch), value);
        self
    }

    fn int(self, key: &str, value: u64) -> Gguf {
        self.set(key, GgufValue::Uint(value))
    }

    fn float(self, key: &str, value: f64) -> Gguf {
        self.set(key, GgufValue::Float(value))
    }

    fn text(self, key: &str, value: &str) -> Gguf {
        self.set(key, GgufValue::Str(value.into()))
    }

    fn tensor(mut self, name: &str, shape: &[usize], values: Option<&[f32]>) -> Gguf {
        let bytes = values.unwrap_or(&[]).iter().flat_map(|v| v.to_le_bytes()).collect();
        let bytes = WeightBytes::owned(bytes);
        let tensor = StoredTensor { dtype: DType::F32, shape: shape.to_vec(), bytes };
        self.tensors.0.insert(name.into(), tensor);
        self
    }

    fn model(&self) -> DescribedModel {
        from_gguf(&self.meta, &self.tensors).unwrap_or_else(|e| panic!("{e}"))
    }

    fn spec(&self) -> ModelSpec {
        self.model().spec
    }

    fn refusal(&self) -> String {
        match from_gguf(&self.meta, &self.tensors) {
            Ok(m) => panic!("accepted as {:?}", m.spec),
            Err(e) => e.to_string(),
        }
    }
}

fn rope(s: &ModelSpec, layer: usize) -> &RopeSpec {
    attn(s, layer).rope.as_ref().unwrap()
}

#[test]
fn files_of_the_converter_say_what_the_config_said() {
    for name in ["llama-3.2", "phi-3", "smollm3", "exaone-4", "gpt-oss", "deepseek-v2"] {
        let opened = open(&data("gguf").join(format!("{name}.gguf"))).unwrap();
        let FileSource::Gguf { meta, .. } = &opened.source else { panic!("{name}") };
        let mut ours = from_gguf(meta, opened.files.as_ref()).unwrap().spec;
        let mut theirs = from_config(&golden(name)).unwrap().spec;
        let freqs = |s: &ModelSpec| {
            let ropes = s.layers.iter().filter_map(|l| l.attention().unwrap().rope.as_ref());
            ropes.flat_map(|r| r.freqs.inv_freq.to_vec()).collect::<Vec<_>>()
        };
        assert!(!freqs(&theirs).is_empty() && freqs(&ours).len() == freqs(&theirs).len());
        for (a, b) in freqs(&ours).iter().zip(freqs(&theirs)) {
            assert!((a - b).abs() <= 1e-6 * b, "{name}: {a} and {b}");
        }
        // The rest is equal except for rounded factors and the pairing.
        for layer in ours.layers.iter_mut().chain(&mut theirs.layers) {
            let attn = layer.attention_mut().unwrap();
            let with_rope = attn.rope.take().is_some();
            attn.softcap = with_rope.then_some(1.0);
        }
        let eps = |s: &ModelSpec| format!("{:?}", s.final_norm);
        assert_eq!(eps(&ours), eps(&theirs), "{name}");
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn pairing_of_rope() {
    for (arch, style) in [
        ("llama", RopeStyle::Interleaved),
        ("internlm2", RopeStyle::Interleaved),
        ("smollm3", RopeStyle::Interleaved),
        ("qwen2", RopeStyle::Half),
        ("qwen3", RopeStyle::Half),
        ("phi3", RopeStyle::Half),
        ("gemma", RopeStyle::Half),
        ("gemma2", RopeStyle::Half),
        ("gemma3", RopeStyle::Half),
        ("exaone4", RopeStyle::Half),
        ("olmoe", RopeStyle::Half),
        ("gpt-oss", RopeStyle::Half),
        ("granite", RopeStyle::Interleaved),
        ("arcee", RopeStyle::Interleaved),
        ("glm4", RopeStyle::Interleaved),
        ("ernie4_5", RopeStyle::Interleaved),
        ("olmo2", RopeStyle::Half),
        ("hunyuan-dense", RopeStyle::Half),
    ] {
        assert_eq!(rope(&gguf(arch).spec(), 0).style, style, "{arch}");
    }
}

#[test]
fn tensors_tell_of_biases_and_ties() {
    let s = gguf("llama").spec();
    assert!(s.tied && !attn(&s, 0).qkv_bias && s.family == "llama");
    let s = gguf("llama")
        .tensor("output.weight", &[100, 64], None)
        .tensor("blk.0.attn_q.bias", &[64], None)
        .spec();
    let a = attn(&s, 0);
    assert!(!s.tied && a.qkv_bias && !a.o_bias);
}

#[test]
fn experts_make_a_mixtral() {
    let s = gguf("llama").int("expert_count", 4).int("expert_used_count", 2).spec();
    assert_eq!((s.family.as_str(), moe(&s, 0).experts, moe(&s, 0).normalize), ("mixtral", 4, true));
    assert_eq!(gguf("llama").int("expert_count", 0).spec().family, "llama");
}

#[test]
fn experts_widths_that_are_not_written() {
    let qwen = |arch| gguf(arch).int("expert_count", 4).int("expert_used_count", 2);
    // llama.cpp: n_ff / n_expert_used, and n_ff for the shared expert.
    let s = qwen("qwen2moe").spec();
    assert_eq!((moe(&s, 0).inter, moe(&s, 0).shared.unwrap().inter), (48, 96));
    assert!(!moe(&s, 0).normalize);
    let s = qwen("qwen3moe").spec();
    assert_eq!((moe(&s, 0).inter, moe(&s, 0).normalize), (48, true));
    let s = qwen("qwen3moe").int("expert_feed_forward_length", 32).spec();
    assert_eq!(moe(&s, 0).inter, 32);
}

#[test]
fn frequencies_divided_by_a_tensor() {
    let factors = [1.0, 1.0, 2.0, 2.0, 4.0, 8.0, 8.0, 8.0];
    let plain = rope(&gguf("llama").spec(), 0).freqs.inv_freq.clone();
    let scaled = gguf("llama").tensor("rope_freqs.weight", &[8], Some(&factors)).spec();
    let expected: Vec<f32> = plain.iter().zip(factors).map(|(f, d)| f / d).collect();
    assert_eq!(rope(&scaled, 3).freqs.inv_freq.to_vec(), expected);
    let short = gguf("llama").tensor("rope_freqs.weight", &[2], Some(&factors[..2]));
    assert_eq!(
        short.refusal(),
        "the config's rope_freqs.weight is 2 values, which is not 8 positive factors"
    );
}

#[test]
fn scaling() {
    let freqs = |g: Gguf| rope(&g.spec(), 0).freqs.clone();
    let plain = freqs(gguf("qwen2"));
    let half: Vec<f32> = plain.inv_freq.iter().map(|f| f / 2.0).collect();
    let linear =
        gguf("qwen2").text("rope.scaling.type", "linear").float("rope.scaling.factor", 2.0);
    assert_eq!(freqs(linear).inv_freq.to_vec(), half);
    // llama.cpp treats a factor without a type, or under its old name, as linear.
    assert_eq!(freqs(gguf("qwen2").float("rope.scaling.factor", 2.0)).inv_freq.to_vec(), half);
    assert_eq!(freqs(gguf("qwen2").float("rope.scale_linear", 2.0)).inv_freq.to_vec(), half);
    assert_eq!(freqs(gguf("qwen2").text("rope.scaling.type", "none")), plain);
    let yarn = || {
        let g = gguf("qwen2").text("rope.scaling.type", "yarn").float("rope.scaling.factor", 4.0);
        g.int("rope.scaling.original_context_length", 2048)
    };
    assert!((f64::from(freqs(yarn()).factor) - 1.138629436).abs() < 1e-7);
    assert_eq!(freqs(yarn().float("rope.scaling.yarn_attn_factor", 0.5)).factor, 0.5);
    assert_eq!(
        gguf("qwen2").text("rope.scaling.type", "ntk").refusal(),
        "rope.scaling.type \"ntk\" is not supported; supported: none, linear, yarn, longrope"
    );
}

#[test]
fn long_and_short_factors() {
    let (short, long) = ([1.0f32; 8], [4.0f32; 8]);
    let s = gguf("phi3")
        .tensor("rope_factors_short.weight", &[8], Some(&short))
        .tensor("rope_factors_long.weight", &[8], Some(&long))
        .int("rope.scaling.original_context_length", 4096)
        .float("rope.scaling.attn_factor", 1.25)
        .spec();
    let (freqs, beyond) = rope(&s, 0).long.clone().unwrap();
    assert_eq!((rope(&s, 0).freqs.factor, freqs.factor, beyond), (1.25, 1.25, 4096));
    let quarter: Vec<f32> = rope(&s, 0).freqs.inv_freq.iter().map(|f| f / 4.0).collect();
    assert_eq!(freqs.inv_freq.to_vec(), quarter);
}

#[test]
fn a_part_of_a_head_or_all_of_it() {
    let phi = |dims| {
        let g = gguf("phi2").float("attention.layer_norm_epsilon", 1e-5);
        let g = g.int("attention.head_count_kv", 4).tensor("output.bias", &[100], None);
        rope(&g.int("rope.dimension_count", dims).spec(), 0).rotary_dim
    };
    // Also the whole head, since this family's default is half.
    assert_eq!((phi(4), phi(6), phi(16)), (4, 6, 16));
    for (width, dims) in [(98, 6), (49 * 2, 2), (96, 24), (80, 32)] {
        let g = gguf("llama").int("attention.key_length", width);
        assert_eq!(rope(&g.int("rope.dimension_count", dims).spec(), 0).rotary_dim as u64, dims);
    }
}

#[test]
fn window_patterns() {
    let swa = |arch| gguf(arch).int("attention.sliding_window", 8);
    let (l, g) = (Some(8), None);
    assert_eq!(windows(&swa("gemma2").spec()), [l, g, l, g]);
    assert_eq!(windows(&swa("gpt-oss").spec()), [l, g, l, g]);
    assert_eq!(windows(&swa("gemma3").int("block_count", 6).spec()), [l, l, l, l, l, g]);
    assert_eq!(windows(&swa("exaone4").spec()), [l, l, l, g]);
    assert_eq!(ropes(&swa("exaone4").spec()), [true, true, true, false]);
    assert_eq!(windows(&gguf("exaone4").spec()), [g; 4]);
    assert_eq!(windows(&swa("phi3").spec()), [l; 4]);
    assert_eq!(windows(&gguf("phi3").int("attention.sliding_window", 0).spec()), [g; 4]);
    assert_eq!(windows(&swa("llama").spec()), [l; 4]);
    assert_eq!(windows(&swa("qwen2").spec()), [g; 4]);
    // Written out, as a list or as a number.
    let list = [false, true, true, false].map(GgufValue::Bool).to_vec();
    let listed = swa("gemma3").set("attention.sliding_window_pattern", GgufValue::Array(list));
    assert_eq!(windows(&listed.spec()), [g, l, l, g]);
    // With an entry for each head that predicts several tokens, or one too many.
    let list = [false, true, true, false].map(GgufValue::Bool).to_vec();
    let with_head = |layers, heads| {
        swa("gemma3")
            .set("attention.sliding_window_pattern", GgufValue::Array(list.clone()))
            .int("block_count", layers)
            .int("nextn_predict_layers", heads)
    };
    assert_eq!(windows(&with_head(4, 1).spec()), [g, l, l]);
    assert_eq!(windows(&with_head(5, 1).spec()), [g, l, l, g]);
    assert_eq!(windows(&with_head(4, 2).spec()), [g, l]);
    assert_eq!(
        with_head(6, 1).refusal(),
        "the config's layer_types is a list of 4, which is not one for each of 5 layers: layer 4 \
         has none"
    );
    let number = |n| swa("gemma3").int("attention.sliding_window_pattern", n).spec();
    assert_eq!((windows(&number(2)), windows(&number(1))), (vec![l, g, l, g], vec![g; 4]));
}

#[test]
fn granite_with_windows_says_which_layers_use_positions() {
    let pattern = |list: [bool; 4]| GgufValue::Array(list.map(GgufValue::Bool).to_vec());
    let base =
        || gguf("granite_swa").int("attention.sliding_window", 8).float("rope.freq_base", 5e4);
    assert_eq!(ropes(&base().spec()), [true; 4]);
    let some = base().set("attention.rope_pattern", pattern([true, false, true, true])).spec();
    assert_eq!(ropes(&some), [true, false, true, true]);
    assert_eq!(rope(&some, 2), rope(&base().spec(), 2));
    let short = GgufValue::Array(vec![GgufValue::Bool(true); 2]);
    assert_eq!(
        base().set("attention.rope_pattern", short).refusal(),
        "the config's layer_rope_theta is a list of 2, which is too short for 4 layers"
    );
}

#[test]
fn smollm3_has_no_rope_in_every_fourth_layer() {
    assert_eq!(ropes(&gguf("smollm3").spec()), [true, true, true, false]);
}

#[test]
fn gemma_facts_that_are_not_written() {
    let g = gguf("gemma2").int("attention.key_length", 32);
    assert_eq!(attn(&g.spec(), 0).scale, 32f32.powf(-0.5));
    assert_eq!(g.spec().final_norm, crate::rms(1e-5, 0.0));
    // Only 27B has another scale.
    let big = g.int("block_count", 46).spec();
    assert_eq!(attn(&big, 0).scale, 16f32.powf(-0.5));
    assert_eq!((attn(&big, 0).softcap, big.logit_softcap), (Some(50.0), Some(30.0)));
    let three = gguf("gemma3").int("block_count", 6).float("rope.freq_base", 1e6).spec();
    assert_eq!(
        rope(&three, 0).freqs,
        rope(&gguf("gemma2").int("attention.key_length", 256).spec(), 0).freqs
    );
    assert!(rope(&three, 5).freqs.inv_freq[1] < rope(&three, 0).freqs.inv_freq[1]);
}

#[test]
fn gpt_oss_does_not_truncate() {
    let g = gguf("gpt-oss")
        .text("rope.scaling.type", "yarn")
        .float("rope.scaling.factor", 32.0)
        .float("rope.freq_base", 150_000.0)
        .int("rope.scaling.original_context_length", 4096);
    let fourth = rope(&g.int("attention.key_length", 16).spec(), 0).freqs.inv_freq[3];
    assert!((f64::from(fourth) - 0.00679495931).abs() < 1e-9, "{fourth}");
}

#[test]
fn dense_and_expert_layers_may_be_mixed() {
    let g = gguf("qwen3moe")
        .int("expert_count", 4)
        .int("expert_used_count", 2)
        .tensor("blk.1.ffn_gate.weight", &[96, 64], None)
        .tensor("blk.1.ffn_up.weight", &[96, 64], None);
    let m = g.model();
    let mut spec = m.spec;
    spec.layers[1].ffn = crate::spec(&crate::llama()).layers[0].ffn.clone();
    let up = m.names.candidates(&spec, Key::layer(1, WeightRole::Up));
    assert_eq!(up, [Recipe::whole("blk.1.ffn_up.weight")]);
    let phi = gguf("phi3").tensor("blk.0.ffn_up.weight", &[192, 64], None).model();
    let up = phi.names.candidates(&phi.spec, Key::layer(0, WeightRole::Up));
    assert_eq!(up, [Recipe::rows("blk.0.ffn_up.weight", 96..192)]);
}

fn deepseek() -> Gguf {
    gguf("deepseek2")
        .int("attention.head_count_kv", 1)
        .int("attention.kv_lora_rank", 32)
        .int("attention.key_length", 40)
        .int("attention.value_length", 32)
        .int("attention.key_length_mla", 24)
        .int("attention.value_length_mla", 16)
        .int("rope.dimension_count", 8)
        .int("expert_count", 8)
        .int("expert_used_count", 2)
        .int("expert_shared_count", 2)
        .int("expert_feed_forward_length", 48)
        .int("leading_dense_block_count", 1)
        .float("expert_weights_scale", 2.5)
}

#[test]
fn deepseek_both_layouts() {
    let m = deepseek().model();
    let a = attn(&m.spec, 1);
    let l = a.latent.unwrap();
    assert_eq!((l.q_rank, l.kv_rank, l.nope, l.rope, a.v_dim), (None, 32, 16, 8, 16));
    assert_eq!((a.heads, a.kv_heads, a.k_dim), (4, 4, 24));
    assert_eq!((moe(&m.spec, 1).scale, moe(&m.spec, 1).shared.unwrap().inter), (2.5, 96));
    crate::dense(&m.spec, 0);
    let at = |role| m.names.candidates(&m.spec, Key::indexed(1, role, 2));
    let old = "blk.1.attn_kv_b.weight";
    let transposed = Recipe { transpose: true, ..Recipe::rows(old, 64..80) };
    assert_eq!(
        at(WeightRole::KAbsorb),
        [Recipe::rows("blk.1.attn_k_b.weight", 64..96), transposed]
    );
    let new = Recipe::rows("blk.1.attn_v_b.weight", 32..48);
    assert_eq!(at(WeightRole::VUp), [new, Recipe::rows(old, 80..96)]);
}

#[test]
fn deepseek_yarn() {
    let g = deepseek()
        .text("rope.scaling.type", "yarn")
        .float("rope.scaling.factor", 40.0)
        .int("rope.scaling.original_context_length", 4096)
        .float("rope.scaling.yarn_log_multiplier", f64::from(0.0707f32));
    let s = g.spec();
    let m = 0.1 * 0.707 * 40f64.ln() + 1.0;
    let scale = (m * m / 24f64.sqrt()) as f32;
    assert!((attn(&s, 0).scale - scale).abs() < 1e-7);
    assert_eq!(rope(&s, 0).freqs.factor, 1.0);
}

#[test]
fn files_that_cannot_be_read() {
    let all = "llama, internlm2, qwen2, qwen3, qwen3moe, qwen2moe, olmoe, phi2, phi3, phimoe, \
               gemma, gemma2, gemma3, gemma3n, gemma4, apertus, exaone4, smollm3, deepseek2, deepseek32, \
               gpt-oss, olmo2, granite, \
               granitemoe, granite_swa, glm4, glm4moe, ernie4_5, ernie4_5-moe, hunyuan-dense, \
               hy_v3, mistral3, arcee, seed_oss, minimax-m2, exaone-moe, cohere2, cohere2moe, \
               dots1, afmoe, mellum, laguna, mimo2, lfm2, lfm2moe, granitehybrid, falcon-h1, \
               nemotron, nemotron_h, nemotron_h_moe, qwen3next, qwen35, qwen35moe, kimi-linear, starcoder2, \
               stablelm";
    assert_eq!(
        gguf("falcon").refusal(),
        format!("GGUF architecture \"falcon\" is not supported; supported: {all}")
    );
    let none = Gguf { arch: "", meta: GgufMeta::default(), tensors: Tensors::default() };
    assert_eq!(none.refusal(), "the config has no general.architecture in the GGUF metadata");
    let differ = GgufValue::Array(vec![GgufValue::Uint(2), GgufValue::Uint(4)]);
    assert_eq!(
        gguf("llama").set("attention.head_count_kv", differ).refusal(),
        "attention.head_count_kv that differs between layers is not supported; supported: one \
         value for all"
    );
    assert_eq!(
        gguf("llama").int("attention.key_length", 16).int("attention.value_length", 8).refusal(),
        "attention.value_length 8 beside attention.key_length 16 is not supported; supported: \
         equal widths of keys and values"
    );
    assert_eq!(
        deepseek().int("expert_gating_func", 2).refusal(),
        "expert_gating_func 2 is not supported; supported: 1 (softmax)"
    );
    assert_eq!(
        deepseek().float("attention.temperature_scale", 0.1).refusal(),
        "attention.temperature_scale is not supported; supported: files without it"
    );
    assert_eq!(
        deepseek().int("attention.key_length_mla", 4).refusal(),
        "the config's attention.key_length_mla is 4, which is less than rope.dimension_count 8"
    );
}

/// Every key of small models with every kind of value is described or refused.
#[test]
fn nothing_panics() {
    let wrong = || {
        vec![
            GgufValue::Uint(0),
            GgufValue::Uint(1),
            GgufValue::Uint(7),
            GgufValue::Uint(u64::MAX),
            GgufValue::Int(-1),
            GgufValue::Float(f64::NAN),
            GgufValue::Float(1e300),
            GgufValue::Float(-0.5),
            GgufValue::Bool(true),
            GgufValue::Str("x".into()),
            GgufValue::Array(vec![]),
            GgufValue::Array(vec![GgufValue::Uint(3); 4]),
        ]
    };
    let models = ["llama", "phi2", "gemma3", "exaone4", "qwen2moe", "gpt-oss", "deepseek2"];
    let extra = [
        "rope.freq_base",
        "rope.scaling.factor",
        "rope.scaling.type",
        "rope.dimension_count",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.key_length",
        "attention.value_length",
        "rope.scaling.yarn_log_multiplier",
        "rope.freq_base_swa",
        "expert_count",
        "expert_used_count",
        "expert_group_count",
        "attention.key_length_mla",
    ];
    for arch in models {
        let base = || if arch == "deepseek2" { deepseek() } else { gguf(arch) };
        let keys: Vec<String> = base().meta.0.keys().cloned().collect();
        let own = keys.iter().filter_map(|k| k.strip_prefix(&format!("{arch}.")));
        for key in own.chain(extra) {
            for value in wrong() {
                let g = base().set(key, value);
                let Ok(m) = from_gguf(&g.meta, &g.tensors) else { continue };
                for need in troika_model::spec::weight_requirements(&m.spec).take(300) {
                    m.names.candidates(&m.spec, need.key);
                }
            }
        }
    }
}

#[test]
fn optional_tensors_of_a_type_that_is_not_read_are_not_taken_as_absent() {
    for name in
        ["output.weight", "rope_freqs.weight", "blk.0.attn_k.bias", "rope_factors_long.weight"]
    {
        let mut g = gguf("llama");
        g.model();
        g.tensors.1.push(name);
        let error = g.refusal();
        assert!(error.contains(name) && error.contains("IQ4_XS"), "{error}");
    }
    // One of three biases that belong together means that all exist.
    let g = gguf("qwen2").tensor("blk.0.attn_k.bias", &[32], None);
    assert!(attn(&g.spec(), 0).qkv_bias);
}

#[test]
fn metadata_that_is_no_number_is_refused_by_key() {
    for value in [
        GgufValue::Float(f64::NAN),
        GgufValue::Float(f64::INFINITY),
        GgufValue::Str("10000".into()),
    ] {
        let error = gguf("llama").set("rope.freq_base", value).refusal();
        assert!(error.contains("llama.rope.freq_base"), "{error}");
    }
}

/// The kinds of layers follow from their numbers of key/value heads and widths of feed-forwards.
#[test]
fn hybrids_say_by_heads_which_layers_attend() {
    let list = |all: &[u64]| GgufValue::Array(all.iter().map(|n| GgufValue::Uint(*n)).collect());
    let lfm2 = gguf("lfm2").set("attention.head_count_kv", list(&[0, 2, 0, 2]));
    let kinds = |s: &ModelSpec| -> Vec<u8> {
        let kind = |l: &Layer| match (&l.mixer, &l.ffn) {
            (Some(Mixer::Attention(_)), _) => b'a',
            (Some(Mixer::ShortConv(_)), _) => b'c',
            (Some(_), _) => b'm',
            (None, Some(Ffn::Dense(_))) => b'd',
            (None, _) => b'e',
        };
        s.layers.iter().map(kind).collect()
    };
    let s = lfm2.int("shortconv.l_cache", 3).spec();
    assert_eq!((&*kinds(&s), attn(&s, 1).kv_heads), (&b"caca"[..], 2));
    let scan = |g: Gguf| {
        let g = g.int("ssm.conv_kernel", 4).int("ssm.state_size", 16).int("ssm.group_count", 2);
        g.int("ssm.inner_size", 64).int("ssm.time_step_rank", 8)
    };
    let nemotron = scan(gguf("nemotron_h"))
        .set("attention.head_count_kv", list(&[0, 0, 2, 0]))
        .set("feed_forward_length", list(&[0, 96, 0, 96]));
    let s = nemotron.spec();
    assert_eq!((&*kinds(&s), s.layers[1].dense().unwrap().inter), (&b"mdad"[..], 96));
    let Some(Mixer::Mamba2(m)) = &s.layers[0].mixer else { panic!() };
    assert_eq!((m.heads, m.head_dim, m.groups, m.state_size), (8, 8, 2, 16));
    assert!(!m.a_log && m.norm.is_some_and(|n| n.group == 32 && !n.before_gate));
    let granite = scan(gguf("granitehybrid")).set("attention.head_count_kv", list(&[0, 0, 2, 0]));
    let s = granite.set("rope.scaling.finetuned", GgufValue::Bool(false)).spec();
    assert_eq!((&*kinds(&s), &attn(&s, 2).rope), (&b"mmam"[..], &None));
    let beside = scan(gguf("falcon-h1")).spec();
    assert!(beside.layers.iter().all(|l| l.attention().is_some() && l.beside.is_some()));
}

#[test]
fn hybrids_without_their_keys_are_refused_by_key() {
    let conv = gguf("lfm2").refusal();
    assert_eq!(conv, "the config has no shortconv.l_cache in the GGUF metadata");
    let short = gguf("lfm2").int("shortconv.l_cache", 0).refusal();
    assert_eq!(
        short,
        "the config's conv_L_cache is 0, which is not a whole number from 1 to 16777216"
    );
    let short = gguf("lfm2").int("shortconv.l_cache", 1).refusal();
    assert_eq!(short, "the config's conv_L_cache is 1, which is not at least 2");
    let heads = gguf("falcon-h1").refusal();
    assert_eq!(heads, "the config has no ssm.time_step_rank in the GGUF metadata");
    let uneven = gguf("falcon-h1").int("ssm.time_step_rank", 7).int("ssm.inner_size", 64);
    assert_eq!(
        uneven.refusal(),
        "the config's mamba_n_heads is 7, which is not possible with a width of 64 and 1 groups"
    );
    let scan = gguf("falcon-h1").int("ssm.time_step_rank", 8).int("ssm.inner_size", 64);
    assert_eq!(scan.refusal(), "the config has no ssm.state_size in the GGUF metadata");
    let scan = scan.int("ssm.state_size", 16).refusal();
    assert_eq!(scan, "the config has no ssm.conv_kernel in the GGUF metadata");
}

#[test]
fn delta_rules_need_all_their_keys() {
    let mut file = gguf("qwen35");
    let keys = ["conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank"];
    for (key, value) in keys.into_iter().zip([4, 16, 2, 64, 4]) {
        let missing = format!("the config has no ssm.{key} in the GGUF metadata");
        assert_eq!(file.refusal(), missing);
        file = file.int(&format!("ssm.{key}"), value);
    }
    let Some(Mixer::DeltaRule(d)) = file.spec().layers[0].mixer else { panic!() };
    let sizes = (d.key_heads, d.value_heads, d.key_dim, d.value_dim, d.taps);
    assert_eq!((sizes, d.tiled, d.rates_are_logs), ((2, 4, 16, 16, 4), true, false));
    let odd = file.int("ssm.inner_size", 63);
    assert_eq!(
        odd.refusal(),
        "the config's ssm.inner_size is 63, which is not a multiple of 4 heads"
    );
}

/// Gemma 3n's deviations are a list in which minus infinity stands for all gates; LAuReL's rank is that
/// of its tensor.
#[test]
fn gemma_3n_says_what_gates_count() {
    let scales = |list: [f64; 4]| GgufValue::Array(list.map(GgufValue::Float).to_vec());
    let g = gguf("gemma3n")
        .int("altup.num_inputs", 3)
        .int("altup.active_idx", 2)
        .int("attention.shared_kv_layers", 1)
        .int("embedding_length_per_layer_input", 8)
        .set("activation_sparsity_scale", scales([1.5, f64::NEG_INFINITY, 0.0, -0.5]))
        .tensor("blk.0.laurel_l.weight", &[6, 64], None);
    let s = g.spec();
    let a = s.altup.unwrap();
    assert_eq!((a.streams, a.active, a.rank), (3, 2, 6));
    let kept: Vec<_> = (0..4).map(|i| crate::dense(&s, i).above).collect();
    assert_eq!(kept, [Some(1.5), None, Some(0.0), Some(-0.5)]);
    let of = |g: &Gguf, role, i| {
        let key = Key { role, layer: None, index: Some(i) };
        g.model().names.candidates(&s, key)[0].clone()
    };
    assert_eq!(of(&g, WeightRole::AltOut, 1), Recipe::rows("altup_unembd_proj.weight", 64..128));
}

/// Gemma 4's factors of layers are tensors; of a file of which only the header is there, they are 1.
#[test]
fn factors_of_layers_are_read_where_they_are() {
    let g = gguf("gemma4").int("attention.key_length", 32).int("attention.key_length_swa", 16);
    let name = "blk.1.layer_output_scale.weight";
    for (values, factor) in [(Some(&[0.25f32][..]), 0.25), (None, 1.0)] {
        let g = Gguf { meta: g.meta.clone(), tensors: Tensors::default(), ..g };
        let g = g.tensor("token_embd.weight", &[100, 64], None).tensor(name, &[1], values);
        let mut m = g.model();
        numbers_in_files(&mut m.spec, &*m.names, &g.tensors).unwrap();
        assert_eq!([0, 1].map(|i| m.spec.layers[i].out_scale), [1.0, factor]);
        let widths = [2, 3].map(|i| attn(&m.spec, i).k_dim);
        assert_eq!(widths, [16, 32], "the last layer sees all");
    }
}
