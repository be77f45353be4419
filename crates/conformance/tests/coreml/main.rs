//! Core ML packages: an interpreter that knows nothing of Troika runs them, and coremltools reads them.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod host;
mod interpreter;
#[path = "../setup/mod.rs"]
mod setup;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use half::f16;
use prost::Message;
use troika::graph::DType;
use troika::model::lower::SegmentKind as S;
use troika::npu::mil::proto::{FeatureDescription, Operation};
use troika::npu::mil::{CoreMlFunction, CoreMlRuntime, PackageOptions, PackageWeights};
use troika::npu::{Rewrite, Rewrites};
use troika::plan::{Dispatch, ExpertGroupPlan, ExpertSplit, Overflow, Plan, Rule, Split, Strategy};
use troika::weights::{CacheFile, CacheFolder, CacheKind, Quant, WeightStore};
use troika::{
    CoreMlOptions, Described, Error, ExpertFunctions, Model, OpenOptions, describe, export_core_ml,
    make_plan,
};

use host::{Host, Values};
use interpreter::Interpreter;
use setup::{golden, golden_dir};

/// Of the largest logit, what halves may change.
const TOLERANCE: f32 = 0.01;

fn rewrites(names: &str) -> Rewrites {
    Rewrites(names.split(',').map(|name| name.parse::<Rewrite>().unwrap()).collect())
}

/// The options of the command, with 64 positions.
fn usual() -> CoreMlOptions {
    CoreMlOptions {
        head_inside: true,
        experts: None,
        package: PackageOptions {
            functions: [("prefill_8", 8), ("prefill_16", 16), ("decode", 1)]
                .map(|(name, rows)| (name.to_string(), rows))
                .into(),
            positions: 64,
            stateful: true,
            weights: PackageWeights::F16,
            rewrites: Rewrites::of_core_ml(),
        },
    }
}

fn export(model: &Path, out: &Path, options: &CoreMlOptions) -> Result<PathBuf, Error> {
    let described = describe(model, troika::weights::BindOptions::default())?;
    export_core_ml(&described.spec, &described.store, out, options, &|| true)?;
    Ok(out.to_path_buf())
}

/// The logits of the prompt's last token and of each greedy token after it, relative to the reference:
/// the largest difference, and whether all tokens are the reference's.
fn against_reference(name: &str, options: &CoreMlOptions) -> (f32, bool, Vec<Vec<f32>>) {
    let dir = tempfile::tempdir().unwrap();
    let package = export(&golden_dir(name), &dir.path().join("m.mlpackage"), options).unwrap();
    let golden = golden(name);
    let vocab = golden.logits.len() / golden.input_ids.len();
    let mut host = Host::open(&package);
    let last = &golden.logits[golden.logits.len() - vocab..];
    let mut all = vec![host.feed(&golden.input_ids)];
    let largest = |values: &[f32]| values.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
    let far = all[0].iter().zip(last).fold(0.0_f32, |far, (a, b)| far.max((a - b).abs()));
    // Where the package's best token is another one, both must be as near as halves let them be: the
    // last digits of exponentials differ between machines.
    let mut same = true;
    for token in &golden.greedy {
        let logits = all.last().unwrap();
        let best = (0..vocab).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        let margin = (logits[best] - logits[*token as usize]) / largest(logits);
        if margin > 0.0 && margin < TOLERANCE {
            println!("{name}: {best} instead of {token}, by {margin} of the largest logit");
        }
        same &= margin < TOLERANCE;
        if host.at < 64 {
            let next = host.feed(&[*token]);
            all.push(next);
        }
    }
    (far / largest(last), same, all)
}

#[test]
fn packages_compute_what_models_do() {
    for name in
        ["llama-3.2", "qwen2.5", "qwen3", "exaone-4", "smollm3", "gemma-2", "gemma-3", "phi-3"]
    {
        let (far, same, stateful) = against_reference(name, &usual());
        assert!(far < TOLERANCE && same, "{name}: {far}, {same}");
        let mut stateless = usual();
        stateless.package.stateful = false;
        let (far, same, other) = against_reference(name, &stateless);
        assert!(far < TOLERANCE && same, "{name}, stateless: {far}, {same}");
        let apart = stateful.iter().flatten().zip(other.iter().flatten());
        let apart = apart.fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
        let most = stateful.iter().flatten().fold(0.0_f32, |most, v| most.max(v.abs()));
        assert!(apart <= 0.004 * most, "{name}: stateless is {apart} of {most} off");
    }
}

