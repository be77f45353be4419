//! The command's messages about model files that are inconsistent or unusual.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use common::{copy_files, edit_json, ends, fails, in_root, json, root, said, stdout, troika};

/// A copy of a test model with changed fields in its JSON files.
fn copied(name: &str, file: &str, changes: &[(&str, Value)]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_files(&root().join("tests/golden").join(name), dir.path());
    edit_json(&dir.path().join(file), |json| {
        for (field, value) in changes {
            json[field] = value.clone();
        }
    });
    dir
}

/// A copy of a test GGUF file with a changed whole number.
fn gguf(name: &str, key: &str, value: u32) -> TempDir {
    let mut bytes = std::fs::read(root().join("tests/gguf").join(name)).unwrap();
    let at = bytes.windows(key.len()).position(|w| w == key.as_bytes()).unwrap() + key.len();
    assert_eq!(bytes[at..at + 4], 4u32.to_le_bytes(), "a u32");
    bytes[at + 4..at + 8].copy_from_slice(&value.to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.gguf"), bytes).unwrap();
    dir
}

/// The messages of `show` and `run` on stderr; both succeed.
fn told(path: &Path) -> [String; 2] {
    let path = path.display().to_string();
    let run = ["run", &path, "--prompt-ids", "5,6", "-n", "1", "-q"];
    [troika(&["show", &path]), troika(&run)].map(|out| ends(&out, 0, &[]))
}

#[test]
fn tensors_that_nothing_uses_are_told() {
    let cut = gguf("qwen3-moe-q4_k_m.gguf", "qwen3moe.block_count", 1);
    for err in told(&cut.path().join("model.gguf")) {
        assert!(err.contains("of layer 1 are not used, such as blk.1."), "{err}");
        assert!(err.contains("because block_count says that the model has 1 layer "), "{err}");
    }
    for (name, field, value, words) in [
        ("phimoe", "num_hidden_layers", 2.into(), "layer 2 are not used, such as model.layers.2."),
        ("phimoe", "num_hidden_layers", 2.into(), "num_hidden_layers says that the model has 2 "),
        ("deepseek-v2", "n_shared_experts", 0.into(), ".mlp.shared_experts."),
        ("phimoe", "lm_head_bias", false.into(), "tensor lm_head.bias is not used"),
        ("phimoe", "attention_bias", false.into(), "12 tensors are not used, such as model.layers"),
    ] {
        let dir = copied(name, "config.json", &[(field, value)]);
        for err in told(dir.path()) {
            assert!(err.contains(words) && err.trim_end().lines().count() == 1, "{err}");
        }
    }
}

/// Adds F32 tensors of 16 values to a model's weights.
fn add_tensors(dir: &Path, names: &[&str], value: f32) {
    let path = dir.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let (len, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
    let mut header: Value = serde_json::from_slice(header).unwrap();
    let mut data = data.to_vec();
    for name in names {
        let offsets = [data.len(), data.len() + 64];
        header[name] = serde_json::json!({"dtype": "F32", "shape": [16], "data_offsets": offsets});
        data.extend(value.to_le_bytes().repeat(16));
    }
    let mut header = header.to_string();
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(64) - header.len()));
    let len = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&len[..], header.as_bytes(), &data].concat()).unwrap();
}

