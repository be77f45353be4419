//! Generated GPTQ and AWQ checkpoints, compared with the same models in unpacked weights.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::path::Path;

use conformance::golden::{all_logits, relative_error};
use half::f16;
use serde_json::{Value, json};
use troika::graph::ActivationFormat;
use troika::weights::{CacheFolder, FloatType};
use troika::{Model, OpenOptions};
use troika_check::Random;

/// How a checkpoint is packed.
#[derive(Clone, Copy, Debug)]
struct Packing {
    method: &'static str,
    /// Whether zero points are stored minus one.
    less_one: bool,
    group: i64,
    symmetric: bool,
}

/// A safetensors file under construction.
#[derive(Default)]
struct File {
    header: serde_json::Map<String, Value>,
    data: Vec<u8>,
}

impl File {
    fn add(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        let offsets = [start, self.data.len()];
        self.header
            .insert(name.into(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
    }

    fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.add(name, "F32", shape, &bytes);
    }

    fn ints(&mut self, name: &str, shape: &[usize], values: &[u32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.add(name, "I32", shape, &bytes);
    }

    fn write(&self, dir: &Path, config: &Value) {
        std::fs::create_dir_all(dir).unwrap();
        let header = serde_json::to_vec(&self.header).unwrap();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(&self.data);
        std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    }
}

/// A random linear layer, packed in one file and as floats in the other.
fn linear(r: &mut Random, p: Packing, (n, k): (usize, usize), name: &str, files: &mut [File; 2]) {
    let group = usize::try_from(p.group).unwrap_or(k);
    let groups = k / group;
    let q: Vec<u32> = (0..n * k).map(|_| (r.bits() & 15) as u32).collect();
    let zero: Vec<u32> =
        (0..groups * n).map(|_| if p.symmetric { 8 } else { 1 + (r.bits() % 15) as u32 }).collect();
    // Scales of at most eight bits are exact in f16.
    let scale: Vec<f32> =
        (0..groups * n).map(|_| (1 + r.bits() % 255) as f32 / (1 << 14) as f32).collect();
    let weights: Vec<f32> = (0..n * k)
        .map(|i| {
            let g = i % k / group * n + i / k;
            scale[g] * (q[i] as f32 - zero[g] as f32)
        })
        .collect();
    files[1].floats(&format!("{name}.weight"), &[n, k], &weights);

    // The place of a column in an int32.
    let order = |i: usize| if p.method == "awq" { [0, 4, 1, 5, 2, 6, 3, 7][i] * 4 } else { i * 4 };
    let mut qweight = vec![0u32; n * k / 8];
    for (i, q) in q.iter().enumerate() {
        let (row, col) = (i / k, i % k);
        match p.method {
            "awq" => qweight[col * (n / 8) + row / 8] |= q << order(row % 8),
            _ => qweight[col / 8 * n + row] |= q << (col % 8 * 4),
        }
    }
    let mut qzeros = vec![0u32; groups * n / 8];
    for (i, zero) in zero.iter().enumerate() {
        let stored = if p.less_one { zero.wrapping_sub(1) & 15 } else { *zero };
        qzeros[i / 8] |= stored << order(i % n % 8);
    }
    let scales: Vec<u8> = scale.iter().flat_map(|s| f16::from_f32(*s).to_le_bytes()).collect();
    let shape = if p.method == "awq" { [k, n / 8] } else { [k / 8, n] };
    let packed = &mut files[0];
    packed.ints(&format!("{name}.qweight"), &shape, &qweight);
    packed.ints(&format!("{name}.qzeros"), &[groups, n / 8], &qzeros);
    packed.add(&format!("{name}.scales"), "F16", &[groups, n], &scales);
    if p.method == "gptq" {
        let index: Vec<u32> = (0..k).map(|i| (i / group) as u32).collect();
        packed.ints(&format!("{name}.g_idx"), &[k], &index);
    }
}

fn config(family: &str) -> Value {
    json!({
        "model_type": family, "hidden_size": 128, "intermediate_size": 256,
        "moe_intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "vocab_size": 96, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "pad_token_id": 0,
    })
}

/// Linear layers of a layer: name, outputs, inputs.
fn linears(family: &str) -> Vec<(String, usize, usize)> {
    let mut all = vec![("self_attn.o_proj".to_string(), 128, 128)];
    let mut add = |name: &str, n, k| all.push((name.to_string(), n, k));
    if family == "phi3" {
        add("self_attn.qkv_proj", 256, 128);
        add("mlp.gate_up_proj", 512, 128);
        add("mlp.down_proj", 128, 256);
        return all;
    }
    add("self_attn.q_proj", 128, 128);
    add("self_attn.k_proj", 64, 128);
    add("self_attn.v_proj", 64, 128);
    let (prefixes, inner): (Vec<String>, _) = match family {
        "qwen3_moe" => ((0..4).map(|e| format!("mlp.experts.{e}.")).collect(), 128),
        _ => (vec!["mlp.".into()], 256),
    };
    for prefix in prefixes {
        all.push((format!("{prefix}gate_proj"), inner, 128));
        all.push((format!("{prefix}up_proj"), inner, 128));
        all.push((format!("{prefix}down_proj"), 128, inner));
    }
    all
}

/// Writes a packed model and its float twin into two folders.
fn make(dir: &Path, family: &str, p: Packing) {
    let mut r = Random(7);
    let mut files = [File::default(), File::default()];
    let mut float = |files: &mut [File; 2], name: &str, shape: &[usize], around: f32| {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|_| around + 0.1 * r.float()).collect();
        files.iter_mut().for_each(|f| f.floats(name, shape, &values));
    };
    float(&mut files, "model.embed_tokens.weight", &[96, 128], 0.0);
    float(&mut files, "lm_head.weight", &[96, 128], 0.0);
    float(&mut files, "model.norm.weight", &[128], 1.0);
    for layer in 0..2 {
        let at = |name: &str| format!("model.layers.{layer}.{name}");
        float(&mut files, &at("input_layernorm.weight"), &[128], 1.0);
        float(&mut files, &at("post_attention_layernorm.weight"), &[128], 1.0);
        if family == "qwen3_moe" {
            float(&mut files, &at("self_attn.q_norm.weight"), &[32], 1.0);
            float(&mut files, &at("self_attn.k_norm.weight"), &[32], 1.0);
            float(&mut files, &at("mlp.gate.weight"), &[4, 128], 0.0);
        }
        for (i, (name, n, k)) in linears(family).iter().enumerate() {
            let mut r = Random(1000 * layer + i as u64);
            linear(&mut r, p, (*n, *k), &at(name), &mut files);
        }
    }
    let plain = config(family);
    let mut packed = plain.clone();
    packed["quantization_config"] = json!({
        "quant_method": p.method, "bits": 4, "group_size": p.group, "sym": p.symmetric,
        "desc_act": false, "zero_point": !p.symmetric,
    });
    if p.method == "gptq" && !p.less_one {
        packed["quantization_config"]["checkpoint_format"] = json!("gptq_v2");
    }
    files[0].write(&dir.join("packed"), &packed);
    files[1].write(&dir.join("float"), &plain);
}

fn logits(model: &Path, dtype: FloatType) -> Vec<f32> {
    logits_with(model, dtype, None)
}

fn logits_with(model: &Path, dtype: FloatType, cache: Option<&Path>) -> Vec<f32> {
    let kv_dtype = Some(troika::graph::DType::F32);
    let cache = cache.map(CacheFolder::new);
    let options = OpenOptions { dtype, kv_dtype, cache, ..OpenOptions::default() };
    let model = Model::open(model, &options).unwrap();
    assert_eq!(model.warnings(), [""; 0]);
    let integer = model.engine().unwrap().plan().activations().contains(&ActivationFormat::INT8);
    assert_eq!(integer, dtype == FloatType::Auto);
    let tokens: Vec<u32> = (0..40).map(|i| i * 29 % 96).collect();
    all_logits(&model, &tokens).unwrap()
}

fn check(family: &str, p: Packing) {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), family, p);
    let want = logits(&dir.path().join("float"), FloatType::F32);
    let exact = relative_error(&logits(&dir.path().join("packed"), FloatType::F32), &want);
    let integer = relative_error(&logits(&dir.path().join("packed"), FloatType::Auto), &want);
    println!("{family} {p:?}: {exact:.1e}, activations in eight bits {integer:.1e}");
    assert!(exact <= 1e-5, "{family} {p:?}: {exact}");
    // Off-center zero points give random rows a large mean, which makes rounding visible.
    assert!(integer > 0.0 && integer <= 0.1, "{family} {p:?}: {integer}");
}