/// What a switch changes is in no result: each alone, all, and none.
#[test]
fn rewrites_keep_the_meaning() {
    let all =
        "pow-to-mul,scale-norms,scale-residual,fold-epsilon,pad-cache,guard-values,slice-q=8:3";
    let also = ["none", "linear-as-conv", "multiples-of-16", all];
    for names in all.split(',').chain(also) {
        let first = "llama-3.2 qwen2.5 qwen3 exaone-4 smollm3 gemma-2 gemma-3 phi-3".split(' ');
        let of_2026 = "apertus arcee cohere-2 gemma-4 glm-4 granite granite-swa hunyuan-dense ministral-3 \
                   nemotron olmo-3 youtu";
        let of_2026 = of_2026.split(' ').map(|name| format!("../golden-2026/{name}"));
        for name in first.map(String::from).chain(of_2026) {
            let name = &*name;
            let mut options = usual();
            options.package.rewrites = rewrites(names);
            let (far, same, _) = against_reference(name, &options);
            assert!(far < TOLERANCE && same, "{name}, {names}: {far}, {same}");
        }
    }
}

#[test]
fn weights_of_fewer_bits_are_near_and_those_stored_are_exact() {
    use PackageWeights as W;
    let with = |weights| {
        let mut options = usual();
        options.package.weights = weights;
        options
    };
    for (weights, most) in [(W::Int8, 0.06), (W::Int4(Some(32)), 0.6), (W::Int4(None), 0.9)] {
        let (far, _, _) = against_reference("llama-3.2", &with(weights));
        assert!(far < most && far > 0.0, "{}: {far}", weights.name());
    }
    // Blocks of the file, once as they are and once as halves.
    let dir = tempfile::tempdir().unwrap();
    let model = setup::root("tests/gguf/llama-q4_0.gguf");
    let mut runs = Vec::new();
    for weights in [W::F16, W::Stored] {
        let out = dir.path().join(format!("{}.mlpackage", weights.name()));
        let package = export(&model, &out, &with(weights)).unwrap();
        runs.push(Host::open(&package).feed(&[1, 5, 9, 3, 7]));
    }
    let most = runs[0].iter().fold(0.0_f32, |most, v| most.max(v.abs()));
    let far = runs[0].iter().zip(&runs[1]).fold(0.0_f32, |far, (a, b)| far.max((a - b).abs()));
    // A scale times a number is rounded to a half, as the weight itself is.
    assert!(far <= 0.002 * most, "{far} of {most}");
}

/// Experts in the groups of a plan, which the package names.
#[test]
fn groups_of_a_plan_are_functions() {
    let (dir, model) = (tempfile::tempdir().unwrap(), golden_dir("qwen3-moe"));
    let options = OpenOptions { devices: setup::on(&["cpu"]), ..OpenOptions::default() };
    let mut plan = make_plan(&model, &options).unwrap().plan;
    let groups = [(vec![5, 1], 8), (vec![2], 16)];
    let groups = groups.map(|(experts, rows)| ExpertGroupPlan::new("cpu", experts, rows)).into();
    let (overflow, dispatch, expected) = (Overflow::Cpu, Dispatch::PerChunk, Vec::new());
    let split = ExpertSplit { groups, overflow, dispatch, expected };
    plan.prefill.rules[0].split = Some(Split::Experts(split));
    let mut options = usual();
    options.experts = Some(ExpertFunctions::Planned(Box::new(plan)));
    let package = export(&model, &dir.path().join("m.mlpackage"), &options).unwrap();
    let about = host::described(&package).description.unwrap().metadata.unwrap().user_defined;
    assert_eq!(about["experts_2_0"], "experts 5,1, 8 rows each");
    assert_eq!(about["experts_2_1"], "experts 2, 16 rows each");
    let mut rows = vec![f16::ZERO; 16 * 80];
    rows.iter_mut().enumerate().for_each(|(i, v)| *v = f16::from_f32((i % 7) as f32 - 3.0));
    let run = |name: &str, rows: &[f16]| {
        let mut made = vec![f16::ZERO; rows.len()];
        let inputs = [("packed_rows", bytemuck::cast_slice(rows))];
        let outputs = &mut [("expert_rows", bytemuck::cast_slice_mut(&mut made))];
        let mut function = Interpreter.open(&package, name).unwrap();
        function.predict(&inputs, None, outputs).unwrap();
        made
    };
    // The second half of the first group is expert 1, not 2.
    let (both, other) = (run("experts_0_0", &rows), run("experts_0_1", &rows));
    assert!(both[8 * 80..] != other[8 * 80..] && both.iter().any(|v| v.to_f32().abs() > 0.01));
}

