//! Quantized checkpoints: what their layers become, and which of them are refused.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use troika_device::WeightSource;
use troika_graph::DType;
use troika_model::families::from_config;
use troika_model::spec::{Key, WeightRole};
use troika_weights::{BindOptions, FileSource, FloatType, Quant, WeightStore, open};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/quantized").join(name)
}

fn bind(dir: &Path, options: BindOptions) -> Result<WeightStore, String> {
    let files = open(dir).map_err(|e| e.to_string())?;
    let FileSource::HuggingFace { config, .. } = &files.source else { panic!("a folder") };
    let model = from_config(config).map_err(|e| e.to_string())?;
    WeightStore::bind(&model, &*files.files, options).map_err(|e| e.to_string())
}

/// The type of a query matrix, and what is said of rounding.
fn becomes(name: &str, options: BindOptions) -> (DType, String) {
    let store = bind(&folder(name), options).unwrap();
    let roles = [WeightRole::Q, WeightRole::K, WeightRole::Down];
    let types = roles.map(|role| store.info(Key::layer(0, role)).unwrap().shape.dtype);
    assert!(types.iter().all(|t| *t == types[0]), "{name}: {types:?}");
    (types[0], store.warnings().join("; "))
}

#[test]
fn layers_become_types_of_the_same_values_or_say_what_is_lost() {
    let auto = BindOptions::default();
    for (name, dtype) in [
        ("gptq-8-bits", DType::Q8_0),
        ("awq-gemv", DType::Q4_G32),
        ("compressed-4-bits", DType::Q4_G32),
        ("compressed-4-bits-zeros", DType::Q4_G32),
        ("compressed-8-bits", DType::Q8_0),
        ("compressed-8-bits-groups", DType::Q8_0),
        ("mlx-4-bits-32", DType::Q4_1),
        ("mlx-4-bits-64", DType::Q4_1),
        ("mlx-4-bits-128", DType::Q4_1),
    ] {
        assert_eq!(becomes(name, auto), (dtype, String::new()), "{name}");
    }
    let q8_0 = "the checkpoint's weights are rounded: 7 matrices to Q8_0 (by at most 0.4 % of the \
                largest of 32 values)";
    for name in ["gptq-order", "gptq-8-bits-zeros", "compressed-4-bits-order"] {
        assert_eq!(becomes(name, auto), (DType::Q8_0, q8_0.into()), "{name}");
    }
    let bf16 = "the checkpoint's weights are rounded: 7 matrices to BF16 (by at most 0.2 % of a \
                value)";
    for name in ["fp8-blocks", "fp8-tensor", "compressed-fp8"] {
        assert_eq!(becomes(name, auto), (DType::BF16, bf16.into()), "{name}");
        let exact = becomes(name, FloatType::F32.into());
        assert_eq!(exact, (DType::F32, String::new()), "{name}");
        let small = BindOptions { quant: Quant::Q8, ..auto };
        assert_eq!(becomes(name, small), (DType::Q8_0, q8_0.into()), "{name}");
    }
    let dynamic = bind(&folder("gptq-dynamic"), auto).unwrap();
    let types = [WeightRole::Q, WeightRole::V, WeightRole::Gate];
    let types = types.map(|role| dynamic.info(Key::layer(0, role)).unwrap().shape.dtype);
    assert_eq!(types, [DType::Q4_G32, DType::F32, DType::Q8_0]);
    assert_eq!(dynamic.warnings(), [""; 0]);
    let experts = bind(&folder("mxfp4"), auto).unwrap();
    for role in [WeightRole::ExpertGate, WeightRole::ExpertUp, WeightRole::ExpertDown] {
        assert_eq!(experts.info(Key::indexed(0, role, 3)).unwrap().shape.dtype, DType::MXFP4);
    }
    assert_eq!(experts.warnings(), [""; 0]);
}

/// A copy of a folder that may be changed.
struct Copy(tempfile::TempDir);