#[test]
fn gptq_and_awq_mean_their_dequantized_weights() {
    for (method, less_one) in [("gptq", true), ("gptq", false), ("awq", false)] {
        for group in [32, 64, 128, -1] {
            for symmetric in [false, true] {
                check("llama", Packing { method, less_one, group, symmetric });
            }
        }
    }
}

#[test]
fn packed_projections_and_experts_of_four_bit_checkpoints() {
    for (method, less_one) in [("gptq", true), ("awq", false)] {
        check("phi3", Packing { method, less_one, group: 64, symmetric: false });
        check("qwen3_moe", Packing { method, less_one, group: 32, symmetric: false });
    }
}

/// Checkpoints with equal files whose configs require different reading do not share packed
/// weights.
#[test]
fn packed_weights_are_those_of_the_config() {
    let dir = tempfile::tempdir().unwrap();
    let packing = Packing { method: "gptq", less_one: true, group: 32, symmetric: false };
    make(dir.path(), "llama", packing);
    let (model, cache) = (dir.path().join("packed"), dir.path().join("cache"));
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let kept = |cache: &Path| std::fs::read_dir(cache.join("packed")).unwrap().count();
    let mut seen: Vec<Vec<f32>> = Vec::new();
    for (i, format) in ["gptq", "gptq_v2"].into_iter().enumerate() {
        config["quantization_config"]["checkpoint_format"] = json!(format);
        std::fs::write(&path, config.to_string()).unwrap();
        let want = logits(&model, FloatType::F32);
        for _ in 0..2 {
            assert!(logits_with(&model, FloatType::F32, Some(&cache)) == want, "{format}");
        }
        assert_eq!(kept(&cache), i + 1);
        assert!(!seen.contains(&want), "{format} means the same");
        seen.push(want);
    }
}