/// A number that halves do not hold, and what somebody ends, leave nothing behind.
#[test]
fn damaged_weights_and_ended_exports_write_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (dir.path().join("model"), dir.path().join("m.mlpackage"));
    std::fs::create_dir(&model).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden_dir("llama-3.2").join(file), model.join(file)).unwrap();
    }
    let good = std::fs::read(model.join("model.safetensors")).unwrap();
    let entries = troika::weights::parse_safetensors(&good, good.len()).unwrap();
    for name in ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"] {
        for wrong in [f32::NAN, f32::INFINITY, 1e30] {
            let mut bytes = good.clone();
            let at = entries[name].range.start + 8;
            bytes[at..at + 4].copy_from_slice(&wrong.to_le_bytes());
            std::fs::write(model.join("model.safetensors"), bytes).unwrap();
            for weights in [PackageWeights::F16, PackageWeights::Int4(None)] {
                let mut options = usual();
                options.package.weights = weights;
                let made = export(&model, &out, &options);
                if wrong == 1e30 && name.contains("norm") {
                    continue;
                }
                let why = made.unwrap_err().to_string();
                assert!(why.contains(" has ") && why.contains("damaged"), "{why}");
            }
        }
    }
    let described = describe(&golden_dir("qwen3"), troika::weights::BindOptions::default());
    let Described { spec, store, .. } = described.unwrap();
    // A folder that nobody writes to any more, and one that somebody does.
    for name in [".coreml-left", ".coreml-used"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::fs::File::create(dir.path().join(".coreml-left/lock")).unwrap();
    let used = std::fs::File::create(dir.path().join(".coreml-used/lock")).unwrap();
    used.lock().unwrap();
    let other = dir.path().join("other.mlpackage");
    let ended = export_core_ml(&spec, &store, &other, &usual(), &|| false).unwrap_err();
    assert!(ended.to_string().contains("cancelled"), "{ended}");
    assert!(!other.exists() && !dir.path().join(".coreml-left").exists());
    let begun = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name());
    let begun: Vec<_> = begun.filter(|n| n.to_string_lossy().starts_with(".coreml-")).collect();
    assert_eq!(begun, [".coreml-used"]);
}

/// The caches of layers with windows hold no more positions than these see.
#[test]
fn windows_have_caches_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let package = export(&golden_dir("gemma-3"), &dir.path().join("m.mlpackage"), &usual());
    let functions = host::described(&package.unwrap()).description.unwrap().functions;
    for function in functions {
        let of = |f: &FeatureDescription| {
            let state = f.feature_type.as_ref().unwrap().state_type.as_ref().unwrap();
            (f.name.clone(), state.array_type.as_ref().unwrap().shape[2])
        };
        let caches: Vec<(String, i64)> = function.state.iter().map(of).collect();
        let expected = ["key_cache", "value_cache"].map(|name| (name.to_string(), 64));
        let of_window = ["key_cache", "value_cache"].map(|name| (format!("{name}_window_8"), 8));
        assert_eq!(caches, [expected, of_window].concat());
    }
    // Where layers keep other shapes, also windows that hold all positions.
    for name in ["gemma-4-moe", "mimo-v2-flash"] {
        let mut options = usual();
        options.package.positions = 16;
        let out = dir.path().join(format!("{name}.mlpackage"));
        let package = export(&setup::root("tests/golden-2026").join(name), &out, &options).unwrap();
        let functions = host::described(&package).description.unwrap().functions;
        let states: Vec<&str> = functions.iter().flat_map(|f| &f.state).map(|s| &*s.name).collect();
        assert!(states.contains(&"key_cache_window_16"), "{name}: {states:?}");
    }
}

/// Four functions have the weights of one.
#[test]
fn weights_are_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = |functions: &[(&str, usize)], name: &str| {
        let mut options = usual();
        options.package.functions = functions.iter().map(|(n, r)| ((*n).into(), *r)).collect();
        let described = describe(&golden_dir("qwen3"), troika::weights::BindOptions::default());
        let Described { spec, store, .. } = described.unwrap();
        let package = export_core_ml(&spec, &store, &dir.path().join(name), &options, &|| true);
        package.unwrap().weight_bytes as f64
    };
    let one = bytes(&[("decode", 1)], "one.mlpackage");
    let four = [("decode", 1), ("prefill_8", 8), ("prefill_16", 16), ("prefill_32", 32)];
    let four = bytes(&four, "four.mlpackage");
    assert!(four <= 1.02 * one, "{four} of {one}");
}