impl Copy {
    fn of(name: &str) -> Copy {
        let dir = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(folder(name).join(file), dir.path().join(file)).unwrap();
        }
        Copy(dir)
    }

    fn config(self, change: impl FnOnce(&mut Value)) -> Copy {
        let path = self.0.path().join("config.json");
        let mut config = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut config);
        std::fs::write(path, config.to_string()).unwrap();
        self
    }

    /// Changes a tensor's entry of the header and its bytes.
    fn tensor(self, name: &str, change: impl FnOnce(&mut Value, &mut [u8])) -> Copy {
        let path = self.0.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&bytes[8..end]).unwrap();
        let mut entry = header.as_object_mut().unwrap().remove(name).unwrap();
        let at = |i: usize| end + entry["data_offsets"][i].as_u64().unwrap() as usize;
        let range = at(0)..at(1);
        change(&mut entry, &mut bytes[range]);
        if let Some(name) = entry["name"].take().as_str().or(Some(name)).filter(|n| !n.is_empty()) {
            entry.as_object_mut().unwrap().remove("name");
            header[name] = entry;
        }
        let header = header.to_string();
        let head = (header.len() as u64).to_le_bytes();
        std::fs::write(path, [&head[..], header.as_bytes(), &bytes[end..]].concat()).unwrap();
        self
    }

    /// Sets the first bytes of a tensor.
    fn bytes(self, name: &str, first: &[u8]) -> Copy {
        self.tensor(name, |_, bytes| bytes[..first.len()].copy_from_slice(first))
    }

    fn without(self, name: &str) -> Copy {
        self.tensor(name, |entry, _| entry["name"] = json!(""))
    }

    fn refusal(&self) -> String {
        bind(self.0.path(), BindOptions::default()).err().unwrap()
    }
}

fn says(text: &str, words: &[&str]) {
    assert!(!text.contains('\n'), "{text}");
    words.iter().for_each(|w| assert!(text.contains(w), "{w:?} is not in {text:?}"));
}

const Q: &str = "model.layers.0.self_attn.q_proj.";

fn q(part: &str) -> String {
    format!("{Q}{part}")
}

#[test]
fn what_is_missing_or_of_another_type_is_named() {
    let fp8 = |part: &str| Copy::of("fp8-tensor").without(&q(part));
    says(&fp8("weight_scale").refusal(), &["q_proj.weight_scale, which", "q_proj.weight needs"]);
    for (name, part) in [
        ("gptq-order", "scales"),
        ("gptq-order", "qzeros"),
        ("awq-gemv", "qzeros"),
        ("compressed-4-bits", "weight_shape"),
        ("compressed-8-bits", "weight_scale"),
        ("mlx-4-bits-32", "biases"),
    ] {
        says(&Copy::of(name).without(&q(part)).refusal(), &[&q(part), "no tensor"]);
    }
    let experts = "model.layers.0.mlp.experts.down_proj_scales";
    says(&Copy::of("mxfp4").without(experts).refusal(), &[experts]);
    // A type that is not the config's.
    let typed = |name: &str, part: &str, dtype: &str| {
        Copy::of(name).tensor(&q(part), |entry, _| entry["dtype"] = json!(dtype)).refusal()
    };
    says(&typed("fp8-tensor", "weight", "F8_E5M2"), &[&q("weight"), "F8_E5M2"]);
    says(&typed("fp8-tensor", "weight", "I8"), &[&q("weight"), "I8"]);
    says(&typed("compressed-fp8", "weight", "U8"), &[&q("weight"), "U8"]);
    says(&typed("gptq-order", "qweight", "U32"), &[&q("qweight"), "U32"]);
    says(&typed("mlx-4-bits-32", "weight", "F32"), &[&q("weight"), "[64, 8]"]);
    says(&typed("fp8-blocks", "weight_scale_inv", "I32"), &[&q("weight_scale_inv"), "I32"]);
}