#[test]
fn what_is_not_read_is_said() {
    let dir = tempfile::tempdir().unwrap();
    make(
        dir.path(),
        "llama",
        Packing { method: "gptq", less_one: true, group: 32, symmetric: true },
    );
    let folder = dir.path().join("packed");
    let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let refusal = |change: &dyn Fn(&mut Value)| {
        let mut config: Value = serde_json::from_str(&config).unwrap();
        change(&mut config["quantization_config"]);
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
        Model::open(&folder, &OpenOptions::default()).err().unwrap().to_string()
    };
    let has = |text: String, words: &[&str]| {
        words.iter().for_each(|w| assert!(text.contains(w), "{w:?} is not in {text:?}"));
    };
    has(refusal(&|q| q["bits"] = json!(3)), &["gptq", "3 bits", "gptq of 8 bits"]);
    has(refusal(&|q| q["checkpoint_format"] = json!("marlin")), &["marlin"]);
    // A group that is not there.
    let model = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&model).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entries: Value = serde_json::from_slice(&bytes[8..header]).unwrap();
    let offset = entries["model.layers.1.self_attn.q_proj.g_idx"]["data_offsets"][0].as_u64();
    bytes[header + offset.unwrap() as usize] = 4;
    std::fs::write(&model, bytes).unwrap();
    has(refusal(&|_| {}), &["q_proj.g_idx", "group 4", "there are 4 groups"]);
}