#[test]
fn what_cannot_be_written_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("m.mlpackage");
    // What NPUMoE says of PhiMoE: sixteen experts in one graph are the CPU's.
    let config = troika::model::presets::config("phi-3.5-moe").unwrap();
    let spec = troika::model::families::from_config(&config).unwrap().spec;
    let store = WeightStore::synthetic_lazy(&spec, DType::BF16, 0, Quant::None);
    let mut options = usual();
    let large = "and a package's file takes 4.3; leave experts to another device";
    for (experts, says) in [(16, "put fewer experts into a group"), (4, large)] {
        options.experts = Some(ExpertFunctions::Even { experts, capacity: 64 });
        let why = export_core_ml(&spec, &store, &out, &options, &|| true).unwrap_err().to_string();
        assert!(why.contains(says), "{why}");
    }
    // The table that rows are looked up in is halves, whatever products have.
    let config = troika::model::presets::config("llama-3-8b").unwrap();
    let spec = troika::model::families::from_config(&config).unwrap().spec;
    let store = WeightStore::synthetic_lazy(&spec, DType::BF16, 0, Quant::None);
    let mut options = usual();
    options.package.weights = PackageWeights::Int4(None);
    let why = export_core_ml(&spec, &store, &out, &options, &|| true).unwrap_err().to_string();
    assert!(
        why.contains("its weights are 4.8 GB, and a package's file takes 4.3; a smaller"),
        "{why}"
    );
    options.package.rewrites = rewrites("linear-as-conv");
    let why = export(&golden_dir("qwen3"), &out, &options).unwrap_err().to_string();
    assert!(why.starts_with("--weights int4: linear-as-conv"), "{why}");
    let recurrent = setup::root("tests/golden-2026/lfm2");
    let why = export(&recurrent, &out, &usual()).unwrap_err().to_string();
    assert!(why.contains("its state is no cache of positions"), "{why}");
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "something is left");
    std::fs::create_dir(&out).unwrap();
    let why = export(&golden_dir("qwen3"), &out, &usual()).unwrap_err().to_string();
    assert!(why.ends_with("exists; give another name with -o, or remove it"), "{why}");
    let nowhere = dir.path().join("none/m.mlpackage");
    let why = export(&golden_dir("qwen3"), &nowhere, &usual()).unwrap_err().to_string();
    assert!(why.contains("none"), "{why}");
}

/// The engine's graphs as packages: a prompt there and decoding on the CPU, or all of both.
#[test]
fn prompts_on_core_ml_are_those_of_one_device() {
    for (name, strategy) in [
        ("llama-3.2", "prefill-decode=npu:cpu"),
        ("gemma-3", "prefill-decode=npu:cpu"),
        ("qwen3", "one-device=npu"),
    ] {
        let mut devices = setup::on(&["npu:coreml", "cpu"]);
        devices.npu.core_ml = Some(Arc::new(Interpreter));
        devices.npu.row_buckets = vec![1, 16];
        devices.npu.attention = true;
        let strategy = Strategy::parse(strategy).unwrap();
        let options =
            OpenOptions { devices, strategy, context: Some(64), ..OpenOptions::default() };
        let case = setup::case(name);
        let report = conformance::golden::check_with(&case, &options, None).unwrap();
        assert!(report.greedy && report.error < TOLERANCE, "{name}: {report}");
    }
}

/// Packages of a device stay in the cache, with what Core ML makes of them beside.
#[test]
fn packages_are_kept_for_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let folder = CacheFolder::new(dir.path());
    let kept = || -> Vec<(PathBuf, SystemTime)> {
        let packages = folder.files().unwrap().into_iter();
        let packages = packages.filter(|f| f.kind == CacheKind::Package);
        let written =
            |f: &CacheFile| f.path.join("graphs.mlpackage").metadata().unwrap().modified();
        packages.map(|f| (f.path.clone(), written(&f).unwrap())).collect()
    };
    let mut runs = Vec::new();
    for rows in [16, 16, 8] {
        let mut devices = setup::on(&["npu:coreml"]);
        devices.npu.core_ml = Some(Arc::new(Interpreter));
        devices.npu.row_buckets = vec![1, rows];
        devices.npu.attention = true;
        let cache = Some(folder.clone());
        let options = OpenOptions { devices, cache, context: Some(64), ..OpenOptions::default() };
        let model = Model::open(&golden_dir("qwen3"), &options).unwrap();
        let logits = conformance::golden::all_logits(&model, &golden("qwen3").input_ids).unwrap();
        runs.push((kept(), conformance::golden::bits(&logits)));
    }
    assert!(runs[0].0.len() == 1 && runs[0] == runs[1], "the package is made anew");
    assert_eq!(runs[2].0.len(), 2, "other rows are another package");
    assert_eq!(folder.files().unwrap().iter().filter(|f| f.kind == CacheKind::Partial).count(), 0);
}

