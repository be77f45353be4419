//! Models on a CPU device and deliberately odd virtual ones, by every strategy: the results equal
//! those of the CPU alone.

#![allow(clippy::panic, clippy::unwrap_used)]

mod setup;

use std::path::PathBuf;

use conformance::golden::{REFERENCE_TOLERANCE, check, check_with};
use setup::{case, odd_text, on, root, virtual_spec, written_spec};
use troika::graph::DType;
use troika::plan::{Plan, Strategy};
use troika::{Model, OpenOptions, make_plan};

fn odd_devices() -> Vec<PathBuf> {
    let files = std::fs::read_dir(root("socs/odd")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|f| f.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 7, "{files:?}");
    files
}

/// Checks that a model on some devices, with so many chunks in flight, has the bits of one device.
fn holds(name: &str, devices: &[&str], strategy: &Strategy, chunks: usize) {
    let (devices, strategy) = (on(devices), strategy.clone());
    let what = format!("{name}, {strategy} on {:?}", devices.devices);
    let options = OpenOptions { devices, strategy, ..OpenOptions::default() };
    let change = |plan: &mut Plan| plan.prefill.chunks_in_flight = chunks;
    let report = check_with(&case(name), &options, Some(&change));
    let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(
        report.holds(REFERENCE_TOLERANCE) && report.same_bits == Some(true),
        "{what}: {report}"
    );
}

/// Checks the models by all strategies, with the odd device second or first.
fn all_hold(models: &[&str], policies: &[Strategy]) {
    for file in odd_devices() {
        let odd = format!("b=virtual:{}", file.display());
        for strategy in policies {
            for devices in [["a=cpu", &*odd], [&*odd, "a=cpu"]] {
                models.iter().for_each(|name| holds(name, &devices, strategy, 2));
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
    for files in [
        &["no-attention.toml", "own-memory.toml"][..],
        &["own-memory.toml", "own-memory.toml"],
        &["only-linear.toml", "static-shapes.toml"],
        &["dense-rows.toml", "small-bindings.toml"],
        &["only-linear.toml", "only-linear.toml", "own-memory.toml"],
    ] {
        for strategy in [Strategy::Alternate, Strategy::SplitHybrid, Strategy::PrefillDecode] {
            let named = ["x", "y", "z"].iter().zip(files);
            let devices = named.map(|(name, file)| virtual_spec(name, &format!("odd/{file}")));
            let devices: Vec<String> = devices.collect();
            let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
            for name in ["qwen3", "mixtral", "test-recurrent"] {
                holds(name, &devices, &strategy, 3);
            }
        }
    }
}

/// A device that binds 8 KiB at once attends to caches of 128 KiB: they consist of slabs of whole
/// pages, and the plan's pages are short enough. A plan with longer ones is refused by name.
#[test]
fn caches_larger_than_a_binding_lie_in_slabs() {
    let dir = tempfile::tempdir().unwrap();
    let text = odd_text("small-bindings");
    let small = text.replace("max_binding_bytes = 65536", "max_binding_bytes = 8192");
    assert_ne!(small, text);
    let case = case("llama-3.2");
    let devices = on(&[&written_spec(dir.path(), "b", &small), "a=cpu"]);
    let mut options = OpenOptions { devices, ..OpenOptions::default() };
    let report = check(&case, &options).unwrap();
    assert!(report.holds(REFERENCE_TOLERANCE) && report.same_bits == Some(true), "{report}");

    options.kv_dtype = Some(DType::F32);
    let planned = make_plan(&case.model, &options).unwrap();
    // Four heads of 32 floats: 512 bytes per position.
    assert_eq!((planned.plan.page_len, planned.changes.as_slice()), (16, &[][..]));
    options.plan = Plan { page_len: 32, ..planned.plan }.into();
    let e = Model::open(&case.model, &options).err().unwrap().to_string();
    let says =
        "pages of 32 positions have 16384 bytes in layer 0 k cache, more than device b binds";
    assert!(e.contains(says) && e.contains("set page_len to 16 or less"), "{e}");
}