#[test]
fn scales_that_are_no_numbers_or_0_are_refused() {
    let f16 = |x: u16| x.to_le_bytes().to_vec();
    let f32 = |x: f32| x.to_le_bytes().to_vec();
    for (name, part, bytes, bad) in [
        ("gptq-order", "scales", f16(0x7e00), "NaN"),
        ("gptq-8-bits", "scales", f16(0x7c00), "inf"),
        ("awq-gemv", "scales", f16(0), "0"),
        ("compressed-4-bits", "weight_scale", f16(0xfc00), "-inf"),
        ("compressed-8-bits", "weight_scale", f16(0), "0"),
        ("compressed-fp8", "weight_scale", f16(0x7fc0), "NaN"),
        ("fp8-tensor", "weight_scale", f32(f32::INFINITY), "inf"),
        ("fp8-blocks", "weight_scale_inv", f32(0.0), "0"),
        ("mlx-4-bits-64", "scales", f16(0x7e00), "NaN"),
        ("mlx-8-bits-64", "biases", f16(0x7c00), "inf"),
    ] {
        let told = Copy::of(name).bytes(&q(part), &bytes).refusal();
        says(&told, &["a scale of", "q_proj.", &format!("is {bad} (output 0, group 0)")]);
    }
    let scales = "model.layers.0.mlp.experts.down_proj_scales";
    says(&Copy::of("mxfp4").bytes(scales, &[255]).refusal(), &["down_proj_blocks is NaN"]);
}

/// Weights are not read before they are asked for, so this is told when they are.
#[test]
fn floats_that_are_no_numbers_are_told_when_they_are_read() {
    for name in ["fp8-tensor", "fp8-blocks", "compressed-fp8"] {
        let copy = Copy::of(name).bytes(&q("weight"), &[0x7f]);
        let store = bind(copy.0.path(), BindOptions::default()).unwrap();
        let told =
            |role| store.weight(&Key::layer(0, role).to_string()).err().map(|e| e.to_string());
        says(&told(WeightRole::Q).unwrap(), &[&q("weight"), "NaN"]);
        assert_eq!(told(WeightRole::K), None);
    }
}