/// A sum of layers' results above what halves hold, as of the trained Gemma 3.
#[test]
fn large_sums_do_not_overflow() {
    let (dir, from) = (tempfile::tempdir().unwrap(), golden_dir("gemma-3"));
    let model = dir.path().join("large");
    std::fs::create_dir(&model).unwrap();
    std::fs::copy(from.join("config.json"), model.join("config.json")).unwrap();
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let entries = troika::weights::parse_safetensors(&bytes, bytes.len()).unwrap();
    for (_, entry) in entries.iter().filter(|(name, _)| name.contains(".post_")) {
        for weight in bytes[entry.range.clone()].as_chunks_mut::<4>().0 {
            *weight = (f32::from_le_bytes(*weight) + 15_000.0).to_le_bytes();
        }
    }
    std::fs::write(model.join("model.safetensors"), bytes).unwrap();
    let ids: Vec<u32> = golden("gemma-3").input_ids;
    let logits = |devices: &[&str], rewrites: Rewrites| {
        let mut devices = setup::on(devices);
        devices.npu.core_ml = Some(Arc::new(Interpreter));
        devices.npu.attention = true;
        devices.npu.rewrites = rewrites;
        let options = OpenOptions { devices, context: Some(64), ..OpenOptions::default() };
        let opened = Model::open(&model, &options).unwrap();
        conformance::golden::all_logits(&opened, &ids).unwrap()
    };
    let expected = logits(&["cpu"], Rewrites::default());
    let far = |logits: &[f32]| conformance::golden::relative_error(logits, &expected);
    let npu = logits(&["npu:coreml"], Rewrites::of_core_ml());
    assert!(far(&npu) < TOLERANCE, "{}", far(&npu));
    let others = Rewrites::of_core_ml().0.into_iter().filter(|r| *r != Rewrite::ScaleResidual);
    let undivided = logits(&["npu:coreml"], Rewrites(others.collect()));
    assert!(undivided.iter().any(|v| !v.is_finite()), "nothing overflows: the test tells nothing");
    let package = export(&model, &dir.path().join("m.mlpackage"), &usual()).unwrap();
    let last = &expected[expected.len() / ids.len() * (ids.len() - 1)..];
    let package = conformance::golden::relative_error(&Host::open(&package).feed(&ids), last);
    assert!(package < TOLERANCE, "{package}");
}

/// Groups of experts of an engine as functions of packages; what has no room is the CPU's.
#[test]
fn groups_of_experts_are_those_of_the_cpu() {
    for (name, dispatch) in [("qwen3-moe", Dispatch::PerChunk), ("gpt-oss", Dispatch::LayerMajor)] {
        let mut devices = setup::on(&["cpu", "npu:coreml"]);
        devices.npu.core_ml = Some(Arc::new(Interpreter));
        let strategy = Strategy::parse("one-device=cpu").unwrap();
        let options = OpenOptions { devices, strategy, context: Some(64), ..Default::default() };
        let change = |plan: &mut Plan| {
            let group =
                |experts: &[usize], rows| ExpertGroupPlan::new("npu", experts.to_vec(), rows);
            let groups = vec![group(&[1, 0, 3], 4), group(&[2], 6)];
            let (overflow, expected) = (Overflow::Cpu, Vec::new());
            let split = ExpertSplit { groups, overflow, dispatch, expected };
            let of_all = plan.prefill.rules[0].clone();
            let segments = Some(vec![S::Experts]);
            let rule = Rule { segments, split: Some(Split::Experts(split)), ..of_all };
            let others = [S::Embed, S::Qkv, S::Attention, S::AttnOut, S::Router, S::Head];
            plan.prefill.rules[0].segments = Some(others.into());
            plan.prefill.rules.push(rule);
            plan.devices = vec!["cpu".into(), "npu".into()];
        };
        let report = conformance::golden::check_with(&setup::case(name), &options, Some(&change));
        let report = report.unwrap();
        assert!(report.greedy && report.error < TOLERANCE, "{name}: {report}");
    }
}

/// What a model's router says of a row, from its file of weights (Qwen3-MoE).
fn routed(
    weights: &HashMap<String, Vec<f32>>,
    layer: usize,
    x: &[f32],
) -> (Vec<f32>, Vec<(usize, f32)>) {
    let of = |name: &str| &weights[&format!("model.layers.{layer}.{name}.weight")];
    let mean = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let by = (mean + 1e-6).sqrt().recip();
    let normed = x.iter().zip(of("post_attention_layernorm")).map(|(v, w)| v * by * w);
    let normed: Vec<f32> = normed.collect();
    let score = |row: &[f32]| row.iter().zip(&normed).map(|(w, v)| w * v).sum::<f32>().exp();
    let scores: Vec<f32> = of("mlp.gate").chunks(x.len()).map(score).collect();
    let mut best: Vec<usize> = (0..scores.len()).collect();
    best.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    best.truncate(3);
    let sum: f32 = best.iter().map(|e| scores[*e]).sum();
    (normed, best.into_iter().map(|e| (e, scores[e] / sum)).collect())
}