#[test]
fn tensors_that_need_no_place_are_not_told() {
    let layer = "model.layers.0.self_attn";
    let with = |names: &[&str], value: f32| {
        let dir = copied("exaone-4", "config.json", &[]);
        let names: Vec<String> = names.iter().map(|n| n.replace("LAYER", layer)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        add_tensors(dir.path(), &names, value);
        let [show, run] = told(dir.path());
        assert_eq!(show, run);
        show
    };
    let beside = [
        "LAYER.rotary_emb.inv_freq",
        "LAYER.attn.masked_bias",
        "LAYER.attn.bias",
        "rope_freqs.weight",
        "lm_head.weight",
        "vision_tower.encoder.layers.9.mlp.fc1.weight",
    ];
    assert_eq!(with(&beside, 1.0), "");
    assert_eq!(with(&["LAYER.o_proj.bias"], 0.0), "");
    let told = with(&["LAYER.o_proj.bias"], 1.0);
    assert!(told.contains("tensor model.layers.0.self_attn.o_proj.bias is not used"), "{told}");
}

#[test]
fn ropes_wider_than_a_head_are_refused() {
    for (file, key, dims) in [
        ("phi-2.gguf", "phi2.rope.dimension_count", 31),
        ("phi-2.gguf", "phi2.rope.dimension_count", u32::MAX),
        ("phi-2.gguf", "phi2.rope.dimension_count", 10),
        ("phimoe.gguf", "phimoe.rope.dimension_count", 32),
        ("phimoe.gguf", "phimoe.rope.dimension_count", 8),
    ] {
        let dir = gguf(file, key, dims);
        let out = troika(&["show", &dir.path().join("model.gguf").display().to_string()]);
        ends(&out, 1, &["rope.dimension_count", &dims.to_string()]);
    }
}

/// Unchanged files of all formats and families.
#[test]
fn whole_models_give_no_warning() {
    let files = |folder: &str| std::fs::read_dir(root().join(folder)).unwrap();
    let all =
        ["tests/golden", "tests/variants", "tests/gguf", "models"].into_iter().flat_map(files);
    let all = all.map(|entry| entry.unwrap().path());
    let models = all.filter(|p| p.is_dir() || p.extension().is_some_and(|e| e == "gguf"));
    let mut seen = 0;
    for path in models {
        let out = troika(&["show", &path.display().to_string()]);
        assert!(out.status.success() && out.stderr.is_empty(), "{path:?}: {}", said(&out));
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn recommended_values_that_cannot_be_used_are_told_and_ignored() {
    for (file, key, value, must) in [
        ("generation_config.json", "top_p", Value::from(2), "between 0 and 1"),
        ("generation_config.json", "top_p", "0.5".into(), "a number"),
        ("generation_config.json", "temperature", "x".into(), "a number"),
        ("generation_config.json", "temperature", 1e39.into(), "0 or more"),
        ("generation_config.json", "top_k", (-5).into(), "a whole number"),
        ("generation_config.json", "min_p", 7.into(), "between 0 and 1"),
        ("generation_config.json", "do_sample", "maybe".into(), "true or false"),
        ("generation_config.json", "repetition_penalty", 0.into(), "more than 0"),
        ("generation_config.json", "eos_token_id", 99999.into(), "0 to 256"),
        ("generation_config.json", "eos_token_id", vec![2, 99999].into(), "0 to 256"),
        ("config.json", "eos_token_id", "x".into(), "a token id"),
    ] {
        let dir = copied("qwen3", file, &[(key, value)]);
        let path = dir.path().display().to_string();
        let out = troika(&["run", &path, "--prompt-ids", "5,6", "-n", "1", "-q"]);
        let err = ends(&out, 0, &[file, key, must, "it is ignored"]);
        assert!(err.starts_with("warning: ") && err.trim_end().lines().count() == 1, "{err}");
    }
    // Usual files give no warning.
    let usual = [
        ("top_p", Value::from(0.9)),
        ("top_k", 0.into()),
        ("temperature", Value::Null),
        ("do_sample", true.into()),
        ("eos_token_id", vec![2, 3].into()),
    ];
    let dir = copied("qwen3", "generation_config.json", &usual);
    assert_eq!(told(dir.path())[1], "");
}

/// `show` names what mixes positions, and what layers have beside it.
#[test]
fn what_layers_consist_of_is_named() {
    for (model, words) in [
        ("gemma-4", "keys and values of an earlier layer"),
        ("gemma-4", "gated, an input of 16 for each token"),
        ("gemma-3n", "hidden        32, 4 streams (AltUp), LAuReL of rank 8\n"),
        ("gemma-3n", "dense 96, gated by the largest, an input of 16 for each token"),
        ("lfm2", "a short convolution of 3 taps"),
        ("qwen3.5", "gated delta rule"),
        ("falcon-h1", "beside Mamba-2"),
    ] {
        let shown = stdout(&troika(&["show", &in_root(&format!("tests/golden-2026/{model}"))]));
        assert!(shown.contains(words), "{model}: {shown}");
    }
}

/// An activation's numbers and a layer's factor are tensors: one that is not finite or not supported is
/// named.
#[test]
fn numbers_that_files_hold_are_checked() {
    for (model, tensor, bytes, says) in [
        ("gemma-4", "layer_scalar", f32::NAN.to_le_bytes(), "is NaN, which is not a finite number"),
        ("apertus", "mlp.act_fn.beta", 0.25f32.to_le_bytes(), "xIELU with beta 0.25 is not"),
    ] {
        let from = root().join("tests/golden-2026").join(model);
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(from.join("config.json"), dir.path().join("config.json")).unwrap();
        let mut file = std::fs::read(from.join("model.safetensors")).unwrap();
        let header = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let fields: Value = serde_json::from_slice(&file[8..header]).unwrap();
        let field = &fields[format!("model.layers.0.{tensor}")];
        let at = header + field["data_offsets"][0].as_u64().unwrap() as usize;
        file[at..at + 4].copy_from_slice(&bytes);
        std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
        let out = troika(&["show", &dir.path().display().to_string()]);
        fails(&out, &[says]);
    }
}

/// What `troika export` writes, and what it refuses in a line.
#[test]
fn models_are_exported_to_core_ml() {
    let dir = tempfile::tempdir().unwrap();
    let export = |model: &str, out: &str, flags: &[&str]| {
        let out = dir.path().join(out).display().to_string();
        let model = in_root(&format!("tests/golden/{model}"));
        troika(&[&["export", &model, "--coreml", "-o", &out][..], flags].concat())
    };
    let functions = |out: &std::process::Output| -> Vec<String> {
        let json = json(out);
        let all = json["functions"].as_array().unwrap().iter();
        all.map(|f| f["function"].as_str().unwrap().to_string()).collect()
    };
    // A short context shortens the usual prompt.
    let dense = export("qwen3", "dense.mlpackage", &["-c", "64", "--json"]);
    assert_eq!(functions(&dense), ["prefill_64", "decode"]);
    assert!(dir.path().join("dense.mlpackage/Manifest.json").exists());
    let lengths = ["--prefill", "16,8,16", "-c", "32", "--json", "--state", "stateless"];
    let dense = export("llama-3.2", "lengths.mlpackage", &lengths);
    assert_eq!(functions(&dense), ["prefill_8", "prefill_16", "decode"]);
    let moe = export("mixtral", "moe.mlpackage", &["-c", "32", "--prefill", "8", "--json"]);
    ends(&moe, 0, &["routers and experts are left to another device"]);
    let parts = functions(&moe);
    assert!(parts.contains(&"part_1_prefill_8".into()) && parts.len() % 2 == 0, "{parts:?}");
    let groups = ["-c", "32", "--prefill", "8", "--json", "--expert-groups", "2:4"];
    let moe = functions(&export("mixtral", "groups.mlpackage", &groups));
    assert!(moe.contains(&"experts_0_0".into()) && moe.contains(&"experts_1_1".into()), "{moe:?}");
    for (model, flags, words) in [
        ("qwen3", &["-c", "300"][..], "-c 300: the model has 256 positions"),
        ("qwen3", &["-c", "32", "--prefill", "33"], "--prefill 33: the caches have 32 positions"),
        ("qwen3", &["--expert-groups", "2:4"], "the model has no experts: --expert-groups"),
        ("../golden-2026/lfm2", &[], "its state is no cache of positions"),
        ("none", &[], "no such file or folder"),
    ] {
        let refused = export(model, "refused.mlpackage", flags);
        fails(&refused, &[words]);
    }
    fails(&export("qwen3", "dense.mlpackage", &["-c", "64"]), &["exists; give another name"]);
    fails(&export("qwen3", "a", &[]), &["the name of a package ends with .mlpackage"]);
    fails(&export("qwen3", "no/a.mlpackage", &[]), &["there is no such folder; make it"]);
    let groups = &["--expert-groups", "2"];
    fails(&export("qwen3", "a.mlpackage", groups), &["it is EXPERTS:ROWS, as in 8:64"]);
    fails(&export("qwen3", "a.mlpackage", &["--weights", "int5"]), &["int4-64"]);
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    let out = dir.path().join("shape.mlpackage").display().to_string();
    let shape = ["export", "--synthetic", "qwen3-moe-tiny", "--coreml", "-o", &out, "--json"];
    let small =
        [&shape[..], &["-c", "64", "--expert-groups", "8:16", "--weights", "int4"]].concat();
    assert!(functions(&troika(&small)).contains(&"experts_3_1".into()));
}