#[test]
fn orders_of_inputs_are_checked() {
    for (name, part) in [("gptq-order", "g_idx"), ("compressed-4-bits-order", "weight_g_idx")] {
        let part = q(part);
        for (group, shown) in [(2i32, "group 2"), (-1, "group -1"), (i32::MAX, "group 2147483647")]
        {
            let told = Copy::of(name).bytes(&part, &group.to_le_bytes()).refusal();
            says(&told, &[&part, shown, "there are 2 groups"]);
        }
        let short = |entry: &mut Value, _: &mut [u8]| {
            let from = entry["data_offsets"][0].as_u64().unwrap();
            entry["shape"] = json!([60]);
            entry["data_offsets"] = json!([from, from + 240]);
        };
        says(&Copy::of(name).tensor(&part, short).refusal(), &[&part, "[60]", "[64]"]);
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let shaped = |name: &str, part: &str, shape: Value| {
        Copy::of(name).tensor(&q(part), |entry, _| entry["shape"] = shape).refusal()
    };
    says(&shaped("gptq-order", "qzeros", json!([4, 4])), &["qzeros", "4 or 8 bits"]);
    says(&shaped("gptq-order", "qweight", json!([16, 32])), &["q_proj"]);
    says(&shaped("awq-gemv", "qweight", json!([32, 16])), &["q_proj"]);
    says(&shaped("compressed-4-bits", "weight_scale", json!([32, 4])), &[&q("weight_scale")]);
    says(&shaped("fp8-tensor", "weight", json!([32, 128])), &["q_proj.weight"]);
    says(&shaped("compressed-fp8", "weight_scale", json!([8, 8])), &[&q("weight_scale"), "[8, 8]"]);
    says(&shaped("mlx-4-bits-32", "weight", json!([32, 16])), &[&q("scales"), "[32, 2]"]);
    let other = |config: &mut Value| config["quantization_config"]["group_size"] = json!(48);
    says(&Copy::of("awq-gemv").config(other).refusal(), &["q_proj.qweight", "groups of 48"]);
    let experts = |config: &mut Value| config["num_local_experts"] = json!(3);
    says(&Copy::of("mxfp4").config(experts).refusal(), &["mlp.router.weight"]);
}

#[test]
fn other_quantizations_are_refused_by_name() {
    let with = |key: &str, value: Value| {
        Copy::of("mxfp4-floats").config(|config| config[key] = value).refusal()
    };
    let method = |q: Value| with("quantization_config", q);
    for (q, name) in [
        (json!({"quant_method": "bitsandbytes", "load_in_4bit": true}), "\"bitsandbytes\""),
        (json!({"quant_method": "hqq"}), "\"hqq\""),
        (json!({"quant_method": "exl2", "bits": 4.0}), "\"exl2\""),
        (json!({"quant_method": "exl3"}), "\"exl3\""),
        (json!({"quant_method": "torchao"}), "\"torchao\""),
        (json!({"quant_method": "auto-round", "packing_format": "auto_round"}), "\"auto_round\""),
        (json!({"quant_method": "modelopt", "quant_algo": "NVFP4"}), "\"modelopt\""),
        (json!({"quant_method": "gptq", "bits": 3}), "3 bits"),
        (json!({"quant_method": "awq", "bits": 4, "version": "gemv_fast"}), "\"gemv_fast\""),
        (json!({"quant_method": "fp8", "fmt": "e5m2"}), "\"e5m2\""),
        (json!({"quant_method": "compressed-tensors", "format": "marlin-24"}), "\"marlin-24\""),
        (
            json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
            "\"nvfp4-pack-quantized\"",
        ),
        (
            json!({"quant_method": "compressed-tensors", "transform_config": {"a": 1}}),
            "transform_config",
        ),
        (
            json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}),
            "sparse-24-bitmask",
        ),
        (json!({}), "\"unknown\""),
    ] {
        says(&method(q), &[name, "is not supported", "compressed-tensors, mxfp4, mlx"]);
    }
    says(&with("quantization", json!({"bits": 4, "mode": "mxfp4"})), &["mlx mode \"mxfp4\""]);
    says(&with("quantization", json!({"bits": 3, "group_size": 64})), &["\"mlx\" with 3 bits"]);
    for key in ["quantize_config", "weight_compression", "sparsity_config", "quantizer"] {
        says(&with(key, json!({"a": 1})), &[key, "is not supported"]);
    }
    // What says that nothing is quantized is no reason.
    let off = |config: &mut Value| {
        config["quantization_config"] = Value::Null;
        config["use_cache_quantization"] = json!(false);
        config["quantization_bit"] = json!(0);
    };
    assert!(bind(Copy::of("mxfp4-floats").config(off).0.path(), BindOptions::default()).is_ok());
}

#[test]
fn one_file_counts_more_than_an_index_of_absent_ones() {
    let copy = Copy::of("compressed-8-bits");
    let index = json!({"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}});
    std::fs::write(copy.0.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    assert!(bind(copy.0.path(), BindOptions::default()).is_ok());
    std::fs::remove_file(copy.0.path().join("model.safetensors")).unwrap();
    says(&copy.refusal(), &["model-00001-of-00002.safetensors"]);
}

#[test]
fn numbers_that_only_python_writes_are_named_where_they_are_used() {
    let copy = Copy::of("compressed-8-bits");
    let path = copy.0.path().join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let with = |line: &str| std::fs::write(&path, text.replacen('{', line, 1)).unwrap();
    with(r#"{"time_step_limit": [0.0, Infinity], "router_jitter": NaN,"#);
    assert!(bind(copy.0.path(), BindOptions::default()).is_ok());
    std::fs::write(&path, text.replace("10000.0", "-Infinity")).unwrap();
    says(&copy.refusal(), &["rope_theta", "-Infinity", "finite number"]);
}