/// A package whose experts are functions, and a host that routes, gathers and scatters.
#[test]
fn experts_are_functions_of_a_package() {
    const GROUP: usize = 3;
    const ROWS: usize = 16;
    let dir = tempfile::tempdir().unwrap();
    let mut options = usual();
    options.experts = Some(ExpertFunctions::Even { experts: GROUP, capacity: ROWS });
    let package = export(&golden_dir("qwen3-moe"), &dir.path().join("m.mlpackage"), &options);
    let package = package.unwrap();
    let bytes = std::fs::read(golden_dir("qwen3-moe").join("model.safetensors")).unwrap();
    let floats = |range: std::ops::Range<usize>| bytemuck::pod_collect_to_vec(&bytes[range]);
    let entries = troika::weights::parse_safetensors(&bytes, bytes.len()).unwrap();
    let weights: HashMap<String, Vec<f32>> =
        entries.iter().map(|(name, e)| (name.clone(), floats(e.range.clone()))).collect();
    let mut parts: Vec<Host> =
        (0..4).map(|part| Host::of_part(&package, &format!("part_{part}_"))).collect();
    let mut groups: HashMap<(usize, usize), Box<dyn CoreMlFunction>> = HashMap::new();
    for (layer, first) in (0..3).flat_map(|l| (0..8).step_by(GROUP).map(move |f| (l, f))) {
        let function =
            Interpreter.open(&package, &format!("experts_{layer}_{}", first / GROUP)).unwrap();
        groups.insert((layer, first), function);
    }
    let mut feed = |tokens: &[u32]| {
        let (mut left, mut logits) = (tokens, Vec::new());
        while !left.is_empty() {
            let (now, later) = left.split_at(parts[0].rows_now(left.len()));
            let mut x = parts[0].run(now, &Values::new());
            for layer in 0..3 {
                let (name, mut all) = x.drain().next().unwrap();
                let cols = weights["model.norm.weight"].len();
                all.truncate(now.len() * cols);
                let rows: Vec<_> =
                    all.chunks(cols).map(|row| routed(&weights, layer, row)).collect();
                for ((_, first), function) in groups.iter_mut().filter(|((l, _), _)| *l == layer) {
                    let count = GROUP.min(8 - first);
                    let mut packed = vec![f16::ZERO; count * ROWS * cols];
                    let (mut used, mut places) = (vec![0; count], Vec::new());
                    for (row, (normed, chosen)) in rows.iter().enumerate() {
                        let own =
                            chosen.iter().filter(|(e, _)| (*first..first + count).contains(e));
                        for (expert, weight) in own {
                            let slot = (expert - first) * ROWS + used[expert - first];
                            used[expert - first] += 1;
                            let to = &mut packed[slot * cols..][..cols];
                            to.iter_mut().zip(normed).for_each(|(t, v)| *t = f16::from_f32(*v));
                            places.push((row, slot, *weight));
                        }
                    }
                    let mut made = vec![f16::ZERO; packed.len()];
                    let inputs = [("packed_rows", bytemuck::cast_slice(&packed))];
                    let outputs = &mut [("expert_rows", bytemuck::cast_slice_mut(&mut made))];
                    function.predict(&inputs, None, outputs).unwrap();
                    for (row, slot, weight) in places {
                        let from = made[slot * cols..][..cols].iter();
                        let to = all[row * cols..][..cols].iter_mut();
                        to.zip(from).for_each(|(t, v)| *t += weight * v.to_f32());
                    }
                }
                let next = parts[layer + 1].takes();
                assert_ne!(name, next, "a part takes what experts have added to");
                x = parts[layer + 1].run(now, &Values::from([(next, all)]));
            }
            logits = x.remove("logits").unwrap();
            left = later;
        }
        logits
    };
    let golden = golden("qwen3-moe");
    let vocab = golden.logits.len() / golden.input_ids.len();
    let mut logits: Vec<f32> = feed(&golden.input_ids);
    let expected = &golden.logits[golden.logits.len() - vocab..];
    let most = expected.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
    let far = logits.iter().zip(expected).fold(0.0_f32, |far, (a, b)| far.max((a - b).abs()));
    assert!(far < TOLERANCE * most, "{far} of {most}");
    for token in golden.greedy.iter().take(8) {
        let best = logits.iter().fold(f32::MIN, |most, v| most.max(*v));
        assert!(best - logits[*token as usize] < TOLERANCE * most, "another token than {token}");
        logits = feed(&[*token]);
    }
}

