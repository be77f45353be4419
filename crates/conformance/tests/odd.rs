//! Models on a CPU device and deliberately odd virtual ones, by every strategy: the results equal
//! those of the CPU alone.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use conformance::golden::{Case, REFERENCE_TOLERANCE, check, check_with};
use troika::plan::{Plan, Strategy};
use troika::{DeviceOptions, DeviceSpec, Model, OpenOptions, make_plan};

fn on(devices: Vec<DeviceSpec>) -> DeviceOptions {
    DeviceOptions { devices, ..DeviceOptions::default() }
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn odd_devices() -> Vec<PathBuf> {
    let files = std::fs::read_dir(root("socs/odd")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 7, "{files:?}");
    files
}

/// Checks the models by all strategies, with the odd device second or first.
fn all_hold(models: &[&str], policies: &[Strategy]) {
    let cpu: DeviceSpec = "a=cpu".parse().unwrap();
    for file in odd_devices() {
        let odd: DeviceSpec = format!("b=virtual:{}", file.display()).parse().unwrap();
        for strategy in policies {
            for specs in [vec![cpu.clone(), odd.clone()], vec![odd.clone(), cpu.clone()]] {
                let devices = OpenOptions {
                    devices: on(specs.clone()),
                    strategy: strategy.clone(),
                    ..OpenOptions::default()
                };
                let two = |plan: &mut Plan| plan.prefill.chunks_in_flight = 2;
                for name in models {
                    let model = root("tests/golden").join(name);
                    let golden = model.join("golden.safetensors");
                    let case = Case { name: (*name).into(), golden, model };
                    let what = || format!("{name}, {strategy} on {specs:?}");
                    let report = check_with(&case, &devices, Some(&two));
                    let report = report.unwrap_or_else(|e| panic!("{}: {e}", what()));
                    let held = report.holds(REFERENCE_TOLERANCE) && report.same_bits == Some(true);
                    assert!(held, "{}: {report}", what());
                }
            }
        }
    }
}

/// A dense model, one with experts and small window pages, one with a latent cache, one whose caches
/// and logits are wider than 64 KiB, two with states of one row, and one with streams.
#[test]
fn models_hold_with_odd_devices() {
    all_hold(&["phi-2", "gpt-oss"], &Strategy::ALL);
    let some = [Strategy::Alternate, Strategy::parse("split-columns=0.7").unwrap()];
    all_hold(&["deepseek-v2", "llama-3.2", "test-recurrent"], &some);
    all_hold(&["../golden-2026/qwen3.5", "../golden-2026/gemma-3n"], &some);
}

/// Plans of odd devices only, where each takes what the others refuse: of three, the last what both
/// of a strategy's two do.
#[test]
fn odd_devices_do_for_each_other() {
    let spec = |name: &str, file: &str| -> DeviceSpec {
        format!("{name}=virtual:{}", root("socs/odd").join(file).display()).parse().unwrap()
    };
    for files in [
        &["no-attention.toml", "own-memory.toml"][..],
        &["own-memory.toml", "own-memory.toml"],
        &["only-linear.toml", "static-shapes.toml"],
        &["dense-rows.toml", "small-bindings.toml"],
        &["only-linear.toml", "only-linear.toml", "own-memory.toml"],
    ] {
        for strategy in [Strategy::Alternate, Strategy::SplitHybrid, Strategy::PrefillDecode] {
            let names = ["x", "y", "z"];
            let devices = OpenOptions {
                devices: on(names.iter().zip(files).map(|(name, file)| spec(name, file)).collect()),
                strategy: strategy.clone(),
                ..OpenOptions::default()
            };
            for name in ["qwen3", "mixtral", "test-recurrent"] {
                let model = root("tests/golden").join(name);
                let golden = model.join("golden.safetensors");
                let case = Case { name: name.into(), golden, model };
                let three = |plan: &mut Plan| plan.prefill.chunks_in_flight = 3;
                let report = check_with(&case, &devices, Some(&three))
                    .unwrap_or_else(|e| panic!("{name}, {strategy} on {files:?}: {e}"));
                let held = report.holds(REFERENCE_TOLERANCE) && report.same_bits == Some(true);
                assert!(held, "{name}, {strategy} on {files:?}: {report}");
            }
        }
    }
}

/// A device that binds 8 KiB at once attends to caches of 128 KiB: they consist of slabs of whole
/// pages, and the plan's pages are short enough. A plan with longer ones is refused by name.
#[test]
fn caches_larger_than_a_binding_lie_in_slabs() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(root("socs/odd/small-bindings.toml")).unwrap();
    let small = text.replace("max_binding_bytes = 65536", "max_binding_bytes = 8192");
    assert_ne!(small, text);
    let file = dir.path().join("tiny-bindings.toml");
    std::fs::write(&file, small).unwrap();
    let spec: DeviceSpec = format!("b=virtual:{}", file.display()).parse().unwrap();
    let model = root("tests/golden/llama-3.2");
    let golden = model.join("golden.safetensors");
    let case = Case { name: "llama-3.2".into(), golden, model: model.clone() };
    let specs = vec![spec, "a=cpu".parse().unwrap()];
    let devices = OpenOptions { devices: on(specs.clone()), ..OpenOptions::default() };
    let report = check(&case, &devices).unwrap();
    assert!(report.holds(REFERENCE_TOLERANCE) && report.same_bits == Some(true), "{report}");

    let devices = DeviceOptions { devices: specs, ..DeviceOptions::default() };
    let mut options = OpenOptions {
        devices,
        kv_dtype: Some(troika::graph::DType::F32),
        ..OpenOptions::default()
    };
    let planned = make_plan(model.as_path(), &options).unwrap();
    // Four heads of 32 floats: 512 bytes per position.
    assert_eq!((planned.plan.page_len, planned.changes.as_slice()), (16, &[][..]));
    options.plan = troika::plan::Plan { page_len: 32, ..planned.plan }.into();
    let e = Model::open(model.as_path(), &options).err().unwrap().to_string();
    let says =
        "pages of 32 positions have 16384 bytes in layer 0 k cache, more than device b binds";
    assert!(e.contains(says) && e.contains("set page_len to 16 or less"), "{e}");
}