/// coremltools, installed by its name.
fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let dir = setup::root("target/coremltools");
        let install = setup::root(".ci/coremltools");
        let done = Command::new(install).arg(&dir).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        dir.join("bin/python")
    })
}

/// What a script of tests/coreml prints.
fn said_by_coremltools(script: &str, args: &[PathBuf]) -> Vec<String> {
    let script = setup::root("tests/coreml").join(script);
    let out = Command::new(python()).arg(script).args(args).output().unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    said.lines().map(String::from).collect()
}

/// What coremltools says of packages.
fn read_by_coremltools(packages: &[PathBuf]) -> Vec<String> {
    let mut lines = said_by_coremltools("check.py", packages);
    lines.retain(|line| line.contains(".mlpackage: "));
    assert_eq!(lines.len(), packages.len(), "{lines:?}");
    lines
}

/// A change to a package's program.
type Mutation = (&'static str, fn(&mut Operation));

#[test]
fn coremltools_reads_packages_and_refuses_changed_ones() {
    let dir = tempfile::tempdir().unwrap();
    let mut packages = Vec::new();
    for (i, (name, stateful, weights)) in [
        ("llama-3.2", true, PackageWeights::F16),
        ("gemma-3", false, PackageWeights::Int4(None)),
        ("exaone-4", true, PackageWeights::Int4(Some(32))),
        ("phi-3", false, PackageWeights::Int8),
    ]
    .into_iter()
    .enumerate()
    {
        let mut options = usual();
        options.package.stateful = stateful;
        options.package.weights = weights;
        let out = dir.path().join(format!("good{i}.mlpackage"));
        packages.push(export(&golden_dir(name), &out, &options).unwrap());
    }
    let good = packages.len();
    let mutations: [Mutation; 5] = [
        ("mul", |op| op.kind = "no_such_op".into()),
        ("mul", |op| {
            let of = op.outputs[0].value_type.as_mut().unwrap().tensor_type.as_mut().unwrap();
            of.dimensions[0].constant.as_mut().unwrap().size += 1;
        }),
        ("mul", |op| {
            let x = op.inputs.get_mut("x").unwrap();
            x.arguments[0].name = Some("nobody".into());
        }),
        ("linear", |op| drop(op.inputs.remove("weight"))),
        ("const", |op| {
            let blob = op.attributes.get_mut("val").and_then(|v| v.blob_file_value.as_mut());
            blob.into_iter().for_each(|blob| blob.offset += 1 << 40);
        }),
    ];
    for (i, (kind, change)) in mutations.into_iter().enumerate() {
        let out = dir.path().join(format!("bad{i}.mlpackage"));
        export(&golden_dir("llama-3.2"), &out, &usual()).unwrap();
        let mut model = host::described(&out);
        let functions = &mut model.ml_program.as_mut().unwrap().functions;
        let of = functions.get_mut("decode").unwrap().block_specializations.values_mut();
        let ops = of.flat_map(|block| &mut block.operations);
        let has_blob =
            |op: &Operation| op.kind != "const" || op.attributes["val"].blob_file_value.is_some();
        let op = ops.filter(|op| op.kind == kind && has_blob(op)).last().unwrap();
        change(op);
        std::fs::write(out.join("Data/com.apple.CoreML/model.mlmodel"), model.encode_to_vec())
            .unwrap();
        let refused = Interpreter.open(&out, "decode").err();
        assert!(refused.is_some(), "the interpreter opens change {i}");
        packages.push(out);
    }
    let lines = read_by_coremltools(&packages);
    for (i, line) in lines.iter().enumerate() {
        let verdict = if i < good { ": ok " } else { ": refused: " };
        assert!(line.contains(verdict), "{line}");
    }
    assert!(lines[0].contains("coreml_update_state="), "{}", lines[0]);
}

/// coremltools computes operations with its own code, where it folds constants. Packages give the same
/// there as on the interpreter.
#[test]
fn coremltools_computes_the_same() {
    let usually = "pow-to-mul,scale-norms,scale-residual,pad-cache,guard-values";
    let others = "fold-epsilon,linear-as-conv,multiples-of-16,slice-q=8:3";
    for (name, stateful, weights, names) in [
        ("llama-3.2", true, PackageWeights::F16, usually),
        ("gemma-3", false, PackageWeights::Int4(None), usually),
        ("exaone-4", true, PackageWeights::Int4(Some(32)), usually),
        ("phi-3", false, PackageWeights::Int8, usually),
        ("qwen3", true, PackageWeights::F16, others),
        ("gemma-2", true, PackageWeights::F16, "none"),
        ("../golden-2026/apertus", true, PackageWeights::F16, usually),
        ("../golden-2026/nemotron", false, PackageWeights::F16, usually),
    ] {
        let mut options = usual();
        options.package.stateful = stateful;
        options.package.weights = weights;
        options.package.rewrites = rewrites(names);
        let dir = tempfile::tempdir().unwrap();
        let package = export(&golden_dir(name), &dir.path().join("m.mlpackage"), &options).unwrap();
        let runs = dir.path().join("runs");
        std::fs::create_dir(&runs).unwrap();
        let mut host = Host::open(&package);
        host.record = Some(runs.clone());
        let golden = golden(name);
        host.feed(&golden.input_ids);
        golden.greedy.iter().take(2).for_each(|token| drop(host.feed(&[*token])));
        let lines = said_by_coremltools("values.py", &[package, runs]);
        let (by, outputs): (Vec<_>, Vec<_>) =
            lines.iter().partition(|line| line.starts_with("by "));
        assert!(outputs.iter().any(|line| line.contains("-decode logits: ")), "{lines:?}");
        for line in outputs {
            let numbers = line.split_once(": ").and_then(|(_, far)| far.split_once(" of "));
            let [far, most] = <[&str; 2]>::from(numbers.unwrap()).map(|n| n.parse::<f32>());
            assert!(far.unwrap() <= TOLERANCE * most.unwrap(), "{name}: {line}");
        }
        // All but convolutions are coremltools' own.
        let formulas = by.iter().find_map(|line| line.strip_prefix("by formulas:")).unwrap();
        let has_conv = names.contains("linear-as-conv");
        assert_eq!(formulas.split_whitespace().count(), usize::from(has_conv), "{formulas}");
    }
}

/// How packages differ from what coremltools converts from PyTorch, and why.
static OTHERWISE: [(&str, &str); 23] = [
    ("abs: is not in the decoder", "scale-norms"),
    ("clip: is not in the decoder", "another activation"),
    ("constexpr_blockwise_shift_scale: is not in the decoder", "weights of fewer bits"),
    ("conv: is not in the decoder", "linear-as-conv"),
    ("exp: is not in the decoder", "another activation"),
    ("gelu: is not in the decoder", "another activation"),
    ("identity: is never converted", "an output has its own name"),
    ("maximum: is not in the decoder", "scale-norms"),
    ("pow: is not in the decoder", "graphs without pow-to-mul"),
    ("real_div: is not in the decoder", "norms divide by a root, and scale-norms"),
    ("reduce_max: is not in the decoder", "scale-norms"),
    ("relu: is not in the decoder", "another activation"),
    ("rsqrt: epsilon is float16[0], there float32[0]", "either type may be"),
    ("sigmoid: is not in the decoder", "silu is a sigmoid and a product"),
    ("slice_by_index: end_mask is always bound there", "optional: ends are written"),
    ("slice_by_index: stride is not bound there", "optional: ones"),
    ("slice_by_size: is never converted", "slices at a position keep a static shape by it"),
    ("slice_update: begin_mask is always bound there", "optional: no bit is set"),
    ("slice_update: end_mask is always bound there", "optional: ends are written"),
    ("slice_update: squeeze_mask is always bound there", "optional: updates have all axes"),
    ("slice_update: stride is always bound there", "optional: ones"),
    ("sqrt: is not in the decoder", "norms divide by a root"),
    ("tanh: is not in the decoder", "logits with a cap"),
];

#[test]
fn packages_use_operations_as_converted_programs_do() {
    let list = setup::root("tests/coreml/from_torch.txt");
    let others = "fold-epsilon,linear-as-conv,multiples-of-16,slice-q=8:3";
    let mut seen = Vec::new();
    for (name, weights, names) in [
        ("llama-3.2", PackageWeights::F16, "pow-to-mul,scale-norms,pad-cache,guard-values"),
        ("qwen3", PackageWeights::F16, others),
        ("gemma-2", PackageWeights::Int4(Some(32)), "none"),
        ("../golden-2026/apertus", PackageWeights::Int8, "none"),
        ("../golden-2026/nemotron", PackageWeights::F16, "none"),
    ] {
        let mut options = usual();
        options.package.weights = weights;
        options.package.rewrites = rewrites(names);
        let dir = tempfile::tempdir().unwrap();
        let package = export(&golden_dir(name), &dir.path().join("m.mlpackage"), &options).unwrap();
        for line in said_by_coremltools("operations.py", &[list.clone(), package]) {
            let known = OTHERWISE.iter().any(|(known, _)| *known == line);
            assert!(known, "{name}: {line}");
            seen.push(line);
        }
    }
    let unseen = OTHERWISE.iter().find(|(line, _)| !seen.iter().any(|s| s == line));
    assert_eq!(unseen, None, "it is no difference any more");
}
